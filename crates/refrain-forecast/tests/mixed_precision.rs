//! Training in mixed precision: bf16 from the embedding to the head, and f32 for the stored numbers.

#[allow(dead_code, unused_imports)] // Each program uses a part of it.
#[path = "../../refrain-cli/src/bench/mod.rs"]
mod bench;
mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use bench::{StepBench, StepSizes, WalkBench, WalkOptions};
use common::device;
use refrain::{DType, Precision, Tensor, with_precision};
use refrain_forecast::data::series::{Grid, Part, Split};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::Forecaster;
use refrain_forecast::models::patchtst::{
    FfnActivation, Mode, NormKind, NormPosition, PatchTst, PatchTstConfig, Positions,
};
use refrain_forecast::training::{BatchNormStatistics, LrSchedule, Trainer, TrainingConfig};
use refrain_test::turn;

const ROWS: usize = 12;
const PATCHES: usize = 9;

fn sizes() -> StepSizes {
    StepSizes { model: PatchTstConfig::small(40, 8, 4, 32, 4, 2, 64, 6), rows: ROWS }
}

/// Batch norm, post-norm, residual attention, RevIN: the options that the small variant does not use.
fn paper() -> PatchTstConfig {
    PatchTstConfig {
        end_padding: true,
        norm: NormKind::Batch,
        norm_position: NormPosition::Post,
        activation: FfnActivation::Gelu,
        positions: Positions::Sinusoidal,
        residual_attention: true,
        revin: true,
        individual_head: true,
        ..sizes().model
    }
}

