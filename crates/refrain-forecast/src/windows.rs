//! Windows cut on the device from a standardised series that lies there once.

use crate::Result;
use crate::series::Part;
use refrain::{Device, Tensor};

/// A series on a device, from which windows of a context and the horizon after it are cut.
#[derive(Debug, Clone)]
pub struct Windows {
    series: Tensor, // [rows, channels] f32
    context: usize,
    horizon: usize,
}

impl Windows {
    /// Brings standardised values, row-major `[rows, channels]`, to the device, in f32.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the values do not fill the rows, or the device has no memory for them.
    pub fn new(
        values: &[f64],
        channels: usize,
        context: usize,
        horizon: usize,
        device: &Device,
    ) -> Result<Self> {
        let narrow: Vec<f32> = values.iter().map(|&value| value as f32).collect();
        let rows = values.len().checked_div(channels).unwrap_or(0);
        let series = Tensor::from_slice(&narrow, [rows, channels], device)?;
        Ok(Windows { series, context, horizon })
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.series.dims()[1]
    }

    /// Where the series lies.
    pub fn device(&self) -> &Device {
        self.series.device()
    }

    /// Contexts `[B, C, context]` and horizons `[B, C, horizon]` of the windows that begin at rows `starts` (i64
    /// `[B]`).
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if a window does not lie inside the series.
    pub fn cut(&self, starts: &Tensor) -> Result<(Tensor, Tensor)> {
        let windows = self.series.windows(starts, self.context + self.horizon)?;
        Ok((windows.narrow(-1, 0, self.context)?, windows.narrow(-1, self.context, self.horizon)?))
    }

    /// The first rows of the windows of a part, in batches of so many, on the device.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the device has no memory for them.
    pub fn batches(&self, part: &Part, batch: usize) -> Result<Vec<Tensor>> {
        let starts: Vec<i64> = (0..part.windows).map(|window| (part.rows.start + window) as i64).collect();
        let all = Tensor::from_slice(&starts, [starts.len()], self.device())?;
        Ok(all.split(batch, 0)?)
    }
}
