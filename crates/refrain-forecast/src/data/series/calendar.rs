//! Calendars: the times of the rows of a series.

use jiff::civil::{DateTime, Weekday};
use jiff::{SignedDuration, Span};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The calendar of a series: the step from one row to the next. [`super::Series::from_csv`] infers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeStep {
    /// A fixed time, positive.
    Nanoseconds(i64),
    /// One row on each of some days of the week, for example Monday to Friday.
    Weekdays(Weekdays),
    /// Calendar months, positive: 3 is a quarter, 12 a year. All rows are on the first row's day of the month, or on
    /// the last day of a shorter month.
    Months(i32),
    /// Calendar months, positive, each row on the last day of its month.
    MonthEnds(i32),
}

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = 7 * DAY;

impl TimeStep {
    /// Monday to Friday.
    pub const BUSINESS_DAYS: TimeStep = TimeStep::Weekdays(Weekdays::BUSINESS);

    /// A fixed step of this many seconds.
    pub const fn seconds(seconds: i64) -> TimeStep {
        TimeStep::Nanoseconds(seconds * SECOND)
    }

    /// The usual season in steps, at most `longest`: a week of days, a year of weeks or months. For anything shorter
    /// than a day it is a day, or else an hour, a minute or a second. It is 1 if none is a whole number of steps and
    /// short enough.
    pub fn season(self, longest: usize) -> usize {
        let cycles: &[i64] = match self {
            TimeStep::Weekdays(days) => return fits(days.count() as i64, longest),
            TimeStep::Months(months @ 1..12) | TimeStep::MonthEnds(months @ 1..12) if 12 % months == 0 => {
                return fits(12 / i64::from(months), longest);
            }
            TimeStep::Months(_) | TimeStep::MonthEnds(_) | TimeStep::Nanoseconds(..=0) => return 1,
            TimeStep::Nanoseconds(WEEK) => return fits(52, longest),
            TimeStep::Nanoseconds(DAY) => &[WEEK],
            TimeStep::Nanoseconds(_) => &[DAY, HOUR, 60 * SECOND, SECOND],
        };
        let TimeStep::Nanoseconds(step) = self else {
            return 1;
        };
        cycles
            .iter()
            .filter(|&cycle| cycle % step == 0)
            .map(|cycle| fits(cycle / step, longest))
            .max()
            .unwrap_or(1)
    }

    /// The approximate number of steps of a season, however long: a week of days, a year of weeks or months, a day of
    /// anything shorter.
    pub(crate) fn cycle(self) -> usize {
        match self {
            TimeStep::Nanoseconds(step @ 1..DAY) => usize::try_from(DAY / step).unwrap_or(usize::MAX),
            _ => self.season(usize::MAX),
        }
    }

    /// Whether all rows are at one time of the day.
    pub(crate) fn is_of_days(self) -> bool {
        !matches!(self, TimeStep::Nanoseconds(step) if step % DAY != 0)
    }

    /// The number of steps in this many days, if it is whole.
    pub(super) fn in_days(self, days: i64) -> Option<usize> {
        match self {
            TimeStep::Nanoseconds(step) if step > 0 && (days * DAY) % step == 0 => {
                usize::try_from(days * DAY / step).ok()
            }
            _ => None,
        }
    }

    /// The row of a time on the calendar that begins at `start`, if the time lies on the calendar. `None` for every
    /// time if the step is invalid, which is possible for one that was read from a file.
    fn row(self, start: DateTime, time: DateTime) -> Option<u64> {
        let whole = |distance: i128, step: i128| {
            (step > 0 && distance >= 0 && distance % step == 0).then(|| distance / step)
        };
        let row = match self {
            TimeStep::Nanoseconds(step) => whole(time.duration_since(start).as_nanos(), i128::from(step))?,
            _ if time.time() != start.time() => return None,
            TimeStep::Weekdays(days) if days.has(start.weekday()) && days.has(time.weekday()) => {
                let distance = whole(time.duration_since(start).as_nanos(), i128::from(DAY))?;
                let rest = (distance % 7) as usize;
                let count = (0..rest).filter(|&ahead| days.has_after(start.weekday(), ahead)).count();
                distance / 7 * days.count() as i128 + count as i128
            }
            TimeStep::Months(step) if time.day() == start.day().min(time.date().days_in_month()) => {
                whole(i128::from(month(time) - month(start)), i128::from(step))?
            }
            TimeStep::MonthEnds(step) if is_month_end(start) && is_month_end(time) => {
                whole(i128::from(month(time) - month(start)), i128::from(step))?
            }
            _ => return None,
        };
        u64::try_from(row).ok()
    }
}

fn fits(season: i64, longest: usize) -> usize {
    usize::try_from(season).ok().filter(|&season| season <= longest).unwrap_or(1)
}

