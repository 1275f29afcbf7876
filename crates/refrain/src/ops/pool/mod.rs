//! Pooling: the largest element or the mean of each window of images.

mod backward;
mod cuda;
mod host;

use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::window::Window;
use crate::tensor::{DType, Shape, Tensor};
use backward::PoolBackward;

/// The options of [`Tensor::max_pool2d`] and [`Tensor::avg_pool2d`]. Pairs are for the height and the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dOptions {
    /// The size of a window.
    pub kernel: [usize; 2],
    /// How far a window is from the next one.
    pub stride: [usize; 2],
    /// Rows and columns on each side of an image that belong to windows; at most half a window.
    pub padding: [usize; 2],
    /// Whether a mean divides by the elements in the padding, too, as if they were zeros.
    pub count_include_pad: bool,
}

/// The options of [`Tensor::max_pool1d`] and [`Tensor::avg_pool1d`]; they mean the same as in [`Pool2dOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those above.
pub struct Pool1dOptions {
    pub kernel: usize,
    pub stride: usize,
    pub padding: usize,
    pub count_include_pad: bool,
}

impl Pool2dOptions {
    /// Windows of this size side by side, without padding.
    pub fn new(kernel: [usize; 2]) -> Pool2dOptions {
        Pool2dOptions { kernel, stride: kernel, padding: [0, 0], count_include_pad: true }
    }
}

impl Pool1dOptions {
    /// Windows of this size side by side, without padding.
    pub fn new(kernel: usize) -> Pool1dOptions {
        Pool1dOptions { kernel, stride: kernel, padding: 0, count_include_pad: true }
    }

    /// For images of height 1.
    fn in_two(&self) -> Pool2dOptions {
        Pool2dOptions {
            kernel: [1, self.kernel],
            stride: [1, self.stride],
            padding: [0, self.padding],
            count_include_pad: self.count_include_pad,
        }
    }
}

/// What a window becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Its largest element. The second result has the place of that in the image.
    Max,
    /// Its mean, by all elements or by those in the image.
    Mean { all: bool },
}

/// The windows of images `[N, C, H, W]`, reduced.
#[derive(Clone, Copy, Debug)]
struct Pool {
    name: &'static str,
    kind: Kind,
    window: Window,
    /// `[N, C, H, W]`
    images: [usize; 4],
    count: [usize; 2],
    /// Whether these are series: images of height 1 whose tensors have no axis for it.
    series: bool,
}

impl Pool {
    fn new(
        name: &'static str,
        kind: Kind,
        x: &Tensor,
        options: &Pool2dOptions,
        series: bool,
    ) -> Result<Pool> {
        let what = if series { "series" } else { "images" };
        let images = match (series, x.dims()) {
            (false, &[n, channels, height, width]) => [n, channels, height, width],
            (true, &[n, channels, length]) => [n, channels, 1, length],
            _ => {
                let axes = if series { "[N, C, L]" } else { "[N, C, H, W]" };
                let message = format!("the {what} have shape {}; it must be {axes}", x.shape());
                return Err(Error::invalid(name, message));
            }
        };
        if images[2] == 0 || images[3] == 0 {
            let message =
                format!("{what} of shape {} have no numbers; pass {what} of at least one", x.shape());
            return Err(Error::invalid(name, message));
        }
        let &Pool2dOptions { kernel, stride, padding, .. } = options;
        if padding.iter().zip(&kernel).any(|(&padding, &kernel)| padding > kernel / 2) {
            let message =
                format!("padding {padding:?} is more than half of a window of {kernel:?}; use less padding");
            return Err(Error::invalid(name, message));
        }
        let window = Window { kernel, stride, padding, dilation: [1, 1] };
        let count = window.counts(name, [images[2], images[3]])?;
        Ok(Pool { name, kind, window, images, count, series })
    }

    fn results(&self) -> Shape {
        let [n, c, ..] = self.images;
        self.shape([n, c, self.count[0], self.count[1]])
    }

    /// The shape of a tensor of these sizes.
    fn shape(&self, [n, c, height, width]: [usize; 4]) -> Shape {
        if self.series { Shape::from([n, c, width]) } else { Shape::from([n, c, height, width]) }
    }
}

