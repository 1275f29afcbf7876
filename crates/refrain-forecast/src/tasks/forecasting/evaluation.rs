//! The errors of a model over a part of a series, and its forecast of the rows that follow.

use crate::data::series::{Part, Scaler, Series};
use crate::data::windows::Windows;
use crate::models::{Forecaster, Mode};
use crate::tasks::forecasting::metrics::ErrorSums;
use crate::{Error, Result};
use refrain::{Device, Tensor, no_grad};

/// How many rows (windows times channels) are forecast at a time: enough to fill the device, few enough to save
/// memory.
const ROWS_AT_ONCE: usize = 1024;

/// The errors of a model over all windows and channels of a part. Only observed values count.
///
/// # Errors
/// [`Error::Engine`] if the series and the model have different channels, or the part reaches past the series.
pub fn evaluate(model: &dyn Forecaster, windows: &Windows, part: &Part) -> Result<ErrorSums> {
    let mut sums = ErrorSums::new(windows.channels());
    each_row(model, windows, part, |channel, forecast, truth| sums.add(channel, forecast, truth))?;
    Ok(sums)
}

/// Calls `row` with the channel, the forecast and the true values of each window and channel of a part. Values that were not
/// observed are NaN.
pub(super) fn each_row(
    model: &dyn Forecaster,
    windows: &Windows,
    part: &Part,
    mut row: impl FnMut(usize, &[f32], &[f32]),
) -> Result<()> {
    let (channels, horizon) = (windows.channels(), model.window().horizon);
    let (mut forecast, mut truth, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    no_grad(|| {
        for starts in windows.batches(part, (ROWS_AT_ONCE / channels.max(1)).max(1))? {
            let (x, y) = windows.cut(&starts)?;
            let prediction = model.forward(&x, Mode::Eval)?;
            forecast.resize(prediction.numel(), 0.0_f32);
            truth.resize(prediction.numel(), 0.0_f32);
            prediction.read_into(&mut forecast)?;
            y.read_into(&mut truth)?;
            if part.has_filled() {
                weights.resize(truth.len(), 0.0_f32);
                windows.weights(&starts)?.read_into(&mut weights)?;
                let filled = truth.iter_mut().zip(&weights).filter(|(_, weight)| **weight == 0.0);
                filled.for_each(|(truth, _)| *truth = f32::NAN);
            }
            let rows = forecast.chunks_exact(horizon).zip(truth.chunks_exact(horizon));
            rows.enumerate().for_each(|(at, (forecast, truth))| row(at % channels, forecast, truth));
        }
        Ok(())
    })
}

/// The forecast of the `horizon` rows that begin at row `origin`, in original units, row-major `[horizon, channels]`.
///
/// # Errors
/// [`Error::NotFinite`] if a value of it is not finite; [`Error::ShortContext`] if there are fewer rows before
/// `origin` than the context of the model; [`Error::Engine`] if the series and the model have different channels.
pub fn forecast(
    model: &dyn Forecaster,
    scaler: &Scaler,
    series: &Series,
    origin: usize,
    device: &Device,
) -> Result<Vec<f64>> {
    let (channels, window) = (series.channels(), model.window());
    let (context, horizon) = (window.context, window.horizon);
    if origin < context || origin > series.rows() {
        return Err(Error::ShortContext {
            file: series.file().to_owned(),
            rows: origin.min(series.rows()),
            context,
        });
    }
    let past = scaler.transform(&series.values()[(origin - context) * channels..origin * channels]);
    let past: Vec<f32> = past.iter().map(|&value| value as f32).collect();
    let x = Tensor::from_slice(&past, [1, context, channels], device)?.transpose(1, 2)?;
    let y = no_grad(|| model.forward(&x, Mode::Eval))?.transpose(1, 2)?;
    let y: Vec<f64> = y.to_vec::<f32>()?.into_iter().map(f64::from).collect();
    debug_assert_eq!(y.len(), horizon * channels);
    let forecast = scaler.inverse(&y);
    // It was computed in f32.
    match forecast.iter().find(|&&value| !(value as f32).is_finite()) {
        Some(value) => Err(Error::NotFinite { what: "a value of the forecast".to_owned(), value: *value }),
        None => Ok(forecast),
    }
}
