//! `refrain bench cross-asset`.

use std::time::Duration;

use refrain::with_precision;
use refrain_forecast::models::cross_asset::CrossAssetConfig;
use serde::Serialize;

use crate::bench::{CrossBench, CrossBenchOptions};
use crate::cli::BenchCrossAsset;
use crate::console::{Console, count, duration};
use crate::error::{Result, finite};
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
    /// How often a step of the last epoch asked the system for memory.
    device_allocations_per_step: f64,
    peak_device_bytes: usize,
    launches_per_step: f64,
    /// With accumulation, each micro-batch is one, and so is the update.
    replays: u64,
    /// Storages that a step made on the device. Null with --eager, or if every step came directly after a recording.
    allocations_per_step: Option<f64>,
    /// How long recording the step took. Null with --eager.
    recording_seconds: Option<f64>,
    precision: &'static str,
    accumulate: usize,
    device: String,
    threads: usize,
    parameters: usize,
}

pub fn run(args: BenchCrossAsset) -> Result<()> {
    with_precision(args.precision.setting(), || measure(&args))
}

fn measure(args: &BenchCrossAsset) -> Result<()> {
    let console = Console::new(args.json);
    let device = args.device.open()?;
    device.reset_peak();
    let model = CrossAssetConfig::default();
    let (sources, features) = (model.sources, model.features);
    let options = CrossBenchOptions {
        model,
        samples: args.samples,
        epochs: args.epochs,
        batch_size: args.batch_size,
        accumulate: args.accumulate,
        lr: args.lr,
        seed: args.seed,
    };
    let bench = CrossBench::new(options, &device)?;
    let mut bench = if args.eager { bench.eager() } else { bench };
    console.line(format!(
        "{} samples of {sources} sources of {features} features, {} parameters, {}, {} with {} threads",
        count(args.samples),
        count(bench.parameter_count()),
        args.precision.name(),
        device.name(),
        rayon::current_num_threads(),
    ))?;
    let mut losses = Vec::with_capacity(args.epochs);
    let (mut time, mut steps) = (Duration::ZERO, 0);
    let (mut steady, mut steady_steps) = (device.stats(), 0);
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
        if epoch + 1 == args.epochs {
            (steady, steady_steps) = (device.stats(), 0);
        }
    }
    let stats = device.stats();
    let a_step = |now: u64, then: u64| (now - then) as f64 / steady_steps as f64;
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    let seconds = time.as_secs_f64();
    let launches_per_step = a_step(stats.launches, steady.launches);
    let replayed =
        ReplayFigures { launches_per_step: Some(launches_per_step), ..ReplayFigures::of(bench.replays()) };
    let outcome = Outcome {
        loss_bits: losses.iter().map(|loss| format!("0x{:016x}", loss.to_bits())).collect(),
        loss_fell: last < first,
        losses,
        seconds,
        seconds_per_epoch: seconds / args.epochs as f64,
        us_per_step: seconds * 1e6 / steps as f64,
        steps,
        device_allocations_per_step: a_step(stats.system_allocations, steady.system_allocations),
        peak_device_bytes: stats.peak_bytes,
        launches_per_step,
        replays: replayed.replays,
        allocations_per_step: replayed.allocations_per_step,
        recording_seconds: replayed.recording_seconds,
        precision: args.precision.name(),
        accumulate: args.accumulate,
        device: device.name(),
        threads: rayon::current_num_threads(),
        parameters: bench.parameter_count(),
    };
    console.line(format!(
        "total {}, {} per epoch, {:.0} us per step; the loss {} from {first:.6} to {last:.6}",
        duration(time),
        duration(time.div_f64(args.epochs as f64)),
        outcome.us_per_step,
        if outcome.loss_fell { "fell" } else { "did not fall" },
    ))?;
    console.line(format!(
        "{:.0} launches and {} allocations from the system per step, at most {} bytes in use",
        outcome.launches_per_step,
        outcome.device_allocations_per_step,
        count(outcome.peak_device_bytes),
    ))?;
    replayed.show(console)?;
    console.result(&outcome)
}

#[cfg(test)]
mod tests {
    use refrain::Device;
    use refrain_forecast::models::cross_asset::CrossAssetConfig;

    use crate::bench::{CrossBench, CrossBenchOptions};

    #[test]
    fn the_loss_falls_below_that_of_a_guess() {
        let model = CrossAssetConfig { sources: 3, features: 4, d_model: 16, ffn: 32, ..Default::default() };
        let options = CrossBenchOptions {
            model,
            samples: 512,
            epochs: 5,
            batch_size: 32,
            accumulate: 1,
            lr: 3e-3,
            seed: 1,
        };
        let losses = |options: &CrossBenchOptions| {
            let mut bench = CrossBench::new(options.clone(), &Device::cpu()).unwrap();
            [(); 5].map(|()| bench.epoch().unwrap().loss)
        };
        let whole = losses(&options);
        assert!(whole[0] > 1.0 && whole[4] < 0.7, "{whole:?}");
        let parts = losses(&CrossBenchOptions { accumulate: 4, ..options });
        assert!(whole.iter().zip(parts).all(|(a, b)| (a - b).abs() < 1e-3), "{whole:?} and {parts:?}");
    }
}
