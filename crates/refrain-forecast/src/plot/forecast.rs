//! A plot of the forecast for a few channels, with what came true and the forecasts of baselines.

use super::axis::{number_ticks, time_ticks, time_title};
use super::frame::{Frame, MARK, label_width, legend, range, solid};
use super::palette;
use super::svg::{Anchor, Stroke, Svg, shorten};
use crate::data::series::TimeAxis;

/// The plot of one channel, in original units.
#[derive(Debug, Clone, Copy)]
pub struct Subplot<'a> {
    /// The channel.
    pub name: &'a str,
    /// Its unit, if known.
    pub unit: Option<&'a str>,
    /// The values that the model saw, oldest first.
    pub context: &'a [f64],
    /// The observed values from the first forecast step on; empty if they are not known yet.
    pub truth: &'a [f64],
    /// The forecast.
    pub forecast: &'a [f64],
    /// The intervals around it, ascending by level.
    pub intervals: &'a [Band],
    /// The forecasts of baselines, each with its name. All subplots have the same.
    pub baselines: &'a [(&'static str, Vec<f64>)],
}

/// An interval around a forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// The share of the true values that should lie in it, in percent.
    pub level: f64,
    /// The lower bound of each row of the forecast.
    pub low: Vec<f64>,
    /// The upper bound.
    pub high: Vec<f64>,
}

const CONTEXT: Stroke = solid(palette::GREY, 1.3);
const TRUTH: Stroke = solid(palette::BLACK, 1.3);
const FORECAST: Stroke = solid(palette::VERMILION, 2.0);
const BASELINES: [Stroke; 3] = [dashed(palette::BLUE), dashed(palette::GREEN), dashed(palette::PURPLE)];
/// What a band is in the legend, and a band of a single row.
const BAND: Stroke = solid(palette::PALE_VERMILION, 9.0);

const fn dashed(colour: &'static str) -> Stroke {
    Stroke { colour, width: 1.3, dashed: true }
}

