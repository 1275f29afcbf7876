//! Reductions over axes.

pub(crate) mod cuda;
mod extreme;
mod gradient;
pub(crate) mod host;

use smallvec::SmallVec;

use super::{Needs, Op, Spec, Specs, apply, apply_into, scan};
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::reduction::Extent;
use crate::tensor::{Axes, DType, Shape, Tensor};

/// What is computed from the elements along the reduced axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sum,
    Mean,
    Product,
    Max,
    Min,
    Var { correction: usize },
    ArgMax,
    ArgMin,
}

/// A reduction over the middle axis of `[outer, n, inner]`.
#[derive(Clone, Debug)]
pub(crate) struct Reduce {
    kind: Kind,
    extent: Extent,
    shape: Shape,
    kept: Shape,
}

/// A prepared reduction: the operand with its reduced axes merged, and the shapes of the result.
pub(crate) struct Prepared {
    pub(crate) x: Tensor,
    pub(crate) extent: Extent,
    /// The shape of the result.
    pub(crate) shape: Shape,
    /// The shape of `x` with the reduced axes as sizes of 1. A result with this shape broadcasts to `x`.
    pub(crate) kept: Shape,
}

/// Makes the reduced axes adjacent (a view), and counts elements.
pub(crate) fn prepare(op: &'static str, x: &Tensor, axes: &Axes, keepdim: bool) -> Result<Prepared> {
    let reduced = axes.resolve(op, x.rank())?;
    let kept: Shape = x.dims().iter().zip(&reduced).map(|(&d, &r)| if r { 1 } else { d }).collect();
    let squeezed: Shape = x.dims().iter().zip(&reduced).filter(|(_, r)| !**r).map(|(&d, _)| d).collect();
    // Sizes of 1 belong to either side. Count how often reduced and kept axes alternate.
    let turns: SmallVec<[bool; 6]> =
        x.dims().iter().zip(&reduced).filter(|(d, _)| **d != 1).map(|(_, &r)| r).collect();
    let blocks = turns.iter().enumerate().filter(|&(i, &r)| r && (i == 0 || !turns[i - 1])).count();
    let n = x.dims().iter().zip(&reduced).filter(|(_, r)| **r).map(|(&d, _)| d).product();
    let shape = if keepdim { kept.clone() } else { squeezed.clone() };
    let mut ones_last = squeezed.clone();
    let x = if blocks > 1 {
        ones_last.dims_mut().resize(x.rank(), 1);
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
    let kept = if blocks > 1 { ones_last } else { kept };
    Ok(Prepared { x, extent, shape, kept })
}

impl Op for Reduce {
    const NAME: &'static str = "reduce";

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Sum => "sum",
            Kind::Mean => "mean",
            Kind::Product => "prod",
            Kind::Max => "max",
            Kind::Min => "min",
            Kind::Var { .. } => "var",
            Kind::ArgMax => "argmax",
            Kind::ArgMin => "argmin",
        }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let dtype = x[0].dtype();
        let spec = |dtype| Spec::new(&self.shape, dtype).one();
        match self.kind {
            Kind::Sum | Kind::Product => Ok(spec(if dtype.is_float() { dtype } else { DType::I64 })),
            Kind::Mean if dtype.is_float() => Ok(spec(dtype)),
            Kind::Var { .. } if dtype.is_float() => {
                let mut specs = spec(dtype);
                // The mean, for the backward pass.
                specs.push(Spec::new(&self.shape, dtype.accumulator()));
                Ok(specs)
            }
            Kind::Mean | Kind::Var { .. } => Err(x[0].unsupported(self.name())),
            _ if dtype == DType::Bool => Err(x[0].unsupported(self.name())),
            _ if self.extent.n == 0 => Err(Error::invalid(
                self.name(),
                format!(
                    "a tensor of shape {} has no elements along the reduced axes; there is none to choose",
                    x[0].shape()
                ),
            )),
            Kind::Max | Kind::Min => Ok(spec(dtype)),
            Kind::ArgMax | Kind::ArgMin => Ok(spec(DType::I64)),
        }
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        match self.kind {
            Kind::Sum => host::sum(args, self.extent, 1.0),
            Kind::Mean => host::sum(args, self.extent, self.extent.n as f64),
            Kind::Product => host::product(args, self.extent),
            Kind::Max | Kind::Min => extreme::extreme(args, self.extent, self.kind == Kind::Max),
            Kind::Var { correction } => host::var(args, self.extent, correction),
            Kind::ArgMax | Kind::ArgMin => extreme::arg_extreme(args, self.extent, self.kind == Kind::ArgMax),
        }
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self.kind, self.extent, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(self.extent, launch))
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Rows(self.extent)
    }

    fn host_input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn accumulates(&self, _: usize) -> bool {
        matches!(self.kind, Kind::Sum | Kind::Mean)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        match self.kind {
            Kind::Max | Kind::Min => Saves::default().input(0).output(0),
            Kind::Product => Saves::default().input(0),
            Kind::Var { .. } => Saves::default().input(0).output(1),
            _ => Saves::default(),
        }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let shape = g.input_shape(0).clone();
        let spread = |t: &Tensor| t.reshape(&self.kept)?.broadcast_to(&shape);
        let dy = g.grad()?.clone();
        match self.kind {
            Kind::Sum => g.add(0, spread(&dy)?),
            Kind::Mean => g.add(0, spread(&dy.div_count(self.extent.n)?)?),
            // The gradient of one element is that of the result.
            Kind::Product if self.extent.n < 2 => g.add(0, spread(&dy)?),
            Kind::Product => {
                let Extent { outer, n, inner } = self.extent;
                let lines = g.input(0)?.reshape([outer, n, inner])?;
                let dx = scan::product_gradient(&lines, &dy.reshape([outer, 1, inner])?)?;
                g.add(0, dx.reshape(shape)?)
            }
            Kind::Var { correction } => {
                let scale = 2.0 / self.extent.n.saturating_sub(correction) as f64;
                let (x, mean) = (g.input(0)?, spread(&g.output(1)?)?);
                g.emit(&[0], gradient::VarBackward { scale }, &[&x, &mean, &spread(&dy)?])
            }
            Kind::Max | Kind::Min => {
                let (x, y) = (g.input(0)?, g.output(0)?);
                let share = apply(gradient::TieShare { extent: self.extent }, &[&x, &y, &dy])?;
                g.emit(&[0], gradient::ExtremeBackward, &[&x, &spread(&y)?, &spread(&share)?])
            }
            Kind::ArgMax | Kind::ArgMin => Err(Error::internal(self.name(), "a position has no gradient")),
        }
    }
}

