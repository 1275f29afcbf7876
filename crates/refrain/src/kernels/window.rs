//! Windows that move over images `[N, C, H, W]`: of convolutions and of pooling.

use crate::error::{Error, Result};

/// The windows over an axis of an image or over both (heights come first). Rows and columns of zeros (`padding`) surround
/// the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
    pub(crate) dilation: [usize; 2],
}

impl Window {
    /// How many windows there are along each axis of an image of `size`.
    ///
    /// # Errors
    /// If a number is 0 that must not be, or the image is smaller than a window.
    pub(crate) fn counts(&self, op: &'static str, size: [usize; 2]) -> Result<[usize; 2]> {
        let count = |axis: usize| {
            let (kernel, stride, dilation) = (self.kernel[axis], self.stride[axis], self.dilation[axis]);
            if kernel == 0 || stride == 0 || dilation == 0 {
                return Err(Error::invalid(
                    op,
                    format!(
                        "kernel size {kernel}, stride {stride} and dilation {dilation} must all be 1 or more"
                    ),
                ));
            }
            let reach = (kernel - 1).checked_mul(dilation).and_then(|n| n.checked_add(1));
            let whole = self.padding[axis].checked_mul(2).and_then(|n| n.checked_add(size[axis]));
            match (reach, whole) {
                (Some(reach), Some(whole)) if reach <= whole => Ok((whole - reach) / stride + 1),
                _ => Err(Error::invalid(
                    op,
                    format!(
                        "a window of {kernel} elements with dilation {dilation} does not fit into {} elements with padding {}; use a smaller window or more padding",
                        size[axis], self.padding[axis]
                    ),
                )),
            }
        };
        Ok([count(0)?, count(1)?])
    }

    /// The place in the image of element `k` of window `i` along an axis, if it is not in the padding.
    #[inline(always)]
    pub(crate) fn place(&self, axis: usize, i: usize, k: usize, size: usize) -> Option<usize> {
        (i * self.stride[axis] + k * self.dilation[axis])
            .checked_sub(self.padding[axis])
            .filter(|&at| at < size)
    }
}
