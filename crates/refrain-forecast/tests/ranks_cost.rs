//! What several ranks cost beside the work of one: exchanges, copies to the host, memory, and what waits for what.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use common::{cpus, on_ranks, simulated};
use refrain::{DType, Device, Generator, Profile, Stats, Tensor};
use refrain_forecast::Result;
use refrain_forecast::training::{BatchNormStatistics, EpochEnd, LrSchedule, Task, Trainer, TrainingConfig};
use refrain_nn::{Linear, Mode, ParameterBuilder, Parameters};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Longer than an epoch.
const LONG: Duration = Duration::from_secs(100);

/// Layers of equal width that learn to give zeros, with random samples.
struct Layers {
    parameters: Parameters,
    layers: Vec<Linear>,
    samples: Tensor, // [samples, width]
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Nothing {}

impl Layers {
    fn trainer(
        device: &Device,
        (width, layers): (usize, usize),
        samples: usize,
        batch_size: usize,
    ) -> Trainer<Layers> {
        let builder = ParameterBuilder::new(device, DType::F32);
        let layers = (0..layers).map(|i| Linear::new(&builder.scope(i), width, width).unwrap()).collect();
        let generator = Generator::new(device, 1).unwrap();
        let parameters = builder.build(&generator).unwrap();
        let samples = generator.normal([samples, width], DType::F32).unwrap();
        let config = TrainingConfig {
            epochs: 3,
            batch_size,
            accumulate: 1,
            lr: 1e-3,
            schedule: LrSchedule::Constant,
            weight_decay: 0.01,
            decay_all: false,
            clip: 1.0,
            patience: 3,
            seed: 5,
            batch_norm: BatchNormStatistics::Synchronised,
        };
        Trainer::of(Layers { parameters, layers, samples }, config).unwrap()
    }
}

impl Task for Layers {
    type Validation = Nothing;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn device(&self) -> &Device {
        self.samples.device()
    }

    fn samples(&self) -> Vec<i64> {
        (0..self.samples.dims()[0] as i64).collect()
    }

    fn data(&self) -> Vec<&Tensor> {
        vec![&self.samples]
    }

    fn loss(&self, samples: &Tensor, _: Mode<'_>) -> Result<Tensor> {
        let x = self.samples.index_select(0, samples)?;
        let apply = |x: Tensor, layer: &Linear| -> Result<Tensor> { Ok(layer.forward(&x)?.tanh()?) };
        let y = self.layers.iter().try_fold(x, apply)?;
        Ok(y.square()?.mean(())?)
    }

    fn validation(&self, _: &[f64]) -> Nothing {
        Nothing {}
    }

