//! What `bench patchtst` and `bench cross-asset` measure while they train.

use std::time::Duration;

use refrain::{Communicator, Device, with_precision};
use refrain_forecast::training::Task;
use serde::Serialize;

use super::bench_step::median;
use crate::bench::{Nothing, TrainingBench};
use crate::cli::{DeviceArg, RankArgs};
use crate::console::{Console, count, duration};
use crate::error::{Error, Result, finite};
use crate::job::{self, Job};
use crate::precision::Precision;
use crate::replays::ReplayFigures;

/// What is trained on. In a job, of one rank alone.
#[derive(Clone, Copy, Serialize)]
pub struct Sizes {
    pub samples: usize,
    pub batch_size: usize,
    pub epochs: usize,
}

/// Where and how it is trained.
pub struct Place<'a> {
    pub ranks: &'a RankArgs,
    pub device: DeviceArg,
    pub precision: Precision,
    pub json: bool,
    /// All ranks share the samples and each batch, instead of having samples and batches of their own.
    pub strong: bool,
}

/// The figures of a training and its precision, for `--json`.
#[derive(Serialize)]
pub struct Outcome {
    #[serde(flatten)]
    measured: Measured,
    precision: &'static str,
}

#[derive(Serialize)]
struct Measured {
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
    /// Launches are those of the last epoch, too.
    #[serde(flatten)]
    replayed: ReplayFigures,
    device: String,
    threads: usize,
    parameters: usize,
    /// Only in a job.
    #[serde(flatten)]
    scaling: Option<Scaling>,
}

/// The figures of a job. Times are microseconds per step: medians of the epochs after the first, those of the slowest rank.
#[derive(Serialize)]
struct Scaling {
    ranks: usize,
    scaling: &'static str,
    alone_us: f64,
    together_us: f64,
    /// The speed of all ranks divided by their number and the speed of one rank.
    efficiency: f64,
}

/// Trains in this process, or, in a job, first in each process alone and then in all of them together. `make` makes the
/// training and the line that describes it.
pub fn run<T: Task<Validation = Nothing>>(
    place: &Place<'_>,
    sizes: Sizes,
    settings: serde_json::Value,
    make: impl Fn(Sizes, &Device) -> Result<(TrainingBench<T>, String)>,
) -> Result<(Console, Outcome)> {
    let Place { ranks, device, precision, json, strong } = *place;
    let job = Job::join(job::world(ranks)?, ranks, device, "bench", job::RESTART)?;
    let trained = |job: &Job| match job.communicator() {
        None if strong => Err(Error::usage(
            "--strong is for several processes",
            "start them with torchrun, srun or mpirun, or leave --strong out",
        )),
        None => {
            let console = job.console_of_result(json);
            job.device().reset_peak();
            let (bench, line) = make(sizes, job.device())?;
            console.line(line)?;
            Ok((console, measure(console, job.device(), bench, sizes.epochs)?.0))
        }
        Some(communicator) => {
            job.agree(&settings)?;
            let console = job.console_of_result(json);
            Ok((console, in_job(console, job, communicator, sizes, strong, &make)?))
        }
    };
    let (console, measured) = job.run(|job| with_precision(precision.setting(), || trained(job)))?;
    Ok((console, Outcome { measured, precision: precision.name() }))
}

