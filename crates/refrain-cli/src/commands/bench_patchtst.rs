//! `refrain bench patchtst`.

use std::time::Duration;

use serde::Serialize;

use crate::bench::{WalkBench, WalkOptions};
use crate::cli::BenchPatchtst;
use crate::console::{Console, count, duration};
use crate::error::{Error, Result, finite};
use crate::replays::ReplayFigures;

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome {
    losses: Vec<f64>,
    /// The bits of each loss as an IEEE 754 binary64.
    loss_bits: Vec<String>,
    loss_fell: bool,
    seconds: f64,
    seconds_per_epoch: f64,
    us_per_step: f64,
    steps: u64,
    /// How often a step asked the system for memory, over all epochs except the first (over the first, if it is the
    /// only one).
    device_allocations_per_step: f64,
    peak_device_bytes: usize,
    launches_per_step: f64,
    replays: u64,
    /// Storages that a step made on the device. Null with --eager, or if every step came directly after a recording.
    allocations_per_step: Option<f64>,
    /// How long recording the step took. Null with --eager.
    recording_seconds: Option<f64>,
    device: String,
    threads: usize,
    parameters: usize,
}

pub fn run(args: BenchPatchtst) -> Result<()> {
    let console = Console::new(args.json);
    let device = args.device.open()?;
    if !(args.lr > 0.0 && args.lr.is_finite()) {
        return Err(Error::usage(
            format!("the learning rate is {}", args.lr),
            "choose a positive number such as 1e-3",
        ));
    }
    device.reset_peak();
    let options = WalkOptions {
        samples: args.samples,
        channels: args.channels,
        epochs: args.epochs,
        batch_size: args.batch_size,
        lr: args.lr,
        seed: args.seed,
    };
    let bench = WalkBench::new(options, &device)?;
    let mut bench = if args.eager { bench.eager() } else { bench };
    console.line(format!(
        "{} samples of {} channels, {} parameters, {} with {} threads",
        count(args.samples),
        args.channels,
        count(bench.parameter_count()),
        device.name(),
        rayon::current_num_threads(),
    ))?;
    let mut losses = Vec::with_capacity(args.epochs);
    let (mut time, mut steps) = (Duration::ZERO, 0);
    let mut steady = device.stats();
    let mut steady_steps = 0;
    for epoch in 1..=args.epochs {
        let report = bench.epoch()?;
        finite(format!("the loss of epoch {epoch}"), report.loss)?;
        time += report.time;
        steps += report.steps;
        steady_steps += report.steps;
        losses.push(report.loss);
        console.line(format!(
            "epoch {epoch:>3}/{}  loss {:.6} (0x{:016x})  {}",
            args.epochs,
            report.loss,
            report.loss.to_bits(),
            duration(report.time)
        ))?;
        if epoch == 1 && args.epochs > 1 {
            steady = device.stats();
            steady_steps = 0;
        }
    }
    let stats = device.stats();
    let a_step = |now: u64, then: u64| (now - then) as f64 / steady_steps as f64;
    let allocations = a_step(stats.system_allocations, steady.system_allocations);
    let launches_per_step = a_step(stats.launches, steady.launches);
    let replayed =
        ReplayFigures { launches_per_step: Some(launches_per_step), ..ReplayFigures::of(bench.replays()) };
    let loss_fell = losses[losses.len() - 1] < losses[0];
    let seconds = time.as_secs_f64();
    let us_per_step = seconds * 1e6 / steps as f64;
    console.line(format!(
        "total {}, {} per epoch, {us_per_step:.0} us per step; the loss {} from {:.6} to {:.6}",
        duration(time),
        duration(time.div_f64(args.epochs as f64)),
        if loss_fell { "fell" } else { "did not fall" },
        losses[0],
        losses[losses.len() - 1],
    ))?;
    replayed.show(console)?;
    console.line(format!(
        "{allocations} allocations from the system per step, at most {} bytes in use",
        count(stats.peak_bytes)
    ))?;
    console.result(&Outcome {
        loss_bits: losses.iter().map(|loss| format!("0x{:016x}", loss.to_bits())).collect(),
        loss_fell,
        seconds,
        seconds_per_epoch: seconds / args.epochs as f64,
        us_per_step,
        steps,
        device_allocations_per_step: allocations,
        peak_device_bytes: stats.peak_bytes,
        launches_per_step,
        replays: replayed.replays,
        allocations_per_step: replayed.allocations_per_step,
        recording_seconds: replayed.recording_seconds,
        device: device.name(),
        threads: rayon::current_num_threads(),
        parameters: bench.parameter_count(),
        losses,
    })
}

#[cfg(test)]
mod tests {
    use refrain::Device;

    use crate::bench::walks::{INCREMENT, LENGTH, random_walks};

    #[test]
    fn walks_start_in_the_unit_interval_and_labels_are_their_means() {
        let (walks, labels) = random_walks(200, 5, 3, &Device::cpu()).unwrap();
        assert_eq!((walks.dims(), labels.dims()), (&[200, 5, LENGTH][..], &[200][..]));
        let (walks, labels) = (walks.to_vec::<f32>().unwrap(), labels.to_vec::<f32>().unwrap());
        let mut squares = 0.0;
        for (sample, label) in walks.chunks_exact(5 * LENGTH).zip(labels) {
            let mean = sample.iter().sum::<f32>() / sample.len() as f32;
            assert!((mean - label).abs() < 1e-5);
            for walk in sample.chunks_exact(LENGTH) {
                assert!((0.0..1.0).contains(&walk[0]));
                squares += walk.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum::<f32>();
            }
        }
        let variance = squares / (200 * 5 * (LENGTH - 1)) as f32;
        assert!((variance.sqrt() - INCREMENT).abs() < 2e-3, "increments of deviation {}", variance.sqrt());
    }
}
