//! Forecasts that repeat the past.

use super::Baseline;
use crate::{Error, Result};

/// Repeats the last value.
#[derive(Debug, Clone, Copy)]
pub struct LastValue;

impl Baseline for LastValue {
    fn name(&self) -> &'static str {
        "last value"
    }

    fn forecast(&self, context: &[f64], forecast: &mut [f64]) {
        forecast.fill(context.last().copied().unwrap_or(f64::NAN));
    }
}

/// Repeats the last season.
#[derive(Debug, Clone, Copy)]
pub struct SeasonalNaive {
    season: usize,
}

impl SeasonalNaive {
    /// A season of this many steps, at most the length of the context. [`crate::data::series::TimeStep::season`] gives
    /// the usual season.
    ///
    /// # Errors
    /// [`Error::Baseline`] if the season is zero or longer than the context.
    pub fn new(season: usize, context: usize) -> Result<Self> {
        if season == 0 || season > context {
            return Err(Error::Baseline {
                baseline: "seasonal naive",
                problem: format!("a season of {season} steps does not fit into a context of {context}"),
                fix: "choose a season between 1 and the context",
            });
        }
        Ok(SeasonalNaive { season })
    }

    /// The season in steps.
    pub fn season(&self) -> usize {
        self.season
    }
}

impl Baseline for SeasonalNaive {
    fn name(&self) -> &'static str {
        "seasonal naive"
    }

    /// A context that is shorter than a season is repeated as a whole.
    fn forecast(&self, context: &[f64], forecast: &mut [f64]) {
        let last = &context[context.len().saturating_sub(self.season)..];
        for (value, &past) in forecast.iter_mut().zip(last.iter().cycle()) {
            *value = past;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_the_last_value_and_the_last_season() {
        let context = [1.0, 2.0, 3.0, 4.0, 5.0];
        let mut forecast = [0.0; 4];
        LastValue.forecast(&context, &mut forecast);
        assert_eq!(forecast, [5.0; 4]);
        SeasonalNaive::new(3, 5).unwrap().forecast(&context, &mut forecast);
        assert_eq!(forecast, [3.0, 4.0, 5.0, 3.0]);
        SeasonalNaive::new(3, 5).unwrap().forecast(&context[..2], &mut forecast);
        assert_eq!(forecast, [1.0, 2.0, 1.0, 2.0]);
        SeasonalNaive::new(5, 5).unwrap().forecast(&context, &mut forecast);
        assert_eq!(forecast, [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn the_season_fits_in_the_context() {
        for season in [0, 6] {
            let message = SeasonalNaive::new(season, 5).unwrap_err().to_string();
            assert!(message.contains(&format!("a season of {season} steps")), "{message}");
        }
    }
}
