//! `index_add` and `index_reduce`: slices at indexed positions are added, or the largest or smallest of each element is taken.

use smallvec::SmallVec;

use super::{IndexSelect, cuda, host, order, replaced};
use crate::autograd::{Gradients, Saves};
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::positions::{check_places, require_positions, with_positions};
use crate::ops::{Op, Spec, Specs, apply, apply_into, check_dtypes};
use crate::tensor::{DType, Shape, Tensor, resolve_axis};

/// What [`Tensor::index_reduce`] takes of the elements at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexReduction {
    /// The largest.
    Amax,
    /// The smallest.
    Amin,
}

/// What becomes of the slices at a position, and of the base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reduction {
    /// Their sum, and that of the base.
    Sum,
    /// The largest or smallest of each element. Without `include_self`, the base counts only where there is no slice.
    Extreme { of: IndexReduction, include_self: bool },
}

/// Reduces slices of `source` at indexed positions, with zeros of `shape`, or with `base`. Operands: `source`, `index` and, if there are
/// some, `base` and the two of the index's order. A sum is the adjoint of [`IndexSelect`].
#[derive(Clone, Debug)]
pub(super) struct IndexReduce {
    name: &'static str,
    axis: usize,
    shape: Shape,
    base: bool,
    reduction: Reduction,
    /// Whether the order of the index is given, so that it was checked.
    ordered: bool,
}

impl Op for IndexReduce {
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
        let (axis, base, order) = (self.axis, self.base, self.order());
        with_positions!(args, 1, index => host::reduce(self.reduction, axis, base, order, index, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::reduce(self.reduction, self.axis, self.base, self.order(), args)
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
        match self.reduction {
            Reduction::Sum => Saves::default().input_if(1, needs[0]),
            // The gradient of a base that joins nothing depends on the index alone.
            Reduction::Extreme { include_self, .. } if include_self || needs[0] => {
                Saves::default().input(0).input(1).input_if(2, include_self).output(0)
            }
            Reduction::Extreme { .. } => Saves::default().input(1),
        }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        if let Reduction::Extreme { include_self, .. } = self.reduction {
            return self.extreme_backward(g, &grad, include_self);
        }
        if g.needs(0) {
            let index = g.input(1)?;
            g.emit(&[0], IndexSelect::along(self.axis), &[&grad, &index])?;
        }
        if self.base { g.add(2, grad) } else { Ok(()) }
    }
}

impl IndexReduce {
    /// The gradient of picked slices.
    pub(super) fn gradient(axis: usize, shape: Shape) -> IndexReduce {
        IndexReduce { name: Self::NAME, axis, shape, base: false, reduction: Reduction::Sum, ordered: false }
    }

    /// On top of `x`.
    fn onto(op: &'static str, see: &str, x: &Tensor, axis: isize, index: &Tensor) -> Result<IndexReduce> {
        let axis = resolve_axis(op, axis, x.rank())?;
        if index.rank() != 1 {
            let message = format!("the index has shape {}; it must have one dimension{see}", index.shape());
            return Err(Error::invalid(op, message));
        }
        let shape = x.shape().clone();
        Ok(IndexReduce { name: op, axis, shape, base: true, reduction: Reduction::Sum, ordered: false })
    }

    /// The number of the first operand of the index's order.
    fn order(&self) -> Option<usize> {
        self.ordered.then_some(2 + usize::from(self.base))
    }

