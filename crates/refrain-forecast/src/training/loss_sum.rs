//! The mean loss of the samples of an epoch, summed on the device.

use super::ranks::Ranks;
use crate::Result;
use refrain::{DType, Device, Tensor};
use refrain_nn::StepState;
use std::cell::RefCell;

/// Sums over the samples of an epoch so far, without those of steps that the optimiser skips.
pub(super) struct LossSum {
    /// The sum of the losses of this rank, and the number of samples of all ranks, f64 `[2]`.
    sums: Tensor,
    /// If several ranks train together: the sum of the losses of each, and the number of samples, as they were shared last.
    shared: RefCell<Option<(Vec<f64>, f64)>>,
}

impl LossSum {
    pub(super) fn new(device: &Device) -> Result<LossSum> {
        Ok(LossSum { sums: Tensor::zeros([2], DType::F64, device)?, shared: RefCell::default() })
    }

    /// Adds the loss of the last step, f64 `[]`. `times` multiplies a loss and a one, so that they are those of all samples of
    /// the batch.
    pub(super) fn add(&self, loss: &Tensor, last: &StepState, times: [Times<'_>; 2]) -> Result<()> {
        // NaN is not below infinity, either.
        let counts = last.gradient_norm().lt_scalar(f64::INFINITY)?;
        let losses = times[0](&loss.unsqueeze(0)?)?.masked_fill(&counts.eq_scalar(0.0)?, 0.0)?;
        let samples = times[1](&counts.to_dtype(DType::F64)?)?;
        self.sums.narrow(0, 0, 1)?.add_assign(&losses)?;
        Ok(self.sums.narrow(0, 1, 1)?.add_assign(&samples)?)
    }

    /// Gives each rank the sums of the others. Steps do not wait for that, so it is done after some of them.
    pub(super) fn share(&self, ranks: &Ranks) -> Result<()> {
        let [own, samples] = self.own()?;
        *self.shared.borrow_mut() = Some((ranks.numbers(own)?, samples));
        Ok(())
    }

    /// The mean, NaN if no sample counts. It waits for the device.
    pub(super) fn mean(&self) -> Result<f64> {
        let [losses, samples] = self.read()?;
        Ok(losses / samples)
    }

    /// The sum of the losses, as they were shared last, and the number of samples.
    pub(super) fn read(&self) -> Result<[f64; 2]> {
        match &*self.shared.borrow() {
            Some((of_ranks, samples)) => Ok([of_ranks.iter().sum(), *samples]),
            None => self.own(),
        }
    }

    /// The sum of each rank, as they were shared last.
    pub(super) fn of_ranks(&self) -> Vec<f64> {
        self.shared.borrow().as_ref().map(|(of_ranks, _)| of_ranks.clone()).unwrap_or_default()
    }

    fn own(&self) -> Result<[f64; 2]> {
        let mut sums = [0.0; 2];
        self.sums.read_into(&mut sums)?;
        Ok(sums)
    }

    /// Begins an epoch.
    pub(super) fn reset(&self) -> Result<()> {
        *self.shared.borrow_mut() = None;
        Ok(self.sums.fill(0.0)?)
    }

    /// Goes on from these sums. Of several ranks, each goes on with its own, if they are those of as many ranks.
    pub(super) fn write(
        &self,
        [losses, samples]: [f64; 2],
        of_ranks: &[f64],
        ranks: Option<&Ranks>,
    ) -> Result<()> {
        let Some(ranks) = ranks else { return Ok(self.sums.write_from(&[losses, samples])?) };
        let first = || if ranks.rank() == 0 { losses } else { 0.0 };
        let own = if of_ranks.len() == ranks.size() { of_ranks[ranks.rank()] } else { first() };
        self.sums.write_from(&[own, samples])?;
        self.share(ranks)
    }
}

/// What multiplies a number on the device.
type Times<'a> = &'a dyn Fn(&Tensor) -> refrain::Result<Tensor>;
