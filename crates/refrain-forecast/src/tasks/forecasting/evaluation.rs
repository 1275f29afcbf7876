//! The errors of a model over a part of a series, and its forecast of the rows that follow.

use crate::data::series::{Part, Scaler, Series};
use crate::data::windows::{WindowCovariates, Windows};
use crate::models::{Forecaster, Mode};
use crate::tasks::forecasting::conformal::Intervals;
use crate::tasks::forecasting::metrics::{ErrorSums, Units};
use crate::tasks::forecasting::quantiles::{self, Crossings, Interval};
use crate::tasks::shared::each_batch;
use crate::{Error, Result};
use refrain::{Communicator, Device, Tensor, no_grad};

/// How many rows (windows times channels) are forecast at a time: enough to fill the device, few enough to save
/// memory.
const ROWS_AT_ONCE: usize = 1024;

/// The same in windows.
pub(in crate::tasks) fn windows_at_once(channels: usize) -> usize {
    (ROWS_AT_ONCE / channels.max(1)).max(1)
}

/// The errors of a model over a part.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// The errors of the forecast; of several quantiles, of the median.
    pub errors: ErrorSums,
    /// The rows whose quantiles had to be sorted.
    pub crossings: Crossings,
    /// The mean squared error of each window over its channels and steps, in units of the channels' standard deviations, in the
    /// order of [`Part::starts`]. NaN where nothing was observed.
    pub windows: Vec<f32>,
}

/// The errors of a model over all windows and channels of a part. Only observed values count. The units are those of the windows'
/// series and channels. Adaptive intervals follow their coverage from window to window.
///
/// Several ranks can share the work: if all of them call it with their communicator and the same model and windows, each computes
/// a part of the forecasts, and all get the result of one process, bit for bit.
///
/// # Errors
/// [`Error::Engine`] if the series and the model have different channels, or the part reaches past the series;
/// [`Error::Model`] if the model has no such intervals.
pub fn evaluate(
    model: &dyn Forecaster,
    intervals: &Intervals,
    units: &Units,
    windows: &Windows,
    part: &Part,
    ranks: Option<&Communicator>,
) -> Result<Evaluation> {
    let (channels, horizon) = (windows.channels(), windows.horizon());
    intervals.check(model.window().horizon, horizon)?;
    let mut errors = ErrorSums::new(horizon, intervals.levels(), units);
    let (mut crossings, mut quantiles) = (Crossings::default(), Vec::new());
    let mut adaptive = intervals.adaptive();
    let (mut of_windows, mut window) = (Vec::with_capacity(part.windows()), (0.0, 0_u32));
    each_row(model, windows, part, ranks, |Place { series, channel, start }, values, truth| {
        let (sorted, crossed) = intervals.sorted(values, horizon);
        crossings.add(crossed);
        match &mut adaptive {
            None => intervals.quantiles(channel, &sorted, horizon, &mut quantiles),
            Some(adaptive) => {
                let by = adaptive.corrections(series, channel, start);
                intervals.widened(|level, step| by[level * horizon + step], &sorted, horizon, &mut quantiles);
                adaptive.observe((series, channel), start, &quantiles, truth);
            }
        }
        errors.add(series * channels + channel, &quantiles, truth);
        for (forecast, truth) in quantiles::median(&quantiles, horizon).iter().zip(truth.iter()) {
            if !truth.is_nan() {
                window = (window.0 + (forecast - truth).powi(2), window.1 + 1);
            }
        }
        if channel + 1 == channels {
            let (sum, count) = std::mem::take(&mut window);
            of_windows.push(sum / count as f32);
        }
    })?;
    Ok(Evaluation { errors, crossings, windows: of_windows })
}

/// A channel of a window: the number of its series, and the row of the table that it begins in.
pub(super) struct Place {
    pub(super) series: usize,
    pub(super) channel: usize,
    pub(super) start: usize,
}

