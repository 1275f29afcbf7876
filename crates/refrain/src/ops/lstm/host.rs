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

/// The operands of some sequences.
#[derive(Clone, Copy)]
struct Operands<'a, T> {
    x: &'a [T],
    first: &'a [T],
    first_cell: &'a [T],
}

/// The results of some sequences.
struct Results<'a, T> {
    states: &'a mut [T],
    cells: &'a mut [T],
    gates: Option<&'a mut [T]>,
}

fn forward_of<T: Stored, R: Real>(keep: bool, args: &HostArgs<'_>) -> Result<()> {
    let sizes = Sizes::of(args.write_shape(0));
    let Sizes { batch, steps, hidden } = sizes;
    if batch == 0 {
        return Ok(());
    }
    let all = Operands { x: args.read::<T>(0)?, first: args.read(3)?, first_cell: args.read(4)? };
    let (w, b) = (Widened::<R>::rounded(args, 1, args.read_dtype(0))?, Widened::<R>::operand(args, 2)?);
    let weight = Packed::of(Matrix::row_major(w.get(), 4 * hidden, hidden).t(), Some(b.get()));
    let rows = rows_a_task(batch);
    let task = |task: usize, results: Results<'_, T>| {
        let (from, count) = (task * rows, results.states.len() / (steps * hidden));
        let operands = Operands {
            x: &all.x[from * steps * 4 * hidden..][..count * steps * 4 * hidden],
            first: &all.first[from * hidden..][..count * hidden],
            first_cell: &all.first_cell[from * hidden..][..count * hidden],
        };
        sequences(sizes, &weight, operands, results);
    };
    let states = args.write::<T>(0)?.par_chunks_mut(rows * steps * hidden);
    let both = states.zip(args.write::<T>(1)?.par_chunks_mut(rows * steps * hidden));
    match keep {
        false => parallel::for_each(true, both.enumerate(), |(i, (states, cells))| {
            task(i, Results { states, cells, gates: None });
        }),
        true => {
            let gates = args.write::<T>(2)?.par_chunks_mut(rows * steps * 4 * hidden);
            parallel::for_each(true, both.zip(gates).enumerate(), |(i, ((states, cells), gates))| {
                task(i, Results { states, cells, gates: Some(gates) });
            });
        }
    }
    Ok(())
}

/// Some sequences through all time steps.
fn sequences<T: Stored, R: Real>(
    Sizes { steps, hidden, .. }: Sizes,
    weight: &Packed<R>,
    operands: Operands<'_, T>,
    mut results: Results<'_, T>,
) {
    let count = operands.first.len() / hidden;
    let mut state = Scratch::<R>::new(count * hidden);
    let mut cell = Scratch::<R>::new(count * hidden);
    let mut gates = Scratch::<R>::new(count * 4 * hidden);
    convert(operands.first, &mut state);
    convert(operands.first_cell, &mut cell);
    for t in 0..steps {
        weight.product(&state, &mut gates, false);
        simd(
            #[inline(always)]
            || {
                let of_sequences = state.chunks_exact_mut(hidden).zip(cell.chunks_exact_mut(hidden));
                for (i, (gates, (state, cell))) in
                    gates.chunks_exact_mut(4 * hidden).zip(of_sequences).enumerate()
                {
                    let row = i * steps + t;
                    let x = &operands.x[row * 4 * hidden..][..4 * hidden];
                    step(x, gates, cell, state, &mut results.states[row * hidden..][..hidden]);
                    put(cell, &mut results.cells[row * hidden..][..hidden]);
                    if let Some(kept) = &mut results.gates {
                        put(gates, &mut kept[row * 4 * hidden..][..4 * hidden]);
                    }
                }
            },
        );
    }
}

/// One time step of one sequence. `gates` begins as what the state contributes, and ends as the gates.
#[inline(always)]
fn step<T: Stored, R: Real>(x: &[T], gates: &mut [R], cell: &mut [R], state: &mut [R], y: &mut [T]) {
    let hidden = state.len();
    let (i_f, g_o) = gates.split_at_mut(2 * hidden);
    let (g, o) = g_o.split_at_mut(hidden);
    let (x_if, x_go) = x.split_at(2 * hidden);
    let (x_g, x_o) = x_go.split_at(hidden);
    add_and_map(i_f, x_if, R::sigmoid);
    add_and_map(g, x_g, R::tanh);
    add_and_map(o, x_o, R::sigmoid);
    let (i, f) = i_f.split_at(hidden);
    for (((c, &i), &f), &g) in cell.iter_mut().zip(i).zip(f).zip(&*g) {
        *c = f * *c + i * g;
    }
    for (((h, y), &o), &c) in state.iter_mut().zip(y).zip(&*o).zip(&*cell) {
        *y = T::from_number(o * c.tanh());
        *h = y.to();
    }
}

/// `gates = f(x + gates)`, for gates that lie side by side: a loop over chained slices does not become SIMD code.
#[inline(always)]
fn add_and_map<T: Stored, R: Real>(gates: &mut [R], x: &[T], f: impl Fn(R) -> R) {
    for (gate, &x) in gates.iter_mut().zip(x) {
        *gate = f(x.to::<R>() + *gate);
    }
}

pub(super) fn backward(of_cells: bool, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => backward_of::<T, R>(of_cells, args))
}

