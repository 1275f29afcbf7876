//! Functions that create tensors.

use super::apply_into;
use super::fill::Arange;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{DType, Element, Shape, Tensor};

impl Tensor {
    /// A tensor with the given values, row-major.
    ///
    /// The dtype is that of the host type. The number of values must match the shape.
    ///
    /// ```
    /// use refrain::{Device, DType, Tensor};
    /// let x = Tensor::from_slice(&[1i64, 2, 3, 4, 5, 6], [2, 3], &Device::cpu())?;
    /// assert_eq!(x.dtype(), DType::I64);
    /// assert_eq!(x.dims(), [2, 3]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn from_slice<T: Element>(values: &[T], shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        Tensor::from_values("from_slice", values, shape.into(), device)
    }

    fn from_values<T: Element>(
        op: &'static str,
        values: &[T],
        shape: Shape,
        device: &Device,
    ) -> Result<Tensor> {
        if shape.checked_numel(op, size_of::<T>())? != values.len() {
            return Err(Error::invalid(
                op,
                format!("{} values do not fill shape {shape} ({} elements)", values.len(), shape.numel()),
            ));
        }
        let out = Tensor::empty(op, &shape, T::DTYPE, device)?;
        out.put(op, values)?;
        Ok(out)
    }

    /// A scalar (a tensor of shape `[]`).
    pub fn scalar<T: Element>(value: T, device: &Device) -> Result<Tensor> {
        Tensor::from_values("scalar", &[value], ().into(), device)
    }

    /// All zeros (`false` for bool).
    pub fn zeros(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::filled("zeros", shape.into(), 0.0, dtype, device)
    }

    /// All ones (`true` for bool).
    pub fn ones(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::filled("ones", shape.into(), 1.0, dtype, device)
    }

    /// The same value everywhere, rounded to the dtype.
    pub fn full(shape: impl Into<Shape>, value: f64, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::filled("full", shape.into(), value, dtype, device)
    }

    fn filled(op: &'static str, shape: Shape, value: f64, dtype: DType, device: &Device) -> Result<Tensor> {
        let out = Tensor::empty(op, &shape, dtype, device)?;
        out.fill_with(op, value)?;
        Ok(out)
    }

    /// Zeros with the shape, dtype and device of this tensor.
    pub fn zeros_like(&self) -> Result<Tensor> {
        Tensor::zeros(self.shape(), self.dtype(), self.device())
    }

    /// Ones with the shape, dtype and device of this tensor.
    pub fn ones_like(&self) -> Result<Tensor> {
        Tensor::ones(self.shape(), self.dtype(), self.device())
    }

    /// `start, start + step, ...` up to `end`, which is excluded: `ceil((end - start) / step)` values. For floats and
    /// integers.
    ///
    /// # Errors
    /// If a bound or the step is not finite, the step is 0, or a value is out of the range of an integer dtype.
    ///
    /// ```
    /// use refrain::{Device, DType, Tensor};
    /// let x = Tensor::arange(0.0, 1.0, 0.25, DType::F32, &Device::cpu())?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn arange(start: f64, end: f64, step: f64, dtype: DType, device: &Device) -> Result<Tensor> {
        let n = ((end - start) / step).ceil();
        if ![start, end, step, n].iter().all(|v| v.is_finite()) || step == 0.0 || n > isize::MAX as f64 {
            return Err(Error::invalid(
                "arange",
                format!(
                    "can't count from {start} to {end} by {step}; use finite numbers and a step other than 0"
                ),
            ));
        }
        if dtype == DType::Bool {
            return Err(Error::Unsupported { op: "arange", dtype, device: device.name() });
        }
        let n = n.max(0.0) as usize;
        if n > 0 {
            // All values are between these two.
            dtype.require_in_range("arange", start)?;
            dtype.require_in_range("arange", start + (n - 1) as f64 * step)?;
        }
        let out = Tensor::empty("arange", &Shape::from(n), dtype, device)?;
        apply_into(Arange { start, step, dtype, shape: out.shape().clone() }, &[], &out)?;
        Ok(out)
    }
}
