//! Where an optimiser takes its learning rate from.

use std::cell::Cell;
use std::sync::Arc;

use refrain::optim::Schedule;
use refrain::{DType, Device, Tensor, no_grad, optim};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The learning rate of an optimiser, as a function of the number of steps done, computed on the device. So a recorded
/// step follows it.
///
/// A [`Schedule`] converts to one. Others are functions of this type, and [`LearningRate::custom`] takes one that you write.
///
/// ```
/// use refrain::optim::AdamWOptions;
/// use refrain::{DType, Device, Generator};
/// use refrain_nn::{AdamW, LearningRate, Linear, Optimizer, ParameterBuilder};
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// Linear::new(&builder, 3, 1)?;
/// let parameters = builder.build(&Generator::new(&device, 0)?)?;
/// // A tenth every second step.
/// let rate = LearningRate::step_decay(0.1, 2, 0.1)?;
/// let optimizer = AdamW::new(&parameters, AdamWOptions::default(), rate)?;
/// let mut rates = Vec::new();
/// for _ in 0..4 {
///     optimizer.step()?;
///     rates.push(optimizer.step_state().learning_rate().to_scalar::<f64>()?);
/// }
/// assert_eq!(rates[..2], [0.1, 0.1]);
/// assert!((rates[2] - 0.01).abs() < 1e-15 && rates[2] == rates[3]);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
#[derive(Clone)]
pub struct LearningRate {
    rate: Rate,
    /// For checkpoints: two that differ in it are not the same.
    description: Value,
}

#[derive(Clone)]
enum Rate {
    Schedule(Schedule),
    Composed(Arc<dyn Fn(&Tensor) -> refrain::Result<Tensor> + Send + Sync>),
}

impl From<Schedule> for LearningRate {
    fn from(schedule: Schedule) -> LearningRate {
        LearningRate { rate: Rate::Schedule(schedule), description: json!(schedule) }
    }
}

fn check(what: &'static str, name: &str, value: f64, valid: bool, range: &str) -> Result<()> {
    if valid && value.is_finite() {
        return Ok(());
    }
    Err(Error::invalid(what, format!("{name} is {value}; it must be {range}")))
}

impl LearningRate {
    fn composed(
        description: Value,
        rate: impl Fn(&Tensor) -> refrain::Result<Tensor> + Send + Sync + 'static,
    ) -> LearningRate {
        LearningRate { rate: Rate::Composed(Arc::new(rate)), description }
    }

    /// `lr * gamma^(step / step_size)`, with whole numbers for the exponent: `StepLR` of PyTorch.
    ///
    /// # Errors
    /// If `lr` or `gamma` is negative or not finite, or `step_size` is 0.
    pub fn step_decay(lr: f64, step_size: u64, gamma: f64) -> Result<LearningRate> {
        const WHAT: &str = "step_decay";
        check(WHAT, "lr", lr, lr >= 0.0, "at least 0")?;
        check(WHAT, "gamma", gamma, gamma >= 0.0, "at least 0")?;
        check(WHAT, "step_size", step_size as f64, step_size > 0, "at least 1")?;
        let description = json!({ "kind": WHAT, "lr": lr, "step_size": step_size, "gamma": gamma });
        let size = step_size.min(1 << 53) as f64;
        Ok(LearningRate::composed(description, move |step| {
            step.div_scalar(size)?.to_dtype(DType::F64)?.scalar_pow(gamma)?.mul_scalar(lr)
        }))
    }

    /// `lr * gamma^step`: `ExponentialLR` of PyTorch.
    ///
    /// # Errors
    /// If `lr` or `gamma` is negative or not finite.
    pub fn exponential(lr: f64, gamma: f64) -> Result<LearningRate> {
        const WHAT: &str = "exponential";
        check(WHAT, "lr", lr, lr >= 0.0, "at least 0")?;
        check(WHAT, "gamma", gamma, gamma >= 0.0, "at least 0")?;
        let description = json!({ "kind": WHAT, "lr": lr, "gamma": gamma });
        Ok(LearningRate::composed(description, move |step| {
            step.to_dtype(DType::F64)?.scalar_pow(gamma)?.mul_scalar(lr)
        }))
    }

