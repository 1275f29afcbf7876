//! Cuts windows on the device out of scaled series, which are copied there once.

use crate::data::series::{CovariateCounts, Grid, PADDING, Part, Scaler, SeriesSet, Stack};
use crate::{Error, Result};
use refrain::{DType, Device, Tensor};

/// Series on a device, in one table, and which values count. It cuts out windows: a context and the horizon after it.
#[derive(Debug, Clone)]
pub struct Windows {
    series: Tensor,        // [rows, channels] f32
    marks: Option<Tensor>, // [rows, channels] u8, see `Part::mark`; `None`: every value counts
    /// Whether windows reach beyond the ends of their series.
    padded: bool,
    /// The rows in which the series begin.
    firsts: Vec<usize>,
    /// In the rows of the table, `[rows, columns]` f32.
    covariates: WindowCovariates,
    context: usize,
    horizon: usize,
}

/// The covariates of windows, scaled, in f32. Kinds that a series does not have are `None`.
#[derive(Debug, Clone, Default)]
pub struct WindowCovariates {
    /// Those that are known up to the last row of the context, `[B, past, context]`.
    pub past: Option<Tensor>,
    /// Those that are also known over the horizon, `[B, future, context + horizon]`.
    pub future: Option<Tensor>,
    /// Those that are values of the series, `[B, statics]`.
    pub statics: Option<Tensor>,
}

impl WindowCovariates {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.past.is_none() && self.future.is_none() && self.statics.is_none()
    }

    /// Copies row-major values `[rows, columns]` to the device, as the table of windows or as one window.
    pub(crate) fn table(
        values: &[f64],
        [rows, columns]: [usize; 2],
        device: &Device,
    ) -> Result<Option<Tensor>> {
        if columns == 0 {
            return Ok(None);
        }
        let narrow: Vec<f32> = values.iter().map(|&value| value as f32).collect();
        if let Some(at) = narrow.iter().position(|value| !value.is_finite()) {
            let what = format!("a scaled covariate in row {} (from 0)", at / columns);
            return Err(Error::NotFinite { what, value: values[at] });
        }
        Ok(Some(Tensor::from_slice(&narrow, [rows, columns], device)?))
    }

    /// Those of the series of a set, in the rows of a table. Rows before a series have 0, the mean; rows after it have the future
    /// covariates that are known there.
    fn of(set: &SeriesSet, stack: &Stack, device: &Device) -> Result<WindowCovariates> {
        let CovariateCounts { past, future, statics } = set.covariate_counts();
        let rows = stack.rows();
        let mut tables = [past, future, statics].map(|columns| vec![0.0; rows * columns]);
        for (series, reach) in set.series().iter().zip(stack.reaches()) {
            let (of, length) = (series.covariates(), series.rows());
            let place = |rows: usize, columns: usize| reach.start * columns..(reach.start + rows) * columns;
            tables[0][place(length, past)].copy_from_slice(of.past(0..length));
            let known = of.future_or_mean(0..reach.len(), series.time());
            tables[1][place(reach.len(), future)].copy_from_slice(&known);
            let each = tables[2][place(length, statics)].chunks_exact_mut(statics.max(1));
            each.for_each(|row| row.copy_from_slice(of.statics()));
        }
        let [of_past, of_future, of_statics] = tables;
        Ok(WindowCovariates {
            past: WindowCovariates::table(&of_past, [rows, past], device)?,
            future: WindowCovariates::table(&of_future, [rows, future], device)?,
            statics: WindowCovariates::table(&of_statics, [rows, statics], device)?,
        })
    }
}

/// Standardised values in f32. Each must be finite.
pub(crate) fn narrow(grid: &Grid) -> Result<Vec<f32>> {
    let narrow: Vec<f32> = grid.values().iter().map(|&value| value as f32).collect();
    match narrow.iter().position(|value| !value.is_finite()) {
        None => Ok(narrow),
        Some(at) => {
            let (row, channel) = (at / grid.channels(), at % grid.channels());
            let what = format!("the standardised value in row {row} of channel {channel} (both from 0)");
            Err(Error::NotFinite { what, value: grid.values()[at] })
        }
    }
}

