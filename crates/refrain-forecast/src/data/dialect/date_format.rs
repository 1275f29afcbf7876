//! How dates are written.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;
use serde::{Deserialize, Serialize};

/// How the time stamps of a file are written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DateFormat {
    /// ISO 8601 (also with `/`, and up to the month only), quarters such as `2024Q1`, and time since 1970 in seconds (9 or 10
    /// digits) or milliseconds (12 or 13 digits).
    #[default]
    Auto,
    /// A number of units since 1970, in UTC.
    Epoch(EpochUnit),
    /// A date in this form; a time of day may follow.
    Pattern(DatePattern),
}

/// The unit of time since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpochUnit {
    /// 1 s.
    Seconds,
    /// 1 ms.
    Milliseconds,
    /// 1 µs.
    Microseconds,
    /// 1 ns.
    Nanoseconds,
}

const UNITS: [(EpochUnit, &str, i128); 4] = [
    (EpochUnit::Seconds, "epoch-s", 1_000_000_000),
    (EpochUnit::Milliseconds, "epoch-ms", 1_000_000),
    (EpochUnit::Microseconds, "epoch-us", 1000),
    (EpochUnit::Nanoseconds, "epoch-ns", 1),
];

impl EpochUnit {
    /// The unit of a number, by its digits before a point: 9 or 10 are seconds from 1973 to 2286, 12 or 13 the same in
    /// milliseconds. None if they may also be year, month, day, hour and perhaps minute.
    pub(crate) fn of(text: &str) -> Option<EpochUnit> {
        let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
        if !whole.bytes().chain(rest.bytes()).all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let part = |range: std::ops::Range<usize>| whole.get(range).and_then(|part| part.parse::<u32>().ok());
        let is_in = |range, least, most| part(range).is_some_and(|n| (least..=most).contains(&n));
        let may_be_date =
            is_in(0..4, 1900, 2099) && is_in(4..6, 1, 12) && is_in(6..8, 1, 31) && is_in(8..10, 0, 23);
        if may_be_date && (whole.len() == 10 || is_in(10..12, 0, 59)) {
            return None;
        }
        match whole.len() {
            9 | 10 => Some(EpochUnit::Seconds),
            12 | 13 => Some(EpochUnit::Milliseconds),
            _ => None,
        }
    }

    /// The name of the format.
    pub(crate) fn name(self) -> &'static str {
        self.entry().1
    }

    /// The time in UTC of a number of these units, which may have decimals.
    pub(crate) fn read(self, text: &str) -> Option<DateTime> {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, text),
        };
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty()
            || whole.len() > 19
            || decimals.len() > 12
            || !is_number(whole)
            || !is_number(decimals)
        {
            return None;
        }
        let length = self.entry().2;
        let part = match decimals.is_empty() {
            true => 0,
            false => length * decimals.parse::<i128>().ok()? / 10_i128.pow(decimals.len() as u32),
        };
        let nanoseconds = sign * (whole.parse::<i128>().ok()? * length + part);
        Some(Offset::UTC.to_datetime(Timestamp::from_nanosecond(nanoseconds).ok()?))
    }

    fn entry(self) -> &'static (EpochUnit, &'static str, i128) {
        match self {
            EpochUnit::Seconds => &UNITS[0],
            EpochUnit::Milliseconds => &UNITS[1],
            EpochUnit::Microseconds => &UNITS[2],
            EpochUnit::Nanoseconds => &UNITS[3],
        }
    }
}

/// The order of year, month and day in a date, and the signs between them, such as `dd.mm.yyyy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatePattern(Vec<Piece>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    Year,
    Month,
    Day,
    Sign(u8),
}

impl DatePattern {
    /// The pattern that a text describes.
    fn of(text: &str) -> Option<DatePattern> {
        let text = text.to_ascii_lowercase();
        let (mut rest, mut pieces) = (text.as_bytes(), Vec::new());
        while let Some((&first, others)) = rest.split_first() {
            let (piece, left) = if let Some(left) = rest.strip_prefix(b"yyyy") {
                (Piece::Year, left)
            } else if let Some(left) = rest.strip_prefix(b"mm") {
                (Piece::Month, left)
            } else if let Some(left) = rest.strip_prefix(b"dd") {
                (Piece::Day, left)
            } else if b"./- ".contains(&first) {
                (Piece::Sign(first), others)
            } else {
                return None;
            };
            pieces.push(piece);
            rest = left;
        }
        let once = |piece: Piece| pieces.iter().filter(|&&other| other == piece).count() == 1;
        let whole = [Piece::Year, Piece::Month, Piece::Day].into_iter().all(once);
        (whole && pieces.len() <= 9).then_some(DatePattern(pieces))
    }

    /// The date that a text begins with, and what follows it. Between signs, day and month may have one digit.
    pub(crate) fn read<'a>(&self, text: &'a [u8]) -> Option<(Date, &'a [u8])> {
        let (mut rest, [mut year, mut month, mut day]) = (text, [0_i16; 3]);
        for (at, piece) in self.0.iter().enumerate() {
            let is_sign = |at: Option<usize>| {
                at.and_then(|at| self.0.get(at)).is_none_or(|piece| matches!(piece, Piece::Sign(_)))
            };
            let free = is_sign(at.checked_sub(1)) && is_sign(Some(at + 1));
            let two = |rest| if free { up_to_two_digits(rest) } else { digits::<2>(rest) };
            match piece {
                Piece::Sign(sign) => rest = rest.strip_prefix(&[*sign])?,
                Piece::Year => (year, rest) = digits::<4>(rest)?,
                Piece::Month => (month, rest) = two(rest)?,
                Piece::Day => (day, rest) = two(rest)?,
            }
        }
        let date = Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
        Some((date, rest))
    }
}