fn in_job<T: Task<Validation = Nothing>>(
    console: Console,
    job: &Job,
    communicator: Communicator,
    sizes: Sizes,
    strong: bool,
    make: impl Fn(Sizes, &Device) -> Result<(TrainingBench<T>, String)>,
) -> Result<Measured> {
    let (device, ranks) = (job.device(), job.size());
    job.describe(console)?;
    let (alone, _) = make(sizes, device)?;
    // The ranks share the machine alone, too.
    job.gather("ready", &ranks)?;
    let (_, alone_us) = measure(Console::silent(), device, alone, sizes.epochs)?;
    device.reset_peak();
    let factor = if strong { 1 } else { ranks };
    let Sizes { samples, batch_size, epochs } = sizes;
    let all = Sizes {
        samples: samples.saturating_mul(factor),
        batch_size: batch_size.saturating_mul(factor),
        epochs,
    };
    let (together, line) = make(all, device)?;
    console.line(line)?;
    let together = together.with_communicator(communicator)?;
    let (mut figures, together_us) = measure(console, device, together, epochs)?;
    let slowest = |us: Vec<f64>| us.into_iter().fold(0.0, f64::max);
    let alone_us = slowest(job.gather("alone", &alone_us)?);
    let together_us = slowest(job.gather("together", &together_us)?);
    let efficiency = alone_us / together_us / if strong { ranks as f64 } else { 1.0 };
    let scaling = if strong { "strong" } else { "weak" };
    console.line(format!(
        "{scaling} scaling: {alone_us:.0} us per step alone, {together_us:.0} on {ranks} ranks, efficiency {efficiency:.3} (medians of the epochs after the first, of the slowest rank)"
    ))?;
    figures.scaling = Some(Scaling { ranks, scaling, alone_us, together_us, efficiency });
    Ok(figures)
}

/// Trains to the end, and prints a line for each epoch and the totals. Also returns the median of the microseconds per step of
/// the epochs after the first one (of that one, if there is no other).
fn measure<T: Task<Validation = Nothing>>(
    console: Console,
    device: &Device,
    mut bench: TrainingBench<T>,
    epochs: usize,
) -> Result<(Measured, f64)> {
    let (mut losses, mut us) = (Vec::with_capacity(epochs), Vec::with_capacity(epochs));
    let (mut time, mut steps) = (Duration::ZERO, 0);
    let (mut steady, mut steady_steps) = (device.stats(), 0);
    for epoch in 1..=epochs {
        let report = bench.epoch()?;
        finite(format!("the loss of epoch {epoch}"), report.loss)?;
        time += report.time;
        steps += report.steps;
        steady_steps += report.steps;
        losses.push(report.loss);
        us.push(report.time.as_secs_f64() * 1e6 / report.steps as f64);
        console.line(format!(
            "epoch {epoch:>3}/{epochs}  loss {:.6} (0x{:016x})  {}",
            report.loss,
            report.loss.to_bits(),
            duration(report.time)
        ))?;
        if epoch + 1 == epochs {
            (steady, steady_steps) = (device.stats(), 0);
        }
    }
    let stats = device.stats();
    let a_step = |now: u64, then: u64| (now - then) as f64 / steady_steps as f64;
    let launches_per_step = a_step(stats.launches, steady.launches);
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    let seconds = time.as_secs_f64();
    let measured = Measured {
        loss_bits: losses.iter().map(|loss| format!("0x{:016x}", loss.to_bits())).collect(),
        loss_fell: last < first,
        losses,
        seconds,
        seconds_per_epoch: seconds / epochs as f64,
        us_per_step: seconds * 1e6 / steps as f64,
        steps,
        device_allocations_per_step: a_step(stats.system_allocations, steady.system_allocations),
        peak_device_bytes: stats.peak_bytes,
        replayed: ReplayFigures {
            launches_per_step: Some(launches_per_step),
            ..ReplayFigures::of(bench.replays())
        },
        device: device.name(),
        threads: rayon::current_num_threads(),
        parameters: bench.parameter_count(),
        scaling: None,
    };
    console.line(format!(
        "total {}, {} per epoch, {:.0} us per step; the loss {} from {first:.6} to {last:.6}",
        duration(time),
        duration(time.div_f64(epochs as f64)),
        measured.us_per_step,
        if measured.loss_fell { "fell" } else { "did not fall" },
    ))?;
    console.line(format!(
        "{launches_per_step:.0} launches and {} allocations from the system per step, at most {} bytes in use",
        measured.device_allocations_per_step,
        count(measured.peak_device_bytes),
    ))?;
    measured.replayed.show(console)?;
    let after_first = usize::from(epochs > 1);
    us[after_first..].sort_by(f64::total_cmp);
    Ok((measured, median(&us[after_first..])))
}
