//! **Seen:** a training run on another device, or in another precision, ended with another loss, and nobody could say
//! whether the cause was rounding or a fault.
//!
//! **Found here:** a loss, in any of ten epochs, that differs from that of eager training on the CPU (by a bit on the
//! CPU and the simulated GPUs; by more than the tolerances below on a GPU, whose kernels add in another order);
//! training in bf16 that ends with a much higher loss than in f32.

use std::ops::ControlFlow;
use std::time::Duration;

use refrain::{Device, DeviceKind, Precision, with_precision};
use refrain_forecast::data::series::{Grid, Part, Split};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::patchtst::PatchTstConfig;
use refrain_forecast::training::{BatchNormStatistics, LrSchedule, Trainer, TrainingConfig};

use crate::bench::{WalkBench, WalkOptions};
use crate::common::devices;

const EPOCHS: usize = 10;
/// For the simulator, which runs the CPU's kernels (if it differs, it does so early), and for `REFRAIN_GUARD`, which
/// checks all memory after each launch.
const FEW: usize = 2;

/// The tolerance of a GPU's first loss, relative to the CPU's.
const FIRST: f64 = 1e-4;
/// The tolerance of later losses. AdamW divides a gradient by its own size, so training amplifies rounding. On the
/// CPU, a learning rate that is larger by a factor of 1 + 1e-6 changes the losses of a thousand walks by 2e-5
/// (relative) in the first epoch and by up to 1e-2 in the ten, as they fall to a ten-thousandth.
const LATER: f64 = 2e-2;
/// The tolerance of the last loss in bf16, compared with f32. It is relative to that loss if the series has noise
/// that no model can learn, and relative to the first loss if the loss falls towards 0, where the last digits are
/// noise.
const BF16: f64 = 0.05;

/// The losses of some epochs of a training run, eager or recorded.
type Curve<'a> = &'a dyn Fn(&Device, usize, bool) -> Vec<f64>;

/// Random walks of 5 channels; the target is their mean.
fn walks(samples: usize) -> impl Fn(&Device, usize, bool) -> Vec<f64> {
    move |device, epochs, eager| {
        let batch_size = if samples < 64 { 4 } else { 64 };
        let options = WalkOptions { samples, channels: 5, epochs, batch_size, lr: 1e-3, seed: 42 };
        let bench = WalkBench::new(options, device).unwrap();
        let mut bench = if eager { bench.eager() } else { bench };
        (0..epochs).map(|_| bench.epoch().unwrap().loss).collect()
    }
}

/// Forecasts of a wave with noise: the loss and the validation error of each epoch.
fn noisy_series(device: &Device, epochs: usize, eager: bool) -> Vec<f64> {
    let noise = |i: usize| {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        let z = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z >> 40) as f64 / (1u64 << 24) as f64 - 0.5
    };
    let value = |i: usize| (i as f64 * std::f64::consts::TAU / 12.0).sin() + 1.2 * noise(i);
    let values: Vec<f64> = (0..400).map(value).collect();
    let windows = Windows::new(&Grid::new(values, 1), 24, 6, device).unwrap();
    let part = |rows: std::ops::Range<usize>| Part::all(rows, 30);
    let split = Split {
        context: 24,
        horizon: 6,
        train: part(0..300),
        validation: part(280..350),
        test: part(330..400),
    };
    let model = PatchTstConfig { channels: 1, ..PatchTstConfig::small(24, 6, 3, 16, 2, 2, 32, 6) };
    let config = TrainingConfig {
        epochs: EPOCHS,
        batch_size: 16,
        accumulate: 1,
        lr: 2e-3,
        schedule: LrSchedule::Cosine,
        weight_decay: 0.01,
        decay_all: false,
        clip: 1.0,
        patience: EPOCHS,
        seed: 5,
        batch_norm: BatchNormStatistics::Synchronised,
    };
    let trainer = Trainer::new(model, config, windows, &split).unwrap();
    let mut trainer = if eager { trainer.eager() } else { trainer };
    for _ in 0..epochs {
        trainer.epoch(Duration::from_secs(1), |_| ControlFlow::Continue(())).unwrap();
    }
    trainer.history().iter().flat_map(|epoch| [epoch.train_loss, epoch.validation.mse]).collect()
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

fn last(losses: &[f64]) -> f64 {
    losses[losses.len() - 1]
}

/// Compares recorded training on all devices with eager training on the CPU. Losses fall to `falls_to` of the first.
/// In bf16 the last loss is within `BF16` of that in f32, relative to `unit`.
fn compare(curve: Curve<'_>, falls_to: f64, unit: impl Fn(&[f64]) -> f64) {
    let run = |precision, device: &Device, epochs, eager| {
        with_precision(precision, || curve(device, epochs, eager))
    };
    let f32_expected = run(Precision::F32, &Device::cpu(), EPOCHS, true);
    let bf16_expected = run(Precision::Bf16, &Device::cpu(), FEW, true);
    for device in devices() {
        let guarded = device.kind() == DeviceKind::Cuda && std::env::var_os("REFRAIN_GUARD").is_some();
        let epochs = if device.kind() == DeviceKind::Sim || guarded { FEW } else { EPOCHS };
        let f32 = run(Precision::F32, &device, epochs, false);
        let bf16 = run(Precision::Bf16, &device, epochs, false);
        println!("{device}: f32 {f32:?}, bf16 {bf16:?}");
        if device.kind() == DeviceKind::Cuda {
            for (i, (g, e)) in f32.iter().zip(&f32_expected).enumerate() {
                let apart = (g - e).abs() / e;
                println!("{device}, loss {i}: {apart:.1e} from the CPU's");
                assert!(apart < if i == 0 { FIRST } else { LATER }, "loss {i} is {g}, on the CPU {e}");
            }
        } else {
            let as_far = |few: &[f64], many: &[f64]| {
                let n = few.len().min(many.len());
                assert_eq!(bits(&few[..n]), bits(&many[..n]), "{device}: {few:?} and {many:?}");
            };
            as_far(&f32, &f32_expected);
            as_far(&bf16, &bf16_expected);
        }
        if epochs == EPOCHS {
            assert!(last(&f32) < falls_to * f32[0] && last(&bf16) < falls_to * bf16[0], "{device}");
            let apart = (last(&bf16) - last(&f32)).abs();
            assert!(apart < BF16 * unit(&f32), "{device}: {bf16:?} in bf16, {f32:?} in f32");
        }
    }
}

#[test]
fn a_thousand_walks_lose_alike_everywhere() {
    compare(&walks(1000), 0.2, |losses| losses[0]);
}

/// The convergence case of the field.
#[test]
fn fifteen_walks_lose_four_fifths_of_their_loss_alike_everywhere() {
    compare(&walks(15), 0.2, |losses| losses[0]);
}

#[test]
fn a_series_with_noise_is_learned_alike_everywhere() {
    compare(&noisy_series, 0.8, last);
}
