//! Copies without arithmetic on the CPU: elements of one size are moved, whatever their dtype.

use bytemuck::Pod;

use super::LoopPlan;
use super::host::pieces;
use super::read::{copy_rectangle, read_tile};
use crate::device::HostArgs;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::tensor::Layout;

/// Copies the operand to the output, which has its dtype.
pub(super) fn run(args: &HostArgs<'_>) -> Result<()> {
    match args.write_dtype(0).size() {
        1 => moved::<u8>(args),
        2 => moved::<u16>(args),
        4 => moved::<u32>(args),
        _ => moved::<u64>(args),
    }
}

/// The elements of an operand in row-major order.
pub(crate) fn contiguous<T: Pod + Send + Sync>(layout: &Layout, from: &[T]) -> Scratch<T> {
    let mut to = Scratch::new(layout.numel());
    let row_major = Layout::contiguous(layout.shape().clone());
    copy(&LoopPlan::new(&[&row_major, layout]), from, &mut to);
    to
}

/// Writes one value everywhere.
pub(crate) fn fill<T: Pod + Send + Sync>(args: &HostArgs<'_>, value: T) -> Result<()> {
    let plan = LoopPlan::new(&[args.write_layout(0)]);
    let to = args.write::<T>(0)?;
    if to.is_empty() {
        return Ok(());
    }
    let inner = plan.shape[plan.shape.len() - 1];
    pieces(&plan, to, |elements, base, to| {
        simd(
            #[inline(always)]
            || {
                if plan.is_dense(0) {
                    return to.fill(value);
                }
                let len = inner.min(elements.len());
                for start in elements.step_by(len) {
                    let ([offset], [stride]) = (plan.offsets(start), plan.inner_strides());
                    to[offset - base..]
                        .iter_mut()
                        .step_by(stride.max(1))
                        .take(len)
                        .for_each(|to| *to = value);
                }
            },
        );
    });
    Ok(())
}

fn moved<U: Pod + Send + Sync>(args: &HostArgs<'_>) -> Result<()> {
    if args.in_place(0).is_none() {
        let plan = LoopPlan::new(&[args.write_layout(0), args.read_layout(0)]);
        copy(&plan, args.read::<U>(0)?, args.write::<U>(0)?);
    }
    Ok(())
}

/// Copies the operand, whose elements have 16 bits, and changes their bits to `(bits & and) ^ xor`. False, and nothing is done, if
/// there are gaps in the result, or it is a sum.
pub(crate) fn bits(args: &HostArgs<'_>, and: u16, xor: u16) -> Result<bool> {
    let result = LoopPlan::new(&[args.write_layout(0)]);
    if args.accumulate(0) || !result.is_dense(0) || result.numel() == 0 {
        return Ok(false);
    }
    let y = args.write::<u16>(0)?;
    let plan = LoopPlan::new(&[args.write_layout(0), args.read_layout(0)]);
    let [_, step] = plan.inner_strides();
    let x = match args.in_place(0) {
        Some(_) => None,
        None => Some(args.read::<u16>(0)?),
    };
    match x {
        Some(x) if step == 1 => pieces(&plan, y, |elements, _, y| {
            read_tile(
                &plan,
                (1, elements.start),
                y,
                #[inline(always)]
                |r, y| {
                    for (row, y) in y.chunks_exact_mut(r.len).enumerate() {
                        let x = &x[r.offset + row * r.row_stride..][..r.len];
                        y.iter_mut().zip(x).for_each(|(y, x)| *y = (x & and) ^ xor);
                    }
                },
            );
        }),
        _ => {
            if let Some(x) = x {
                copy(&plan, x, y);
            }
            pieces(&result, y, |_, _, y| {
                simd(
                    #[inline(always)]
                    || y.iter_mut().for_each(|y| *y = (*y & and) ^ xor),
                );
            });
        }
    }
    Ok(true)
}

/// Copies along a plan of the destination and the source.
fn copy<U: Pod + Send + Sync>(plan: &LoopPlan, from: &[U], to: &mut [U]) {
    if plan.numel() == 0 {
        return;
    }
    let (is_dense, inner) = (plan.is_dense(0), plan.shape[plan.shape.len() - 1]);
    pieces(plan, to, |elements, base, to| {
        let (first, len) = (elements.start, elements.len());
        match is_dense {
            true if plan.is_dense(1) => to.copy_from_slice(&from[first..][..len]),
            true => read_tile(
                plan,
                (1, first),
                to,
                #[inline(always)]
                |r, to| copy_rectangle(from, r, to),
            ),
            // Row by row. A piece of a result with gaps has whole rows, or is a part of the only one.
            false => {
                let len = inner.min(len);
                for start in elements.step_by(len) {
                    let [to_offset, from_offset] = plan.offsets(start);
                    let [to_stride, from_stride] = plan.inner_strides();
                    let to = &mut to[to_offset - base..];
                    let from = &from[from_offset..];
                    match (to_stride, from_stride) {
                        (1, 1) => to[..len].copy_from_slice(&from[..len]),
                        _ => (0..len).for_each(|i| to[i * to_stride] = from[i * from_stride]),
                    }
                }
            }
        }
    });
}
