//! The plot of a few figures of several models, as bars beside one another.

use super::axis::number_ticks;
use super::frame::GRID;
use super::palette;
use super::svg::{Anchor, FONT_SIZE, Svg, shorten, text_width};

/// The figures of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar<'a> {
    /// The model.
    pub name: &'a str,
    /// Its figures, none below 0, in the order of the titles.
    pub values: Vec<f64>,
    /// Whether it is a simple forecast that models are compared with. It gets another colour.
    pub is_baseline: bool,
}

/// Draws bars as an SVG document: a column for each title, a row for each model. Values that are not finite have no bar.
pub fn bars_svg(title: &str, titles: &[&str], bars: &[Bar]) -> String {
    const WIDTH: f64 = 960.0;
    const TOP: f64 = 76.0;
    const ROW: f64 = 26.0;
    const BETWEEN: f64 = 28.0;
    let names: Vec<String> = bars.iter().map(|bar| shorten(bar.name)).collect();
    let left = 24.0 + names.iter().map(|name| text_width(name)).fold(0.0, f64::max);
    let columns = titles.len().max(1) as f64;
    let bottom = TOP + bars.len() as f64 * ROW;
    let column = (WIDTH - left - 24.0) / columns;
    let mut svg = Svg::new(WIDTH, bottom + 44.0);
    svg.heading(16.0, 26.0, title);
    for (row, name) in names.iter().enumerate() {
        let y = TOP + (row as f64 + 0.5) * ROW + FONT_SIZE * 0.35;
        svg.text(left - 8.0, y, Anchor::End, name);
    }
    for (at, title) in titles.iter().enumerate() {
        let x = left + at as f64 * column;
        let values = || bars.iter().map(|bar| bar.values.get(at).copied().unwrap_or(f64::NAN));
        let largest = values().filter(|value| value.is_finite()).fold(0.0, f64::max);
        let largest = if largest > 0.0 { largest } else { 1.0 };
        // There is room for the number behind the longest bar.
        let width = column - BETWEEN - text_width("0.0000") - 6.0;
        svg.text(x, TOP - 12.0, Anchor::Start, title);
        for (tick, label) in number_ticks(0.0, largest, 4) {
            let x = x + tick / largest * width;
            svg.line(&[(x, TOP), (x, bottom)], GRID);
            svg.text(x, bottom + FONT_SIZE + 5.0, Anchor::Middle, &label);
        }
        for (row, (value, bar)) in values().zip(bars).enumerate().filter(|(_, (value, _))| value.is_finite())
        {
            let (y, length) = (TOP + row as f64 * ROW, value.max(0.0) / largest * width);
            let colour = if bar.is_baseline { palette::GREY } else { palette::BLUE };
            svg.rectangle(x, y + 4.0, length, ROW - 8.0, colour);
            let y = y + ROW * 0.5 + FONT_SIZE * 0.35;
            svg.text(x + length + 6.0, y, Anchor::Start, &format!("{value:.4}"));
        }
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_figure_has_a_bar_as_long_as_it_is_large() {
        let bar = |name, values: &[f64], is_baseline| Bar { name, values: values.to_vec(), is_baseline };
        let bars =
            [bar("a <1>", &[0.5, 1.0], false), bar("b", &[1.0, f64::NAN], true), bar("c", &[0.0], false)];
        let svg = bars_svg("x", &["MSE", "MAE"], &bars);
        let widths: Vec<f64> = svg
            .split("<rect x=")
            .skip(1)
            .map(|rect| rect.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        // MSE of three, then MAE of the first.
        assert_eq!(widths.len(), 4, "{svg}");
        assert!((widths[1] - 2.0 * widths[0]).abs() < 0.2 && widths[2] == 0.0, "{widths:?}");
        assert!(svg.contains("a &lt;1&gt;") && !svg.contains("NaN"), "{svg}");
        assert_eq!(svg.matches(palette::GREY).count(), 1);
    }

    #[test]
    fn nothing_still_draws() {
        for bars in [vec![], vec![Bar { name: "", values: vec![f64::INFINITY], is_baseline: true }]] {
            let svg = bars_svg("x", &["MSE"], &bars);
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("inf"), "{svg}");
        }
    }
}
