//! Attention on the CPU.

use crate::device::HostArgs;
use crate::device::cpu::attention::{self, Attention, HeadLayout, Heads};
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::parallel;
use crate::device::cpu::widen::{Widened, narrow};
use crate::error::Result;
use crate::tensor::{Layout, Shape};

/// The place of `[batch, tokens, heads, dim]` from its first element.
fn place(layout: &Layout) -> HeadLayout {
    let s = layout.strides();
    HeadLayout { offset: 0, batch_stride: s[0], token_stride: s[1], head_stride: s[2] }
}

/// The place of a result `[batch, tokens, heads, dim]` without holes.
fn row_major(shape: &Shape) -> HeadLayout {
    place(&Layout::contiguous(shape.clone()))
}

fn sizes<R: Real>(args: &HostArgs<'_>, scale: f64, causal: bool) -> Attention<R> {
    let (q, k) = (args.read_shape(0), args.read_shape(1));
    Attention {
        batch: q[0],
        heads: q[2],
        queries: q[1],
        keys: k[1],
        head_dim: q[3],
        scale: R::c(scale),
        causal,
    }
}

fn heads<'a, R>(args: &HostArgs<'_>, i: usize, x: &'a [R]) -> Heads<'a, R> {
    Heads { data: x, layout: place(args.read_layout(i)) }
}

pub(super) fn forward(scale: f64, causal: bool, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => forward_of::<T, R>(scale, causal, args))
}

fn forward_of<T: Stored, R: Real>(scale: f64, causal: bool, args: &HostArgs<'_>) -> Result<()> {
    let sizes = sizes::<R>(args, scale, causal);
    let x = [args.read::<T>(0)?, args.read::<T>(1)?, args.read::<T>(2)?].map(Widened::<R>::of::<T>);
    let qkv = [0, 1, 2].map(|i| heads(args, i, x[i].get()));
    let sums = args.write::<R>(1)?;
    let to = row_major(args.write_shape(0));
    narrow(args.write::<T>(0)?, false, |o| {
        parallel::inside(|| attention::forward(&sizes, qkv, o, to, sums));
    });
    Ok(())
}

pub(super) fn backward(scale: f64, causal: bool, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => backward_of::<T, R>(scale, causal, args))
}

fn backward_of<T: Stored, R: Real>(scale: f64, causal: bool, args: &HostArgs<'_>) -> Result<()> {
    let sizes = sizes::<R>(args, scale, causal);
    let read = |i: usize| Ok(Widened::<R>::of::<T>(args.read::<T>(i)?));
    let x = [read(0)?, read(1)?, read(2)?, read(3)?];
    let qkv = [0, 1, 2].map(|i| heads(args, i, x[i].get()));
    let d_o = heads(args, 3, x[3].get());
    let sums = args.read::<R>(4)?;
    let places = [0, 1, 2].map(|o| row_major(args.write_shape(o)));
    let (dq, dk, dv) = (args.write::<T>(0)?, args.write::<T>(1)?, args.write::<T>(2)?);
    narrow(dq, false, |dq| {
        narrow(dk, false, |dk| {
            narrow(dv, false, |dv| {
                let to = [(dq, places[0]), (dk, places[1]), (dv, places[2])];
                parallel::inside(|| attention::backward(&sizes, qkv, d_o, sums, to));
            });
        });
    });
    Ok(())
}
