//! Pads a tensor with one value, or with elements of its own.

mod backward;
mod cuda;
mod mode;

use smallvec::SmallVec;

use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::Gradients;
use crate::device::cpu::numeric::{Stored, with_stored};
use crate::device::cpu::parallel;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::positions::{advance, unravel};
use crate::kernels::rows::rows_a_task;
use crate::tensor::{DType, Shape, Tensor};
use backward::PadBackward;
use mode::Axis;
pub use mode::PadMode;

type Axes = SmallVec<[Axis; 6]>;

/// The operand with padding before and after it along each axis.
#[derive(Clone, Debug)]
struct Pad {
    padding: SmallVec<[(usize, usize); 6]>,
    mode: PadMode,
}

impl Pad {
    /// The axes of an operand of this shape.
    fn axes(&self, shape: &[usize]) -> impl DoubleEndedIterator<Item = Axis> + ExactSizeIterator {
        let axes = shape.iter().zip(&self.padding);
        axes.map(|(&size, &(before, after))| Axis { size, before, after })
    }

    /// The value, if there is one; for bool, 0 or 1.
    fn value(&self, dtype: DType) -> f64 {
        match self.mode {
            PadMode::Constant(value) if dtype == DType::Bool => (value != 0.0) as u8 as f64,
            PadMode::Constant(value) => value,
            _ => 0.0,
        }
    }

    /// Whether each axis has the elements that its padding repeats.
    fn check_sizes(&self, shape: &Shape) -> Result<()> {
        for (i, axis) in self.axes(shape).enumerate() {
            let most = match self.mode {
                PadMode::Constant(_) => continue,
                PadMode::Replicate if axis.size > 0 => continue,
                PadMode::Reflect => axis.size.saturating_sub(1),
                PadMode::Replicate | PadMode::Circular => axis.size,
            };
            if axis.before.max(axis.after) > most {
                return Err(Error::invalid(
                    Self::NAME,
                    format!(
                        "the padding of axis {i} is {:?} for a tensor of shape {shape}; {:?} takes up to {most} on each side of it",
                        (axis.before, axis.after),
                        self.mode
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl Op for Pad {
    const NAME: &'static str = "pad";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let (shape, dtype) = (x[0].shape(), x[0].dtype());
        if self.padding.len() != x[0].rank() {
            return Err(Error::invalid(
                Self::NAME,
                format!(
                    "the padding is {:?} for a tensor of shape {shape}; give a pair (before, after) for each axis",
                    self.padding.as_slice(),
                ),
            ));
        }
        if let PadMode::Constant(value) = self.mode {
            if !dtype.is_float() && value.fract() != 0.0 {
                return Err(Error::invalid(
                    Self::NAME,
                    format!("the value is {value} for a tensor of dtype {dtype}; use a whole number"),
                ));
            }
            dtype.require_in_range(Self::NAME, value)?;
        }
        self.check_sizes(shape)?;
        let padded: Shape = (shape.iter().zip(&self.padding))
            .map(|(d, &(before, after))| d.saturating_add(before).saturating_add(after))
            .collect();
        Ok(Spec::new(padded, dtype).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let (from, to) = (args.read_layout(0), args.write_shape(0));
        let outer = from.rank().saturating_sub(1);
        let row = to.get(outer).copied().unwrap_or(1);
        let last = self.axes(from.shape()).next_back().unwrap_or(Axis { size: 1, before: 0, after: 0 });
        let (value, mode, repeats) = (self.value(args.write_dtype(0)), self.mode, self.mode.repeats());
        with_stored!(args.write_dtype(0), T => {
            let value = T::from_number(value);
            let (x, y) = (args.read::<T>(0)?, args.write::<T>(0)?);
            if x.is_empty() {
                y.fill(value);
                return Ok(());
            }
            // Where the row of the operand begins that belongs to these coordinates.
            let start_of = |at: &[usize]| {
                let axes = at.iter().zip(self.axes(from.shape())).zip(from.strides());
                axes.map(|((&at, axis), &stride)| axis.source(mode, at).map(|at| at * stride))
                    .sum::<Option<usize>>()
            };
            let rows = rows_a_task(row);
            parallel::pieces(y, rows * row, |piece, y| {
                let mut at = unravel(piece * rows, &to[..outer]);
                if repeats {
                    for y in y.chunks_exact_mut(row) {
                        if let Some(start) = start_of(&at) {
                            let x = &x[start..][..last.size];
                            y[last.before..][..last.size].copy_from_slice(x);
                            for at in (0..last.before).chain(row - last.after..row) {
                                if let Some(from) = last.source(mode, at) {
                                    y[at] = x[from];
                                }
                            }
                        }
                        advance(&mut at, &to[..outer]);
                    }
                    return;
                }
                // What lies between two rows is filled at once.
                let mut done = 0;
                for first in (last.before..y.len()).step_by(row) {
                    if let Some(start) = start_of(&at) {
                        y[done..first].fill(value);
                        done = first + last.size;
                        y[first..done].copy_from_slice(&x[start..][..last.size]);
                    }
                    advance(&mut at, &to[..outer]);
                }
                y[done..].fill(value);
            });
        });
        Ok(())
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::pad(self, args)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let axes: Axes = self.axes(g.input_shape(0)).collect();
        let mut grad = g.grad()?.clone();
        if self.mode.repeats() && !axes.iter().all(Axis::is_unpadded) {
            return g.emit(&[0], PadBackward { axes, mode: self.mode }, &[&grad]);
        }
        for (i, axis) in axes.iter().enumerate() {
            grad = grad.narrow(i as isize, axis.before, axis.size)?;
        }
        g.add(0, grad)
    }
}

impl Tensor {
    /// Pads the tensor. `padding` has a pair `(before, after)` of element counts for each axis. `mode` is the value to fill in, or a
    /// [`PadMode`] that repeats elements of the tensor. For every dtype; a value is rounded to it. The gradient of an element is the sum
    /// of the gradients of all its copies.
    ///
    /// # Errors
    /// If the number of pairs is not the number of axes; if an axis has fewer elements than [`PadMode::Circular`] repeats on a side of it,
    /// not more than [`PadMode::Reflect`] repeats, or none for [`PadMode::Replicate`]. For integers also if the value is not a whole
    /// number in the range of the dtype.
    ///
    /// ```
    /// use refrain::{Device, PadMode, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &Device::cpu())?;
    /// assert_eq!(x.pad(&[(1, 2)], 0.5)?.to_vec::<f32>()?, [0.5, 1.0, 2.0, 3.0, 0.5, 0.5]);
    /// assert_eq!(x.pad(&[(1, 2)], PadMode::Reflect)?.to_vec::<f32>()?, [2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
    /// assert_eq!(x.pad(&[(1, 2)], PadMode::Replicate)?.to_vec::<f32>()?, [1.0, 1.0, 2.0, 3.0, 3.0, 3.0]);
    /// assert_eq!(x.pad(&[(1, 2)], PadMode::Circular)?.to_vec::<f32>()?, [3.0, 1.0, 2.0, 3.0, 1.0, 2.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn pad(&self, padding: &[(usize, usize)], mode: impl Into<PadMode>) -> Result<Tensor> {
        apply(Pad { padding: SmallVec::from_slice(padding), mode: mode.into() }, &[self])
    }

    /// [`Tensor::pad`] into the memory of `dst`.
    pub fn pad_into(&self, padding: &[(usize, usize)], mode: impl Into<PadMode>, dst: &Tensor) -> Result<()> {
        apply_into(Pad { padding: SmallVec::from_slice(padding), mode: mode.into() }, &[self], dst)
    }
}