/// The operands of the backward pass.
#[derive(Clone, Copy)]
struct Kept<'a, T> {
    cells: &'a [T],
    gates: &'a [T],
    first_cell: &'a [T],
    dy: &'a [T],
    dcells: Option<&'a [T]>,
}

/// The gradients of some sequences.
struct Parts<'a, T> {
    of_first: &'a mut [T],
    of_first_cell: &'a mut [T],
    of_input: &'a mut [T],
}

fn backward_of<T: Stored, R: Real>(of_cells: bool, args: &HostArgs<'_>) -> Result<()> {
    let sizes = Sizes::of(args.read_shape(0));
    let Sizes { batch, steps, hidden } = sizes;
    if batch == 0 {
        return Ok(());
    }
    let kept = Kept {
        cells: args.read::<T>(0)?,
        gates: args.read(1)?,
        first_cell: args.read(3)?,
        dy: args.read(4)?,
        dcells: if of_cells { Some(args.read(5)?) } else { None },
    };
    let w = Widened::<R>::rounded(args, 2, args.read_dtype(0))?;
    let weight = Packed::of(Matrix::row_major(w.get(), 4 * hidden, hidden), None);
    let rows = rows_a_task(batch);
    let of_first = args.write::<T>(0)?.par_chunks_mut(rows * hidden);
    let of_first_cell = args.write::<T>(1)?.par_chunks_mut(rows * hidden);
    let of_input = args.write::<T>(2)?.par_chunks_mut(rows * steps * 4 * hidden);
    let tasks = of_first.zip(of_first_cell).zip(of_input).enumerate();
    parallel::for_each(true, tasks, |(i, ((of_first, of_first_cell), of_input))| {
        sequences_backward(sizes, &weight, kept, i * rows, Parts { of_first, of_first_cell, of_input });
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
    // The gradients of the states and of the cell states, from later time steps.
    let mut dh = Scratch::<R>::filled(count * hidden, R::ZERO);
    let mut dc = Scratch::<R>::filled(count * hidden, R::ZERO);
    let mut slopes = Scratch::<R>::new(count * 4 * hidden);
    for t in (0..steps).rev() {
        simd(
            #[inline(always)]
            || {
                let of_sequences = dh.chunks_exact_mut(hidden).zip(dc.chunks_exact_mut(hidden));
                for (i, (slopes, (dh, dc))) in
                    slopes.chunks_exact_mut(4 * hidden).zip(of_sequences).enumerate()
                {
                    let row = (from + i) * steps + t;
                    let own = row * hidden..(row + 1) * hidden;
                    let before = match t {
                        0 => &kept.first_cell[(from + i) * hidden..][..hidden],
                        _ => &kept.cells[(row - 1) * hidden..][..hidden],
                    };
                    dh.iter_mut().zip(&kept.dy[own.clone()]).for_each(|(d, dy)| *d += dy.to::<R>());
                    if let Some(dcells) = kept.dcells {
                        dc.iter_mut().zip(&dcells[own.clone()]).for_each(|(d, dc)| *d += dc.to::<R>());
                    }
                    let gates = &kept.gates[row * 4 * hidden..][..4 * hidden];
                    step_backward(gates, &kept.cells[own], before, dh, dc, slopes);
                    put(slopes, &mut parts.of_input[(i * steps + t) * 4 * hidden..][..4 * hidden]);
                }
            },
        );
        weight.product(&slopes, &mut dh, false);
    }
    store(&dh, parts.of_first, false);
    store(&dc, parts.of_first_cell, false);
}

/// One time step of one sequence. `dh` is the gradient of its state; `dc` begins as that of its cell state and ends as that of the cell
/// state before. `slopes` becomes the gradient of the gates before their functions.
#[inline(always)]
fn step_backward<T: Stored, R: Real>(
    gates: &[T],
    cell: &[T],
    before: &[T],
    dh: &[R],
    dc: &mut [R],
    slopes: &mut [R],
) {
    let hidden = cell.len();
    let (i, rest) = gates.split_at(hidden);
    let (f, rest) = rest.split_at(hidden);
    let (g, o) = rest.split_at(hidden);
    let (di, rest) = slopes.split_at_mut(hidden);
    let (df, rest) = rest.split_at_mut(hidden);
    let (dg, d_o) = rest.split_at_mut(hidden);
    for ((((dc, d_o), &dh), c), o) in dc.iter_mut().zip(d_o).zip(dh).zip(cell).zip(o) {
        let (squashed, o) = (c.to::<R>().tanh(), o.to::<R>());
        *dc += dh * o * (R::ONE - squashed * squashed);
        *d_o = dh * squashed * o * (R::ONE - o);
    }
    // A loop of its own for each part of `slopes`. Before a loop that writes two of them, compiled code asks whether these overlap over
    // all sequences, which they seem to, and then computes number by number.
    for (((di, &dc), i), g) in di.iter_mut().zip(&*dc).zip(i).zip(g) {
        let (i, g) = (i.to::<R>(), g.to::<R>());
        *di = dc * g * i * (R::ONE - i);
    }
    for (((dg, &dc), i), g) in dg.iter_mut().zip(&*dc).zip(i).zip(g) {
        let (i, g) = (i.to::<R>(), g.to::<R>());
        *dg = dc * i * (R::ONE - g * g);
    }
    for (((df, dc), before), f) in df.iter_mut().zip(dc).zip(before).zip(f) {
        let f = f.to::<R>();
        *df = *dc * before.to::<R>() * f * (R::ONE - f);
        *dc = *dc * f;
    }
}
