//! `refrain evaluate`.

use refrain_forecast::series::Split;
use refrain_forecast::windows::Windows;
use serde::Serialize;

use crate::cli::Evaluate;
use crate::console::Console;
use crate::error::Result;
use crate::run;
use crate::score::{self, Score};
use crate::source;

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    #[serde(flatten)]
    score: &'a Score,
    parameters: usize,
    weights_sha256: String,
    device: String,
}

pub fn run(args: Evaluate) -> Result<()> {
    let console = Console::new(args.json);
    let device = args.device.open()?;
    let (config, model) = run::load(&args.model, &device)?;
    let (series, report) =
        source::read(args.data.as_deref().unwrap_or(&config.data.source), config.data.strict)?;
    source::describe(console, &series, &report)?;
    config.check_channels(&series)?;
    let split = Split::new(&series, &config.data.split, config.model.context, config.model.horizon)?;
    let values = config.data.scaler.transform(series.values());
    let windows = Windows::new(&values, series.channels(), split.context, split.horizon, &device)?;
    let score = score::measure(console, &config, &series, &split, &model, &windows)?;
    console.result(&Outcome {
        score: &score,
        parameters: model.parameter_count(),
        weights_sha256: model.weights_sha256()?,
        device: device.name(),
    })
}
