//! What a model sees of windows that end where a forecast begins.

use crate::data::series::{CovariateCounts, Covariates, Scaler, Series, TimeAxis};
use crate::data::windows::WindowCovariates;
use crate::models::WindowShape;
use crate::{Error, Result};
use refrain::{Device, Tensor};

/// The contexts and covariates of some windows, scaled, in f32. Kinds of covariates that the model does not take are empty.
pub(super) struct ModelInputs {
    /// Of a forecast, whatever values the model has in each row.
    window: WindowShape,
    windows: usize,
    contexts: Vec<f32>, // [windows, channels, context]
    past: Vec<f32>,     // [windows, past, context]
    future: Vec<f32>,   // [windows, future, context + horizon]
    statics: Vec<f32>,  // [windows, statics]
}

impl ModelInputs {
    /// No window yet, and room for the contexts of so many.
    pub(super) fn new(window: WindowShape, windows: usize) -> ModelInputs {
        let contexts = Vec::with_capacity(windows * window.channels * window.context);
        let [past, future, statics] = [const { Vec::new() }; 3];
        ModelInputs { window, windows: 0, contexts, past, future, statics }
    }

    /// The shape of the windows.
    pub(super) fn window(&self) -> WindowShape {
        self.window
    }

    /// Adds the context of the next window: its newest rows `[rows, channels]`, scaled. What is missing before them is the mean of
    /// each channel, as in [`Windows::cut`](crate::data::windows::Windows::cut).
    pub(super) fn push_context(&mut self, newest: &[f64]) {
        let WindowShape { channels, context, .. } = self.window;
        let rows = newest.len() / channels;
        for channel in 0..channels {
            let values = || newest.iter().skip(channel).step_by(channels);
            if rows < context {
                let mean = values().sum::<f64>() / rows as f64;
                self.contexts.extend(std::iter::repeat_n(mean as f32, context - rows));
            }
            self.contexts.extend(values().map(|&value| value as f32));
        }
        self.windows += 1;
    }

    /// Adds the covariates of the window whose horizon begins at row `origin`. They are scaled.
    pub(super) fn push_covariates(&mut self, of: &Covariates, origin: usize, time: &TimeAxis) -> Result<()> {
        let CovariateCounts { past, future, statics } = of.counts();
        let [of_past, of_future] = of.window(origin, (self.window.context, self.window.horizon), time);
        extend(&mut self.past, &of_past, past)?;
        extend(&mut self.future, &of_future, future)?;
        extend(&mut self.statics, of.statics(), statics)
    }

    /// Adds the window of a series whose horizon begins at row `origin`. A forecast of what follows a series needs all future
    /// covariates of its rows.
    pub(super) fn push(&mut self, series: &Series, origin: usize, scaler: &Scaler) -> Result<()> {
        let WindowShape { channels, context, horizon } = self.window;
        let newest = &series.values()[origin.saturating_sub(context) * channels..origin * channels];
        self.push_context(&scaler.transform(newest));
        let of = series.covariates();
        if of.counts().is_empty() {
            return Ok(());
        }
        let end = origin + horizon;
        let known = of.rows_ahead().map_or(end, |ahead| series.rows() + ahead);
        // A horizon that begins in a series and ends beyond it is no forecast: its truth ends there, too.
        if of.counts().future > 0 && end > known && origin >= series.rows() {
            return Err(Error::FutureUnknown {
                file: series.file().to_owned(),
                series: series.names()[0].clone(),
                last: series.time().format(origin.saturating_sub(1)),
                needed: horizon,
                given: known.saturating_sub(origin),
            });
        }
        self.push_covariates(of, origin, series.time())
    }

    /// On the device: the contexts, then the covariates that there are, in the order of past, future and static.
    pub(super) fn tensors(&self, device: &Device) -> Result<Vec<Tensor>> {
        let WindowShape { channels, context, horizon } = self.window;
        let contexts = Tensor::from_slice(&self.contexts, [self.windows, channels, context], device)?;
        let mut all = vec![contexts];
        for (values, rows) in [(&self.past, context), (&self.future, context + horizon)] {
            if !values.is_empty() {
                let columns = values.len() / (self.windows * rows);
                all.push(Tensor::from_slice(values, [self.windows, columns, rows], device)?);
            }
        }
        if !self.statics.is_empty() {
            let columns = self.statics.len() / self.windows;
            all.push(Tensor::from_slice(&self.statics, [self.windows, columns], device)?);
        }
        Ok(all)
    }

    /// The same of contexts and covariates that are on the device.
    pub(super) fn of(contexts: Tensor, covariates: WindowCovariates) -> Vec<Tensor> {
        let WindowCovariates { past, future, statics } = covariates;
        [Some(contexts), past, future, statics].into_iter().flatten().collect()
    }

    /// The covariates among such tensors, by their shapes.
    pub(super) fn covariates(tensors: &[Tensor], context: usize) -> WindowCovariates {
        let mut covariates = WindowCovariates::default();
        for tensor in &tensors[1..] {
            let kind = match tensor.dims() {
                [_, _] => &mut covariates.statics,
                [_, _, rows] if *rows == context => &mut covariates.past,
                _ => &mut covariates.future,
            };
            *kind = Some(tensor.clone());
        }
        covariates
    }
}

/// Adds row-major values `[rows, columns]` column by column. Each must be finite in f32.
fn extend(to: &mut Vec<f32>, values: &[f64], columns: usize) -> Result<()> {
    for column in 0..columns {
        for (row, &value) in values.iter().skip(column).step_by(columns).enumerate() {
            if !(value as f32).is_finite() {
                let what = format!("a scaled covariate in row {row} of a window (from 0)");
                return Err(Error::NotFinite { what, value });
            }
            to.push(value as f32);
        }
    }
    Ok(())
}