impl Windows {
    /// Copies standardised values to the device, in f32.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for a value that is too large for f32 once it is standardised;
    /// [`Error::Engine`] if the device has no memory for them.
    pub fn new(grid: &Grid, context: usize, horizon: usize, device: &Device) -> Result<Self> {
        let shape = [grid.rows(), grid.channels()];
        let series = Tensor::from_slice(&narrow(grid)?, shape, device)?;
        let marks = |filled: &[bool]| {
            let marks: Vec<u8> = filled.iter().map(|&filled| u8::from(!filled)).collect();
            Tensor::from_slice(&marks, shape, device)
        };
        let marks = grid.filled().map(marks).transpose()?;
        let covariates = WindowCovariates::default();
        Ok(Windows { series, marks, padded: false, firsts: vec![0], covariates, context, horizon })
    }

    /// Copies the series of a set to the device, scaled, in f32: as they lie in a stack. Windows have the context of the split
    /// that made the stack.
    ///
    /// # Errors
    /// Those of [`Windows::new`].
    pub fn of(
        set: &SeriesSet,
        stack: &Stack,
        scaler: &Scaler,
        (context, horizon): (usize, usize),
        device: &Device,
    ) -> Result<Self> {
        let covariates = match set.covariate_counts().is_empty() {
            true => WindowCovariates::default(),
            false => WindowCovariates::of(set, stack, device)?,
        };
        if !set.is_independent() {
            let windows = Windows::new(&set.first().grid().standardised(scaler), context, horizon, device)?;
            return Ok(Windows { covariates, ..windows });
        }
        let (values, marks) = stack.table(set, scaler)?;
        let shape = [values.len(), 1];
        let series = Tensor::from_slice(&values, shape, device)?;
        let marks = Some(Tensor::from_slice(&marks, shape, device)?);
        let (padded, firsts) = (stack.padding() > 0, stack.firsts());
        Ok(Windows { series, marks, padded, firsts, covariates, context, horizon })
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.series.dims()[1]
    }

    /// Rows of a forecast.
    pub fn horizon(&self) -> usize {
        self.horizon
    }

    /// The device of the series.
    pub fn device(&self) -> &Device {
        self.series.device()
    }

    /// The values, the marks of those that count, and the covariates, as they lie on the device.
    pub(crate) fn tensors(&self) -> Vec<&Tensor> {
        let WindowCovariates { past, future, statics } = &self.covariates;
        std::iter::once(&self.series).chain(&self.marks).chain(past).chain(future).chain(statics).collect()
    }

    /// The number of the series that the window from a row on belongs to.
    pub fn series_of(&self, start: usize) -> usize {
        // The last row of a context always lies in the series.
        let row = (start + self.context).saturating_sub(1);
        self.firsts.partition_point(|&first| first <= row).saturating_sub(1)
    }

    /// Contexts `[B, C, context]` and horizons `[B, C, horizon]` of the windows that begin at rows `starts` (i64
    /// `[B]`).
    ///
    /// Where a context reaches beyond the beginning of its series, it has the mean of its other values. Where a horizon reaches
    /// beyond the end, it is 0; these values do not count ([`Windows::weights`]).
    ///
    /// # Errors
    /// [`Error::Engine`] if a window does not lie inside the table.
    pub fn cut(&self, starts: &Tensor) -> Result<(Tensor, Tensor)> {
        let length = self.context + self.horizon;
        let windows = self.series.windows(starts, length)?;
        let parts = |x: &Tensor| -> Result<[Tensor; 2]> {
            Ok([x.narrow(-1, 0, self.context)?, x.narrow(-1, self.context, self.horizon)?])
        };
        let (Some(marks), true) = (&self.marks, self.padded) else {
            let [context, horizon] = parts(&windows)?;
            return Ok((context, horizon));
        };
        let padding = marks.windows(starts, length)?.eq_scalar(f64::from(PADDING))?;
        // What padding holds is never computed with.
        let [context, horizon] = parts(&windows.masked_fill(&padding, 0.0)?)?;
        let padding = padding.narrow(-1, 0, self.context)?.to_dtype(DType::F32)?;
        let known = padding.sum_keepdim(-1)?.neg()?.add_scalar(self.context as f64)?;
        let mean = context.sum_keepdim(-1)?.div(&known)?;
        Ok((context.add(&padding.mul(&mean)?)?, horizon))
    }

