//! A rectangle of a plot with its axes. It maps data to pixels.

use super::palette;
use super::svg::{Anchor, FONT_SIZE, Stroke, Svg, text_width};

pub const GRID: Stroke = Stroke { colour: "#e4e4e4", width: 1.0, dashed: false };
const BORDER: Stroke = Stroke { colour: "#999999", width: 1.0, dashed: false };

/// A rectangle in pixels and the ranges of data that it shows.
pub struct Frame {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
    pub x: (f64, f64),
    pub y: (f64, f64),
}

impl Frame {
    pub fn x(&self, value: f64) -> f64 {
        self.left + (value - self.x.0) / (self.x.1 - self.x.0) * self.width
    }

    pub fn y(&self, value: f64) -> f64 {
        self.bottom() - (value - self.y.0) / (self.y.1 - self.y.0) * self.height
    }

    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }

    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    /// Draws the grid lines and labels of the vertical axis.
    pub fn y_axis(&self, svg: &mut Svg, ticks: &[(f64, String)]) {
        for (value, label) in ticks {
            let y = self.y(*value);
            svg.line(&[(self.left, y), (self.right(), y)], GRID);
            svg.text(self.left - 6.0, y + FONT_SIZE * 0.35, Anchor::End, label);
        }
    }

    /// Draws the grid lines of the horizontal axis, and its labels if `labelled`.
    pub fn x_axis(&self, svg: &mut Svg, ticks: &[(f64, String)], labelled: bool) {
        for (value, label) in ticks {
            let x = self.x(*value);
            svg.line(&[(x, self.top), (x, self.bottom())], GRID);
            if labelled {
                svg.text(x, self.bottom() + FONT_SIZE + 5.0, Anchor::Middle, label);
            }
        }
    }

    pub fn border(&self, svg: &mut Svg) {
        svg.line(&[(self.left, self.top), (self.left, self.bottom()), (self.right(), self.bottom())], BORDER);
    }

    /// Draws a curve. A value that is not finite interrupts it; a single point becomes a dot.
    pub fn curve(&self, svg: &mut Svg, points: impl IntoIterator<Item = (f64, f64)>, stroke: Stroke) {
        let points: Vec<(f64, f64)> = points.into_iter().collect();
        for run in points.split(|(_, value)| !value.is_finite()) {
            let run: Vec<(f64, f64)> = run.iter().map(|&(x, y)| (self.x(x), self.y(y))).collect();
            match run[..] {
                [] => {}
                [(x, y)] => svg.circle(x, y, 1.5 + stroke.width / 2.0, stroke.colour),
                _ => svg.line(&run, stroke),
            }
        }
    }

    /// Fills the band between a low and a high curve. Where a bound is not finite, there is no band; one of a single point is a
    /// line.
    pub fn band(&self, svg: &mut Svg, bounds: &[(f64, f64, f64)], stroke: Stroke) {
        for run in bounds.split(|(_, low, high)| !(low.is_finite() && high.is_finite())) {
            let upper = run.iter().map(|&(x, _, high)| (self.x(x), self.y(high)));
            let lower = run.iter().rev().map(|&(x, low, _)| (self.x(x), self.y(low)));
            let outline: Vec<(f64, f64)> = upper.chain(lower).collect();
            match run.len() {
                0 => {}
                1 => svg.line(&outline, stroke),
                _ => svg.area(&outline, stroke.colour),
            }
        }
    }
}

/// The range of the finite values, with a margin. Without any finite value, 0 to 1.
pub fn range(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let finite = values.into_iter().filter(|value| value.is_finite());
    let (low, high) =
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low > high {
        return (0.0, 1.0);
    }
    let room = if high > low { (high - low) * 0.06 } else { low.abs().max(1.0) * 0.1 };
    (low - room, high + room)
}

/// The width of the labels of a vertical axis.
pub fn label_width<'a>(ticks: impl IntoIterator<Item = &'a (f64, String)>) -> f64 {
    ticks.into_iter().map(|(_, label)| text_width(label)).fold(0.0, f64::max)
}

/// Draws a legend: a row of sample lines with their names.
pub fn legend(svg: &mut Svg, mut x: f64, y: f64, entries: &[(&str, Stroke)]) {
    const SAMPLE: f64 = 26.0;
    for (name, stroke) in entries {
        svg.line(&[(x, y - 4.0), (x + SAMPLE, y - 4.0)], *stroke);
        svg.text(x + SAMPLE + 6.0, y, Anchor::Start, name);
        x += SAMPLE + 6.0 + text_width(name) + 22.0;
    }
}

/// A solid line in a colour of the palette.
pub const fn solid(colour: &'static str, width: f64) -> Stroke {
    Stroke { colour, width, dashed: false }
}

/// The line that marks a point in time.
pub const MARK: Stroke = Stroke { colour: palette::GREY, width: 1.0, dashed: true };
