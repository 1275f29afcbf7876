//! The plot of the losses by epoch.

use super::axis::{log_ticks, number_ticks};
use super::frame::{Frame, MARK, label_width, legend, range, solid};
use super::palette;
use super::svg::{Anchor, Stroke, Svg};

/// The losses of one epoch. Both have the same unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpochLoss {
    /// Number of the epoch, from 1.
    pub epoch: usize,
    /// Mean loss over the training windows.
    pub train: f64,
    /// Mean loss over the validation windows.
    pub validation: f64,
}

const TRAIN: Stroke = solid(palette::BLUE, 2.0);
const VALIDATION: Stroke = solid(palette::VERMILION, 2.0);

/// Losses that differ by more than this factor are drawn on a logarithmic axis.
const LOGARITHMIC: f64 = 30.0;

/// Draws training and validation loss by epoch as an SVG document. Values that are not finite are left out. A mark
/// shows the epoch with the lowest validation loss. The axis is logarithmic if the losses are positive and span more than one
/// and a half decades.
pub fn loss_svg(title: &str, losses: &[EpochLoss]) -> String {
    const WIDTH: f64 = 760.0;
    const HEIGHT: f64 = 420.0;
    let epochs = losses.iter().map(|loss| loss.epoch as f64);
    let (first, last) = (epochs.clone().fold(f64::INFINITY, f64::min), epochs.fold(1.0, f64::max));
    let all = || losses.iter().flat_map(|loss| [loss.train, loss.validation]).filter(|loss| loss.is_finite());
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let is_log = least > 0.0 && most > least * LOGARITHMIC;
    let scaled = |value: f64| if is_log { value.log10() } else { value };
    let y = range(all().map(scaled));
    let y_ticks: Vec<(f64, String)> = match is_log {
        true => log_ticks(10_f64.powf(y.0), 10_f64.powf(y.1))
            .into_iter()
            .map(|(at, label)| (at.log10(), label))
            .collect(),
        false => number_ticks(y.0, y.1, 8),
    };
    let left = 44.0 + label_width(&y_ticks);
    let frame = Frame {
        left,
        top: 70.0,
        width: WIDTH - left - 24.0,
        height: HEIGHT - 70.0 - 52.0,
        x: (first.min(last) - 0.5, last + 0.5),
        y,
    };

    let mut svg = Svg::new(WIDTH, HEIGHT);
    svg.heading(16.0, 26.0, title);
    frame.y_axis(&mut svg, &y_ticks);
    let whole = number_ticks(frame.x.0, frame.x.1, 12).into_iter().filter(|(epoch, _)| epoch.fract() == 0.0);
    let x_ticks: Vec<_> = whole.map(|(epoch, _)| (epoch, format!("{epoch:.0}"))).collect();
    frame.x_axis(&mut svg, &x_ticks, true);

    let finite = losses.iter().filter(|loss| loss.validation.is_finite());
    let best = finite.min_by(|a, b| a.validation.total_cmp(&b.validation));
    let mut validation = "validation".to_owned();
    if let Some(best) = best {
        let x = frame.x(best.epoch as f64);
        svg.line(&[(x, frame.top), (x, frame.bottom())], MARK);
        validation = format!("validation (least {} at epoch {})", round(best.validation), best.epoch);
    }
    frame.border(&mut svg);
    let train = losses.iter().map(|loss| loss.train);
    let of_validation = losses.iter().map(|loss| loss.validation);
    for (values, stroke) in [(train.collect::<Vec<_>>(), TRAIN), (of_validation.collect(), VALIDATION)] {
        let points = losses.iter().zip(values).map(|(loss, value)| (loss.epoch as f64, scaled(value)));
        frame.curve(&mut svg, points.clone(), stroke);
        // With few epochs, also draw the points.
        if (2..=60).contains(&losses.len()) {
            for (epoch, loss) in points.filter(|(_, loss)| loss.is_finite()) {
                svg.circle(frame.x(epoch), frame.y(loss), 3.0, stroke.colour);
            }
        }
    }
    legend(&mut svg, frame.left, 52.0, &[("training", TRAIN), (&validation, VALIDATION)]);
    svg.text(frame.left + frame.width / 2.0, HEIGHT - 14.0, Anchor::Middle, "epoch");
    svg.upward_text(22.0, frame.top + frame.height / 2.0, if is_log { "loss (logarithmic)" } else { "loss" });
    svg.finish()
}

/// Rounds to four significant digits.
fn round(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e5).contains(&value.abs()) {
        return format!("{value:.3e}");
    }
    let digits = (3.0 - value.abs().max(1e-3).log10().floor()).max(0.0) as usize;
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_curves_have_every_epoch() {
        let losses: Vec<EpochLoss> = (1..=10)
            .map(|epoch| EpochLoss {
                epoch,
                train: 1.0 / epoch as f64,
                validation: (epoch as f64 - 7.0).abs() + 0.5,
            })
            .collect();
        let svg = loss_svg("run <1>", &losses);
        assert_eq!(svg.matches("<circle").count(), 20);
        assert!(svg.contains("validation (least 0.5000 at epoch 7)"), "{svg}");
        assert!(svg.contains("run &lt;1&gt;"));
        assert!((1..=10).all(|epoch| svg.contains(&format!(">{epoch}</text>"))));
    }

    #[test]
    fn losses_that_span_decades_have_a_logarithmic_axis() {
        let losses = |factor: f64| -> Vec<EpochLoss> {
            let of = |epoch: usize| EpochLoss { epoch, train: factor.powi(epoch as i32), validation: 1.0 };
            (0..4).map(of).collect()
        };
        // Equal factors are equal distances.
        let svg = loss_svg("x", &losses(0.1));
        assert!(svg.contains("logarithmic"), "{svg}");
        let line =
            svg.lines().find(|line| line.starts_with("<polyline") && line.contains(TRAIN.colour)).unwrap();
        let points = line.split('"').nth(1).unwrap().split(' ');
        let heights: Vec<f64> =
            points.map(|point| point.split(',').nth(1).unwrap().parse().unwrap()).collect();
        let distances: Vec<f64> = heights.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(distances.iter().all(|distance| (distance - distances[0]).abs() < 0.3), "{heights:?}");
        assert!(!loss_svg("x", &losses(0.5)).contains("logarithmic"));
        let zero = [EpochLoss { epoch: 1, train: 0.0, validation: 1e6 }];
        assert!(!loss_svg("x", &zero).contains("logarithmic"));
    }

    #[test]
    fn hopeless_input_still_draws() {
        let nan = EpochLoss { epoch: 1, train: f64::NAN, validation: f64::INFINITY };
        let one = EpochLoss { epoch: 3, train: 0.5, validation: 0.5 };
        for losses in [&[][..], &[nan], &[one], &[nan, one]] {
            let svg = loss_svg("x", losses);
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