/// Calls `row` with the forecast and the true values of each window and channel of a part. Of several values of a row the forecast
/// has all, one after another. Values that do not count are NaN. The windows of a series come in order. Several ranks
/// share the forecasts; `row` is called for all of them on each rank.
pub(super) fn each_row(
    model: &dyn Forecaster,
    windows: &Windows,
    part: &Part,
    ranks: Option<&Communicator>,
    mut row: impl FnMut(Place, &mut [f32], &[f32]),
) -> Result<()> {
    let (channels, horizon, length) = (windows.channels(), windows.horizon(), model.window().horizon);
    let (mut truth, mut weights) = (Vec::new(), Vec::new());
    let mut all_starts = part.starts();
    no_grad(|| {
        let batches = windows.batches(part, windows_at_once(channels))?;
        let lengths: Vec<usize> = batches.iter().map(|starts| starts.numel() * channels * length).collect();
        let compute = |batch: usize| {
            let starts = &batches[batch];
            model.forward_with(&windows.cut(starts)?.0, &windows.covariates(starts)?, Mode::Eval)
        };
        each_batch(ranks, &lengths, compute, |batch, forecast: &mut [f32]| {
            let starts = &batches[batch];
            let (_, y) = windows.cut(starts)?;
            truth.resize(y.numel(), 0.0_f32);
            y.read_into(&mut truth)?;
            if part.has_filled() {
                weights.resize(truth.len(), 0.0_f32);
                windows.weights(starts, part)?.read_into(&mut weights)?;
                let filled = truth.iter_mut().zip(&weights).filter(|(_, weight)| **weight == 0.0);
                filled.for_each(|(truth, _)| *truth = f32::NAN);
            }
            let of_window =
                forecast.chunks_exact_mut(length * channels).zip(truth.chunks_exact(horizon * channels));
            for ((forecast, truth), start) in of_window.zip(all_starts.by_ref()) {
                let series = windows.series_of(start);
                let rows = forecast.chunks_exact_mut(length).zip(truth.chunks_exact(horizon));
                rows.enumerate().for_each(|(channel, (forecast, truth))| {
                    row(Place { series, channel, start }, forecast, truth)
                });
            }
            Ok(())
        })
    })
}

/// A forecast of the rows after an origin, in original units. All values are row-major `[horizon, channels]`; of several
/// independent series, each is a channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// The forecast; of several quantiles, the median.
    pub values: Vec<f64>,
    /// The intervals around it, one for each level, ascending.
    pub intervals: Vec<Interval>,
    /// The rows whose quantiles had to be sorted.
    pub crossings: Crossings,
}

/// The forecast of the `horizon` rows that begin at row `origin`.
///
/// # Errors
/// [`Error::NotFinite`] if a value of it is not finite; [`Error::ShortContext`] if there are fewer rows before
/// `origin` than the context of the model; [`Error::FutureUnknown`] if the series lacks future covariates of these rows;
/// [`Error::Model`] if the model has other quantiles; [`Error::Engine`] if the series
/// and the model have different channels.
pub fn forecast(
    model: &dyn Forecaster,
    intervals: &Intervals,
    scaler: &Scaler,
    series: &Series,
    (origin, horizon): (usize, usize),
    device: &Device,
) -> Result<Forecast> {
    let (channels, window) = (series.channels(), model.window());
    let (context, length) = (window.context, window.horizon);
    if origin < context || origin > series.rows() {
        return Err(Error::ShortContext {
            file: series.file().to_owned(),
            rows: origin.min(series.rows()),
            context,
        });
    }
    intervals.check(length, horizon)?;
    let past = scaler.transform(&series.values()[(origin - context) * channels..origin * channels]);
    let past: Vec<f32> = past.iter().map(|&value| value as f32).collect();
    let x = Tensor::from_slice(&past, [1, context, channels], device)?.transpose(1, 2)?;
    let covariates = covariates_at(&[(series, origin)], (context, horizon), device)?;
    let y = no_grad(|| model.forward_with(&x, &covariates, Mode::Eval))?;
    decode(y.to_vec::<f32>()?, intervals, scaler, channels, horizon)
}

/// The forecast of the `horizon` rows that begin at a row of each of some independent series. The scaler has the scale of each.
/// Where a series has fewer rows before than the context, the mean of these stands for what is missing. Several ranks can share the
/// work, as in [`evaluate`].
///
/// # Errors
/// Those of [`forecast`]; [`Error::ShortContext`] if a series has no row before its origin.
///
/// # Panics
/// If the scaler is one of other series.
pub fn forecast_independent(
    model: &dyn Forecaster,
    intervals: &Intervals,
    scaler: &Scaler,
    origins: &[(&Series, usize)],
    horizon: usize,
    device: &Device,
    ranks: Option<&Communicator>,
) -> Result<Forecast> {
    assert_eq!(scaler.mean.len(), origins.len(), "a scale of each series");
    let (context, length) = (model.window().context, model.window().horizon);
    intervals.check(length, horizon)?;
    let (mut contexts, mut y) = (Vec::with_capacity(context * origins.len()), Vec::new());
    for (at, &(series, origin)) in origins.iter().enumerate() {
        if origin == 0 || origin > series.rows() {
            let (file, rows) = (series.file().to_owned(), origin.min(series.rows()));
            return Err(Error::ShortContext { file, rows, context: 1 });
        }
        let values = &series.values()[origin.saturating_sub(context)..origin];
        extend_context(&mut contexts, &scaler.of(at..at + 1).transform(values), context);
    }
    let batches: Vec<_> = contexts.chunks(context * ROWS_AT_ONCE).zip(origins.chunks(ROWS_AT_ONCE)).collect();
    let lengths: Vec<usize> = batches.iter().map(|(_, origins)| origins.len() * length).collect();
    let compute = |batch: usize| {
        let (contexts, origins) = batches[batch];
        let x = Tensor::from_slice(contexts, [origins.len(), 1, context], device)?;
        let covariates = covariates_at(origins, (context, horizon), device)?;
        no_grad(|| model.forward_with(&x, &covariates, Mode::Eval))
    };
    each_batch(ranks, &lengths, compute, |_, values: &mut [f32]| {
        y.extend_from_slice(values);
        Ok(())
    })?;
    decode(y, intervals, scaler, 1, horizon)
}

