//! Learning rate schedules that follow a step counter on the device.

use std::f64::consts::PI;

use super::{check_control, check_option, cuda};
use crate::autograd::check_in_place;
use crate::device::{CudaArgs, HostArgs, Mode};
use crate::error::Result;
use crate::ops::{Dest, Op, Spec, Specs, apply, execute};
use crate::tensor::{DType, Tensor};

/// The learning rate as a function of the number of steps done (0 at the first step). After its last step, a schedule
/// keeps its last value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "kind", rename_all = "snake_case"))]
pub enum Schedule {
    /// The constant rate `lr`.
    Constant {
        /// The rate.
        lr: f64,
    },
    /// Half a cosine from `lr` at step 0 to `eta_min` at step `t_max`: Loshchilov and Hutter, "SGDR", ICLR 2017,
    /// without restarts.
    Cosine {
        /// The first rate.
        lr: f64,
        /// The last rate.
        eta_min: f64,
        /// The step at which the last rate is reached, at least 1.
        t_max: u64,
    },
    /// One cycle (Smith and Topin, "Super-convergence", 2018), like `OneCycleLR` of PyTorch with cosine annealing.
    /// The rate rises from `max_lr / div_factor` to `max_lr` at step `pct_start * total_steps - 1`. Then it falls to
    /// `max_lr / div_factor / final_div_factor` at the last step, `total_steps - 1`.
    OneCycle {
        /// The highest rate.
        max_lr: f64,
        /// The number of steps, at least 1.
        total_steps: u64,
        /// The share of the steps in which the rate rises, in `[0, 1]`.
        pct_start: f64,
        /// The first rate is `max_lr / div_factor`. More than 0.
        div_factor: f64,
        /// The last rate is the first rate divided by this. More than 0.
        final_div_factor: f64,
    },
    /// A linear rise from `start_factor * lr` to `lr` at step `warmup_steps`. Then the rate stays at `lr`.
    Warmup {
        /// The rate after the rise.
        lr: f64,
        /// The number of steps of the rise.
        warmup_steps: u64,
        /// The first rate as a share of `lr`, in `[0, 1]`.
        start_factor: f64,
    },
    /// A linear rise as in `Warmup`, then half a cosine down to `eta_min` at step `total_steps`.
    WarmupCosine {
        /// The highest rate.
        lr: f64,
        /// The number of steps of the rise, at most `total_steps`.
        warmup_steps: u64,
        /// The step at which `eta_min` is reached.
        total_steps: u64,
        /// The first rate as a share of `lr`, in `[0, 1]`.
        start_factor: f64,
        /// The last rate.
        eta_min: f64,
    },
}

/// Half a cosine from `start` to `end`. If `part` is above 1, the result is `end`.
fn anneal(start: f64, end: f64, part: f64) -> f64 {
    end + (start - end) * (1.0 + (PI * part.clamp(0.0, 1.0)).cos()) / 2.0
}

/// The progress of `step` on the way of `steps` steps. A way without steps is complete.
fn part(step: f64, steps: f64) -> f64 {
    if steps > 0.0 { step / steps } else { 1.0 }
}

