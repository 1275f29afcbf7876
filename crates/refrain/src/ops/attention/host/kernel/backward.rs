//! Gradients of some sequences.

use pulp::{Simd, WithSimd};

use super::panels::{Destination, pack, pack_transposed, packed_vectors, product};
use super::scores::Block;
use super::{Attention, BLOCK_QUERIES, Gradients, HeadLayout, Heads, REGISTER, ScoreGradients};
use crate::device::cpu::numeric::Real;
use crate::kernels::products::host::Matrix;

/// The number of scratch elements that [`Backward`] needs.
pub(super) fn scratch_len<T>(sizes: &Attention<'_, T>) -> usize {
    let Attention { queries, keys, head_dim, .. } = *sizes;
    let lanes = REGISTER / size_of::<T>();
    let rows = queries.min(BLOCK_QUERIES);
    let width = rows.next_multiple_of(lanes);
    let panels = packed_vectors(keys, head_dim, lanes)
        + 2 * packed_vectors(head_dim, width, lanes)
        + 2 * packed_vectors(rows, head_dim, lanes);
    lanes * (panels + 2 * keys * width / lanes)
}

/// Computes the gradients of some sequences.
pub(super) struct Backward<'a, T> {
    pub sizes: &'a Attention<'a, T>,
    /// The first sequence.
    pub first: usize,
    pub qkv: [Heads<'a, T>; 3],
    pub d_o: Heads<'a, T>,
    /// What the forward pass saved for these sequences: the maximum of each score row and the inverse of its sum,
    /// (sequences, heads, queries).
    pub kept: [&'a [T]; 2],
    /// The gradients of queries, keys and values of the sequences.
    pub gradients: Gradients<'a, T>,
    pub layouts: [HeadLayout; 3],
    /// The scores that were added, of all sequences, and the gradients of scores, of these.
    pub scores: ScoreGradients<'a, T>,
    /// [`scratch_len`] elements of scratch memory.
    pub memory: &'a mut [T],
}

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            sizes,
            first: first_sequence,
            qkv: [q, k, v],
            d_o,
            kept,
            mut gradients,
            layouts,
            scores,
            memory,
        } = self;
        let ScoreGradients { before, d_after, mut d_before } = scores;
        let Attention { heads, queries, keys, head_dim, scale, causal, past, dropped, .. } = *sizes;
        let lanes = T::lanes::<S>();
        let rows = queries.min(BLOCK_QUERIES);
        let width = rows.next_multiple_of(lanes);
        let memory = T::as_vectors_mut::<S>(memory).0;
        let (k_panels, memory) = memory.split_at_mut(packed_vectors(keys, head_dim, lanes));
        let (q_panels, memory) = memory.split_at_mut(packed_vectors(rows, head_dim, lanes));
        let (d_o_panels, memory) = memory.split_at_mut(packed_vectors(rows, head_dim, lanes));
        let (transposed, memory) = memory.split_at_mut(packed_vectors(head_dim, width, lanes));
        let (p, ds) = memory.split_at_mut(keys * width / lanes);
        // The gradients of scores that are added or returned are those before the scale.
        let before_scale = d_after.is_some() || d_before.is_some();
        let first_visible = if causal { keys.min(rows + past) } else { keys };
        for head in 0..kept[0].len() / queries {
            let (sequence, h) = (head / heads, head % heads);
            let batch = first_sequence + sequence;
            let (q, d_o) = (q.matrix(batch, h, queries, head_dim), d_o.matrix(batch, h, queries, head_dim));
            let (k, v) = (k.matrix(batch, h, keys, head_dim), v.matrix(batch, h, keys, head_dim));
            let k_panels = pack(simd, k, k_panels);
            // The first block does not see all keys; later blocks add to the gradients of the keys that it does not
            // see.
            for i in 1..3 {
                for token in first_visible..keys {
                    gradients.of(i)[layouts[i].at(sequence, token, h)..][..head_dim].fill(T::ZERO);
                }
            }
            for first in (0..queries).step_by(BLOCK_QUERIES) {
                let rows = BLOCK_QUERIES.min(queries - first);
                let block = Block { first, rows, width: rows.next_multiple_of(lanes), causal, past };
                let visible = block.visible(keys);
                let (q, d_o) = (q.rows_from(first, rows), d_o.rows_from(first, rows));
                let start = (head * queries + first) * keys;
                let row = (first_sequence * heads + head) * queries + first;
                if let Some(before) = before {
                    let from = before.from(batch, h, first);
                    block.load(from, before.strides[2], keys, bytemuck::cast_slice_mut(p));
                }
                let transposed_q = pack_transposed(simd, q, scale, transposed);
                block.products(simd, k, transposed_q, p, before.is_some());
                block.products(simd, v, pack_transposed(simd, d_o, T::ONE, transposed), ds, false);
                if let Some(dropped) = &dropped {
                    dropped.apply(block, row, bytemuck::cast_slice_mut(ds));
                }
                block.mask::<S, T>(p, keys);
                let stride = block.width / lanes;
                let [largest, inverse] = kept.map(|x| x[head * queries + first..][..rows].chunks(lanes));
                for (g, (largest, inverse)) in largest.zip(inverse).enumerate() {
                    let kept = [largest, inverse].map(
                        #[inline(always)]
                        |x| match T::as_vectors::<S>(x).0 {
                            [whole] => *whole,
                            _ => T::load_partial(simd, x),
                        },
                    );
                    let factor = if before_scale { T::ONE } else { scale };
                    score_gradients::<S, T>(simd, (&mut p[g..], &mut ds[g..], stride), visible, kept, factor);
                }
                if before_scale {
                    if let Some(d_after) = d_after {
                        block.add(&d_after[start..], keys, bytemuck::cast_slice_mut(ds));
                    }
                    if let Some(d_before) = &mut d_before {
                        block.store(bytemuck::cast_slice(ds), keys, &mut d_before[start..]);
                    }
                    let factor = T::splat(simd, scale);
                    ds[..visible * stride].iter_mut().for_each(|ds| *ds = T::mul_vectors(simd, *ds, factor));
                }
                if let Some(dropped) = &dropped {
                    dropped.apply(block, row, bytemuck::cast_slice_mut(p));
                }
                let data = bytemuck::cast_slice(ds);
                let ds = Matrix { data, rows: visible, cols: rows, row_stride: block.width, col_stride: 1 };
                let p = Matrix { data: bytemuck::cast_slice(p), ..ds };
                let add = first > 0;
                let place = |i: usize, token| (layouts[i].at(sequence, token, h), layouts[i].token_stride);
                product(
                    simd,
                    ds.t(),
                    k_panels,
                    None,
                    destination(gradients.of(0), place(0, first), head_dim, false),
                );
                product(
                    simd,
                    ds,
                    pack(simd, q, q_panels),
                    None,
                    destination(gradients.of(1), place(1, 0), head_dim, add),
                );
                product(
                    simd,
                    p,
                    pack(simd, d_o, d_o_panels),
                    None,
                    destination(gradients.of(2), place(2, 0), head_dim, add),
                );
            }
        }
    }
}

