//! Resizes the last axes of a tensor: series, images, volumes.

mod backward;
mod cuda;
mod host;
mod taps;

use smallvec::SmallVec;

use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::Gradients;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::tensor::{Shape, Tensor};
use backward::InterpolateBackward;
use taps::Axis;

/// How [`Tensor::interpolate`] computes element `i` of an axis that becomes `size` elements, from those of its `L` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// Element `i L / size`, rounded down: PyTorch's `"nearest"`.
    Nearest,
    /// Element `(i + 0.5) L / size`, rounded down: PyTorch's `"nearest-exact"`.
    NearestExact,
    /// The two elements on both sides of position `(i + 0.5) L / size - 0.5`, weighted by their distance: `"linear"`, `"bilinear"` or
    /// `"trilinear"`. Positions outside the axis are clamped to its first or last element.
    Linear {
        /// Whether the first and the last element keep their positions, so that `i` is at `i (L - 1) / (size - 1)`.
        align_corners: bool,
    },
    /// The four elements around the same position, weighted by a cubic polynomial of their distance whose coefficient is -0.75 (Keys,
    /// 1981): `"bicubic"`. Before the first element and after the last one, these are repeated.
    Cubic {
        /// As in [`Interpolation::Linear`].
        align_corners: bool,
    },
    /// The mean of the elements from `i L / size`, rounded down, to `(i + 1) L / size`, rounded up: `"area"`, or adaptive average pooling.
    Area,
}

type Axes = SmallVec<[Axis; 3]>;

/// The operand with its last axes resized.
#[derive(Clone, Debug)]
struct Interpolate {
    name: &'static str,
    axes: Axes,
    mode: Interpolation,
}

impl Interpolate {
    fn new(name: &'static str, x: &Tensor, sizes: &[usize], mode: Interpolation) -> Result<Interpolate> {
        if sizes.is_empty() || sizes.len() > 3 || sizes.len() > x.rank() {
            let message = format!(
                "the sizes are {sizes:?} for a tensor of shape {}; give a size for each of its last one, two or three axes",
                x.shape()
            );
            return Err(Error::invalid(name, message));
        }
        let last = &x.dims()[x.rank() - sizes.len()..];
        let axes: Axes = last.iter().zip(sizes).map(|(&from, &to)| Axis { from, to }).collect();
        let checked = Interpolate { name, axes, mode };
        if checked.axes.iter().any(|axis| axis.from == 0 || axis.to == 0) {
            let message = format!(
                "a tensor of shape {} becomes one with sizes {sizes:?} at its end; all sizes there must be at least 1",
                x.shape()
            );
            return Err(Error::invalid(name, message));
        }
        if checked.axes.iter().any(|axis| axis.checked_reach().is_none()) {
            let message = format!(
                "a tensor of shape {} cannot become one with sizes {sizes:?} at its end; use smaller sizes",
                x.shape()
            );
            return Err(Error::invalid(name, message));
        }
        Ok(checked)
    }
}

impl Op for Interpolate {
    const NAME: &'static str = "interpolate";

    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(self.name)?;
        let outer = &x[0].dims()[..x[0].rank() - self.axes.len()];
        let shape: Shape = outer.iter().copied().chain(self.axes.iter().map(|axis| axis.to)).collect();
        Ok(Spec::new(shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::resize(&self.axes, self.mode, false, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::resize(&self.axes, self.mode, false, args)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let dy = g.grad()?.clone();
        g.emit(&[0], InterpolateBackward { axes: self.axes.clone(), mode: self.mode }, &[&dy])
    }
}

impl Tensor {
    /// The tensor with its last axes resized: `[..., L]` to `[..., sizes[0]]`, `[..., H, W]` to `[..., sizes[0], sizes[1]]`, and three axes
    /// alike. For floats; sums are in f32 or f64.
    ///
    /// For a factor, multiply the sizes by it. It is PyTorch's `F.interpolate` of a size, without `antialias`; where
    /// [`Interpolation::Nearest`] must round, places are those of exact fractions and not of f32.
    ///
    /// # Errors
    /// If the tensor has fewer axes than there are sizes, these are not one to three, a size is 0 or too large, one of these axes has no
    /// elements, or the dtype is not a float.
    ///
    /// ```
    /// use refrain::{Device, Interpolation, Tensor};
    /// let x = Tensor::from_slice(&[0.0f32, 4.0], [1, 1, 2], &Device::cpu())?;
    /// let y = x.interpolate(&[4], Interpolation::Nearest)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 0.0, 4.0, 4.0]);
    /// let y = x.interpolate(&[4], Interpolation::Linear { align_corners: false })?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 3.0, 4.0]);
    /// let y = x.interpolate(&[5], Interpolation::Linear { align_corners: true })?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn interpolate(&self, sizes: &[usize], mode: Interpolation) -> Result<Tensor> {
        apply(Interpolate::new("interpolate", self, sizes, mode)?, &[self])?.in_order_of(self)
    }

    /// [`Tensor::interpolate`] into the memory of `dst`.
    pub fn interpolate_into(&self, sizes: &[usize], mode: Interpolation, dst: &Tensor) -> Result<()> {
        apply_into(Interpolate::new("interpolate", self, sizes, mode)?, &[self], dst)
    }

    /// The means of `size` windows that cover series `[..., L]`: `[..., size]`. Window `i` begins at `i L / size`, rounded down, and ends
    /// at `(i + 1) L / size`, rounded up. For a single window, [`Tensor::mean_keepdim`] is faster on a GPU and more exact.
    ///
    /// # Errors
    /// As [`Tensor::interpolate`].
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0], [1, 1, 5], &Device::cpu())?;
    /// assert_eq!(x.adaptive_avg_pool1d(2)?.to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn adaptive_avg_pool1d(&self, size: usize) -> Result<Tensor> {
        apply(Interpolate::new("adaptive_avg_pool1d", self, &[size], Interpolation::Area)?, &[self])
    }

    /// [`Tensor::adaptive_avg_pool1d`] into the memory of `dst`.
    pub fn adaptive_avg_pool1d_into(&self, size: usize, dst: &Tensor) -> Result<()> {
        apply_into(Interpolate::new("adaptive_avg_pool1d", self, &[size], Interpolation::Area)?, &[self], dst)
    }

    /// The means of windows that cover images `[..., H, W]`: `[..., sizes[0], sizes[1]]`, as [`Tensor::adaptive_avg_pool1d`].
    ///
    /// # Errors
    /// As [`Tensor::interpolate`].
    pub fn adaptive_avg_pool2d(&self, sizes: [usize; 2]) -> Result<Tensor> {
        apply(Interpolate::new("adaptive_avg_pool2d", self, &sizes, Interpolation::Area)?, &[self])?
            .in_order_of(self)
    }

    /// [`Tensor::adaptive_avg_pool2d`] into the memory of `dst`.
    pub fn adaptive_avg_pool2d_into(&self, sizes: [usize; 2], dst: &Tensor) -> Result<()> {
        apply_into(Interpolate::new("adaptive_avg_pool2d", self, &sizes, Interpolation::Area)?, &[self], dst)
    }
}
