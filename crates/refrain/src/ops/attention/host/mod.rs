//! Attention on the CPU.

mod kernel;

use smallvec::SmallVec;

use super::Attention;
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::parallel;
use crate::device::cpu::widen::{Widened, narrow};
use crate::error::Result;
use crate::tensor::Layout;
use kernel::{Attention as Sizes, Gradients, HeadLayout, Heads};

/// The layout of `[batch, tokens, heads, dim]` relative to the first element of `whole`.
fn place(layout: &Layout, whole: &Layout) -> HeadLayout {
    let s = layout.strides();
    let offset = layout.offset() - whole.offset();
    HeadLayout { offset, batch_stride: s[0], token_stride: s[1], head_stride: s[2] }
}

fn sizes<R: Real>(op: &Attention, [q, k, _]: &[Layout; 3]) -> Sizes<R> {
    let (q, k) = (q.shape(), k.shape());
    Sizes {
        batch: q[0],
        heads: q[2],
        queries: q[1],
        keys: k[1],
        head_dim: q[3],
        scale: R::c(op.scale),
        causal: op.causal,
    }
}

/// Queries, keys and values, from one packed operand or from three.
fn heads<'a, R: Real>(
    args: &HostArgs<'_>,
    x: &'a [Widened<'_, R>],
    layouts: &[Layout; 3],
) -> [Heads<'a, R>; 3] {
    [0, 1, 2].map(|i| {
        let operand = if x.len() == 1 { 0 } else { i };
        Heads { data: x[operand].get(), layout: place(&layouts[i], args.read_layout(operand)) }
    })
}

pub(super) fn forward(op: &Attention, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => forward_of::<T, R>(op, args))
}

fn widened<'a, T: Stored, R: Real>(
    args: &'a HostArgs<'_>,
    count: usize,
) -> Result<SmallVec<[Widened<'a, R>; 4]>> {
    (0..count).map(|i| Ok(Widened::<R>::of::<T>(args.read::<T>(i)?))).collect()
}

fn forward_of<T: Stored, R: Real>(op: &Attention, args: &HostArgs<'_>) -> Result<()> {
    let layouts = op.layouts(|i| args.read_layout(i));
    let sizes = sizes::<R>(op, &layouts);
    let x = widened::<T, R>(args, op.operands())?;
    let qkv = heads(args, &x, &layouts);
    let (largest, inverse) = (args.write::<R>(1)?, args.write::<R>(2)?);
    let to = args.write_layout(0);
    narrow(args.write::<T>(0)?, false, |o| {
        parallel::inside(|| kernel::forward(&sizes, qkv, o, place(to, to), [largest, inverse]));
    });
    Ok(())
}

pub(super) fn backward(op: &Attention, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => backward_of::<T, R>(op, args))
}

fn backward_of<T: Stored, R: Real>(op: &Attention, args: &HostArgs<'_>) -> Result<()> {
    let layouts = op.layouts(|i| args.read_layout(i));
    let sizes = sizes::<R>(op, &layouts);
    let count = op.operands();
    let x = widened::<T, R>(args, count + 1)?;
    let qkv = heads(args, &x[..count], &layouts);
    let from = args.read_layout(count);
    let d_o = Heads { data: x[count].get(), layout: place(from, from) };
    let kept = [args.read::<R>(count + 1)?, args.read::<R>(count + 2)?];
    let gradients = op.layouts(|o| args.write_layout(o));
    let places = [0, 1, 2].map(|i| place(&gradients[i], args.write_layout(if op.packed { 0 } else { i })));
    let run = |gradients: Gradients<'_, R>| {
        parallel::inside(|| kernel::backward(&sizes, qkv, d_o, kept, gradients, places));
    };
    if op.packed {
        narrow(args.write::<T>(0)?, false, |all| run(Gradients::Packed(all)));
        return Ok(());
    }
    let (dq, dk, dv) = (args.write::<T>(0)?, args.write::<T>(1)?, args.write::<T>(2)?);
    narrow(dq, false, |dq| {
        narrow(dk, false, |dk| narrow(dv, false, |dv| run(Gradients::Separate([dq, dk, dv]))));
    });
    Ok(())
}
