//! **Seen:** an operation saved a value for the backward pass, and the value's memory was reused before the backward
//! pass read it. The memory was in a pool that was reset, or was freed as soon as its tensor was dropped. With enough
//! free memory the error did not show.
//!
//! **Found here:** another tensor that gets the memory of a saved value: in eager code that allocates all memory in
//! between, and in the memory plan of a recorded step; memory that an exhausted device does not free.

use refrain::{DType, Device, Error, Profile, Result, Simulator, Step, Tensor};

use crate::common::{devices, leaf, turn, values};

const N: usize = 3000;
const LAYERS: usize = 6;

/// A chain whose backward pass needs each result; the caller drops all of them.
fn chain(x: &Tensor) -> Result<Tensor> {
    let mut h = x.exp()?;
    for _ in 0..LAYERS {
        h = h.tanh()?.square()?;
    }
    h.sum(())
}

/// The chain's slope at 0.25, by the chain rule in f64.
fn slope() -> f64 {
    let mut v = 0.25f64.exp();
    let mut slope = v;
    for _ in 0..LAYERS {
        let t = v.tanh();
        slope *= (1.0 - t * t) * 2.0 * t;
        v = t * t;
    }
    slope
}

#[track_caller]
fn assert_slope(gradient: &Tensor, times: f64, device: &Device) {
    for g in values(gradient) {
        assert!((g - times * slope()).abs() < 1e-5 * times * slope().abs(), "{g} on {device}");
    }
}

#[test]
fn buffers_saved_for_the_backward_pass_are_not_handed_out_again() {
    let _turn = turn();
    for device in devices() {
        let x = leaf(&vec![0.25; N], &device);
        let loss = chain(&x).unwrap();
        // The rest of the pool, filled with other values.
        let garbage: Vec<Tensor> =
            (0..40).map(|_| Tensor::full([N], 1e6, DType::F32, &device).unwrap()).collect();
        drop(garbage);
        let _garbage: Vec<Tensor> =
            (0..40).map(|_| Tensor::full([N], -1e6, DType::F32, &device).unwrap()).collect();
        loss.backward().unwrap();
        assert_slope(&x.grad().unwrap(), 1.0, &device);
    }
}

#[test]
fn a_backward_pass_after_all_memory_was_taken_is_right_or_a_typed_error() {
    let _turn = turn();
    for profile in [Profile::Discrete, Profile::Unified] {
        let device = Simulator::new(profile).memory(3 << 20).device();
        let x = leaf(&vec![0.25; N], &device);
        x.set_grad(&Tensor::zeros([N], DType::F32, &device).unwrap()).unwrap();
        // Creates the workspace.
        chain(&x).unwrap();
        let live = device.stats().live_bytes;
        for round in 1..4 {
            let loss = chain(&x).unwrap();
            // The rest of the memory, filled with other values.
            let mut garbage = Vec::new();
            let refused = loop {
                match Tensor::full([N], 1e6, DType::F32, &device) {
                    Ok(tensor) => garbage.push(tensor),
                    Err(error) => break error,
                }
            };
            assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
            assert!(garbage.len() > 10, "{}", garbage.len());
            if round == 2 {
                // Without the memory that the backward pass itself needs.
                let error = loss.backward().unwrap_err();
                assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
                drop((loss, garbage));
                x.zero_grad().unwrap();
            } else {
                garbage.truncate(garbage.len() / 2);
                loss.backward().unwrap();
                assert_slope(&x.grad().unwrap(), 1.0, &device);
                drop((loss, garbage));
                x.zero_grad().unwrap();
            }
            assert_eq!(device.stats().live_bytes, live, "round {round} on {device}");
        }
    }
}

#[test]
fn a_plan_keeps_saved_values_from_temporaries_in_between() {
    let _turn = turn();
    for device in devices() {
        let x = leaf(&vec![0.25; N], &device);
        x.set_grad(&Tensor::zeros([N], DType::F32, &device).unwrap()).unwrap();
        let mut step = Step::new(&device, |input| {
            let loss = chain(&x)?;
            // Temporaries of the same size that are alive between the forward and the backward pass.
            let mut other = input[0].clone();
            for _ in 0..10 {
                other = other.mul_scalar(-1.5)?.add_scalar(1e6)?;
            }
            loss.backward()?;
            Ok(vec![loss, other.sum(())?])
        });
        let input = Tensor::ones([N], DType::F32, &device).unwrap();
        for round in 1..4 {
            step.call(std::slice::from_ref(&input)).unwrap();
            assert_slope(&x.grad().unwrap(), f64::from(round), &device);
        }
        // Its block is smaller than the sum of all temporaries, so memory is reused.
        let program = step.program().unwrap();
        assert!(program.block_bytes() < program.temporaries() * N * 4, "{program}");
        step.finish().unwrap();
    }
}
