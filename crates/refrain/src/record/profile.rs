//! How the time of a step is spent.

use std::fmt;
use std::time::Duration;

use super::program::Program;
use super::view::{bytes, flops};
use crate::device::program::{Access, RecordedLaunch};

/// The times of the launches of a step ([`Step::profile`](crate::Step::profile)). Launches of the same operation with
/// operands of the same shapes are one line. The longest line comes first.
#[derive(Clone, Debug)]
pub struct StepProfile {
    lines: Vec<ProfileLine>,
}

/// Launches of one operation over operands of the same shapes and dtypes.
#[derive(Clone, Debug)]
pub struct ProfileLine {
    /// The operation.
    pub operation: &'static str,
    /// Shapes and dtypes of operands and results.
    pub operands: String,
    /// How many launches of the step are in this line.
    pub launches: usize,
    /// Their total time in a step: the sum of the medians of the launches.
    pub time: Duration,
    /// The bytes that they read and write.
    pub bytes: usize,
    /// The multiplications and additions of their matrix products.
    pub flops: u64,
}

impl StepProfile {
    /// From the time of each launch in each run.
    pub(super) fn new(program: &Program, times: &[Vec<Duration>]) -> StepProfile {
        let mut lines: Vec<ProfileLine> = Vec::new();
        for (at, launch) in program.launches().enumerate() {
            let mut of_launch: Vec<Duration> = times.iter().map(|run| run[at]).collect();
            of_launch.sort_unstable();
            let time = of_launch[of_launch.len() / 2];
            let operands = operands(launch);
            let same = |line: &&mut ProfileLine| line.operation == launch.op && line.operands == operands;
            match lines.iter_mut().find(same) {
                Some(line) => {
                    line.launches += 1;
                    line.time += time;
                    line.bytes += bytes(launch);
                    line.flops += flops(launch);
                }
                None => lines.push(ProfileLine {
                    operation: launch.op,
                    operands,
                    launches: 1,
                    time,
                    bytes: bytes(launch),
                    flops: flops(launch),
                }),
            }
        }
        lines.sort_by_key(|line| std::cmp::Reverse(line.time));
        StepProfile { lines }
    }

    /// The lines, longest first.
    pub fn lines(&self) -> &[ProfileLine] {
        &self.lines
    }

    /// The sum of the times of all launches.
    pub fn time(&self) -> Duration {
        self.lines.iter().map(|line| line.time).sum()
    }
}

/// `f32 [2, 3], f32 [3] -> f32 [2]`.
fn operands(launch: &RecordedLaunch) -> String {
    let text = |a: &Access| format!("{} {}", a.dtype, a.layout.shape());
    let reads: Vec<String> = launch.reads.iter().map(text).collect();
    let writes: Vec<String> = launch.writes.iter().map(|(a, _)| text(a)).collect();
    format!("{} -> {}", reads.join(", "), writes.join(", "))
}

impl fmt::Display for StepProfile {
    /// A table: time and share, launches, bytes and flops per second, operation, operands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.time().as_secs_f64().max(f64::MIN_POSITIVE);
        writeln!(
            f,
            "{:>9} {:>6} {:>8} {:>8} {:>9}  {:<36}  operands -> results",
            "us", "%", "launches", "GB/s", "GFLOP/s", "operation"
        )?;
        for line in &self.lines {
            let seconds = line.time.as_secs_f64();
            let rate = |count: f64| if seconds > 0.0 { count / seconds * 1e-9 } else { 0.0 };
            writeln!(
                f,
                "{:>9.1} {:>6.1} {:>8} {:>8.0} {:>9.0}  {:<36}  {}",
                seconds * 1e6,
                100.0 * seconds / all,
                line.launches,
                rate(line.bytes as f64),
                rate(line.flops as f64),
                line.operation,
                line.operands
            )?;
        }
        let launches: usize = self.lines.iter().map(|line| line.launches).sum();
        writeln!(f, "{:>9.1} {:>6.1} {launches:>8}", all * 1e6, 100.0)
    }
}
