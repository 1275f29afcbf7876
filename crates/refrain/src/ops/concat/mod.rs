//! Concatenation along an existing axis, or along a new one.

mod cuda;

use std::borrow::Borrow;

use smallvec::SmallVec;

use super::{Op, Spec, Specs, apply, apply_into, check_dtypes};
use crate::autograd::Gradients;
use crate::device::cpu::numeric::with_stored;
use crate::device::cpu::parallel;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::precision::promoted;
use crate::tensor::{Tensor, resolve_axis};

/// How many operands one pass over the result copies.
const GROUP: usize = 8;

/// Elements of the result that are written at a time.
const PIECE: usize = 1 << 12;

/// The operands concatenated along `axis`.
#[derive(Clone, Debug)]
struct Concat {
    name: &'static str,
    axis: usize,
    /// The size of each operand along the axis.
    sizes: SmallVec<[usize; 8]>,
}

impl Concat {
    fn new(name: &'static str, axis: usize, tensors: &[&Tensor]) -> Concat {
        Concat { name, axis, sizes: tensors.iter().filter_map(|t| t.dims().get(axis).copied()).collect() }
    }
}

impl Op for Concat {
    const NAME: &'static str = "concat";

    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let first = x[0].shape();
        for t in &x[1..] {
            check_dtypes(self.name, x[0], t)?;
            let fits = t.rank() == first.rank()
                && t.dims().iter().zip(first.iter()).enumerate().all(|(i, (a, b))| i == self.axis || a == b);
            if !fits {
                let hint = format!("all sizes except that of axis {} must be equal", self.axis);
                return Err(Error::shapes(self.name, first, t.shape(), hint));
            }
        }
        let mut shape = first.clone();
        shape.dims_mut()[self.axis] = self.sizes.iter().fold(0, |sum: usize, &n| sum.saturating_add(n));
        Ok(Spec::new(shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let inner: usize = args.write_shape(0)[self.axis + 1..].iter().product();
        with_stored!(args.write_dtype(0), T => {
            let row = self.sizes.iter().sum::<usize>() * inner;
            let y = args.write::<T>(0)?;
            let mut start = 0;
            // In groups, so that the list of them needs no heap memory.
            for (group, sizes) in self.sizes.chunks(GROUP).enumerate() {
                let mut parts: SmallVec<[(&[T], usize); GROUP]> = SmallVec::new();
                for (i, n) in sizes.iter().enumerate() {
                    parts.push((args.read::<T>(group * GROUP + i)?, n * inner));
                }
                parallel::pieces(y, PIECE, |piece, y| {
                    let (mut o, mut column, mut rest) = (piece * PIECE / row, piece * PIECE % row, y);
                    while !rest.is_empty() {
                        // Some columns of row `o`.
                        let (to, after) = rest.split_at_mut((row - column).min(rest.len()));
                        let (end, mut first) = (column + to.len(), start);
                        for &(x, width) in &parts {
                            let (from, until) = (first.max(column), (first + width).min(end));
                            if from < until {
                                let x = &x[o * width + from - first..][..until - from];
                                to[from - column..until - column].copy_from_slice(x);
                            }
                            first += width;
                        }
                        (o, column, rest) = (o + 1, 0, after);
                    }
                });
                start += parts.iter().map(|(_, width)| width).sum::<usize>();
            }
        });
        Ok(())
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::concat(self, args)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        let mut start = 0;
        for (i, &n) in self.sizes.iter().enumerate() {
            if g.needs(i) {
                g.add(i, grad.narrow(self.axis as isize, start, n)?)?;
            }
            start += n;
        }
        Ok(())
    }
}

/// The operation, and its operands in one dtype.
fn concat<T: Borrow<Tensor>>(tensors: &[T], axis: isize) -> Result<(Concat, SmallVec<[Tensor; 8]>)> {
    const OP: &str = Concat::NAME;
    let tensors = list(tensors);
    let first = tensors.first().ok_or_else(|| Error::invalid(OP, "no tensors; pass at least one"))?;
    if first.rank() == 0 {
        return Err(Error::invalid(OP, "scalars have no axis to concatenate along; use stack"));
    }
    let op = Concat::new(OP, resolve_axis(OP, axis, first.rank())?, &tensors);
    let wide = promoted(&tensors)?;
    Ok((op, wide.unwrap_or_else(|| tensors.iter().map(|&t| t.clone()).collect())))
}

/// The operation, and its operands with a new axis of size 1.
fn stack(tensors: &[&Tensor], axis: isize) -> Result<(Concat, SmallVec<[Tensor; 8]>)> {
    const OP: &str = "stack";
    let first = tensors.first().ok_or_else(|| Error::invalid(OP, "no tensors; pass at least one"))?;
    if let Some(other) = tensors.iter().find(|t| t.shape() != first.shape()) {
        return Err(Error::shapes(OP, first.shape(), other.shape(), "all shapes must be equal"));
    }
    let axis = resolve_axis(OP, axis, first.rank() + 1)?;
    let views = tensors.iter().map(|t| t.unsqueeze(axis as isize)).collect::<Result<SmallVec<_>>>()?;
    let op = Concat::new(OP, axis, &list(&views));
    let wide = promoted(&list(&views))?;
    Ok((op, wide.unwrap_or(views)))
}

fn list<T: Borrow<Tensor>>(tensors: &[T]) -> SmallVec<[&Tensor; 8]> {
    tensors.iter().map(Borrow::borrow).collect()
}

impl Tensor {
    /// Concatenates tensors, or references to tensors, along an existing axis. For every dtype. All tensors must have the same
    /// dtype (under [`Precision::Bf16`](crate::Precision::Bf16) f32 and bf16 may be mixed, which gives f32), and the same shape
    /// except along `axis`. A negative axis counts from the last one.
    ///
    /// # Errors
    /// If there are no tensors, they are scalars, or shapes or dtypes do not match.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let a = Tensor::from_slice(&[1i64, 2], [2, 1], &device)?;
    /// let b = Tensor::from_slice(&[3i64, 4, 5, 6], [2, 2], &device)?;
    /// assert_eq!(Tensor::concat(&[&a, &b], 1)?.to_vec::<i64>()?, [1, 3, 4, 2, 5, 6]);
    /// assert_eq!(Tensor::concat(&b.unbind(0)?, 0)?.to_vec::<i64>()?, [3, 4, 5, 6]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn concat<T: Borrow<Tensor>>(tensors: &[T], axis: isize) -> Result<Tensor> {
        let (op, operands) = concat(tensors, axis)?;
        apply(op, &list(&operands))
    }

    /// [`Tensor::concat`] into the memory of `dst`.
    pub fn concat_into<T: Borrow<Tensor>>(tensors: &[T], axis: isize, dst: &Tensor) -> Result<()> {
        let (op, operands) = concat(tensors, axis)?;
        apply_into(op, &list(&operands), dst)
    }

    /// Stacks tensors of one shape, or references to them, along a new axis, which is inserted before `axis` (from `-rank - 1` to `rank`).
    /// For every dtype. All tensors must have the same dtype, as in [`Tensor::concat`].
    ///
    /// # Errors
    /// If there are no tensors, or shapes or dtypes differ.
    pub fn stack<T: Borrow<Tensor>>(tensors: &[T], axis: isize) -> Result<Tensor> {
        let (op, views) = stack(&list(tensors), axis)?;
        apply(op, &list(&views))
    }

    /// [`Tensor::stack`] into the memory of `dst`.
    pub fn stack_into<T: Borrow<Tensor>>(tensors: &[T], axis: isize, dst: &Tensor) -> Result<()> {
        let (op, views) = stack(&list(tensors), axis)?;
        apply_into(op, &list(&views), dst)
    }
}
