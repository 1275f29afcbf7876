//! `refrain forecast`.

use refrain_forecast::evaluation;
use refrain_nn::checkpoint::write_atomic;

use crate::cli::Forecast;
use crate::console::{Console, count};
use crate::error::{Error, Result};
use crate::{run, source};

pub fn run(args: Forecast) -> Result<()> {
    let console = Console::new(false);
    let device = args.device.open()?;
    let (config, model) = run::load(&args.model, &device)?;
    let name = args.data.as_deref().unwrap_or(&config.data.source);
    if same_file(name.as_ref(), &args.out) {
        return Err(Error::usage(
            format!("--out {} is the series itself", args.out.display()),
            "choose another file for the forecast",
        ));
    }
    let (series, report) = source::read(name, config.data.strict)?;
    source::describe(console, &series, &report)?;
    config.check_channels(&series)?;

    let (rows, channels) = (series.rows(), series.channels());
    let forecast = evaluation::forecast(&model, &config.data.scaler, &series, rows, &device)?;
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.write_record(std::iter::once("time").chain(series.names().iter().map(String::as_str)))
        .map_err(Error::Csv)?;
    for (step, values) in forecast.chunks_exact(channels).enumerate() {
        let time = series.time().format(rows + step);
        // f32 is what was computed; more digits would claim more.
        let values = values.iter().map(|&value| (value as f32).to_string());
        csv.write_record(std::iter::once(time).chain(values)).map_err(Error::Csv)?;
    }
    let bytes = csv.into_inner().map_err(|error| Error::Csv(error.into_error().into()))?;
    write_atomic(&args.out, &bytes)?;
    console.line(format!(
        "forecast    {} rows from {} to {}, written to {}",
        count(config.model.horizon),
        series.time().format(rows),
        series.time().format(rows + config.model.horizon - 1),
        args.out.display()
    ))
}

fn same_file(a: &std::path::Path, b: &std::path::Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
