//! A forecast as a table, in the form of the series that it continues.

use refrain_forecast::data::series::Series;
use refrain_forecast::tasks::forecasting::evaluation::Forecast;

use super::trained::{Next, SERIES_AT_ONCE};
use crate::output::Cell;

/// The columns and rows of a forecast of the rows after some series.
///
/// For a wide series the columns are `time` and the channels, each followed by the bounds of its intervals (`a`, `a-lo-90`,
/// `a-hi-90`); there is one row a time. For a long file, and for independent series, they are `unique_id`, `ds`, `forecast`, `lo-90`, `hi-90`; there is
/// one row for each id and time.
pub fn of(next: &Next) -> (Vec<String>, Vec<Vec<Cell>>) {
    let (set, levels) = (&next.set, next.forecasts.first().map_or(&[][..], |of| &of.intervals));
    let bounds = |before: &str| {
        let of_level = |level: f64| [format!("{before}lo-{level}"), format!("{before}hi-{level}")];
        levels.iter().flat_map(|interval| of_level(interval.level)).collect::<Vec<String>>()
    };
    let time = |series: &Series, step: usize| Cell::Text(series.time().format(series.rows() + step));
    if set.is_independent() || set.first().is_long() {
        let columns = ["unique_id", "ds", "forecast"].map(str::to_owned).into_iter().chain(bounds(""));
        let mut names = set.names();
        let mut rows = Vec::new();
        for (group, forecast) in next.forecasts.iter().enumerate() {
            let of_group = width(next, group);
            for (channel, name) in names.by_ref().take(of_group).enumerate() {
                let number = if set.is_independent() { rows.len() / horizon(forecast, of_group) } else { 0 };
                let series = &set.series()[number];
                rows.extend((0..horizon(forecast, of_group)).map(|step| {
                    let key = [Cell::Text(name.clone()), time(series, step)];
                    key.into_iter().chain(cells(forecast, step * of_group + channel)).collect::<Vec<_>>()
                }));
            }
        }
        return (columns.collect(), rows);
    }
    let (series, channels) = (set.first(), set.channels());
    let of_channel = |name: &String| std::iter::once(name.clone()).chain(bounds(&format!("{name}-")));
    let columns = std::iter::once("time".to_owned()).chain(series.names().iter().flat_map(of_channel));
    let row = |forecast: &Forecast, step: usize| {
        let cells = (0..channels).flat_map(|channel| cells(forecast, step * channels + channel));
        std::iter::once(time(series, step)).chain(cells).collect::<Vec<_>>()
    };
    let of_forecast =
        |forecast| (0..horizon(forecast, channels)).map(move |step| row(forecast, step)).collect::<Vec<_>>();
    (columns.collect(), next.forecasts.iter().flat_map(of_forecast).collect())
}

/// Number of channels or series of a group of forecasts.
fn width(next: &Next, group: usize) -> usize {
    match next.set.is_independent() {
        true => (next.set.series().len() - group * SERIES_AT_ONCE).min(SERIES_AT_ONCE),
        false => next.set.channels(),
    }
}

/// Number of rows of a forecast.
fn horizon(forecast: &Forecast, width: usize) -> usize {
    forecast.values.len() / width
}

/// The numbers of one cell of a forecast: the value, then the bounds of its intervals.
fn cells(forecast: &Forecast, at: usize) -> impl Iterator<Item = Cell> + '_ {
    let bounds = forecast.intervals.iter().flat_map(move |interval| [interval.low[at], interval.high[at]]);
    std::iter::once(forecast.values[at]).chain(bounds).map(|value| Cell::Number(value as f32))
}