/// Rows of `columns` elements from `at` on, `row_stride` apart.
#[inline(always)]
fn destination<T>(
    data: &mut [T],
    (at, row_stride): (usize, usize),
    columns: usize,
    add: bool,
) -> Destination<'_, T> {
    Destination { data: &mut data[at..], row_stride, columns, add }
}

/// Turns scores into probabilities `p` and their gradients `dp` into `ds`, in the first `visible` of every
/// `stride`-th register.
#[inline(always)]
pub(super) fn score_gradients<S: Simd, T: Real>(
    simd: S,
    (p, ds, stride): (&mut [T::Vector<S>], &mut [T::Vector<S>], usize),
    visible: usize,
    [largest, inverse]: [T::Vector<S>; 2],
    scale: T,
) {
    let shift = T::mul_vectors(simd, largest, T::splat(simd, -T::ONE));
    let mut mean = T::splat(simd, T::ZERO);
    for j in (0..visible).map(|j| j * stride) {
        let power = T::exp_vectors(simd, T::add_vectors(simd, p[j], shift));
        p[j] = T::mul_vectors(simd, power, inverse);
        mean = T::mul_add(simd, p[j], ds[j], mean);
    }
    let shift = T::mul_vectors(simd, mean, T::splat(simd, -scale));
    let scale = T::splat(simd, scale);
    for j in (0..visible).map(|j| j * stride) {
        ds[j] = T::mul_vectors(simd, p[j], T::mul_add(simd, ds[j], scale, shift));
    }
}
