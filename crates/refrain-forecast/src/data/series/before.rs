//! What a series was before a time, to forecast from a moment in its past.

use super::{Series, SeriesSet, stamps};
use crate::data::dialect::Dialect;
use crate::{Error, Result};
use jiff::civil::DateTime;

impl SeriesSet {
    /// The rows before a time, and the names of those independent series that are left out: they have no row before it, or end so
    /// early that the row after their last one is before it, too.
    ///
    /// The time is written as in the file, whose `dialect` says the form of dates and the zone of local times, or as ISO 8601.
    /// Without a zone of the dialect, a time that names none is UTC if the times of the file are.
    ///
    /// ```
    /// use refrain_forecast::data::series::{Layout, ReadOptions, SeriesSet};
    ///
    /// let (text, options) = ("time,a\n2020-01-01,1\n2020-01-02,2\n2020-01-03,4\n", ReadOptions::default());
    /// let (set, _) = SeriesSet::from_csv(text.as_bytes(), "a.csv", &options, Layout::Auto)?;
    /// assert_eq!(set.before("2020-01-03", &options.dialect)?.0.first().values(), [1.0, 2.0]);
    /// assert_eq!(set.before("2020-01-04", &options.dialect)?.0, set);
    /// assert!(set.before("2020-01-05", &options.dialect).is_err());
    /// # Ok::<(), refrain_forecast::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Origin`] if it is no time, if it has a zone and the times of the file have none, or if every series is left out.
    pub fn before(&self, text: &str, dialect: &Dialect) -> Result<(SeriesSet, Vec<String>)> {
        let refuse = |problem: String, fix| Err(Error::Origin { file: self.file().to_owned(), problem, fix });
        let (first, utc) = (self.first(), self.first().time().is_utc());
        let time = match stamps::named_beside(text, dialect, utc, "the series") {
            Ok(time) => time,
            Err((problem, fix)) => return refuse(problem, fix),
        };
        let known = |series: &Series| rows_before(series, time);
        let (mut kept, mut left) = (Vec::new(), Vec::new());
        for series in self.series() {
            match known(series) {
                Some(rows) => kept.push(series.first_rows(rows)),
                None => left.extend(series.names().to_vec()),
            }
        }
        if kept.is_empty() {
            let last = self.series().iter().max_by_key(|series| next(series)).unwrap_or(first);
            let (begin, end) = (first.time().format(0), last.time().format(last.rows()));
            return refuse(
                format!(
                    "no forecast can begin at {text}: the series begins at {begin} and is known up to {end}"
                ),
                "choose a time after its first row, and at most one row after its last one",
            );
        }
        Ok((SeriesSet { series: kept, independent: self.is_independent() }, left))
    }
}

/// How many rows of a series lie before a time. `None` if there is none, or if a row is missing between its last one and the time.
fn rows_before(series: &Series, time: DateTime) -> Option<usize> {
    if next(series) < time {
        return None;
    }
    let (mut low, mut high) = (0, series.rows()); // the first `low` rows are before it, those from `high` on are not
    while low < high {
        let middle = low + (high - low) / 2;
        if series.time().at(middle) < time { low = middle + 1 } else { high = middle }
    }
    (low > 0).then_some(low)
}

/// The time after the last row of a series.
fn next(series: &Series) -> DateTime {
    series.time().at(series.rows())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::series::{Layout, ReadOptions};
    use serde_json::json;

    fn set(text: &str, layout: Layout) -> SeriesSet {
        SeriesSet::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default(), layout).unwrap().0
    }

    #[test]
    fn the_rows_before_a_time_are_those_that_a_search_in_order_finds() {
        let text: String = (0..9).map(|row| format!("2020-01-{:02} 06:00,{row}\n", row + 1)).collect();
        let set = set(&format!("time,a\n{text}"), Layout::Auto);
        for day in 2..=10 {
            // A time between two rows belongs to the later one.
            for hour in ["00:00", "06:00"] {
                let (cut, left) =
                    set.before(&format!("2020-01-{day:02} {hour}"), &Dialect::default()).unwrap();
                let expected: Vec<f64> =
                    (0..9).map(f64::from).take_while(|row| row + 1.0 < f64::from(day)).collect();
                assert_eq!((cut.first().values(), left.len()), (&expected[..], 0), "{day} {hour}");
            }
        }
        for (time, expected) in [
            ("2020-01-01 06:00", "no forecast can begin"),
            ("2020-01-11", "known up to 2020-01-10 06:00:00"),
            ("soon", "not a time"),
            ("2020-01-05T00:00Z", "has a time zone"),
            ("1578182400", "is a number, so a time since 1970 in UTC"),
            ("1578182400", "write it as in the file"),
        ] {
            let message = set.before(time, &Dialect::default()).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("a.csv"), "{time}: {message}");
        }
    }

    #[test]
    fn the_time_is_read_in_the_dialect_of_the_file() {
        let rows = |settings: serde_json::Value, times: &[&str], from: &str| {
            let dialect: Dialect = serde_json::from_value(settings).unwrap();
            let options = ReadOptions { dialect, ..ReadOptions::default() };
            let rows: String = times.iter().map(|time| format!("{time},1\n")).collect();
            let (set, _) =
                SeriesSet::from_csv(format!("time,a\n{rows}").as_bytes(), "a.csv", &options, Layout::Auto)
                    .unwrap();
            set.before(from, &options.dialect).map(|(cut, _)| cut.rows()).map_err(|error| error.to_string())
        };
        let hours = ["2024-07-01 05:00", "2024-07-01 06:00", "2024-07-01 07:00"];
        let berlin = || json!({"tz": "Europe/Berlin"});
        for from in ["2024-07-01 07:00", "2024-07-01T05:00Z", "2024-07-01 00:00-05:00", "1719810000"] {
            assert_eq!(rows(berlin(), &hours, from), Ok(2), "{from}");
        }
        let german = || json!({"tz": "Europe/Berlin", "date_format": "dd.mm.yyyy"});
        let of_july = ["01.07.2024 05:00", "01.07.2024 06:00", "01.07.2024 07:00"];
        for from in ["01.07.2024 07:00", "2024-07-01 07:00"] {
            assert_eq!(rows(german(), &of_july, from), Ok(2), "{from}");
        }
        // Local days: a moment of UTC is one of a local day, too.
        let days = ["2024-07-01", "2024-07-02", "2024-07-03"];
        for from in ["2024-07-03", "2024-07-02T22:00Z"] {
            assert_eq!(rows(berlin(), &days, from), Ok(2), "{from}");
        }
        for (from, expected) in [
            ("2024-03-31 02:30", "does not exist in Europe/Berlin"),
            ("2024-10-27 02:30", "exists twice in Europe/Berlin"),
            ("soon", "is not a time"),
        ] {
            let message = rows(berlin(), &hours, from).unwrap_err();
            assert!(message.contains(expected) && message.contains("a.csv"), "{message}");
        }
    }

    #[test]
    fn a_series_that_is_not_known_up_to_the_time_is_left_out() {
        let long = "unique_id,ds,y\na,2020-01-01,1\na,2020-01-02,2\na,2020-01-03,3\nb,2020-01-01,4\nb,2020-01-02,5\n\
                    c,2020-01-03,6\nc,2020-01-04,7\nd,2020-01-01,8\n";
        let set = set(long, Layout::Independent);
        let (cut, left) = set.before("2020-01-03", &Dialect::default()).unwrap();
        assert_eq!(cut.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(left, ["c", "d"]);
        assert_eq!(cut.series().iter().map(Series::rows).collect::<Vec<_>>(), [2, 2]);
    }
}
