//! `repeat` on CUDA: a copy of a view that repeats the tensor.

use super::Repeat;
use crate::device::cuda::CudaArgs;
use crate::error::{Error, Result};
use crate::ops::copy::cuda::copy_between;
use crate::tensor::Shape;

pub(super) fn repeat(op: &Repeat, args: &mut CudaArgs<'_>) -> Result<()> {
    let (x, y) = (args.input(0), args.output(0));
    if y.layout.numel() == 0 {
        return Ok(());
    }
    // Each axis as two: the repetitions and the axis itself.
    let sizes = || op.repeats.iter().zip(x.layout.shape().iter());
    let once: Shape = sizes().flat_map(|(_, &d)| [1, d]).collect();
    let split: Shape = sizes().flat_map(|(&r, &d)| [r, d]).collect();
    let from = x.layout.reshape(&once).and_then(|layout| layout.broadcast_to(&split));
    match (from, y.layout.reshape(&split)) {
        (Some(from), Some(to)) => copy_between(args, y.with_layout(&to), x.with_layout(&from)),
        _ => Err(Error::internal(args.op(), "a contiguous tensor cannot be viewed as its repetitions")),
    }
}
