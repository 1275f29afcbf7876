//! Options of convolutions.

use crate::error::{Error, Result};
use crate::kernels::window::Window;

/// The options of [`Tensor::conv2d`](crate::Tensor::conv2d). Pairs are for the height and the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// How far a window is from the next one.
    pub stride: [usize; 2],
    /// Rows and columns of zeros on each side of an image.
    pub padding: [usize; 2],
    /// How far an element of a window is from the next one.
    pub dilation: [usize; 2],
    /// Groups of channels that have nothing to do with each other.
    pub groups: usize,
}

/// The options of [`Tensor::conv1d`](crate::Tensor::conv1d); they mean the same as in [`Conv2dOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those above.
pub struct Conv1dOptions {
    pub stride: usize,
    pub padding: usize,
    pub dilation: usize,
    pub groups: usize,
}

/// The options of [`Tensor::conv_transpose2d`](crate::Tensor::conv_transpose2d): those of the convolution that it is the
/// adjoint of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose2dOptions {
    /// How far a window is from the next one.
    pub stride: [usize; 2],
    /// Rows and columns that are cut off on each side of the result.
    pub padding: [usize; 2],
    /// Rows and columns that the result has in addition at its end. With a stride above 1, images of several sizes have the
    /// same number of windows; this says which size is meant.
    pub output_padding: [usize; 2],
    /// How far an element of a window is from the next one.
    pub dilation: [usize; 2],
    /// Groups of channels that have nothing to do with each other.
    pub groups: usize,
}

/// The options of [`Tensor::conv_transpose1d`](crate::Tensor::conv_transpose1d); they mean the same as in
/// [`ConvTranspose2dOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those above.
pub struct ConvTranspose1dOptions {
    pub stride: usize,
    pub padding: usize,
    pub output_padding: usize,
    pub dilation: usize,
    pub groups: usize,
}

/// Stride, dilation and groups of 1, and no padding.
impl Default for Conv2dOptions {
    fn default() -> Conv2dOptions {
        Conv1dOptions::default().in_two()
    }
}

/// Stride, dilation and groups of 1, and no padding.
impl Default for Conv1dOptions {
    fn default() -> Conv1dOptions {
        Conv1dOptions { stride: 1, padding: 0, dilation: 1, groups: 1 }
    }
}

/// Stride, dilation and groups of 1, and no padding.
impl Default for ConvTranspose2dOptions {
    fn default() -> ConvTranspose2dOptions {
        ConvTranspose1dOptions::default().in_two()
    }
}

/// Stride, dilation and groups of 1, and no padding.
impl Default for ConvTranspose1dOptions {
    fn default() -> ConvTranspose1dOptions {
        ConvTranspose1dOptions { stride: 1, padding: 0, output_padding: 0, dilation: 1, groups: 1 }
    }
}

impl Conv1dOptions {
    /// For images of height 1.
    pub(super) fn in_two(&self) -> Conv2dOptions {
        Conv2dOptions {
            stride: [1, self.stride],
            padding: [0, self.padding],
            dilation: [1, self.dilation],
            groups: self.groups,
        }
    }
}

impl ConvTranspose1dOptions {
    /// For images of height 1.
    pub(super) fn in_two(&self) -> ConvTranspose2dOptions {
        ConvTranspose2dOptions {
            stride: [1, self.stride],
            padding: [0, self.padding],
            output_padding: [0, self.output_padding],
            dilation: [1, self.dilation],
            groups: self.groups,
        }
    }
}

impl ConvTranspose2dOptions {
    /// The height and the width of the result from those of the operand.
    pub(super) fn sizes(&self, op: &'static str, window: Window, from: [usize; 2]) -> Result<[usize; 2]> {
        let size = |axis: usize| {
            let (kernel, stride, dilation) =
                (window.kernel[axis], window.stride[axis], window.dilation[axis]);
            let (padding, more) = (window.padding[axis], self.output_padding[axis]);
            if kernel == 0 || stride == 0 || dilation == 0 {
                let message = format!(
                    "kernel size {kernel}, stride {stride} and dilation {dilation} must all be 1 or more"
                );
                return Err(Error::invalid(op, message));
            }
            if more >= stride.max(dilation) && more > 0 {
                let message = format!(
                    "output_padding {more} must be below the stride {stride} or the dilation {dilation}"
                );
                return Err(Error::invalid(op, message));
            }
            let steps = from[axis].saturating_sub(1).checked_mul(stride);
            let reach = (kernel - 1).checked_mul(dilation).and_then(|n| n.checked_add(1 + more));
            let whole = steps.zip(reach).and_then(|(steps, reach)| steps.checked_add(reach));
            let cut = padding.checked_mul(2);
            let left = whole.zip(cut).and_then(|(whole, cut)| whole.checked_sub(cut));
            left.filter(|&size| size > 0 && from[axis] > 0).ok_or_else(|| {
                Error::invalid(
                    op,
                    format!(
                        "padding {padding} and a kernel of {kernel} leave nothing of {} elements; use less padding",
                        from[axis]
                    ),
                )
            })
        };
        Ok([size(0)?, size(1)?])
    }
}
