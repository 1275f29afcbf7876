//! The recurrence on the CPU: tasks take some sequences each through all time steps.

use rayon::prelude::*;

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, convert, store, with_float};
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::device::cpu::widen::Widened;
use crate::error::Result;
use crate::kernels::products::host::Matrix;
use crate::kernels::recurrent::Sizes;
use crate::kernels::recurrent::host::{Packed, put, rows_a_task};

pub(super) fn forward(keep: bool, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => forward_of::<T, R>(keep, args))
}

fn forward_of<T: Stored, R: Real>(keep: bool, args: &HostArgs<'_>) -> Result<()> {
    let sizes = Sizes::of(args.write_shape(0));
    let Sizes { batch, steps, hidden } = sizes;
    if batch == 0 {
        return Ok(());
    }
    let (x, first) = (args.read::<T>(0)?, args.read::<T>(3)?);
    let (w, b) = (Widened::<R>::rounded(args, 1, args.read_dtype(0))?, Widened::<R>::operand(args, 2)?);
    let weight = Packed::of(Matrix::row_major(w.get(), 3 * hidden, hidden).t(), Some(b.get()));
    let (rows, states) = (rows_a_task(batch), args.write::<T>(0)?);
    let task = |task: usize, y: &mut [T], kept: Option<&mut [T]>| {
        let (from, count) = (task * rows, y.len() / (steps * hidden));
        let x = &x[from * steps * 3 * hidden..][..count * steps * 3 * hidden];
        sequences(sizes, &weight, x, &first[from * hidden..][..count * hidden], y, kept);
    };
    let states = states.par_chunks_mut(rows * steps * hidden);
    match keep {
        false => parallel::for_each(true, states.enumerate(), |(i, y)| task(i, y, None)),
        true => {
            let kept = args.write::<T>(1)?.par_chunks_mut(rows * steps * 4 * hidden);
            parallel::for_each(true, states.zip(kept).enumerate(), |(i, (y, kept))| task(i, y, Some(kept)));
        }
    }
    Ok(())
}

/// Some sequences through all time steps.
fn sequences<T: Stored, R: Real>(
    Sizes { steps, hidden, .. }: Sizes,
    weight: &Packed<R>,
    x: &[T],
    first: &[T],
    y: &mut [T],
    mut kept: Option<&mut [T]>,
) {
    let count = first.len() / hidden;
    let mut state = Scratch::<R>::new(count * hidden);
    let mut gates = Scratch::<R>::new(count * 3 * hidden);
    let mut new = Scratch::<R>::new(hidden);
    convert(first, &mut state);
    for t in 0..steps {
        weight.product(&state, &mut gates, false);
        simd(
            #[inline(always)]
            || {
                for (i, (gates, state)) in
                    gates.chunks_exact_mut(3 * hidden).zip(state.chunks_exact_mut(hidden)).enumerate()
                {
                    let row = i * steps + t;
                    let x = &x[row * 3 * hidden..][..3 * hidden];
                    step(x, gates, &mut new, state, &mut y[row * hidden..][..hidden]);
                    if let Some(kept) = &mut kept {
                        let (rz, nq) = kept[row * 4 * hidden..][..4 * hidden].split_at_mut(2 * hidden);
                        put(&gates[..2 * hidden], rz);
                        put(&new, &mut nq[..hidden]);
                        put(&gates[2 * hidden..], &mut nq[hidden..]);
                    }
                }
            },
        );
    }
}

/// One time step of one sequence. `gates` begins as what the state contributes, and ends as `r`, `z` and its last part.
#[inline(always)]
fn step<T: Stored, R: Real>(x: &[T], gates: &mut [R], new: &mut [R], state: &mut [R], y: &mut [T]) {
    let hidden = state.len();
    let (rz, q) = gates.split_at_mut(2 * hidden);
    let (x_rz, x_n) = x.split_at(2 * hidden);
    for (gate, &x) in rz.iter_mut().zip(x_rz) {
        *gate = (x.to::<R>() + *gate).sigmoid();
    }
    for (((n, &x), &r), &q) in new.iter_mut().zip(x_n).zip(&*rz).zip(&*q) {
        *n = (x.to::<R>() + r * q).tanh();
    }
    for (((h, &n), &z), y) in state.iter_mut().zip(&*new).zip(&rz[hidden..]).zip(y) {
        *y = T::from_number(n + z * (*h - n));
        *h = y.to();
    }
}

pub(super) fn backward(args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => backward_of::<T, R>(args))
}

/// The operands of the backward pass.
#[derive(Clone, Copy)]
struct Kept<'a, T> {
    states: &'a [T],
    gates: &'a [T],
    first: &'a [T],
    dy: &'a [T],
}

