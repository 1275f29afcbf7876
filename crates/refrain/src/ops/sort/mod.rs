//! Elements in order along an axis, and where they come from.

mod cuda;
mod gradient;
mod host;

use super::{Op, Spec, Specs, apply, apply_all, apply_into, two};
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::reduction::Extent;
use crate::tensor::{DType, Shape, Tensor, resolve_axis};

/// The first `keep` elements in order along the middle of the extent. Results: the elements, unless only positions are
/// wanted, and their positions (i64).
#[derive(Clone, Debug)]
struct Sort {
    name: &'static str,
    extent: Extent,
    shape: Shape,
    keep: usize,
    descending: bool,
    values: bool,
}

/// What an operation on the order of elements returns.
#[derive(Clone, Copy)]
enum Wanted {
    /// All, in order.
    All,
    /// The positions of all.
    Positions,
    /// The first ones.
    First(usize),
}

impl Sort {
    fn new(wanted: Wanted, x: &Tensor, axis: isize, descending: bool) -> Result<Sort> {
        let name = match wanted {
            Wanted::All => "sort",
            Wanted::Positions => "argsort",
            Wanted::First(_) => "topk",
        };
        let axis = resolve_axis(name, axis, x.rank())?;
        let extent = Extent::of_axis(x, axis);
        let keep = if let Wanted::First(k) = wanted { k } else { extent.n };
        if keep > extent.n {
            let message = format!("there are no {keep} elements along axis {axis} of size {}", extent.n);
            return Err(Error::invalid(name, message));
        }
        if extent.n > u32::MAX as usize {
            let message =
                format!("axis {axis} has {} elements; at most {} can be sorted", extent.n, u32::MAX);
            return Err(Error::invalid(name, message));
        }
        let shape = x.dims().iter().enumerate().map(|(i, &d)| if i == axis { keep } else { d }).collect();
        let values = !matches!(wanted, Wanted::Positions);
        Ok(Sort { name, extent, shape, keep, descending, values })
    }

    /// The result with the positions.
    fn positions(&self) -> usize {
        usize::from(self.values)
    }
}

impl Op for Sort {
    const NAME: &'static str = "sort";

    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let mut specs = Specs::new();
        if self.values {
            specs.push(Spec::new(&self.shape, x[0].dtype()));
        }
        specs.push(Spec::new(&self.shape, DType::I64));
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::sort(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::sort(self, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        cuda::workspace(self, launch.reads[0].dtype)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        if self.values { Saves::default().output(1) } else { Saves::default() }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (dy, positions) = (g.grad()?.clone(), g.output(1)?);
        let shape = g.input_shape(0).clone();
        let op = gradient::SortBackward { extent: self.extent, keep: self.keep, shape };
        g.emit(&[0], op, &[&dy, &positions])
    }
}

/// The elements and their positions.
fn both(op: Sort, x: &Tensor) -> Result<(Tensor, Tensor)> {
    two(op.name, apply_all(op, &[x])?)
}

impl Tensor {
    /// The elements in order along an axis, and the position (i64) that each comes from. For every dtype. Equal elements
    /// keep their order, on every device. NaN is larger than every number, as in PyTorch; -0 and 0 are equal. A negative
    /// axis counts from the last one.
    ///
    /// # Errors
    /// If the axis is out of range. On a GPU also if it has 2^31 elements or more.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0], [3], &Device::cpu())?;
    /// let (values, positions) = x.sort(0, false)?;
    /// assert_eq!(values.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
    /// assert_eq!(positions.to_vec::<i64>()?, [1, 2, 0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn sort(&self, axis: isize, descending: bool) -> Result<(Tensor, Tensor)> {
        both(Sort::new(Wanted::All, self, axis, descending)?, self)
    }

    /// The elements of [`Tensor::sort`] into the memory of `dst`.
    pub fn sort_into(&self, axis: isize, descending: bool, dst: &Tensor) -> Result<()> {
        apply_into(Sort::new(Wanted::All, self, axis, descending)?, &[self], dst)
    }

    /// The positions of [`Tensor::sort`] alone: i64.
    pub fn argsort(&self, axis: isize, descending: bool) -> Result<Tensor> {
        apply(Sort::new(Wanted::Positions, self, axis, descending)?, &[self])
    }

    /// [`Tensor::argsort`] into the memory of `dst`.
    pub fn argsort_into(&self, axis: isize, descending: bool, dst: &Tensor) -> Result<()> {
        apply_into(Sort::new(Wanted::Positions, self, axis, descending)?, &[self], dst)
    }

    /// The `k` largest (or smallest) elements along an axis, in order, and the position (i64) that each comes from. It is the
    /// beginning of [`Tensor::sort`], and orders as that does: of equal elements the first ones are taken.
    ///
    /// # Errors
    /// If the axis is out of range or has fewer than `k` elements.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0], [3], &Device::cpu())?;
    /// let (values, positions) = x.topk(2, 0, true)?;
    /// assert_eq!(values.to_vec::<f32>()?, [3.0, 2.0]);
    /// assert_eq!(positions.to_vec::<i64>()?, [0, 2]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn topk(&self, k: usize, axis: isize, largest: bool) -> Result<(Tensor, Tensor)> {
        both(Sort::new(Wanted::First(k), self, axis, largest)?, self)
    }

    /// The elements of [`Tensor::topk`] into the memory of `dst`.
    pub fn topk_into(&self, k: usize, axis: isize, largest: bool, dst: &Tensor) -> Result<()> {
        apply_into(Sort::new(Wanted::First(k), self, axis, largest)?, &[self], dst)
    }
}
