//! Time stamps in files and in messages.

use crate::data::dialect::{DateFormat, digits, up_to_two_digits};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::Offset;

/// A parsed time stamp: in UTC if it named a zone or offset, otherwise as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub time: DateTime,
    pub zoned: bool,
    /// Whether it is a day without a time of day. Then the time is midnight.
    pub date: bool,
}

impl Stamp {
    pub(crate) fn utc(time: DateTime) -> Stamp {
        Stamp { time, zoned: true, date: false }
    }

    fn naive(time: DateTime) -> Stamp {
        Stamp { time, zoned: false, date: false }
    }

    fn of_date(date: Date) -> Stamp {
        Stamp { time: date.to_datetime(Time::midnight()), zoned: false, date: true }
    }
}

/// Parses what [`super::Series::from_csv`] reads without a format: ISO 8601 and quarters.
pub(crate) fn parse(text: &str) -> Option<Stamp> {
    let text = text.trim();
    if let Some(stamp) = usual(text.as_bytes()).or_else(|| quarter(text.as_bytes())) {
        return Some(stamp);
    }
    // A bare number is an index or a Unix time in an unknown unit, even if ISO 8601 would read it as a date.
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(Stamp::utc(Offset::UTC.to_datetime(timestamp)));
    }
    if let Ok(time) = text.parse::<DateTime>() {
        return Some(Stamp::naive(time));
    }
    for format in ["%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M"] {
        if let Ok(time) = DateTime::strptime(format, text) {
            return Some(Stamp::naive(time));
        }
    }
    if let Ok(date) = Date::strptime("%Y/%m/%d", text) {
        return Some(Stamp::of_date(date));
    }
    Some(Stamp::of_date(Date::strptime("%Y-%m-%d", format!("{text}-01")).ok()?))
}

/// Parses a time stamp in a form that the user has named. [`DateFormat::Auto`] is [`parse`].
pub(crate) fn parse_as(format: &DateFormat, text: &str) -> Option<Stamp> {
    match format {
        DateFormat::Auto => parse(text),
        DateFormat::Epoch(unit) => unit.read(text).map(Stamp::utc),
        DateFormat::Pattern(pattern) => {
            let (date, rest) = pattern.read(text.as_bytes())?;
            with_clock(date, rest)
        }
    }
}

/// The forms that nearly all files have, read quickly: `2016-07-01` or `2016/07/01`, and a time of day.
fn usual(text: &[u8]) -> Option<Stamp> {
    let (year, rest) = digits::<4>(text)?;
    let (&sign, rest) = rest.split_first()?;
    let (month, rest) = digits::<2>(rest)?;
    let rest = rest.strip_prefix(&[sign])?;
    let (day, rest) = digits::<2>(rest)?;
    if sign != b'-' && sign != b'/' {
        return None;
    }
    let date = Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
    with_clock(date, rest)
}

/// The first day of a quarter: `2024Q1` or `2024-Q1`.
fn quarter(text: &[u8]) -> Option<Stamp> {
    let (year, rest) = digits::<4>(text)?;
    let rest = rest.strip_prefix(b"-").unwrap_or(rest);
    let rest = rest.strip_prefix(b"Q").or_else(|| rest.strip_prefix(b"q"))?;
    let (1..=4, b"") = digits::<1>(rest)? else { return None };
    let month = i8::try_from(3 * (digits::<1>(rest)?.0 - 1) + 1).ok()?;
    Some(Stamp::of_date(Date::new(year, month, 1).ok()?))
}

/// A date with what follows it: nothing, or a time of day such as `T06:30`, ` 6:30:00.25`, ` 6:30 PM` or ` 06:30+02:00`.
fn with_clock(date: Date, rest: &[u8]) -> Option<Stamp> {
    let Some((&between, rest)) = rest.split_first() else {
        return Some(Stamp::of_date(date));
    };
    if !b"Tt ".contains(&between) {
        return None;
    }
    let (hour, rest) = up_to_two_digits(rest.trim_ascii_start())?;
    let (minute, mut rest) = digits::<2>(rest.strip_prefix(b":")?)?;
    let (mut second, mut nanosecond) = (0, 0);
    if let Some(left) = rest.strip_prefix(b":") {
        (second, rest) = digits::<2>(left)?;
        if let Some(left) = rest.strip_prefix(b".").or_else(|| rest.strip_prefix(b",")) {
            (nanosecond, rest) = decimals(left)?;
        }
    }
    let rest = rest.trim_ascii_start();
    let (hour, rest) = match rest {
        [half @ (b'A' | b'a' | b'P' | b'p'), b'M' | b'm', rest @ ..] if (1..=12).contains(&hour) => {
            let noon = if half.eq_ignore_ascii_case(&b'P') { 12 } else { 0 };
            (hour % 12 + noon, rest.trim_ascii_start())
        }
        _ => (hour, rest),
    };
    let part = |value: i16| i8::try_from(value).ok();
    let clock = Time::new(part(hour)?, part(minute)?, part(second)?, nanosecond).ok()?;
    let time = date.to_datetime(clock);
    match rest {
        b"" => Some(Stamp::naive(time)),
        rest => {
            let utc = offset(rest)?.to_timestamp(time).ok()?;
            Some(Stamp::utc(Offset::UTC.to_datetime(utc)))
        }
    }
}

/// The decimals of a second in nanoseconds, at most 9 of them, and what follows.
fn decimals(text: &[u8]) -> Option<(i32, &[u8])> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !(1..=9).contains(&count) {
        return None;
    }
    let (number, rest) = text.split_at(count);
    let value = number.iter().fold(0, |value, byte| value * 10 + i32::from(byte - b'0'));
    Some((value * 10_i32.pow(9 - count as u32), rest))
}

