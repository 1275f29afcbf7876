//! Plots as SVG text: the losses by epoch, and a forecast beside what came true.

mod axis;
mod forecast;
mod frame;
mod loss;
mod svg;

pub use forecast::{Panel, forecast_svg};
pub use loss::{EpochLoss, loss_svg};

/// Colours of Okabe and Ito, which stay apart for colour-blind eyes.
mod palette {
    pub const BLACK: &str = "#000000";
    pub const GREY: &str = "#7f7f7f";
    pub const BLUE: &str = "#0072b2";
    pub const VERMILION: &str = "#d55e00";
}
