//! The outputs of some short sequences and the saved statistics of their score rows.

use pulp::{Simd, WithSimd};

use super::products::product;
use super::{Lanes, apply_dropout, block, fill_unseen, group, lanes, max_group, tokens};
use crate::device::cpu::numeric::Real;
use crate::kernels::products::host::Matrix;
use crate::ops::attention::host::kernel::forward::{Forward as Task, exponentials};
use crate::ops::attention::host::kernel::{Attention, Scores};

/// The number of scratch elements that [`Forward`] needs.
pub(in crate::ops::attention::host::kernel) fn scratch_len<T>(sizes: &Attention<'_, T>) -> usize {
    let Attention { heads, queries, keys, head_dim, .. } = *sizes;
    let tokens = (queries + 2 * keys) * max_group(sizes) * head_dim;
    let dropout = if sizes.dropped.is_some() { heads * queries * keys } else { 0 };
    lanes::<T>() * (tokens + 2 * queries * keys + 2 * heads * queries + dropout)
}

/// Computes the outputs of some sequences and the saved statistics of their score rows.
pub(in crate::ops::attention::host::kernel) struct Forward<'a, T>(pub Task<'a, T>);

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Task { sizes, first, qkv: [q, k, v], o, o_layout, kept: [largest, inverse], scores, memory } =
            self.0;
        let Scores { before, mut after } = scores;
        let Attention { heads, queries, keys, head_dim, scale, dropped, .. } = *sizes;
        let (each, rows) = (queries * keys, heads * queries);
        let group = group(sizes, &[q.layout, k.layout, v.layout, o_layout]);
        let block = block(sizes);
        let visible = block.visible(keys);
        let memory = T::as_vectors_mut::<S>(memory).0;
        let (scores, memory) = memory.split_at_mut(each);
        let (added, memory) = memory.split_at_mut(each);
        let (tops, memory) = memory.split_at_mut(rows);
        let (factors, memory) = memory.split_at_mut(rows);
        let (dropout, memory) = memory.split_at_mut(if dropped.is_some() { heads * each } else { 0 });
        let sequences = largest.len() / rows;
        for from in (0..sequences).step_by(T::lanes::<S>()) {
            // The sequences among all, and in the task.
            let task = Lanes { first: from, count: T::lanes::<S>().min(sequences - from) };
            let all = Lanes { first: first + from, ..task };
            if let Some(dropped) = &dropped {
                all.dropout_factors::<S, T>(dropped, dropout);
            }
            for first_head in (0..heads).step_by(group) {
                let group = group.min(heads - first_head);
                let width = group * head_dim;
                let (q_vectors, memory) = memory.split_at_mut(queries * width);
                let (k_vectors, memory) = memory.split_at_mut(keys * width);
                let v_vectors = &mut memory[..keys * width];
                all.load_tokens::<S, T>(q, first_head, width, q_vectors);
                all.load_tokens::<S, T>(k, first_head, width, k_vectors);
                all.load_tokens::<S, T>(v, first_head, width, v_vectors);
                let factor = T::splat(simd, scale);
                q_vectors.iter_mut().for_each(|q| *q = T::mul_vectors(simd, *q, factor));
                for i in 0..group {
                    let (h, at) = (first_head + i, i * head_dim);
                    let (of_queries, of_keys) = ([queries, head_dim, width], [visible, head_dim, width]);
                    let (q, k) = (tokens(&q_vectors[at..], of_queries), tokens(&k_vectors[at..], of_keys));
                    product::<S, T>(simd, q, k.t(), scores, keys);
                    if let Some(before) = before {
                        all.load_scores::<S, T>(before, h, keys, added);
                        for (s, before) in scores.iter_mut().zip(&*added) {
                            *s = T::add_vectors(simd, *before, *s);
                        }
                    }
                    if let Some(after) = &mut after {
                        fill_unseen(block, keys, keys, scores, T::splat(simd, T::ZERO));
                        let to = &mut after[(from * heads + h) * each..];
                        task.store::<S, T>(scores, to, heads * each);
                    }
                    fill_unseen(block, keys, visible, scores, T::splat(simd, T::NEG_INFINITY));
                    let (tops, factors) = (&mut tops[h * queries..], &mut factors[h * queries..]);
                    for (i, scores) in scores.chunks_exact_mut(keys).enumerate() {
                        (tops[i], factors[i]) =
                            exponentials::<S, T>(simd, (scores, 1), visible, before.is_some());
                    }
                    if dropped.is_some() {
                        apply_dropout::<S, T>(&dropout[h * each..][..each], scores);
                    }
                    let p = Matrix { cols: visible, ..Matrix::row_major(&*scores, queries, keys) };
                    // The queries of this head are not needed any more.
                    let o = &mut q_vectors[at..];
                    product::<S, T>(simd, p, tokens(&v_vectors[at..], of_keys), o, width);
                    for (o, factor) in o.chunks_mut(width).zip(&*factors) {
                        o[..head_dim].iter_mut().for_each(|o| *o = T::mul_vectors(simd, *o, *factor));
                    }
                }
                task.store_tokens::<S, T>(q_vectors, width, first_head, o, o_layout);
            }
            task.store::<S, T>(tops, &mut largest[from * rows..], rows);
            task.store::<S, T>(factors, &mut inverse[from * rows..], rows);
        }
    }
}
