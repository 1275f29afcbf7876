//! Recorded steps do what eager code does, bit for bit; what they can't do is refused by name.

mod common;

use common::training::{Model, batch};
use common::{devices, simulators};
use refrain::{Device, Step};

/// Steps until the learning rate has come down.
const STEPS: u64 = 180;

#[test]
fn recorded_training_is_bit_for_bit_eager_training() {
    for device in devices() {
        let (eager, recorded) = (Model::new(&device, STEPS), Model::new(&device, STEPS));
        let mut step = Step::new(&device, |b| Ok(vec![recorded.train(&b[0], &b[1])?]));
        let (mut first, mut last) = (0.0, 0.0);
        for i in 0..200 {
            // The last batch of each epoch is smaller.
            let size = if i % 10 == 9 { 3 } else { 8 };
            let b = batch(i % 4, size, &device);
            let loss = eager.train(&b[0], &b[1]).unwrap().to_scalar::<f32>().unwrap();
            let replayed = step.call(&b).unwrap().to_scalar::<f32>(0).unwrap();
            assert_eq!(loss.to_bits(), replayed.to_bits(), "step {i}: {loss} and {replayed}");
            assert_eq!(eager.state(), recorded.state(), "after step {i}");
            first = if i == 0 { loss } else { first };
            // The same batch as the first.
            last = if i == 196 { loss } else { last };
        }
        assert!(last < 0.7 * first, "the loss went from {first} to {last}");
        assert_eq!(step.programs(), 2);
        let program = step.program().unwrap();
        assert!(program.block_bytes() * 10 <= program.live_bytes() * 11);
        println!("{program}");
        step.finish().unwrap();
    }
}

#[test]
fn recorded_training_is_that_of_the_cpu_in_every_order_of_the_branches() {
    let cpu = Device::cpu();
    let eager = Model::new(&cpu, STEPS);
    let expected: Vec<Vec<u64>> = (0..4)
        .map(|i| {
            let b = batch(i, 4, &cpu);
            eager.train(&b[0], &b[1]).unwrap();
            eager.state()
        })
        .collect();
    for device in simulators() {
        let recorded = Model::new(&device, STEPS);
        let mut step = Step::new(&device, |b| Ok(vec![recorded.train(&b[0], &b[1])?]));
        for (i, expected) in expected.iter().enumerate() {
            step.call(&batch(i, 4, &device)).unwrap();
            assert_eq!(&recorded.state(), expected, "step {i} on {device}");
        }
        step.finish().unwrap();
    }
}
