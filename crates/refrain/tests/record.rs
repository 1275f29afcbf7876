//! Recorded steps do what eager code does, bit for bit; what they can't do is refused by name.

mod common;

use common::training::{Model, batch};
use common::{devices, sanitized, simulators};
use refrain::{Device, Error, Profile, Simulator, Step};

/// Steps until the learning rate has come down.
const STEPS: u64 = 180;

#[test]
fn recorded_training_is_bit_for_bit_eager_training() {
    for device in devices() {
        let (eager, recorded) = (Model::new(&device, STEPS), Model::new(&device, STEPS));
        let mut step = Step::new(&device, |b| Ok(vec![recorded.train(&b[0], &b[1])?]));
        let (mut first, mut last) = (0.0, 0.0);
        let steps = if sanitized() { 12 } else { 200 };
        for i in 0..steps {
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
        assert!(sanitized() || last < 0.7 * first, "the loss went from {first} to {last}");
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

#[test]
fn a_step_recorded_ahead_has_run_nothing_and_then_does_what_another_one_does() {
    for device in devices() {
        let (model, ahead) = (Model::new(&device, STEPS), Model::new(&device, STEPS));
        let mut step = Step::new(&device, |b| Ok(vec![model.train(&b[0], &b[1])?]));
        let mut recorded = Step::new(&device, |b| Ok(vec![ahead.train(&b[0], &b[1])?]));
        let before = ahead.state();
        [8, 3, 8].iter().for_each(|&size| recorded.record_ahead(&batch(0, size, &device)).unwrap());
        assert_eq!((recorded.programs(), recorded.recordings(), recorded.replays()), (2, 4, 0));
        assert_eq!(ahead.state(), before);
        recorded.check().unwrap();
        for i in 0..6 {
            let b = batch(i, if i % 3 == 2 { 3 } else { 8 }, &device);
            let loss = step.call(&b).unwrap().to_scalar::<f32>(0).unwrap();
            let same = recorded.call(&b).unwrap().to_scalar::<f32>(0).unwrap();
            assert_eq!((same.to_bits(), ahead.state()), (loss.to_bits(), model.state()), "step {i}");
        }
        assert_eq!((recorded.programs(), recorded.replays()), (2, 6));
        recorded.finish().unwrap();
        step.finish().unwrap();
    }
}

#[test]
fn what_changed_after_a_step_was_recorded_ahead_is_found_at_its_first_calls() {
    for device in devices() {
        let factor = std::cell::Cell::new(2.0);
        let mut step = Step::new(&device, |x| Ok(vec![x[0].mul_scalar(factor.get())?]));
        let x = batch(0, 8, &device);
        step.record_ahead(&x).unwrap();
        factor.set(3.0);
        let calls = [step.call(&x).map(drop), step.call(&x).map(drop)];
        assert!(matches!(calls, [_, Err(Error::RecordingChanged { .. })]), "{calls:?}");
        factor.set(2.0);
        step.finish().unwrap();
    }
}

#[test]
fn a_program_that_the_driver_refuses_after_it_was_recorded_ahead_is_recorded_again() {
    let device = Simulator::new(Profile::Discrete).invalidate_capture_at(1).device();
    let mut step = Step::new(&device, |x| Ok(vec![x[0].square()?]));
    let x = batch(0, 8, &device);
    step.record_ahead(&x).unwrap();
    assert!(matches!(step.call(&x).map(drop), Err(Error::Device { .. })));
    assert_eq!(step.programs(), 0);
    step.call(&x).unwrap();
    let checks = u64::from(common::strict());
    assert_eq!((step.programs(), step.recordings()), (1, 4 + checks));
    step.finish().unwrap();
}