/// The gradients of some sequences.
struct Parts<'a, T> {
    of_input: &'a mut [T],
    of_first: &'a mut [T],
    of_state: &'a mut [T],
}

fn backward_of<T: Stored, R: Real>(args: &HostArgs<'_>) -> Result<()> {
    let sizes = Sizes::of(args.read_shape(0));
    let Sizes { batch, steps, hidden } = sizes;
    if batch == 0 {
        return Ok(());
    }
    let kept =
        Kept { states: args.read::<T>(0)?, gates: args.read(1)?, first: args.read(3)?, dy: args.read(4)? };
    let w = Widened::<R>::rounded(args, 2, args.read_dtype(0))?;
    let weight = Packed::of(Matrix::row_major(w.get(), 3 * hidden, hidden), None);
    let rows = rows_a_task(batch);
    let of_input = args.write::<T>(0)?.par_chunks_mut(rows * steps * 3 * hidden);
    let of_first = args.write::<T>(1)?.par_chunks_mut(rows * hidden);
    let of_state = args.write::<T>(2)?.par_chunks_mut(rows * steps * 3 * hidden);
    let tasks = of_input.zip(of_first).zip(of_state).enumerate();
    parallel::for_each(true, tasks, |(i, ((of_input, of_first), of_state))| {
        sequences_backward(sizes, &weight, kept, i * rows, Parts { of_input, of_first, of_state });
    });
    Ok(())
}

/// Some sequences, from sequence `from` on, through all time steps in reverse.
fn sequences_backward<T: Stored, R: Real>(
    Sizes { steps, hidden, .. }: Sizes,
    weight: &Packed<R>,
    kept: Kept<'_, T>,
    from: usize,
    parts: Parts<'_, T>,
) {
    let count = parts.of_first.len() / hidden;
    let mut carried = Scratch::<R>::filled(count * hidden, R::ZERO);
    let mut gates = Scratch::<R>::new(count * 3 * hidden);
    let mut new = Scratch::<R>::new(hidden);
    for t in (0..steps).rev() {
        simd(
            #[inline(always)]
            || {
                for (i, (gates, carried)) in
                    gates.chunks_exact_mut(3 * hidden).zip(carried.chunks_exact_mut(hidden)).enumerate()
                {
                    let row = (from + i) * steps + t;
                    let before = match t {
                        0 => &kept.first[(from + i) * hidden..][..hidden],
                        _ => &kept.states[(row - 1) * hidden..][..hidden],
                    };
                    let own = &kept.gates[row * 4 * hidden..][..4 * hidden];
                    step_backward(own, before, &kept.dy[row * hidden..][..hidden], carried, gates, &mut new);
                    let to = (i * steps + t) * 3 * hidden;
                    let of_input = &mut parts.of_input[to..][..3 * hidden];
                    put(&gates[..2 * hidden], &mut of_input[..2 * hidden]);
                    put(&new, &mut of_input[2 * hidden..]);
                    put(gates, &mut parts.of_state[to..][..3 * hidden]);
                }
            },
        );
        weight.product(&gates, &mut carried, true);
    }
    store(&carried, parts.of_first, false);
}

/// One time step of one sequence. `carried` begins as the gradient of its state from later time steps, and ends as the direct part of
/// that of the state before. `gates` becomes the gradient of what the state contributes, `new` that of `n` before its `tanh`.
#[inline(always)]
fn step_backward<T: Stored, R: Real>(
    kept: &[T],
    before: &[T],
    dy: &[T],
    carried: &mut [R],
    gates: &mut [R],
    new: &mut [R],
) {
    let hidden = before.len();
    let (r, rest) = kept.split_at(hidden);
    let (z, rest) = rest.split_at(hidden);
    let (n, q) = rest.split_at(hidden);
    let (dr, rest) = gates.split_at_mut(hidden);
    let (dz, dq) = rest.split_at_mut(hidden);
    carried.iter_mut().zip(dy).for_each(|(d, dy)| *d += dy.to::<R>());
    for ((((dz, &d), h), z), n) in dz.iter_mut().zip(&*carried).zip(before).zip(z).zip(n) {
        let z = z.to::<R>();
        *dz = d * (h.to::<R>() - n.to::<R>()) * z * (R::ONE - z);
    }
    for (((new, d), z), n) in new.iter_mut().zip(carried).zip(z).zip(n) {
        let (z, n) = (z.to::<R>(), n.to::<R>());
        *new = *d * (R::ONE - z) * (R::ONE - n * n);
        *d = *d * z;
    }
    for ((((dr, dq), &new), r), q) in dr.iter_mut().zip(dq).zip(&*new).zip(r).zip(q) {
        let r = r.to::<R>();
        *dq = new * r;
        *dr = new * q.to::<R>() * r * (R::ONE - r);
    }
}