impl Op for Pool {
    const NAME: &'static str = "pool";

    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(self.name)?;
        let mut specs = Spec::new(self.results(), x[0].dtype()).one();
        if self.kind == Kind::Max {
            specs.push(Spec::new(self.results(), DType::I64));
        }
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self, args)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        if self.kind == Kind::Max { Saves::default().output(1) } else { Saves::default() }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let dy = g.grad()?.clone();
        match self.kind {
            Kind::Max => {
                let places = g.output(1)?;
                g.emit(&[0], PoolBackward(*self), &[&dy, &places])
            }
            Kind::Mean { .. } => g.emit(&[0], PoolBackward(*self), &[&dy]),
        }
    }
}

fn mean(options: &Pool2dOptions) -> Kind {
    Kind::Mean { all: options.count_include_pad }
}

impl Tensor {
    /// The largest element of each window of images `[N, C, H, W]`: `[N, C, rows, columns]`, where `rows = (H + 2 padding -
    /// height) / stride + 1`, rounded down. NaN if one element is NaN. For floats. The gradient goes to the largest element,
    /// to the first one if several are equal.
    ///
    /// # Errors
    /// If the shape is not that of images, the padding is more than half a window, or a window does not fit.
    ///
    /// ```
    /// use refrain::{DType, Device, Pool2dOptions, Tensor};
    /// let x = Tensor::arange(0.0, 16.0, 1.0, DType::F32, &Device::cpu())?.reshape([1, 1, 4, 4])?;
    /// let y = x.max_pool2d(&Pool2dOptions::new([2, 2]))?;
    /// assert_eq!(y.to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn max_pool2d(&self, options: &Pool2dOptions) -> Result<Tensor> {
        apply(Pool::new("max_pool2d", Kind::Max, self, options, false)?, &[self])?.in_order_of(self)
    }

    /// [`Tensor::max_pool2d`] into the memory of `dst`.
    pub fn max_pool2d_into(&self, options: &Pool2dOptions, dst: &Tensor) -> Result<()> {
        apply_into(Pool::new("max_pool2d", Kind::Max, self, options, false)?, &[self], dst)
    }

    /// The mean of each window of images `[N, C, H, W]`, as [`Tensor::max_pool2d`].
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`].
    pub fn avg_pool2d(&self, options: &Pool2dOptions) -> Result<Tensor> {
        apply(Pool::new("avg_pool2d", mean(options), self, options, false)?, &[self])?.in_order_of(self)
    }

    /// [`Tensor::avg_pool2d`] into the memory of `dst`.
    pub fn avg_pool2d_into(&self, options: &Pool2dOptions, dst: &Tensor) -> Result<()> {
        apply_into(Pool::new("avg_pool2d", mean(options), self, options, false)?, &[self], dst)
    }

    /// The largest element of each window of series `[N, C, L]`, as [`Tensor::max_pool2d`].
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`].
    pub fn max_pool1d(&self, options: &Pool1dOptions) -> Result<Tensor> {
        apply(Pool::new("max_pool1d", Kind::Max, self, &options.in_two(), true)?, &[self])
    }

    /// [`Tensor::max_pool1d`] into the memory of `dst`.
    pub fn max_pool1d_into(&self, options: &Pool1dOptions, dst: &Tensor) -> Result<()> {
        apply_into(Pool::new("max_pool1d", Kind::Max, self, &options.in_two(), true)?, &[self], dst)
    }

    /// The mean of each window of series `[N, C, L]`, as [`Tensor::max_pool2d`].
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`].
    pub fn avg_pool1d(&self, options: &Pool1dOptions) -> Result<Tensor> {
        let options = options.in_two();
        apply(Pool::new("avg_pool1d", mean(&options), self, &options, true)?, &[self])
    }

    /// [`Tensor::avg_pool1d`] into the memory of `dst`.
    pub fn avg_pool1d_into(&self, options: &Pool1dOptions, dst: &Tensor) -> Result<()> {
        let options = options.in_two();
        apply_into(Pool::new("avg_pool1d", mean(&options), self, &options, true)?, &[self], dst)
    }
}
