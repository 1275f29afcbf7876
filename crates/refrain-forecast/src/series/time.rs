//! Time stamps and the regular grid that they lie on.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A time stamp as written: in UTC if it named a zone or offset, else as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub time: DateTime,
    pub zoned: bool,
}

/// Parses the forms that [`super::Series::from_csv`] promises.
pub(super) fn parse(text: &str) -> Option<Stamp> {
    let text = text.trim();
    // A bare number is an index or a Unix time in an unknown unit, even where ISO 8601 would read it as a date.
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(Stamp { time: timestamp.to_zoned(TimeZone::UTC).datetime(), zoned: true });
    }
    let naive = |time| Stamp { time, zoned: false };
    if let Ok(time) = text.parse::<DateTime>() {
        return Some(naive(time));
    }
    for format in ["%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M"] {
        if let Ok(time) = DateTime::strptime(format, text) {
            return Some(naive(time));
        }
    }
    if let Ok(date) = jiff::civil::Date::strptime("%Y/%m/%d", text) {
        return Some(naive(date.to_datetime(Time::midnight())));
    }
    let month = jiff::civil::Date::strptime("%Y-%m-%d", format!("{text}-01")).ok()?;
    Some(naive(month.to_datetime(Time::midnight())))
}

/// The distance between neighbouring rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A fixed time, positive.
    Nanoseconds(i64),
    /// Calendar months, positive: 3 is a quarter, 12 a year.
    Months(i32),
}

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;

impl Step {
    /// A fixed step of so many seconds.
    pub const fn seconds(seconds: i64) -> Step {
        Step::Nanoseconds(seconds * SECOND)
    }

    /// The usual season in steps, at most `longest`: a week of days, a year of weeks or months, and for anything
    /// shorter than a day the day, else the hour, else the minute; 1 where none is whole and short enough.
    pub fn season(self, longest: usize) -> usize {
        let cycles: &[i64] = match self {
            Step::Months(months) if months < 12 && 12 % months == 0 => {
                return fits(12 / i64::from(months), longest);
            }
            Step::Months(_) => return 1,
            Step::Nanoseconds(step) if step == 7 * DAY => return fits(52, longest),
            Step::Nanoseconds(DAY) => &[7 * DAY],
            Step::Nanoseconds(_) => &[DAY, 3600 * SECOND, 60 * SECOND],
        };
        let Step::Nanoseconds(step) = self else {
            return 1;
        };
        cycles
            .iter()
            .filter(|&cycle| cycle % step == 0)
            .map(|cycle| fits(cycle / step, longest))
            .max()
            .unwrap_or(1)
    }

    /// Number of steps in so many days, if whole.
    pub(super) fn in_days(self, days: i64) -> Option<usize> {
        match self {
            Step::Nanoseconds(step) if (days * DAY) % step == 0 => usize::try_from(days * DAY / step).ok(),
            _ => None,
        }
    }
}

fn fits(season: i64, longest: usize) -> usize {
    usize::try_from(season).ok().filter(|&season| season <= longest).unwrap_or(1)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (count, unit) = match *self {
            Step::Months(months) if months % 12 == 0 => (i64::from(months / 12), "year"),
            Step::Months(months) => (i64::from(months), "month"),
            Step::Nanoseconds(step) => {
                [(DAY, "day"), (3600 * SECOND, "hour"), (60 * SECOND, "minute"), (SECOND, "second")]
                    .into_iter()
                    .find(|(unit, _)| step % unit == 0)
                    .map_or((step, "nanosecond"), |(unit, name)| (step / unit, name))
            }
        };
        write!(f, "{count} {unit}{}", if count == 1 { "" } else { "s" })
    }
}

/// A regular grid of time stamps: a start and a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeAxis {
    start: DateTime,
    step: Step,
    utc: bool,
}

impl TimeAxis {
    /// A grid from `start` on; `utc` if the time is known to be UTC, else it stands for local time.
    pub fn new(start: DateTime, step: Step, utc: bool) -> TimeAxis {
        TimeAxis { start, step, utc }
    }

    /// The distance of neighbouring rows.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Whether times are in UTC; otherwise the file named no zone.
    pub fn is_utc(&self) -> bool {
        self.utc
    }

