//! The labels of a panel: whether a source goes up, goes down, or stays flat.

use serde::{Deserialize, Serialize};

/// The class of a label. Its number is the index of the model's logit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// It rises by more than the threshold.
    Up = 0,
    /// It falls by more than the threshold.
    Down = 1,
    /// Neither.
    Flat = 2,
}

impl Class {
    /// All classes, in the order of their numbers.
    pub const ALL: [Class; 3] = [Class::Up, Class::Down, Class::Flat];

    /// Its number: 0, 1 or 2.
    pub fn index(self) -> usize {
        self as usize
    }

    /// `up`, `down` or `flat`.
    pub fn name(self) -> &'static str {
        match self {
            Class::Up => "up",
            Class::Down => "down",
            Class::Flat => "flat",
        }
    }

    /// Parses a cell: a name in any case, or the sign of the change.
    pub(super) fn parse(cell: &str) -> Option<Class> {
        let named = Class::ALL.into_iter().find(|class| cell.eq_ignore_ascii_case(class.name()));
        named.or(match cell.parse::<f64>() {
            Ok(1.0) => Some(Class::Up),
            Ok(-1.0) => Some(Class::Down),
            Ok(0.0) => Some(Class::Flat),
            _ => None,
        })
    }
}

/// How labels are made from prices or other values: from the change between a row and the row `horizon` rows later.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LabelRule {
    /// How many rows a label looks ahead.
    pub horizon: usize,
    /// The largest change, in either direction, that is flat.
    pub threshold: f64,
    /// How the change is measured.
    pub change: Change,
}

/// How a change is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The difference: `later - now`.
    Difference,
    /// The share of the value now, which must be positive: `later / now - 1`.
    Relative,
}

impl LabelRule {
    /// The label for a value now and its value later.
    pub(super) fn class(&self, now: f64, later: f64) -> Class {
        let change = match self.change {
            Change::Difference => later - now,
            Change::Relative => later / now - 1.0,
        };
        if change > self.threshold {
            Class::Up
        } else if change < -self.threshold {
            Class::Down
        } else {
            Class::Flat
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_name_a_class_or_a_sign() {
        for (cell, class) in [("up", Class::Up), ("DOWN", Class::Down), ("Flat", Class::Flat)] {
            assert_eq!(Class::parse(cell), Some(class));
        }
        for (cell, class) in [("1", Class::Up), ("+1", Class::Up), ("-1.0", Class::Down), ("0", Class::Flat)]
        {
            assert_eq!(Class::parse(cell), Some(class));
        }
        for cell in ["", "2", "sideways", "nan", "0.5"] {
            assert_eq!(Class::parse(cell), None, "{cell}");
        }
        assert_eq!(Class::ALL.map(Class::index), [0, 1, 2]);
    }

    #[test]
    fn changes_up_to_the_threshold_are_flat() {
        let rule = LabelRule { horizon: 1, threshold: 2.0, change: Change::Difference };
        let classes = [52.5, 52.0, 48.0, 47.5].map(|later| rule.class(50.0, later));
        assert_eq!(classes, [Class::Up, Class::Flat, Class::Flat, Class::Down]);
        let rule = LabelRule { horizon: 1, threshold: 0.1, change: Change::Relative };
        let classes = [5.6, 5.4, 4.6, 4.4].map(|later| rule.class(5.0, later));
        assert_eq!(classes, [Class::Up, Class::Flat, Class::Flat, Class::Down]);
    }
}
