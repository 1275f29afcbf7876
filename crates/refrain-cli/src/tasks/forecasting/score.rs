//! The test errors of a model, compared with those of baselines.

use refrain::DeviceKind;
use refrain_forecast::baselines::{self, Baseline, LastValue, Linear, SeasonalNaive};
use refrain_forecast::data::series::Filled;
use refrain_forecast::data::windows::Windows;
use refrain_forecast::tasks::forecasting::RecordedForecaster;
use refrain_forecast::tasks::forecasting::evaluation::Evaluation;
use refrain_forecast::tasks::forecasting::metrics::{ErrorSums, IntervalMetrics, Metrics, Units};
use refrain_forecast::tasks::forecasting::quantiles::Crossings;
use serde::Serialize;

use super::Data;
use crate::console::{Console, count, number, table};
use crate::error::{Error, Result, finite};
use crate::filled;
use crate::job::Job;
use crate::run_config::{Forecasts, RunConfig, SeriesData};
use crate::source;

/// The errors on the test part, of the model and of the baselines, in units of the channels' standard deviations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    pub test_mse: f64,
    pub test_mae: f64,
    pub test_rmse: f64,
    pub test_mase: f64,
    pub test_smape: f64,
    /// Only with intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_crps: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub test_intervals: Vec<IntervalMetrics>,
    pub last_value_mse: f64,
    pub last_value_mae: f64,
    pub last_value_rmse: f64,
    pub last_value_mase: f64,
    pub last_value_smape: f64,
    pub seasonal_naive_mse: f64,
    pub seasonal_naive_mae: f64,
    pub seasonal_naive_rmse: f64,
    pub seasonal_naive_mase: f64,
    pub seasonal_naive_smape: f64,
    /// Not of independent series.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear_mse: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear_mae: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear_rmse: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear_mase: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear_smape: Option<f64>,
    pub test_windows: usize,
    /// The forecast values of the test part whose quantiles crossed, and were sorted.
    pub quantile_crossings: Crossings,
    /// The longest gap that is filled, in rows.
    pub max_gap: usize,
    pub left_out: filled::Windows,
    /// How much of each channel was filled in each part. Parts without any are left out.
    pub filled: Vec<Filled>,
}

/// The errors of the model in detail.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Details {
    #[serde(skip)]
    pub(super) independent: bool,
    pub(super) channels: Vec<OfChannel>,
    /// Of each step of the horizon, over all channels, in units of their standard deviations.
    pub(super) steps: Vec<Metrics>,
}

/// The errors of a model and of the baselines, and what plots need besides.
pub struct Measured {
    pub score: Score,
    pub details: Details,
    /// The errors of the model and of each baseline over all channels and steps, and of each step.
    pub(super) all: Vec<(String, Metrics, Vec<Metrics>)>,
    /// The mean squared error of each test window of the model.
    pub(super) windows: Vec<f32>,
    /// The linear baseline, if there is one.
    pub(super) linear: Option<Linear>,
}

/// The errors of one channel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct OfChannel {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unit: Option<&'static str>,
    /// In units of its standard deviation.
    pub(super) standardised: Metrics,
    /// In its own unit.
    pub(super) original: Metrics,
}

/// The linear baseline, if there is one, and the errors of all baselines on the test part, by name.
fn of_baselines(
    config: &RunConfig<Forecasts>,
    Data { set, split, stack, scaler }: &Data,
    units: &Units,
) -> Result<(Option<Linear>, Vec<(String, ErrorSums)>)> {
    let of =
        |baseline: &dyn Baseline| baselines::evaluate_set(baseline, set, stack, units, (split, &split.test));
    let seasonal = SeasonalNaive::new(config.task.data.season, split.context)?;
    // It is fitted to windows of a grid.
    let linear = match set.is_independent() {
        true => None,
        false => Some(Linear::fit(&set.first().grid().standardised(scaler), split, Linear::RIDGE)?),
    };
    let mut sums = Vec::with_capacity(3);
    sums.extend(linear.as_ref().map(|linear| (linear.name().to_owned(), of(linear))));
    sums.push((format!("{} ({} rows)", seasonal.name(), seasonal.season()), of(&seasonal)));
    sums.push((LastValue.name().to_owned(), of(&LastValue)));
    Ok((linear, sums))
}

