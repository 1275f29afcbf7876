//! Reductions over axes.

mod host;
pub(crate) mod machine;
#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::Gradients;
use crate::device::HostArgs;
use crate::error::{Error, Result};
use crate::tensor::{Axes, DType, Shape, Tensor};

/// What is computed of the elements along the reduced axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sum,
    Mean,
}

/// A reduction of the middle of `[outer, n, inner]`.
#[derive(Clone, Debug)]
pub(crate) struct Reduce {
    kind: Kind,
    extent: Extent,
    shape: Shape,
}

/// The reduced axes as one: the operand is seen as `[outer, n, inner]` and `n` goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) outer: usize,
    pub(crate) n: usize,
    pub(crate) inner: usize,
}

impl Extent {
    /// One axis of a tensor.
    pub(crate) fn of_axis(x: &Tensor, axis: usize) -> Extent {
        let dims = x.dims();
        Extent {
            outer: dims[..axis].iter().product(),
            n: dims[axis],
            inner: dims[axis + 1..].iter().product(),
        }
    }
}

/// A reduction prepared: the operand with its reduced axes side by side, and what comes out.
pub(crate) struct Prepared {
    pub(crate) x: Tensor,
    pub(crate) extent: Extent,
    /// The result's shape.
    pub(crate) shape: Shape,
    /// The result's shape with the reduced axes as sizes of 1, to be broadcast back.
    pub(crate) kept: Shape,
}

/// Brings the reduced axes side by side (a view) and counts.
pub(crate) fn prepare(op: &'static str, x: &Tensor, axes: &Axes, keepdim: bool) -> Result<Prepared> {
    let reduced = axes.resolve(op, x.rank())?;
    let kept: Shape = x.dims().iter().zip(&reduced).map(|(&d, &r)| if r { 1 } else { d }).collect();
    let squeezed: Shape = x.dims().iter().zip(&reduced).filter(|(_, r)| !**r).map(|(&d, _)| d).collect();
    // Sizes of 1 belong to either side. Count how often reduced and kept axes take turns.
    let turns: SmallVec<[bool; 6]> =
        x.dims().iter().zip(&reduced).filter(|(d, _)| **d != 1).map(|(_, &r)| r).collect();
    let blocks = turns.iter().enumerate().filter(|&(i, &r)| r && (i == 0 || !turns[i - 1])).count();
    let n = x.dims().iter().zip(&reduced).filter(|(_, r)| **r).map(|(&d, _)| d).product();
    let x = if blocks > 1 {
        let order: SmallVec<[isize; 6]> = (0..x.rank())
            .filter(|&i| !reduced[i])
            .chain((0..x.rank()).filter(|&i| reduced[i]))
            .map(|i| i as isize)
            .collect();
        x.permute(&order)?
    } else {
        x.clone()
    };
    let extent = if blocks > 1 {
        Extent { outer: squeezed.numel(), n, inner: 1 }
    } else {
        let first = x.dims().iter().zip(&reduced).position(|(&d, &r)| r && d != 1);
        let last = x.dims().iter().zip(&reduced).rposition(|(&d, &r)| r && d != 1);
        match (first, last) {
            (Some(first), Some(last)) => Extent {
                outer: x.dims()[..first].iter().product(),
                n,
                inner: x.dims()[last + 1..].iter().product(),
            },
            _ => Extent { outer: x.numel(), n: 1, inner: 1 },
        }
    };
    let shape = if keepdim { kept.clone() } else { squeezed };
    Ok(Prepared { x, extent, shape, kept })
}

impl Op for Reduce {
    const NAME: &'static str = "reduce";

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Sum => "sum",
            Kind::Mean => "mean",
        }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let dtype = x[0].dtype();
        match self.kind {
            _ if dtype.is_float() => Ok(Spec::new(&self.shape, dtype).one()),
            Kind::Sum => Ok(Spec::new(&self.shape, DType::I64).one()),
            Kind::Mean => Err(x[0].unsupported(self.name())),
        }
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::sum(args, self.extent, if self.kind == Kind::Mean { 1.0 / self.extent.n as f64 } else { 1.0 })
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let Extent { outer, n, inner } = self.extent;
        let shape = g.input_shape(0).clone();
        let mut grad = g.grad()?.clone();
        if self.kind == Kind::Mean {
            grad = grad.mul_scalar(1.0 / n as f64)?;
        }
        let grad = grad.reshape([outer, 1, inner])?.broadcast_to([outer, n, inner])?;
        // Where the broadcast form can't be seen in the operand's shape, reshape copies.
        g.add(0, grad.reshape(shape)?)
    }
}

fn reduction(
    kind: Kind,
    op: &'static str,
    x: &Tensor,
    axes: &Axes,
    keepdim: bool,
) -> Result<(Reduce, Tensor)> {
    let Prepared { x, extent, shape, .. } = prepare(op, x, axes, keepdim)?;
    Ok((Reduce { kind, extent, shape }, x))
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident, $keep:ident, $into:ident => $kind:expr;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// `axes` is `()` for all axes, a number, or an array of numbers; they go away from the shape.
            pub fn $name(&self, axes: impl Into<Axes>) -> Result<Tensor> {
                let (op, x) = reduction($kind, stringify!($name), self, &axes.into(), false)?;
                apply(op, &[&x])
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`], with the reduced axes kept as sizes of 1.")]
            pub fn $keep(&self, axes: impl Into<Axes>) -> Result<Tensor> {
                let (op, x) = reduction($kind, stringify!($name), self, &axes.into(), true)?;
                apply(op, &[&x])
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] into the memory of `dst`, whose shape says whether the axes are kept.")]
            pub fn $into(&self, axes: impl Into<Axes>, dst: &Tensor) -> Result<()> {
                let axes = axes.into();
                let (op, x) = reduction($kind, stringify!($name), self, &axes, dst.rank() == self.rank())?;
                apply_into(op, &[&x], dst)
            }
        )*}
    };
}

methods! {
    /// The sum. Of integers and bools it is i64. The sum of nothing is 0.
    sum, sum_keepdim, sum_into => Kind::Sum;
    /// The mean. For floats. The mean of nothing is NaN.
    mean, mean_keepdim, mean_into => Kind::Mean;
}

impl Tensor {
    /// Sums over what broadcasting would repeat: the adjoint of [`Tensor::broadcast_to`].
    ///
    /// # Errors
    /// If `shape` does not broadcast to this tensor's shape.
    pub fn sum_to(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if &shape == self.shape() {
            return Ok(self.clone());
        }
        let lead = self.rank().checked_sub(shape.rank());
        let fits = lead.is_some_and(|lead| {
            shape.iter().zip(&self.dims()[lead..]).all(|(&to, &from)| to == from || to == 1)
        });
        let Some(lead) = lead.filter(|_| fits) else {
            return Err(Error::shapes(
                "sum_to",
                self.shape(),
                &shape,
                "the second must broadcast to the first",
            ));
        };
        let axes: SmallVec<[isize; 6]> = (0..self.rank())
            .filter(|&i| i < lead || (shape[i - lead] == 1 && self.dims()[i] != 1))
            .map(|i| i as isize)
            .collect();
        self.sum(&axes[..])?.reshape(shape)
    }
}
