//! `flip` and `roll` on CUDA.

use smallvec::SmallVec;

use super::{Order, Reorder};
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, padded, params, with_rank};
use crate::error::Result;
use crate::kernels::units;

static SOURCE: Source = Source { name: "reorder", parts: &[include_str!("kernel.cu")] };

params! {
    struct ReorderArgs<const RANK: usize> {
        x: Pointer = "const UNIT*",
        y: Pointer = "UNIT*",
        n: i64,
        /// Axis by axis: its size, where the first element comes from, whether it is reversed.
        shape: [i64; RANK],
        start: [i64; RANK],
        reversed: [i64; RANK],
    }
}

pub(super) fn reorder(op: &Reorder, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    // An axis in its old order merges with the one before it, unless that is reversed.
    let mut axes: SmallVec<[(usize, Order); 6]> = SmallVec::new();
    for (&size, &order) in args.read_shape(0).iter().zip(&op.axes) {
        let unmoved = order == Order { start: 0, reversed: false };
        match axes.last_mut() {
            Some((last, before)) if unmoved && !before.reversed => {
                *last *= size;
                before.start *= size;
            }
            _ => axes.push((size, order)),
        }
    }
    // The last axis in units that are as large as possible, unless it is reversed.
    let bytes = dtype.size();
    let unit = match axes.last_mut() {
        Some((size, order)) if !order.reversed => {
            let alignments = [args.input(0).alignment(), args.output(0).alignment()];
            let unit = units::largest([*size * bytes, order.start * bytes].into_iter().chain(alignments));
            *size = *size * bytes / unit;
            order.start = order.start * bytes / unit;
            unit
        }
        _ => bytes,
    };
    let all = n * bytes / unit;
    let rank = axes.len().max(1).next_power_of_two();
    let row = |of: fn(&(usize, Order)) -> usize| -> SmallVec<[usize; 6]> { axes.iter().map(of).collect() };
    let spec = units::constants(KernelSpec::new(&SOURCE, "reorder"), unit, all).int("RANK", rank as i64);
    with_rank!(args.op(), rank, RANK => {
        let kernel_args = ReorderArgs::<RANK> {
            x: args.read(0),
            y: args.write(0),
            n: all as i64,
            shape: padded(&row(|a| a.0), 1),
            start: padded(&row(|a| a.1.start), 0),
            reversed: padded(&row(|a| usize::from(a.1.reversed)), 0),
        };
        args.kernel(spec, units::grid(args, all), &kernel_args)
    })
}
