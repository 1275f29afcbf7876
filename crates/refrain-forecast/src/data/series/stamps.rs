//! The column of time stamps.

use super::TimeStep;
use super::time::{self, Stamp};
use crate::data::dialect::{DateFormat, Dialect, EpochUnit};
use crate::data::text::shorten;
use crate::{Error, Result};
use jiff::civil::{DateTime, Time};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};

/// Parses the time column and checks that all its time stamps use one convention.
pub(crate) struct Stamps<'a> {
    file: &'a str,
    column: String,
    dialect: &'a Dialect,
    /// Whether the file has columns of times, which need no format.
    typed: bool,
    /// How numbers are read, once there was one.
    unit: Option<EpochUnit>,
    zoned: Option<bool>,
    clock: Clock,
}

/// The times of day of local times.
#[derive(Clone, Copy, PartialEq)]
enum Clock {
    /// No local time was read.
    Unknown,
    /// All so far are this one.
    Same(Time),
    Several,
}

/// Time stamps as they are kept.
pub(crate) struct Read {
    /// Whether they are in UTC.
    pub(crate) utc: bool,
    /// The zone to whose local time all of them are to be brought back, and their time of day, if it is the same for all.
    local: Option<(TimeZone, Option<Time>)>,
}

impl Read {
    /// Brings time stamps back to local time, if they are days of a local calendar.
    pub(crate) fn settle(&self, times: &mut [DateTime]) {
        let Some((zone, clock)) = &self.local else { return };
        for time in times {
            if let Ok(utc) = Offset::UTC.to_timestamp(*time) {
                let local = zone.to_datetime(utc);
                // A day that begins at 01:00 is kept like the others.
                *time = clock.map_or(local, |clock| local.date().to_datetime(clock));
            }
        }
    }
}

/// A moment in a time zone.
struct Moment {
    /// By the clocks of the zone. The midnight of a day without a time of day, also if that day begins later.
    local: DateTime,
    utc: DateTime,
}

/// Why a time stamp is no moment of a time zone.
enum NoMoment {
    OutOfRange,
    /// Clocks are set forward then.
    Skipped,
    /// Clocks are set back then: the offsets before and after.
    Twice(Offset, Offset),
}

/// Of a time that the clocks of a zone leave out.
fn never(name: &str) -> String {
    format!("does not exist in {name}, where clocks are set forward then")
}

/// Of a time that the clocks of a zone show twice.
fn twice(name: &str) -> String {
    format!("exists twice in {name}, where clocks are set back then")
}

impl Moment {
    /// A time stamp without an offset is local time. One without a time of day is the first moment of that day.
    fn of(stamp: Stamp, zone: &TimeZone) -> std::result::Result<Moment, NoMoment> {
        let local = stamp.time;
        if stamp.zoned {
            let utc = Offset::UTC.to_timestamp(stamp.time).map_err(|_| NoMoment::OutOfRange)?;
            return Ok(Moment { local: zone.to_datetime(utc), utc: stamp.time });
        }
        let utc = match zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local),
            _ if stamp.date => {
                let first = local.to_zoned(zone.clone()).and_then(|time| time.start_of_day());
                // A zone that changed sides of the date line has no moment of the day that it left out.
                if first.as_ref().is_ok_and(|first| first.date() != local.date()) {
                    return Err(NoMoment::Skipped);
                }
                first.map(|first| first.timestamp())
            }
            AmbiguousOffset::Gap { .. } => return Err(NoMoment::Skipped),
            AmbiguousOffset::Fold { before, after } => return Err(NoMoment::Twice(before, after)),
        };
        let utc = utc.map_err(|_| NoMoment::OutOfRange)?;
        Ok(Moment { local, utc: Offset::UTC.to_datetime(utc) })
    }
}

/// A time that a user names beside files of this dialect: in the form of the files, or as ISO 8601. With [`Dialect::tz`] it is
/// brought to how the files' times are kept, as days of the local calendar or in UTC. Otherwise it says what is wrong and what to
/// do.
pub(crate) fn named(
    text: &str,
    dialect: &Dialect,
    local_days: bool,
) -> std::result::Result<Stamp, (String, &'static str)> {
    let text = text.trim();
    let since_1970 = || {
        let unit = EpochUnit::of(text).filter(|_| dialect.date_format == DateFormat::Auto)?;
        unit.read(text).map(Stamp::utc)
    };
    let stamp = time::parse_as(&dialect.date_format, text).or_else(|| time::parse(text)).or_else(since_1970);
    let none = || {
        let fix = "write it as in a file, such as 2024-07-01 or \"2024-07-01 06:00\"";
        (format!("{text:?} is not a time"), fix)
    };
    let stamp = stamp.ok_or_else(none)?;
    let Some((name, zone)) = dialect.tz.get() else { return Ok(stamp) };
    // A local time is compared with local days as it is written; the zone need not have it.
    if local_days && !stamp.zoned {
        return Ok(stamp);
    }
    match Moment::of(stamp, zone) {
        Ok(moment) if local_days => Ok(Stamp { time: moment.local, zoned: false, date: stamp.date }),
        Ok(moment) => Ok(Stamp::utc(moment.utc)),
        Err(NoMoment::OutOfRange) => Err(none()),
        Err(NoMoment::Skipped) => Err((format!("{text} {}", never(name)), "choose another time")),
        Err(NoMoment::Twice(..)) => {
            let fix = "write it with its offset, such as \"2024-07-01 06:00 +02:00\"";
            Err((format!("{text} {}", twice(name)), fix))
        }
    }
}

