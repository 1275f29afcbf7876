//! Many replays of a training step with eager work between them: about two hundred, or as many as `REFRAIN_SOAK`
//! says.
//!
//! `REFRAIN_SOAK=200000 REFRAIN_TEST_DEVICE=cuda cargo test --release -p refrain --test soak -- --nocapture`

mod common;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use common::training::{Model, batch};
use common::{devices, sanitized, turn};
use refrain::{DType, Device, Stats, Step, Tensor, no_grad};

/// The turns of a cycle. Under the sanitizer a few, in which each batch is replayed.
fn turns() -> Range<usize> {
    if sanitized() { 14..25 } else { 0..50 }
}

fn replays_of_turn(turn: usize) -> usize {
    if turn % 10 == 5 { 4 } else { 1 }
}

/// The replays of a cycle.
fn replays_of_cycle() -> u64 {
    turns().map(replays_of_turn).sum::<usize>() as u64
}

/// The cycles until the pool has all memory that later cycles need.
const WARM: u64 = 2;

/// The training state, and counters of the past calls.
struct Soak<'a> {
    device: &'a Device,
    recorded: &'a Model,
    /// Does eagerly, in some cycles, the same as `recorded`.
    shadow: Model,
    /// Batches that are written while they are in use; the last is smaller.
    batches: Vec<[Tensor; 2]>,
    replays: u64,
    eager_launches: u64,
    compared: u64,
}

impl Soak<'_> {
    /// Some turns of replays, each with different eager work after it. If it is `shadowed`, a second model does the
    /// same eagerly, and losses and state must be equal bit for bit. Returns the mean of the losses read.
    fn cycle(&mut self, step: &mut Step<'_>, shadowed: bool) -> f32 {
        if shadowed {
            self.shadow.copy_from(self.recorded).unwrap();
        }
        let (mut last, mut losses) = (f32::NAN, 0.0);
        let mut kept = VecDeque::new();
        for turn in turns() {
            let at = if turn % 25 == 24 { 4 } else { turn % 4 };
            if turn % 8 == 3 {
                self.upload(at, turn);
            }
            let times = replays_of_turn(turn);
            let before = self.device.stats();
            let outputs = step.repeat(&self.batches[at], times).unwrap();
            let after = self.device.stats();
            if self.replays > 2 * replays_of_cycle() {
                assert_eq!(moved(&before), moved(&after), "a replay allocated or copied, {}", self.replays);
            }
            self.replays += times as u64;
            last = if turn % 7 == 0 { outputs.to_scalar::<f32>(0).unwrap() } else { last };
            losses += if turn % 7 == 0 { last } else { 0.0 };
            assert!(last.is_finite(), "the loss is {last} after {} replays", self.replays);
            let launches = self.device.stats().launches;
            if shadowed {
                let mut loss = f32::NAN;
                for _ in 0..times {
                    let [x, y] = &self.batches[at];
                    loss = self.shadow.train(x, y).unwrap().to_scalar().unwrap();
                }
                assert!(turn % 7 != 0 || loss.to_bits() == last.to_bits(), "{loss} and {last} replayed");
            }
            self.eager_work(turn, at, shadowed, &mut kept);
            self.eager_launches += self.device.stats().launches - launches;
        }
        if shadowed {
            assert_eq!(self.recorded.state(), self.shadow.state(), "after {} replays", self.replays);
            self.compared += replays_of_cycle();
        }
        let steps = self.recorded.step.to_vec::<i64>().unwrap();
        assert_eq!(steps, [self.replays as i64], "the counter on the device");
        losses / turns().filter(|turn| turn % 7 == 0).count() as f32
    }

    /// Writes other values into a batch, in place.
    fn upload(&self, at: usize, turn: usize) {
        let [x, y] = batch(turn % 5, self.batches[at][0].dims()[0], &Device::cpu());
        self.batches[at][0].write_from(&x.to_vec::<f32>().unwrap()).unwrap();
        self.batches[at][1].write_from(&y.to_vec::<f32>().unwrap()).unwrap();
    }

    /// The work of a program beside its steps: forward passes of the same model (which use its generator and change
    /// its running statistics), reads, and tensors of many sizes that live for a while.
    fn eager_work(&self, turn: usize, at: usize, shadowed: bool, kept: &mut VecDeque<Tensor>) {
        if turn % 9 == 2 {
            let [x, y] = &self.batches[at];
            let loss = |model: &Model| no_grad(|| model.loss(x, y)).unwrap();
            let loss_of_recorded = loss(self.recorded);
            if shadowed {
                let loss_of_shadow = loss(&self.shadow).to_scalar::<f32>().unwrap();
                assert_eq!(loss_of_recorded.to_scalar::<f32>().unwrap().to_bits(), loss_of_shadow.to_bits());
            }
        }
        if turn % 11 == 4 {
            let parameter = &self.recorded.parameters[turn % self.recorded.parameters.len()];
            let values = parameter.detach().select(0, 0).unwrap().to_vec::<f32>().unwrap();
            assert!(values.iter().all(|v| v.is_finite()), "{values:?}");
        }
        if turn % 3 == 1 {
            let n = 1 + (turn * 7919) % 20_000;
            let numbers = Tensor::full([n], turn as f64, DType::F32, self.device).unwrap();
            kept.push_back(numbers.add_scalar(1.0).unwrap());
        }
        if kept.len() > 5 {
            let numbers = kept.pop_front().unwrap();
            let (low, high) = (numbers.min(()).unwrap(), numbers.max(()).unwrap());
            let (low, high) = (low.to_scalar::<f32>().unwrap(), high.to_scalar::<f32>().unwrap());
            assert!(low == high && low.fract() == 0.0, "kept numbers became {low} to {high}");
        }
    }
}

