//! Cuts windows on the device out of a standardised series, which is copied there once.

use crate::data::series::{Grid, Part};
use crate::{Error, Result};
use refrain::{DType, Device, Tensor};

/// A series on a device, and which values were observed. It cuts out windows: a context and the horizon after it.
#[derive(Debug, Clone)]
pub struct Windows {
    series: Tensor,           // [rows, channels] f32
    observed: Option<Tensor>, // [rows, channels] f32, 1 where a value was observed and 0 where not; `None`: all were
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
        let weights = |filled: &[bool]| {
            let weights: Vec<f32> = filled.iter().map(|&filled| f32::from(u8::from(!filled))).collect();
            Tensor::from_slice(&weights, shape, device)
        };
        let observed = grid.filled().map(weights).transpose()?;
        Ok(Windows { series, observed, context, horizon })
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

    /// Contexts `[B, C, context]` and horizons `[B, C, horizon]` of the windows that begin at rows `starts` (i64
    /// `[B]`).
    ///
    /// # Errors
    /// [`Error::Engine`] if a window does not lie inside the series.
    pub fn cut(&self, starts: &Tensor) -> Result<(Tensor, Tensor)> {
        let windows = self.series.windows(starts, self.context + self.horizon)?;
        Ok((windows.narrow(-1, 0, self.context)?, windows.narrow(-1, self.context, self.horizon)?))
    }

    /// How much each value of the horizons of [`Windows::cut`] counts: f32 `[B, C, horizon]`, 1 where it was observed and
    /// 0 where it was filled.
    ///
    /// # Errors
    /// [`Error::Engine`] if a window does not lie inside the series.
    pub fn weights(&self, starts: &Tensor) -> Result<Tensor> {
        match &self.observed {
            Some(observed) => {
                // Row r of this view is the row where the horizon of the window from row r begins.
                let horizons = observed.narrow(0, self.context, observed.dims()[0] - self.context)?;
                Ok(horizons.windows(starts, self.horizon)?)
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
