//! `refrain bench step`.

use std::time::Instant;

use refrain::with_precision;
use refrain_forecast::bench::{StepBench, StepSizes};
use serde::Serialize;

use crate::cli::{BenchStep, StepConfig};
use crate::console::{Console, count};
use crate::error::Result;

/// What `--json` prints; times are microseconds a step.
#[derive(Serialize)]
struct Outcome {
    config: &'static str,
    precision: &'static str,
    device: String,
    threads: usize,
    steps: usize,
    repeats: usize,
    median_us: f64,
    min_us: f64,
    max_us: f64,
    last_loss: f32,
    parameters: usize,
}

pub fn run(args: BenchStep) -> Result<()> {
    let console = Console::new(args.json);
    let device = args.device.open()?;
    let precision = args.precision.name();
    let (config, sizes) = match args.config {
        StepConfig::Seed => ("seed", StepSizes::seed()),
        StepConfig::Small => ("small", StepSizes::small()),
        StepConfig::Large => ("large", StepSizes::large()),
    };
    let mut bench = StepBench::new(&sizes, &device, args.seed)?;
    let threads = rayon::current_num_threads();
    console.line(format!(
        "{config}: {} parameters, {} rows of {} patches, {precision}, {} with {threads} threads",
        count(bench.parameter_count()),
        count(sizes.rows),
        sizes.model.patches(),
        device.name(),
    ))?;
    let parameters = bench.parameter_count();
    let mut step = || with_precision(args.precision.setting(), || bench.step());
    let mut last_loss = f32::NAN;
    for _ in 0..args.warmup {
        last_loss = step()?.to_scalar()?;
    }
    let mut times = Vec::with_capacity(args.repeats);
    for _ in 0..args.repeats {
        let begun = Instant::now();
        let mut loss = step()?;
        for _ in 1..args.steps {
            loss = step()?;
        }
        last_loss = loss.to_scalar()?; // Waits for the work.
        times.push(begun.elapsed().as_secs_f64() * 1e6 / args.steps as f64);
    }
    times.sort_by(f64::total_cmp);
    let (min_us, max_us, median_us) = (times[0], times[times.len() - 1], median(&times));
    console.line(format!(
        "median {median_us:.0} us a step, minimum {min_us:.0}, maximum {max_us:.0} over {} repeats of {} steps; last loss {last_loss:.6}",
        args.repeats, args.steps
    ))?;
    console.result(&Outcome {
        config,
        precision,
        device: device.name(),
        threads,
        steps: args.steps,
        repeats: args.repeats,
        median_us,
        min_us,
        max_us,
        last_loss,
        parameters,
    })
}

/// Of one or more ascending values.
fn median(values: &[f64]) -> f64 {
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(super::median(&[3.0]), 3.0);
        assert_eq!(super::median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(super::median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }
}