/// The covariates, which are scaled, of the windows whose horizons begin at these rows, as in [`Windows::covariates`]. A forecast
/// of what follows a series needs all future covariates of its rows.
fn covariates_at(
    origins: &[(&Series, usize)],
    (context, horizon): (usize, usize),
    device: &Device,
) -> Result<WindowCovariates> {
    let counts = origins.first().map(|(series, _)| series.covariates().counts()).unwrap_or_default();
    if counts.is_empty() {
        return Ok(WindowCovariates::default());
    }
    let (mut past, mut future, mut statics) = (Vec::new(), Vec::new(), Vec::new());
    for &(series, origin) in origins {
        let (of, end) = (series.covariates(), origin + horizon);
        let known = of.rows_ahead().map_or(end, |ahead| series.rows() + ahead);
        // A horizon that begins in a series and ends beyond it is no forecast: its truth ends there, too.
        if counts.future > 0 && end > known && origin >= series.rows() {
            return Err(Error::FutureUnknown {
                file: series.file().to_owned(),
                series: series.names()[0].clone(),
                last: series.time().format(origin.saturating_sub(1)),
                needed: horizon,
                given: known.saturating_sub(origin),
            });
        }
        let [of_context, of_window] = of.window(origin, (context, horizon), series.time());
        past.extend(of_context);
        future.extend(of_window);
        statics.extend_from_slice(of.statics());
    }
    let windows = origins.len();
    let rows = |values: &[f64], rows: usize, columns: usize| -> Result<Option<Tensor>> {
        let table = WindowCovariates::table(values, [windows * rows, columns], device)?;
        let of_windows = |table: Tensor| table.reshape([windows, rows, columns])?.transpose(1, 2);
        Ok(table.map(of_windows).transpose()?)
    };
    Ok(WindowCovariates {
        past: rows(&past, context, counts.past)?,
        future: rows(&future, context + horizon, counts.future)?,
        statics: WindowCovariates::table(&statics, [windows, counts.statics], device)?,
    })
}

/// Adds a context of the newest values; what is missing before them is their mean, as in [`Windows::cut`].
pub(super) fn extend_context(contexts: &mut Vec<f32>, newest: &[f64], context: usize) {
    let mean = newest.iter().sum::<f64>() / newest.len() as f64;
    contexts.extend(std::iter::repeat_n(mean as f32, context - newest.len()));
    contexts.extend(newest.iter().map(|&value| value as f32));
}

/// The forecast that a model's standardised values `[series, channels, values, horizon]` mean.
pub(super) fn decode(
    mut y: Vec<f32>,
    intervals: &Intervals,
    scaler: &Scaler,
    of_each: usize,
    horizon: usize,
) -> Result<Forecast> {
    let channels = scaler.mean.len();
    let length = y.len() / channels;
    let (mut crossings, mut all, mut of_channel) = (Crossings::default(), Vec::new(), Vec::new());
    for (channel, values) in y.chunks_exact_mut(length).enumerate() {
        let (sorted, crossed) = intervals.sorted(values, horizon);
        crossings.add(crossed);
        intervals.quantiles(channel % of_each, &sorted, horizon, &mut of_channel);
        all.extend_from_slice(&of_channel); // [channels, quantiles, horizon]
    }
    let levels = intervals.levels();
    let of_quantile = |quantile: usize| {
        let cells = (0..horizon).flat_map(|row| (0..channels).map(move |channel| (row, channel)));
        let at = |(row, channel): (usize, usize)| (channel * levels.values() + quantile) * horizon + row;
        let values: Vec<f64> = cells.map(|cell| f64::from(all[at(cell)])).collect();
        scaler.inverse(&values)
    };
    let middle = levels.len();
    let of_level = |(at, level)| {
        let [low, high] = [middle - 1 - at, middle + 1 + at].map(of_quantile);
        Interval { level, low, high }
    };
    let intervals = levels.iter().enumerate().map(of_level).collect();
    let forecast = Forecast { values: of_quantile(middle), intervals, crossings };
    // It was computed in f32.
    let fault = forecast.all().find(|&value| !(value as f32).is_finite());
    match fault {
        Some(value) => Err(Error::NotFinite { what: "a value of the forecast".to_owned(), value }),
        None => Ok(forecast),
    }
}

impl Forecast {
    /// All numbers of it.
    fn all(&self) -> impl Iterator<Item = f64> + '_ {
        let bounds = self.intervals.iter().flat_map(|interval| interval.low.iter().chain(&interval.high));
        self.values.iter().chain(bounds).copied()
    }
}
