//! A forecast as a table, in the form of the series that it continues.

use refrain_forecast::data::series::Series;
use refrain_forecast::tasks::forecasting::evaluation::Forecast;

use crate::output::Cell;

/// The columns and rows of a forecast of the rows after a series.
///
/// For a wide series the columns are `time` and the channels, each followed by the bounds of its intervals (`a`, `a-lo-90`,
/// `a-hi-90`); there is one row a time. For a long series they are `unique_id`, `ds`, `forecast`, `lo-90`, `hi-90`; there is
/// one row for each id and time.
pub fn of(series: &Series, forecast: &Forecast) -> (Vec<String>, Vec<Vec<Cell>>) {
    let channels = series.channels();
    let horizon = forecast.values.len() / channels;
    let time = |step: usize| Cell::Text(series.time().format(series.rows() + step));
    let bounds = |before: &str| {
        let of_level = |level: f64| [format!("{before}lo-{level}"), format!("{before}hi-{level}")];
        forecast.intervals.iter().flat_map(|interval| of_level(interval.level)).collect::<Vec<String>>()
    };
    let cells = |step: usize, channel: usize| {
        let at = step * channels + channel;
        let bounds =
            forecast.intervals.iter().flat_map(move |interval| [interval.low[at], interval.high[at]]);
        std::iter::once(forecast.values[at]).chain(bounds).map(|value| Cell::Number(value as f32))
    };
    if series.is_long() {
        let columns = ["unique_id", "ds", "forecast"].map(str::to_owned).into_iter().chain(bounds(""));
        let row = |channel: usize, step: usize| {
            let key = [Cell::Text(series.names()[channel].clone()), time(step)];
            key.into_iter().chain(cells(step, channel)).collect()
        };
        let rows = (0..channels).flat_map(|channel| (0..horizon).map(move |step| (channel, step)));
        return (columns.collect(), rows.map(|(channel, step)| row(channel, step)).collect());
    }
    let of_channel = |name: &String| std::iter::once(name.clone()).chain(bounds(&format!("{name}-")));
    let columns = std::iter::once("time".to_owned()).chain(series.names().iter().flat_map(of_channel));
    let row = |step: usize| {
        let cells = (0..channels).flat_map(|channel| cells(step, channel));
        std::iter::once(time(step)).chain(cells).collect()
    };
    (columns.collect(), (0..horizon).map(row).collect())
}