/// Measures a model on the test part. The processes of a job share the forecasts; the first one prints the table and returns the
/// figures.
pub fn measure(
    console: Console,
    config: &RunConfig<Forecasts>,
    data: &Data,
    forecaster: &RecordedForecaster,
    windows: &Windows,
    job: &Job,
) -> Result<Option<Measured>> {
    let Data { set, split, stack, scaler } = data;
    let SeriesData { season, source, .. } = &config.task.data;
    let units = Units::new(set, stack, scaler, *season);
    let (model, ranks) = (forecaster.model(), job.communicator());
    let evaluate = || forecaster.evaluate(&units, windows, &split.test, ranks.as_ref());
    if !job.is_first() {
        evaluate()?;
        return Ok(None);
    }
    let measure_baselines = || of_baselines(config, data, &units);
    let (evaluated, (linear, others)) = match forecaster.device().kind() {
        DeviceKind::Cpu => (evaluate()?, measure_baselines()?),
        // The host measures the baselines while the GPU is busy with the model.
        _ => std::thread::scope(|scope| {
            let others = scope.spawn(measure_baselines);
            let evaluated = evaluate();
            let others = others.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok::<_, Error>((evaluated?, others?))
        })?,
    };
    let Evaluation { errors, crossings, windows } = evaluated;
    let mut sums = vec![(model.name().to_owned(), errors.clone())];
    sums.extend(others);
    let all: Vec<(String, Metrics)> =
        sums.iter().map(|(name, sums)| (name.clone(), sums.overall())).collect();
    for (name, metrics) in &all {
        finite(format!("the MSE of {name}"), metrics.mse)?;
        finite(format!("the MAE of {name}"), metrics.mae)?;
    }
    console.line(format!(
        "\ntest errors over {} windows of {}{}, standardised",
        count(split.test.windows()),
        match set.is_independent() {
            true => format!("{} series", count(set.series().len())),
            false => format!("{} channels", set.channels()),
        },
        if split.test.has_filled() { ", over observed values" } else { "" }
    ))?;
    let of_channel = |(channel, name): (usize, &String)| OfChannel {
        name: name.clone(),
        unit: source::unit(source, name),
        standardised: errors.channel(channel),
        original: errors.channel_original(channel),
    };
    // A series without a test window has no errors.
    let tested = |of: &OfChannel| of.standardised.count > 0 || !set.is_independent();
    let channels = set.names().enumerate().map(of_channel).filter(tested).collect();
    let details = Details { independent: set.is_independent(), channels, steps: errors.steps() };
    show(console, "forecast", &all)?;
    say_crossings(console, crossings)?;

    // The model comes first; the last two are always there.
    let (model, seasonal, last) =
        (all[0].1.clone(), all[all.len() - 2].1.clone(), all[all.len() - 1].1.clone());
    let of_linear = linear.as_ref().map(|_| &all[1].1);
    let score = Score {
        test_mse: model.mse,
        test_mae: model.mae,
        test_rmse: model.rmse,
        test_mase: model.mase,
        test_smape: model.smape,
        test_crps: model.crps,
        test_intervals: model.intervals,
        last_value_mse: last.mse,
        last_value_mae: last.mae,
        last_value_rmse: last.rmse,
        last_value_mase: last.mase,
        last_value_smape: last.smape,
        seasonal_naive_mse: seasonal.mse,
        seasonal_naive_mae: seasonal.mae,
        seasonal_naive_rmse: seasonal.rmse,
        seasonal_naive_mase: seasonal.mase,
        seasonal_naive_smape: seasonal.smape,
        linear_mse: of_linear.map(|metrics| metrics.mse),
        linear_mae: of_linear.map(|metrics| metrics.mae),
        linear_rmse: of_linear.map(|metrics| metrics.rmse),
        linear_mase: of_linear.map(|metrics| metrics.mase),
        linear_smape: of_linear.map(|metrics| metrics.smape),
        test_windows: split.test.windows(),
        quantile_crossings: crossings,
        max_gap: config.max_gap(set.step()),
        left_out: filled::Windows::of(split),
        filled: set.filled(split, stack),
    };
    let all = all.into_iter().zip(&sums).map(|((name, metrics), (_, sums))| (name, metrics, sums.steps()));
    Ok(Some(Measured { score, details, all: all.collect(), windows, linear }))
}

