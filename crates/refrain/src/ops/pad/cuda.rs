//! `pad` on CUDA.

use smallvec::SmallVec;

use super::Pad;
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, padded, params, with_rank};
use crate::error::Result;
use crate::kernels::units;

static SOURCE: Source = Source { name: "pad", parts: &[include_str!("kernel.cu")] };

params! {
    struct PadArgs<const RANK: usize> {
        x: Pointer = "const UNIT*",
        y: Pointer = "UNIT*",
        n: i64,
        value: u64,
        /// Axis by axis: the size of y, the margin before x, the size and the stride of x.
        shape: [i64; RANK],
        before: [i64; RANK],
        size: [i64; RANK],
        strides: [i64; RANK],
    }
}

/// An axis, or several merged axes of which only the first is padded.
struct Axis {
    /// The size of the operand.
    size: usize,
    before: usize,
    after: usize,
}

pub(super) fn pad(op: &Pad, value: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
    for (&size, &(before, after)) in args.read_shape(0).iter().zip(&op.padding) {
        match axes.last_mut() {
            Some(last) if before == 0 && after == 0 => {
                last.size *= size;
                last.before *= size;
                last.after *= size;
            }
            _ => axes.push(Axis { size, before, after }),
        }
    }
    // The last axis in units that are as large as possible.
    let bytes = dtype.size();
    let parts = axes.last().map_or([1, 0, 0], |last| [last.size, last.before, last.after]);
    let alignments = [args.input(0).alignment(), args.output(0).alignment()];
    let unit = units::largest(parts.map(|n| n * bytes).into_iter().chain(alignments));
    if let Some(last) = axes.last_mut() {
        let units = |n: usize| n * bytes / unit;
        *last = Axis { size: units(last.size), before: units(last.before), after: units(last.after) };
    }
    let rank = axes.len().max(1).next_power_of_two();
    let all = n * bytes / unit;
    let mut strides: SmallVec<[usize; 6]> = SmallVec::from_elem(1, axes.len());
    for i in (1..axes.len()).rev() {
        strides[i - 1] = strides[i] * axes[i].size;
    }
    let row = |of: fn(&Axis) -> usize| -> SmallVec<[usize; 6]> { axes.iter().map(of).collect() };
    let spec = units::constants(KernelSpec::new(&SOURCE, "pad"), unit, all).int("RANK", rank as i64);
    with_rank!(args.op(), rank, RANK => {
        let job = PadArgs::<RANK> {
            x: args.read(0),
            y: args.write(0),
            n: all as i64,
            value: units::value(dtype, value),
            shape: padded(&row(|a| a.before + a.size + a.after), 1),
            before: padded(&row(|a| a.before), 0),
            size: padded(&row(|a| a.size), 1),
            strides: padded(&strides, 0),
        };
        args.kernel(spec, units::grid(args, all), &job)
    })
}
