//! Convolutions whose windows have neighbours along the width: a product with windows that overlap in memory.
//!
//! [`WindowRows`] lays the rows of the images that a row of windows touches side by side, with the channels last: `[width,
//! height of a window, channels]`. There a window is one run of memory, and the next window begins `stride` columns later. So
//! the matrix of windows is a view, and the copy is only as many times larger than the images as a window is high.

use super::cuda;
use super::patches::{AddPatches, Places, image_strides};
use crate::device::cpu::numeric::{Number, Stored, with_stored};
use crate::device::cpu::parallel;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::elementwise::{Lines, LinesMut, transpose};
use crate::kernels::window::Window;
use crate::operation::{Needs, Op, Spec, Specs, apply, custom_op};
use crate::ops::matmul;
use crate::precision::{precision, rounded, with_precision};
use crate::tensor::{DType, Tensor};
use crate::types::Precision;

/// The rows of images `[N, C, H, W]` that windows touch, as `[N * rows * width + tail, height of a window * C]`; zeros in the
/// padding and in the tail.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowRows {
    /// The windows along the height.
    pub(super) window: Window,
    pub(super) images: [usize; 4],
    /// Rows of windows.
    pub(super) rows: usize,
    /// Columns, with the padding.
    pub(super) width: usize,
    /// Columns behind the last image, into which its last windows reach.
    pub(super) tail: usize,
    /// Columns of a row of windows, with the padding. Those behind them are zeros, because nothing may come of them.
    pub(super) used: usize,
}

impl WindowRows {
    /// Of windows that lie in these places, and how many begin in a row. `None` if windows are not runs of memory, or most of
    /// the copy would be padding.
    fn of(places: &Places) -> Option<(WindowRows, usize)> {
        let Places { window, images, count: [rows, columns] } = *places;
        let (kernel, stride) = (window.kernel[1], window.stride[1]);
        let used = (columns - 1) * stride + kernel;
        let begin = used.div_ceil(stride);
        let width = begin.checked_mul(stride)?;
        let size = [images[0], rows, width, window.kernel[0], images[1], 2 * size_of::<f64>()];
        let size = size.into_iter().try_fold(1usize, usize::checked_mul)?;
        if window.dilation[1] > 1 || !(1..isize::MAX as usize).contains(&size) {
            return None;
        }
        // With a stride above the window, what lies between windows is copied, too.
        let suits = begin <= 2 * columns && width <= 2 * columns * kernel;
        let copy = WindowRows { window, images, rows, width, tail: kernel - 1, used };
        suits.then_some((copy, begin))
    }

    /// The columns of an image that are copied.
    pub(super) fn copied(&self) -> usize {
        self.images[3].min(self.used.saturating_sub(self.window.padding[1]))
    }

    /// The numbers of a column.
    pub(super) fn depth(&self) -> usize {
        self.window.kernel[0] * self.images[1]
    }

    /// The windows as a matrix: a view of the copy.
    fn windows(&self, copy: &Tensor) -> Result<Tensor> {
        let depth = self.depth();
        copy.flatten(0, 1)?.unfold(0, (self.tail + 1) * depth, self.window.stride[1] * depth)
    }
}

impl Op for WindowRows {
    const NAME: &'static str = "window_rows";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let columns = self.images[0] * self.rows * self.width + self.tail;
        Ok(Spec::new([columns, self.depth()], x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let WindowRows { window, images: [n, channels, height, _], rows, .. } = *self;
        let [by_image, by_channel, by_row, by_column] = image_strides(args, Self::NAME)?;
        let (kernel, left) = (window.kernel[0], window.padding[1]);
        let there = self.copied();
        with_stored!(args.write_dtype(0), T => {
            let x = args.read::<T>(0)?;
            parallel::pieces(args.write::<T>(0)?, self.width * self.depth(), |at, y| {
                y.fill(T::from_number(<i64 as Number>::ZERO));
                let (image, row) = (at / rows, at % rows);
                if image == n || there == 0 {
                    return;
                }
                for k in 0..kernel {
                    let Some(i) = window.place(0, row, k, height) else { continue };
                    let from = &x[image * by_image + i * by_row..];
                    let y = &mut y[(left * kernel + k) * channels..];
                    if by_channel == 1 {
                        for w in 0..there {
                            y[w * kernel * channels..][..channels].copy_from_slice(&from[w * by_column..][..channels]);
                        }
                        continue;
                    }
                    let step = kernel * channels;
                    if by_column == 1 {
                        let from = Lines { data: from, step: by_channel };
                        transpose(from, LinesMut { data: y, step }, there, channels);
                        continue;
                    }
                    for c in 0..channels {
                        let from = &from[c * by_channel..];
                        let to = y[c..].iter_mut().step_by(step).take(there);
                        match by_column {
                            0 => to.for_each(|to| *to = from[0]),
                            _ => to.zip(from.iter().step_by(by_column)).for_each(|(to, from)| *to = *from),
                        }
                    }
                }
            });
            Ok(())
        })
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::window_rows(self, args)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }
}

/// How a convolution is computed.
#[derive(Clone, Copy)]
struct Setting {
    precision: Precision,
    /// The dtype of the factors.
    dtype: DType,
}

impl Setting {
    fn factor(&self, t: &Tensor) -> Result<Tensor> {
        match (t.dtype(), self.dtype) {
            (DType::F32, DType::BF16) => rounded(t),
            _ => t.to_dtype(self.dtype),
        }
    }

