//! A forecast in original units.

use crate::data::series::Scaler;
use crate::tasks::forecasting::conformal::Intervals;
use crate::tasks::forecasting::quantiles::{Crossings, Interval};
use crate::{Error, Result};

/// A forecast of the rows after an origin, in original units. All values are row-major `[horizon, channels]`; of several
/// independent series, each is a channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// The forecast; of several quantiles, the median.
    pub values: Vec<f64>,
    /// The intervals around it, one for each level, ascending.
    pub intervals: Vec<Interval>,
    /// The rows whose quantiles had to be sorted.
    pub crossings: Crossings,
}

impl Forecast {
    /// What a model's standardised values `[series, channels of each, values, horizon]` mean.
    pub(super) fn of(
        mut y: Vec<f32>,
        intervals: &Intervals,
        scaler: &Scaler,
        of_each: usize,
        horizon: usize,
    ) -> Result<Forecast> {
        let channels = scaler.mean.len();
        let length = (y.len() / channels.max(1)).max(1);
        let (mut crossings, mut all, mut of_channel) = (Crossings::default(), Vec::new(), Vec::new());
        for (channel, values) in y.chunks_exact_mut(length).enumerate() {
            let (sorted, crossed) = intervals.sorted(values, horizon);
            crossings.add(crossed);
            intervals.quantiles(channel % of_each, &sorted, horizon, &mut of_channel);
            all.extend_from_slice(&of_channel); // [channels, quantiles, horizon]
        }
        let levels = intervals.levels();
        let of_quantile = |quantile: usize| {
            let cells = (0..horizon).flat_map(|row| (0..channels).map(move |channel| (row, channel)));
            let at = |(row, channel): (usize, usize)| (channel * levels.values() + quantile) * horizon + row;
            let values: Vec<f64> = cells.map(|cell| f64::from(all[at(cell)])).collect();
            scaler.inverse(&values)
        };
        let middle = levels.len();
        let of_level = |(at, level)| {
            let [low, high] = [middle - 1 - at, middle + 1 + at].map(of_quantile);
            Interval { level, low, high }
        };
        let intervals = levels.iter().enumerate().map(of_level).collect();
        let forecast = Forecast { values: of_quantile(middle), intervals, crossings };
        // It was computed in f32.
        let fault = forecast.all().find(|&value| !(value as f32).is_finite());
        match fault {
            Some(value) => Err(Error::NotFinite { what: "a value of the forecast".to_owned(), value }),
            None => Ok(forecast),
        }
    }

    /// All numbers of it.
    fn all(&self) -> impl Iterator<Item = f64> + '_ {
        let bounds = self.intervals.iter().flat_map(|interval| interval.low.iter().chain(&interval.high));
        self.values.iter().chain(bounds).copied()
    }
}
