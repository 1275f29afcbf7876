//! The outputs of some sequences and the saved statistics of their score rows.

use pulp::{Simd, WithSimd};

use super::panels::{Destination, pack, pack_transposed, packed_vectors, product};
use super::scores::Block;
use super::{Attention, BLOCK_QUERIES, HeadLayout, Heads, REGISTER, Scores};
use crate::device::cpu::numeric::Real;
use crate::kernels::products::host::{Matrix, tile};

/// The number of scratch elements that [`Forward`] needs.
pub(super) fn scratch_len<T>(sizes: &Attention<'_, T>) -> usize {
    let Attention { queries, keys, head_dim, .. } = *sizes;
    let lanes = REGISTER / size_of::<T>();
    let width = queries.min(BLOCK_QUERIES).next_multiple_of(lanes);
    let panels = packed_vectors(keys, head_dim, lanes) + packed_vectors(head_dim, width, lanes);
    lanes * (panels + (keys + 1) * width / lanes)
}

/// Computes the outputs of some sequences and the saved statistics of their score rows.
pub(super) struct Forward<'a, T> {
    pub sizes: &'a Attention<'a, T>,
    /// The first sequence.
    pub first: usize,
    pub qkv: [Heads<'a, T>; 3],
    /// The outputs of the sequences.
    pub o: &'a mut [T],
    pub o_layout: HeadLayout,
    /// The maximum of each score row and the inverse of its sum, (sequences, heads, queries).
    pub kept: [&'a mut [T]; 2],
    /// The scores: those to add of all sequences, those to return of these.
    pub scores: Scores<'a, T>,
    /// [`scratch_len`] elements of scratch memory.
    pub memory: &'a mut [T],
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { sizes, first: first_sequence, qkv: [q, k, v], o, o_layout, kept, scores: options, memory } =
            self;
        let ([largest, inverse], Scores { before, mut after }) = (kept, options);
        let Attention { queries, keys, head_dim, scale, causal, past, dropped, .. } = *sizes;
        let lanes = T::lanes::<S>();
        let width = queries.min(BLOCK_QUERIES).next_multiple_of(lanes);
        let stride = width / lanes;
        let memory = T::as_vectors_mut::<S>(memory).0;
        let (v_panels, memory) = memory.split_at_mut(packed_vectors(keys, head_dim, lanes));
        let (q_panels, memory) = memory.split_at_mut(packed_vectors(head_dim, width, lanes));
        let (scores, factors) = memory.split_at_mut(keys * stride);
        let heads = largest.chunks_mut(queries).zip(inverse.chunks_mut(queries));
        for (head, (largest, inverse)) in heads.enumerate() {
            let (sequence, h) = (head / sizes.heads, head % sizes.heads);
            let batch = first_sequence + sequence;
            let q = q.matrix(batch, h, queries, head_dim);
            let k = k.matrix(batch, h, keys, head_dim);
            let v = pack(simd, v.matrix(batch, h, keys, head_dim), v_panels);
            let blocks = largest.chunks_mut(BLOCK_QUERIES).zip(inverse.chunks_mut(BLOCK_QUERIES));
            for (i, (largest, inverse)) in blocks.enumerate() {
                let (first, rows) = (i * BLOCK_QUERIES, largest.len());
                let block = Block { first, rows, width: rows.next_multiple_of(lanes), causal, past };
                let visible = block.visible(keys);
                let q = pack_transposed(simd, q.rows_from(first, rows), scale, q_panels);
                let start = (head * queries + first) * keys;
                if let Some(before) = before {
                    let from = before.from(batch, h, first);
                    block.load(from, before.strides[2], keys, bytemuck::cast_slice_mut(scores));
                }
                block.products(simd, k, q, scores, before.is_some());
                if let Some(after) = &mut after {
                    block.store(bytemuck::cast_slice(scores), keys, &mut after[start..]);
                }
                block.mask::<S, T>(scores, keys);
                let stride = block.width / lanes;
                let kept = largest.chunks_mut(lanes).zip(inverse.chunks_mut(lanes));
                for (g, ((largest, inverse), factor)) in kept.zip(&mut *factors).enumerate() {
                    let top;
                    (top, *factor) =
                        exponentials::<S, T>(simd, (&mut scores[g..], stride), visible, before.is_some());
                    tile::store_row::<S, T>(simd, &[top], largest, false);
                    tile::store_row::<S, T>(simd, &[*factor], inverse, false);
                }
                if let Some(dropped) = &dropped {
                    let row = (first_sequence * sizes.heads + head) * queries + first;
                    dropped.apply(block, row, bytemuck::cast_slice_mut(scores));
                }
                let data = bytemuck::cast_slice(scores);
                let p = Matrix { data, rows, cols: visible, row_stride: 1, col_stride: block.width };
                let at = o_layout.at(sequence, first, h);
                let row_stride = o_layout.token_stride;
                let to = Destination { data: &mut o[at..], row_stride, columns: head_dim, add: false };
                product(simd, p, v, Some(bytemuck::cast_slice(factors)), to);
            }
        }
    }
}

/// Turns scores into `e^(s - m)`, where `m` is the maximum, lane by lane, in the first `visible` of every `stride`-th
/// register. Returns the maxima, and the factors that turn the results into probabilities. With a mask, both are 0 where all
/// scores are minus infinity.
#[inline(always)]
pub(super) fn exponentials<S: Simd, T: Real>(
    simd: S,
    (scores, stride): (&mut [T::Vector<S>], usize),
    visible: usize,
    is_masked: bool,
) -> (T::Vector<S>, T::Vector<S>) {
    let (mut largest, mut total) = (T::splat(simd, T::NEG_INFINITY), T::splat(simd, T::ZERO));
    for j in 0..visible {
        largest = T::max_vectors(simd, largest, scores[j * stride]);
    }
    if is_masked {
        let mut lanes = [largest];
        for largest in bytemuck::cast_slice_mut::<_, T>(&mut lanes) {
            *largest = if *largest == T::NEG_INFINITY { T::ZERO } else { *largest };
        }
        largest = lanes[0];
    }
    let shift = T::mul_vectors(simd, largest, T::splat(simd, -T::ONE));
    for j in 0..visible {
        let s = &mut scores[j * stride];
        *s = T::exp_vectors(simd, T::add_vectors(simd, *s, shift));
        total = T::add_vectors(simd, total, *s);
    }
    let mut factor = [total];
    for factor in bytemuck::cast_slice_mut::<_, T>(&mut factor) {
        *factor = if is_masked && *factor == T::ZERO { T::ZERO } else { T::ONE / *factor };
    }
    (largest, factor[0])
}
