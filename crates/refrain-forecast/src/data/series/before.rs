//! What a series was before a time, to forecast from a moment in its past.

use super::{Series, SeriesSet, time};
use crate::{Error, Result};
use jiff::civil::DateTime;

impl SeriesSet {
    /// The rows before a time, written as in a file, and the names of those independent series that are left out: they have no
    /// row before it, or end so early that the row after their last one is before it, too.
    ///
    /// ```
    /// use refrain_forecast::data::series::{Layout, ReadOptions, SeriesSet};
    ///
    /// let text = "time,a\n2020-01-01,1\n2020-01-02,2\n2020-01-03,4\n";
    /// let (set, _) = SeriesSet::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default(), Layout::Auto)?;
    /// assert_eq!(set.before("2020-01-03")?.0.first().values(), [1.0, 2.0]);
    /// assert_eq!(set.before("2020-01-04")?.0, set);
    /// assert!(set.before("2020-01-05").is_err());
    /// # Ok::<(), refrain_forecast::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Origin`] if it is no time, if it has a zone and the times of the file have none, or if every series is left out.
    pub fn before(&self, text: &str) -> Result<(SeriesSet, Vec<String>)> {
        let refuse = |problem: String, fix| Err(Error::Origin { file: self.file().to_owned(), problem, fix });
        let Some(stamp) = time::parse(text) else {
            let fix = "write it as in a file, such as 2024-07-01 or \"2024-07-01 06:00\"";
            return refuse(format!("{text:?} is not a time"), fix);
        };
        let (first, utc) = (self.first(), self.first().time().is_utc());
        if stamp.zoned && !utc {
            let fix = "leave the zone out";
            return refuse(format!("{text} has a time zone, but the times of the series have none"), fix);
        }
        let known = |series: &Series| rows_before(series, stamp.time);
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
                let (cut, left) = set.before(&format!("2020-01-{day:02} {hour}")).unwrap();
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
        ] {
            let message = set.before(time).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("a.csv"), "{time}: {message}");
        }
    }

    #[test]
    fn a_series_that_is_not_known_up_to_the_time_is_left_out() {
        let long = "unique_id,ds,y\na,2020-01-01,1\na,2020-01-02,2\na,2020-01-03,3\nb,2020-01-01,4\nb,2020-01-02,5\n\
                    c,2020-01-03,6\nc,2020-01-04,7\nd,2020-01-01,8\n";
        let set = set(long, Layout::Independent);
        let (cut, left) = set.before("2020-01-03").unwrap();
        assert_eq!(cut.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(left, ["c", "d"]);
        assert_eq!(cut.series().iter().map(Series::rows).collect::<Vec<_>>(), [2, 2]);
    }
}
