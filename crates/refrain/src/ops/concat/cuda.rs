//! Concatenation on CUDA.

use smallvec::SmallVec;

use super::Concat;
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::units;

static SOURCE: Source = Source { name: "concat", parts: &[include_str!("kernel.cu")] };

/// The maximum number of operands per launch.
const PARTS: usize = 16;

params! {
    struct ConcatArgs {
        y: Pointer = "UNIT*",
        rows: i64,
        /// Of a row of y, and where the parts begin in it.
        width: i64,
        start: i64,
        x: [Pointer; PARTS] = "const UNIT*",
        /// Where each part ends within the row; parts that are not there end where the last one does.
        ends: [i64; PARTS],
    }
}

pub(super) fn concat(op: &Concat, args: &mut CudaArgs<'_>) -> Result<()> {
    let (to, size) = (args.write_shape(0), args.write_dtype(0).size());
    if to.numel() == 0 {
        return Ok(());
    }
    let rows: usize = to[..op.axis].iter().product();
    let inner = to[op.axis + 1..].iter().product::<usize>() * size;
    let parts: SmallVec<[(usize, usize); PARTS]> =
        (op.sizes.iter().enumerate()).map(|(i, n)| (i, n * inner)).filter(|&(_, bytes)| bytes > 0).collect();
    let unit = units::largest(
        (parts.iter().flat_map(|&(i, bytes)| [args.input(i).alignment(), bytes]))
            .chain(std::iter::once(args.output(0).alignment())),
    );
    let width: usize = parts.iter().map(|(_, bytes)| bytes / unit).sum();
    let mut start: usize = 0;
    for group in parts.chunks(PARTS) {
        let mut kernel_args = ConcatArgs {
            y: args.write(0),
            rows: rows as i64,
            width: width as i64,
            start: start as i64,
            x: [Pointer::NOTHING; PARTS],
            ends: [0; PARTS],
        };
        let mut end = 0;
        for (n, &(i, bytes)) in group.iter().enumerate() {
            end += bytes / unit;
            kernel_args.x[n] = args.read(i);
            kernel_args.ends[n] = end as i64;
        }
        kernel_args.ends[group.len()..].fill(end as i64);
        let n = rows * end;
        let parts = group.len().next_power_of_two();
        let spec = units::constants(KernelSpec::new(&SOURCE, "concat"), unit, n).int("PARTS", parts as i64);
        args.kernel(spec, units::grid(args, n), &kernel_args)?;
        start += end;
    }
    Ok(())
}