    /// The time of a row; rows past the last extend the grid (to the end of the year 9999 at most).
    pub fn at(&self, row: usize) -> DateTime {
        match self.step {
            Step::Nanoseconds(step) => {
                let total = i128::from(step) * row as i128;
                let seconds = i64::try_from(total / i128::from(SECOND)).unwrap_or(i64::MAX);
                let rest = i32::try_from(total % i128::from(SECOND)).unwrap_or(0);
                self.start.saturating_add(SignedDuration::new(seconds, rest))
            }
            Step::Months(step) => {
                let months = i64::from(step).saturating_mul(i64::try_from(row).unwrap_or(i64::MAX));
                let Ok(span) = Span::new().try_months(months) else {
                    return DateTime::MAX;
                };
                let time = self.start.saturating_add(span);
                // A series of month ends: 30 June is followed by 31 July.
                if is_month_end(self.start) { time.last_of_month() } else { time }
            }
        }
    }

    /// The time of a row as in the file: `2013-01-01T06:00:00Z` in UTC, else `2013-01-01 06:00:00`.
    pub fn format(&self, row: usize) -> String {
        format(self.at(row), self.utc)
    }
}

/// A time stamp for messages and files, which [`parse`] reads back.
pub(crate) fn format(time: DateTime, utc: bool) -> String {
    let text = time.to_string(); // 2013-01-01T06:00:00
    if utc { text + "Z" } else { text.replacen('T', " ", 1) }
}

fn is_month_end(time: DateTime) -> bool {
    time.date() == time.date().last_of_month()
}

/// Finds the step of ascending time stamps, two or more, and the row of each on the grid; the error is the index
/// of the first stamp off the grid, and the step.
pub(super) fn infer_grid(times: &[DateTime]) -> Result<(Step, Vec<u64>), (usize, Step)> {
    if let Some(grid) = monthly_grid(times) {
        return Ok(grid);
    }
    let differences = times.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_nanos());
    let step = i64::try_from(most_common(differences)).unwrap_or(i64::MAX);
    let mut rows = Vec::with_capacity(times.len());
    for (index, time) in times.iter().enumerate() {
        let offset = time.duration_since(times[0]).as_nanos();
        if offset % i128::from(step) != 0 {
            return Err((index, Step::Nanoseconds(step)));
        }
        rows.push(u64::try_from(offset / i128::from(step)).unwrap_or(u64::MAX));
    }
    Ok((Step::Nanoseconds(step), rows))
}

/// The same for calendar steps: all stamps on one day of the month (or the last) at one time of day, none closer
/// than four weeks.
fn monthly_grid(times: &[DateTime]) -> Option<(Step, Vec<u64>)> {
    let first = times[0];
    let same_day =
        times.iter().all(|time| time.day() == first.day()) || times.iter().all(|&time| is_month_end(time));
    let apart =
        times.windows(2).all(|pair| pair[1].duration_since(pair[0]) >= SignedDuration::from_hours(28 * 24));
    if !same_day || !apart || times.iter().any(|time| time.time() != first.time()) {
        return None;
    }
    let month = |time: DateTime| i64::from(time.year()) * 12 + i64::from(time.month());
    let step =
        i64::try_from(most_common(times.windows(2).map(|pair| i128::from(month(pair[1]) - month(pair[0])))))
            .ok()?;
    let rows = times.iter().map(|&time| month(time) - month(first));
    let rows =
        rows.map(|months| (months % step == 0).then_some((months / step) as u64)).collect::<Option<_>>()?;
    Some((Step::Months(i32::try_from(step).ok()?), rows))
}

