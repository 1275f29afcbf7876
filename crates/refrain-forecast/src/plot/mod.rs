//! Plots as SVG text: the losses by epoch, and a forecast with the observed values.

mod axis;
mod forecast;
mod frame;
mod loss;
mod svg;

pub use forecast::{Band, Subplot, forecast_svg};
pub use loss::{EpochLoss, loss_svg};

/// The colours of Okabe and Ito, which colour-blind people can tell apart.
mod palette {
    pub const BLACK: &str = "#000000";
    pub const GREY: &str = "#7f7f7f";
    pub const BLUE: &str = "#0072b2";
    pub const VERMILION: &str = "#d55e00";
    pub const PALE_VERMILION: &str = "#f0b48c";
}