    /// The rates of the first steps, one by one; the last of them for all later steps. The table is kept on the device.
    ///
    /// # Errors
    /// If there is none, or one is negative or not finite.
    pub fn table(rates: &[f64], device: &Device) -> Result<LearningRate> {
        const WHAT: &str = "table";
        if rates.is_empty() {
            return Err(Error::invalid(WHAT, "it has no rates; give at least one"));
        }
        rates.iter().try_for_each(|&rate| check(WHAT, "a rate", rate, rate >= 0.0, "at least 0"))?;
        let table = Tensor::from_slice(rates, rates.len(), device)?;
        let last = (rates.len() - 1) as f64;
        Ok(LearningRate::composed(json!({ "kind": WHAT, "rates": rates }), move |step| {
            table.index_select(0, &step.clamp(0.0, last)?)
        }))
    }

    /// A learning rate of your own: `rate` gets the number of steps done, i64 `[1]`, and returns the rate, a float `[1]` on
    /// the same device. It runs in every step, on the device and outside the tape; in a recorded step it is recorded with
    /// it. Besides the step counter it may read tensors that you write between steps.
    ///
    /// `description` is saved in checkpoints: a run continues only with the same one. It may hold the settings.
    ///
    /// ```
    /// use refrain::DType;
    /// use refrain_nn::LearningRate;
    /// // 0.1 / sqrt(step + 1)
    /// let rate = LearningRate::custom("inverse square root of 0.1", |step| {
    ///     step.to_dtype(DType::F64)?.add_scalar(1.0)?.rsqrt()?.mul_scalar(0.1)
    /// });
    /// # let _ = rate;
    /// ```
    pub fn custom(
        description: impl Into<Value>,
        rate: impl Fn(&Tensor) -> refrain::Result<Tensor> + Send + Sync + 'static,
    ) -> LearningRate {
        LearningRate::composed(json!({ "kind": "custom", "description": description.into() }), rate)
    }

    /// The schedule, if it is one.
    pub fn schedule(&self) -> Option<Schedule> {
        match self.rate {
            Rate::Schedule(schedule) => Some(schedule),
            Rate::Composed(_) => None,
        }
    }

    pub(super) fn describe(&self) -> &Value {
        &self.description
    }

    /// Computes the rate for a step counter into `dst`, f64 `[1]`.
    pub(super) fn write(&self, step: &Tensor, dst: &Tensor) -> Result<()> {
        match &self.rate {
            Rate::Schedule(schedule) => Ok(optim::learning_rate_into(*schedule, step, dst)?),
            Rate::Composed(rate) => no_grad(|| {
                let rate = rate(step)?;
                if rate.dims() != [1] || !rate.dtype().is_float() {
                    let found = format!(
                        "it gives {} {}; it must give a float of shape [1]",
                        rate.dtype(),
                        rate.shape()
                    );
                    return Err(Error::invalid("learning rate", found));
                }
                Ok(dst.copy_from(&rate.to_dtype(DType::F64)?)?)
            }),
        }
    }
}

/// The settings of a [`Plateau`], with the defaults of PyTorch's `ReduceLROnPlateau`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauOptions {
    /// The rate is multiplied by this. Between 0 and 1.
    pub factor: f64,
    /// How many observations in a row may fail to improve before the rate is reduced.
    pub patience: u64,
    /// An observation improves if it is below `best - threshold * |best|`.
    pub threshold: f64,
    /// The rate is never reduced below this.
    pub min_lr: f64,
}

impl Default for PlateauOptions {
    fn default() -> PlateauOptions {
        PlateauOptions { factor: 0.1, patience: 10, threshold: 1e-4, min_lr: 0.0 }
    }
}

