//! Convolutions of single pixels (1 x 1) on CUDA: the channels of an image are the rows of a matrix as they lie, so an image of the
//! result is the product of the weight with it.

use super::Convolution;
use super::cuda::check;
use super::unfolded::{PIECE_BYTES, rows_of};
use crate::device::cuda::{CudaArgs, Gpu, MatrixOperand, Pointer, Product, View};
use crate::device::{Launch, Mode};
use crate::error::Result;
use crate::kernels::products::cuda as products;
use crate::tensor::DType;

/// A convolution that is a product for each image.
pub(super) struct Pointwise<'a> {
    op: &'a Convolution,
    x: View<'a>,
    y: View<'a>,
    add: bool,
}

impl<'a> Pointwise<'a> {
    /// Whether a convolution of such images is one: not where a bias is added, which would be another pass over the results, or rows of
    /// pixels are not whole pieces.
    pub(super) fn suits(op: &Convolution, dtype: DType) -> bool {
        let window = &op.places.window;
        let is_single = window.kernel == [1, 1] && window.stride == [1, 1] && window.padding == [0, 0];
        let is_rounded = op.factors == DType::F64 || dtype != op.factors;
        let plane = op.places.count[0] * op.places.count[1];
        let is_whole = (plane * op.factors.size()).is_multiple_of(PIECE_BYTES);
        let has_planes = !op.places.channels_last;
        is_single && has_planes && !op.bias && op.places.groups == 1 && !is_rounded && is_whole
    }

    pub(super) fn of(op: &'a Convolution, launch: &Launch<'a>) -> Option<Pointwise<'a>> {
        let (x, (_, mode)) = (View::read(launch, 0), launch.writes.first()?);
        if !Pointwise::suits(op, x.dtype) {
            return None;
        }
        let add = *mode == Mode::Accumulate;
        Some(Pointwise { op, x, y: View::write(launch, 0), add })
    }

    fn product(&self) -> Product {
        let (op, [(k, [height, width]), (m, _)]) = (self.op, self.op.sides());
        let n = height * width;
        let pitch = k.next_multiple_of(PIECE_BYTES / op.factors.size());
        let a = rows_of(Pointer::read(op.operands() - 1), op.factors, [m, k], pitch);
        let b = MatrixOperand::row_major(&self.x, k, n);
        let mut product = Product { add: self.add, ..Product::new(op.precision, [m, n, k], a, b, &self.y) };
        product.batch.push(op.places.images[0]);
        product.a.batch.push(0);
        product.b.batch.push(k * n);
        product
    }

    pub(super) fn workspace(&self, op: &'static str, gpu: &dyn Gpu) -> Result<usize> {
        products::workspace(gpu, op, &self.product())
    }

    pub(super) fn run(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        check(args.op(), &self.op.places)?;
        products::run(args, &self.product())
    }
}
