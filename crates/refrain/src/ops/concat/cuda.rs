//! Tensors one after the other on CUDA.

use smallvec::SmallVec;

use super::Concat;
use crate::device::cuda::{CudaArgs, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::units::{self, UNITS};

static SOURCE: Source = Source { name: "concat", parts: &[UNITS, include_str!("kernel.cu")] };

/// Operands at most that one launch takes.
const PARTS: usize = 16;

pub(super) fn concat(op: &Concat, args: &mut CudaArgs<'_>) -> Result<()> {
    let (to, size) = (args.write_shape(0), args.write_dtype(0).size());
    if to.numel() == 0 {
        return Ok(());
    }
    let rows: usize = to[..op.axis].iter().product();
    let inner = to[op.axis + 1..].iter().product::<usize>() * size;
    let parts: SmallVec<[(u64, usize); 16]> = (op.sizes.iter().enumerate())
        .map(|(i, n)| (args.read(i), n * inner))
        .filter(|&(_, bytes)| bytes > 0)
        .collect();
    let unit = units::largest(
        parts.iter().flat_map(|&(x, bytes)| [x, bytes as u64]).chain(std::iter::once(args.write(0))),
    );
    let width = parts.iter().map(|(_, bytes)| bytes / unit).sum();
    let mut start = 0;
    for group in parts.chunks(PARTS) {
        let mut words: SmallVec<[u64; 40]> = SmallVec::from_slice(&[args.write(0)]);
        words.extend([rows, width, start].map(|n| n as u64));
        words.extend(group.iter().map(|&(x, _)| x));
        let parts = group.len().next_power_of_two();
        words.resize(4 + parts, 0);
        let mut end = 0;
        for &(_, bytes) in group {
            end += bytes / unit;
            words.push(end as u64);
        }
        words.resize(4 + 2 * parts, end as u64);
        let n = rows * end;
        let spec = units::constants(Spec::new(&SOURCE, "concat"), unit, n).int("PARTS", parts as i64);
        args.kernel(spec, units::grid(args, n), &Params::new().words(&words))?;
        start += end;
    }
    Ok(())
}
