//! `gather` picks elements along an axis; `scatter_add` adds elements at indexed positions. Each is the adjoint of
//! the other. `scatter` replaces elements at indexed positions.

mod cuda;
mod host;

use super::{Op, Spec, Specs, apply, apply_into, check_dtypes};
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::positions::{check_places, require_positions, with_positions};
use crate::tensor::{DType, Shape, Tensor, resolve_axis};

/// `out[.., i, ..] = x[.., index[.., i, ..], ..]`. Operands: `x`, `index`.
#[derive(Clone, Debug)]
struct Gather {
    axis: usize,
}

/// `x` with `x[.., index[.., i, ..], ..] += source[.., i, ..]`. Operands: `x`, `index`, `source`.
#[derive(Clone, Debug)]
struct ScatterAdd {
    axis: usize,
}

/// `x` with `x[.., index[.., i, ..], ..] = source[.., i, ..]`; the last entry that names a position wins. Operands: `x`,
/// `index`, `source`.
#[derive(Clone, Debug)]
struct Scatter {
    axis: usize,
}

/// The adjoint of `Gather`: adds `dy` at indexed positions to zeros of `shape`. Operands: `dy`, `index`.
#[derive(Clone, Debug)]
struct GatherBackward {
    axis: usize,
    shape: Shape,
}

/// Checks that the index suits a tensor of `shape`: as many axes, and none longer except `axis`.
fn check_index(op: &'static str, axis: usize, shape: &Shape, index: &Tensor) -> Result<()> {
    require_positions(op, "index", index)?;
    let fits = index.rank() == shape.rank()
        && index.dims().iter().zip(shape.iter()).enumerate().all(|(i, (n, d))| i == axis || n <= d);
    match fits {
        true => check_places(op, index.shape(), shape[axis], || format!("axis {axis} of size 0")),
        false => Err(Error::shapes(
            op,
            shape,
            index.shape(),
            format!("the index must have as many axes, and only axis {axis} may be longer"),
        )),
    }
}

fn check_source(op: &'static str, index: &Tensor, source: &Tensor) -> Result<()> {
    match index.shape() == source.shape() {
        true => Ok(()),
        false => Err(Error::shapes(
            op,
            index.shape(),
            source.shape(),
            "the source must have as many axes as the index, and be no shorter in any",
        )),
    }
}

/// The part of a source that the index covers; the whole source if the two do not match.
fn covered(source: &Tensor, index: &Tensor) -> Result<Tensor> {
    let mut part = source.clone();
    if index.rank() == source.rank() && index.dims().iter().zip(source.dims()).all(|(i, s)| i <= s) {
        for (axis, &n) in index.dims().iter().enumerate() {
            if n < part.dims()[axis] {
                part = part.narrow(axis as isize, 0, n)?;
            }
        }
    }
    Ok(part)
}

