//! Reports what was filled.

use std::collections::HashSet;

use refrain_forecast::data::series::{Filled, LeftOut, Split};
use serde::Serialize;

use crate::console::{Console, count, table};
use crate::error::Result;

/// The maximum number of rows in a table or names in a warning. The rest is only counted.
const FEW: usize = 24;

/// Reports how much of each channel was filled in each part, and warns if it is much. For several folds, it reports
/// the maximum over the folds.
pub fn report(console: Console, filled: &[Filled]) -> Result<()> {
    if filled.is_empty() {
        return Ok(());
    }
    let mut seen = HashSet::new();
    let channels = filled.iter().map(|of| of.channel.as_str());
    let channels: Vec<&str> = channels.filter(|channel| seen.insert(*channel)).collect();
    let share = |channel: &str, part: &str| {
        let of_part = filled.iter().filter(|of| of.channel == channel && of.part == part);
        percent(of_part.map(|of| of.share).fold(0.0, f64::max))
    };
    const PARTS: [&str; 3] = ["training", "validation", "test"];
    let row = |channel: &&str| {
        std::iter::once((*channel).to_owned()).chain(PARTS.map(|part| share(channel, part))).collect()
    };
    let rows: Vec<Vec<String>> = channels.iter().take(FEW).map(row).collect();
    let header = [&["share filled"][..], &PARTS].concat();
    console.line(format!("\n{}", table(&header, &rows)))?;
    if channels.len() > FEW {
        console.line(format!("... and {} more; --json has all", count(channels.len() - FEW)))?;
    }
    let mut much: Vec<&Filled> = filled.iter().filter(|of| of.is_much()).collect();
    much.sort_by(|a, b| b.share.total_cmp(&a.share));
    // For each channel, the part with the most filled values.
    let mut seen = HashSet::new();
    much.retain(|of| seen.insert(of.channel.as_str()));
    let name = |of: &&Filled| format!("`{}` ({} of the {} part)", of.channel, percent(of.share), of.part);
    let mut named: Vec<String> = much.iter().map(name).collect();
    if named.is_empty() {
        return Ok(());
    }
    let more = named.len().saturating_sub(FEW);
    named.truncate(FEW);
    let more = if more > 0 { format!(" and {} more", count(more)) } else { String::new() };
    console.warn(format!(
        "more than {} filled: {}{more}; errors are computed over observed values only",
        percent(Filled::MUCH),
        named.join(", "),
    ))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// How many windows of each part were left out, for `--json`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Windows {
    pub training: LeftOut,
    pub validation: LeftOut,
    pub test: LeftOut,
}

impl Windows {
    pub fn of(split: &Split) -> Windows {
        let Split { train, validation, test, .. } = split;
        Windows { training: train.left_out, validation: validation.left_out, test: test.left_out }
    }

    /// Reports how many windows were left out, if any.
    pub fn report(&self, console: Console, max_gap: usize) -> Result<()> {
        let parts = [("training", self.training), ("validation", self.validation), ("test", self.test)];
        if parts.iter().all(|(_, part)| part.total() == 0) {
            return Ok(());
        }
        let part = |(name, part): (&str, LeftOut)| {
            format!(
                "{} {name} windows across gaps, {} without an observed value to forecast",
                count(part.across_gaps),
                count(part.unobserved)
            )
        };
        console.line(format!(
            "left out    {}; gaps of more than {} rows are not filled (--max-gap)",
            parts.map(part).join("; "),
            count(max_gap)
        ))
    }
}
