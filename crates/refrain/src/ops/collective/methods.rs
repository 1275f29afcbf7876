//! The public methods.

use super::*;

impl Communicator {
    fn collective(&self, call: CollectiveCall) -> Collective {
        Collective { call, communicator: self.clone() }
    }

    fn in_place(&self, call: CollectiveCall, x: &Tensor) -> Result<()> {
        check_in_place(call.name(), x)?;
        execute(&self.collective(call), &[x], &[Dest::Into(x.untracked(), Mode::Replace)])?;
        Ok(())
    }

    /// The sum or mean of `x` over all ranks, on each rank. All ranks get the same bits.
    ///
    /// The gradient is the same collective of the gradients: each rank's loss depends on the values of all ranks.
    ///
    /// ```
    /// # use refrain::{Communicator, Device, ReduceOp, Tensor};
    /// # let ranks = Communicator::in_process(&[Device::cpu(), Device::cpu()])?;
    /// # std::thread::scope(|scope| for rank in ranks { scope.spawn(move || {
    /// // On each of two ranks, with [1, 2] on rank 0 and [2, 3] on rank 1:
    /// # let first = 1.0 + rank.rank() as f32;
    /// # let x = Tensor::from_slice(&[first, first + 1.0], [2], rank.device()).unwrap();
    /// let mean = rank.all_reduce(&x, ReduceOp::Mean).unwrap();
    /// assert_eq!(mean.to_vec::<f32>().unwrap(), [1.5, 2.5]);
    /// # }); });
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for dtypes other than f64, f32, f16, bf16 and i64, and for a mean of i64;
    /// [`Error::DeviceMismatch`] if `x` is not on the communicator's device; [`Error::Collective`] and, on simulated GPUs,
    /// [`Error::Hazard`] if the ranks do not meet.
    pub fn all_reduce(&self, x: &Tensor, op: ReduceOp) -> Result<Tensor> {
        apply(self.collective(CollectiveCall::AllReduce(op)), &[x])
    }

    /// [`Communicator::all_reduce`] into the memory of `dst` (which may be `x`).
    pub fn all_reduce_into(&self, x: &Tensor, op: ReduceOp, dst: &Tensor) -> Result<()> {
        apply_into(self.collective(CollectiveCall::AllReduce(op)), &[x], dst)
    }

    /// [`Communicator::all_reduce`] in place, outside the tape: for gradients and statistics.
    ///
    /// ```
    /// # use refrain::{Communicator, Device, ReduceOp, Step, Tensor};
    /// # let ranks = Communicator::in_process(&[Device::cpu(), Device::cpu()])?;
    /// # std::thread::scope(|scope| for rank in ranks { scope.spawn(move || {
    /// // On each of two ranks: the mean of the ranks' gradients, within a recorded step.
    /// let device = rank.device();
    /// let w = Tensor::from_slice(&[1.0f32, 2.0], [2], device).unwrap();
    /// let gradient = w.zeros_like().unwrap();
    /// w.set_requires_grad(true).unwrap();
    /// w.set_grad(&gradient).unwrap();
    /// let mut step = Step::new(device, |x| {
    ///     gradient.fill(0.0)?;
    ///     w.mul(&x[0])?.sum(())?.backward()?;
    ///     rank.all_reduce_assign(&gradient, ReduceOp::Mean)?;
    ///     Ok(vec![gradient.copy()?])
    /// });
    /// let x = Tensor::full([2], rank.rank() as f64, refrain::DType::F32, device).unwrap();
    /// assert_eq!(step.call(&[x]).unwrap().to_vec::<f32>(0).unwrap(), [0.5, 0.5]);
    /// step.finish().unwrap();
    /// # }); });
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn all_reduce_assign(&self, x: &Tensor, op: ReduceOp) -> Result<()> {
        self.in_place(CollectiveCall::AllReduce(op), x)
    }

    /// The values of `x` of rank `root`, on each rank. `x` has the same shape and dtype on all ranks. It has no gradient.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and [`Error::InvalidArgument`] if there is no rank `root`.
    pub fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        apply(self.collective(CollectiveCall::Broadcast { root }), &[x])
    }

    /// [`Communicator::broadcast`] into the memory of `dst` (which may be `x`).
    pub fn broadcast_into(&self, x: &Tensor, root: usize, dst: &Tensor) -> Result<()> {
        apply_into(self.collective(CollectiveCall::Broadcast { root }), &[x], dst)
    }

    /// [`Communicator::broadcast`] in place, outside the tape: for parameters.
    pub fn broadcast_assign(&self, x: &Tensor, root: usize) -> Result<()> {
        self.in_place(CollectiveCall::Broadcast { root }, x)
    }

    /// The values of all ranks, one after the other along the first axis, on each rank: `[n, ..]` becomes `[size * n, ..]`.
    ///
    /// The gradient is the sum over the ranks of the part that came from this rank.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and [`Error::InvalidArgument`] for a scalar.
    pub fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        apply(self.collective(CollectiveCall::AllGather), &[x])
    }

    /// [`Communicator::all_gather`] into the memory of `dst`.
    pub fn all_gather_into(&self, x: &Tensor, dst: &Tensor) -> Result<()> {
        apply_into(self.collective(CollectiveCall::AllGather), &[x], dst)
    }

    /// This rank's part of the sum or mean of `x` over all ranks: `[size * n, ..]` becomes `[n, ..]`. The parts follow one
    /// another along the first axis.
    ///
    /// The gradient is that of all ranks, gathered (and divided by their number for a mean).
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and [`Error::InvalidArgument`] for a scalar and if the first axis is not a multiple of the
    /// number of ranks.
    pub fn reduce_scatter(&self, x: &Tensor, op: ReduceOp) -> Result<Tensor> {
        apply(self.collective(CollectiveCall::ReduceScatter(op)), &[x])
    }

    /// [`Communicator::reduce_scatter`] into the memory of `dst`.
    pub fn reduce_scatter_into(&self, x: &Tensor, op: ReduceOp, dst: &Tensor) -> Result<()> {
        apply_into(self.collective(CollectiveCall::ReduceScatter(op)), &[x], dst)
    }

    /// Waits until all ranks have come here, with all their work before. While a step is recorded: the collectives after it
    /// wait in the same way, on the device; the host does not wait.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and an error of earlier work.
    pub fn barrier(&self) -> Result<()> {
        const OP: &str = "barrier";
        let place = Tensor::empty(OP, &Shape::from([1]), DType::I64, self.device())?;
        execute(&self.collective(CollectiveCall::Barrier), &[], &[Dest::Into(place, Mode::Replace)])?;
        match recording::current() {
            Some(_) => Ok(()),
            None => self.device().synchronize(),
        }
    }
}
