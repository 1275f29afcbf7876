//! Attention on the CPU.

mod kernel;

use super::{Attention, AttentionBackward};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::widen::{Widened, narrow};
use crate::error::Result;
use crate::ops::dropout;
use crate::tensor::Layout;
use kernel::{
    Added, Attention as Sizes, DroppedWeights, Gradients, HeadLayout, Heads, ScoreGradients, Scores,
};

/// The layout of `[batch, tokens, heads, dim]` relative to the first element of `whole`.
fn place(layout: &Layout, whole: &Layout) -> HeadLayout {
    let s = layout.strides();
    let offset = layout.offset() - whole.offset();
    HeadLayout { offset, batch_stride: s[0], token_stride: s[1], head_stride: s[2] }
}

/// `kept` are the weights that dropout keeps.
fn sizes<'a, R: Real>(op: &Attention, [q, k, _]: &[Layout; 3], kept: Option<&'a [i64]>) -> Sizes<'a, R> {
    let (q, k) = (q.shape(), k.shape());
    Sizes {
        batch: q[0],
        heads: q[2],
        queries: q[1],
        keys: k[1],
        head_dim: q[3],
        scale: R::c(op.scale),
        causal: op.causal,
        past: op.past.min(k[1]),
        dropped: op.dropout.zip(kept).map(|(p, kept)| DroppedWeights {
            kept,
            keys: k[1],
            scale: R::c(dropout::scale(p)),
        }),
    }
}

/// Queries, keys and values, from one packed operand or from three.
fn heads<'a, T: Stored>(
    op: &Attention,
    args: &'a HostArgs<'_>,
    layouts: &[Layout; 3],
) -> Result<[Heads<'a, T>; 3]> {
    let of = |i: usize| -> Result<Heads<'a, T>> {
        let operand = if op.packed { 0 } else { i };
        Ok(Heads::new(args.read::<T>(operand)?, place(&layouts[i], args.read_layout(operand))))
    };
    Ok([of(0)?, of(1)?, of(2)?])
}

/// The scores to add, of which operand `i` has the layout.
fn added<'a, R>(args: &HostArgs<'_>, i: Option<usize>, x: &'a Option<Widened<'_, R>>) -> Option<Added<'a, R>>
where
    R: Real,
{
    i.zip(x.as_ref()).map(|(i, x)| {
        let s = args.read_layout(i).strides();
        Added { data: x.get(), strides: [s[0], s[1], s[2]] }
    })
}

/// Operand `i` in the arithmetic type, if there is one.
fn optional<'a, T: Stored, R: Real>(
    args: &'a HostArgs<'_>,
    i: Option<usize>,
) -> Result<Option<Widened<'a, R>>> {
    i.map(|i| Ok(Widened::<R>::of::<T>(args.read::<T>(i)?))).transpose()
}

/// Calls `f` with output `o` in the arithmetic type, if there is one.
fn write_optional<T: Stored, R: Real>(
    args: &HostArgs<'_>,
    o: Option<usize>,
    f: impl FnOnce(Option<&mut [R]>),
) -> Result<()> {
    match o {
        None => f(None),
        Some(o) => narrow(args.write::<T>(o)?, false, |x| f(Some(x))),
    }
    Ok(())
}

pub(super) fn forward(op: &Attention, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => forward_of::<T, R>(op, args))
}

fn forward_of<T: Stored, R: Real>(op: &Attention, args: &HostArgs<'_>) -> Result<()> {
    let layouts = op.layouts(|i| args.read_layout(i));
    let kept = op.kept().map(|i| args.read::<i64>(i)).transpose()?;
    let sizes = sizes::<R>(op, &layouts, kept);
    let qkv = heads::<T>(op, args, &layouts)?;
    let (largest, inverse) = (args.write::<R>(1)?, args.write::<R>(2)?);
    let before = optional::<T, R>(args, op.before())?;
    let to = args.write_layout(0);
    let o = args.write::<T>(0)?;
    write_optional::<T, R>(args, op.scores(), |after| {
        let scores = Scores { before: added(args, op.before(), &before), after };
        kernel::forward(&sizes, qkv, o, place(to, to), [largest, inverse], scores);
    })
}

pub(super) fn backward(op: &AttentionBackward, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => backward_of::<T, R>(op, args))
}

fn backward_of<T: Stored, R: Real>(gradient: &AttentionBackward, args: &HostArgs<'_>) -> Result<()> {
    let op = &gradient.attention;
    let kept = gradient.kept().map(|i| args.read::<i64>(i)).transpose()?;
    let layouts = op.layouts(|i| args.read_layout(i));
    let sizes = sizes::<R>(op, &layouts, kept);
    let count = op.operands();
    let qkv = heads::<T>(op, args, &layouts)?;
    let from = args.read_layout(count);
    let d_o = Heads::new(args.read::<T>(count)?, place(from, from));
    let kept = [args.read::<R>(count + 1)?, args.read::<R>(count + 2)?];
    let (before, d_after) =
        (optional::<T, R>(args, gradient.before())?, optional::<T, R>(args, gradient.d_after())?);
    let gradients = op.layouts(|o| args.write_layout(o));
    let places = [0, 1, 2].map(|i| place(&gradients[i], args.write_layout(if op.packed { 0 } else { i })));
    let to = match op.packed {
        true => Gradients::Packed(args.write::<T>(0)?),
        false => Gradients::Separate([args.write::<T>(0)?, args.write::<T>(1)?, args.write::<T>(2)?]),
    };
    write_optional::<T, R>(args, gradient.d_before(), |d_before| {
        let before = added(args, gradient.before(), &before);
        let scores = ScoreGradients { before, d_after: d_after.as_ref().map(Widened::get), d_before };
        kernel::backward(&sizes, qkv, d_o, kept, to, places, scores);
    })
}
