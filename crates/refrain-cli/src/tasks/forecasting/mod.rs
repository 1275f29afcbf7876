//! Forecasters of a series.

pub mod score;
mod table;
pub mod train;
pub mod trained;

use refrain::Device;
use refrain_forecast::data::series::Series;
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::WindowShape;

use crate::error::Result;
use crate::run_config::{Forecasts, RunConfig};

/// The windows of a run's series, on the device.
pub fn windows(config: &RunConfig<Forecasts>, series: &Series, device: &Device) -> Result<Windows> {
    let grid = series.grid().standardised(&config.task.data.scaler);
    let WindowShape { context, horizon, .. } = config.task.model.window();
    Ok(Windows::new(&grid, context, horizon, device)?)
}
