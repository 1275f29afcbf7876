//! Estimates the memory of a training run before any of it is allocated.

use super::TrainingConfig;
use crate::{Error, Result};
use refrain::{Device, DeviceKind, Precision};
use refrain_nn::ModelSize;
use refrain_nn::checkpoint::MOST_TENSORS;
use std::fmt;

/// The estimated resources of a training run, to print them and to compare them with the free memory before a model
/// is made.
///
/// Parameters and what belongs to each are counted exactly. Activations follow from formulas that fit measured
/// training steps within a quarter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    size: ModelSize,
    /// Bytes of activations and scratch in a step (with accumulation, in a pass over a micro-batch).
    activations: f64,
    /// Bytes on the device.
    device: f64,
    /// Bytes on the host, besides those of the device if that is the host.
    host: f64,
}

/// What differs between models.
pub(crate) struct Demand {
    pub(crate) size: ModelSize,
    pub(crate) layers: usize,
    /// Values that a step keeps for its backward pass and as scratch.
    pub(crate) activations: f64,
    /// f32 values of the data on the device.
    pub(crate) data: f64,
    /// Training samples.
    pub(crate) samples: f64,
    /// Bytes on the host for work besides the training.
    pub(crate) beside: f64,
}

/// Bytes on the device for each parameter: f32 value, gradient, two moments, and the copy of the best value.
const A_PARAMETER: f64 = 20.0;
/// Bytes on the host for each parameter while a checkpoint is written: value and moments as read, and again in the
/// file.
const SAVED: f64 = 24.0;
/// Bytes on the device for each training sample: its number, its place in the order of an epoch, and what shuffles it (random
/// numbers, their places, and both once more while they are sorted).
const A_SAMPLE: f64 = 52.0;
/// Tensors start at multiples of 256 bytes. On average half of that is lost, in each of four buffers.
const LOST_A_TENSOR: f64 = 512.0;
/// Bytes on the host for a layer of the recorded step: about sixty launches.
const RECORDED_A_LAYER: f64 = 40_000.0;
/// In mixed precision most activations are bf16.
const OF_BF16: f64 = 0.56;
/// How much too high an estimate may be.
const ERROR: f64 = 0.25;

impl Estimate {
    pub(crate) fn new(demand: Demand, precision: Precision) -> Estimate {
        let Demand { size, layers, activations, data, samples, beside } = demand;
        let (parameters, tensors) = ((size.parameters + size.buffers) as f64, size.tensors as f64);
        let width = if precision == Precision::Bf16 { 4.0 * OF_BF16 } else { 4.0 };
        let activations = activations * width;
        Estimate {
            size,
            activations,
            device: parameters * A_PARAMETER
                + tensors * LOST_A_TENSOR
                + activations
                + 4.0 * data
                + A_SAMPLE * samples,
            host: parameters * SAVED + layers as f64 * RECORDED_A_LAYER + 16.0 * data + beside,
        }
    }

    /// The bytes of tensors on the device.
    pub fn device_bytes(&self) -> f64 {
        self.device
    }

    /// The bytes of training on a device. On the CPU this includes those of the host.
    pub fn bytes(&self, device: &Device) -> f64 {
        match device.kind() {
            DeviceKind::Cuda => self.device,
            _ => self.device + self.host,
        }
    }

    /// Refuses what cannot fit, even if the estimate is too high. Otherwise returns a description with the free
    /// memory.
    ///
    /// # Errors
    /// [`Error::Model`], with the estimate.
    pub fn check(&self, device: &Device) -> Result<String> {
        let refuse = |problem: String, fix| Err(Error::Model { problem, fix });
        let host = Device::cpu();
        let of_host = (self.host, &host);
        let all = [(self.bytes(device), device)].into_iter();
        let mut said = self.to_string();
        for (bytes, on) in all.chain((device.kind() == DeviceKind::Cuda).then_some(of_host)) {
            let Some(free) = on.free_bytes() else { continue };
            let of = format!("{} on {}, where {} are free", size(bytes), on.name(), size(free as f64));
            if bytes * (1.0 - ERROR) > free as f64 {
                let fix =
                    "choose a smaller model, a smaller batch size, or more micro-batches by --accumulate";
                return refuse(format!("{said}: {of}"), fix);
            }
            said += &format!("; {of}");
            if bytes > free as f64 {
                said += " (it may not fit)";
            }
        }
        // In a checkpoint, each parameter is a tensor, and so are its two moments.
        if self.size.tensors.saturating_mul(3) > MOST_TENSORS {
            let problem =
                format!("{said}, in {} tensors, more than a checkpoint can hold", self.size.tensors);
            return refuse(problem, "choose fewer layers");
        }
        Ok(said)
    }
}

/// `1,234 parameters, about 61.2 MiB of activations per step`.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} parameters, about {} of activations per step",
            grouped(self.size.parameters),
            size(self.activations)
        )
    }
}

impl TrainingConfig {
    /// How many samples a pass processes at a time, of so many in all.
    pub(crate) fn at_once(&self, samples: usize) -> usize {
        self.micro_batch().min(samples)
    }
}

/// `61.2 MiB`.
fn size(bytes: f64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = ((bytes.max(1.0).log2() / 10.0) as usize).min(units.len() - 1);
    let value = bytes / 1024f64.powi(unit as i32);
    match unit {
        0 => format!("{value:.0} {}", units[unit]),
        _ if value < 1e6 => format!("{value:.1} {}", units[unit]),
        _ => format!("{value:.1e} {}", units[unit]),
    }
}

/// `1,234,567`.
fn grouped(number: u128) -> String {
    let digits = number.to_string();
    let comma = |index: usize| index > 0 && (digits.len() - index).is_multiple_of(3);
    let with_comma = |(index, digit)| [comma(index).then_some(','), Some(digit)];
    digits.chars().enumerate().flat_map(with_comma).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(activations: f64, tensors: u64) -> Estimate {
        let size = ModelSize { tensors, parameters: 1_234_567, buffers: 0 };
        let demand = Demand { size, layers: 1, activations, data: 0.0, samples: 0.0, beside: 0.0 };
        Estimate::new(demand, Precision::F32)
    }

    #[test]
    fn what_fits_is_said_and_what_cannot_is_refused_with_the_estimate() {
        let device = Device::cpu();
        let said = estimate(16e6, 10).check(&device).unwrap();
        assert!(said.contains("1,234,567 parameters, about 61.0 MiB of activations per step; "), "{said}");
        assert!(said.contains(" on cpu, where "), "{said}");
        for (large, expected) in [
            (estimate(1e15, 10), "about 3.6 PiB of activations"),
            (estimate(1e30, 10), "e15 PiB of activations"),
            (estimate(1.0, 1 << 20), "in 1048576 tensors"),
        ] {
            let message = large.check(&device).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("choose"), "{message}");
        }
    }
}
