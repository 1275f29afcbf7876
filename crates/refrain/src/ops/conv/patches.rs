//! The windows of images as rows of a matrix, and back.

use super::cuda;
use crate::autograd::Gradients;
use crate::device::cpu::numeric::{Number, Stored, with_float, with_stored};
use crate::device::cpu::{parallel, scratch::Scratch};
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::window::Window;
use crate::operation::{Needs, Op, Spec, Specs};
use crate::tensor::{Shape, Tensor};

/// Where the windows of images lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) window: Window,
    /// `[N, C, H, W]`
    pub(super) images: [usize; 4],
    /// How many windows there are over the height and the width.
    pub(super) count: [usize; 2],
}

impl Places {
    pub(super) fn new(op: &'static str, window: Window, images: [usize; 4]) -> Result<Places> {
        let count = window.counts(op, [images[2], images[3]])?;
        let places = Places { window, images, count };
        Shape::from(places.matrix()).check_view(op)?;
        Ok(places)
    }

    /// The shape of the matrix: a row for each window, in it its elements, channel by channel.
    pub(super) fn matrix(&self) -> [usize; 2] {
        let [n, c, ..] = self.images;
        let ([rows, columns], [height, width]) = (self.count, self.window.kernel);
        let all = |sizes: [usize; 3]| sizes.into_iter().fold(1usize, usize::saturating_mul);
        [all([n, rows, columns]), all([c, height, width])]
    }
}

/// The windows of images `[N, C, H, W]` as a matrix `[N * rows * columns, C * height * width]`; zeros in the padding.
#[derive(Clone, Debug)]
pub(super) struct Patches(pub(super) Places);

/// The adjoint of [`Patches`]: each element of the images is the sum of its elements of the matrix, in the order of the
/// windows.
#[derive(Clone, Debug)]
pub(super) struct AddPatches(pub(super) Places);

/// The strides of the images that an operation reads.
pub(super) fn image_strides(args: &HostArgs<'_>, op: &'static str) -> Result<[usize; 4]> {
    let strides = args.read_layout(0).strides();
    let wrong = |_| Error::internal(op, format!("images have {} axes instead of 4", strides.len()));
    strides.try_into().map_err(wrong)
}

impl Op for Patches {
    const NAME: &'static str = "patches";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::new(self.0.matrix(), x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let Places { window, images: [_, channels, height, width], count: [rows, columns] } = self.0;
        let [by_image, by_channel, by_row, by_column] = image_strides(args, Self::NAME)?;
        let [kernel_h, kernel_w] = window.kernel;
        with_stored!(args.write_dtype(0), T => {
            let x = args.read::<T>(0)?;
            let zero = T::from_number(<i64 as Number>::ZERO);
            parallel::pieces(args.write::<T>(0)?, channels * kernel_h * kernel_w, |at, y| {
                let (image, row, column) = (at / (rows * columns), at / columns % rows, at % columns);
                // Neighbours in a window are neighbours in memory if nothing lies between them.
                let dense = by_column == 1 && window.dilation[1] == 1;
                let first = window.place(1, column, 0, width);
                for (line, y) in y.chunks_exact_mut(kernel_w).enumerate() {
                    let (channel, k) = (line / kernel_h, line % kernel_h);
                    let Some(i) = window.place(0, row, k, height) else {
                        y.fill(zero);
                        continue;
                    };
                    let start = image * by_image + channel * by_channel + i * by_row;
                    match first.filter(|first| dense && first + kernel_w <= width) {
                        Some(first) => y.copy_from_slice(&x[start + first..][..kernel_w]),
                        None => y.iter_mut().enumerate().for_each(|(k, y)| {
                            *y = window.place(1, column, k, width).map_or(zero, |j| x[start + j * by_column]);
                        }),
                    }
                }
            });
        });
        Ok(())
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::patches(&self.0, args)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let dy = g.grad()?.clone();
        g.emit(&[0], AddPatches(self.0), &[&dy])
    }
}

impl Op for AddPatches {
    const NAME: &'static str = "add_patches";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        Ok(Spec::new(self.0.images, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let Places { window, images: [_, channels, height, width], count: [rows, columns] } = self.0;
        let [kernel_h, kernel_w] = window.kernel;
        let [_, size] = self.0.matrix();
        let accumulate = args.accumulate(0);
        with_float!(args, args.write_dtype(0), T, R => {
            let x = args.read::<T>(0)?;
            parallel::pieces(args.write::<T>(0)?, height * width, |plane, y| {
                let (image, channel) = (plane / channels, plane % channels);
                let mut sums = Scratch::filled(y.len(), <R as Number>::ZERO);
                for at in 0..rows * columns {
                    let (row, column) = (at / columns, at % columns);
                    let patch = &x[(image * rows * columns + at) * size..][..size];
                    let patch = &patch[channel * kernel_h * kernel_w..][..kernel_h * kernel_w];
                    for (k, line) in patch.chunks_exact(kernel_w).enumerate() {
                        let Some(i) = window.place(0, row, k, height) else { continue };
                        for (k, &v) in line.iter().enumerate() {
                            if let Some(j) = window.place(1, column, k, width) {
                                sums[i * width + j] += v.to::<R>();
                            }
                        }
                    }
                }
                for (y, &sum) in y.iter_mut().zip(&*sums) {
                    *y = T::from_number(if accumulate { y.to::<R>() + sum } else { sum });
                }
            });
            Ok(())
        })
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::add_patches(&self.0, args)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let dy = g.grad()?.clone();
        g.emit(&[0], Patches(self.0), &[&dy])
    }
}
