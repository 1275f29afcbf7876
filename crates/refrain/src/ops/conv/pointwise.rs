//! Convolutions of single pixels (1 x 1) on CUDA: the channels of an image are the rows of a matrix as they lie, so an image of the
//! result is the product of the weight with it.

use super::Convolution;
use super::cuda::{Plan, check, pack_weights};
use super::unfolded::{ALIGNMENT, PIECE_BYTES, behind_products, rows_of};
use crate::device::cuda::{CudaArgs, Gpu, MatrixOperand, Pointer, Product, View};
use crate::device::{Launch, Mode};
use crate::error::Result;
use crate::kernels::products::cuda as products;
use crate::tensor::DType;

/// A convolution that is a product for each image.
pub(super) struct Pointwise<'a> {
    op: &'a Convolution,
    plan: Plan,
    x: View<'a>,
    y: View<'a>,
    add: bool,
}

impl<'a> Pointwise<'a> {
    /// `None` also where a bias is added, which would be another pass over the results, or rows of pixels are not whole pieces.
    pub(super) fn of(op: &'a Convolution, launch: &Launch<'a>) -> Option<Pointwise<'a>> {
        let window = &op.places.window;
        let is_single = window.kernel == [1, 1] && window.stride == [1, 1] && window.padding == [0, 0];
        let (x, (_, mode)) = (View::read(launch, 0), launch.writes.first()?);
        let is_rounded = op.factors == DType::F64 || x.dtype != op.factors;
        let plane = op.places.count[0] * op.places.count[1];
        let is_whole = (plane * op.factors.size()).is_multiple_of(PIECE_BYTES);
        if !is_single || op.bias || op.places.groups != 1 || is_rounded || !is_whole {
            return None;
        }
        Some(Pointwise {
            op,
            plan: Plan::of(op),
            x,
            y: View::write(launch, 0),
            add: *mode == Mode::Accumulate,
        })
    }

    /// Bytes of the packed weight.
    fn weights(&self) -> usize {
        (self.plan.weights(1) * self.op.factors.size()).next_multiple_of(ALIGNMENT)
    }

    /// With the packed weight behind so many bytes of the working memory.
    fn product(&self, first: usize) -> Product {
        let (op, [(k, [height, width]), (m, _)]) = (self.op, self.op.sides());
        let n = height * width;
        let a = rows_of(Pointer::WORKSPACE.plus(first), op.factors, [m, k], self.plan.columns);
        let b = MatrixOperand::row_major(&self.x, k, n);
        let mut product = Product { add: self.add, ..Product::new(op.precision, [m, n, k], a, b, &self.y) };
        product.batch.push(op.places.images[0]);
        product.a.batch.push(0);
        product.b.batch.push(k * n);
        product
    }

    pub(super) fn workspace(&self, op: &'static str, gpu: &dyn Gpu) -> Result<usize> {
        let bytes = products::workspace(gpu, op, &self.product(0))?;
        Ok(bytes.next_multiple_of(ALIGNMENT) + self.weights())
    }

    pub(super) fn run(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        check(args.op(), &self.op.places)?;
        let first = behind_products(args, self.weights());
        pack_weights(self.op, &self.plan, Pointer::WORKSPACE.plus(first), args)?;
        products::run(args, &self.product(first))
    }
}
