//! `refrain forecast`.

use refrain_forecast::tasks::forecasting::evaluation;

use crate::cli::Forecast;
use crate::console::{Console, count};
use crate::error::{Error, Result};
use crate::output::{self, Output};
use crate::{run, source};

pub fn run(args: Forecast) -> Result<()> {
    let device = args.device.open()?;
    let (config, model) = run::load(&args.model, &device)?;
    let name = args.data.as_deref().unwrap_or(&config.task.data.source);
    let out = Output::new(&args.out, &[name, &config.task.data.source])?;
    let console = Console::of_files(out.is_stdout());
    let (series, report) = source::read(name, config.task.data.strict, config.task.data.step)?;
    source::describe(console, &series, &report)?;
    config.check_channels(&series)?;

    let (rows, channels, window) = (series.rows(), series.channels(), model.window());
    series.check_gaps(rows.saturating_sub(window.context)..rows, config.max_gap(&series))?;
    let forecast = evaluation::forecast(&*model, &config.task.data.scaler, &series, rows, &device)?;
    let names = std::iter::once("time").chain(series.names().iter().map(String::as_str));
    let mut csv = csv::Writer::from_writer(output::header(names)?);
    for (step, values) in forecast.chunks_exact(channels).enumerate() {
        let time = series.time().format(rows + step);
        // The forecast was computed in f32; more digits would suggest more precision.
        let values = values.iter().map(|&value| (value as f32).to_string());
        csv.write_record(std::iter::once(time).chain(values)).map_err(Error::Csv)?;
    }
    let bytes = csv.into_inner().map_err(|error| Error::Csv(error.into_error().into()))?;
    out.write(console, &bytes)?;
    console.line(format!(
        "forecast    {} rows from {} to {}, written to {}",
        count(window.horizon),
        series.time().format(rows),
        series.time().format(rows + window.horizon - 1),
        out.name()
    ))
}
