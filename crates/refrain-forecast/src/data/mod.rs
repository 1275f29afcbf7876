//! Data to learn from: series and panels, their windows, and the bundled data.

mod bundled;
#[cfg(feature = "parquet")]
mod columns;
pub mod dialect;
mod format;
pub mod panel;
pub mod series;
mod text;
pub mod windows;

pub use bundled::{NYC_WEATHER, nyc_weather, nyc_weather_unit};
#[cfg(feature = "parquet")]
pub use columns::{Column, parquet};
