//! How much of a series was filled, for each part.

use super::Grid;
use serde::Serialize;
use std::ops::Range;

/// How much of a channel was filled in a part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Filled {
    /// `training`, `validation` or `test`.
    pub part: &'static str,
    /// The channel. In a panel, a feature of a source.
    pub channel: String,
    /// Number of values that were not observed.
    pub filled: usize,
    /// Number of rows of the part.
    pub rows: usize,
    /// `filled / rows`.
    pub share: f64,
}

impl Filled {
    /// From this share on, users are warned.
    pub const MUCH: f64 = 0.05;

    /// Whether the share is so large that users are warned.
    pub fn is_much(&self) -> bool {
        self.share > Filled::MUCH
    }
}

/// How much of each channel was filled in each part. Parts without any are left out.
pub(crate) fn filled(grid: &Grid, names: &[String], parts: [(&'static str, Range<usize>); 3]) -> Vec<Filled> {
    let mut all = Vec::new();
    if grid.is_complete() {
        return all;
    }
    for (part, rows) in parts {
        for (channel, name) in names.iter().enumerate() {
            let filled = rows.len() - grid.observed(rows.clone(), channel);
            if filled > 0 {
                let (channel, rows) = (name.clone(), rows.len());
                all.push(Filled { part, channel, filled, rows, share: filled as f64 / rows as f64 });
            }
        }
    }
    all
}