impl fmt::Display for TimeStep {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        const UNITS: [(i64, &str); 6] = [
            (DAY, "day"),
            (HOUR, "hour"),
            (60 * SECOND, "minute"),
            (SECOND, "second"),
            (SECOND / 1000, "millisecond"),
            (SECOND / 1_000_000, "microsecond"),
        ];
        let (count, unit) = match *self {
            TimeStep::Weekdays(Weekdays::BUSINESS) => (1, "business day"),
            TimeStep::Weekdays(days) => return write!(f, "{days}"),
            TimeStep::Months(months) | TimeStep::MonthEnds(months) if months % 12 == 0 => {
                (i64::from(months / 12), "year")
            }
            TimeStep::Months(months) | TimeStep::MonthEnds(months) => (i64::from(months), "month"),
            TimeStep::Nanoseconds(step) => UNITS
                .into_iter()
                .find(|(unit, _)| step % unit == 0)
                .map_or((step, "nanosecond"), |(unit, name)| (step / unit, name)),
        };
        write!(f, "{count} {unit}{}", if count == 1 { "" } else { "s" })?;
        if matches!(self, TimeStep::MonthEnds(_)) { write!(f, " (at month ends)") } else { Ok(()) }
    }
}

/// Days of the week, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "[bool; 7]", into = "[bool; 7]")]
pub struct Weekdays([bool; 7]); // from Monday on

impl Weekdays {
    /// Monday to Friday.
    pub const BUSINESS: Weekdays = Weekdays([true, true, true, true, true, false, false]);

    /// The days that are true, from Monday on. `None` if none is.
    pub fn new(days: [bool; 7]) -> Option<Weekdays> {
        days.contains(&true).then_some(Weekdays(days))
    }

    /// Number of days.
    fn count(self) -> usize {
        self.0.iter().filter(|&&day| day).count()
    }

    fn has(self, day: Weekday) -> bool {
        self.has_after(day, 0)
    }

    /// Whether the day this many days after another is one of these.
    fn has_after(self, day: Weekday, ahead: usize) -> bool {
        self.0[(from_monday(day) + ahead) % 7]
    }
}

impl TryFrom<[bool; 7]> for Weekdays {
    type Error = &'static str;

    fn try_from(days: [bool; 7]) -> Result<Weekdays, Self::Error> {
        Weekdays::new(days).ok_or("a calendar without any day of the week")
    }
}

impl From<Weekdays> for [bool; 7] {
    fn from(days: Weekdays) -> [bool; 7] {
        days.0
    }
}

/// `Mon, Wed, Fri`.
impl fmt::Display for Weekdays {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        const NAMES: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
        let names = NAMES.into_iter().zip(self.0).filter_map(|(name, day)| day.then_some(name));
        f.write_str(&names.collect::<Vec<_>>().join(", "))
    }
}

fn from_monday(day: Weekday) -> usize {
    day.to_monday_zero_offset().unsigned_abs().into()
}

/// The times of rows: a start and a calendar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeAxis {
    start: DateTime,
    step: TimeStep,
    utc: bool,
}

impl TimeAxis {
    /// The rows from `start` on. `utc` says whether the time is known to be UTC; otherwise it is local time. On days
    /// of the week, the first row is on the first such day from `start` on.
    pub fn new(start: DateTime, step: TimeStep, utc: bool) -> TimeAxis {
        TimeAxis { start, step, utc }
    }

    /// The calendar.
    pub fn step(&self) -> TimeStep {
        self.step
    }

    /// Whether times are in UTC. Otherwise the file named no time zone.
    pub fn is_utc(&self) -> bool {
        self.utc
    }

    /// The time of a row. Rows past the last one extend the calendar (at most to the end of the year 9999).
    pub fn at(&self, row: usize) -> DateTime {
        match self.step {
            TimeStep::Nanoseconds(step) => {
                let total = i128::from(step) * row as i128;
                let seconds = i64::try_from(total / i128::from(SECOND)).unwrap_or(i64::MAX);
                let rest = i32::try_from(total % i128::from(SECOND)).unwrap_or(0);
                self.start.saturating_add(SignedDuration::new(seconds, rest))
            }
            TimeStep::Weekdays(days) => {
                let open = (0..7).filter(|&ahead| days.has_after(self.start.weekday(), ahead));
                let within = open.clone().nth(row % days.count()).unwrap_or(0);
                let distance = (row / days.count()).saturating_mul(7).saturating_add(within);
                let hours = i64::try_from(distance).unwrap_or(i64::MAX).saturating_mul(24);
                match SignedDuration::try_from_hours(hours) {
                    Some(distance) => self.start.saturating_add(distance),
                    None => DateTime::MAX,
                }
            }
            TimeStep::Months(step) | TimeStep::MonthEnds(step) => {
                let months = i64::from(step).saturating_mul(i64::try_from(row).unwrap_or(i64::MAX));
                let Ok(span) = Span::new().try_months(months) else {
                    return DateTime::MAX;
                };
                let time = self.start.saturating_add(span);
                // 30 June is followed by 31 July.
                if matches!(self.step, TimeStep::MonthEnds(_)) { time.last_of_month() } else { time }
            }
        }
    }

