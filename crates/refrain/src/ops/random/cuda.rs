//! Random numbers on CUDA.

use super::host::{bits, words_each};
use super::philox::WORDS;
use super::{Distribution, Sample};
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::units;

static SOURCE: Source = Source { name: "random", parts: &[include_str!("kernel.cu")] };

params! {
    struct SampleArgs {
        /// Seed and counter.
        state: Pointer = "const i64*",
        y: Pointer = "OUT*",
        n: i64,
        /// Added to the counter.
        offset: u64,
        /// The numbers of the first block that are not part of the result.
        skip: i64,
    }
}

pub(super) fn sample(op: &Sample, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let spec = KernelSpec::new(&SOURCE, "sample")
        .dtype("OUT", dtype)
        .flag("NORMAL", op.distribution == Distribution::Normal)
        .int("BITS", i64::from(bits(dtype)));
    let skip = op.place.skip() / words_each(dtype);
    let kernel_args = SampleArgs {
        state: args.read(0),
        y: args.write(0),
        n: n as i64,
        offset: op.place.block(),
        skip: skip as i64,
    };
    let blocks = ((skip + n) * words_each(dtype)).div_ceil(WORDS);
    args.kernel(spec, units::grid(args, blocks), &kernel_args)
}
