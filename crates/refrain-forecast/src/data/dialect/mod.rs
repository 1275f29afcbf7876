//! How the text of a table is written, and what becomes of rows that are out of order or come twice.

mod date_format;
mod signs;
mod zone;

pub use self::date_format::{DateFormat, DatePattern, EpochUnit};
pub(crate) use self::date_format::{digits, up_to_two_digits};
pub use self::signs::{Comment, Decimal, Separator};
pub use self::zone::Zone;

use crate::settings::settings;
use serde::{Deserialize, Serialize};

settings! {
    /// How the text of a table is written, and what becomes of rows that are out of order or come twice.
    ///
    /// Files of typed columns (Parquet, Arrow) have neither separators nor decimal signs; the rest is the same for them.
    #[derive(Default, Eq)]
    pub struct Dialect {
        /// What stands between cells: comma, semicolon, tab, bar or another sign; auto takes the one of these four that the header has most of.
        #[serde(default)]
        pub separator: Separator = Separator::Auto, "SIGN";
        /// Decimal sign of numbers: point or comma.
        #[serde(default)]
        pub decimal: Decimal = Decimal::Point, "SIGN";
        /// Lines that begin with this sign are left out; auto leaves out those with # above the header, none leaves out no line.
        #[serde(default)]
        pub comment: Comment = Comment::Auto, "SIGN";
        /// How dates are written: dd.mm.yyyy, mm/dd/yyyy, yyyymmdd, ... (a time of day may follow); epoch-s, epoch-ms, epoch-us or epoch-ns for time since 1970; auto reads ISO 8601, quarters such as 2024Q1, and seconds or milliseconds since 1970.
        #[serde(default)]
        pub date_format: DateFormat = DateFormat::Auto, "FORMAT";
        /// Time zone of times without an offset, such as Europe/Berlin; none takes them as they are.
        #[serde(default)]
        pub tz: Zone = Zone::default(), "NAME";
        /// With `tz`, whether times are kept as days of the local calendar instead of in UTC. If it is not said, they are if all
        /// times of the file are at one local time of day. A run says what its training data was, so that other files are read
        /// like that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub local_days: Option<bool>;
        /// Sort the rows by time (those of an id by themselves) instead of refusing rows that are out of order.
        #[serde(default)]
        pub sort: bool = false, "BOOL";
        /// What becomes of rows with the same time (and id): refuse, mean (of the values that are not missing), first or last.
        #[serde(default)]
        pub duplicates: Duplicates = Duplicates::Refuse, "RULE";
    }
}

impl Dialect {
    /// The same, for more files like one that was read: whether times are days of the local calendar is that of this file
    /// (`!series.time().is_utc()`).
    pub fn with_local_days(self, local_days: bool) -> Dialect {
        let local_days = self.tz.get().map(|_| local_days);
        Dialect { local_days, ..self }
    }

    /// The decimal sign of the cells of a file; one with typed columns has none of its own.
    pub(crate) fn decimal_of(&self, typed: bool) -> Decimal {
        if typed { Decimal::Point } else { self.decimal }
    }
}

/// What becomes of rows with the same time. In a long file or a panel, with the same id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Duplicates {
    /// They are an error, which names their lines.
    #[default]
    Refuse,
    /// One row with the mean of each column, over the values that are not missing.
    Mean,
    /// The first of them.
    First,
    /// The last of them.
    Last,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_dialect_is_read_as_it_is_written() {
        let kept = json!({
            "separator": "semicolon", "decimal": "comma", "comment": "%", "date_format": "dd.mm.yyyy",
            "tz": "Europe/Berlin", "sort": true, "duplicates": "mean"
        });
        let dialect: Dialect = serde_json::from_value(kept.clone()).unwrap();
        assert_eq!(serde_json::to_value(&dialect).unwrap(), kept);
        assert_eq!(serde_json::from_value::<Dialect>(json!({})).unwrap(), Dialect::default());
        for setting in Dialect::settings() {
            setting.check(setting.default()).unwrap();
        }
    }

    #[test]
    fn words_that_are_no_dialect_are_refused_with_those_that_are() {
        let settings = Dialect::settings();
        let read = |name: &str, text: &str| {
            settings.iter().find(|setting| setting.name() == name).unwrap().read(text)
        };
        for (name, text, expected) in [
            ("separator", ";", json!("semicolon")),
            ("separator", "\\t", json!("tab")),
            ("separator", "^", json!("^")),
            ("comment", "none", json!("none")),
            ("date-format", "MM/DD/YYYY", json!("mm/dd/yyyy")),
            ("date-format", "epoch-ms", json!("epoch-ms")),
            ("tz", "none", json!("none")),
            ("tz", "America/New_York", json!("America/New_York")),
            ("sort", "true", Value::Bool(true)),
        ] {
            assert_eq!(read(name, text), Ok(expected), "{name} {text}");
        }
        for (name, text, expected) in [
            ("separator", ";;", "comma, semicolon, tab, bar"),
            ("separator", "e", "neither a letter nor a digit"),
            ("separator", "\"", "neither"),
            ("comment", "//", "one sign"),
            ("date-format", "dd.mm", "yyyy, mm and dd"),
            ("date-format", "dd.mm.yy", "yyyy, mm and dd"),
            ("date-format", "mm/mm/yyyy", "yyyy, mm and dd"),
            ("tz", "Europe/Bärlin", "Europe/Berlin"),
            ("duplicates", "median", "`refuse`"),
        ] {
            let message = read(name, text).unwrap_err();
            assert!(message.contains(expected), "{name} {text}: {message}");
        }
    }
}
