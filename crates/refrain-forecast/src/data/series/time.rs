//! Time stamps in files and in messages.

use jiff::Timestamp;
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;

/// A parsed time stamp: in UTC if it named a zone or offset, otherwise as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub time: DateTime,
    pub zoned: bool,
}

/// Parses the forms that [`super::Series::from_csv`] accepts.
pub(crate) fn parse(text: &str) -> Option<Stamp> {
    let text = text.trim();
    // A bare number is an index or a Unix time in an unknown unit, even if ISO 8601 would read it as a date.
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
            let text = TimeAxis::new(time("2013-12-31 23:30:00"), TimeStep::seconds(1800), utc).format(1);
            assert_eq!(text, if utc { "2014-01-01T00:00:00Z" } else { "2014-01-01 00:00:00" });
            assert_eq!(parse(&text), Some(Stamp { time: date(2014, 1, 1).at(0, 0, 0, 0), zoned: utc }));
        }
    }
}
