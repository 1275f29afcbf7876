//! Repeats a tensor along its axes.

mod cuda;

use smallvec::SmallVec;

use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::Gradients;
use crate::device::cpu::numeric::with_stored;
use crate::device::cpu::parallel;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::positions::unravel;
use crate::tensor::{Dims, Shape, Tensor};

/// The operand, repeated `repeats[i]` times along axis `i`.
#[derive(Clone, Debug)]
struct Repeat {
    repeats: Dims,
}

impl Op for Repeat {
    const NAME: &'static str = "repeat";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let shape: Shape = x[0].dims().iter().zip(&self.repeats).map(|(d, &r)| d.saturating_mul(r)).collect();
        Ok(Spec::new(shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let (from, to) = (args.read_layout(0), args.write_shape(0));
        let outer = from.rank().saturating_sub(1);
        let width = from.shape().get(outer).copied().unwrap_or(1);
        let row = to.get(outer).copied().unwrap_or(1);
        with_stored!(args.write_dtype(0), T => {
            let x = args.read::<T>(0)?;
            parallel::pieces(args.write::<T>(0)?, row, |i, row| {
                let at = unravel(i, &to[..outer]);
                let start: usize = (at.iter().zip(from.shape().iter()).zip(from.strides()))
                    .map(|((i, d), stride)| i % d * stride)
                    .sum();
                match width {
                    1 => row.fill(x[start]),
                    _ => row.chunks_exact_mut(width).for_each(|to| to.copy_from_slice(&x[start..][..width])),
                }
            });
        });
        Ok(())
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::repeat(self, args)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let shape = g.input_shape(0).clone();
        let split: Shape = self.repeats.iter().zip(shape.iter()).flat_map(|(&r, &d)| [r, d]).collect();
        let repeats: SmallVec<[isize; 6]> = (0..shape.rank()).map(|i| 2 * i as isize).collect();
        let grad = g.grad()?.reshape(split)?.sum(&repeats[..])?;
        g.add(0, grad)
    }
}

/// The operation, and its operand with one axis for each number.
fn prepare(x: &Tensor, repeats: &[usize]) -> Result<(Repeat, Tensor)> {
    let Some(lead) = repeats.len().checked_sub(x.rank()) else {
        return Err(Error::invalid(
            Repeat::NAME,
            format!(
                "the repeats are {repeats:?} for a tensor of shape {}; give a number for each axis",
                x.shape()
            ),
        ));
    };
    let shape: Shape = std::iter::repeat_n(1, lead).chain(x.dims().iter().copied()).collect();
    let x = if lead > 0 { x.reshape(shape)? } else { x.clone() };
    Ok((Repeat { repeats: Dims::from_slice(repeats) }, x))
}

impl Tensor {
    /// Repeats the tensor `repeats[i]` times along axis `i`. For every dtype. If there are more numbers than axes,
    /// the tensor first gets leading axes of size 1.
    ///
    /// If you only read the result, use [`Tensor::broadcast_to`], which needs no memory.
    ///
    /// # Errors
    /// If there are fewer numbers than axes.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1i32, 2], [2], &Device::cpu())?;
    /// assert_eq!(x.repeat(&[2, 2])?.to_vec::<i32>()?, [1, 2, 1, 2, 1, 2, 1, 2]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn repeat(&self, repeats: &[usize]) -> Result<Tensor> {
        let (op, x) = prepare(self, repeats)?;
        apply(op, &[&x])
    }

    /// [`Tensor::repeat`] into the memory of `dst`.
    pub fn repeat_into(&self, repeats: &[usize], dst: &Tensor) -> Result<()> {
        let (op, x) = prepare(self, repeats)?;
        apply_into(op, &[&x], dst)
    }
}
