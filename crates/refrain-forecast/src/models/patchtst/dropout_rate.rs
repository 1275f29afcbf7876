//! A dropout probability that may be that of the model.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The probability of one kind of dropout.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum DropoutRate {
    /// That of the setting `dropout`.
    #[default]
    Same,
    /// Its own.
    Of(f64),
}

const SAME: &str = "same";

impl DropoutRate {
    /// Its own probability, or else this one.
    pub(super) fn or(self, dropout: f64) -> f64 {
        match self {
            DropoutRate::Same => dropout,
            DropoutRate::Of(rate) => rate,
        }
    }
}

/// `same`, or the number.
impl Serialize for DropoutRate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match *self {
            DropoutRate::Same => to.serialize_str(SAME),
            DropoutRate::Of(rate) => rate.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for DropoutRate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<DropoutRate, D::Error> {
        struct Rate;

        impl Visitor<'_> for Rate {
            type Value = DropoutRate;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a probability or `same`")
            }

            fn visit_f64<E: Error>(self, rate: f64) -> Result<DropoutRate, E> {
                Ok(DropoutRate::Of(rate))
            }

            fn visit_u64<E: Error>(self, rate: u64) -> Result<DropoutRate, E> {
                Ok(DropoutRate::Of(rate as f64))
            }

            fn visit_i64<E: Error>(self, rate: i64) -> Result<DropoutRate, E> {
                Ok(DropoutRate::Of(rate as f64))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<DropoutRate, E> {
                match text.parse::<f64>() {
                    _ if text == SAME => Ok(DropoutRate::Same),
                    Ok(rate) if rate.is_finite() => Ok(DropoutRate::Of(rate)),
                    _ => Err(E::custom(format!("{text:?} is neither a probability nor `same`"))),
                }
            }
        }

        from.deserialize_any(Rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_it_is_read() {
        for (text, rate) in [("\"same\"", DropoutRate::Same), ("0.25", DropoutRate::Of(0.25))] {
            assert_eq!(serde_json::from_str::<DropoutRate>(text).unwrap(), rate);
            assert_eq!(serde_json::to_string(&rate).unwrap(), text);
        }
        assert_eq!(serde_json::from_str::<DropoutRate>("\"0.5\"").unwrap(), DropoutRate::Of(0.5));
        for text in ["\"much\"", "true", "\"nan\""] {
            let message = serde_json::from_str::<DropoutRate>(text).unwrap_err().to_string();
            assert!(message.contains("`same`"), "{message}");
        }
    }
}
