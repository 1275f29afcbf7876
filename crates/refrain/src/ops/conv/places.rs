//! Where the windows of a convolution lie.

use crate::error::Result;
use crate::kernels::window::Window;
use crate::tensor::Shape;

/// A convolution of images: where its windows lie, and its channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) window: Window,
    /// `[N, C, H, W]`
    pub(super) images: [usize; 4],
    /// How many windows there are over the height and the width.
    pub(super) count: [usize; 2],
    /// The channels of the result.
    pub(super) out: usize,
    pub(super) groups: usize,
    /// Whether these are series: images of height 1 whose tensors have no axis for it.
    pub(super) series: bool,
    /// Whether tensors of images and of results are `[N, H, W, C]`.
    pub(super) channels_last: bool,
}

impl Places {
    pub(super) fn new(
        op: &'static str,
        window: Window,
        images: [usize; 4],
        [out, groups]: [usize; 2],
        series: bool,
    ) -> Result<Places> {
        let count = window.counts(op, [images[2], images[3]])?;
        let places = Places { window, images, count, out, groups, series, channels_last: false };
        Shape::from(places.results()).check_view(op)?;
        Ok(places)
    }

    /// The sizes of the result, `[N, O, rows, columns]`.
    pub(super) fn results(&self) -> [usize; 4] {
        [self.images[0], self.out, self.count[0], self.count[1]]
    }

    /// The sizes of the weight, `[O, C / groups, height, width]`.
    pub(super) fn weight(&self) -> [usize; 4] {
        let [height, width] = self.window.kernel;
        [self.out, self.images[1] / self.groups, height, width]
    }

    /// The shape of a weight.
    pub(super) fn weight_shape(&self) -> Shape {
        let [out, channels, height, width] = self.weight();
        match self.series {
            true => Shape::from([out, channels, width]),
            false => Shape::from([out, channels, height, width]),
        }
    }

    /// The shape of images or results of these sizes, `[N, C, H, W]`.
    pub(super) fn shape(&self, [n, channels, height, width]: [usize; 4]) -> Shape {
        match (self.series, self.channels_last) {
            (true, _) => Shape::from([n, channels, width]),
            (false, true) => Shape::from([n, height, width, channels]),
            (false, false) => Shape::from([n, channels, height, width]),
        }
    }

    /// The axes over which a bias is the same.
    pub(super) fn axes_beside_channels(&self) -> &'static [isize] {
        match (self.series, self.channels_last) {
            (true, _) => &[0, 2],
            (false, true) => &[0, 1, 2],
            (false, false) => &[0, 2, 3],
        }
    }
}