/// The moment of such a time, to compare it with the times of `what`: these are in UTC, or have no zone, and then it may have none.
pub(crate) fn named_beside(
    text: &str,
    dialect: &Dialect,
    utc: bool,
    what: &str,
) -> std::result::Result<DateTime, (String, &'static str)> {
    let stamp = named(text, dialect, !utc)?;
    if utc || !stamp.zoned {
        return Ok(stamp.time);
    }
    Err(match EpochUnit::of(text.trim()) {
        Some(_) => (
            format!(
                "{text} is a number, so a time since 1970 in UTC, but the times of {what} have no time zone"
            ),
            "write it as in the file, such as 2024-07-01 or \"2024-07-01 06:00\"",
        ),
        None => (format!("{text} has a time zone, but the times of {what} have none"), "leave the zone out"),
    })
}

impl<'a> Stamps<'a> {
    pub(crate) fn new(file: &'a str, column: String, dialect: &'a Dialect, typed: bool) -> Self {
        Stamps { file, column, dialect, typed, unit: None, zoned: None, clock: Clock::Unknown }
    }

    /// The time of a cell: in UTC if it or the dialect names a zone, otherwise as written.
    pub(crate) fn parse(&mut self, cell: &str, line: u64) -> Result<DateTime> {
        let Some(stamp) = self.stamp(cell) else { return Err(self.no_time(cell, line)) };
        if let Some(zone) = self.dialect.tz.get() {
            return self.in_utc(stamp, zone, cell, line);
        }
        if *self.zoned.get_or_insert(stamp.zoned) != stamp.zoned {
            let (file, text) = (self.file.to_owned(), shorten(cell));
            return Err(Error::MixedZones { file, line, text, zoned: stamp.zoned });
        }
        Ok(stamp.time)
    }

    fn stamp(&mut self, cell: &str) -> Option<Stamp> {
        if let Some(unit) = self.unit {
            return unit.read(cell).map(Stamp::utc);
        }
        let stamp = time::parse_as(&self.dialect.date_format, cell);
        if let Some(stamp) = stamp.or_else(|| self.typed.then(|| time::parse(cell)).flatten()) {
            return Some(stamp);
        }
        // The first time stamp says whether all are numbers.
        let is_first = self.zoned.is_none() && self.clock == Clock::Unknown;
        let is_auto = self.dialect.date_format == DateFormat::Auto;
        let unit = EpochUnit::of(cell).filter(|_| is_first && is_auto)?;
        self.unit = Some(unit);
        unit.read(cell).map(Stamp::utc)
    }

    /// A time stamp in UTC.
    fn in_utc(
        &mut self,
        stamp: Stamp,
        (name, zone): (&str, &TimeZone),
        cell: &str,
        line: u64,
    ) -> Result<DateTime> {
        // Local days are printed as their midnight, which not all of them have.
        let is_midnight = !stamp.zoned && stamp.time.time() == Time::midnight();
        let date = stamp.date || self.dialect.local_days == Some(true) && is_midnight;
        let moment = match Moment::of(Stamp { date, ..stamp }, zone) {
            Ok(moment) => moment,
            Err(NoMoment::OutOfRange) => return Err(self.no_time(cell, line)),
            Err(NoMoment::Skipped) => {
                let fix = "correct it, or leave --tz out if the times are not local ones";
                return Err(self.refused(cell, line, never(name), fix.to_owned()));
            }
            Err(NoMoment::Twice(before, after)) => {
                let written = |offset: Offset| format!("`{} {}`", cell.trim(), offset_text(offset));
                let fix = format!("write it with its offset, {} or {}", written(before), written(after));
                return Err(self.refused(cell, line, twice(name), fix));
            }
        };
        self.clock = match self.clock {
            Clock::Unknown => Clock::Same(moment.local.time()),
            Clock::Same(time) if time == moment.local.time() => Clock::Same(time),
            _ => Clock::Several,
        };
        Ok(moment.utc)
    }

