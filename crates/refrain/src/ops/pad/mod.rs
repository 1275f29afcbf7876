//! Pads a tensor with one value.

mod cuda;

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

/// The operand with padding before and after it along each axis.
#[derive(Clone, Debug)]
struct Pad {
    padding: SmallVec<[(usize, usize); 6]>,
    value: f64,
}

impl Pad {
    /// The value; for bool, 0 or 1.
    fn value_as(&self, dtype: DType) -> f64 {
        if dtype == DType::Bool { (self.value != 0.0) as u8 as f64 } else { self.value }
    }
}

impl Op for Pad {
    const NAME: &'static str = "pad";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        if self.padding.len() != x[0].rank() {
            return Err(Error::invalid(
                Self::NAME,
                format!(
                    "the padding is {:?} for a tensor of shape {}; give a pair (before, after) for each axis",
                    self.padding.as_slice(),
                    x[0].shape()
                ),
            ));
        }
        if !x[0].dtype().is_float() && self.value.fract() != 0.0 {
            return Err(Error::invalid(
                Self::NAME,
                format!(
                    "the value is {} for a tensor of dtype {}; use a whole number",
                    self.value,
                    x[0].dtype()
                ),
            ));
        }
        x[0].dtype().require_in_range(Self::NAME, self.value)?;
        let shape: Shape = (x[0].dims().iter().zip(&self.padding))
            .map(|(d, &(before, after))| d.saturating_add(before).saturating_add(after))
            .collect();
        Ok(Spec::new(shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let (from, to) = (args.read_layout(0), args.write_shape(0));
        let outer = from.rank().saturating_sub(1);
        let width = from.shape().get(outer).copied().unwrap_or(1);
        let row = to.get(outer).copied().unwrap_or(1);
        let before = self.padding.get(outer).map_or(0, |p| p.0);
        let value = self.value_as(args.write_dtype(0));
        with_stored!(args.write_dtype(0), T => {
            let value = T::from_number(value);
            let (x, y) = (args.read::<T>(0)?, args.write::<T>(0)?);
            if x.is_empty() {
                y.fill(value);
                return Ok(());
            }
            // Where the row of the operand begins that belongs to these coordinates.
            let start_of = |at: &[usize]| {
                let axes = at.iter().zip(&self.padding).zip(from.shape().iter().zip(from.strides()));
                axes.map(|((&at, &(before, _)), (&d, &stride))| {
                    at.checked_sub(before).filter(|&at| at < d).map(|at| at * stride)
                })
                .sum::<Option<usize>>()
            };
            let rows = rows_a_task(row);
            parallel::pieces(y, rows * row, |piece, y| {
                let mut at = unravel(piece * rows, &to[..outer]);
                // What lies between two rows is filled at once.
                let mut done = 0;
                for first in (before..y.len()).step_by(row) {
                    if let Some(start) = start_of(&at) {
                        y[done..first].fill(value);
                        done = first + width;
                        y[first..done].copy_from_slice(&x[start..][..width]);
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
        cuda::pad(self, self.value_as(args.write_dtype(0)), args)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let shape = g.input_shape(0).clone();
        let mut grad = g.grad()?.clone();
        for (axis, (&size, &(before, _))) in shape.iter().zip(&self.padding).enumerate() {
            grad = grad.narrow(axis as isize, before, size)?;
        }
        g.add(0, grad)
    }
}

impl Tensor {
    /// Pads the tensor with `value`: `padding` has for each axis a pair `(before, after)` of element counts. For
    /// every dtype; the value is rounded to it.
    ///
    /// # Errors
    /// If the number of pairs is not the number of axes. For integers also if the value is not a whole number in the
    /// range of the dtype.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu())?;
    /// assert_eq!(x.pad(&[(1, 2)], 0.5)?.to_vec::<f32>()?, [0.5, 1.0, 2.0, 0.5, 0.5]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn pad(&self, padding: &[(usize, usize)], value: f64) -> Result<Tensor> {
        apply(Pad { padding: SmallVec::from_slice(padding), value }, &[self])
    }

    /// [`Tensor::pad`] into the memory of `dst`.
    pub fn pad_into(&self, padding: &[(usize, usize)], value: f64, dst: &Tensor) -> Result<()> {
        apply_into(Pad { padding: SmallVec::from_slice(padding), value }, &[self], dst)
    }
}
