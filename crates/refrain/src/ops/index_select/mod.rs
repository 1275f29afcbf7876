//! `index_select` picks whole slices along an axis; `embedding` picks rows of a table; `index_add`, the adjoint, adds slices at
//! indexed positions, and `index_reduce` takes the largest or smallest of each element.

mod cuda;
mod host;
mod order;
mod reduce;

use self::reduce::IndexReduce;
use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::positions::{check_places, require_positions, with_positions};
use crate::tensor::{Shape, Tensor, resolve_axis};

pub use self::reduce::IndexReduction;

/// `out[o.., i.., j..] = x[o.., index[i..], j..]`. Operands: `x`, `index`. The axes of the index replace `axis`.
#[derive(Clone, Debug)]
struct IndexSelect {
    name: &'static str,
    axis: usize,
    /// What to do about an index out of range, or nothing.
    advice: &'static str,
}

/// The shape with `axis` replaced by the axes of the index.
fn replaced(shape: &Shape, axis: usize, index: &Shape) -> Shape {
    shape[..axis].iter().chain(index.iter()).chain(&shape[axis + 1..]).copied().collect()
}

impl Op for IndexSelect {
    const NAME: &'static str = "index_select";

    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        require_positions(self.name, "index (the second operand)", x[1])?;
        let axis = self.axis;
        check_places(self.name, x[1].shape(), x[0].dims()[axis], || format!("axis {axis} of size 0"))?;
        Ok(Spec::new(replaced(x[0].shape(), self.axis, x[1].shape()), x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 1, index => host::select(self.axis, self.advice, index, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::select(self.axis, args)
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
        IndexReduce::gradient(self.axis, shape)
            .with_order(&[&grad, &index], |op, operands| g.emit(&[0], op, operands))
    }
}

impl IndexSelect {
    fn along(axis: usize) -> IndexSelect {
        IndexSelect { name: Self::NAME, axis, advice: "" }
    }
}

fn index_select(x: &Tensor, axis: isize, index: &Tensor) -> Result<IndexSelect> {
    const OP: &str = IndexSelect::NAME;
    let axis = resolve_axis(OP, axis, x.rank())?;
    if index.rank() != 1 {
        return Err(Error::invalid(
            OP,
            format!("the index has shape {}; it must have one dimension (see gather)", index.shape()),
        ));
    }
    Ok(IndexSelect::along(axis))
}

fn embedding(weight: &Tensor) -> Result<IndexSelect> {
    const OP: &str = "embedding";
    if weight.rank() != 2 {
        return Err(Error::invalid(
            OP,
            format!("the table has shape {}; it must be [entries, features]", weight.shape()),
        ));
    }
    Ok(IndexSelect { name: OP, ..IndexSelect::along(0) })
}

impl Tensor {
    /// Picks slices along an axis. `index` is `[N]` (i64 or i32); slice `n` of the result along `axis` is slice
    /// `index[n]` of this tensor. For every dtype. A negative axis counts from the last one.
    ///
    /// In the gradient, slices that were picked several times are added in an order that is always the same (on the
    /// CPU the order of the index). f16 and bf16 are summed in f32.
    ///
    /// # Errors
    /// If the index is not i64 or i32 or does not have one dimension, or an index is not in `0..size` of the axis. On
    /// the CPU the error names the first such index, and nothing is written. On a GPU a later call on the device
    /// returns the error ([`Device::synchronize`](crate::Device::synchronize)); such an index gives NaN (0 for other
    /// dtypes than floats) and gets no gradient.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
    /// let index = Tensor::from_slice(&[1i64, 0, 1], [3], &device)?;
    /// assert_eq!(x.index_select(1, &index)?.to_vec::<f32>()?, [2.0, 1.0, 2.0, 4.0, 3.0, 4.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn index_select(&self, axis: isize, index: &Tensor) -> Result<Tensor> {
        apply(index_select(self, axis, index)?, &[self, index])
    }

    /// [`Tensor::index_select`] for a crate on top of this one whose users don't know of the index: errors have the name of `caller`,
    /// and on the CPU also advice on an index out of range, in recorded steps, too.
    #[doc(hidden)]
    pub fn index_select_for(
        &self,
        caller: &'static str,
        advice: &'static str,
        axis: isize,
        index: &Tensor,
    ) -> Result<Tensor> {
        apply(IndexSelect { name: caller, advice, ..index_select(self, axis, index)? }, &[self, index])
    }

    /// [`Tensor::index_select`] into the memory of `dst`.
    pub fn index_select_into(&self, axis: isize, index: &Tensor, dst: &Tensor) -> Result<()> {
        apply_into(index_select(self, axis, index)?, &[self, index], dst)
    }

    /// Picks rows of this table `[entries, features]`. For ids (i64 or i32) of shape `[..]` the result is `[..,
    /// features]`. For every dtype.
    ///
    /// In the gradient, rows that were picked several times are added in an order that is always the same (on the CPU
    /// the order of the ids). f16 and bf16 are summed in f32.
    ///
    /// # Errors
    /// If the table does not have two dimensions or the ids are not i64 or i32, or an id is not in `0..entries`. On
    /// the CPU the error names the first such id, and nothing is written. On a GPU a later call on the device returns
    /// the error ([`Device::synchronize`](crate::Device::synchronize)); such an id gives NaN (0 for other dtypes than
    /// floats) and gets no gradient.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let table = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
    /// let ids = Tensor::from_slice(&[1i64, 1], [1, 2], &device)?;
    /// assert_eq!(table.embedding(&ids)?.dims(), [1, 2, 2]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        apply(embedding(self)?, &[self, ids])
    }

    /// [`Tensor::embedding`] into the memory of `dst`.
    pub fn embedding_into(&self, ids: &Tensor, dst: &Tensor) -> Result<()> {
        apply_into(embedding(self)?, &[self, ids], dst)
    }
}