/// What a [`Plateau`] has seen so far, for a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauState {
    /// The current rate.
    pub lr: f64,
    /// The lowest observation; `None` before the first.
    pub best: Option<f64>,
    /// How many observations in a row did not improve.
    pub without_improvement: u64,
}

/// A learning rate that is reduced when a loss no longer improves. You tell it the loss, for example once an epoch; the
/// rate is in a tensor on the device, so recorded steps see the new one.
///
/// ```
/// use refrain::Device;
/// use refrain_nn::{Plateau, PlateauOptions};
/// let options = PlateauOptions { factor: 0.5, patience: 1, ..PlateauOptions::default() };
/// let plateau = Plateau::new(0.1, options, &Device::cpu())?;
/// // AdamW::new(&parameters, AdamWOptions::default(), plateau.learning_rate())?
/// for loss in [3.0, 2.0, 2.0, 2.0] {
///     plateau.observe(loss)?;
/// }
/// assert_eq!(plateau.state().lr, 0.05);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct Plateau {
    options: PlateauOptions,
    state: Cell<PlateauState>,
    /// f64 `[1]`
    rate: Tensor,
}

impl Plateau {
    /// Begins at `lr`.
    ///
    /// # Errors
    /// If a setting is not finite or out of its range.
    pub fn new(lr: f64, options: PlateauOptions, device: &Device) -> Result<Plateau> {
        const WHAT: &str = "plateau";
        let PlateauOptions { factor, threshold, min_lr, .. } = options;
        check(WHAT, "lr", lr, lr >= 0.0, "at least 0")?;
        check(WHAT, "factor", factor, factor > 0.0 && factor < 1.0, "between 0 and 1")?;
        check(WHAT, "threshold", threshold, (0.0..1.0).contains(&threshold), "at least 0 and less than 1")?;
        check(WHAT, "min_lr", min_lr, min_lr >= 0.0, "at least 0")?;
        let state = Cell::new(PlateauState { lr, best: None, without_improvement: 0 });
        Ok(Plateau { options, state, rate: Tensor::from_slice(&[lr], 1, device)? })
    }

    /// The argument of an optimiser.
    pub fn learning_rate(&self) -> LearningRate {
        let rate = self.rate.clone();
        LearningRate::composed(json!({ "kind": "plateau", "options": self.options }), move |_| {
            Ok(rate.clone())
        })
    }

    /// Takes note of a loss and reduces the rate if it is due. A loss that is infinite or NaN does not improve.
    ///
    /// # Errors
    /// If the device fails.
    pub fn observe(&self, loss: f64) -> Result<()> {
        let PlateauOptions { factor, patience, threshold, min_lr } = self.options;
        let mut state = self.state.get();
        // For a negative best loss the threshold goes the other way, or the same loss would improve.
        let improves = |best: f64| loss < best - threshold * best.abs();
        match state.best.is_none_or(improves) && loss.is_finite() {
            true => (state.best, state.without_improvement) = (Some(loss), 0),
            false => state.without_improvement += 1,
        }
        if state.without_improvement > patience {
            state.without_improvement = 0;
            // A rate below the least one, which the user began with, stays.
            state.lr = (state.lr * factor).max(min_lr.min(state.lr));
        }
        self.set_state(state)
    }

    /// What it has seen so far, for a checkpoint.
    pub fn state(&self) -> PlateauState {
        self.state.get()
    }

    /// Continues from what [`Plateau::state`] returned.
    ///
    /// # Errors
    /// If the rate is negative or not finite, or the device fails.
    pub fn set_state(&self, state: PlateauState) -> Result<()> {
        check("plateau", "lr", state.lr, state.lr >= 0.0, "at least 0")?;
        self.rate.write_from(&[state.lr])?;
        self.state.set(state);
        Ok(())
    }
}
