//! `refrain bench predict`.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use refrain_forecast::tasks::forecasting::{CovariateValues, Predictor};
use serde::Serialize;

use super::bench_step::median;
use crate::cli::BenchPredict;
use crate::console::{Console, count};
use crate::error::Result;

/// What `--json` prints. Times are microseconds per forecast, as a caller sees them.
#[derive(Serialize)]
struct Outcome {
    device: String,
    threads: usize,
    callers: usize,
    /// Of all callers.
    forecasts: usize,
    median_us: f64,
    min_us: f64,
    max_us: f64,
    /// Of all callers together.
    per_second: f64,
}

/// Windows of random values, one after another, and the covariates of each.
struct Windows {
    values: Vec<Vec<f64>>,
    past: Vec<f64>,
    future: Vec<f64>,
    statics: Vec<f64>,
    /// Whether each is a series of its own.
    independent: bool,
}

/// So many windows rotate.
const POOL: usize = 16;

impl Windows {
    fn of(predictor: &Predictor) -> Windows {
        let (window, columns) = (predictor.window(), predictor.covariates());
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
        };
        let mut values = |count: usize| -> Vec<f64> { (0..count).map(|_| random()).collect() };
        Windows {
            past: values(window.context * columns.past.len()),
            future: values((window.context + window.horizon) * columns.future.len()),
            statics: values(columns.statics.len()),
            values: (0..POOL).map(|_| values(window.context * window.channels)).collect(),
            independent: predictor.channels().is_empty(),
        }
    }

    fn forecast(&self, predictor: &Predictor, number: usize) -> Result<()> {
        let Windows { past, future, statics, .. } = self;
        let covariates = CovariateValues { past, future, statics, first: Some("2024-01-01") };
        let values = &self.values[number % POOL];
        let forecast = match self.independent {
            true => predictor.forecast_series_with(values, &covariates),
            false => predictor.forecast_with(values, &covariates),
        };
        black_box(forecast?);
        Ok(())
    }
}

pub fn run(args: BenchPredict) -> Result<()> {
    let BenchPredict { callers, forecasts, warmup, .. } = args;
    let (console, device) = (Console::new(args.json), args.device.open()?);
    // A worker for each caller, so that nobody waits for another.
    let predictor = Predictor::load(&args.model, &device, callers)?;
    let windows = Windows::of(&predictor);
    let (window, threads) = (predictor.window(), rayon::current_num_threads());
    console.line(format!(
        "windows of {} channels, {} rows to {}; {callers} at a time, {} with {threads} threads",
        window.channels,
        window.context,
        window.horizon,
        device.name(),
    ))?;
    let barrier = Barrier::new(callers + 1);
    let work = || -> Result<Vec<f64>> {
        let warm = (0..warmup).try_for_each(|number| windows.forecast(&predictor, number));
        barrier.wait();
        warm?;
        let one = |number| {
            let begun = Instant::now();
            windows.forecast(&predictor, number).map(|()| begun.elapsed().as_secs_f64() * 1e6)
        };
        (0..forecasts).map(one).collect()
    };
    let (seconds, times) = thread::scope(|scope| {
        let all: Vec<_> = (0..callers).map(|_| scope.spawn(work)).collect();
        barrier.wait();
        let begun = Instant::now();
        let all: Vec<_> = all.into_iter().map(|thread| thread.join()).collect();
        (begun.elapsed().as_secs_f64(), all)
    });
    let mut all = Vec::with_capacity(callers * forecasts);
    for of_caller in times {
        let of_caller = of_caller.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        all.extend(of_caller?);
    }
    all.sort_by(f64::total_cmp);
    let outcome = Outcome {
        device: device.name(),
        threads,
        callers,
        forecasts: all.len(),
        median_us: median(&all),
        min_us: all[0],
        max_us: all[all.len() - 1],
        per_second: all.len() as f64 / seconds,
    };
    console.line(format!(
        "median {:.0} us per forecast, minimum {:.0}, maximum {:.0} over {} forecasts; {} per second",
        outcome.median_us,
        outcome.min_us,
        outcome.max_us,
        count(outcome.forecasts),
        count(outcome.per_second as u64),
    ))?;
    console.result(&outcome)
}
