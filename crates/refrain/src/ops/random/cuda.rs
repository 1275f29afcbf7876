//! Random numbers on CUDA.

use super::host::{bits, words_each};
use super::philox::WORDS;
use super::{Distribution, Sample};
use crate::device::cuda::{CudaArgs, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::units;

static SOURCE: Source = Source { name: "random", parts: &[include_str!("kernel.cu")] };

pub(super) fn sample(op: &Sample, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let spec = Spec::new(&SOURCE, "sample")
        .dtype("OUT", dtype)
        .flag("NORMAL", op.distribution == Distribution::Normal)
        .int("BITS", i64::from(bits(dtype)));
    let params = Params::new().pointer(args.read(0)).pointer(args.write(0)).size(n).i64(op.offset as i64);
    let blocks = (n * words_each(dtype)).div_ceil(WORDS);
    args.kernel(spec, units::grid(args, blocks), &params)
}
