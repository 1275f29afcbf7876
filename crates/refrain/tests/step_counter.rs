//! A step counter at the end of its range. A program of its own: on a GPU the error belongs to the device, and the next call
//! of any thread on it would tell it.

mod common;

use common::{devices, message, values};
use refrain::optim::{AdamWBuffers, AdamWOptions, Segment, SegmentTable, adamw};
use refrain::{DType, Step, Tensor, no_grad};

#[test]
fn a_step_counter_that_counts_no_steps_is_refused_and_nothing_is_updated() {
    for device in devices() {
        let full = |n: usize, value: f64| Tensor::full([n], value, DType::F64, &device).unwrap();
        let [parameters, gradients, exp_avg, exp_avg_sq] = [1.0, 2.0, 3.0, 4.0].map(|v| full(8, v));
        let (rate, scale) = (full(1, 0.1), full(1, 1.0));
        let segments = SegmentTable::new(&[Segment::new(0, 8)], &device).unwrap();
        for counter in [i64::MAX, -1, i64::MIN] {
            let step = Tensor::from_slice(&[counter], 1, &device).unwrap();
            let buffers = || AdamWBuffers {
                parameters: &parameters,
                gradients: &gradients,
                exp_avg: &exp_avg,
                exp_avg_sq: &exp_avg_sq,
                step: &step,
                learning_rate: &rate,
                gradient_scale: &scale,
                segments: &segments,
            };
            // On a GPU the error is told as the host next waits.
            let eager =
                no_grad(|| adamw(AdamWOptions::default(), buffers())).and_then(|()| device.synchronize());
            assert!(message(eager).starts_with(&format!("adamw: the step counter is {counter};")));
            let mut recorded = Step::new(&device, |_| {
                adamw(AdamWOptions::default(), buffers())?;
                Ok(vec![])
            });
            let recorded = recorded.call(&[]).map(drop).and_then(|()| device.synchronize());
            assert!(message(recorded).starts_with(&format!("adamw: the step counter is {counter};")));
        }
        for (buffer, value) in [(&parameters, 1.0), (&gradients, 2.0), (&exp_avg, 3.0), (&exp_avg_sq, 4.0)] {
            assert_eq!(values(buffer), [value; 8], "on {device}");
        }
    }
}
