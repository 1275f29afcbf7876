//! An average of the weights over training.

use refrain::{DType, Tensor, no_grad};

use crate::error::{Error, Result};
use crate::parameters::Parameters;

/// The exponential moving average of the parameters (Polyak and Juditsky, 1992), which often predicts better than the last
/// weights. It is on the device, so [`Ema::update`] can be a part of a recorded step. Buffers such as running statistics
/// are not averaged.
///
/// ```
/// use refrain::{DType, Device, Generator, no_grad};
/// use refrain_nn::{Ema, Linear, ParameterBuilder};
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// Linear::new(&builder, 1, 1)?;
/// let parameters = builder.build(&Generator::new(&device, 0)?)?;
/// let weight = parameters.get("weight")?;
/// no_grad(|| weight.fill(0.0))?;
/// let ema = Ema::new(&parameters, 0.75)?;
/// no_grad(|| weight.fill(8.0))?; // a step of training
/// ema.update(&parameters)?;
/// ema.with_average(&parameters, || {
///     assert_eq!(weight.to_scalar::<f32>()?, 2.0); // 0.75 * 0 + 0.25 * 8
///     Ok(())
/// })?;
/// assert_eq!(weight.to_scalar::<f32>()?, 8.0);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
///
/// A checkpoint keeps the average if it is in the [`Snapshot`](crate::Snapshot).
pub struct Ema {
    decay: f64,
    average: Tensor,
    /// The storage of the weights that are averaged ([`Tensor::storage_id`]).
    weights: u64,
}

impl Ema {
    /// Begins with the current weights. `decay` is the share of the old average in the new one, often 0.999.
    ///
    /// # Errors
    /// If `decay` is not in `[0, 1]`, or the device has not enough memory.
    pub fn new(parameters: &Parameters, decay: f64) -> Result<Ema> {
        if !(0.0..=1.0).contains(&decay) {
            return Err(Error::invalid("Ema", format!("decay is {decay}; it must be from 0 to 1")));
        }
        let values = parameters.values().detach();
        // f16 and bf16 have too few digits for the small changes of an average.
        let average = match values.dtype() {
            DType::F16 | DType::BF16 => values.to_dtype(DType::F32)?,
            _ => values.copy()?,
        };
        Ok(Ema { decay, average, weights: values.storage_id() })
    }

    /// Moves the average towards the weights: `average += (1 - decay) * (weights - average)`. Call it after each step of
    /// the optimiser.
    ///
    /// # Errors
    /// If these are not the parameters that it was made for, or the device fails.
    pub fn update(&self, parameters: &Parameters) -> Result<()> {
        self.check(parameters)?;
        no_grad(|| {
            let way = parameters.values().detach().to_dtype(self.average.dtype())?.sub(&self.average)?;
            Ok(self.average.add_assign(&way.mul_scalar(1.0 - self.decay)?)?)
        })
    }

    /// Runs `f` while the parameters have the averaged values, for example to evaluate or to save them. Afterwards they
    /// have their own values again, also if `f` returns an error (but not if it panics).
    ///
    /// # Errors
    /// What `f` returns. If these are not the parameters that it was made for, or the device fails.
    pub fn with_average<R>(&self, parameters: &Parameters, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.check(parameters)?;
        let values = parameters.values().detach();
        let own = values.copy()?;
        no_grad(|| values.copy_from(&self.average.to_dtype(values.dtype())?))?;
        let result = f();
        no_grad(|| values.copy_from(&own))?;
        result
    }

    /// The average in the layout of [`Parameters::values`], f32 if these are f16 or bf16.
    pub fn average(&self) -> &Tensor {
        &self.average
    }

    pub(crate) fn decay(&self) -> f64 {
        self.decay
    }

    pub(crate) fn check(&self, parameters: &Parameters) -> Result<()> {
        if parameters.values().storage_id() == self.weights {
            return Ok(());
        }
        let message = "these are the parameters of another model; pass those that the average was made for, or make one for these with `Ema::new`";
        Err(Error::invalid("Ema", message))
    }
}
