//! Views: the same memory in another layout. No view moves data, for any dtype.

use smallvec::SmallVec;

use super::fold::Fold;
use crate::autograd::{Differentiable, Gradients};
use crate::error::{Error, Result};
use crate::tensor::{NewShape, Shape, Tensor, resolve_axis};

/// How a view was made. The backward pass reverses it for the gradient.
enum View {
    /// A reshape, or an inserted or removed dimension of size 1.
    Reshape,
    Permute(SmallVec<[usize; 6]>),
    /// The same of a result that nobody else has in its own order, so that it is the whole of it.
    PermuteResult(SmallVec<[usize; 6]>),
    Broadcast,
    Narrow {
        axis: isize,
        start: usize,
        len: usize,
    },
    Unfold {
        axis: usize,
        size: usize,
        step: usize,
    },
}

impl Differentiable for View {
    fn name(&self) -> &'static str {
        match self {
            View::Reshape => "reshape",
            View::Permute(_) | View::PermuteResult(_) => "permute",
            View::Broadcast => "broadcast_to",
            View::Narrow { .. } => "narrow",
            View::Unfold { .. } => "unfold",
        }
    }

    fn is_view(&self) -> bool {
        !matches!(self, View::PermuteResult(_))
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        match self {
            View::Reshape => {
                let grad = grad.reshape(g.input_shape(0))?;
                g.add(0, grad)
            }
            View::Permute(order) | View::PermuteResult(order) => {
                let mut inverse: SmallVec<[isize; 6]> = SmallVec::from_elem(0, order.len());
                for (to, &from) in order.iter().enumerate() {
                    inverse[from] = to as isize;
                }
                g.add(0, grad.permute(&inverse)?)
            }
            View::Broadcast => {
                let grad = grad.sum_to(g.input_shape(0))?;
                g.add(0, grad)
            }
            &View::Narrow { axis, start, len } => g.add_window(0, |t| t.narrow(axis, start, len), &grad),
            View::Unfold { axis, size, step } => {
                let fold = Fold { shape: g.input_shape(0).clone(), axis: *axis, size: *size, step: *step };
                g.emit(&[0], fold, &[&grad])
            }
        }
    }
}

impl Tensor {
    /// The same elements in another shape, without moving data. One size may be -1 ([`NewShape`]).
    ///
    /// On the CPU, an elementwise operation on a transposed operand makes a result with the strides of the operand. So whether the
    /// view of a result exists may depend on the device; [`Tensor::reshape`] works for all.
    ///
    /// # Errors
    /// If the number of elements differs, or the strides do not allow it ([`Tensor::reshape`] copies in that case).
    pub fn view(&self, shape: impl Into<NewShape>) -> Result<Tensor> {
        let shape = self.resolved("view", shape.into())?;
        let layout = self.layout().reshape(&shape).ok_or_else(|| {
            Error::invalid(
                "view",
                format!(
                    "a tensor of shape {} and strides {:?} can't be viewed as {shape} without moving data; use reshape, which copies if needed",
                    self.shape(),
                    self.strides()
                ),
            )
        })?;
        Ok(self.view_as(layout, View::Reshape))
    }

    /// The same elements in another shape. It copies only if the strides require it. One size may be -1, which is computed
    /// ([`NewShape`]). On the CPU, the result of an elementwise operation on a transposed operand has the operand's strides, so its
    /// reshape may copy where the reshape of a contiguous result does not.
    ///
    /// ```
    /// use refrain::{Device, DType, Tensor};
    /// let x = Tensor::arange(0.0, 6.0, 1.0, DType::F32, &Device::cpu())?;
    /// assert!(x.reshape([2, 3])?.shares_storage(&x));
    /// assert_eq!(x.reshape([2, -1])?.dims(), [2, 3]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the number of elements differs, or a size is -1 and does not follow from the others.
    pub fn reshape(&self, shape: impl Into<NewShape>) -> Result<Tensor> {
        let shape = self.resolved("reshape", shape.into())?;
        match self.layout().reshape(&shape) {
            Some(layout) => Ok(self.view_as(layout, View::Reshape)),
            None => self.contiguous()?.view(shape),
        }
    }