    fn error(_: &Nothing) -> f64 {
        0.0
    }
}

/// Trains an epoch and returns how often the callback was called.
fn epoch(trainer: &mut Trainer<Layers>) -> u64 {
    let mut calls = 0;
    let end = trainer.epoch(LONG, |_| {
        calls += 1;
        ControlFlow::Continue(())
    });
    assert!(matches!(end.unwrap(), EpochEnd::Finished(_)));
    calls
}

#[test]
fn an_epoch_exchanges_few_values_besides_its_steps_and_copies_no_parameters() {
    const STEPS: u64 = 12;
    for devices in [cpus(2), simulated(3, Profile::Discrete, 1), cpus(8)] {
        on_ranks(&devices, |rank| {
            let samples = 24 * STEPS as usize;
            let trainer = Layers::trainer(rank.device(), (16, 6), samples, 24);
            let mut trainer = trainer.with_communicator(rank.clone()).unwrap();
            epoch(&mut trainer);
            let (collectives, before) = (rank.collectives(), rank.device().stats());
            let calls = epoch(&mut trainer);
            // Of a step, the gradients. Besides, the losses and whether to stop at each callback, the pace, the checksums, the
            // validation.
            let exchanged = rank.collectives() - collectives - STEPS;
            assert_eq!(exchanged, 3 + 2 * calls);
            // What was exchanged is read, the losses of this rank, and how many steps were skipped. With a copy of each parameter
            // there were 12 more.
            let copied = rank.device().stats().downloads - before.downloads;
            assert!(rank.device() == &Device::cpu() || copied <= exchanged + calls + 2, "{copied}");
            let collectives = rank.collectives();
            let folder = tempfile::tempdir().unwrap();
            trainer.save(folder.path(), &json!(null)).unwrap();
            assert_eq!(rank.collectives() - collectives, 1, "whether rank 0 has saved");
        });
    }
}

#[test]
fn a_rank_needs_the_memory_of_one_process_and_allocates_nothing_in_a_step() {
    const MODEL: (usize, usize) = (128, 4);
    let peak = |mut trainer: Trainer<Layers>, device: &Device| {
        epoch(&mut trainer);
        epoch(&mut trainer);
        assert_eq!(trainer.replays().unwrap().allocations_per_step(), Some(0.0));
        let Stats { peak_bytes, .. } = device.stats();
        peak_bytes
    };
    let alone = simulated(1, Profile::Discrete, 2).remove(0);
    let expected = peak(Layers::trainer(&alone, MODEL, 96, 4), &alone);
    let gradients = MODEL.1 * MODEL.0 * (MODEL.0 + 1) * size_of::<f32>();
    assert!(expected > 4 * gradients, "parameters, gradients and moments are in it");
    for size in [2, 3, 8] {
        let devices = simulated(size, Profile::Discrete, 3);
        let peaks = on_ranks(&devices, |rank| {
            let device = rank.device().clone();
            // As many samples of each batch for each rank as for the process alone.
            let trainer = Layers::trainer(&device, MODEL, 96, 4 * size);
            peak(trainer.with_communicator(rank).unwrap(), &device)
        });
        for peak in peaks {
            assert!(peak < expected + gradients / 8, "{size} ranks: {peak} bytes instead of {expected}");
        }
    }
}

/// The launches of a program by what they wait for, directly or not, and their operations with the shapes of their results.
struct Waits {
    operations: Vec<String>,
    before: Vec<BTreeSet<usize>>,
}

impl Waits {
    /// From the text of a graph.
    fn of(dot: &str) -> Waits {
        let (mut operations, mut direct) = (BTreeMap::new(), Vec::new());
        for line in dot.lines().map(str::trim) {
            let Some(line) = line.strip_prefix('n').and_then(|line| line.strip_suffix(';')) else { continue };
            if let Some((from, to)) = line.split_once(" -> n") {
                direct.push((from.parse::<usize>().unwrap(), to.parse::<usize>().unwrap()));
            } else if let Some((at, label)) = line.split_once(" [label=\"") {
                let text = label.trim_end_matches("\"]").split_once(' ').unwrap().1;
                operations.insert(at.parse::<usize>().unwrap(), text.replace("\\n", " "));
            }
        }
        let mut before: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); operations.len()];
        for at in 0..before.len() {
            for (from, _) in direct.iter().filter(|(_, to)| *to == at) {
                let more: Vec<usize> = before[*from].iter().copied().chain([*from]).collect();
                before[at].extend(more);
            }
        }
        Waits { operations: operations.into_values().collect(), before }
    }

    /// The numbers of the launches of an operation.
    fn all(&self, is: impl Fn(&str) -> bool) -> Vec<usize> {
        (0..self.operations.len()).filter(|&at| is(&self.operations[at])).collect()
    }
}

#[test]
fn each_bucket_waits_for_its_own_gradients_alone_and_the_update_for_all_buckets() {
    // The weight of a layer is as large as a bucket.
    const WIDTH: usize = 2048;
    for size in [2, 3] {
        let devices = simulated(size, Profile::Discrete, 4);
        on_ranks(&devices, |rank| {
            let trainer = Layers::trainer(rank.device(), (WIDTH, 3), size, size);
            let mut trainer = trainer.with_communicator(rank).unwrap();
            epoch(&mut trainer);
            let waits = Waits::of(&trainer.recorded().unwrap().program().unwrap().to_dot());
            let listing = waits.operations.join("\n");
            // The buckets, from the end of the parameters to their beginning.
            let sums = waits.all(|operation| operation.starts_with("all_reduce"));
            let [last, third, second, first] = sums[..] else { panic!("{listing}") };
            let weights = waits.all(|operation| operation.starts_with("linear_weight_gradient"));
            let [of_third, of_second, of_first] = weights[..] else { panic!("{listing}") };
            let waits_for = |at: usize, of: usize| waits.before[at].contains(&of);
            // The third layer's parameters begin in the bucket `third` and end in `last`.
            assert!(waits_for(last, of_third) && !waits_for(last, of_second) && !waits_for(last, of_first));
            assert!(waits_for(third, of_third) && waits_for(third, of_second) && !waits_for(third, of_first));
            assert!(waits_for(second, of_second) && waits_for(first, of_first), "{listing}");
            // All of them are summed before the norm of the gradients is taken and before the update.
            let updates =
                waits.all(|operation| operation.starts_with("adamw") || operation.starts_with("clip"));
            assert!(updates.len() >= 2, "{listing}");
            for update in updates {
                assert!([last, third, second, first].iter().all(|&sum| waits_for(update, sum)), "{listing}");
            }
        });
    }
}