    /// How all time stamps are kept. Local times that are days, weeks or months stay local: days of 23 and 25 hours are days. The
    /// dialect says it ([`Dialect::local_days`]); otherwise they are if all are at one time of day, and not on a calendar (`step`)
    /// of hours.
    pub(crate) fn finish(&self, step: Option<TimeStep>) -> Read {
        let Some((_, zone)) = self.dialect.tz.get() else {
            return Read { utc: self.zoned == Some(true), local: None };
        };
        let clock = match self.clock {
            Clock::Same(time) => Some(time),
            Clock::Unknown | Clock::Several => None,
        };
        let may_be_days = step.is_none_or(TimeStep::is_of_days);
        let days = self.dialect.local_days.unwrap_or(may_be_days) && clock.is_some();
        Read { utc: !days, local: days.then(|| (zone.clone(), clock)) }
    }

    /// Whether the time stamps so far are in UTC.
    pub(crate) fn is_utc(&self) -> bool {
        self.zoned == Some(true) || self.dialect.tz.get().is_some()
    }

    fn no_time(&self, cell: &str, line: u64) -> Error {
        let (problem, fix) = match &self.dialect.date_format {
            DateFormat::Auto if self.unit.is_some() => {
                let problem = "is not a number, unlike the time stamps before it";
                (problem.to_owned(), "write all time stamps in one form".to_owned())
            }
            DateFormat::Auto => advice(cell.trim()),
            format => {
                let name = String::from(format.clone());
                let problem = format!("is not a time stamp of the form {name}");
                (problem, "correct it, or pass another --date-format".to_owned())
            }
        };
        self.refused(cell, line, problem, fix)
    }

    fn refused(&self, cell: &str, line: u64, problem: String, fix: String) -> Error {
        let (file, column) = (self.file.to_owned(), self.column.clone());
        Error::Time { file, line, column, text: shorten(cell), problem: format!("{problem}; {fix}") }
    }
}

/// What is wrong with a cell that is no time stamp, and what to do about it.
fn advice(cell: &str) -> (String, String) {
    let is_number = !cell.is_empty() && cell.bytes().all(|byte| byte.is_ascii_digit());
    if is_number {
        let problem = "is not a time stamp but a number".to_owned();
        let fix = match cell.len() {
            8 => "pass --date-format yyyymmdd if it is a date",
            10 | 12 if cell.starts_with("19") || cell.starts_with("20") => {
                "pass --date-format epoch-s or epoch-ms if it counts seconds or milliseconds since 1970; if it is year, month, day \
                  and hour, write it as 2024-01-31T06:00"
            }
            _ => {
                "pass --date-format epoch-s or epoch-ms if it counts seconds or milliseconds since 1970, or name the column of times \
                  `time`"
            }
        };
        return (problem, fix.to_owned());
    }
    if let Some((first, second, sign)) = date_of_numbers(cell) {
        let day_first = format!("--date-format dd{sign}mm{sign}yyyy");
        let month_first = format!("--date-format mm{sign}dd{sign}yyyy");
        let fix = match (first, second) {
            (13.., _) => format!("pass {day_first}"),
            (_, 13..) => format!("pass {month_first}"),
            _ => format!("pass {day_first} or {month_first}"),
        };
        return ("is a date, and the order of day and month is not told".to_owned(), fix);
    }
    let fix = "write `2016-07-01 00:00:00`, `2016-07-01T00:00:00Z` or `2016-07-01`, in the first column or in one named `time`, \
               `date` or `ds`, or name another form by --date-format";
    ("is not a time stamp".to_owned(), fix.to_owned())
}

/// The first two numbers of a date such as `1/12/2024`, and the sign between them.
fn date_of_numbers(cell: &str) -> Option<(u32, u32, char)> {
    let sign = cell.chars().find(|at| !at.is_ascii_digit()).filter(|sign| "./-".contains(*sign))?;
    let mut parts = cell.splitn(3, sign);
    let mut number = || parts.next().filter(|part| (1..=2).contains(&part.len()))?.parse::<u32>().ok();
    let (first, second) = (number()?, number()?);
    let year = parts.next()?.bytes().take_while(u8::is_ascii_digit).count();
    ((1..=31).contains(&first) && (1..=31).contains(&second) && year == 4).then_some((first, second, sign))
}

/// `+02:00`
fn offset_text(offset: Offset) -> String {
    let minutes = offset.seconds().abs() / 60;
    let sign = if offset.is_negative() { '-' } else { '+' };
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
}
