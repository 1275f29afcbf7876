//! Covariates of one forecast, from memory.

use super::model_inputs::ModelInputs;
use crate::data::dialect::Dialect;
use crate::data::series::{CovariateColumns, CovariateScaler, Covariates, TimeAxis, TimeStep, stamps};
use crate::{Error, Result};
use jiff::civil::DateTime;

/// The covariates of one forecast, for [`Predictor::forecast_with`](super::Predictor::forecast_with): those of the *rows* that are
/// passed with them, and those of the horizon. All are in original units and row-major, with columns in the order of
/// [`Predictor::covariates`](super::Predictor::covariates).
///
/// A value that is not known is NaN. The last one before it in its column stands for it, or the mean if there is none. Over the
/// horizon every value must be known.
#[derive(Debug, Clone, Copy, Default)]
pub struct CovariateValues<'a> {
    /// Those that are known up to the last row before the forecast, `[rows, past]`.
    pub past: &'a [f64],
    /// Those that are also known over the horizon, `[rows + horizon, future]`, without features of the calendar.
    pub future: &'a [f64],
    /// Those with one value for the series, `[statics]`.
    pub statics: &'a [f64],
    /// The time of the first row, written as in the training data, or as `2024-07-01 06:00`. If it names no zone, it is local time of
    /// the zone of the training (`--tz`), or else UTC if the training data names zones. Only features of the calendar need it.
    pub first: Option<&'a str>,
}

/// What a model with covariates takes, and how they are scaled.
#[derive(Debug)]
pub(super) struct CovariateInputs {
    pub(super) columns: CovariateColumns,
    pub(super) scaler: CovariateScaler,
    /// The calendar of the training.
    pub(super) step: Option<TimeStep>,
    /// How the times of the training data are written.
    pub(super) dialect: Dialect,
}

impl CovariateInputs {
    /// Adds what the model sees of these values to the inputs of a window. They are those of the last `rows` rows before the
    /// forecast.
    pub(super) fn push(
        &self,
        inputs: &mut ModelInputs,
        values: &CovariateValues<'_>,
        rows: usize,
    ) -> Result<()> {
        let horizon = inputs.window().horizon;
        let CovariateValues { past, future, statics, first } = *values;
        let (counts, given) = (self.columns.counts(), self.columns.future.len());
        for (name, found, rows, columns) in [
            ("past", past.len(), rows, counts.past),
            ("future", future.len(), rows + horizon, given),
            ("static", statics.len(), 1, counts.statics),
        ] {
            if found != rows * columns {
                return Err(Error::Model {
                    problem: format!(
                        "the model takes {columns} {name} covariates, which are {} values in {rows} rows, and here are {found}",
                        rows * columns
                    ),
                    fix: "pass what it takes as `CovariateValues` to `forecast_with` or `forecast_series_with`",
                });
            }
        }
        if counts.is_empty() {
            return Ok(());
        }
        if let Some(&value) = [past, future, statics].into_iter().flatten().find(|value| value.is_infinite())
        {
            return Err(Error::NotFinite { what: "a covariate".to_owned(), value });
        }
        if future[rows * given..].iter().any(|value| value.is_nan()) {
            return Err(Error::Model {
                problem: "a future covariate of the horizon is NaN".to_owned(),
                fix: "pass values that are known for every row of the horizon",
            });
        }
        let known = Covariates::of_values(&self.columns, rows, [past, future, statics]);
        inputs.push_covariates(&self.scaler.scaled(&known), rows, &self.axis(first)?)
    }

    /// The times of the rows; without features of the calendar nobody asks for them.
    fn axis(&self, first: Option<&str>) -> Result<TimeAxis> {
        let refuse = |problem: String, fix| Err(Error::Model { problem, fix });
        if self.columns.calendar.is_empty() {
            return Ok(TimeAxis::new(DateTime::default(), TimeStep::seconds(1), false));
        }
        let Some(step) = self.step else {
            let problem = "the run does not say the calendar of its series".to_owned();
            return refuse(problem, "train again with this version");
        };
        let Some(text) = first else {
            let problem =
                "the model takes features of the calendar, and the time of the first row is missing";
            return refuse(problem.to_owned(), "pass it as `CovariateValues::first`");
        };
        let local_days = self.dialect.local_days.unwrap_or(step.is_of_days());
        match stamps::named(text, &self.dialect, local_days) {
            Ok(stamp) => Ok(TimeAxis::new(stamp.time, step, stamp.zoned)),
            Err((problem, fix)) => refuse(problem, fix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_time_of_the_first_row_is_read_as_the_training_data_was() {
        let first = |days: bool, dialect: serde_json::Value, text: &str| {
            let inputs = CovariateInputs {
                columns: serde_json::from_value(json!({"calendar": "hour"})).unwrap(),
                scaler: CovariateScaler::default(),
                step: Some(TimeStep::seconds(if days { 86400 } else { 3600 })),
                dialect: serde_json::from_value(dialect).unwrap(),
            };
            inputs.axis(Some(text)).map(|axis| axis.format(0)).map_err(|error| error.to_string())
        };
        for (days, dialect, text, expected) in [
            (false, json!({}), "2024-07-01 06:00", "2024-07-01 06:00:00"),
            (false, json!({}), "2024-07-01 06:00+02:00", "2024-07-01T04:00:00Z"),
            (false, json!({"tz": "Europe/Berlin"}), "2024-07-01 06:00", "2024-07-01T04:00:00Z"),
            (false, json!({"tz": "Europe/Berlin"}), "2024-07-01 06:00Z", "2024-07-01T06:00:00Z"),
            (false, json!({"date_format": "dd.mm.yyyy"}), "02.07.2024 06:00", "2024-07-02 06:00:00"),
            (true, json!({"tz": "Europe/Berlin"}), "2024-07-01", "2024-07-01 00:00:00"),
            (true, json!({"tz": "Europe/Berlin", "local_days": true}), "2024-07-01", "2024-07-01 00:00:00"),
            (true, json!({"tz": "Europe/Berlin", "local_days": false}), "2024-07-01", "2024-06-30T22:00:00Z"),
        ] {
            assert_eq!(first(days, dialect.clone(), text).as_deref(), Ok(expected), "{dialect} {text}");
        }
        let message = first(false, json!({"tz": "Europe/Berlin"}), "2024-03-31 02:30").unwrap_err();
        assert!(message.contains("does not exist in Europe/Berlin"), "{message}");
    }
}
