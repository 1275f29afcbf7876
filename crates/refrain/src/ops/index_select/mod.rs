//! `index_select` picks whole slices along an axis; `embedding` picks rows of a table; `index_add`, the adjoint, adds slices at
//! indexed positions.

mod cuda;
mod host;
mod order;

use smallvec::SmallVec;

use super::{Op, Spec, Specs, apply, apply_into, check_dtypes};
use crate::autograd::{Gradients, Saves};
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::positions::{check_places, require_positions, with_positions};
use crate::tensor::{Shape, Tensor, resolve_axis};

/// `out[o.., i.., j..] = x[o.., index[i..], j..]`. Operands: `x`, `index`. The axes of the index replace `axis`.
#[derive(Clone, Debug)]
struct IndexSelect {
    name: &'static str,
    axis: usize,
    /// What to do about an index out of range, or nothing.
    advice: &'static str,
}

/// The adjoint: adds slices of `source` at indexed positions to zeros of `shape`, or to `base`. Operands: `source`, `index` and, if
/// there are some, `base` and the two of the index's order.
#[derive(Clone, Debug)]
struct IndexAdd {
    name: &'static str,
    axis: usize,
    shape: Shape,
    base: bool,
    /// Whether the order of the index is given, so that it was checked.
    ordered: bool,
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
        let op = IndexAdd { name: IndexAdd::NAME, axis: self.axis, shape, base: false, ordered: false };
        op.with_order(&[&grad, &index], |op, operands| g.emit(&[0], op, operands))
    }
}

impl Op for IndexAdd {
    const NAME: &'static str = "index_select_backward";

    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(self.name)?;
        if self.base {
            check_dtypes(self.name, x[2], x[0])?;
        }
        require_positions(self.name, "index", x[1])?;
        check_places(self.name, x[1].shape(), self.shape[self.axis], || {
            format!("axis {} of size 0", self.axis)
        })?;
        let expected = replaced(&self.shape, self.axis, x[1].shape());
        if x[0].shape() != &expected {
            let hint = "a slice of the source for each entry of the index: both must be equal";
            return Err(Error::shapes(self.name, x[0].shape(), &expected, hint));
        }
        Ok(Spec::new(&self.shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 1, index => host::add(self.axis, self.base, self.order(), index, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::add(self.axis, self.base, self.order(), args)
    }

    fn can_fail(&self) -> bool {
        !self.ordered
    }

    fn accumulates(&self, _: usize) -> bool {
        !self.base
    }

    fn in_place(&self, _: usize, input: usize) -> bool {
        self.base && input == 2
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        Saves::default().input_if(1, needs[0])
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        if g.needs(0) {
            let index = g.input(1)?;
            let op = IndexSelect { name: IndexSelect::NAME, axis: self.axis, advice: "" };
            g.emit(&[0], op, &[&grad, &index])?;
        }
        if self.base { g.add(2, grad) } else { Ok(()) }
    }
}

impl IndexAdd {
    /// The number of the first operand of the index's order.
    fn order(&self) -> Option<usize> {
        self.ordered.then_some(2 + usize::from(self.base))
    }

    /// Calls `f` with this operation and its operands, with the order of the index if it is needed.
    fn with_order<T>(
        mut self,
        operands: &[&Tensor],
        f: impl FnOnce(IndexAdd, &[&Tensor]) -> Result<T>,
    ) -> Result<T> {
        let (index, size) = (operands[1], self.shape[self.axis]);
        if !cuda::needs_order(size, index.numel()) {
            return f(self, operands);
        }
        let [entries, ends] = order::order(self.name, index, self.axis, size)?;
        self.ordered = true;
        let operands: SmallVec<[&Tensor; 5]> = operands.iter().copied().chain([&entries, &ends]).collect();
        f(self, &operands)
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
    Ok(IndexSelect { name: OP, axis, advice: "" })
}

fn index_add(x: &Tensor, axis: isize, index: &Tensor) -> Result<IndexAdd> {
    const OP: &str = "index_add";
    let axis = resolve_axis(OP, axis, x.rank())?;
    if index.rank() != 1 {
        let message =
            format!("the index has shape {}; it must have one dimension (see scatter_add)", index.shape());
        return Err(Error::invalid(OP, message));
    }
    Ok(IndexAdd { name: OP, axis, shape: x.shape().clone(), base: true, ordered: false })
}

fn embedding(weight: &Tensor) -> Result<IndexSelect> {
    const OP: &str = "embedding";
    if weight.rank() != 2 {
        return Err(Error::invalid(
            OP,
            format!("the table has shape {}; it must be [entries, features]", weight.shape()),
        ));
    }
    Ok(IndexSelect { name: OP, axis: 0, advice: "" })
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

    /// Adds slices to this tensor at indexed positions along an axis: slice `index[n]` of the result is that of this tensor plus
    /// slice `n` of `source`. If the index names a slice several times, all of those are added. `index` is `[N]` (i64 or i32);
    /// `source` has the shape of this tensor with `N` as the size of the axis, and its dtype. For floats; [`Tensor::scatter_add`] also
    /// adds integers, and element by element. A negative axis counts from the last one. In a graph net, it sums the messages to each
    /// node.
    ///
    /// The order of the additions is always the same (on the CPU that of the index). f16 and bf16 are summed in f32.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or an index is not in `0..size` of the axis. On the CPU the error names the first such index,
    /// and nothing is written. On a GPU a later call on the device returns the error
    /// ([`Device::synchronize`](crate::Device::synchronize)); the slice of such an index is ignored.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let device = Device::cpu();
    /// let nodes = Tensor::zeros([3, 2], DType::F32, &device)?;
    /// let messages = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2], &device)?;
    /// let to = Tensor::from_slice(&[2i64, 0, 2], [3], &device)?;
    /// let heard = nodes.index_add(0, &to, &messages)?;
    /// assert_eq!(heard.to_vec::<f32>()?, [3.0, 4.0, 0.0, 0.0, 6.0, 8.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn index_add(&self, axis: isize, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        index_add(self, axis, index)?.with_order(&[source, index, self], apply)
    }

    /// [`Tensor::index_add`] into the memory of `dst` (which may be this tensor).
    pub fn index_add_into(&self, axis: isize, index: &Tensor, source: &Tensor, dst: &Tensor) -> Result<()> {
        let op = index_add(self, axis, index)?;
        // Only this tensor may share memory with the result.
        let apart = |t: &Tensor| if t.shares_storage(dst) { t.copy() } else { Ok(t.clone()) };
        let (source, index) = (apart(source)?, apart(index)?);
        op.with_order(&[&source, &index, self], |op, operands| apply_into(op, operands, dst))
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
