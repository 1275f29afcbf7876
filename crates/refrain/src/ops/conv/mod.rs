//! Convolutions, as products of the weight with the windows of the images, but those of groups of few channels ([`direct`]). On
//! CUDA the windows are gathered from the images where they lie (an implicit GEMM), those of 16-bit and TF32 numbers from images with their
//! channels last, which are laid out so if they are not, and many channels of f32 are laid out as a matrix; on the CPU they are packed from
//! an image with its padding, or laid out as a matrix, an image at a time ([`host`]). A transposed convolution is the same product with other
//! windows, and either is the gradient of the other.

mod channels_last;
mod cuda;
mod direct;
mod host;
#[cfg(test)]
mod in_parts;
mod options;
mod padded;
mod padded_gradient;
mod padded_product;
mod phases;
mod places;
mod pointwise;
mod unfolded;
mod weight;
mod weight_gradient;
mod windows;

pub use options::{Conv1dOptions, Conv2dOptions, ConvTranspose1dOptions, ConvTranspose2dOptions};

use smallvec::SmallVec;

use super::{Op, Spec, Specs, apply, apply_into, runs_on_host};
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::window::Window;
use crate::precision::precision;
use crate::tensor::{DType, Shape, Tensor, check_devices};
use crate::types::Precision;
use places::Places;
use weight_gradient::WeightGradient;

/// The sizes of images and of a weight, as `[N, C, H, W]` and `[first, second, height, width]`. Series and their weight have no
/// axis for the height, which is 1.
fn sizes(op: &'static str, x: &Tensor, weight: &Tensor, series: bool) -> Result<([usize; 4], [usize; 4])> {
    check_devices(op, &[x, weight])?;
    x.require_float(op)?;
    let sizes = |t: &Tensor| match (series, t.dims()) {
        (false, &[a, b, height, width]) => Some([a, b, height, width]),
        (true, &[a, b, length]) => Some([a, b, 1, length]),
        _ => None,
    };
    let hint = match series {
        false => "the first must be [N, C, H, W] and the weight have 4 axes",
        true => "the first must be [N, C, L] and the weight have 3 axes",
    };
    sizes(x).zip(sizes(weight)).ok_or_else(|| Error::shapes(op, x.shape(), weight.shape(), hint))
}

/// Checks that the channels of images and weight fit together and into groups.
fn check_groups(
    op: &'static str,
    (x, weight): (&Tensor, &Tensor),
    (channels, expected): (usize, usize),
    (grouped, groups): (usize, usize),
) -> Result<()> {
    if groups == 0 || !grouped.is_multiple_of(groups) {
        let message =
            format!("{grouped} channels do not fit into {groups} groups; use a divisor of the channels");
        return Err(Error::invalid(op, message));
    }
    if channels != expected {
        let hint = match groups {
            1 => format!("this weight is for {expected} channels"),
            _ => format!("with {groups} groups, this weight is for {expected} channels"),
        };
        return Err(Error::shapes(op, x.shape(), weight.shape(), hint));
    }
    Ok(())
}

