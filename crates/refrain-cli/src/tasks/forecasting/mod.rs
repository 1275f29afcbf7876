//! Forecasters of a series.

pub mod comparison;
pub mod cross_validation;
mod dry_run;
pub mod init;
mod plots;
pub mod pretrain;
mod processes;
mod report;
pub mod score;
mod table;
pub mod train;
pub mod trained;

use refrain::Device;
use refrain_forecast::data::series::{Scaler, SeriesSet, Split, Stack};
use refrain_forecast::data::windows::Windows;

use crate::error::Result;

/// Series cut into parts.
pub struct Data {
    pub set: SeriesSet,
    pub split: Split,
    pub stack: Stack,
    /// The scale of each channel of each series.
    pub scaler: Scaler,
}

impl Data {
    /// The windows on the device.
    pub fn windows(&self, device: &Device) -> Result<Windows> {
        let Data { set, split, stack, scaler } = self;
        Ok(Windows::of(set, stack, scaler, (split.context, split.horizon), device)?)
    }
}
