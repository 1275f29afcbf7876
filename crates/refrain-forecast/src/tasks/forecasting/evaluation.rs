//! The errors of a model over a part of a series.

use crate::Result;
use crate::data::series::Part;
use crate::data::windows::{WindowCovariates, Windows};
use crate::models::{Forecaster, Mode};
use crate::tasks::forecasting::conformal::Intervals;
use crate::tasks::forecasting::metrics::{ErrorSums, Units};
use crate::tasks::forecasting::quantiles::{self, Crossings};
use crate::tasks::shared::each_batch;
use refrain::{Communicator, Tensor, no_grad};

/// How many rows (windows times channels) are forecast at a time: enough to fill the device, few enough to save
/// memory.
pub(super) const ROWS_AT_ONCE: usize = 1024;

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
/// Each forward pass is computed eagerly; [`RecordedForecaster::evaluate`](super::RecordedForecaster::evaluate) replays a recorded one.
///
/// # Errors
/// [`Error::Engine`](crate::Error::Engine) if the part reaches past the series; [`Error::Model`](crate::Error::Model) if the series and the
/// model have different channels, or the model has no such intervals.
pub fn evaluate(
    model: &dyn Forecaster,
    intervals: &Intervals,
    units: &Units,
    windows: &Windows,
    part: &Part,
    ranks: Option<&Communicator>,
) -> Result<Evaluation> {
    evaluate_pass(&Eager(model), intervals, units, windows, part, ranks)
}

/// How a model's forecasts are computed.
pub(super) trait ForwardPass {
    /// How many values it makes for each channel of a window.
    fn length(&self) -> usize;

    /// The values `[B, C, length]` of some windows, from their contexts `[B, C, context]` and covariates.
    fn compute(&self, contexts: &Tensor, covariates: WindowCovariates) -> Result<Tensor>;
}

/// The forward pass as it is, eagerly.
pub(super) struct Eager<'m>(pub(super) &'m dyn Forecaster);

impl ForwardPass for Eager<'_> {
    fn length(&self) -> usize {
        self.0.window().horizon
    }

    fn compute(&self, contexts: &Tensor, covariates: WindowCovariates) -> Result<Tensor> {
        self.0.forward_with(contexts, &covariates, Mode::Eval)
    }
}

/// [`evaluate`] with any forward pass.
pub(super) fn evaluate_pass(
    pass: &impl ForwardPass,
    intervals: &Intervals,
    units: &Units,
    windows: &Windows,
    part: &Part,
    ranks: Option<&Communicator>,
) -> Result<Evaluation> {
    let (channels, horizon) = (windows.channels(), windows.horizon());
    intervals.check(pass.length(), horizon)?;
    let mut errors = ErrorSums::new(horizon, intervals.levels(), units);
    let (mut crossings, mut quantiles) = (Crossings::default(), Vec::new());
    let mut adaptive = intervals.adaptive();
    let (mut of_windows, mut window) = (Vec::with_capacity(part.windows()), (0.0, 0_u32));
    each_row(pass, windows, part, ranks, |Place { series, channel, start }, values, truth| {
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
    pass: &impl ForwardPass,
    windows: &Windows,
    part: &Part,
    ranks: Option<&Communicator>,
    mut row: impl FnMut(Place, &mut [f32], &[f32]),
) -> Result<()> {
    let (channels, horizon, length) = (windows.channels(), windows.horizon(), pass.length());
    let (mut truth, mut weights) = (Vec::new(), Vec::new());
    let mut all_starts = part.starts();
    no_grad(|| {
        let batches = windows.batches(part, windows_at_once(channels))?;
        let lengths: Vec<usize> = batches.iter().map(|starts| starts.numel() * channels * length).collect();
        let compute = |batch: usize| {
            let starts = &batches[batch];
            pass.compute(&windows.cut(starts)?.0, windows.covariates(starts)?)
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