    /// The time of a row as in the file: `2013-01-01T06:00:00Z` in UTC, otherwise `2013-01-01 06:00:00`.
    pub fn format(&self, row: usize) -> String {
        super::time::format(self.at(row), self.utc)
    }
}

fn is_month_end(time: DateTime) -> bool {
    time.date() == time.date().last_of_month()
}

/// Months since year 0.
fn month(time: DateTime) -> i64 {
    i64::from(time.year()) * 12 + i64::from(time.month())
}

/// The row of each time on a calendar that begins with the first time. The error is the index of the first time that
/// is not on it.
pub(super) fn rows_on(step: TimeStep, times: &[DateTime]) -> Result<Vec<u64>, usize> {
    let row = |(index, &time): (usize, &DateTime)| step.row(times[0], time).ok_or(index);
    times.iter().enumerate().map(row).collect()
}

/// Infers the calendar of two or more ascending times, and the row of each. The error is the index of the first time
/// that is not on it, and the calendar of most neighbours.
pub(crate) fn infer(times: &[DateTime]) -> Result<(TimeStep, Vec<u64>), (usize, TimeStep)> {
    let on = |step: TimeStep| rows_on(step, times).map(|rows| (step, rows));
    if let Some(Ok(grid)) = months(times).map(on) {
        return Ok(grid);
    }
    let differences = times.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_nanos());
    let step = TimeStep::Nanoseconds(i64::try_from(most_common(differences)).unwrap_or(i64::MAX));
    let fixed = on(step).map_err(|index| (index, step));
    // Use days of the week if they leave fewer rows to fill, and not more than there are.
    let rows = |grid: &(TimeStep, Vec<u64>)| grid.1.last().copied().unwrap_or(0);
    match weekdays(times).map(|days| on(TimeStep::Weekdays(days))) {
        Some(Ok(grid))
            if rows(&grid) < 2 * times.len() as u64
                && fixed.as_ref().map_or(true, |f| rows(&grid) < rows(f)) =>
        {
            Ok(grid)
        }
        _ => fixed,
    }
}

/// The most common step in months, if the times are at least four weeks apart; at month ends if all of them are.
fn months(times: &[DateTime]) -> Option<TimeStep> {
    let apart = |pair: &[DateTime]| pair[1].duration_since(pair[0]) >= SignedDuration::from_hours(28 * 24);
    if !times.windows(2).all(apart) {
        return None;
    }
    let step = most_common(times.windows(2).map(|pair| i128::from(month(pair[1]) - month(pair[0]))));
    let step = i32::try_from(step).ok()?;
    Some(if times.iter().all(|&time| is_month_end(time)) {
        TimeStep::MonthEnds(step)
    } else {
        TimeStep::Months(step)
    })
}

/// The days of the week of a daily series that skips some. A weekend counts if it is always skipped; another day only
/// if it is skipped at least four times.
fn weekdays(times: &[DateTime]) -> Option<Weekdays> {
    const OFTEN: i64 = 4;
    let (first, last) = (times[0], times[times.len() - 1]);
    if times.iter().any(|time| time.time() != first.time()) {
        return None;
    }
    let mut seen = [false; 7];
    times.iter().for_each(|time| seen[from_monday(time.weekday())] = true);
    // How often each day of the week occurs.
    let days = last.duration_since(first).as_hours() / 24 + 1;
    let came_by = |day: usize| {
        let ahead = (day + 7 - from_monday(first.weekday())) % 7;
        (days - ahead as i64 + 6).div_euclid(7)
    };
    let open: [bool; 7] = std::array::from_fn(|day| seen[day] || came_by(day) == 0);
    let between = times.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_nanos());
    let daily = || most_common(between) == i128::from(DAY);
    let often = || (0..7).all(|day| open[day] || came_by(day) >= OFTEN);
    let several = seen.iter().filter(|&&day| day).count() > 1;
    let left_out = (open == Weekdays::BUSINESS.0 && daily()) || (open.contains(&false) && several && often());
    left_out.then(|| Weekdays::new(open)).flatten()
}

/// The most common of the positive differences. If several are equally common, the smallest.
fn most_common(differences: impl Iterator<Item = i128>) -> i128 {
    let mut counts = std::collections::BTreeMap::new();
    for difference in differences {
        *counts.entry(difference).or_insert(0_usize) += 1;
    }
    counts.into_iter().rev().max_by_key(|&(_, count)| count).map_or(1, |(difference, _)| difference)
}

#[cfg(test)]
mod tests;
