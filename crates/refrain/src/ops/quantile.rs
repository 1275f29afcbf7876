//! Quantiles: elements of the sorted tensor, or between two of them.

use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor, resolve_axis};

/// Element `place` of the sorted axis, and from its fraction on linearly towards the next one. NaN if an element is NaN.
fn at_place(op: &'static str, x: &Tensor, axis: isize, place: impl Fn(usize) -> f64) -> Result<Tensor> {
    let size = x.dims()[resolve_axis(op, axis, x.rank())?];
    if size == 0 {
        let message = format!(
            "axis {axis} of a tensor of shape {} has no elements; pass one of at least one",
            x.shape()
        );
        return Err(Error::invalid(op, message));
    }
    let place = place(size - 1);
    let (first, part) = (place.floor() as usize, place.fract());
    let (sorted, _) = x.sort(axis, false)?;
    let mut value = sorted.select(axis, first)?;
    if part > 0.0 {
        let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let [below, above] = [value, sorted.select(axis, first + 1)?].map(|t| t.to_dtype(wide));
        let (below, above) = (below?, above?);
        value = (below.mul_scalar(1.0 - part)? + above.mul_scalar(part)?)?.to_dtype(x.dtype())?;
    }
    if !x.dtype().is_float() {
        return Ok(value);
    }
    // NaN is behind all numbers.
    let last = sorted.select(axis, size - 1)?;
    last.isnan()?.where_cond(&last, &value)
}

impl Tensor {
    /// The median along an axis: of an even number of elements, the smaller one of the two in the middle, as in PyTorch. NaN if an
    /// element is NaN. The axis disappears from the shape. For every dtype; the gradient goes to the median.
    ///
    /// # Errors
    /// If the axis is out of range or has no elements.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[4.0f32, 1.0, 3.0, 9.0], [4], &Device::cpu())?;
    /// assert_eq!(x.median(0)?.to_scalar::<f32>()?, 3.0);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn median(&self, axis: isize) -> Result<Tensor> {
        at_place("median", self, axis, |last| (last / 2) as f64)
    }

    /// The quantile `q` along an axis, `q` from 0 to 1: of `n` sorted elements, the one at `q (n - 1)`, or what lies linearly between the
    /// two around it, as `torch.quantile`. NaN if an element is NaN, or between `-inf` and `inf`. The axis disappears from the shape. For floats; the gradient goes to
    /// these two.
    ///
    /// # Errors
    /// If `q` is not from 0 to 1, or the axis is out of range or has no elements.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[4.0f32, 1.0, 3.0, 9.0], [4], &Device::cpu())?;
    /// assert_eq!(x.quantile(0.5, 0)?.to_scalar::<f32>()?, 3.5);
    /// assert_eq!(x.quantile(1.0, 0)?.to_scalar::<f32>()?, 9.0);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn quantile(&self, q: f64, axis: isize) -> Result<Tensor> {
        const OP: &str = "quantile";
        self.require_float(OP)?;
        if !(0.0..=1.0).contains(&q) {
            return Err(Error::invalid(OP, format!("there is no quantile {q}; use a number from 0 to 1")));
        }
        at_place(OP, self, axis, |last| q * last as f64)
    }
}
