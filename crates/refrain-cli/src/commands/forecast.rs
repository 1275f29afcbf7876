//! `refrain forecast`.

use serde::Serialize;

use crate::cli::Forecast;
use crate::error::{Error, Result};
use crate::job::{self, Job};
use crate::output::Output;
use crate::tasks::{self, Prediction};

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
        let trained = tasks::load(&args.model, job.device())?;
        let data = args.data.unwrap_or_else(|| trained.source().to_owned());
        let out = args.out.map(|out| Output::new(&out, &[&data, trained.source()])).transpose()?;
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
        let prediction = trained.forecast(console, &data, args.ids.as_deref(), job)?;
        if !job.is_first() {
            return Ok(());
        }
        let mut line = format!("forecast    {}", prediction.summary);
        if let Some(out) = out {
            out.write(console, &prediction.csv()?)?;
            line += &format!(", written to {}", out.name());
        }
        console.line(line)?;
        match args.json {
            true => console.result(&Outcome { prediction: &prediction, device: job.device().name() }),
            false => Ok(()),
        }
    })
}
