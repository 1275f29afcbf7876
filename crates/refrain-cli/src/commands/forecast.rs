//! `refrain forecast`.

use serde::Serialize;

use crate::cli::Forecast;
use crate::error::{Error, Result};
use crate::job::{self, Job};
use crate::output::{self, Output};
use crate::tasks::{self, Asked, Prediction};

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    #[serde(flatten)]
    prediction: &'a Prediction,
    device: String,
}

pub fn run(args: Forecast) -> Result<()> {
    let job = Job::join(job::world(&args.ranks)?, &args.ranks, args.device, "forecast", job::RESTART)?;
    job.run(|job| {
        let mut trained = tasks::load(&args.model, job.device())?;
        args.dialect.apply(trained.dialect())?;
        let data = args.data.unwrap_or_else(|| trained.source().to_owned());
        let out = args.out.map(|out| Output::new(&out, &[&data, trained.source()])).transpose()?;
        if let Some(out) = &out {
            output::check_format(out.format())?;
        }
        let to_stdout = out.as_ref().is_some_and(Output::is_stdout);
        if args.json && to_stdout {
            return Err(Error::usage(
                "--json and --out - both write to standard output",
                "leave one of them out, or name a file with --out",
            ));
        }
        let console = match out {
            Some(_) => job.console(args.json || to_stdout),
            None => job.console_of_result(args.json),
        };
        let asked =
            Asked { ids: args.ids.map(each_once), from: args.from, horizons: each_once(args.horizon) };
        let prediction = trained.forecast(console, &data, &asked, job)?;
        if !job.is_first() {
            return Ok(());
        }
        let mut line = format!("forecast    {}", prediction.summary);
        if let Some(out) = out {
            let Prediction { columns, rows, .. } = &prediction;
            out.write(console, &output::table(columns, rows, out.format(), &out.name())?)?;
            line += &format!(", written to {}", out.name());
        }
        console.line(line)?;
        match args.json {
            true => console.result(&Outcome { prediction: &prediction, device: job.device().name() }),
            false => Ok(()),
        }
    })
}

/// Without what was named before.
fn each_once<T: PartialEq>(all: Vec<T>) -> Vec<T> {
    let mut seen = Vec::with_capacity(all.len());
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}
