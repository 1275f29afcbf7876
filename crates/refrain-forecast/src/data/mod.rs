//! What a model learns from: series and panels, their windows, and the data that is bundled.

mod bundled;
mod format;
pub mod panel;
pub mod series;
mod text;
pub mod windows;

pub use bundled::{NYC_WEATHER, nyc_weather, nyc_weather_unit};
pub use text::read_text;
