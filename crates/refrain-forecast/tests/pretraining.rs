//! Masked pretraining: what is hidden stays hidden, the encoder learns, and a forecaster begins with it.

mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use common::devices;
use refrain::{DType, Device, Generator, Tensor};
use refrain_forecast::data::series::{Grid, Part, Split};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::patchtst::{MaskedPatchTst, Mode, PatchTst, PatchTstConfig};
use refrain_forecast::models::{Forecaster, initialise};
use refrain_forecast::tasks::pretraining::Pretraining;
use refrain_forecast::training::{BatchNormStatistics, LrSchedule, Trainer, TrainingConfig};

const CONTEXT: usize = 24;
const PATCHES: usize = 6;

fn config() -> PatchTstConfig {
    PatchTstConfig { channels: 2, ..PatchTstConfig::small(CONTEXT, 4, 4, 8, 2, 1, 16, 6) }
}

fn split() -> Split {
    let part = |rows: std::ops::Range<usize>| Part::all(rows, CONTEXT + 6);
    let (train, validation, test) = (part(0..200), part(180..260), part(240..300));
    Split { context: CONTEXT, horizon: 6, train, validation, test }
}

fn windows(filled: &[usize], device: &Device) -> Windows {
    let value = |at: usize| ((at / 2) as f64 * 0.37 + (at % 2) as f64).sin();
    // What is filled is far from what it would have been.
    let values = (0..600).map(|at| if filled.contains(&at) { 50.0 } else { value(at) }).collect();
    let marks = (0..600).map(|at| filled.contains(&at)).collect();
    Windows::new(&Grid::with_filled(values, 2, marks), CONTEXT, 6, device).unwrap()
}

#[test]
fn an_encoder_sees_nothing_of_a_hidden_patch() {
    for device in devices() {
        let model = MaskedPatchTst::new(config(), DType::F64, &device, 3).unwrap();
        let x = Generator::new(&device, 1).unwrap().normal([1, 2, CONTEXT], DType::F64).unwrap();
        // Of each channel, the second and the last patch are hidden.
        let hidden = Tensor::from_slice(&[0.0, 1.0, 0.0, 0.0, 0.0, 1.0], [1, PATCHES], &device).unwrap();
        // filled = x + sqrt(error), up to the sign; so compare where both sides keep their true values.
        let errors = |x: &Tensor| -> Vec<f64> {
            model.errors(x, &hidden, Mode::Eval).unwrap().contiguous().unwrap().to_vec().unwrap()
        };
        let moved = |row: usize| {
            let other = x.copy().unwrap();
            other.narrow(2, row, 1).unwrap().add_scalar_assign(3.0).unwrap();
            errors(&other)
        };
        let base = errors(&x);
        assert_eq!(base.len(), 2 * PATCHES * 4);
        let changed = |other: &[f64]| -> Vec<usize> {
            (0..base.len()).filter(|&at| base[at] != other[at]).map(|at| at / 4 % PATCHES).collect()
        };
        // A hidden value changes its own error alone.
        assert_eq!(changed(&moved(5)), [1, 1], "{device}");
        // A shown one changes what is filled in everywhere.
        let all = changed(&moved(0));
        assert!((0..PATCHES).all(|patch| all.contains(&patch)), "{all:?} on {device}");
    }
}

#[test]
fn patches_that_overlap_and_single_ones_are_refused() {
    let refused = |config: PatchTstConfig| {
        MaskedPatchTst::new(config, DType::F32, &Device::cpu(), 1).err().unwrap().to_string()
    };
    let message = refused(PatchTstConfig { stride: 2, ..config() });
    assert!(message.contains("overlap") && message.contains("--stride"), "{message}");
    assert!(refused(PatchTstConfig { patch: 24, stride: 24, ..config() }).contains("only one patch"));
    let of = |ratio| Pretraining::new(config(), ratio, windows(&[], &Device::cpu()), &split(), 1);
    for ratio in [0.0, 1.0, f64::NAN] {
        assert!(of(ratio).err().unwrap().to_string().contains("share of hidden patches"), "{ratio}");
    }
}

/// The losses of some epochs, and the hash of the weights.
fn pretrain(filled: &[usize], device: &Device, eager: bool) -> (Vec<[f64; 2]>, Trainer<Pretraining>) {
    let config_of_training = TrainingConfig {
        epochs: 6,
        batch_size: 16,
        accumulate: 1,
        lr: 1e-2,
        schedule: LrSchedule::Constant,
        weight_decay: 0.0,
        decay_all: false,
        clip: 1.0,
        patience: 6,
        seed: 5,
        batch_norm: BatchNormStatistics::Synchronised,
    };
    let task = Pretraining::new(config(), 0.4, windows(filled, device), &split(), 5).unwrap();
    let trainer = Trainer::of(task, config_of_training).unwrap();
    let mut trainer = if eager { trainer.eager() } else { trainer };
    while !trainer.is_done() {
        trainer.epoch(Duration::from_secs(1), |_| ControlFlow::Continue(())).unwrap();
    }
    let losses = trainer.history().iter().map(|report| [report.train_loss, report.validation.mse]).collect();
    (losses, trainer)
}

#[test]
fn an_encoder_learns_to_fill_in_patches_recorded_as_eager_on_every_device() {
    let (expected, of_cpu) = pretrain(&[], &Device::cpu(), true);
    // The waves have a deviation of about 0.7, so that their mean has an error of 0.5.
    assert!(expected[0][1] > 0.2 && expected[5][1] < 0.5 * expected[0][1], "{expected:?}");
    let sha256 = of_cpu.task().model().weights_sha256().unwrap();
    for device in ["cpu", "sim", "sim:unified"] {
        let (losses, trainer) = pretrain(&[], &device.parse().unwrap(), false);
        assert_eq!(losses, expected, "{device}");
        assert_eq!(trainer.task().model().weights_sha256().unwrap(), sha256, "{device}");
    }
}

#[test]
fn filled_values_have_no_weight() {
    // Both channels of some rows of the training and of the validation part.
    let rows = [40, 41, 90, 150, 210, 211, 212, 230];
    let filled: Vec<usize> = rows.iter().flat_map(|row| [2 * row, 2 * row + 1]).collect();
    let (losses, _) = pretrain(&filled, &Device::cpu(), false);
    // A squared error of 2,500 in one of a hundred values would be 25.
    assert!(losses[0][0] < 5.0 && losses.iter().all(|of| of[1] < 5.0), "{losses:?}");
}

#[test]
fn a_forecaster_begins_with_a_pretrained_encoder() {
    let device = Device::cpu();
    let (_, trainer) = pretrain(&[], &device, false);
    let of = trainer.task().model().parameters();
    let tensors: Vec<_> =
        of.iter().chain(of.buffers()).map(|(name, tensor)| (name.to_owned(), tensor.detach())).collect();
    let forecaster = PatchTst::new(config(), DType::F32, &device, 9).unwrap();
    let left = initialise(forecaster.parameters(), &tensors).unwrap();
    assert_eq!(left, ["head.weight", "head.bias"]);
    for (name, tensor) in of.iter().filter(|(name, _)| !name.starts_with("head.")) {
        let copied = forecaster.parameters().get(name).unwrap().detach();
        assert_eq!(copied.to_vec::<f32>().unwrap(), tensor.detach().to_vec::<f32>().unwrap(), "{name}");
    }
}
