//! Operations that are compositions of others. Each is recorded, differentiated and run on every device by its parts.

use super::reduce::{Prepared, prepare};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernels::positions::require_positions;
use crate::operation::custom_op;
use crate::tensor::{Axes, DType, Tensor, resolve_axis};

/// Runs `f` on f32 if `x` is f16 or bf16, so that only its result is rounded.
fn widened(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.dtype() {
        dtype @ (DType::F16 | DType::BF16) => f(&x.to_dtype(DType::F32)?)?.to_dtype(dtype),
        _ => f(x),
    }
}

fn norm(x: &Tensor, p: f64, axes: Axes, keepdim: bool) -> Result<Tensor> {
    const OP: &str = "norm";
    x.require_float(OP)?;
    if p.is_nan() || p < 1.0 {
        return Err(Error::invalid(
            OP,
            format!("there is no norm of order {p}; use 1, 2, infinity or another order from 1"),
        ));
    }
    let Prepared { kept, shape, x, .. } = prepare(OP, x, &axes, keepdim)?;
    let reduced: Vec<isize> = (0..x.rank()).filter(|&i| kept[i] != x.dims()[i]).map(|i| i as isize).collect();
    widened(&x, |x| {
        if p == f64::INFINITY {
            return x.abs()?.max(&reduced[..])?.reshape(&shape);
        }
        let value = move |x: &Tensor| match p {
            1.0 => x.abs()?.sum_keepdim(&reduced[..]),
            2.0 => x.square()?.sum_keepdim(&reduced[..])?.sqrt(),
            _ => x.abs()?.pow_scalar(p)?.sum_keepdim(&reduced[..])?.pow_scalar(1.0 / p),
        };
        let results = custom_op(
            OP,
            &[x],
            |x| {
                let y = value(&x[0])?;
                Ok((vec![y.clone()], vec![x[0].clone(), y]))
            },
            move |gradients, saved| {
                // sign(x) (|x| / y)^(p - 1) dy
                let (x, y, dy) = (&saved[0], &saved[1], &gradients[0]);
                let slope = match p {
                    1.0 => x.sign()?,
                    2.0 => x.div(y)?,
                    _ => (x.sign()? * (x.abs()? / y)?.pow_scalar(p - 1.0)?)?,
                };
                let zero = y.eq_scalar(0.0)?;
                Ok(vec![Some((slope * dy)?.masked_fill(&zero, 0.0)?)])
            },
        )?;
        results.into_iter().next().ok_or_else(|| Error::internal(OP, "no result"))?.reshape(&shape)
    })
}

