//! Linear recurrences along an axis.

mod host;

use smallvec::{SmallVec, smallvec};

use super::super::{Op, Spec, Specs, apply, apply_into, check_devices, check_dtypes};
use super::cuda;
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::reduction::Extent;
use crate::tensor::{Shape, Tensor, resolve_axis};

/// `y[t] = decay[t] y[t - 1] + x[t]` along an axis. Operands: `x`, the decay, and what is before `y[0]`, if anything.
#[derive(Clone, Copy, Debug)]
struct Recurrence {
    axis: usize,
    extent: Extent,
    /// Whether something is before `y[0]`; otherwise, that is 0.
    first: bool,
}

/// Operands: the decay and the gradient `dy`; for the gradient of the decay also the results `y`, and what is before, if anything.
/// With `g[t] = dy[t] + decay[t + 1] g[t + 1]` the results are: `g`, which is the gradient of `x`; `g[t] y[t - 1]`, that of the decay, if
/// it is wanted; `g[0] decay[0]`, that of what is before, if there is anything.
#[derive(Clone, Copy, Debug)]
struct RecurrenceBackward {
    axis: usize,
    extent: Extent,
    first: bool,
    decay: bool,
}

impl Op for Recurrence {
    const NAME: &'static str = "linear_recurrence";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        x[1..].iter().try_for_each(|other| check_dtypes(Self::NAME, x[0], other))?;
        Ok(Spec::new(x[0].shape(), x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self.extent, self.first, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::recurrence(self.extent, self.first, args)
    }

    fn cuda_workspace(&self, _: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(self.extent))
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        let saves = Saves::default().input(1).input_if(2, self.first && needs[1]);
        if needs[1] { saves.output(0) } else { saves }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let Recurrence { axis, extent, first } = *self;
        let (decay, dy, wanted) = (g.input(1)?, g.grad()?.clone(), g.needs(1));
        let mut operands: SmallVec<[Tensor; 4]> = smallvec![decay, dy];
        if wanted {
            operands.push(g.output(0)?);
        }
        if wanted && first {
            operands.push(g.input(2)?);
        }
        let targets: SmallVec<[usize; 3]> = [(0, true), (1, wanted), (2, first)]
            .into_iter()
            .filter(|(_, there)| *there)
            .map(|(i, _)| i)
            .collect();
        let operands: SmallVec<[&Tensor; 4]> = operands.iter().collect();
        g.emit(&targets, RecurrenceBackward { axis, extent, first, decay: wanted }, &operands)
    }
}

impl Op for RecurrenceBackward {
    const NAME: &'static str = "linear_recurrence_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let mut specs: Specs = smallvec![Spec::like(x[0])];
        if self.decay {
            specs.push(Spec::like(x[0]));
        }
        if self.first {
            let dims = x[0].dims().iter().enumerate().filter(|(i, _)| *i != self.axis).map(|(_, &n)| n);
            specs.push(Spec::new(dims.collect::<SmallVec<[usize; 6]>>().as_slice(), x[0].dtype()));
        }
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::recurrence_backward(self.extent, [self.first, self.decay], args)
    }

    fn cuda_workspace(&self, _: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(self.extent))
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

impl Tensor {
    /// `y[t] = decay[t] * y[t - 1] + self[t]` along an axis, with `first` before `y[0]` (0 if it is `None`). It is the state of a
    /// linear state-space model (Gu and Dao, Mamba, 2023; Orvieto et al., 2023), an exponential moving average, a discounted sum
    /// of rewards, a filter. One launch computes all time steps, on a GPU those of a long axis side by side.
    ///
    /// The decay broadcasts to the shape of this tensor; `first` has that shape without the axis. For floats of one dtype. f16 and bf16
    /// are computed in f32, and each result is rounded once. A negative axis counts from the last one.
    ///
    /// On a GPU, the decays of some steps are multiplied first, so their product may overflow where the results do not.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let device = Device::cpu();
    /// // An exponential moving average: y[t] = 0.5 y[t - 1] + 0.5 x[t].
    /// let x = Tensor::from_slice(&[8.0f32, 0.0, 4.0], [3], &device)?;
    /// let decay = Tensor::full((), 0.5, DType::F32, &device)?;
    /// let first = Tensor::full((), 16.0, DType::F32, &device)?;
    /// let y = (&x * 0.5)?.linear_recurrence(&decay, 0, Some(&first))?;
    /// assert_eq!(y.to_vec::<f32>()?, [12.0, 6.0, 5.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the axis is out of range, dtypes differ, the decay does not broadcast, or `first` has another shape.
    pub fn linear_recurrence(&self, decay: &Tensor, axis: isize, first: Option<&Tensor>) -> Result<Tensor> {
        let (op, decay) = recurrence(self, decay, axis, first)?;
        match first.filter(|_| op.first) {
            Some(first) => apply(op, &[self, &decay, first]),
            None => apply(op, &[self, &decay]),
        }
    }

    /// [`Tensor::linear_recurrence`] into the memory of `dst`.
    ///
    /// # Errors
    /// The same, and if `dst` does not match the result.
    pub fn linear_recurrence_into(
        &self,
        decay: &Tensor,
        axis: isize,
        first: Option<&Tensor>,
        dst: &Tensor,
    ) -> Result<()> {
        let (op, decay) = recurrence(self, decay, axis, first)?;
        match first.filter(|_| op.first) {
            Some(first) => apply_into(op, &[self, &decay, first], dst),
            None => apply_into(op, &[self, &decay], dst),
        }
    }
}

/// The operation, and the decay of each element.
fn recurrence(
    x: &Tensor,
    decay: &Tensor,
    axis: isize,
    first: Option<&Tensor>,
) -> Result<(Recurrence, Tensor)> {
    const OP: &str = Recurrence::NAME;
    let axis = resolve_axis(OP, axis, x.rank())?;
    if Shape::broadcast(OP, x.shape(), decay.shape())? != *x.shape() {
        let hint = "the decay must broadcast to the shape of the tensor";
        return Err(Error::shapes(OP, x.shape(), decay.shape(), hint));
    }
    if let Some(first) = first {
        check_dtypes(OP, x, first)?;
        check_devices(OP, &[x, first])?;
        let dims = x.dims().iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, &n)| n);
        if !dims.eq(first.dims().iter().copied()) {
            let hint = "what is before must have the shape of the tensor without the axis";
            return Err(Error::shapes(OP, x.shape(), first.shape(), hint));
        }
    }
    // Without a step, nothing follows from what is before.
    let op =
        Recurrence { axis, extent: Extent::of_axis(x, axis), first: first.is_some() && x.dims()[axis] > 0 };
    Ok((op, decay.broadcast_to(x.shape())?))
}