    /// The images `[N, O, rows, columns]` of `dtype` that windows and a weight `[O, C, height, width]` give: a view. Also the
    /// copy of the rows.
    fn convolve(
        &self,
        (copy, begin, columns): (WindowRows, usize, usize),
        x: &Tensor,
        weight: &Tensor,
        dtype: DType,
    ) -> Result<(Tensor, Tensor)> {
        let (n, out) = (copy.images[0], weight.dims()[0]);
        let rows = apply(copy, &[&x.to_dtype(self.dtype)?])?;
        let windows = copy.windows(&rows)?;
        let depth = windows.dims()[1];
        let windows = windows.reshape([n, copy.rows * begin, depth])?.transpose(1, 2)?;
        // In the order of the windows: along the width, along the height, by channel.
        let weight =
            weight.permute(&[0, 3, 2, 1])?.copy()?.reshape([1, out, depth])?.broadcast_to([n, out, depth])?;
        let y = matmul::product(self.precision, dtype, &weight, &windows)?;
        Ok((y.reshape([n, out, copy.rows, begin])?.narrow(3, 0, columns)?, rows))
    }

    /// `[O, C, height, width]` in `dtype`, of the gradient of the images and the copy of the rows.
    fn weight_gradient(
        &self,
        (copy, begin): (WindowRows, usize),
        [dy, rows]: [&Tensor; 2],
        dtype: DType,
    ) -> Result<Tensor> {
        let &[n, out, height, columns] = dy.dims() else {
            return Err(Error::internal("conv2d", "a gradient has another shape"));
        };
        let images = [n, out, height, columns];
        let one = Window { kernel: [1, 1], stride: [1, 1], padding: [0, 0], dilation: [1, 1] };
        let turned = WindowRows { window: one, images, rows: height, width: begin, tail: 0, used: columns };
        let dy = apply(turned, &[&dy.to_dtype(self.dtype)?])?;
        let dw = matmul::product(self.precision, dtype, &dy.transpose(0, 1)?, &copy.windows(rows)?)?;
        let [kernel_h, kernel_w] = copy.window.kernel;
        dw.reshape([out, kernel_w, kernel_h, copy.images[1]])?.permute(&[0, 3, 2, 1])
    }

    /// The gradient of the images, in `dtype`.
    fn input_gradient(&self, places: &Places, dy: &Tensor, weight: &Tensor, dtype: DType) -> Result<Tensor> {
        let Places { window, images: [n, channels, height, width], count: [rows, columns] } = *places;
        let out = weight.dims()[0];
        let weight = self.factor(weight)?;
        // With stride 1 it is a convolution with the weight turned around.
        let reach = [0, 1].map(|axis| window.dilation[axis] * (window.kernel[axis] - 1));
        let padding = [0, 1].map(|axis| reach[axis].checked_sub(window.padding[axis]));
        if let ([1, 1], [Some(top), Some(left)]) = (window.stride, padding) {
            let window = Window { padding: [top, left], ..window };
            let back = Places { window, images: [n, out, rows, columns], count: [height, width] };
            if let Some((copy, begin)) = WindowRows::of(&back) {
                let turned = weight.flip([2, 3])?.transpose(0, 1)?;
                return Ok(self.convolve((copy, begin, width), dy, &turned, dtype)?.0);
            }
        }
        let dy = dy.to_dtype(self.dtype)?.permute(&[0, 2, 3, 1])?.reshape([n * rows * columns, out])?;
        let depth = channels * window.kernel[0] * window.kernel[1];
        let patches = matmul::product(self.precision, dtype, &dy, &weight.reshape([out, depth])?)?;
        apply(AddPatches(*places), &[&patches])
    }
}

/// A convolution without groups, if it can be computed this way. The operands were checked, but for the dtypes of the weight
/// and the bias.
pub(super) fn convolution(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    places: Places,
) -> Result<Option<Tensor>> {
    let precision = precision();
    let dtype = precision.result(x.dtype());
    let known = [Some(weight), bias].into_iter().flatten().all(|t| t.dtype().is_parameter_of(dtype));
    let Some((copy, begin)) = WindowRows::of(&places).filter(|_| known && weight.numel() > 0) else {
        return Ok(None);
    };
    let setting = Setting { precision, dtype };
    let operands: Vec<&Tensor> = [Some(x), Some(weight), bias].into_iter().flatten().collect();
    let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype()).collect();
    let needed: Vec<bool> = operands.iter().map(|t| t.requires_grad()).collect();
    let results = custom_op(
        op,
        &operands,
        |t| {
            let (y, rows) =
                setting.convolve((copy, begin, places.count[1]), &t[0], &setting.factor(&t[1])?, dtype)?;
            let y = match t.get(2) {
                Some(bias) => y.add(&setting.factor(bias)?.reshape([bias.numel(), 1, 1])?)?,
                None => y,
            };
            Ok((vec![y], vec![rows, t[1].clone()]))
        },
        move |gradients, saved| {
            let (dy, rows, weight) = (&gradients[0], &saved[0], &saved[1]);
            let gradient = |operand: usize| {
                let dtype = dtypes[operand];
                Ok(match (needed[operand], operand) {
                    (false, _) => None,
                    (true, 0) => Some(setting.input_gradient(&places, dy, weight, dtype)?),
                    (true, 1) => Some(setting.weight_gradient((copy, begin), [dy, rows], dtype)?),
                    (true, _) => Some(dy.to_dtype(dtype)?.sum([0, 2, 3])?),
                })
            };
            with_precision(setting.precision, || (0..dtypes.len()).map(gradient).collect())
        },
    )?;
    results.into_iter().next().map(Some).ok_or_else(|| Error::internal(op, "no result"))
}
