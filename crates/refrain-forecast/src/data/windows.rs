//! Cuts windows on the device out of scaled series, which are copied there once.

use crate::data::series::{Grid, PADDING, Part, Scaler, SeriesSet, Stack};
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
    context: usize,
    horizon: usize,
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
        Ok(Windows { series, marks, padded: false, firsts: vec![0], context, horizon })
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
        if !set.is_independent() {
            return Windows::new(&set.first().grid().standardised(scaler), context, horizon, device);
        }
        let (values, marks) = stack.table(set, scaler)?;
        let shape = [values.len(), 1];
        let series = Tensor::from_slice(&values, shape, device)?;
        let marks = Some(Tensor::from_slice(&marks, shape, device)?);
        Ok(Windows { series, marks, padded: stack.padding() > 0, firsts: stack.firsts(), context, horizon })
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

    /// The values, and the marks of those that count, as they lie on the device.
    pub(crate) fn tensors(&self) -> Vec<&Tensor> {
        std::iter::once(&self.series).chain(&self.marks).collect()
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
