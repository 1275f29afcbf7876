//! The plot of figures by step of the horizon, as lines.

use super::axis::number_ticks;
use super::frame::{Frame, MARK, label_width, legend, range, solid};
use super::palette;
use super::svg::{Anchor, Stroke, Svg, shorten};

/// The figures of one model by step.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What they are of.
    pub name: String,
    /// One figure for each step, from step 1 on.
    pub values: Vec<f64>,
}

/// The first line is that of the model, in its colour.
const STROKES: [Stroke; 5] = [
    solid(palette::VERMILION, 2.0),
    Stroke { colour: palette::BLUE, width: 1.3, dashed: true },
    Stroke { colour: palette::GREEN, width: 1.3, dashed: true },
    Stroke { colour: palette::PURPLE, width: 1.3, dashed: true },
    Stroke { colour: palette::BLACK, width: 1.3, dashed: true },
];

/// Draws lines over the steps of a horizon as an SVG document, and horizontal marks at some heights. Values that are not finite
/// are left out.
pub fn lines_svg(title: &str, height: &str, lines: &[Line], marks: &[f64]) -> String {
    const WIDTH: f64 = 960.0;
    const HEIGHT: f64 = 320.0;
    let steps = lines.iter().map(|line| line.values.len()).max().unwrap_or(0).max(1);
    let y = range(lines.iter().flat_map(|line| line.values.iter()).chain(marks).copied());
    let y_ticks = number_ticks(y.0, y.1, 6);
    let left = 44.0 + label_width(&y_ticks);
    let frame = Frame {
        left,
        top: 70.0,
        width: WIDTH - left - 24.0,
        height: HEIGHT - 70.0 - 52.0,
        x: (0.5, steps as f64 + 0.5),
        y,
    };
    let mut svg = Svg::new(WIDTH, HEIGHT);
    svg.heading(16.0, 26.0, title);
    frame.y_axis(&mut svg, &y_ticks);
    let whole = number_ticks(frame.x.0, frame.x.1, 12).into_iter().filter(|(step, _)| step.fract() == 0.0);
    let x_ticks: Vec<_> = whole.map(|(step, _)| (step, format!("{step:.0}"))).collect();
    frame.x_axis(&mut svg, &x_ticks, true);
    for &mark in marks.iter().filter(|mark| mark.is_finite()) {
        svg.line(&[(frame.left, frame.y(mark)), (frame.right(), frame.y(mark))], MARK);
    }
    frame.border(&mut svg);
    let names: Vec<String> = lines.iter().map(|line| shorten(&line.name)).collect();
    // The first lies upon the others.
    let strokes = || STROKES.iter().cycle().copied();
    for (line, stroke) in lines.iter().zip(strokes()).collect::<Vec<_>>().into_iter().rev() {
        let points = line.values.iter().enumerate().map(|(step, &value)| (step as f64 + 1.0, value));
        frame.curve(&mut svg, points, stroke);
    }
    let entries: Vec<(&str, Stroke)> = names.iter().map(String::as_str).zip(strokes()).collect();
    legend(&mut svg, frame.left, 52.0, &entries);
    svg.text(frame.left + frame.width / 2.0, HEIGHT - 14.0, Anchor::Middle, "step of the horizon");
    svg.upward_text(22.0, frame.top + frame.height / 2.0, height);
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_drawn_and_named() {
        let line = |name: &str, values: &[f64]| Line { name: name.to_owned(), values: values.to_vec() };
        let lines = [line("PatchTST", &[1.0, 2.0, 3.0]), line("a & b", &[2.0, f64::NAN, 1.0])];
        let svg = lines_svg("t", "MSE", &lines, &[1.5]);
        let curves = |stroke: Stroke| {
            svg.lines().filter(|line| line.starts_with("<polyline") && line.contains(stroke.colour)).count()
        };
        // Each has a sample in the legend; the second is two dots.
        assert_eq!((curves(STROKES[0]), curves(STROKES[1])), (2, 1));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains(">PatchTST</text>") && svg.contains(">a &amp; b</text>"), "{svg}");
        assert!(["1", "2", "3"].iter().all(|step| svg.contains(&format!(">{step}</text>"))), "{svg}");
    }

    #[test]
    fn hopeless_input_still_draws() {
        let of = |values: &[f64]| vec![Line { name: "x".to_owned(), values: values.to_vec() }];
        for lines in [vec![], of(&[]), of(&[f64::NAN]), of(&[f64::INFINITY, 1.0])] {
            let svg = lines_svg("x", "y", &lines, &[f64::NAN]);
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