impl Schedule {
    /// The learning rate after `step` steps.
    ///
    /// ```
    /// use refrain::optim::Schedule;
    /// let schedule = Schedule::Cosine { lr: 1e-3, eta_min: 0.0, t_max: 100 };
    /// assert_eq!([schedule.at(0), schedule.at(50), schedule.at(200)], [1e-3, 5e-4, 0.0]);
    /// ```
    pub fn at(&self, step: u64) -> f64 {
        let t = step as f64;
        match *self {
            Schedule::Constant { lr } => lr,
            Schedule::Cosine { lr, eta_min, t_max } => anneal(lr, eta_min, part(t, t_max as f64)),
            Schedule::OneCycle { max_lr, total_steps, pct_start, div_factor, final_div_factor } => {
                let (first, last) = (max_lr / div_factor, max_lr / div_factor / final_div_factor);
                let (peak, end) = (pct_start * total_steps as f64 - 1.0, total_steps as f64 - 1.0);
                match t <= peak {
                    true => anneal(first, max_lr, part(t, peak)),
                    false => anneal(max_lr, last, part(t - peak, end - peak)),
                }
            }
            Schedule::Warmup { lr, warmup_steps, start_factor } => match step < warmup_steps {
                true => lr * (start_factor + (1.0 - start_factor) * t / warmup_steps as f64),
                false => lr,
            },
            Schedule::WarmupCosine { lr, warmup_steps, total_steps, start_factor, eta_min } => {
                match step < warmup_steps {
                    true => Schedule::Warmup { lr, warmup_steps, start_factor }.at(step),
                    false => {
                        let warm = warmup_steps as f64;
                        anneal(lr, eta_min, part(t - warm, total_steps as f64 - warm))
                    }
                }
            }
        }
    }

    /// Checks the arguments.
    ///
    /// # Errors
    /// If an argument is invalid; the error names it.
    pub fn validate(&self) -> Result<()> {
        let rate = |name, v: f64| check_option(OP, name, v, v >= 0.0, "at least 0");
        let part = |name, v: f64| check_option(OP, name, v, (0.0..=1.0).contains(&v), "from 0 to 1");
        let divisor = |name, v: f64| check_option(OP, name, v, v > 0.0, "more than 0");
        let steps = |name, v: u64| check_option(OP, name, v as f64, v > 0, "at least 1");
        match *self {
            Schedule::Constant { lr } => rate("lr", lr),
            Schedule::Cosine { lr, eta_min, t_max } => {
                rate("lr", lr)?;
                rate("eta_min", eta_min)?;
                steps("t_max", t_max)
            }
            Schedule::OneCycle { max_lr, total_steps, pct_start, div_factor, final_div_factor } => {
                rate("max_lr", max_lr)?;
                steps("total_steps", total_steps)?;
                part("pct_start", pct_start)?;
                divisor("div_factor", div_factor)?;
                divisor("final_div_factor", final_div_factor)
            }
            Schedule::Warmup { lr, start_factor, .. } => {
                rate("lr", lr)?;
                part("start_factor", start_factor)
            }
            Schedule::WarmupCosine { lr, warmup_steps, total_steps, start_factor, eta_min } => {
                rate("lr", lr)?;
                rate("eta_min", eta_min)?;
                part("start_factor", start_factor)?;
                let valid = warmup_steps <= total_steps;
                let range = format!("at most total_steps, {total_steps}");
                check_option(OP, "warmup_steps", warmup_steps as f64, valid, &range)
            }
        }
    }
}

const OP: &str = "learning_rate";

#[derive(Clone, Debug)]
struct LearningRate(Schedule);

/// The learning rate of `schedule` for the step counter on the device: f64 `[1]` from i64 `[1]`. A negative counter
/// counts as 0.
///
/// # Errors
/// If an argument of the schedule is invalid ([`Schedule::validate`]), or `step` is not i64 `[1]`.
pub fn learning_rate(schedule: Schedule, step: &Tensor) -> Result<Tensor> {
    apply(LearningRate(schedule), &[step])
}

/// [`learning_rate`] into the memory of `dst`, f64 `[1]`.
pub fn learning_rate_into(schedule: Schedule, step: &Tensor, dst: &Tensor) -> Result<()> {
    check_in_place(OP, dst)?;
    execute(&LearningRate(schedule), &[step], &[Dest::Into(dst.clone(), Mode::Replace)])?;
    Ok(())
}

impl Op for LearningRate {
    const NAME: &'static str = OP;

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        self.0.validate()?;
        check_control(OP, "step counter", x[0], DType::I64)?;
        Ok(Spec::new(1, DType::F64).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let step = args.read::<i64>(0)?[0].max(0) as u64;
        args.write::<f64>(0)?[0] = self.0.at(step);
        Ok(())
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::learning_rate(&self.0, args)
    }
}
