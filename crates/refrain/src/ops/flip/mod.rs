//! `flip` reverses axes, `roll` shifts elements along axes and takes those that leave in at the other end.

mod cuda;

use smallvec::SmallVec;

use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::Gradients;
use crate::device::cpu::numeric::with_stored;
use crate::device::cpu::parallel;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::positions::unravel;
use crate::tensor::{Axes, Tensor, resolve_axis};

/// Where the elements of an axis come from: element `i` is element `start + i` of the operand, or `start - i` if the axis
/// is reversed, modulo the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    start: usize,
    reversed: bool,
}

impl Order {
    /// Element `i` of an axis of this size.
    fn source(self, i: usize, size: usize) -> usize {
        let i = if self.reversed { self.start + size - i } else { self.start + i };
        if i >= size { i - size } else { i }
    }

    /// The order that undoes this one.
    fn inverse(self, size: usize) -> Order {
        match self.reversed || self.start == 0 {
            true => self,
            false => Order { start: size - self.start, reversed: false },
        }
    }
}

/// The operand with its axes in another order.
#[derive(Clone, Debug)]
struct Reorder {
    name: &'static str,
    axes: SmallVec<[Order; 6]>,
}

impl Op for Reorder {
    const NAME: &'static str = "reorder";

    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let layout = args.read_layout(0);
        let (shape, strides) = (layout.shape(), layout.strides());
        let outer = shape.rank().saturating_sub(1);
        let width = shape.get(outer).copied().unwrap_or(1);
        let last = self.axes.get(outer).copied().unwrap_or(Order { start: 0, reversed: false });
        with_stored!(args.write_dtype(0), T => {
            let x = args.read::<T>(0)?;
            parallel::pieces(args.write::<T>(0)?, width, |i, row| {
                let at = unravel(i, &shape[..outer]);
                let start: usize = (at.iter().zip(&self.axes).zip(shape.iter()).zip(strides))
                    .map(|(((&i, order), &size), stride)| order.source(i, size) * stride)
                    .sum();
                let from = &x[start..][..width];
                if last.reversed {
                    row.iter_mut().zip(from.iter().rev()).for_each(|(to, &v)| *to = v);
                } else {
                    let (head, tail) = row.split_at_mut(width - last.start);
                    head.copy_from_slice(&from[last.start..]);
                    tail.copy_from_slice(&from[..last.start]);
                }
            });
        });
        Ok(())
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::reorder(self, args)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let dy = g.grad()?.clone();
        let sizes = g.input_shape(0).clone();
        let axes = self.axes.iter().zip(sizes.iter()).map(|(order, &size)| order.inverse(size)).collect();
        g.emit(&[0], Reorder { name: self.name, axes }, &[&dy])
    }
}

fn flip(x: &Tensor, axes: &Axes) -> Result<Reorder> {
    let reversed = axes.resolve("flip", x.rank())?;
    let order = |(&reversed, &size): (&bool, &usize)| match reversed {
        true => Order { start: size.saturating_sub(1), reversed },
        false => Order { start: 0, reversed },
    };
    Ok(Reorder { name: "flip", axes: reversed.iter().zip(x.dims()).map(order).collect() })
}

fn roll(x: &Tensor, shifts: &[isize], axes: &[isize]) -> Result<Reorder> {
    const OP: &str = "roll";
    if shifts.len() != axes.len() {
        let message = format!("there are {} shifts for {} axes; give one for each", shifts.len(), axes.len());
        return Err(Error::invalid(OP, message));
    }
    let mut order: SmallVec<[Order; 6]> = SmallVec::from_elem(Order { start: 0, reversed: false }, x.rank());
    for (&shift, &axis) in shifts.iter().zip(axes) {
        let axis = resolve_axis(OP, axis, x.rank())?;
        let size = x.dims()[axis];
        if size > 0 {
            // A shift may be further than the axis is long; an axis that is named twice is shifted twice.
            let back = size - shift.rem_euclid(size as isize) as usize;
            order[axis].start = (order[axis].start + back) % size;
        }
    }
    Ok(Reorder { name: OP, axes: order })
}

impl Tensor {
    /// The elements in reverse order along `axes`: `()` for all axes, a number, or an array of numbers. For every dtype. The
    /// result is a new tensor.
    ///
    /// # Errors
    /// If an axis is out of range or is named twice.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1i32, 2, 3, 4], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.flip(1)?.to_vec::<i32>()?, [2, 1, 4, 3]);
    /// assert_eq!(x.flip(())?.to_vec::<i32>()?, [4, 3, 2, 1]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn flip(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        apply(flip(self, &axes.into())?, &[self])
    }

    /// [`Tensor::flip`] into the memory of `dst`.
    pub fn flip_into(&self, axes: impl Into<Axes>, dst: &Tensor) -> Result<()> {
        apply_into(flip(self, &axes.into())?, &[self], dst)
    }

    /// The elements moved by `shifts[k]` places along `axes[k]`; those that leave at one end come in at the other. For every
    /// dtype. A negative shift moves towards the beginning, a negative axis counts from the last one.
    ///
    /// # Errors
    /// If an axis is out of range, or there is not one shift for each axis.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1i32, 2, 3, 4], [4], &Device::cpu())?;
    /// assert_eq!(x.roll(&[1], &[0])?.to_vec::<i32>()?, [4, 1, 2, 3]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn roll(&self, shifts: &[isize], axes: &[isize]) -> Result<Tensor> {
        apply(roll(self, shifts, axes)?, &[self])
    }

    /// [`Tensor::roll`] into the memory of `dst`.
    pub fn roll_into(&self, shifts: &[isize], axes: &[isize], dst: &Tensor) -> Result<()> {
        apply_into(roll(self, shifts, axes)?, &[self], dst)
    }
}
