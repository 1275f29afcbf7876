//! How the time of a step is spent, in the output of commands.

use refrain::{ProfileLine, StepProfile};
use serde::Serialize;

use crate::console::Console;
use crate::error::Result;

/// Launches of one operation, for `--json`.
#[derive(Serialize)]
pub struct Line {
    operation: &'static str,
    operands: String,
    launches: usize,
    us: f64,
    bytes: usize,
    flops: u64,
}

impl Line {
    fn of(line: &ProfileLine) -> Line {
        Line {
            operation: line.operation,
            operands: line.operands.clone(),
            launches: line.launches,
            us: line.time.as_secs_f64() * 1e6,
            bytes: line.bytes,
            flops: line.flops,
        }
    }
}

/// Prints a profile, of `what`, and returns its lines.
pub fn show(console: Console, profile: &StepProfile, what: &str) -> Result<Vec<Line>> {
    console.line(format!("\nThe launches of {what}, one after the other (medians over the runs):"))?;
    console.line(profile.to_string())?;
    Ok(profile.lines().iter().map(Line::of).collect())
}