    /// The covariates of the windows that begin at rows `starts` (i64 `[B]`). Of past covariates they have nothing of the horizon.
    ///
    /// Where a horizon ends beyond its series, it has the future covariates that are given there. What is not given is 0, the mean;
    /// the true values of these rows are not known either, so they do not count ([`Windows::weights`]).
    ///
    /// # Errors
    /// [`Error::Engine`] if a window does not lie inside the table.
    pub fn covariates(&self, starts: &Tensor) -> Result<WindowCovariates> {
        let cut = |table: &Option<Tensor>, rows: usize| -> Result<Option<Tensor>> {
            Ok(table.as_ref().map(|table| table.windows(starts, rows)).transpose()?)
        };
        let WindowCovariates { past, future, statics } = &self.covariates;
        // The last row of a context always lies in the series.
        let last = |table: &Tensor| -> Result<Tensor> {
            let rows = table.narrow(0, self.context - 1, table.dims()[0] + 1 - self.context)?;
            Ok(rows.windows(starts, 1)?.squeeze(-1)?)
        };
        Ok(WindowCovariates {
            past: cut(past, self.context)?,
            future: cut(future, self.context + self.horizon)?,
            statics: statics.as_ref().map(last).transpose()?,
        })
    }

    /// Which values of the contexts of [`Windows::cut`] were observed: f32 `[B, C, context]`, 1 or 0. `None` if all were.
    ///
    /// # Errors
    /// [`Error::Engine`] if a window does not lie inside the table.
    pub fn observed(&self, starts: &Tensor) -> Result<Option<Tensor>> {
        let Some(marks) = &self.marks else { return Ok(None) };
        let marks = marks.windows(starts, self.context)?;
        let unknown = marks.eq_scalar(0.0)?.logical_or(&marks.eq_scalar(f64::from(PADDING))?)?;
        Ok(Some(unknown.logical_not()?.to_dtype(DType::F32)?))
    }

    /// How much each value of the horizons of [`Windows::cut`] counts: f32 `[B, C, horizon]`, 1 where it was observed in the part,
    /// and 0 where it was filled or lies beyond the part.
    ///
    /// # Errors
    /// [`Error::Engine`] if a window does not lie inside the table.
    pub fn weights(&self, starts: &Tensor, part: &Part) -> Result<Tensor> {
        match &self.marks {
            Some(marks) => {
                // Row r of this view is the row where the horizon of the window from row r begins.
                let horizons = marks.narrow(0, self.context, marks.dims()[0] - self.context)?;
                let marks = horizons.windows(starts, self.horizon)?;
                Ok(marks.eq_scalar(f64::from(part.mark()))?.to_dtype(DType::F32)?)
            }
            None => {
                let shape = [starts.numel(), self.channels(), self.horizon];
                Ok(Tensor::ones(shape, DType::F32, self.device())?)
            }
        }
    }

    /// The first rows of the windows of a part, in batches of this size, on the device.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device has no memory for them.
    pub fn batches(&self, part: &Part, batch: usize) -> Result<Vec<Tensor>> {
        let starts: Vec<i64> = part.starts().map(|start| start as i64).collect();
        let all = Tensor::from_slice(&starts, [starts.len()], self.device())?;
        Ok(all.split(batch, 0)?)
    }
}

#[cfg(test)]
mod tests;
