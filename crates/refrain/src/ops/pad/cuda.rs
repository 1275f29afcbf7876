//! `pad` on CUDA.

use smallvec::SmallVec;

use super::mode::{Axis, PadMode};
use super::{Axes, Pad, PadBackward};
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, padded, params, with_rank};
use crate::error::Result;
use crate::kernels::units;
use crate::tensor::{Dims, row_major};

static PAD: Source = Source { name: "pad", parts: &[include_str!("kernel.cu")] };
static BACKWARD: Source = Source { name: "pad_backward", parts: &[include_str!("backward.cu")] };

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

    struct PadBackwardArgs<const RANK: usize> {
        d: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        n: i64,
        /// Axis by axis: the size of y, the margins of d before and after it, and the stride of d.
        size: [i64; RANK],
        before: [i64; RANK],
        after: [i64; RANK],
        strides: [i64; RANK],
    }
}

fn word(mode: PadMode) -> &'static str {
    match mode {
        PadMode::Constant(_) => "CONSTANT",
        PadMode::Reflect => "REFLECT",
        PadMode::Replicate => "REPLICATE",
        PadMode::Circular => "CIRCULAR",
    }
}

/// Whether an axis and an unpadded one after it can be padded as one axis, with all counts multiplied.
fn moves_blocks(mode: PadMode) -> bool {
    matches!(mode, PadMode::Constant(_) | PadMode::Circular)
}

/// The axes with those merged that are padded alike as one.
fn merged(axes: impl Iterator<Item = Axis>, mode: PadMode) -> Axes {
    let mut all = Axes::new();
    for axis in axes {
        match all.last_mut() {
            Some(last) if axis.is_unpadded() && (last.is_unpadded() || moves_blocks(mode)) => {
                last.size *= axis.size;
                last.before *= axis.size;
                last.after *= axis.size;
            }
            _ => all.push(axis),
        }
    }
    all
}

fn each(axes: &[Axis], of: impl Fn(&Axis) -> usize) -> SmallVec<[usize; 6]> {
    axes.iter().map(of).collect()
}

/// The strides of a contiguous tensor whose axes have these sizes.
fn strides(axes: &[Axis], of: impl Fn(&Axis) -> usize) -> Dims {
    row_major(&axes.iter().map(of).collect())
}

pub(super) fn pad(op: &Pad, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let mut axes = merged(op.axes(args.read_shape(0)), op.mode);
    // The last axis in units that are as large as possible.
    let bytes = dtype.size();
    let parts = axes.last().map_or([1, 0, 0], |last| [last.size, last.before, last.after]);
    let alignments = [args.input(0).alignment(), args.output(0).alignment()];
    let unit = match axes.last() {
        Some(last) if !last.is_unpadded() && !moves_blocks(op.mode) => bytes,
        _ => units::largest(parts.map(|n| n * bytes).into_iter().chain(alignments)),
    };
    if let Some(last) = axes.last_mut() {
        let units = |n: usize| n * bytes / unit;
        *last = Axis { size: units(last.size), before: units(last.before), after: units(last.after) };
    }
    let rank = axes.len().max(1).next_power_of_two();
    let all = n * bytes / unit;
    let spec = units::constants(KernelSpec::new(&PAD, "pad"), unit, all).int("RANK", rank as i64);
    with_rank!(args.op(), rank, RANK => {
        let job = PadArgs::<RANK> {
            x: args.read(0),
            y: args.write(0),
            n: all as i64,
            value: units::value(dtype, op.value(dtype)),
            shape: padded(&each(&axes, Axis::padded), 1),
            before: padded(&each(&axes, |a| a.before), 0),
            size: padded(&each(&axes, |a| a.size), 1),
            strides: padded(&strides(&axes, |a| a.size), 0),
        };
        args.kernel(spec.word("MODE", word(op.mode)), units::grid(args, all), &job)
    })
}

pub(super) fn backward(op: &PadBackward, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    if n == 0 {
        return Ok(());
    }
    let axes = merged(op.axes.iter().copied(), op.mode);
    let rank = axes.len().max(1).next_power_of_two();
    let spec = KernelSpec::new(&BACKWARD, "pad_backward").dtype("ELEMENT", args.write_dtype(0));
    let spec = spec.word("INDEX", units::index_type(args.read_shape(0).numel())).int("RANK", rank as i64);
    let spec = spec.word("MODE", word(op.mode)).flag("ADD", args.accumulate(0));
    with_rank!(args.op(), rank, RANK => {
        let job = PadBackwardArgs::<RANK> {
            d: args.read(0),
            y: args.write(0),
            n: n as i64,
            size: padded(&each(&axes, |a| a.size), 1),
            before: padded(&each(&axes, |a| a.before), 0),
            after: padded(&each(&axes, |a| a.after), 0),
            strides: padded(&strides(&axes, Axis::padded), 0),
        };
        args.kernel(spec, units::grid(args, n), &job)
    })
}