/// A number of exactly so many digits, and what follows.
pub(crate) fn digits<const COUNT: usize>(text: &[u8]) -> Option<(i16, &[u8])> {
    let (number, rest) = text.split_at_checked(COUNT)?;
    let value = number
        .iter()
        .try_fold(0_i16, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i16::from(byte - b'0')))?;
    Some((value, rest))
}

/// A number of one or two digits, and what follows.
pub(crate) fn up_to_two_digits(text: &[u8]) -> Option<(i16, &[u8])> {
    digits::<2>(text).or_else(|| digits::<1>(text))
}

impl From<DateFormat> for String {
    fn from(format: DateFormat) -> String {
        match format {
            DateFormat::Auto => "auto".to_owned(),
            DateFormat::Epoch(unit) => unit.name().to_owned(),
            DateFormat::Pattern(DatePattern(pieces)) => {
                let written = pieces.into_iter().map(|piece| match piece {
                    Piece::Year => "yyyy".to_owned(),
                    Piece::Month => "mm".to_owned(),
                    Piece::Day => "dd".to_owned(),
                    Piece::Sign(sign) => char::from(sign).to_string(),
                });
                written.collect()
            }
        }
    }
}

impl TryFrom<String> for DateFormat {
    type Error = String;

    fn try_from(text: String) -> Result<DateFormat, String> {
        if text == "auto" {
            return Ok(DateFormat::Auto);
        }
        if let Some((unit, ..)) = UNITS.iter().find(|(_, name, _)| *name == text) {
            return Ok(DateFormat::Epoch(*unit));
        }
        DatePattern::of(&text).map(DateFormat::Pattern).ok_or_else(|| {
            format!(
                "{text:?} is neither auto, epoch-s, epoch-ms, epoch-us or epoch-ns, nor made of yyyy, mm and dd (each once) with \
                 points, slashes, dashes or nothing between them, such as dd.mm.yyyy"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    fn read<'a>(pattern: &str, text: &'a str) -> Option<(Date, &'a str)> {
        let pattern = DatePattern::of(pattern).expect(pattern);
        pattern.read(text.as_bytes()).map(|(date, rest)| (date, std::str::from_utf8(rest).unwrap()))
    }

    #[test]
    fn dates_are_read_by_their_pattern() {
        let day = date(2024, 2, 9);
        for (pattern, text) in [
            ("dd.mm.yyyy", "09.02.2024"),
            ("dd.mm.yyyy", "9.2.2024"),
            ("mm/dd/yyyy", "2/9/2024"),
            ("yyyymmdd", "20240209"),
            ("ddmmyyyy", "09022024"),
            ("yyyy-dd-mm", "2024-09-2"),
        ] {
            assert_eq!(read(pattern, text), Some((day, "")), "{pattern} {text}");
        }
        assert_eq!(read("dd.mm.yyyy", "09.02.2024 6:00"), Some((day, " 6:00")));
        for (pattern, text) in [
            ("dd.mm.yyyy", "09/02/2024"),
            ("dd.mm.yyyy", "30.02.2024"),
            ("mm/dd/yyyy", "13/02/2024"),
            ("dd.mm.yyyy", "9.2.24"),
            ("yyyymmdd", "2024029"),
            ("dd.mm.yyyy", ""),
        ] {
            assert_eq!(read(pattern, text), None, "{pattern} {text}");
        }
    }

    #[test]
    fn numbers_since_1970_are_read_by_their_unit() {
        let time = date(2016, 7, 1).at(0, 0, 0, 0);
        for (unit, text) in [
            (EpochUnit::Seconds, "1467331200"),
            (EpochUnit::Seconds, "1467331200.000"),
            (EpochUnit::Milliseconds, "1467331200000"),
            (EpochUnit::Microseconds, "1467331200000000"),
            (EpochUnit::Nanoseconds, "1467331200000000000"),
        ] {
            assert_eq!(unit.read(text), Some(time), "{text}");
        }
        assert_eq!(EpochUnit::Seconds.read("1467331200.25"), Some(date(2016, 7, 1).at(0, 0, 0, 250_000_000)));
        assert_eq!(EpochUnit::Seconds.read("-1.5"), Some(date(1969, 12, 31).at(23, 59, 58, 500_000_000)));
        for text in ["", "-", "1e9", "12.", "9999999999999999999", "1,5", "+5"] {
            let expected = (text == "12.").then(|| date(1970, 1, 1).at(0, 0, 12, 0));
            assert_eq!(EpochUnit::Seconds.read(text), expected, "{text}");
        }
        let found = |text| EpochUnit::of(text);
        assert_eq!(found("1467331200"), Some(EpochUnit::Seconds));
        assert_eq!(found("999999999.5"), Some(EpochUnit::Seconds));
        assert_eq!(found("1467331200000"), Some(EpochUnit::Milliseconds));
        for text in ["17", "20160701", "20160701063000", "1467331200000000", "14673312x0", ""] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