/// The sum over all axes except the last. Gradients use it; it can add to what is there.
pub(crate) fn sum_of_rows(x: &Tensor) -> Result<(Reduce, Tensor)> {
    let axes: SmallVec<[isize; 6]> = (0..x.rank() as isize - 1).collect();
    reduction(Kind::Sum, "sum", x, &axes[..].into(), false)
}

fn reduction(
    kind: Kind,
    op: &'static str,
    x: &Tensor,
    axes: &Axes,
    keepdim: bool,
) -> Result<(Reduce, Tensor)> {
    let Prepared { x, extent, shape, kept } = prepare(op, x, axes, keepdim)?;
    Ok((Reduce { kind, extent, shape, kept }, x))
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident, $keep:ident, $into:ident ($($arg:ident: $t:ty)?) => $kind:expr;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// `axes` is `()` for all axes, a number, or an array of numbers. The reduced axes disappear from the
            /// shape.
            pub fn $name(&self, axes: impl Into<Axes> $(, $arg: $t)?) -> Result<Tensor> {
                let (op, x) = reduction($kind, stringify!($name), self, &axes.into(), false)?;
                apply(op, &[&x])
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] that keeps the reduced axes as sizes of 1.")]
            pub fn $keep(&self, axes: impl Into<Axes> $(, $arg: $t)?) -> Result<Tensor> {
                let (op, x) = reduction($kind, stringify!($name), self, &axes.into(), true)?;
                apply(op, &[&x])
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] into the memory of `dst`, whose shape decides whether the reduced axes are kept.")]
            pub fn $into(&self, axes: impl Into<Axes> $(, $arg: $t)?, dst: &Tensor) -> Result<()> {
                let axes = axes.into();
                let (op, x) = reduction($kind, stringify!($name), self, &axes, dst.rank() == self.rank())?;
                apply_into(op, &[&x], dst)
            }
        )*}
    };
}

methods! {
    /// The sum. For integers and bools the result is i64. The sum of no elements is 0.
    sum, sum_keepdim, sum_into() => Kind::Sum;
    /// The mean. For floats. The mean of no elements is NaN.
    mean, mean_keepdim, mean_into() => Kind::Mean;
    /// The product. For integers and bools the result is i64. The product of no elements is 1. The gradient is right also
    /// beside zeros. Elements are multiplied in groups, so the product of a group may overflow where the product in order does not.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[2.0f32, 3.0, 4.0, 0.5, -1.0, 6.0], [2, 3], &Device::cpu())?;
    /// assert_eq!(x.prod(1)?.to_vec::<f32>()?, [24.0, -3.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    prod, prod_keepdim, prod_into() => Kind::Product;
    /// The largest element, or NaN if one is NaN. For floats and integers; without elements it is an error. Several
    /// largest elements share the gradient evenly, and so do several NaNs, as in `max()` of PyTorch over a whole
    /// tensor.
    max, max_keepdim, max_into() => Kind::Max;
    /// The smallest element, or NaN if one is NaN. For floats and integers; without elements it is an error. Several
    /// smallest elements share the gradient evenly, and so do several NaNs, as in `min()` of PyTorch over a whole
    /// tensor.
    min, min_keepdim, min_into() => Kind::Min;
    /// The variance: the sum of squared distances from the mean, divided by `n - correction` (1 for the unbiased
    /// estimate, 0 for the mean square). For floats. It is NaN without elements, and if there are only `correction`
    /// elements and all are equal.
    var, var_keepdim, var_into(correction: usize) => Kind::Var { correction };
    /// The position (i64) of the largest element; the first one if several are equal; the first NaN if there is one.
    /// For floats and integers; without elements it is an error. Over several axes, it is the position in their
    /// row-major order.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 7.0, 7.0, 3.0, 0.0, 2.0], [2, 3], &Device::cpu())?;
    /// assert_eq!(x.argmax(1)?.to_vec::<i64>()?, [1, 0]);
    /// assert_eq!(x.argmax(())?.to_scalar::<i64>()?, 1);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    argmax, argmax_keepdim, argmax_into() => Kind::ArgMax;
    /// The position (i64) of the smallest element; the first one if several are equal; the first NaN if there is one.
    /// For floats and integers; without elements it is an error. Over several axes, it is the position in their
    /// row-major order.
    argmin, argmin_keepdim, argmin_into() => Kind::ArgMin;
}

impl Tensor {
    /// Sums over the axes that broadcasting would repeat. It is the adjoint of [`Tensor::broadcast_to`]. For integers
    /// and bools the result is i64, as for every [`Tensor::sum`], even if nothing is summed. For floats it is this
    /// tensor if nothing is summed.
    ///
    /// # Errors
    /// If `shape` does not broadcast to this tensor's shape.
    pub fn sum_to(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        if &shape == self.shape() {
            return if self.dtype().is_float() { Ok(self.clone()) } else { self.to_dtype(DType::I64) };
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
