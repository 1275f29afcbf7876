//! Collectives of hosts: values go through the communicator's transport.

use super::Collective;
use crate::device::cpu::numeric::{Number, Stored, with_stored};
use crate::device::{CollectiveCall, HostArgs, ReduceOp};
use crate::error::{Error, Result};
use crate::types::DType;

pub(super) fn run(op: &Collective, args: &mut HostArgs<'_>) -> Result<()> {
    let dtype = args.write_dtype(0);
    with_stored!(dtype, T => match dtype.accumulator() {
        DType::F64 => typed::<T, f64>(op, args),
        DType::F32 => typed::<T, f32>(op, args),
        _ => typed::<T, i64>(op, args),
    })
}

fn typed<T: Stored, N: Number>(op: &Collective, args: &mut HostArgs<'_>) -> Result<()> {
    let (communicator, call) = (&op.communicator, op.call);
    let dtype = args.write_dtype(0);
    let y = args.write::<T>(0)?;
    let own: &[T] = match args.reads() {
        0 => &[],
        _ if args.in_place(0).is_some() => y,
        _ => args.read::<T>(0)?,
    };
    let (elements, expected) = (own.len(), size_of_val(own));
    // Only the root's values count.
    let silent = matches!(call, CollectiveCall::Broadcast { root } if root != communicator.rank());
    let bytes: &[u8] = if silent { &[] } else { bytemuck::cast_slice(own) };
    let all = communicator.exchange(args.op(), &call.describe(elements, dtype), bytes)?;
    // The elements of a rank from `first` on.
    let of = |rank: usize, first: usize, n: usize| {
        let bytes = all[rank]
            .get(first * size_of::<T>()..(first + n) * size_of::<T>())
            .filter(|_| all[rank].len() == expected);
        let bytes = bytes.ok_or_else(|| Error::Collective {
            op: args.op(),
            rank: communicator.rank(),
            message: format!(
                "the transport gave {} bytes of rank {rank} instead of {expected}",
                all[rank].len()
            ),
        })?;
        Ok::<Vec<T>, Error>(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    };
    let n = y.len();
    match call {
        CollectiveCall::AllReduce(by) => reduce::<T, N>(y, by, all.len(), |rank| of(rank, 0, n)),
        CollectiveCall::ReduceScatter(by) => {
            reduce::<T, N>(y, by, all.len(), |rank| of(rank, n * communicator.rank(), n))
        }
        CollectiveCall::Broadcast { root } => {
            y.copy_from_slice(&of(root, 0, n)?);
            Ok(())
        }
        CollectiveCall::AllGather => (0..all.len()).try_for_each(|rank| {
            y[rank * elements..(rank + 1) * elements].copy_from_slice(&of(rank, 0, elements)?);
            Ok(())
        }),
        CollectiveCall::Barrier => {
            y.fill(T::from_number(N::ZERO));
            Ok(())
        }
    }
}

/// Adds the parts of the ranks in their order, in the type of the arithmetic, and rounds once.
fn reduce<T: Stored, N: Number>(
    y: &mut [T],
    by: ReduceOp,
    ranks: usize,
    part: impl Fn(usize) -> Result<Vec<T>>,
) -> Result<()> {
    let mut sums: Vec<N> = part(0)?.into_iter().map(T::to).collect();
    for rank in 1..ranks {
        sums.iter_mut().zip(part(rank)?).for_each(|(sum, x)| *sum = sum.plus(x.to()));
    }
    let count = N::from_i64(ranks as i64);
    let mean = |sum: N| if by == ReduceOp::Mean { sum.over(count) } else { sum };
    y.iter_mut().zip(sums).for_each(|(y, sum)| *y = T::from_number(mean(sum)));
    Ok(())
}
