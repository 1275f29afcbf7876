//! The bundled weather as a panel.

use super::carry_forward;
use super::table::{Outcomes, Table};
use crate::Result;
use crate::data::format::{self, Form};
use crate::data::series::{ReadOptions, fill, table as series_table};
use crate::data::{NYC_WEATHER, nyc_weather};

/// What an airport observes, in the order of the file. Labels are made from the first one.
const OBSERVED: [&str; 6] = ["temp", "dewp", "humid", "wind_speed", "pressure", "visib"];
/// Changes over this many hours: information that a single observation does not have.
const CHANGES: [(&str, usize); 6] =
    [("temp", 1), ("temp", 3), ("temp", 6), ("temp", 24), ("pressure", 3), ("pressure", 12)];

/// Every hour of the grid, including those that are missing in the file, so that each row is one hour.
pub(super) fn table() -> Result<Table> {
    let options = ReadOptions::default();
    let form = Form { dialect: &options.dialect, time: &options.columns.time };
    let rows = format::open(nyc_weather(), form, NYC_WEATHER)?;
    let table = series_table::parse(rows, &options, NYC_WEATHER)?.into_table(&options.covariates)?;
    let series = fill::onto_grid(table, None)?;
    let (rows, channels) = (series.values.len() / series.names.len(), series.names.len());
    let sources: Vec<String> =
        series.names.iter().filter_map(|name| name.strip_suffix("_temp").map(str::to_owned)).collect();
    // The channels of an airport are adjacent.
    let channel = |source: usize, quantity: usize| source * OBSERVED.len() + quantity;
    let mut known = series.values.clone();
    carry_forward(&mut known, channels);
    // Missing values stay missing in the observations; for changes, the last known value is used.
    let observed = |row: usize, source: usize, quantity: usize| row * channels + channel(source, quantity);
    let place = |name: &str| OBSERVED.iter().position(|&quantity| quantity == name).unwrap_or(0);

    let mut values = Vec::with_capacity(rows * sources.len() * (OBSERVED.len() + CHANGES.len() + 2));
    let mut prices = Vec::with_capacity(rows * sources.len());
    for row in 0..rows {
        let hour = f64::from(series.time.at(row).hour()) * std::f64::consts::TAU / 24.0;
        for source in 0..sources.len() {
            values.extend((0..OBSERVED.len()).map(|quantity| series.values[observed(row, source, quantity)]));
            values.extend(CHANGES.iter().map(|&(name, hours)| match row.checked_sub(hours) {
                Some(before) => {
                    known[observed(row, source, place(name))] - known[observed(before, source, place(name))]
                }
                None => f64::NAN,
            }));
            values.extend([hour.sin(), hour.cos()]);
            prices.push(series.values[observed(row, source, 0)]);
        }
    }
    let changes = CHANGES.iter().map(|(name, hours)| format!("{name}_change_{hours}h"));
    let hour = ["hour_sin", "hour_cos"].map(str::to_owned);
    Ok(Table {
        file: NYC_WEATHER.to_owned(),
        utc: series.time.is_utc(),
        times: (0..rows).map(|row| series.time.at(row)).collect(),
        sources,
        features: OBSERVED.map(str::to_owned).into_iter().chain(changes).chain(hour).collect(),
        values,
        outcomes: Outcomes::Prices(prices),
    })
}