    /// [`Tensor::reshape`] of one dimension into several. One of their sizes may be -1. The reverse of [`Tensor::flatten`].
    ///
    /// # Errors
    /// If the axis is out of range, or the sizes do not multiply to that of the dimension.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 5, 12], DType::F32, &Device::cpu())?;
    /// assert_eq!(x.unflatten(-1, [3, -1])?.dims(), [2, 5, 3, 4]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn unflatten(&self, axis: isize, sizes: impl Into<NewShape>) -> Result<Tensor> {
        const OP: &str = "unflatten";
        let (axis, d) = (resolve_axis(OP, axis, self.rank())?, self.dims());
        let sizes = sizes.into().resolve(OP, &Shape::from([d[axis]]))?;
        if sizes.checked_numel(OP, 1)? != d[axis] {
            let hint = format!("the sizes must multiply to {}, the size of axis {axis}", d[axis]);
            return Err(Error::shapes(OP, self.shape(), &sizes, hint));
        }
        self.reshape(d[..axis].iter().chain(sizes.iter()).chain(&d[axis + 1..]).copied().collect::<Shape>())
    }

    fn resolved(&self, op: &'static str, shape: NewShape) -> Result<Shape> {
        let shape = shape.resolve(op, self.shape())?;
        if self.numel() != shape.checked_numel(op, 1)? {
            return Err(Error::shapes(
                op,
                self.shape(),
                &shape,
                "a reshape must keep the number of elements",
            ));
        }
        Ok(shape)
    }

    /// Merges the dimensions `start..=end` into one. A negative axis counts from the last one.
    pub fn flatten(&self, start: isize, end: isize) -> Result<Tensor> {
        const OP: &str = "flatten";
        if self.rank() == 0 {
            return self.reshape([1]);
        }
        let (start, end) = (resolve_axis(OP, start, self.rank())?, resolve_axis(OP, end, self.rank())?);
        if start > end {
            return Err(Error::invalid(OP, format!("the first axis, {start}, comes after the last, {end}")));
        }
        let d = self.dims();
        let merged = d[start..=end].iter().product();
        self.reshape(
            d[..start].iter().copied().chain([merged]).chain(d[end + 1..].iter().copied()).collect::<Shape>(),
        )
    }

    /// Reorders the dimensions: dimension `i` of the result is dimension `order[i]` of this tensor.
    pub fn permute(&self, order: &[isize]) -> Result<Tensor> {
        const OP: &str = "permute";
        let mut seen: SmallVec<[bool; 6]> = SmallVec::from_elem(false, self.rank());
        let mut resolved: SmallVec<[usize; 6]> = SmallVec::new();
        for &axis in order {
            let axis = resolve_axis(OP, axis, self.rank())?;
            seen[axis] = true;
            resolved.push(axis);
        }
        if order.len() != self.rank() || seen.contains(&false) {
            return Err(Error::invalid(
                OP,
                format!("{order:?} does not name each of the {} dimensions once", self.rank()),
            ));
        }
        Ok(self.view_as(self.layout().permute(&resolved), View::Permute(resolved)))
    }

    /// [`Tensor::permute`] of a result that nobody else has.
    pub(crate) fn permute_result(&self, order: &[usize]) -> Tensor {
        self.view_as(self.layout().permute(order), View::PermuteResult(order.into()))
    }

    /// Swaps two dimensions. A negative axis counts from the last one.
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor> {
        let (a, b) = (resolve_axis("transpose", a, self.rank())?, resolve_axis("transpose", b, self.rank())?);
        let mut order: SmallVec<[usize; 6]> = (0..self.rank()).collect();
        order.swap(a, b);
        Ok(self.view_as(self.layout().permute(&order), View::Permute(order)))
    }

    /// Takes `len` indices from `start` on along one dimension.
    pub fn narrow(&self, axis: isize, start: usize, len: usize) -> Result<Tensor> {
        const OP: &str = "narrow";
        let axis = resolve_axis(OP, axis, self.rank())?;
        let size = self.dims()[axis];
        if start.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::invalid(
                OP,
                format!(
                    "indices {start}..{start}+{len} lie outside axis {axis} of a tensor of shape {}",
                    self.shape()
                ),
            ));
        }
        Ok(self.view_as(
            self.layout().narrow(axis, start, len),
            View::Narrow { axis: axis as isize, start, len },
        ))
    }

    /// Takes one index along one dimension and removes that dimension.
    pub fn select(&self, axis: isize, index: usize) -> Result<Tensor> {
        let axis = resolve_axis("select", axis, self.rank())? as isize;
        self.narrow(axis, index, 1)?.squeeze(axis)
    }

    /// Repeats dimensions of size 1 (and missing leading ones) to reach `shape`, without moving data.
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        shape.check_view("broadcast_to")?;
        if &shape == self.shape() {
            return Ok(self.clone());
        }
        let layout = self.layout().broadcast_to(&shape).ok_or_else(|| {
            Error::shapes(
                "broadcast_to",
                self.shape(),
                &shape,
                "only sizes of 1 and missing leading dimensions can be repeated",
            )
        })?;
        Ok(self.view_as(layout, View::Broadcast))
    }

    /// Removes a dimension of size 1.
    pub fn squeeze(&self, axis: isize) -> Result<Tensor> {
        const OP: &str = "squeeze";
        let axis = resolve_axis(OP, axis, self.rank())?;
        if self.dims()[axis] != 1 {
            return Err(Error::invalid(
                OP,
                format!(
                    "axis {axis} of a tensor of shape {} is not of size 1; use select to take one index",
                    self.shape()
                ),
            ));
        }
        Ok(self.view_as(self.layout().squeeze(axis), View::Reshape))
    }

    /// Inserts a dimension of size 1 before `axis` (from `-rank - 1` to `rank`).
    pub fn unsqueeze(&self, axis: isize) -> Result<Tensor> {
        let axis = resolve_axis("unsqueeze", axis, self.rank() + 1)?;
        Ok(self.view_as(self.layout().unsqueeze(axis), View::Reshape))
    }

    /// Sliding windows of `size` elements, every `step` along one dimension, without moving data. Dimension `axis`
    /// becomes the number of windows; the elements of a window become a new last dimension.
    ///
    /// ```
    /// use refrain::{Device, DType, Tensor};
    /// let x = Tensor::arange(0.0, 5.0, 1.0, DType::F32, &Device::cpu())?;
    /// assert_eq!(x.unfold(0, 3, 2)?.to_vec::<f32>()?, [0.0, 1.0, 2.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn unfold(&self, axis: isize, size: usize, step: usize) -> Result<Tensor> {
        const OP: &str = "unfold";
        let axis = resolve_axis(OP, axis, self.rank())?;
        if step == 0 || size > self.dims()[axis] {
            return Err(Error::invalid(
                OP,
                format!(
                    "windows of size {size} and step {step} do not fit axis {axis} of a tensor of shape {}; the step must be at least 1 and the size at most {}",
                    self.shape(),
                    self.dims()[axis]
                ),
            ));
        }
        let layout = self.layout().unfold(axis, size, step);
        layout.shape().check_view(OP)?;
        Ok(self.view_as(layout, View::Unfold { axis, size, step }))
    }

    /// Splits one dimension into views of `size` indices each. The last one may be smaller.
    pub fn split(&self, size: usize, axis: isize) -> Result<Vec<Tensor>> {
        const OP: &str = "split";
        let n = self.dims()[resolve_axis(OP, axis, self.rank())?];
        if size == 0 {
            return Err(Error::invalid(OP, "the size of a piece is 0; use at least 1"));
        }
        (0..n.div_ceil(size).max(1)).map(|i| self.narrow(axis, i * size, size.min(n - i * size))).collect()
    }

    /// Splits one dimension into views of these sizes, one after the other.
    ///
    /// # Errors
    /// If the sizes do not add up to that of the dimension, or the axis is out of range.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 7], DType::F32, &Device::cpu())?;
    /// let parts = x.split_with_sizes(&[4, 1, 2], 1)?;
    /// assert_eq!((parts.len(), parts[2].dims()), (3, &[2, 2][..]));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn split_with_sizes(&self, sizes: &[usize], axis: isize) -> Result<Vec<Tensor>> {
        const OP: &str = "split_with_sizes";
        let n = self.dims()[resolve_axis(OP, axis, self.rank())?];
        if sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)) != Some(n) {
            let message = format!(
                "the sizes {sizes:?} do not add up to {n}, the size of axis {axis} of a tensor of shape {}",
                self.shape()
            );
            return Err(Error::invalid(OP, message));
        }
        let mut start = 0;
        sizes
            .iter()
            .map(|&size| {
                start += size;
                self.narrow(axis, start - size, size)
            })
            .collect()
    }

    /// The views without one dimension, for each of its indices.
    ///
    /// # Errors
    /// If the axis is out of range.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let steps = Tensor::zeros([8, 24, 3], DType::F32, &Device::cpu())?.unbind(1)?;
    /// assert_eq!((steps.len(), steps[0].dims()), (24, &[8, 3][..]));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn unbind(&self, axis: isize) -> Result<Vec<Tensor>> {
        let n = self.dims()[resolve_axis("unbind", axis, self.rank())?];
        (0..n).map(|i| self.select(axis, i)).collect()
    }

    /// Splits one dimension into at most `count` views of equal size. The last one may be smaller.
    pub fn chunk(&self, count: usize, axis: isize) -> Result<Vec<Tensor>> {
        const OP: &str = "chunk";
        let n = self.dims()[resolve_axis(OP, axis, self.rank())?];
        if count == 0 {
            return Err(Error::invalid(OP, "the number of pieces is 0; use at least 1"));
        }
        self.split(n.div_ceil(count).max(1), axis)
    }
}
