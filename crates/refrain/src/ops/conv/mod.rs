//! Convolutions. The windows of the images are the rows of a matrix, which is multiplied by the weight; so tensor cores and
//! precision are those of [`Tensor::linear`] and [`Tensor::matmul`]. Without groups and without dilation along the width,
//! that matrix is a view of a copy with the channels last ([`rows`]); otherwise it is written down. A transposed convolution
//! multiplies first and then adds up the windows.

mod cuda;
mod options;
mod patches;
mod rows;
#[cfg(test)]
mod tests;

pub use options::{Conv1dOptions, Conv2dOptions, ConvTranspose1dOptions, ConvTranspose2dOptions};

use super::apply;
use crate::activation::Activation;
use crate::error::{Error, Result};
use crate::kernels::window::Window;
use crate::tensor::{Shape, Tensor, check_devices};
use patches::{AddPatches, Patches, Places};

/// The sizes of images and of a weight, as `[N, C, H, W]` and `[first, second, height, width]`.
fn sizes(op: &'static str, x: &Tensor, weight: &Tensor) -> Result<([usize; 4], [usize; 4])> {
    check_devices(op, &[x, weight])?;
    x.require_float(op)?;
    match (<[usize; 4]>::try_from(x.dims()), <[usize; 4]>::try_from(weight.dims())) {
        (Ok(images), Ok(weight)) => Ok((images, weight)),
        _ => Err(Error::shapes(
            op,
            x.shape(),
            weight.shape(),
            "the first must be [N, C, H, W] and the weight have 4 axes",
        )),
    }
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
        let hint = format!("with {groups} groups, this weight is for {expected} channels");
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

/// `[N * rows * columns, O]` as images `[N, O, rows, columns]`: a view.
fn to_images(y: &Tensor, n: usize, channels: usize, [rows, columns]: [usize; 2]) -> Result<Tensor> {
    y.reshape([n, rows, columns, channels])?.permute(&[0, 3, 1, 2])
}

fn conv(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &Conv2dOptions,
) -> Result<Tensor> {
    let ([n, channels, height, width], [out, in_group, kernel_h, kernel_w]) = sizes(op, x, weight)?;
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
    let places = Places::new(op, window, [n, channels, height, width])?;
    if groups == 1
        && let Some(y) = rows::convolution(op, x, weight, bias, places)?
    {
        return Ok(y);
    }
    let [rows, columns] = places.matrix();
    let patches = apply(Patches(places), &[x])?;
    if groups == 1 {
        let y = patches.linear(&weight.reshape([out, columns])?, bias, Activation::None, None)?;
        return to_images(&y, n, out, places.count);
    }
    // A product for each group: [G, rows, columns / G] times [G, columns / G, O / G].
    let patches = patches.reshape([rows, groups, columns / groups])?.transpose(0, 1)?;
    let weight = weight.reshape([groups, out / groups, columns / groups])?.transpose(1, 2)?;
    let mut y = patches.matmul(&weight)?;
    if let Some(bias) = bias {
        y = y.add(&bias.to_dtype(y.dtype())?.reshape([groups, 1, out / groups])?)?;
    }
    to_images(&y.transpose(0, 1)?.reshape([rows, out])?, n, out, places.count)
}

fn conv_transpose(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvTranspose2dOptions,
) -> Result<Tensor> {
    let ([n, channels, height, width], [first, out_group, kernel_h, kernel_w]) = sizes(op, x, weight)?;
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
    let places = Places { window, images: [n, out, size[0], size[1]], count: [height, width] };
    Shape::from(places.images).check_view(op)?;
    let rows = n * height * width;
    let x = x.permute(&[0, 2, 3, 1])?.reshape([rows, groups, channels / groups])?.transpose(0, 1)?;
    let columns = out_group * kernel_h * kernel_w;
    let products = x.matmul(&weight.reshape([groups, channels / groups, columns])?)?;
    let matrix = products.transpose(0, 1)?.reshape([rows, groups * columns])?;
    let y = apply(AddPatches(places), &[&matrix])?;
    match bias {
        Some(bias) => y.add(&bias.to_dtype(y.dtype())?.reshape([out, 1, 1])?),
        None => Ok(y),
    }
}

/// A tensor `[a, b, length]` as `[a, b, 1, length]`.
fn with_height(op: &'static str, x: &Tensor, what: &str) -> Result<Tensor> {
    match x.rank() {
        3 => x.unsqueeze(2),
        _ => {
            let message = format!("the {what} has shape {}; it must have 3 axes", x.shape());
            Err(Error::invalid(op, message))
        }
    }
}

impl Tensor {
    /// A convolution of images `[N, C, H, W]` with a weight `[O, C / groups, height, width]` and a bias `[O]`: `[N, O, rows,
    /// columns]`, where `rows = (H + 2 padding - dilation (height - 1) - 1) / stride + 1`, rounded down. As in PyTorch, the
    /// weight is not turned around. For floats; dtypes and precision are those of [`Tensor::linear`], with groups those of
    /// [`Tensor::matmul`]. The result may be a view with the channels last in memory.
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
        conv("conv2d", self, weight, bias, options)
    }

    /// A convolution of series `[N, C, L]` with a weight `[O, C / groups, length]` and a bias `[O]`, as [`Tensor::conv2d`].
    ///
    /// # Errors
    /// As [`Tensor::conv2d`].
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &Conv1dOptions) -> Result<Tensor> {
        const OP: &str = "conv1d";
        let (x, weight) = (with_height(OP, self, "series")?, with_height(OP, weight, "weight")?);
        conv(OP, &x, &weight, bias, &options.in_two())?.squeeze(2)
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
        conv_transpose("conv_transpose2d", self, weight, bias, options)
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
        const OP: &str = "conv_transpose1d";
        let (x, weight) = (with_height(OP, self, "series")?, with_height(OP, weight, "weight")?);
        conv_transpose(OP, &x, &weight, bias, &options.in_two())?.squeeze(2)
    }
}
