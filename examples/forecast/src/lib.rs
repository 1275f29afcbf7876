//! Forecasts of many series by the library: a CSV file of series that begin and end at different times, a model that learns
//! quantiles, its errors on rows that it has not seen, and a run folder from which a server makes forecasts. A second function
//! goes on with a checkpoint of Hugging Face.

use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use refrain::{DType, Device};
use refrain_forecast::baselines::{self, SeasonalNaive};
use refrain_forecast::data::series::{Layout, ReadOptions, Scaling, SeriesSet, SplitRule};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::nlinear::NLinearConfig;
use refrain_forecast::models::patchtst::hugging_face::HuggingFace;
use refrain_forecast::tasks::forecasting::conformal::Intervals;
use refrain_forecast::tasks::forecasting::loss::{Loss, Quantile};
use refrain_forecast::tasks::forecasting::metrics::{Metrics, Units};
use refrain_forecast::tasks::forecasting::{Forecasting, Levels, PredictorConfig, evaluation};
use refrain_forecast::training::{Trainer, TrainingConfig};
use refrain_forecast::{Error, Result};

/// Days that the model sees, and days that it forecasts after them.
pub const CONTEXT: usize = 28;
/// See [`CONTEXT`].
pub const HORIZON: usize = 7;
/// Days of a season.
pub const WEEK: usize = 7;

/// What a shop sells on a day: more at the weekend, with noise.
pub fn sold(shop: usize, day: usize) -> f64 {
    let noise = ((shop * 7919 + day * 104_729 + day * day * 31) % 1009) as f64 / 1009.0 - 0.5;
    let weekend = if day % WEEK >= 5 { 4.0 } else { 0.0 };
    (1 + shop % 9) as f64 * (10.0 + weekend + noise)
}

/// A file of 60 shops. They open on different days, and 40 to 119 days of each are known.
pub fn example_file() -> String {
    let mut text = "unique_id,ds,y\n".to_owned();
    for shop in 0..60 {
        let open = shop * 13 % 60;
        for day in open..open + 40 + shop * 37 % 80 {
            let (month, date) = [(1, 0), (2, 31), (3, 60), (4, 91), (5, 121), (6, 152)]
                .into_iter()
                .rfind(|(_, before)| *before <= day)
                .map_or((1, 1), |(month, before)| (month, day - before + 1));
            text += &format!("shop{shop},2024-{month:02}-{date:02},{:.2}\n", sold(shop, day));
        }
    }
    text
}

/// The series of a CSV file with the columns `unique_id`, `ds` and `y`, each for itself.
pub fn read(text: impl Read, name: &str) -> Result<SeriesSet> {
    Ok(SeriesSet::from_csv(text, name, &ReadOptions::default(), Layout::Independent)?.0)
}

/// The same of a file on disk.
pub fn open(path: &Path) -> Result<SeriesSet> {
    let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    read(file, &path.display().to_string())
}

/// The errors on the last week of each series, in units of the series' standard deviations.
#[derive(Debug)]
pub struct Errors {
    /// Of the model, with the coverage of its intervals.
    pub model: Metrics,
    /// Of the week before, repeated.
    pub naive: Metrics,
}

/// Trains on all series and writes a run folder. The last week of each tests the model, the week before chooses the epoch.
pub fn train(set: &SeriesSet, device: &Device, folder: &Path) -> Result<Errors> {
    let rule = SplitRule::Rows { validation: HORIZON, test: HORIZON };
    let longest_gap = 3;
    let (split, stack) = set.split(&rule, CONTEXT, HORIZON, longest_gap)?;
    let scaler = set.scaler(&stack, Scaling::Standard)?;
    let windows = Windows::of(set, &stack, &scaler, (CONTEXT, HORIZON), device)?;

    // Quantiles give the forecast an interval in which 80 % of the true values should lie.
    let loss = Loss::Quantile(Quantile { levels: Levels::new(vec![80.0]).map_err(unusable)? });
    let model = NLinearConfig { channels: 1, context: CONTEXT, horizon: HORIZON, individual: false };
    let training = TrainingConfig { epochs: 12, lr: 1e-2, patience: 12, ..TrainingConfig::default() };
    let task = Forecasting::new(model.clone(), loss.clone(), windows, &split, training.seed)?;
    let mut trainer = Trainer::of(task, training)?;

    let kept = PredictorConfig::of_series(model, loss.clone(), Scaling::Standard).to_json();
    while !trainer.is_done() {
        trainer.epoch(Duration::from_secs(1), |_| ControlFlow::Continue(()))?;
        trainer.save(folder, &kept)?; // the best weights so far, for `Predictor::load`
    }

    let Forecasting { model, windows, .. } = trainer.into_best()?;
    let units = Units::new(set, &stack, &scaler, WEEK);
    let intervals = Intervals::of(&loss)?;
    let tested = evaluation::evaluate(&*model, &intervals, &units, &windows, &split.test, None)?;
    let naive = SeasonalNaive::new(WEEK, CONTEXT)?;
    let naive = baselines::evaluate_set(&naive, set, &stack, &units, (&split, &split.test));
    Ok(Errors { model: tested.errors.overall(), naive: naive.overall() })
}

/// Goes on with a checkpoint of Hugging Face (`PatchTSTForPrediction`) on a table with its channels: the validation error before the
/// first step, and after each epoch.
pub fn fine_tune(checkpoint: &Path, set: &SeriesSet, epochs: usize, device: &Device) -> Result<Vec<f64>> {
    let checkpoint = HuggingFace::open(checkpoint)?;
    let (context, horizon) = (checkpoint.config().context, checkpoint.config().horizon);
    let longest_gap = 24;
    let (split, stack) = set.split(&SplitRule::default(), context, horizon, longest_gap)?;
    let scaler = set.scaler(&stack, Scaling::Standard)?;
    let units = Units::new(set, &stack, &scaler, 24);

    let windows = Windows::of(set, &stack, &scaler, (context, horizon), device)?;
    let model = checkpoint.model(DType::F32, device, 42)?;
    let none = Intervals::default();
    let before = evaluation::evaluate(&model, &none, &units, &windows, &split.validation, None)?;
    let task = Forecasting::of(Box::new(model), Loss::default(), windows, &split)?;
    let default = TrainingConfig::default();
    let training = TrainingConfig { epochs, lr: 1e-2, batch_size: 32, patience: epochs, ..default };
    let mut trainer = Trainer::of(task, training)?;
    while !trainer.is_done() {
        trainer.epoch(Duration::from_secs(1), |_| ControlFlow::Continue(()))?;
    }
    let after = trainer.history().iter().map(|epoch| epoch.validation.mse);
    Ok(std::iter::once(before.errors.overall().mse).chain(after).collect())
}

fn unusable(problem: String) -> Error {
    Error::Training { problem, fix: "choose percentages between 0 and 100" }
}
