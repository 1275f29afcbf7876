//! The test errors of a model, compared with those of baselines.

use refrain_forecast::baselines::{self, Baseline, LastValue, Linear, SeasonalNaive};
use refrain_forecast::data::series::{Filled, Series, Split};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::Forecaster;
use refrain_forecast::tasks::forecasting::conformal::Intervals;
use refrain_forecast::tasks::forecasting::evaluation::{self, Evaluation};
use refrain_forecast::tasks::forecasting::metrics::{ErrorSums, Errors};
use refrain_forecast::tasks::forecasting::quantiles::Crossings;
use serde::Serialize;

use crate::console::{Console, count, number, table};
use crate::error::{Result, finite};
use crate::filled;
use crate::run_config::{Forecasts, RunConfig};

/// The errors on the test part, of the model and of the baselines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    pub test_mse: f64,
    pub test_mae: f64,
    pub test_mse_original: f64,
    pub test_mae_original: f64,
    pub last_value_mse: f64,
    pub last_value_mae: f64,
    pub seasonal_naive_mse: f64,
    pub seasonal_naive_mae: f64,
    pub linear_mse: f64,
    pub linear_mae: f64,
    pub test_windows: usize,
    /// The forecast values of the test part whose quantiles crossed, and were sorted.
    pub quantile_crossings: Crossings,
    /// The longest gap that is filled, in rows.
    pub max_gap: usize,
    pub left_out: filled::Windows,
    /// How much of each channel was filled in each part. Parts without any are left out.
    pub filled: Vec<Filled>,
}

/// Measures a model on the test part, prints the table and returns the figures.
pub fn measure(
    console: Console,
    config: &RunConfig<Forecasts>,
    series: &Series,
    split: &Split,
    (model, intervals): (&dyn Forecaster, &Intervals),
    windows: &Windows,
) -> Result<Score> {
    let scaler = &config.task.data.scaler;
    let (grid, channels) = (series.grid().standardised(scaler), series.channels());
    let baseline = |baseline: &dyn Baseline| baselines::evaluate(baseline, &grid, split, &split.test);
    let seasonal = SeasonalNaive::new(config.task.data.season, split.context)?;
    let linear = Linear::fit(&grid, split, Linear::RIDGE)?;
    let Evaluation { errors, crossings } = evaluation::evaluate(model, intervals, windows, &split.test)?;
    let sums = [
        (model.name().to_owned(), errors),
        (linear.name().to_owned(), baseline(&linear)),
        (format!("{} ({} rows)", seasonal.name(), seasonal.season()), baseline(&seasonal)),
        (LastValue.name().to_owned(), baseline(&LastValue)),
    ];

    for (name, sums) in &sums {
        for Errors { mse, mae } in [sums.standardised(), sums.original(scaler)] {
            finite(format!("the MSE of {name}"), mse)?;
            finite(format!("the MAE of {name}"), mae)?;
        }
    }
    let row = |(name, sums): &(String, ErrorSums)| {
        let (standardised, original) = (sums.standardised(), sums.original(scaler));
        let cells = [standardised.mse, standardised.mae, original.mse, original.mae].map(number);
        std::iter::once(name.clone()).chain(cells).collect::<Vec<_>>()
    };
    console.line(format!(
        "\ntest errors over {} windows of {} channels{}, standardised and in original units",
        count(split.test.windows()),
        channels,
        if split.test.has_filled() { ", over observed values" } else { "" }
    ))?;
    let rows: Vec<_> = sums.iter().map(row).collect();
    console.line(table(&["forecast", "MSE", "MAE", "MSE (orig.)", "MAE (orig.)"], &rows))?;

    say_crossings(console, crossings)?;
    let [model, linear, seasonal, last] = sums.map(|(_, sums)| (sums.standardised(), sums.original(scaler)));
    let original: Errors = model.1;
    Ok(Score {
        test_mse: model.0.mse,
        test_mae: model.0.mae,
        test_mse_original: original.mse,
        test_mae_original: original.mae,
        last_value_mse: last.0.mse,
        last_value_mae: last.0.mae,
        seasonal_naive_mse: seasonal.0.mse,
        seasonal_naive_mae: seasonal.0.mae,
        linear_mse: linear.0.mse,
        linear_mae: linear.0.mae,
        test_windows: split.test.windows(),
        quantile_crossings: crossings,
        max_gap: config.max_gap(series),
        left_out: filled::Windows::of(split),
        filled: split.filled(series),
    })
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
