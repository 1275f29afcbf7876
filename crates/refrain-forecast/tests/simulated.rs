//! Models on the simulated GPU: recorded training gives the CPU's results bit for bit, for each order that the seed
//! chooses.

#[allow(dead_code, unused_imports)] // Each program uses a part of it.
#[path = "../../refrain-cli/src/bench/mod.rs"]
mod bench;

use std::ops::ControlFlow;
use std::time::Duration;

use bench::{CrossSizes, StepBench, StepSizes};
use refrain::{Device, Profile, Simulator};
use refrain_forecast::data::series::{Grid, Part, Split};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::cross_asset::CrossAssetConfig;
use refrain_forecast::models::patchtst::{NormKind, PatchTstConfig};
use refrain_forecast::training::{BatchNormStatistics, LrSchedule, Trainer, TrainingConfig};

const CHANNELS: usize = 2;

/// Two epochs with dropout, batch norm, clipping and a schedule; losses, rates and the hash of the weights.
fn train(device: &Device) -> (Vec<[u64; 3]>, String) {
    let value = |i: usize| (i as f64 * 0.21).sin() + 0.1 * ((i * 7919) % 101) as f64 / 101.0;
    let values: Vec<f64> = (0..150 * CHANNELS).map(value).collect();
    let windows = Windows::new(&Grid::new(values, CHANNELS), 24, 6, device).unwrap();
    let part = |rows: std::ops::Range<usize>| Part::all(rows, 30);
    let split = Split {
        context: 24,
        horizon: 6,
        train: part(0..90),
        validation: part(70..120),
        test: part(100..150),
    };
    let model = PatchTstConfig {
        channels: CHANNELS,
        dropout: 0.1,
        attention_dropout: 0.1,
        head_dropout: 0.1,
        norm: NormKind::Batch,
        revin: true,
        ..PatchTstConfig::small(24, 6, 3, 8, 2, 2, 16, 6)
    };
    let config = TrainingConfig {
        epochs: 2,
        batch_size: 16,
        accumulate: 1,
        lr: 3e-3,
        schedule: LrSchedule::OneCycle,
        weight_decay: 0.01,
        decay_all: false,
        clip: 1.0,
        patience: 3,
        seed: 5,
        batch_norm: BatchNormStatistics::Synchronised,
    };
    let mut trainer = Trainer::new(model, config, windows, &split).unwrap();
    while !trainer.is_done() {
        trainer.epoch(Duration::from_secs(1), |_| ControlFlow::Continue(())).unwrap();
    }
    let history = trainer.history().iter();
    let history = history.map(|r| [r.train_loss, r.validation.mse, r.learning_rate].map(f64::to_bits));
    (history.collect(), trainer.model().weights_sha256().unwrap())
}

#[test]
fn training_is_the_cpus_bit_for_bit() {
    let expected = train(&Device::cpu());
    for profile in [Profile::Discrete, Profile::Unified] {
        assert_eq!(train(&Simulator::new(profile).seed(3).device()), expected, "{profile:?}");
    }
}

/// Three recorded steps for every seed, bit for bit equal to eager steps on the CPU.
fn as_on_the_cpu(bench: impl Fn(&Device) -> StepBench) {
    let cpu = bench(&Device::cpu());
    let losses = |steps: &mut dyn FnMut(usize) -> f32| [0, 1, 2].map(|i| steps(i).to_bits());
    let expected = losses(&mut |i| cpu.step(cpu.batch(i)).unwrap().to_scalar().unwrap());
    let seeds = std::env::var("REFRAIN_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    for seed in 0..seeds {
        let profile = [Profile::Discrete, Profile::Unified][seed % 2];
        let device = Simulator::new(profile).seed(seed as u64).device();
        let simulated = bench(&device);
        let mut step = simulated.recorded();
        let got = losses(&mut |i| step.call(simulated.batch(i)).unwrap().to_scalar(0).unwrap());
        assert_eq!(got, expected, "seed {seed}");
        step.finish().unwrap();
    }
}

#[test]
fn a_recorded_step_is_the_cpus_under_every_seed() {
    let sizes = StepSizes { model: PatchTstConfig::small(24, 8, 4, 16, 2, 2, 32, 1), rows: 24 };
    as_on_the_cpu(|device| StepBench::new(&sizes, device, 5).unwrap());
}

#[test]
fn a_recorded_cross_asset_step_is_the_cpus_under_every_seed() {
    let model = CrossAssetConfig { sources: 5, features: 6, d_model: 16, ffn: 32, ..Default::default() };
    let sizes = CrossSizes { model, batch: 12 };
    as_on_the_cpu(|device| StepBench::new(&sizes, device, 5).unwrap());
}
