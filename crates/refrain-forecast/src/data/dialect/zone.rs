//! The time zone of times that do not name one.

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

/// A time zone by its name in the IANA database, such as `Europe/Berlin`, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Zone(Option<(String, TimeZone)>);

const NONE: &str = "none";

impl Zone {
    /// The name and the rules, if there is a zone.
    pub(crate) fn get(&self) -> Option<(&str, &TimeZone)> {
        self.0.as_ref().map(|(name, zone)| (name.as_str(), zone))
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> String {
        zone.0.map_or_else(|| NONE.to_owned(), |(name, _)| name)
    }
}

impl TryFrom<String> for Zone {
    type Error = String;

    fn try_from(name: String) -> Result<Zone, String> {
        if name == NONE {
            return Ok(Zone(None));
        }
        match TimeZone::get(&name) {
            Ok(zone) => Ok(Zone(Some((name, zone)))),
            Err(_) => Err(format!(
                "there is no time zone {name:?}; write a name such as Europe/Berlin or UTC, or none"
            )),
        }
    }
}