fn check_bias(op: &'static str, bias: Option<&Tensor>, channels: usize) -> Result<()> {
    match bias.filter(|bias| bias.dims() != [channels]) {
        None => Ok(()),
        Some(bias) => {
            let message = format!("the bias has shape {}; it must be [{channels}]", bias.shape());
            Err(Error::invalid(op, message))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// From the images to the results of the windows.
    Forward,
    /// The adjoint.
    Transposed,
}

/// A convolution, or a transposed one. The operands are the source, the weight, the bias, if there is one, and the weight as a GPU multiplies
/// it, if it does.
#[derive(Clone, Debug)]
struct Convolution {
    name: &'static str,
    places: Places,
    direction: Direction,
    bias: bool,
    /// Whether the last operand is the weight as a GPU multiplies it, which its kernels read instead of the weight.
    is_laid_out: bool,
    precision: Precision,
    /// Dtype of the factors, to which wider operands are rounded.
    factors: DType,
    /// Dtype of the result.
    dtype: DType,
}

/// The multiplications and additions of a convolution without those of the padding.
fn flops(places: &Places) -> u64 {
    let all = |sizes: &[usize]| sizes.iter().map(|&size| size as u64).product::<u64>();
    2 * all(&places.results()) * all(&places.weight()[1..])
}

impl Convolution {
    /// The channels and the height and width of the source and of the result.
    fn sides(&self) -> [(usize, [usize; 2]); 2] {
        let Places { images: [_, channels, height, width], count, out, .. } = self.places;
        let [images, results] = [(channels, [height, width]), (out, count)];
        match self.direction {
            Direction::Forward => [images, results],
            Direction::Transposed => [results, images],
        }
    }

    /// The gradient of its source.
    fn adjoint(&self, dtype: DType) -> Convolution {
        let (name, direction) = match self.direction {
            Direction::Forward => ("conv_input_gradient", Direction::Transposed),
            Direction::Transposed => ("conv_transpose_input_gradient", Direction::Forward),
        };
        Convolution { name, direction, bias: false, dtype, ..self.clone() }
    }
}

impl Op for Convolution {
    const NAME: &'static str = "conv2d";

    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[1..].iter().try_for_each(|parameter| self.check_parameter(x[0], parameter))?;
        let sizes = match self.direction {
            Direction::Forward => self.places.results(),
            Direction::Transposed => self.places.images,
        };
        Ok(Spec::new(self.places.shape(sizes), self.dtype).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::convolve(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::convolve(self, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        cuda::workspace(self, launch, gpu)
    }

    fn flops(&self, _: &[&Shape], _: &[&Shape]) -> u64 {
        flops(&self.places)
    }

    fn accumulates(&self, _: usize) -> bool {
        !self.places.channels_last
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        Saves::default().input_if(0, needs[1]).input_if(1, needs[0])
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        // Both gradients read it.
        let dy = g.grad()?.contiguous()?;
        if g.needs(0) {
            let weight = g.input(1)?;
            let mut adjoint = self.adjoint(g.input_dtype(0));
            let laid_out = adjoint.lay_out(&dy, &weight, None)?;
            g.emit(&[0], adjoint, &operands(&dy, &weight, None, laid_out.as_ref()))?;
        }
        let bias = (self.bias && g.needs(2)).then(|| g.input_dtype(2));
        // The sums for a bias are those of what is multiplied with the windows.
        let beside = bias.filter(|_| self.direction == Direction::Forward && g.needs(1));
        if g.needs(1) {
            let x = g.input(0)?;
            let (results, images) = match self.direction {
                Direction::Forward => (&dy, &x),
                Direction::Transposed => (&x, &dy),
            };
            let op = WeightGradient {
                places: self.places,
                precision: self.precision,
                factors: self.factors,
                weight: g.input_dtype(1),
                bias: beside,
            };
            let targets: &[usize] = if beside.is_some() { &[1, 2] } else { &[1] };
            g.emit(targets, op, &[results, images])?;
        }
        match bias {
            Some(dtype) if beside.is_none() => {
                g.add(2, dy.to_dtype(dtype)?.sum(self.places.axes_beside_channels())?)
            }
            _ => Ok(()),
        }
    }
}

impl Convolution {
    fn new(
        name: &'static str,
        x: &Tensor,
        bias: Option<&Tensor>,
        places: Places,
        direction: Direction,
    ) -> Convolution {
        let precision = precision();
        let dtype = precision.result(x.dtype());
        let bias = bias.is_some();
        Convolution { name, places, direction, bias, is_laid_out: false, precision, factors: dtype, dtype }
    }

    fn check_parameter(&self, x: &Tensor, parameter: &Tensor) -> Result<()> {
        match parameter.dtype().is_parameter_of(self.factors) {
            true => Ok(()),
            false => Err(Error::dtypes(self.name, x.dtype(), parameter.dtype())),
        }
    }

    /// Lays the weight out as a GPU multiplies it, if it does.
    fn lay_out(&mut self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Option<Tensor>> {
        [Some(weight), bias].into_iter().flatten().try_for_each(|t| self.check_parameter(x, t))?;
        self.is_laid_out = !runs_on_host(x.device()) && cuda::lays_out(self, x.dtype());
        self.is_laid_out.then(|| weight::lay_out_weight(self, weight)).transpose()
    }

    /// How many operands there are.
    fn operands(&self) -> usize {
        2 + usize::from(self.bias) + usize::from(self.is_laid_out)
    }
}

/// Runs a convolution. Images with their channels last keep them there where the kernels take them so.
fn run(mut op: Convolution, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    op.places.channels_last = x.has_channels_last() && channels_last::takes(&op);
    let pixels = op.places.channels_last.then(|| x.pixels_first()).transpose()?;
    let x = pixels.as_ref().unwrap_or(x);
    let laid_out = op.lay_out(x, weight, bias)?;
    let y = apply(op, &operands(x, weight, bias, laid_out.as_ref()))?;
    Ok(if pixels.is_some() { y.channels_first() } else { y })
}

fn run_into(
    mut op: Convolution,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    dst: &Tensor,
) -> Result<()> {
    let laid_out = op.lay_out(x, weight, bias)?;
    apply_into(op, &operands(x, weight, bias, laid_out.as_ref()), dst)
}

fn operands<'a>(
    x: &'a Tensor,
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
    laid_out: Option<&'a Tensor>,
) -> SmallVec<[&'a Tensor; 4]> {
    [Some(x), Some(weight), bias, laid_out].into_iter().flatten().collect()
}

fn conv(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &Conv2dOptions,
    series: bool,
) -> Result<Convolution> {
    let ([n, channels, height, width], [out, in_group, kernel_h, kernel_w]) = sizes(op, x, weight, series)?;
    let groups = options.groups;
    let expected = in_group.saturating_mul(groups);
    check_groups(op, (x, weight), (channels, expected), (out, groups))?;
    check_bias(op, bias, out)?;
    let window = Window {
        kernel: [kernel_h, kernel_w],
        stride: options.stride,
        padding: options.padding,
        dilation: options.dilation,
    };
    let places = Places::new(op, window, [n, channels, height, width], [out, groups], series)?;
    Ok(Convolution::new(op, x, bias, places, Direction::Forward))
}

fn conv_transpose(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvTranspose2dOptions,
    series: bool,
) -> Result<Convolution> {
    let ([n, channels, height, width], [first, out_group, kernel_h, kernel_w]) =
        sizes(op, x, weight, series)?;
    let groups = options.groups;
    check_groups(op, (x, weight), (channels, first), (channels, groups))?;
    let out = out_group.saturating_mul(groups);
    check_bias(op, bias, out)?;
    let window = Window {
        kernel: [kernel_h, kernel_w],
        stride: options.stride,
        padding: options.padding,
        dilation: options.dilation,
    };
    let size = options.sizes(op, window, [height, width])?;
    // The images that a convolution with these windows makes this size of.
    let images = [n, out, size[0], size[1]];
    Shape::from(images).check_view(op)?;
    let count = [height, width];
    let places = Places { window, images, count, out: channels, groups, series, channels_last: false };
    Ok(Convolution::new(op, x, bias, places, Direction::Transposed))
}

impl Tensor {
    /// A convolution of images `[N, C, H, W]` with a weight `[O, C / groups, height, width]` and a bias `[O]`: `[N, O, rows,
    /// columns]`, where `rows = (H + 2 padding - dilation (height - 1) - 1) / stride + 1`, rounded down. As in PyTorch, the
    /// weight is not flipped. For floats; dtypes and precision are those of [`Tensor::linear`], but that a bias is not rounded.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match, the channels do not fit into the groups, or a window does not fit into the
    /// images.
    ///
    /// ```
    /// use refrain::{Conv2dOptions, DType, Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::arange(0.0, 9.0, 1.0, DType::F32, &device)?.reshape([1, 1, 3, 3])?;
    /// let weight = Tensor::ones([1, 1, 2, 2], DType::F32, &device)?;
    /// let y = x.conv2d(&weight, None, &Conv2dOptions::default())?;
    /// assert_eq!(y.to_vec::<f32>()?, [8.0, 12.0, 20.0, 24.0]);
    /// let y = x.conv2d(&weight, None, &Conv2dOptions { stride: [2, 2], padding: [1, 1], ..Conv2dOptions::default() })?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 3.0, 9.0, 24.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv2dOptions) -> Result<Tensor> {
        run(conv("conv2d", self, weight, bias, options, false)?, self, weight, bias)
    }

    /// [`Tensor::conv2d`] into the memory of `dst`.
    pub fn conv2d_into(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &Conv2dOptions,
        dst: &Tensor,
    ) -> Result<()> {
        run_into(conv("conv2d", self, weight, bias, options, false)?, self, weight, bias, dst)
    }

    /// A convolution of series `[N, C, L]` with a weight `[O, C / groups, length]` and a bias `[O]`, as [`Tensor::conv2d`].
    ///
    /// # Errors
    /// As [`Tensor::conv2d`].
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv1dOptions) -> Result<Tensor> {
        let op = conv("conv1d", self, weight, bias, &options.in_two(), true)?;
        run(op, self, weight, bias)
    }

    /// [`Tensor::conv1d`] into the memory of `dst`.
    pub fn conv1d_into(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &Conv1dOptions,
        dst: &Tensor,
    ) -> Result<()> {
        let op = conv("conv1d", self, weight, bias, &options.in_two(), true)?;
        run_into(op, self, weight, bias, dst)
    }

    /// A transposed convolution of images `[N, C, H, W]` with a weight `[C, O / groups, height, width]` and a bias `[O]`: the
    /// adjoint of [`Tensor::conv2d`] with this weight. The result is `[N, O, rows, columns]`, where `rows = (H - 1) stride - 2
    /// padding + dilation (height - 1) + output_padding + 1`. For floats; dtypes and precision are those of
    /// [`Tensor::matmul`].
    ///
    /// # Errors
    /// As [`Tensor::conv2d`]; also if the padding leaves nothing, or `output_padding` is not below the stride or the dilation.
    pub fn conv_transpose2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &ConvTranspose2dOptions,
    ) -> Result<Tensor> {
        run(conv_transpose("conv_transpose2d", self, weight, bias, options, false)?, self, weight, bias)
    }

    /// [`Tensor::conv_transpose2d`] into the memory of `dst`.
    pub fn conv_transpose2d_into(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &ConvTranspose2dOptions,
        dst: &Tensor,
    ) -> Result<()> {
        let op = conv_transpose("conv_transpose2d", self, weight, bias, options, false)?;
        run_into(op, self, weight, bias, dst)
    }

    /// A transposed convolution of series `[N, C, L]` with a weight `[C, O / groups, length]`, as
    /// [`Tensor::conv_transpose2d`].
    ///
    /// # Errors
    /// As [`Tensor::conv_transpose2d`].
    pub fn conv_transpose1d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &ConvTranspose1dOptions,
    ) -> Result<Tensor> {
        let op = conv_transpose("conv_transpose1d", self, weight, bias, &options.in_two(), true)?;
        run(op, self, weight, bias)
    }

    /// [`Tensor::conv_transpose1d`] into the memory of `dst`.
    pub fn conv_transpose1d_into(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &ConvTranspose1dOptions,
        dst: &Tensor,
    ) -> Result<()> {
        let op = conv_transpose("conv_transpose1d", self, weight, bias, &options.in_two(), true)?;
        run_into(op, self, weight, bias, dst)
    }
}