impl Details {
    /// Prints the errors of each channel and of some steps of the horizon.
    pub fn show(&self, console: Console) -> Result<()> {
        const FEW: usize = 24;
        let named = |of: &OfChannel| match of.unit {
            Some(unit) => (format!("{} ({unit})", of.name), of.original.clone()),
            None => (of.name.clone(), of.original.clone()),
        };
        let rows: Vec<_> = self.channels.iter().take(FEW).map(named).collect();
        let each = if self.independent { "series" } else { "channel" };
        console.line(format!("\neach {each} in its own unit"))?;
        show(console, each, &rows)?;
        if self.channels.len() > FEW {
            console.line(format!("... and {} more; --json has all", count(self.channels.len() - FEW)))?;
        }
        let last = self.steps.len().saturating_sub(1);
        let mut some: Vec<usize> = (0..=4).map(|part| last * part / 4).collect();
        some.dedup();
        let rows: Vec<_> =
            some.iter().map(|&step| ((step + 1).to_string(), self.steps[step].clone())).collect();
        console.line("\nsteps of the horizon, standardised; --json has all")?;
        show(console, "step", &rows)
    }
}

/// Prints a table of metrics. Those of intervals are columns if any row has them.
pub(super) fn show(console: Console, first: &str, rows: &[(String, Metrics)]) -> Result<()> {
    let header = metric_header(first, rows);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let cells: Vec<Vec<String>> = rows.iter().map(|(name, of)| metric_cells(name, of)).collect();
    console.line(table(&header, &cells))
}

/// The header of a table of metrics.
pub(super) fn metric_header(first: &str, rows: &[(String, Metrics)]) -> Vec<String> {
    let levels: Vec<f64> =
        rows.first().map_or(Vec::new(), |(_, of)| of.intervals.iter().map(|i| i.level).collect());
    let mut header: Vec<String> = [first, "MSE", "MAE", "RMSE", "MASE", "sMAPE"].map(str::to_owned).to_vec();
    if !levels.is_empty() {
        header.push("CRPS".to_owned());
    }
    header.extend(levels.iter().flat_map(|level| [format!("in {level} %"), format!("width {level} %")]));
    header
}

/// A row of a table of metrics.
pub(super) fn metric_cells(name: &str, of: &Metrics) -> Vec<String> {
    let mut cells = vec![name.to_owned()];
    cells.extend([of.mse, of.mae, of.rmse].map(number));
    cells.push(if of.mase.is_nan() { "-".to_owned() } else { number(of.mase) });
    cells.push(format!("{:.1} %", of.smape));
    cells.extend(of.crps.map(number));
    let of_interval = |of: &IntervalMetrics| [format!("{:.1} %", of.coverage), number(of.width)];
    cells.extend(of.intervals.iter().flat_map(of_interval));
    cells
}

/// Reports quantiles that crossed, if any did.
pub fn say_crossings(console: Console, Crossings { crossed, of }: Crossings) -> Result<()> {
    match crossed {
        0 => Ok(()),
        _ => console.line(format!(
            "quantiles   crossed in {} of {} values, and were sorted",
            count(crossed),
            count(of)
        )),
    }
}
