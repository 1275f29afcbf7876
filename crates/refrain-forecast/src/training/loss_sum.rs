//! The mean loss of the samples of an epoch, summed on the device.

use crate::Result;
use refrain::{DType, Device, Tensor};
use refrain_nn::StepState;

/// Sums over the samples of an epoch so far, without those of steps that the optimiser skips.
pub(super) struct LossSum {
    /// The sum of the losses and the number of samples, f64 `[2]`.
    sums: Tensor,
}

impl LossSum {
    pub(super) fn new(device: &Device) -> Result<LossSum> {
        Ok(LossSum { sums: Tensor::zeros([2], DType::F64, device)? })
    }

    /// Adds the mean loss of the batch of the last step, f64 `[]`. `times_samples` multiplies by the number of its samples.
    pub(super) fn add(
        &self,
        loss: &Tensor,
        last: &StepState,
        times_samples: impl Fn(&Tensor) -> refrain::Result<Tensor>,
    ) -> Result<()> {
        // NaN is not below infinity, either.
        let counts = last.gradient_norm().lt_scalar(f64::INFINITY)?;
        let losses = times_samples(&loss.unsqueeze(0)?)?.masked_fill(&counts.eq_scalar(0.0)?, 0.0)?;
        let samples = times_samples(&counts.to_dtype(DType::F64)?)?;
        self.sums.narrow(0, 0, 1)?.add_assign(&losses)?;
        Ok(self.sums.narrow(0, 1, 1)?.add_assign(&samples)?)
    }

    /// The mean, NaN if no sample counts. It waits for the device.
    pub(super) fn mean(&self) -> Result<f64> {
        let [losses, samples] = self.read()?;
        Ok(losses / samples)
    }

    /// The sum of the losses, and the number of samples.
    pub(super) fn read(&self) -> Result<[f64; 2]> {
        let mut sums = [0.0; 2];
        self.sums.read_into(&mut sums)?;
        Ok(sums)
    }

    pub(super) fn write(&self, sums: [f64; 2]) -> Result<()> {
        Ok(self.sums.write_from(&sums)?)
    }
}
