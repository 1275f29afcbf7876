//! `refrain evaluate`.

use refrain_forecast::data::windows::Windows;
use serde::Serialize;

use crate::cli::Evaluate;
use crate::console::Console;
use crate::error::Result;
use crate::filled;
use crate::run;
use crate::source;
use crate::tasks::forecasting::score::{self, Score};

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
    let name = args.data.as_deref().unwrap_or(&config.task.data.source);
    let (series, report) = source::read(name, config.task.data.strict, config.task.data.step)?;
    source::describe(console, &series, &report)?;
    config.check_channels(&series)?;
    let split = config.split(&series)?;
    filled::Windows::of(&split).report(console, config.max_gap(&series))?;
    filled::report(console, &split.filled(&series))?;
    let grid = series.grid().standardised(&config.task.data.scaler);
    let windows = Windows::new(&grid, split.context, split.horizon, &device)?;
    let score = score::measure(console, &config, &series, &split, &*model, &windows)?;
    console.result(&Outcome {
        score: &score,
        parameters: model.parameter_count(),
        weights_sha256: model.weights_sha256()?,
        device: device.name(),
    })
}
