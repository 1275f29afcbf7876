//! Running sums, products and linear recurrences along an axis.

mod blocks;
mod cuda;
mod host;
mod recurrence;

use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::tensor::{DType, Tensor, resolve_axis};

/// What becomes of an element and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sum,
    Product,
}

/// Element `i` of the result is made of the elements up to `i` along the middle of the extent; if reversed, of those from
/// `i` on.
#[derive(Clone, Copy, Debug)]
struct Scan {
    kind: Kind,
    extent: Extent,
    reverse: bool,
}

/// The gradient of a running product. Operands: x, its running product y, and dy. With `s[i] = dy[i] + x[i + 1] s[i + 1]`,
/// it is `y[i - 1] s[i]`: no element is divided by, so that zeros need no case of their own.
#[derive(Clone, Copy, Debug)]
struct ProductBackward {
    extent: Extent,
}

impl Scan {
    fn new(kind: Kind, x: &Tensor, axis: isize) -> Result<Scan> {
        let op = if kind == Kind::Sum { "cumsum" } else { "cumprod" };
        let axis = resolve_axis(op, axis, x.rank())?;
        Ok(Scan { kind, extent: Extent::of_axis(x, axis), reverse: false })
    }
}

impl Op for Scan {
    const NAME: &'static str = "scan";

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Sum => "cumsum",
            Kind::Product => "cumprod",
        }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let dtype = if x[0].dtype().is_float() { x[0].dtype() } else { DType::I64 };
        Ok(Spec::new(x[0].shape(), dtype).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self, args)
    }

    fn cuda_workspace(&self, _: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(self.extent))
    }

    fn accumulates(&self, _: usize) -> bool {
        self.kind == Kind::Sum
    }

    fn saves(&self, _: &[bool]) -> Saves {
        match self.kind {
            Kind::Sum => Saves::default(),
            Kind::Product => Saves::default().input(0).output(0),
        }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let dy = g.grad()?.clone();
        match self.kind {
            Kind::Sum => g.emit(&[0], Scan { reverse: !self.reverse, ..*self }, &[&dy]),
            Kind::Product => {
                let (x, y) = (g.input(0)?, g.output(0)?);
                g.emit(&[0], ProductBackward { extent: self.extent }, &[&x, &y, &dy])
            }
        }
    }
}

impl Op for ProductBackward {
    const NAME: &'static str = "cumprod_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::product_backward(self.extent, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::product_backward(self.extent, args)
    }

    fn cuda_workspace(&self, _: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(self.extent))
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

/// The gradient of the product of each line of `x`, which is `[outer, n, inner]`; `dy` is `[outer, 1, inner]`.
pub(super) fn product_gradient(x: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let [outer, n, inner] = [0, 1, 2].map(|axis| x.dims()[axis]);
    let (dtype, compute) = (x.dtype(), x.dtype().accumulator());
    let (x, dy) = (x.to_dtype(compute)?, dy.to_dtype(compute)?);
    // The product is the last one of the running products; the others have no gradient.
    let y = x.cumprod(1)?;
    let none = Tensor::zeros([outer, n - 1, inner], compute, x.device())?;
    let dy = Tensor::concat(&[&none, &dy], 1)?;
    apply(ProductBackward { extent: Extent::of_axis(&x, 1) }, &[&x, &y, &dy])?.to_dtype(dtype)
}

impl Tensor {
    /// The running sum along an axis: element `i` is the sum of the elements up to and including `i`. For every dtype; for
    /// integers and bools the result is i64. f16 and bf16 are summed in f32. A negative axis counts from the last one.
    ///
    /// The order of additions follows from the shape alone, so that the same device always gives the same bits.
    ///
    /// # Errors
    /// If the axis is out of range.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.cumsum(1)?.to_vec::<f32>()?, [1.0, 3.0, 3.0, 7.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn cumsum(&self, axis: isize) -> Result<Tensor> {
        apply(Scan::new(Kind::Sum, self, axis)?, &[self])
    }

    /// [`Tensor::cumsum`] into the memory of `dst`.
    pub fn cumsum_into(&self, axis: isize, dst: &Tensor) -> Result<()> {
        apply_into(Scan::new(Kind::Sum, self, axis)?, &[self], dst)
    }

    /// The running product along an axis: element `i` is the product of the elements up to and including `i`. For every
    /// dtype; for integers and bools the result is i64. A negative axis counts from the last one.
    ///
    /// The gradient is right also where elements are 0. On a GPU, and in f64, elements are multiplied in groups, so the product
    /// of a group may overflow where the product in order does not.
    ///
    /// # Errors
    /// If the axis is out of range.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[2.0f32, 3.0, 0.5], [3], &Device::cpu())?;
    /// assert_eq!(x.cumprod(0)?.to_vec::<f32>()?, [2.0, 6.0, 3.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn cumprod(&self, axis: isize) -> Result<Tensor> {
        apply(Scan::new(Kind::Product, self, axis)?, &[self])
    }

    /// [`Tensor::cumprod`] into the memory of `dst`.
    pub fn cumprod_into(&self, axis: isize, dst: &Tensor) -> Result<()> {
        apply_into(Scan::new(Kind::Product, self, axis)?, &[self], dst)
    }
}