/// `Z`, `+02:00`, `+0200` or `+02`.
fn offset(text: &[u8]) -> Option<Offset> {
    let (&sign, rest) = text.split_first()?;
    if sign.eq_ignore_ascii_case(&b'z') && rest.is_empty() {
        return Some(Offset::UTC);
    }
    let sign = match sign {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, rest) = digits::<2>(rest)?;
    let (minutes, rest) = match rest {
        b"" => (0, rest),
        rest => digits::<2>(rest.strip_prefix(b":").unwrap_or(rest))?,
    };
    if !rest.is_empty() || minutes > 59 {
        return None;
    }
    Offset::from_seconds(sign * (i32::from(hours) * 3600 + i32::from(minutes) * 60)).ok()
}

/// Formats a time stamp for messages and files. [`parse`] can read it again.
pub(crate) fn format(time: DateTime, utc: bool) -> String {
    let text = time.to_string(); // 2013-01-01T06:00:00
    if utc { text + "Z" } else { text.replacen('T', " ", 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::series::{TimeAxis, TimeStep};
    use jiff::civil::date;

    fn time(text: &str) -> DateTime {
        parse(text).expect(text).time
    }

    #[test]
    fn common_forms_of_time_stamps() {
        let day = date(2016, 7, 1);
        let midnight = day.at(0, 0, 0, 0);
        for text in [
            "2016-07-01 00:00:00",
            "2016-07-01T00:00",
            "2016/07/01 00:00",
            "2016-07-01  0:00",
            "2016-07-01 12:00 AM",
        ] {
            assert_eq!(parse(text), Some(Stamp::naive(midnight)), "{text}");
        }
        for text in ["2016-07-01", "2016/07/01", "2016-07", "2016Q3", "2016-Q3"] {
            assert_eq!(parse(text), Some(Stamp::of_date(day)), "{text}");
        }
        for text in [
            "2016-07-01T00:00:00Z",
            "2016-07-01 02:00:00+02:00",
            "2016-07-01 02:00+0200",
            "2016-06-30T19:00:00-05:00",
            "2016-06-30 19:00:00.000-05",
            "2016-07-01T02:00:00+02:00[Europe/Berlin]",
        ] {
            assert_eq!(parse(text), Some(Stamp::utc(midnight)), "{text}");
        }
        assert_eq!(time("2016-07-01 00:00:00.250"), date(2016, 7, 1).at(0, 0, 0, 250_000_000));
        for text in [
            "",
            "EWR",
            "17",
            "20160701",
            "1467331200",
            "01/07/2016",
            "2016-13-01",
            "2016-02-30",
            "12.5",
            "2016Q5",
            "2016Q",
            "2016Q12",
            "2016-07-01 24:00",
            "2016-07-01 13:00 PM",
            "2016-07-01 06:00+2",
            "2016-07-01x",
            "2016-07/01",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_form_that_is_named_is_the_only_one_that_is_read() {
        let format = |text: &str| DateFormat::try_from(text.to_owned()).unwrap();
        let evening = date(2016, 7, 1).at(18, 30, 0, 0);
        for (form, text) in [
            ("dd.mm.yyyy", "01.07.2016 18:30"),
            ("mm/dd/yyyy", "7/1/2016 6:30:00 PM"),
            ("yyyymmdd", "20160701T18:30"),
        ] {
            assert_eq!(parse_as(&format(form), text), Some(Stamp::naive(evening)), "{text}");
            assert_eq!(parse_as(&format(form), "2016-07-01 18:30"), None);
        }
        let zoned = Some(Stamp::utc(evening));
        assert_eq!(parse_as(&format("dd.mm.yyyy"), "01.07.2016 20:30+02:00"), zoned);
        assert_eq!(parse_as(&format("epoch-s"), "1467397800"), zoned);
        assert_eq!(parse_as(&format("epoch-ms"), "1467397800000"), zoned);
    }

    /// What is read quickly is what jiff reads.
    #[test]
    fn the_quick_way_gives_what_the_long_way_gives() {
        for day in ["2016-02-29", "0001-01-01", "9999-12-31", "2024-10-27"] {
            for clock in ["", "T00:00", " 23:59:59", "T06:07:08.000000009", " 06:07:08,5"] {
                for zone in ["", "Z", "+05:45", "-23:59"] {
                    let text = format!("{day}{clock}{zone}");
                    let expected = match (clock, zone) {
                        ("", "") => text.parse::<Date>().ok().map(Stamp::of_date),
                        (_, "") => text.parse::<DateTime>().ok().map(Stamp::naive),
                        ("", _) => None,
                        _ => {
                            text.parse::<Timestamp>().ok().map(|utc| Stamp::utc(Offset::UTC.to_datetime(utc)))
                        }
                    };
                    assert_eq!(usual(text.as_bytes()), expected, "{text}");
                }
            }
        }
    }

    #[test]
    fn what_is_formatted_parses_back() {
        for utc in [true, false] {
            let text = TimeAxis::new(time("2013-12-31 23:30:00"), TimeStep::seconds(1800), utc).format(1);
            assert_eq!(text, if utc { "2014-01-01T00:00:00Z" } else { "2014-01-01 00:00:00" });
            let midnight = date(2014, 1, 1).at(0, 0, 0, 0);
            assert_eq!(parse(&text), Some(if utc { Stamp::utc(midnight) } else { Stamp::naive(midnight) }));
        }
    }
}
