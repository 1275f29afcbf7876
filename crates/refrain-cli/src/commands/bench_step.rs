//! `refrain bench step` in one process. Several processes share a step in `bench_step_ranks`.

use std::time::Instant;

use refrain::with_precision;
use serde::Serialize;

use super::bench_step_config::Chosen;
use super::bench_step_ranks;
use crate::bench::StepBench;
use crate::cli::BenchStep;
use crate::console::{Console, count};
use crate::error::{Error, Result, finite};
use crate::{job, profile};

/// What `--json` prints. Times are microseconds per step.
#[derive(Serialize)]
struct Outcome {
    config: String,
    precision: &'static str,
    device: String,
    threads: usize,
    steps: usize,
    repeats: usize,
    median_us: f64,
    min_us: f64,
    max_us: f64,
    last_loss: f32,
    recorded: bool,
    /// Milliseconds until the first step was done. It includes compiling kernels or reading them from the cache, and
    /// recording, planning and capturing the step.
    first_step_ms: f64,
    /// How much of this time recording took. Null with --eager.
    recording_ms: Option<f64>,
    launches_per_step: f64,
    allocations_per_step: f64,
    parameters: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Vec<profile::Line>>,
}

pub fn run(args: BenchStep) -> Result<()> {
    let (world, chosen) = (job::world(&args.ranks)?, Chosen::of(&args)?);
    if world.size > 1 {
        return bench_step_ranks::run(&args, world, &chosen);
    }
    if args.strong {
        return Err(Error::usage(
            "--strong is for several processes",
            "start them with torchrun, srun or mpirun, or leave --strong out",
        ));
    }
    let Chosen { name: config, workload, row, precision, .. } = chosen;
    let (precision, setting) = (precision.name(), precision.setting());
    let console = Console::new(args.json);
    let device = args.device.open()?;
    let bench = StepBench::new(&*workload, &device, args.seed)?;
    let threads = rayon::current_num_threads();
    console.line(format!(
        "{config}: {} parameters, {} {row}, {precision}, {} with {threads} threads",
        count(bench.parameter_count()),
        count(workload.rows()),
        device.name(),
    ))?;
    let parameters = bench.parameter_count();
    let mut recorded = (!args.eager).then(|| bench.recorded());
    let mut number = 0;
    // Runs one step. If `read`, it reads the loss, which waits for the work.
    let mut step = |read: bool| -> Result<f32> {
        let batch = bench.batch(number);
        number += 1;
        with_precision(setting, || {
            Ok(match &mut recorded {
                Some(recorded) => {
                    let outputs = recorded.call(batch)?;
                    if read { outputs.to_scalar(0)? } else { f32::NAN }
                }
                None => {
                    let loss = bench.step(batch)?;
                    if read { loss.to_scalar()? } else { f32::NAN }
                }
            })
        })
    };
    device.synchronize()?;
    let begun = Instant::now();
    let mut last_loss = step(true)?;
    let first_step_ms = begun.elapsed().as_secs_f64() * 1e3;
    for _ in 0..args.warmup {
        last_loss = step(true)?;
    }
    let before = device.stats();
    let mut times = Vec::with_capacity(args.repeats);
    for _ in 0..args.repeats {
        let begun = Instant::now();
        for i in 1..=args.steps {
            let loss = step(i == args.steps)?;
            last_loss = if i == args.steps { loss } else { last_loss };
        }
        times.push(begun.elapsed().as_secs_f64() * 1e6 / args.steps as f64);
    }
    finite("the loss of the last step", last_loss.into())?;
    let (after, done) = (device.stats(), (args.steps * args.repeats) as f64);
    let launches_per_step = (after.launches - before.launches) as f64 / done;
    let allocations_per_step = (after.allocations - before.allocations) as f64 / done;
    times.sort_by(f64::total_cmp);
    let (min_us, max_us, median_us) = (times[0], times[times.len() - 1], median(&times));
    console.line(format!(
        "median {median_us:.0} us per step, minimum {min_us:.0}, maximum {max_us:.0} over {} repeats of {} steps; {launches_per_step:.0} launches and {allocations_per_step:.0} storages per step; last loss {last_loss:.6}",
        args.repeats, args.steps
    ))?;
    let recording = recorded.as_ref().and_then(|step| step.recording_time());
    let recording_ms = recording.map(|time| time.as_secs_f64() * 1e3);
    let of_recording =
        recording_ms.map_or(String::new(), |ms| format!(", of which recording took {ms:.2} ms"));
    console.line(format!("the first step took {first_step_ms:.1} ms{of_recording}"))?;
    let profile = match &mut recorded {
        Some(recorded) if args.profile => {
            let runs = args.steps * args.repeats;
            let profile = with_precision(setting, || recorded.profile(bench.batch(0), runs))?;
            Some(profile::show(console, &profile, "a step")?)
        }
        _ => None,
    };
    if let Some(recorded) = recorded {
        recorded.finish()?;
    }
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
        recorded: !args.eager,
        first_step_ms,
        recording_ms,
        launches_per_step,
        allocations_per_step,
        parameters,
        profile,
    })
}

/// The median of one or more ascending values.
pub fn median(values: &[f64]) -> f64 {
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