    /// Calls `f` with this operation and its operands, with the order of the index if it is needed.
    pub(super) fn with_order<T>(
        mut self,
        operands: &[&Tensor],
        f: impl FnOnce(IndexReduce, &[&Tensor]) -> Result<T>,
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

    /// Writes to `dst`, with which only `x` may share memory.
    fn into(self, x: &Tensor, index: &Tensor, source: &Tensor, dst: &Tensor) -> Result<()> {
        let apart = |t: &Tensor| if t.shares_storage(dst) { t.copy() } else { Ok(t.clone()) };
        let (source, index) = (apart(source)?, apart(index)?);
        self.with_order(&[&source, &index, x], |op, operands| apply_into(op, operands, dst))
    }

    /// All elements that are the extreme of a position share its gradient.
    fn extreme_backward(&self, g: &mut Gradients<'_>, grad: &Tensor, include_self: bool) -> Result<()> {
        let index = g.input(1)?;
        let count = |onto: &Tensor, of: &Tensor| onto.index_add(self.axis as isize, &index, of);
        if include_self || g.needs(0) {
            let (source, y) = (g.input(0)?, g.output(0)?);
            // Counts of 16 bits would be wrong from 257 on.
            let dtype = if grad.dtype().size() < 4 { DType::F32 } else { grad.dtype() };
            let pick = |x: &Tensor| apply(IndexSelect::along(self.axis), &[x, &index]);
            let is_extreme = ties(&source, &pick(&y)?)?.to_dtype(dtype)?;
            let base_is = match include_self {
                true => ties(&g.input(2)?, &y)?.to_dtype(dtype)?,
                false => Tensor::zeros(y.shape(), dtype, y.device())?,
            };
            let share = grad.to_dtype(dtype)?.div(&count(&base_is, &is_extreme)?)?;
            if g.needs(0) {
                g.add(0, pick(&share)?.mul(&is_extreme)?.to_dtype(grad.dtype())?)?;
            }
            if include_self && g.needs(2) {
                g.add(2, share.mul(&base_is)?.to_dtype(grad.dtype())?)?;
            }
        }
        if include_self || !g.needs(2) {
            return Ok(());
        }
        let mut slices = vec![1; self.shape.rank()];
        slices[self.axis] = self.shape[self.axis];
        let none = Tensor::zeros(&slices[..], DType::F32, grad.device())?;
        slices[self.axis] = index.numel();
        let is_named =
            count(&none, &Tensor::ones(&slices[..], DType::F32, grad.device())?)?.gt_scalar(0.0)?;
        g.add(2, grad.masked_fill(&is_named, 0.0)?)
    }
}

/// Whether elements are the extremes of their positions. A NaN is that of a position with a NaN.
fn ties(x: &Tensor, extremes: &Tensor) -> Result<Tensor> {
    x.eq(extremes)?.logical_or(&x.isnan()?.logical_and(&extremes.isnan()?)?)
}

fn index_add(x: &Tensor, axis: isize, index: &Tensor) -> Result<IndexReduce> {
    IndexReduce::onto("index_add", " (see scatter_add)", x, axis, index)
}

fn index_reduce(
    x: &Tensor,
    axis: isize,
    index: &Tensor,
    of: IndexReduction,
    include_self: bool,
) -> Result<IndexReduce> {
    let op = IndexReduce::onto("index_reduce", "", x, axis, index)?;
    Ok(IndexReduce { reduction: Reduction::Extreme { of, include_self }, ..op })
}

impl Tensor {
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
        index_add(self, axis, index)?.into(self, index, source, dst)
    }

    /// Takes the largest (or smallest) of the slices at indexed positions along an axis, element by element: slice `i` of the result is
    /// that of the slices `n` of `source` with `index[n] == i`. The slice of this tensor counts, too, with `include_self`; without, only
    /// where the index does not name it. `index` is `[N]` (i64 or i32); `source` has the shape of this tensor with `N` as the size of the
    /// axis, and its dtype. For floats. A negative axis counts from the last one. In a graph net, it is the largest of the messages to
    /// each node, also that of a softmax over them.
    ///
    /// A NaN makes the result NaN. Where a slice is named, a zero is +0. All elements that are the extreme of a position share its
    /// gradient, as in [`Tensor::max`].
    ///
    /// # Errors
    /// Those of [`Tensor::index_add`].
    ///
    /// ```
    /// use refrain::{DType, Device, IndexReduction, Tensor};
    /// let device = Device::cpu();
    /// let nodes = Tensor::zeros([3, 2], DType::F32, &device)?;
    /// let messages = Tensor::from_slice(&[-1.0f32, 2.0, 3.0, 4.0, -5.0, 6.0], [3, 2], &device)?;
    /// let to = Tensor::from_slice(&[2i64, 0, 2], [3], &device)?;
    /// let largest = nodes.index_reduce(0, &to, &messages, IndexReduction::Amax, false)?;
    /// assert_eq!(largest.to_vec::<f32>()?, [3.0, 4.0, 0.0, 0.0, -1.0, 6.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn index_reduce(
        &self,
        axis: isize,
        index: &Tensor,
        source: &Tensor,
        reduction: IndexReduction,
        include_self: bool,
    ) -> Result<Tensor> {
        index_reduce(self, axis, index, reduction, include_self)?.with_order(&[source, index, self], apply)
    }

    /// [`Tensor::index_reduce`] into the memory of `dst` (which may be this tensor; with `include_self`, there is no backward pass then,
    /// because it reads what was there before).
    pub fn index_reduce_into(
        &self,
        axis: isize,
        index: &Tensor,
        source: &Tensor,
        reduction: IndexReduction,
        include_self: bool,
        dst: &Tensor,
    ) -> Result<()> {
        index_reduce(self, axis, index, reduction, include_self)?.into(self, index, source, dst)
    }
}
