//! What `bench patchtst` and `bench cross-asset` measure while they train.

use std::time::Duration;

use refrain::Device;
use refrain_forecast::training::Task;
use serde::Serialize;

use crate::bench::{Nothing, TrainingBench};
use crate::console::{Console, count, duration};
use crate::error::{Result, finite};
use crate::replays::ReplayFigures;

/// The figures of a training, for `--json`.
#[derive(Serialize)]
pub struct Measured {
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
}

/// Trains to the end, and prints a line for each epoch and the totals.
pub fn measure<T: Task<Validation = Nothing>>(
    console: Console,
    device: &Device,
    mut bench: TrainingBench<T>,
    epochs: usize,
) -> Result<Measured> {
    let mut losses = Vec::with_capacity(epochs);
    let (mut time, mut steps) = (Duration::ZERO, 0);
    let (mut steady, mut steady_steps) = (device.stats(), 0);
    for epoch in 1..=epochs {
        let report = bench.epoch()?;
        finite(format!("the loss of epoch {epoch}"), report.loss)?;
        time += report.time;
        steps += report.steps;
        steady_steps += report.steps;
        losses.push(report.loss);
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
    Ok(measured)
}