/// An operation of a program's table, the dtypes and shapes of its operands and of its results.
struct Line<'a> {
    operation: &'a str,
    operands: Vec<(&'a str, Vec<usize>)>,
    results: Vec<(&'a str, Vec<usize>)>,
}

impl<'a> Line<'a> {
    /// `bf16 [12, 9, 32] @0, ..`, each perhaps after `+= `.
    fn list(text: &'a str) -> Vec<(&'a str, Vec<usize>)> {
        let places = text.split(['@', '#']);
        let one = |operand: &'a str| {
            let (before, rest) = operand.split_once('[')?;
            let dims = rest.split_once(']')?.0.split(", ").filter(|d| !d.is_empty());
            Some((before.split_whitespace().last()?, dims.map(|d| d.parse().unwrap()).collect()))
        };
        places.filter_map(one).collect()
    }

    fn of(line: &'a str) -> Option<Line<'a>> {
        let (before, results) = line.split_once(" -> ")?;
        // The operands follow the operation, after two spaces or more.
        let at = before.find(|c: char| c.is_ascii_lowercase())?;
        let (operation, operands) = before[at..].split_once(' ')?;
        Some(Line { operation, operands: Line::list(operands), results: Line::list(results) })
    }
}

#[test]
fn a_step_is_bf16_between_embedding_and_head_and_f32_where_numbers_are_kept() {
    let _turn = turn();
    let device = device();
    let bench = StepBench::new(&sizes(), &device, 5).unwrap();
    let mut step = bench.recorded();
    with_precision(Precision::Bf16, || step.call(bench.batch(0)).map(drop)).unwrap();
    let table = step.program().unwrap().to_string();
    let lines: Vec<Line<'_>> = table.lines().skip(2).filter_map(Line::of).collect();
    assert!(lines.len() > 50, "{table}");
    let (mut activations, mut gradients, mut norms, mut rounded) = (0, 0, 0, 0);
    for line in &lines {
        let Line { operation, operands, results } = line;
        for (dtype, dims) in operands.iter().chain(results) {
            // Features of patches. The patches themselves are the model's input.
            if dims.len() > 2 && dims[..2] == [ROWS, PATCHES] && dims[2..] != [8] {
                assert_eq!(*dtype, "bf16", "{operation} of {dims:?}");
                activations += 1;
            }
        }
        match *operation {
            "linear" | "linear_input_gradient" => assert_eq!(operands[1].0, "bf16", "the weight was rounded"),
            "to_dtype" if operands[0].1.len() == 1 && operands[0].1[0] > 1000 => rounded += 1,
            "linear_weight_gradient" => {
                assert_eq!(operands[0].0, "bf16");
                assert!(results.iter().all(|(dtype, _)| *dtype == "f32"), "gradients of a layer");
                gradients += results.len();
            }
            "layer_norm" | "layer_norm_backward" => {
                assert_eq!((operands[0].0, results[0].0), ("bf16", "bf16"));
                assert!(results[1..].iter().all(|(dtype, _)| *dtype == "f32"), "statistics and sums");
            }
            "layer_norm_parameters_backward" => {
                assert!(results.iter().all(|(dtype, _)| *dtype == "f32"), "gradients of a norm");
                norms += 1;
            }
            "adamw" => assert!(operands.iter().filter(|(_, d)| d.len() == 1).all(|(t, _)| *t != "bf16")),
            "mse_loss" => assert_eq!(results[0].0, "f32"),
            _ => {}
        }
    }
    // Embedding, four layers in each of both encoder layers, head: weight and bias each.
    assert_eq!(gradients, 2 * (1 + 2 * 4 + 1));
    // Two in each of both encoder layers.
    assert_eq!(norms, 2 * 2);
    assert!(activations > 90, "{activations}");
    assert_eq!(rounded, 1, "all parameters by one launch");
    step.finish().unwrap();
}

#[test]
fn a_recorded_step_is_the_eager_step_and_nothing_crosses_to_the_host() {
    let _turn = turn();
    let device = device();
    let run = || {
        let [eager, bench] = [0, 1].map(|_| StepBench::new(&sizes(), &device, 5).unwrap());
        let mut step = bench.recorded();
        for i in 0..5 {
            let before = device.stats();
            let loss = eager.step(eager.batch(i)).unwrap();
            let after = device.stats();
            assert_eq!((before.uploads, before.downloads), (after.uploads, after.downloads));
            assert_eq!(loss.dtype(), DType::F32);
            let replayed = step.call(bench.batch(i)).unwrap();
            let last = device.stats();
            if i > 0 {
                let copies = [last.uploads - after.uploads, last.downloads - after.downloads];
                assert_eq!(copies, [0, 0], "step {i}");
                assert_eq!(last.allocations, after.allocations, "step {i}");
            }
            let replayed = replayed.to_scalar::<f32>(0).unwrap();
            assert_eq!(replayed.to_bits(), loss.to_scalar::<f32>().unwrap().to_bits(), "step {i}");
        }
        step.finish().unwrap();
    };
    with_precision(Precision::Bf16, run);
}

#[test]
fn every_parameter_gets_an_f32_gradient_near_that_of_f32() {
    let _turn = turn();
    let device = device();
    for config in [sizes().model, paper(), PatchTstConfig { dropout: 0.2, head_dropout: 0.1, ..paper() }] {
        let generator = refrain::Generator::new(&device, 1).unwrap();
        let x = generator.normal([ROWS, 1, 40], DType::F32).unwrap();
        let y = generator.normal([ROWS, 1, 6], DType::F32).unwrap();
        let gradients = |precision| {
            with_precision(precision, || {
                let model = PatchTst::new(config.clone(), DType::F32, &device, 7).unwrap();
                let drops = refrain::Generator::new(&device, 2).unwrap();
                let forecast = model.forward(&x, Mode::Train(&drops)).unwrap();
                assert_eq!(forecast.dtype(), DType::F32);
                let loss = forecast.mse_loss(&y).unwrap();
                loss.backward().unwrap();
                let of = |t: &Tensor| {
                    let grad = t.grad().unwrap();
                    assert_eq!((t.dtype(), grad.dtype()), (DType::F32, DType::F32));
                    grad.to_vec::<f32>().unwrap()
                };
                let all: Vec<_> = model.parameters().iter().map(|(n, t)| (n.to_owned(), of(t))).collect();
                assert!(model.parameters().buffers().all(|(_, t)| t.dtype() == DType::F32));
                all
            })
        };
        let (exact, mixed) = (gradients(Precision::F32), gradients(Precision::Bf16));
        let length = |g: &mut dyn Iterator<Item = f32>| g.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let whole = length(&mut exact.iter().flat_map(|(_, g)| g.iter().copied()));
        for ((name, exact), (_, mixed)) in exact.iter().zip(&mixed) {
            let apart = length(&mut exact.iter().zip(mixed).map(|(a, b)| a - b));
            let size = length(&mut exact.iter().copied());
            assert!(apart <= 0.1 * size + 0.01 * whole, "{name}: {apart} apart, of {size}, of {whole}");
            assert!(mixed.iter().any(|&v| v != 0.0), "{name} got no gradient");
        }
    }
}

/// Two waves of different periods with some noise, roughly standardised.
fn waves() -> Vec<f64> {
    let noise = |i: usize| ((i * 7919 + i * i * 31) % 1009) as f64 / 1009.0 - 0.5;
    let value = |i: usize| {
        let (row, channel) = (i / 2, i % 2);
        1.4 * (row as f64 * std::f64::consts::TAU / (12.0 + 5.0 * channel as f64)).sin() + 0.4 * noise(i)
    };
    (0..2 * 300).map(value).collect()
}

#[test]
fn training_ends_within_five_hundredths_of_the_loss_of_f32() {
    let _turn = turn();
    let model = PatchTstConfig {
        channels: 2,
        revin: true,
        norm: NormKind::Batch,
        ..PatchTstConfig::small(24, 6, 3, 16, 2, 2, 32, 6)
    };
    let config = TrainingConfig {
        epochs: 8,
        batch_size: 16,
        accumulate: 1,
        lr: 3e-3,
        schedule: LrSchedule::OneCycle,
        weight_decay: 0.01,
        decay_all: false,
        clip: 1.0,
        patience: 8,
        seed: 5,
        batch_norm: BatchNormStatistics::Synchronised,
    };
    let part = |rows: std::ops::Range<usize>| Part::all(rows, 30);
    let split = Split {
        context: 24,
        horizon: 6,
        train: part(0..200),
        validation: part(176..250),
        test: part(226..300),
    };
    let train = |precision| {
        with_precision(precision, || {
            let windows = Windows::new(&Grid::new(waves(), 2), 24, 6, &device()).unwrap();
            let mut trainer = Trainer::new(model.clone(), config.clone(), windows, &split).unwrap();
            while !trainer.is_done() {
                trainer.epoch(Duration::from_secs(60), |_| ControlFlow::Continue(())).unwrap();
            }
            let history = trainer.history();
            [&history[0], &history[history.len() - 1]].map(|e| [e.train_loss, e.validation.mse])
        })
    };
    let (exact, mixed) = (train(Precision::F32), train(Precision::Bf16));
    assert!(exact[1][0] < 0.3 * exact[0][0], "f32 learns: {exact:?}");
    for (e, m) in exact.iter().flatten().zip(mixed.iter().flatten()) {
        assert!((e - m).abs() <= 0.05 * e, "{m} for {e}");
    }
    assert_ne!(exact, mixed);
}

#[test]
fn fifteen_samples_lose_four_fifths_of_their_loss_in_ten_epochs() {
    let _turn = turn();
    let options = WalkOptions { samples: 15, channels: 5, epochs: 10, batch_size: 4, lr: 1e-3, seed: 42 };
    let mut bench = WalkBench::new(options, &device()).unwrap();
    let run = || (0..10).map(|_| bench.epoch().unwrap().loss).collect::<Vec<f64>>();
    let losses = with_precision(Precision::Bf16, run);
    assert!(losses[9] <= 0.2 * losses[0], "{losses:?}");
}
