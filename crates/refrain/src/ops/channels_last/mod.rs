//! Images with their channels last in memory.

use super::runs_on_host;
use crate::error::{Error, Result};
use crate::tensor::{CHANNELS_FIRST, PIXELS_FIRST, Tensor};

impl Tensor {
    /// The same images `[N, C, H, W]`, for a GPU with their channels last in memory: as a row-major `[N, H, W, C]`. It is a copy, unless they
    /// lie so already (as images `[N, H, W, C]` do whose axes are permuted).
    ///
    /// Convolutions of 16-bit numbers find the channels of a pixel side by side there, and need not lay them out. What has a result for each
    /// element, [`Tensor::batch_norm`], pooling, and these convolutions (but those of groups of few channels) keep the channels of their
    /// result where they are in their operand, so a network needs this once, for its images. Images of one channel lie the same in both
    /// orders; there, call it behind the first convolution. Other operations copy images to row-major first, also the gradient of pooling.
    ///
    /// On the CPU, where images with their channels first are faster, it returns them as they are.
    ///
    /// # Errors
    /// If the tensor does not have four axes.
    ///
    /// ```
    /// use refrain::{Conv2dOptions, DType, Device, Generator, Tensor};
    /// let generator = Generator::new(&Device::cpu(), 1)?;
    /// let images = generator.normal([2, 3, 8, 8], DType::F32)?.channels_last()?;
    /// let weight = generator.normal([16, 3, 3, 3], DType::F32)?;
    /// let y = images.conv2d(&weight, None, &Conv2dOptions::default())?.relu()?;
    /// assert_eq!(y.dims(), [2, 16, 6, 6]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn channels_last(&self) -> Result<Tensor> {
        if self.rank() != 4 {
            let message = format!("the images have shape {}; it must be [N, C, H, W]", self.shape());
            return Err(Error::invalid("channels_last", message));
        }
        let lies_so = self.layout().permute(&PIXELS_FIRST).is_contiguous();
        match runs_on_host(self.device()) || lies_so {
            true => Ok(self.clone()),
            false => Ok(self.pixels_first()?.copy()?.channels_first()),
        }
    }

    /// Whether kernels may take the images with their channels last.
    pub(crate) fn has_channels_last(&self) -> bool {
        !runs_on_host(self.device()) && self.layout().is_channels_last()
    }

    /// Images `[N, C, H, W]` as `[N, H, W, C]`.
    pub(crate) fn pixels_first(&self) -> Result<Tensor> {
        self.permute(&PIXELS_FIRST.map(|axis| axis as isize))
    }

    /// A new result `[N, H, W, C]` as images `[N, C, H, W]`.
    pub(crate) fn channels_first(&self) -> Tensor {
        self.permute_result(&CHANNELS_FIRST)
    }

    /// A result with its channels last if those of the operand `x` are.
    pub(crate) fn in_order_of(self, x: &Tensor) -> Result<Tensor> {
        if x.has_channels_last() { self.channels_last() } else { Ok(self) }
    }
}