impl Tensor {
    /// A gated linear unit: the first half along an axis times the sigmoid of the second (Dauphin et al., ICML 2017). The axis of the
    /// result is half as long. For floats; in 16 bits the sigmoid is rounded, and then the product.
    ///
    /// # Errors
    /// If the axis is out of range or its size is odd.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 4.0, 0.0, 0.0], [1, 4], &Device::cpu())?;
    /// assert_eq!(x.glu(-1)?.to_vec::<f32>()?, [1.5, 2.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn glu(&self, axis: isize) -> Result<Tensor> {
        const OP: &str = "glu";
        self.require_float(OP)?;
        let axis = resolve_axis(OP, axis, self.rank())?;
        let size = self.dims()[axis];
        if !size.is_multiple_of(2) {
            let message = format!("axis {axis} of a tensor of shape {} can't be halved", self.shape());
            return Err(Error::invalid(OP, message));
        }
        let half = |start| self.narrow(axis as isize, start, size / 2);
        half(0)?.mul(&half(size / 2)?.sigmoid()?)
    }

    /// Whether each element is NaN; never for integers and bools. The result is bool.
    pub fn isnan(&self) -> Result<Tensor> {
        self.ne(self)
    }

    /// Whether each element is infinite; never for integers and bools. The result is bool.
    pub fn isinf(&self) -> Result<Tensor> {
        match self.dtype().is_float() {
            true => self.abs()?.eq_scalar(f64::INFINITY),
            false => self.ne(self),
        }
    }

    /// Whether each element is neither infinite nor NaN; always for integers and bools. The result is bool.
    pub fn isfinite(&self) -> Result<Tensor> {
        match self.dtype().is_float() {
            true => self.abs()?.lt_scalar(f64::INFINITY),
            false => self.eq(self),
        }
    }

    /// `nan` in place of NaN, `above` and `below` in place of the infinities; the numbers are first rounded to the dtype. Integers and
    /// bools stay as they are. The gradient is 0 where an element is replaced, as in PyTorch.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[f32::NAN, 2.0, f32::NEG_INFINITY], [3], &Device::cpu())?;
    /// assert_eq!(x.nan_to_num(0.0, 1e9, -1e9)?.to_vec::<f32>()?, [0.0, 2.0, -1e9]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn nan_to_num(&self, nan: f64, above: f64, below: f64) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return Ok(self.clone());
        }
        self.masked_fill(&self.isnan()?, nan)?
            .masked_fill(&self.eq_scalar(f64::INFINITY)?, above)?
            .masked_fill(&self.eq_scalar(f64::NEG_INFINITY)?, below)
    }

    /// The scaled exponential linear unit, `scale * elu(x, alpha)` with the two constants with which the outputs of deep layers keep
    /// a mean of 0 and a variance of 1 (Klambauer et al., NeurIPS 2017). For floats.
    pub fn selu(&self) -> Result<Tensor> {
        const ALPHA: f64 = 1.673_263_242_354_377_2;
        const SCALE: f64 = 1.050_700_987_355_480_5;
        widened(self, |x| x.elu(ALPHA)?.mul_scalar(SCALE))
    }

    /// The standard deviation: the square root of [`Tensor::var`], whose `correction` it takes. For floats.
    ///
    /// `axes` is `()` for all axes, a number, or an array of numbers. The reduced axes disappear from the shape.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 4.0, 8.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.std(1, 0)?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn std(&self, axes: impl Into<Axes>, correction: usize) -> Result<Tensor> {
        self.require_float("std")?;
        widened(self, |x| x.var(axes, correction)?.sqrt())
    }

    /// [`Tensor::std`] that keeps the reduced axes as sizes of 1.
    pub fn std_keepdim(&self, axes: impl Into<Axes>, correction: usize) -> Result<Tensor> {
        self.require_float("std")?;
        widened(self, |x| x.var_keepdim(axes, correction)?.sqrt())
    }

    /// The norm of order `p` over `axes`: `sum(|x|^p)^(1/p)`, and for an infinite `p` the largest absolute value. 2 is the
    /// length of a vector. For floats. The gradient at a norm of 0 is 0, as in PyTorch.
    ///
    /// `axes` is `()` for all axes, a number, or an array of numbers. The reduced axes disappear from the shape.
    ///
    /// # Errors
    /// If `p` is below 1 or NaN.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, -4.0], [2], &Device::cpu())?;
    /// assert_eq!(x.norm(2.0, ())?.to_scalar::<f32>()?, 5.0);
    /// assert_eq!(x.norm(1.0, ())?.to_scalar::<f32>()?, 7.0);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn norm(&self, p: f64, axes: impl Into<Axes>) -> Result<Tensor> {
        norm(self, p, axes.into(), false)
    }

    /// [`Tensor::norm`] that keeps the reduced axes as sizes of 1.
    pub fn norm_keepdim(&self, p: f64, axes: impl Into<Axes>) -> Result<Tensor> {
        norm(self, p, axes.into(), true)
    }

    /// Whether any element is nonzero (or true, or NaN). The result is bool; false without elements.
    ///
    /// `axes` is `()` for all axes, a number, or an array of numbers. The reduced axes disappear from the shape.
    pub fn any(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        // The largest byte, of which there is none among no elements.
        if self.dtype() == DType::U8 && self.numel() > 0 {
            return self.max(axes)?.ne_scalar(0.0);
        }
        self.ne_scalar(0.0)?.sum(axes)?.gt_scalar(0.0)
    }

    /// [`Tensor::any`] that keeps the reduced axes as sizes of 1.
    pub fn any_keepdim(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        if self.dtype() == DType::U8 && self.numel() > 0 {
            return self.max_keepdim(axes)?.ne_scalar(0.0);
        }
        self.ne_scalar(0.0)?.sum_keepdim(axes)?.gt_scalar(0.0)
    }

    /// Whether all elements are nonzero (or true, or NaN). The result is bool; true without elements.
    ///
    /// `axes` is `()` for all axes, a number, or an array of numbers. The reduced axes disappear from the shape.
    pub fn all(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.eq_scalar(0.0)?.sum(axes)?.eq_scalar(0.0)
    }

    /// [`Tensor::all`] that keeps the reduced axes as sizes of 1.
    pub fn all_keepdim(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.eq_scalar(0.0)?.sum_keepdim(axes)?.eq_scalar(0.0)
    }

    /// Which places of padded sequences are filled: for each length in this tensor, `length` bools, true before it. `[..]` to
    /// `[.., length]`. A mask for attention, see [`SdpaOptions`](crate::SdpaOptions).
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let lengths = Tensor::from_slice(&[3i64, 1], [2], &Device::cpu())?;
    /// let mask = lengths.sequence_mask(3)?;
    /// assert_eq!(mask.to_vec::<bool>()?, [true, true, true, true, false, false]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the lengths are not i64 or i32.
    pub fn sequence_mask(&self, length: usize) -> Result<Tensor> {
        require_positions("sequence_mask", "lengths", self)?;
        let places = Tensor::arange(0.0, length as f64, 1.0, DType::I64, self.device())?;
        places.lt(&self.to_dtype(DType::I64)?.unsqueeze(-1)?)
    }

    /// The identity matrix `[n, n]`: ones on the diagonal, zeros elsewhere. For every dtype.
    pub fn eye(n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let places = Tensor::arange(0.0, n as f64, 1.0, DType::I64, device)?;
        places.reshape([n, 1])?.eq(&places)?.to_dtype(dtype)
    }

    /// `count` numbers from `start` to `end`, both included, at equal distances: `[count]`. For floats.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let x = Tensor::linspace(0.0, 1.0, 5, DType::F32, &Device::cpu())?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a bound, or the distance between both, is not finite. `Error::Unsupported` for other dtypes.
    pub fn linspace(start: f64, end: f64, count: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        const OP: &str = "linspace";
        if !dtype.is_float() {
            return Err(Error::Unsupported { op: OP, dtype, device: device.name() });
        }
        if !(end - start).is_finite() {
            let message =
                format!("can't go from {start} to {end}; use finite numbers that are not so far apart");
            return Err(Error::invalid(OP, message));
        }
        let step = (end - start) / count.saturating_sub(1).max(1) as f64;
        let places = Tensor::arange(0.0, count as f64, 1.0, DType::F64, device)?;
        // Counted from both ends, so that the last number is `end`.
        let from_start = ((&places * step)? + start)?;
        let from_end = ((count.saturating_sub(1) as f64 - &places)? * -step)?.add_scalar(end)?;
        places.lt_scalar(count.div_ceil(2) as f64)?.where_cond(&from_start, &from_end)?.to_dtype(dtype)
    }
}