/// The most common of positive differences, of equally common ones the smallest.
fn most_common(differences: impl Iterator<Item = i128>) -> i128 {
    let mut counts = std::collections::BTreeMap::new();
    for difference in differences {
        *counts.entry(difference).or_insert(0_usize) += 1;
    }
    counts.into_iter().rev().max_by_key(|&(_, count)| count).map_or(1, |(difference, _)| difference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    fn time(text: &str) -> DateTime {
        parse(text).expect(text).time
    }

    #[test]
    fn common_forms_of_time_stamps() {
        let midnight = date(2016, 7, 1).at(0, 0, 0, 0);
        for text in [
            "2016-07-01 00:00:00",
            "2016-07-01T00:00",
            "2016-07-01",
            "2016/07/01 00:00",
            "2016/07/01",
            "2016-07",
        ] {
            assert_eq!(parse(text), Some(Stamp { time: midnight, zoned: false }), "{text}");
        }
        for text in ["2016-07-01T00:00:00Z", "2016-07-01 02:00:00+02:00", "2016-06-30T19:00:00-05:00"] {
            assert_eq!(parse(text), Some(Stamp { time: midnight, zoned: true }), "{text}");
        }
        assert_eq!(time("2016-07-01 00:00:00.250"), date(2016, 7, 1).at(0, 0, 0, 250_000_000));
        for text in
            ["", "EWR", "17", "20160701", "1467331200", "01/07/2016", "2016-13-01", "2016-02-30", "12.5"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_formatted_parses_back() {
        for utc in [true, false] {
            let text = TimeAxis::new(time("2013-12-31 23:30:00"), Step::seconds(1800), utc).format(1);
            assert_eq!(text, if utc { "2014-01-01T00:00:00Z" } else { "2014-01-01 00:00:00" });
            assert_eq!(parse(&text), Some(Stamp { time: date(2014, 1, 1).at(0, 0, 0, 0), zoned: utc }));
        }
    }

    #[test]
    fn the_step_is_the_most_common_difference() {
        let times =
            ["2020-01-01 00:00", "2020-01-01 02:00", "2020-01-01 03:00", "2020-01-01 04:00"].map(time);
        assert_eq!(infer_grid(&times), Ok((Step::seconds(3600), vec![0, 2, 3, 4])));
        assert_eq!(infer_grid(&times[..3]), Ok((Step::seconds(3600), vec![0, 2, 3])), "the smaller of two");
        let times =
            ["2020-01-01 00:00", "2020-01-01 01:00", "2020-01-01 02:00", "2020-01-01 02:20"].map(time);
        assert_eq!(infer_grid(&times), Err((3, Step::seconds(3600))));
    }

    #[test]
    fn months_quarters_and_month_ends() {
        let times = ["2019-01-01", "2019-02-01", "2019-03-01", "2019-05-01"].map(time);
        assert_eq!(infer_grid(&times), Ok((Step::Months(1), vec![0, 1, 2, 4])));
        let ends = ["2019-02-28", "2019-03-31", "2019-04-30"].map(time);
        let (step, rows) = infer_grid(&ends).unwrap();
        let axis = TimeAxis::new(ends[0], step, false);
        assert_eq!((step, rows), (Step::Months(1), vec![0, 1, 2]));
        assert_eq!(
            [0, 1, 2, 12].map(|row| axis.format(row)[..10].to_owned()),
            ["2019-02-28", "2019-03-31", "2019-04-30", "2020-02-29"]
        );
        let quarters = ["2019-01-01", "2019-04-01", "2019-07-01"].map(time);
        assert_eq!(infer_grid(&quarters), Ok((Step::Months(3), vec![0, 1, 2])));
        let weeks = ["2019-01-01", "2019-01-08", "2019-01-15"].map(time);
        assert_eq!(infer_grid(&weeks), Ok((Step::seconds(7 * 86_400), vec![0, 1, 2])));
    }

    #[test]
    fn seasons() {
        let minutes = |m: i64| Step::seconds(60 * m);
        assert_eq!(minutes(60).season(336), 24);
        assert_eq!(minutes(15).season(336), 96);
        assert_eq!(minutes(1).season(2000), 1440);
        assert_eq!(minutes(1).season(336), 60, "a day of minutes is longer than the context");
        assert_eq!(minutes(60).season(12), 1);
        assert_eq!(minutes(7).season(336), 1);
        assert_eq!(Step::seconds(86_400).season(336), 7);
        assert_eq!(Step::seconds(7 * 86_400).season(104), 52);
        assert_eq!(Step::Months(1).season(36), 12);
        assert_eq!(Step::Months(3).season(36), 4);
        assert_eq!(Step::Months(12).season(36), 1);
    }

    #[test]
    fn the_end_of_the_calendar_saturates() {
        let start = time("9999-12-31 23:00:00");
        for step in [Step::seconds(3600), Step::Months(1), Step::Nanoseconds(i64::MAX)] {
            let axis = TimeAxis::new(start, step, false);
            assert_eq!(axis.at(usize::MAX).date(), date(9999, 12, 31));
            assert_eq!(axis.at(0), start);
        }
    }

    #[test]
    fn steps_read_well() {
        let text = [Step::seconds(3600), Step::seconds(900), Step::Months(12), Step::Nanoseconds(5)]
            .map(|s| s.to_string());
        assert_eq!(text, ["1 hour", "15 minutes", "1 year", "5 nanoseconds"]);
    }
}