/// The counters that a replay must not change.
fn moved(s: &Stats) -> [u64; 4] {
    [s.allocations, s.frees, s.uploads, s.downloads]
}

/// All device memory that the engine holds, in use and cached.
fn held(s: &Stats) -> (usize, usize, u64) {
    (s.live_bytes, s.pooled_bytes, s.system_allocations)
}

fn soak(device: &Device, replays: u64) {
    let cycles = replays.div_ceil(replays_of_cycle()).max(WARM + 1);
    let recorded = Model::new(device, cycles * replays_of_cycle());
    let mut step = Step::new(device, |b| Ok(vec![recorded.train(&b[0], &b[1])?]));
    let mut soak = Soak {
        device,
        recorded: &recorded,
        shadow: Model::new(device, cycles * replays_of_cycle()),
        batches: (0..5).map(|i| batch(i, if i == 4 { 3 } else { 8 }, device)).collect(),
        replays: 0,
        eager_launches: 0,
        compared: 0,
    };
    let begun = Instant::now();
    let mut told = begun;
    let (mut first, mut last) = (f32::NAN, f32::NAN);
    let mut warm = Stats::default();
    for cycle in 0..cycles {
        // The first ones, the last one, and some between.
        let shadowed = cycle < WARM || cycle + 1 == cycles || cycle.is_multiple_of(cycles.div_ceil(50));
        last = soak.cycle(&mut step, shadowed);
        first = if cycle == 0 { last } else { first };
        device.synchronize().unwrap();
        let stats = device.stats();
        if cycle + 1 == WARM {
            warm = stats;
        }
        if cycle >= WARM {
            assert_eq!(stats.live_bytes, warm.live_bytes, "after {} replays", soak.replays);
        }
        if told.elapsed() > Duration::from_secs(2) || cycle + 1 == cycles {
            told = Instant::now();
            println!(
                "{device}: {} of {} replays in {:.1} s, loss {last:.6}, {} bytes in use, {} kept",
                soak.replays,
                cycles * replays_of_cycle(),
                begun.elapsed().as_secs_f64(),
                stats.live_bytes,
                stats.pooled_bytes,
            );
        }
    }
    let end = device.stats();
    println!(
        "{device}: {:.0} us a replay with all work between; {} eager launches; {} replays compared with eager steps \
         bit for bit; {} recordings; bytes in use, bytes kept and allocations of the system {:?}, after {} replays {:?}",
        begun.elapsed().as_secs_f64() * 1e6 / soak.replays as f64,
        soak.eager_launches,
        soak.compared,
        step.recordings(),
        held(&end),
        WARM * replays_of_cycle(),
        held(&warm),
    );
    assert_eq!(held(&end), held(&warm), "memory is not flat");
    assert!(last < first, "the mean loss of a cycle went from {first} to {last}");
    assert_eq!((step.programs(), step.evictions()), (2, 0));
    step.finish().unwrap();
}

#[test]
fn replays_and_eager_work_take_turns_for_long() {
    let _turn = turn();
    let replays = std::env::var("REFRAIN_SOAK").map_or(3 * replays_of_cycle(), |n| n.parse().unwrap());
    for device in devices() {
        soak(&device, replays);
    }
}
