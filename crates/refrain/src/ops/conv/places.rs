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
        let places = Places { window, images, count, out, groups, series };
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

    /// The shape of a tensor of these sizes.
    pub(super) fn shape(&self, [a, b, height, width]: [usize; 4]) -> Shape {
        if self.series { Shape::from([a, b, width]) } else { Shape::from([a, b, height, width]) }
    }

    /// The axes over which a bias is the same.
    pub(super) fn axes_beside_channels(&self) -> &'static [isize] {
        if self.series { &[0, 2] } else { &[0, 2, 3] }
    }
}
