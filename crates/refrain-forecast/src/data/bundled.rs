//! The bundled series.

/// Name of the bundled series on the command line and in messages.
pub const NYC_WEATHER: &str = "nyc-weather";

/// Hourly weather of 2013 at EWR, JFK and LGA as a wide CSV file: `time` (UTC) and 18 channels, 8,714 rows. Gaps and
/// missing values are as observed. `data/README.md` of this crate has the origin and the licence (CC0).
pub fn nyc_weather() -> &'static [u8] {
    include_bytes!("../../data/nyc-weather.csv")
}

/// The unit of a channel of [`nyc_weather`], from the quantity in its name (`EWR_temp` is in °F).
pub fn nyc_weather_unit(channel: &str) -> Option<&'static str> {
    let (_airport, quantity) = channel.split_once('_')?;
    match quantity {
        "temp" | "dewp" => Some("°F"),
        "humid" => Some("%"),
        "wind_speed" => Some("mph"),
        "pressure" => Some("hPa"),
        "visib" => Some("miles"),
        _ => None,
    }
}
