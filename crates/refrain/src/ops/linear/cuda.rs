//! Linear layers on CUDA, as matrix products.

use super::{BiasGradient, Linear, WeightGradient, rows};
use crate::device::cuda::{CudaArgs, FlatOperand, Gpu, MatrixOperand, MmaKind, Product, View};
use crate::device::{Launch, Mode};
use crate::error::Result;
use crate::kernels::products;
use crate::ops::{Op, reduce};
use crate::types::Precision;

fn adds(launch: &Launch<'_>, o: usize) -> bool {
    launch.writes[o].1 == Mode::Accumulate
}

pub(super) fn forward(op: &Linear, launch: &Launch<'_>) -> Product {
    let (x, w) = (&View::read(launch, 0), &View::read(launch, 1));
    let (m, k, n) = (rows(x.layout.shape()), w.layout.shape()[1], w.layout.shape()[0]);
    let (x, w) = (MatrixOperand::row_major(x, m, k), MatrixOperand::row_major(w, n, k).t());
    let mut optional = (2..launch.reads.len()).map(|i| FlatOperand::of(&View::read(launch, i)));
    Product {
        bias: op.bias.then(|| optional.next()).flatten(),
        residual: op.residual.then(|| optional.next()).flatten(),
        activation: op.activation,
        kept: op.keep.then(|| FlatOperand::of(&View::write(launch, 1))),
        ..Product::new(op.precision, [m, n, k], x, w, &View::write(launch, 0))
    }
}

pub(super) fn input_gradient(precision: Precision, launch: &Launch<'_>) -> Product {
    let (dy, w) = (&View::read(launch, 0), &View::read(launch, 1));
    let (m, k, n) = (rows(dy.layout.shape()), w.layout.shape()[0], w.layout.shape()[1]);
    let (dy, w) = (MatrixOperand::row_major(dy, m, k), MatrixOperand::row_major(w, k, n));
    Product { add: adds(launch, 0), ..Product::new(precision, [m, n, k], dy, w, &View::write(launch, 0)) }
}

fn weight_gradient(op: &WeightGradient, launch: &Launch<'_>) -> Product {
    let (dy, x) = (&View::read(launch, 0), &View::read(launch, 1));
    let dw = &View::write(launch, 0);
    let (m, n, k) = (dw.layout.shape()[0], dw.layout.shape()[1], rows(x.layout.shape()));
    let (dy, x) = (MatrixOperand::row_major(dy, k, m).t(), MatrixOperand::row_major(x, k, n));
    Product {
        add: adds(launch, 0),
        sums: op.bias.map(|_| (FlatOperand::of(&View::write(launch, 1)), adds(launch, 1))),
        ..Product::new(op.precision, [m, n, k], dy, x, dw)
    }
}

/// The product. If it is better to compute the bias gradient together with it, that is included; the flag says
/// whether the bias gradient must follow separately.
fn weight_gradient_on(op: &WeightGradient, launch: &Launch<'_>, mma: MmaKind) -> (Product, bool) {
    let product = weight_gradient(op, launch);
    let after = op.bias.is_some() && !products::cuda::sums_beside(&product, mma);
    (if after { Product { sums: None, ..product } } else { product }, after)
}

pub(super) fn run_weight_gradient(op: &WeightGradient, args: &mut CudaArgs<'_>) -> Result<()> {
    let (product, sums_after) = weight_gradient_on(op, args.launch(), args.mma());
    products::cuda::run(args, &product)?;
    match sums_after {
        true => reduce::cuda::sum(args, 1, BiasGradient::extent(args.read_shape(0)), 1.0),
        false => Ok(()),
    }
}

pub(super) fn weight_gradient_workspace(
    op: &WeightGradient,
    launch: &Launch<'_>,
    gpu: &dyn Gpu,
) -> Result<usize> {
    let (product, sums_after) = weight_gradient_on(op, launch, gpu.mma());
    let extent = || BiasGradient::extent(launch.reads[0].layout.shape());
    let sums = if sums_after { reduce::cuda::workspace(extent(), launch) } else { 0 };
    Ok(products::cuda::workspace(gpu, WeightGradient::NAME, &product)?.max(sums))
}
