//! Cuts windows out of a series that is on the device.

mod cuda;
mod host;

use super::{Needs, Op, Spec, Specs, apply, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::positions::{require_positions, with_positions};
use crate::tensor::Tensor;

/// The windows `[B, C, length]`. Operands: the series `[T, C]` and the starts `[B]`.
#[derive(Clone, Debug)]
struct Windows {
    length: usize,
}

impl Op for Windows {
    const NAME: &'static str = "windows";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let &[time, channels] = x[0].dims() else {
            return Err(Error::invalid(
                Self::NAME,
                format!("the series has shape {}; it must be [time, channels]", x[0].shape()),
            ));
        };
        let &[count] = x[1].dims() else {
            return Err(Error::invalid(
                Self::NAME,
                format!("the starts have shape {}; they must have one dimension", x[1].shape()),
            ));
        };
        require_positions(Self::NAME, "starts", x[1])?;
        if self.length > time {
            return Err(Error::invalid(
                Self::NAME,
                format!(
                    "windows of {} time steps are longer than the series, which has {time}; use a shorter length",
                    self.length
                ),
            ));
        }
        Ok(Spec::new([count, channels, self.length], x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 1, starts => host::forward(self.length, starts, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self.length, args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn input_needs(&self, i: usize) -> Needs {
        if i == 0 { Needs::Any } else { Needs::Contiguous }
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (grad, starts) = (g.grad()?.clone(), g.input(1)?);
        let time = g.input_shape(0)[0];
        g.emit(&[0], AddWindows { time }, &[&grad, &starts])
    }
}

/// The adjoint: adds windows back to where they were cut, in order, to zeros of shape `[time, C]`.
#[derive(Clone, Debug)]
struct AddWindows {
    time: usize,
}

impl Op for AddWindows {
    const NAME: &'static str = "windows_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        require_positions(Self::NAME, "starts", x[1])?;
        match (x[0].dims(), x[1].dims()) {
            (&[count, channels, length], &[starts]) if count == starts && length <= self.time => {
                Ok(Spec::new([self.time, channels], x[0].dtype()).one())
            }
            _ => Err(Error::shapes(
                Self::NAME,
                x[0].shape(),
                x[1].shape(),
                "the first must be [count, channels, length], the second [count]",
            )),
        }
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 1, starts => host::backward(self.time, starts, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.time, args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

impl Tensor {
    /// Cuts windows out of this series `[T, C]` (time steps, channels). `starts` is `[B]` (i64 or i32). The result is
    /// `[B, C, length]` with `result[b, c, l] = series[starts[b] + l, c]`.
    ///
    /// For every dtype. The series is read in place, with any strides; only the result is written. Windows may
    /// overlap; the gradient of the series adds them up in order.
    ///
    /// # Errors
    /// If a shape or dtype is wrong, the length exceeds the series, or a window reaches beyond the series. On the CPU
    /// the error names the first bad start, and nothing is written. On a GPU a later call on the device returns the
    /// error ([`Device::synchronize`](crate::Device::synchronize)); the window of a bad start has NaN (0 for other
    /// dtypes than floats) and gets no gradient.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let device = Device::cpu();
    /// let series = Tensor::from_slice(&[0.0f32, 0.5, 1.0, 1.5, 2.0, 2.5], [3, 2], &device)?;
    /// let starts = Tensor::from_slice(&[1i64, 0], [2], &device)?;
    /// let windows = series.windows(&starts, 2)?;
    /// assert_eq!(windows.dims(), [2, 2, 2]);
    /// assert_eq!(windows.to_vec::<f32>()?, [1.0, 2.0, 1.5, 2.5, 0.0, 1.0, 0.5, 1.5]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn windows(&self, starts: &Tensor, length: usize) -> Result<Tensor> {
        apply(Windows { length }, &[self, starts])
    }

    /// [`Tensor::windows`] into the memory of `dst`.
    pub fn windows_into(&self, starts: &Tensor, length: usize, dst: &Tensor) -> Result<()> {
        apply_into(Windows { length }, &[self, starts], dst)
    }
}
