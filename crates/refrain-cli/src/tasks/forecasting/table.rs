//! A forecast as a table, in the form of the series that it continues.

use refrain_forecast::data::series::Series;
use refrain_forecast::tasks::forecasting::Forecast;

use super::trained::Next;
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
        let mut rows = Vec::new();
        for (at, (name, forecast, column, width)) in next.columns().enumerate() {
            let series = &set.series()[if set.is_independent() { at } else { 0 }];
            rows.extend((0..horizon(forecast, width)).map(|step| {
                let key = [Cell::Text(name.clone()), time(series, step)];
                key.into_iter().chain(cells(forecast, step * width + column)).collect::<Vec<_>>()
            }));
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

/// Number of rows of a forecast.
fn horizon(forecast: &Forecast, width: usize) -> usize {
    forecast.values.len() / width
}

/// The numbers of one cell of a forecast: the value, then the bounds of its intervals.
pub(super) fn cells(forecast: &Forecast, at: usize) -> impl Iterator<Item = Cell> + '_ {
    let bounds = forecast.intervals.iter().flat_map(move |interval| [interval.low[at], interval.high[at]]);
    std::iter::once(forecast.values[at]).chain(bounds).map(|value| Cell::Number(value as f32))
}