/// Draws the panels below one another as an SVG document. `origin` is the row of `time` where the forecast begins. Of
/// a long context only the last part is drawn: twice the length of the forecast, and at least 48 rows.
pub fn forecast_svg(title: &str, time: &TimeAxis, origin: usize, panels: &[Subplot]) -> String {
    const WIDTH: f64 = 960.0;
    const TOP: f64 = 84.0;
    const PANEL: f64 = 150.0;
    const BETWEEN: f64 = 34.0;
    let height = TOP + panels.len() as f64 * (PANEL + BETWEEN) + 24.0;
    let longest = |of: fn(&Subplot) -> usize| panels.iter().map(of).max().unwrap_or(0);
    let horizon = longest(|panel| {
        let baselines = panel.baselines.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
        panel.forecast.len().max(panel.truth.len()).max(baselines)
    });
    let context = longest(|panel| panel.context.len()).min((2 * horizon).max(48)).min(origin);
    let (first, last) =
        (time.at(origin - context), time.at(origin.saturating_add(horizon).saturating_sub(1)));
    // Seconds since the first row that is drawn.
    let seconds = |at: jiff::civil::DateTime| at.duration_since(first).as_secs_f64();
    let x_of_row = |row: usize| seconds(time.at(row));
    let end = seconds(last);
    let x = (0.0, if end > 0.0 { end } else { 1.0 });
    let x_ticks: Vec<_> =
        time_ticks(first, last, 10).into_iter().map(|(at, label)| (seconds(at), label)).collect();

    // The values to draw, each with its first row.
    let shown = |panel: &Subplot<'_>| panel.context.len().saturating_sub(context);
    let of_panel = |panel: &Subplot<'_>| {
        let past = &panel.context[shown(panel)..];
        let bounds = panel.intervals.iter().flat_map(|band| band.low.iter().chain(&band.high));
        let baselines = panel.baselines.iter().flat_map(|(_, values)| values);
        let all = past.iter().chain(panel.truth).chain(panel.forecast).chain(baselines).chain(bounds);
        let y = range(all.copied());
        (y, number_ticks(y.0, y.1, 5))
    };
    let ranges: Vec<_> = panels.iter().map(of_panel).collect();
    let left = 28.0 + ranges.iter().map(|(_, ticks)| label_width(ticks)).fold(0.0, f64::max);

    let mut svg = Svg::new(WIDTH, height);
    svg.heading(16.0, 26.0, title);
    let mut entries = vec![("context", CONTEXT)];
    if panels.iter().any(|panel| !panel.truth.is_empty()) {
        entries.push(("actual", TRUTH));
    }
    entries.push(("forecast", FORECAST));
    let baselines = panels.first().map_or(&[][..], |panel| panel.baselines);
    entries
        .extend(baselines.iter().zip(BASELINES.iter().cycle()).map(|((name, _), &stroke)| (*name, stroke)));
    let levels: Vec<String> = match panels.first() {
        Some(panel) => panel.intervals.iter().map(|band| band.level.to_string()).collect(),
        None => Vec::new(),
    };
    let intervals = format!("{} % intervals", levels.join(" and "));
    if !levels.is_empty() {
        entries.push((&intervals, BAND));
    }
    legend(&mut svg, left, 50.0, &entries);

    for (index, (panel, (y, y_ticks))) in panels.iter().zip(&ranges).enumerate() {
        let top = TOP + index as f64 * (PANEL + BETWEEN);
        let frame = Frame { left, top, width: WIDTH - left - 28.0, height: PANEL, x, y: *y };
        let start = frame.x(x_of_row(origin).min(x.1));
        svg.rectangle(start, top, frame.right() - start, PANEL, "#f7f5ef");
        frame.y_axis(&mut svg, y_ticks);
        frame.x_axis(&mut svg, &x_ticks, index + 1 == panels.len());
        svg.line(&[(start, top), (start, frame.bottom())], MARK);
        frame.border(&mut svg);
        let unit = panel.unit.map(|unit| format!(" ({unit})")).unwrap_or_default();
        svg.text(left, top - 7.0, Anchor::Start, &format!("{}{unit}", shorten(panel.name)));

        let past = &panel.context[shown(panel)..];
        let past_start = origin - past.len();
        let now = past.last().map(|&value| (x_of_row(origin - 1), value));
        let from = |row: usize, values: &[f64]| -> Vec<(f64, f64)> {
            values
                .iter()
                .enumerate()
                .map(|(step, &value)| (x_of_row(row.saturating_add(step)), value))
                .collect()
        };
        // The widest first; where narrower ones lie upon it, the colour is stronger.
        for Band { low, high, .. } in panel.intervals.iter().rev() {
            let known = now.map(|(x, value)| (x, value, value));
            let bounds = from(origin, low).into_iter().zip(high).map(|((x, low), &high)| (x, low, high));
            let bounds = known.into_iter().chain(bounds);
            frame.band(&mut svg, &bounds.collect::<Vec<_>>(), BAND);
        }
        frame.curve(&mut svg, from(past_start, past), CONTEXT);
        // What follows begins where the context ends.
        let joined = |values: &[f64]| -> Vec<(f64, f64)> {
            now.filter(|_| !values.is_empty()).into_iter().chain(from(origin, values)).collect()
        };
        for ((_, values), &stroke) in panel.baselines.iter().zip(BASELINES.iter().cycle()) {
            frame.curve(&mut svg, joined(values), stroke);
        }
        frame.curve(&mut svg, joined(panel.truth), TRUTH);
        frame.curve(&mut svg, joined(panel.forecast), FORECAST);
    }
    svg.text(
        left + (WIDTH - left - 28.0) / 2.0,
        height - 12.0,
        Anchor::Middle,
        &time_title(first, last, time.is_utc()),
    );
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::series::TimeStep;

    fn axis() -> TimeAxis {
        TimeAxis::new(jiff::civil::date(2013, 12, 1).at(0, 0, 0, 0), TimeStep::seconds(3600), true)
    }

    fn panel<'a>(context: &'a [f64], future: &'a [f64], truth: bool) -> Subplot<'a> {
        let truth = if truth { future } else { &[] };
        // Tests are short.
        let baselines = Box::leak(Box::new(["seasonal naive", "linear"].map(|name| (name, future.to_vec()))));
        Subplot {
            name: "a & b",
            unit: Some("°F"),
            context,
            truth,
            forecast: future,
            intervals: &[],
            baselines,
        }
    }

    fn curves(svg: &str, stroke: Stroke) -> usize {
        svg.matches(&format!("stroke=\"{}\" stroke-width=\"{}\"", stroke.colour, stroke.width)).count()
    }

    #[test]
    fn every_panel_has_its_curves() {
        let context: Vec<f64> = (0..100).map(f64::from).collect();
        let future: Vec<f64> = (0..24).map(f64::from).collect();
        let svg = forecast_svg(
            "t",
            &axis(),
            100,
            &[panel(&context, &future, true), panel(&context, &future, true)],
        );
        // Each line style occurs once more: in the legend.
        for stroke in [CONTEXT, TRUTH, FORECAST, BASELINES[0], BASELINES[1]] {
            assert_eq!(curves(&svg, stroke), 3, "{stroke:?}");
        }
        assert_eq!(svg.matches("a &amp; b (°F)").count(), 2);
        assert!(svg.contains("5 Dec") && svg.contains("2013, UTC"), "{svg}");
    }

    #[test]
    fn the_vertical_axis_covers_every_curve() {
        let (flat, high) = ([0.0; 50], [1000.0; 24]);
        let naive = |values: &[f64]| [("seasonal naive", values.to_vec())];
        let (low, tall) = (naive(&flat), naive(&high));
        let base = Subplot { baselines: &low, forecast: &flat, ..panel(&flat, &flat, true) };
        let wide = [Band { level: 90.0, low: vec![0.0; 24], high: vec![1000.0; 24] }];
        for panel in [
            Subplot { context: &high, ..base },
            Subplot { truth: &high, ..base },
            Subplot { forecast: &high, ..base },
            Subplot { baselines: &tall, ..base },
            Subplot { intervals: &wide, ..base },
        ] {
            assert!(forecast_svg("t", &axis(), 50, &[panel]).contains(">1000</text>"), "{panel:?}");
        }
    }

    #[test]
    fn intervals_are_bands_with_a_legend() {
        let flat = [0.0; 24];
        let band = |level: f64, size: f64| Band { level, low: vec![-size; 24], high: vec![size; 24] };
        let mut intervals = [band(80.0, 1.0), band(99.5, 2.0)];
        let plot = |intervals: &[Band]| {
            let panel = Subplot { intervals, ..panel(&flat, &flat, true) };
            forecast_svg("t", &axis(), 50, &[panel, panel])
        };
        let svg = plot(&intervals);
        assert_eq!(svg.matches("<polygon").count(), 4);
        assert!(svg.contains(">80 and 99.5 % intervals</text>"), "{svg}");
        assert!(!plot(&[]).contains("interval"));
        // A bound that is no number interrupts the band.
        (intervals[0].low[0], intervals[1].high[12]) = (f64::NAN, f64::INFINITY);
        assert_eq!(plot(&intervals).matches("<polygon").count(), 6);
    }

    #[test]
    fn what_is_forecast_begins_where_the_context_ends() {
        let (context, future) = ([5.0; 60], [7.0; 24]);
        let svg = forecast_svg("t", &axis(), 60, &[panel(&context, &future, true)]);
        let of = |stroke: Stroke| {
            let colour = format!("stroke=\"{}\" stroke-width=\"{}\"", stroke.colour, stroke.width);
            let line = svg.lines().rfind(|line| line.starts_with("<polyline") && line.contains(&colour));
            line.unwrap().split('"').nth(1).unwrap().split(' ').map(str::to_owned).collect::<Vec<_>>()
        };
        let last = of(CONTEXT).pop();
        for stroke in [TRUTH, FORECAST, BASELINES[0], BASELINES[1]] {
            let points = of(stroke);
            assert_eq!((points.first(), points.len()), (last.as_ref(), 25), "{stroke:?}");
        }
    }

    #[test]
    fn the_future_has_no_truth() {
        let values: Vec<f64> = (0..50).map(f64::from).collect();
        let svg = forecast_svg("t", &axis(), 50, &[panel(&values, &values, false)]);
        assert!(!svg.contains("actual"));
        assert_eq!(curves(&svg, TRUTH), 0);
    }

    #[test]
    fn hopeless_input_still_draws() {
        let nan = [f64::NAN, f64::INFINITY];
        let one = [1.0];
        for panels in [
            vec![],
            vec![panel(&[], &[], true)],
            vec![panel(&nan, &nan, true)],
            vec![panel(&one, &one, true)],
        ] {
            for origin in [0, 1, 2, usize::MAX] {
                let svg = forecast_svg("x", &axis(), origin, &panels);
                assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }
}
