//! The longest gap that is filled.

use super::TimeStep;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The longest gap that is filled. Windows that would cross a longer one are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MaxGap {
    /// One season.
    #[default]
    Season,
    /// This many rows. 0 fills nothing.
    Rows(usize),
}

impl MaxGap {
    /// The limit in rows, given the season of the seasonal naive forecast. A season of 1 means that no whole season
    /// fits in the context. Then the limit is about a season of the calendar, and at most the context.
    pub fn rows(self, season: usize, step: TimeStep, context: usize) -> usize {
        match self {
            MaxGap::Rows(rows) => rows,
            MaxGap::Season if season > 1 => season,
            MaxGap::Season => step.cycle().min(context),
        }
    }
}

impl FromStr for MaxGap {
    type Err = String;

    fn from_str(text: &str) -> Result<MaxGap, String> {
        match text {
            "season" => Ok(MaxGap::Season),
            _ => text.parse().map(MaxGap::Rows).map_err(|_| wrong(&format!("{text:?}"))),
        }
    }
}

fn wrong(what: &str) -> String {
    format!("{what} is neither a number of rows nor `season`")
}

/// `season`, or the number.
impl Serialize for MaxGap {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match *self {
            MaxGap::Season => to.serialize_str("season"),
            MaxGap::Rows(rows) => rows.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for MaxGap {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<MaxGap, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = MaxGap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of rows or `season`")
            }

            fn visit_u64<E: de::Error>(self, rows: u64) -> Result<MaxGap, E> {
                usize::try_from(rows).map(MaxGap::Rows).map_err(|_| E::custom(wrong(&rows.to_string())))
            }

            fn visit_i64<E: de::Error>(self, rows: i64) -> Result<MaxGap, E> {
                usize::try_from(rows).map(MaxGap::Rows).map_err(|_| E::custom(wrong(&rows.to_string())))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<MaxGap, E> {
                text.parse().map_err(E::custom)
            }
        }

        from.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_one_season_and_never_more_than_the_context_where_there_is_none() {
        let hours = TimeStep::seconds(3600);
        assert_eq!(MaxGap::Season.rows(24, hours, 336), 24);
        assert_eq!(MaxGap::Season.rows(1, hours, 12), 12);
        assert_eq!(MaxGap::Season.rows(1, TimeStep::seconds(7 * 60), 336), 205, "about a day");
        assert_eq!(MaxGap::Season.rows(1, TimeStep::Nanoseconds(1), 336), 336);
        assert_eq!(MaxGap::Season.rows(1, TimeStep::BUSINESS_DAYS, 336), 5);
        assert_eq!(MaxGap::Season.rows(1, TimeStep::Months(12), 336), 1);
        assert_eq!(MaxGap::Rows(0).rows(24, hours, 336), 0);
    }

    #[test]
    fn it_is_written_as_it_is_read() {
        for (text, gap) in [("\"season\"", MaxGap::Season), ("7", MaxGap::Rows(7))] {
            assert_eq!(serde_json::from_str::<MaxGap>(text).unwrap(), gap);
            assert_eq!(serde_json::to_string(&gap).unwrap(), text);
        }
        for text in ["-1", "1.5", "\"week\"", "true"] {
            let message = serde_json::from_str::<MaxGap>(text).unwrap_err().to_string();
            assert!(message.contains("`season`"), "{message}");
        }
        assert_eq!(["season", "12"].map(|text| text.parse()), [Ok(MaxGap::Season), Ok(MaxGap::Rows(12))]);
        assert!("-1".parse::<MaxGap>().unwrap_err().contains("neither a number of rows nor `season`"));
    }
}
