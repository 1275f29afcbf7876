//! Plots as SVG text: the losses by epoch, a forecast beside what came true, figures by step, and figures of several models.

mod axis;
mod bars;
mod forecast;
mod frame;
mod lines;
mod loss;
mod svg;

pub use bars::{Bar, bars_svg};
pub use forecast::{Band, Subplot, forecast_svg};
pub use lines::{Line, lines_svg};
pub use loss::{EpochLoss, loss_svg};
pub use svg::escape;

/// The colours of Okabe and Ito, which colour-blind people can tell apart.
mod palette {
    pub const BLACK: &str = "#000000";
    pub const GREY: &str = "#7f7f7f";
    pub const BLUE: &str = "#0072b2";
    pub const GREEN: &str = "#009e73";
    pub const PURPLE: &str = "#cc79a7";
    pub const VERMILION: &str = "#d55e00";
    pub const PALE_VERMILION: &str = "#f0b48c";
}
