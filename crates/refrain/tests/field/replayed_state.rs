//! **Seen:** a captured step replayed the optimiser with the step count, the learning rate and the dropout mask of the
//! moment when it was captured. The loss fell for a while and then learned wrongly, and nobody was told.
//!
//! **Found here:** random numbers of a replay that are not new, or not those that eager code draws; a step count, bias
//! correction or learning rate that stands still.

use refrain::optim::{
    AdamWBuffers, AdamWOptions, Schedule, Segment, SegmentTable, adamw, learning_rate_into,
};
use refrain::{DType, Device, Generator, Result, Step, Tensor, no_grad};

use crate::common::{devices, tensor, turn, values};

#[test]
fn replays_draw_the_numbers_that_eager_code_draws() {
    let _turn = turn();
    for device in devices() {
        let (eager, recorded) = (Generator::new(&device, 9).unwrap(), Generator::new(&device, 9).unwrap());
        let draw = |g: &Generator| -> Result<Tensor> {
            let a = g.normal([5], DType::F32)?;
            a.add(&g.uniform([5], DType::F32)?)
        };
        let mut step = Step::new(&device, |_| Ok(vec![draw(&recorded)?]));
        let mut other = Step::new(&device, |_| Ok(vec![recorded.uniform([3], DType::F32)?]));
        for i in 0..6 {
            let expected = draw(&eager).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(step.call(&[]).unwrap().to_vec::<f32>(0).unwrap(), expected, "replay {i}");
            assert_eq!(eager.state().unwrap(), recorded.state().unwrap());
            // In between, eager code and another step draw from it.
            let expected = eager.normal([7], DType::F32).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(recorded.normal([7], DType::F32).unwrap().to_vec::<f32>().unwrap(), expected);
            let expected = eager.uniform([3], DType::F32).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(other.call(&[]).unwrap().to_vec::<f32>(0).unwrap(), expected);
            if i == 3 {
                recorded.set_state(77, 5).unwrap();
                eager.set_state(77, 5).unwrap();
            }
        }
        step.finish().unwrap();
        other.finish().unwrap();
    }
}

#[test]
fn each_replay_drops_other_elements_those_that_eager_code_drops() {
    let _turn = turn();
    for device in devices() {
        let [eager, recorded] = [0, 1].map(|_| Generator::new(&device, 11).unwrap());
        let x = Tensor::ones([256], DType::F32, &device).unwrap();
        let mut step =
            Step::new(&device, |x| Ok(vec![x[0].dropout(0.5, &recorded)?.dropout(0.2, &recorded)?]));
        let mut masks = Vec::new();
        for replay in 0..8 {
            let expected = x.dropout(0.5, &eager).unwrap().dropout(0.2, &eager).unwrap();
            let dropped = step.call(std::slice::from_ref(&x)).unwrap().to_vec::<f32>(0).unwrap();
            assert_eq!(dropped, expected.to_vec::<f32>().unwrap(), "replay {replay} on {device}");
            let kept = dropped.iter().filter(|&&v| v != 0.0).count();
            assert!((60..145).contains(&kept), "{kept} of 256 kept");
            assert!(!masks.contains(&dropped), "the mask of replay {replay} was there before");
            masks.push(dropped);
        }
        step.finish().unwrap();
    }
}

/// AdamW on four numbers whose gradients are always 1.
struct Constant {
    flat: [Tensor; 4],
    step: Tensor,
    learning_rate: Tensor,
    one: Tensor,
    segments: SegmentTable,
}

const SCHEDULE: Schedule =
    Schedule::WarmupCosine { lr: 0.1, warmup_steps: 5, total_steps: 40, start_factor: 0.2, eta_min: 1e-3 };

impl Constant {
    fn new(device: &Device) -> Constant {
        let numbers = |v: f64| Tensor::full([4], v, DType::F64, device).unwrap();
        Constant {
            flat: [1.0, 0.0, 0.0, 0.0].map(numbers),
            step: Tensor::zeros([1], DType::I64, device).unwrap(),
            learning_rate: Tensor::zeros([1], DType::F64, device).unwrap(),
            one: Tensor::ones([1], DType::F64, device).unwrap(),
            segments: SegmentTable::new(&[Segment::new(0, 4)], device).unwrap(),
        }
    }

    fn update(&self) -> Result<()> {
        let [parameters, gradients, exp_avg, exp_avg_sq] = &self.flat;
        no_grad(|| {
            gradients.add_scalar_assign(1.0)?;
            learning_rate_into(SCHEDULE, &self.step, &self.learning_rate)?;
            let buffers = AdamWBuffers {
                parameters,
                gradients,
                exp_avg,
                exp_avg_sq,
                step: &self.step,
                learning_rate: &self.learning_rate,
                gradient_scale: &self.one,
                segments: &self.segments,
            };
            adamw(AdamWOptions { weight_decay: 0.0, eps: 0.0, ..AdamWOptions::default() }, buffers)?;
            self.step.add_scalar_assign(1.0)
        })
    }
}

#[test]
fn the_step_count_its_bias_correction_and_the_schedule_advance_in_replays() {
    let _turn = turn();
    for device in devices() {
        let numbers = Constant::new(&device);
        let mut step = Step::new(&device, |_| {
            numbers.update()?;
            Ok(vec![])
        });
        // With a constant gradient both corrected moments are 1: each step goes by its learning rate, exactly that.
        let mut expected = 1.0;
        for replay in 0..40u64 {
            step.call(&[]).unwrap();
            let rate = rate(replay);
            expected -= rate;
            assert_eq!(values(&numbers.step), [(replay + 1) as f64], "{device}");
            let got = values(&numbers.learning_rate)[0];
            assert!(
                (got - rate).abs() < 1e-12,
                "rate {got} instead of {rate} in replay {replay} on {device}"
            );
            for p in values(&numbers.flat[0]) {
                assert!(
                    (p - expected).abs() < 1e-9,
                    "{p} instead of {expected} after replay {replay} on {device}"
                );
            }
        }
        // A checkpoint that is loaded between replays sets the count of the next.
        numbers.step.copy_from(&tensor(&[7.0], [1], DType::I64, &device)).unwrap();
        step.call(&[]).unwrap();
        assert!((values(&numbers.learning_rate)[0] - rate(7)).abs() < 1e-12);
        step.finish().unwrap();
    }
}

/// Linear from a fifth to the whole over five steps, then a half cosine down to `eta_min` at step 40.
fn rate(step: u64) -> f64 {
    let (lr, low) = (0.1, 1e-3);
    if step < 5 {
        return lr * (0.2 + 0.8 * step as f64 / 5.0);
    }
    let part = (step - 5) as f64 / 35.0;
    low + 0.5 * (lr - low) * (1.0 + (std::f64::consts::PI * part).cos())
}