impl Op for Gather {
    const NAME: &'static str = "gather";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        check_index(Self::NAME, self.axis, x[0].shape(), x[1])?;
        Ok(Spec::new(x[1].shape(), x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 1, index => host::gather(self.axis, index, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::gather(self.axis, args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (grad, index) = (g.grad()?.clone(), g.input(1)?);
        let shape = g.input_shape(0).clone();
        g.emit(&[0], GatherBackward { axis: self.axis, shape }, &[&grad, &index])
    }
}

impl Op for GatherBackward {
    const NAME: &'static str = "gather_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        check_index(Self::NAME, self.axis, &self.shape, x[1])?;
        check_source(Self::NAME, x[1], x[0])?;
        Ok(Spec::new(&self.shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 1, index => host::gather_backward(self.axis, index, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::gather_backward(self.axis, args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        cuda::workspace(self.axis, &self.shape, launch)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

impl Op for ScatterAdd {
    const NAME: &'static str = "scatter_add";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        if x[0].dtype() == DType::Bool {
            return Err(x[0].unsupported(Self::NAME));
        }
        check_dtypes(Self::NAME, x[0], x[2])?;
        check_index(Self::NAME, self.axis, x[0].shape(), x[1])?;
        check_source(Self::NAME, x[1], x[2])?;
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 1, index => host::scatter_add(self.axis, index, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::scatter_add(self.axis, args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        cuda::workspace(self.axis, launch.reads[0].layout.shape(), launch)
    }

    fn in_place(&self, _: usize, input: usize) -> bool {
        input == 0
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        Saves::default().input_if(1, needs[2])
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        if g.needs(2) {
            let index = g.input(1)?;
            g.emit(&[2], Gather { axis: self.axis }, &[&grad, &index])?;
        }
        g.add(0, grad)
    }
}

impl Op for Scatter {
    const NAME: &'static str = "scatter";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        check_dtypes(Self::NAME, x[0], x[2])?;
        check_index(Self::NAME, self.axis, x[0].shape(), x[1])?;
        check_source(Self::NAME, x[1], x[2])?;
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 1, index => host::scatter(self.axis, index, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::scatter(self.axis, args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        cuda::workspace(self.axis, launch.reads[0].layout.shape(), launch)
    }

    fn in_place(&self, _: usize, input: usize) -> bool {
        input == 0
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (grad, index, axis) = (g.grad()?.clone(), g.input(1)?, self.axis as isize);
        if g.needs(0) {
            let zeros = Tensor::zeros(index.shape(), grad.dtype(), grad.device())?;
            g.emit(&[0], self.clone(), &[&grad, &index, &zeros])?;
        }
        if g.needs(2) {
            // Of the entries that name a position, the one that is found there has won; the others get no gradient.
            let count = index.numel() as f64;
            let entries =
                Tensor::arange(0.0, count, 1.0, DType::I64, grad.device())?.reshape(index.shape())?;
            let won = Tensor::zeros(grad.shape(), DType::I64, grad.device())?;
            let lost = won.scatter(axis, &index, &entries)?.gather(axis, &index)?.ne(&entries)?;
            g.add(2, grad.gather(axis, &index)?.masked_fill(&lost, 0.0)?)?;
        }
        Ok(())
    }
}

impl Tensor {
    /// Picks elements along an axis. For a matrix and axis 0, `out[i, j] = x[index[i, j], j]`; for axis 1, `out[i, j]
    /// = x[i, index[i, j]]`. For every dtype. The index is i64 or i32, and the result has its shape. The index has as
    /// many axes as this tensor, and no axis except `axis` is longer. A negative axis counts from the last one.
    ///
    /// The gradient is added in an order that is always the same; on the CPU it is the order of the index.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or an index is not in `0..size` of the axis. On the CPU the error names the
    /// first such index, and nothing is written. On a GPU a later call on the device returns the error
    /// ([`Device::synchronize`](crate::Device::synchronize)); such an index gives NaN (0 for other dtypes than
    /// floats) and gets no gradient.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
    /// let index = Tensor::from_slice(&[1i64, 0], [2, 1], &device)?;
    /// assert_eq!(x.gather(1, &index)?.to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn gather(&self, axis: isize, index: &Tensor) -> Result<Tensor> {
        let axis = resolve_axis(Gather::NAME, axis, self.rank())?;
        apply(Gather { axis }, &[self, index])
    }

    /// [`Tensor::gather`] into the memory of `dst`.
    pub fn gather_into(&self, axis: isize, index: &Tensor, dst: &Tensor) -> Result<()> {
        let axis = resolve_axis(Gather::NAME, axis, self.rank())?;
        apply_into(Gather { axis }, &[self, index], dst)
    }

    /// Adds the elements of `source` to this tensor at indexed positions. For a matrix and axis 0, `out[index[i, j],
    /// j] += source[i, j]`. For floats and integers. `index` (i64 or i32) and `source` have as many axes as this
    /// tensor. No axis of the index may be longer than that of the source. No axis of the index except `axis` may be
    /// longer than that of this tensor. Elements of the source that the index does not cover are ignored and get a
    /// gradient of zero. A negative axis counts from the last one.
    ///
    /// A position that is named several times gets the sum, added in an order that is always the same (on the CPU the
    /// order of the index). f16 and bf16 are summed in f32.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or an index is not in `0..size` of the axis. On the CPU the error names the
    /// first such index, and nothing is written. On a GPU a later call on the device returns the error
    /// ([`Device::synchronize`](crate::Device::synchronize)); the element of such an index is ignored.
    pub fn scatter_add(&self, axis: isize, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        let axis = resolve_axis(ScatterAdd::NAME, axis, self.rank())?;
        apply(ScatterAdd { axis }, &[self, index, &covered(source, index)?])
    }

    /// [`Tensor::scatter_add`] into the memory of `dst` (which may be this tensor).
    pub fn scatter_add_into(&self, axis: isize, index: &Tensor, source: &Tensor, dst: &Tensor) -> Result<()> {
        let axis = resolve_axis(ScatterAdd::NAME, axis, self.rank())?;
        // Only this tensor may share memory with the result.
        let apart = |t: &Tensor| if t.shares_storage(dst) { t.copy() } else { Ok(t.clone()) };
        apply_into(ScatterAdd { axis }, &[self, &apart(index)?, &apart(&covered(source, index)?)?], dst)
    }

    /// Replaces elements of this tensor at indexed positions by those of `source`. For a matrix and axis 0, `out[index[i, j],
    /// j] = source[i, j]`. For every dtype. Shapes, index and errors are those of [`Tensor::scatter_add`].
    ///
    /// If several entries name a position, the last one wins, on every device; the others get a gradient of 0.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::from_slice(&[0.0f32, 0.0, 0.0], [3], &device)?;
    /// let index = Tensor::from_slice(&[2i64, 0, 2], [3], &device)?;
    /// let source = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &device)?;
    /// assert_eq!(x.scatter(0, &index, &source)?.to_vec::<f32>()?, [2.0, 0.0, 3.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn scatter(&self, axis: isize, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        let axis = resolve_axis(Scatter::NAME, axis, self.rank())?;
        apply(Scatter { axis }, &[self, index, &covered(source, index)?])
    }

    /// [`Tensor::scatter`] into the memory of `dst` (which may be this tensor).
    pub fn scatter_into(&self, axis: isize, index: &Tensor, source: &Tensor, dst: &Tensor) -> Result<()> {
        let axis = resolve_axis(Scatter::NAME, axis, self.rank())?;
        // Only this tensor may share memory with the result.
        let apart = |t: &Tensor| if t.shares_storage(dst) { t.copy() } else { Ok(t.clone()) };
        apply_into(Scatter { axis }, &[self, &apart(index)?, &apart(&covered(source, index)?)?], dst)
    }
}
