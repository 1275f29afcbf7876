//! The Walsh-Hadamard transform on CUDA.
//!
//! A block does the steps of short distances within a chunk of memory. Longer rows need further passes, in which a
//! chunk consists of stretches that are far apart.

use crate::device::Launch;
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, params};
use crate::error::Result;

static SOURCE: Source = Source { name: "hadamard", parts: &[include_str!("kernel.cu")] };

const THREADS: u32 = 256;
/// Binary logarithms of the chunk sizes: for rows that fit, and for others.
const LOG_CHUNK: u32 = 11;
const LOG_LARGE_CHUNK: u32 = 12;
/// How many distances a pass over far-apart stretches does. With more, the stretches would be too short.
const FAR: u32 = 6;

params! {
    struct HadamardArgs {
        x: Pointer = "const IN*",
        y: Pointer = "OUT*",
        n: i64,
        /// From a stretch to the next.
        distance: i64,
        log_columns: i64,
        first_bit: i64,
        end_bit: i64,
        scale: f64,
    }
}

/// Workspace bytes for the intermediate result between passes.
pub(super) fn workspace(launch: &Launch<'_>) -> usize {
    let x = &launch.reads[0];
    match x.layout.shape().last() {
        Some(&n) if n > 1 << LOG_LARGE_CHUNK => x.layout.numel() * x.dtype.accumulator().size(),
        _ => 0,
    }
}

pub(super) fn transform(args: &mut CudaArgs<'_>) -> Result<()> {
    let (all, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if all == 0 {
        return Ok(());
    }
    let compute = dtype.accumulator();
    let width = args.write_shape(0).last().copied().unwrap_or(1);
    let bits = width.ilog2();
    let scale = 1.0 / (width as f64).sqrt();
    let log_chunk = if bits <= LOG_CHUNK { LOG_CHUNK } else { LOG_LARGE_CHUNK };
    // The distances below 2^done are finished.
    let mut done = 0;
    loop {
        let steps = if done == 0 { bits.min(log_chunk) } else { (bits - done).min(FAR) };
        let (first, last) = (done == 0, done + steps == bits);
        let log_columns = if first { log_chunk } else { log_chunk - steps };
        let distance = if first { 1 << log_chunk } else { 1usize << done };
        let first_bit = if first { 0 } else { log_columns };
        let spec = KernelSpec::new(&SOURCE, "hadamard")
            .dtype("IN", if first { dtype } else { compute })
            .dtype("OUT", if last { dtype } else { compute })
            .dtype("COMPUTE", compute)
            .int("CHUNK", 1 << log_chunk)
            .int("LOG_CHUNK", i64::from(log_chunk))
            .flag("LAST", last)
            .flag("ADD", last && args.accumulate(0));
        let kernel_args = HadamardArgs {
            x: if first { args.read(0) } else { args.workspace() },
            y: if last { args.write(0) } else { args.workspace() },
            n: all as i64,
            distance: distance as i64,
            log_columns: log_columns.into(),
            first_bit: first_bit.into(),
            end_bit: (first_bit + steps).into(),
            scale,
        };
        args.kernel(spec, Grid::line(all.div_ceil(1 << log_chunk), THREADS), &kernel_args)?;
        done += steps;
        if last {
            return Ok(());
        }
    }
}
