//! Gradients of some short sequences.

use pulp::{Simd, WithSimd};

use super::products::product;
use super::{Lanes, apply_dropout, block, fill_unseen, group, lanes, max_group, tokens};
use crate::device::cpu::numeric::Real;
use crate::kernels::products::host::Matrix;
use crate::ops::attention::host::kernel::backward::{Backward as Task, score_gradients};
use crate::ops::attention::host::kernel::{Attention, ScoreGradients};

/// The number of scratch elements that [`Backward`] needs.
pub(in crate::ops::attention::host::kernel) fn scratch_len<T>(sizes: &Attention<'_, T>) -> usize {
    let Attention { heads, queries, keys, head_dim, .. } = *sizes;
    let tokens = (3 * queries + 2 * keys) * max_group(sizes) * head_dim;
    let dropout = if sizes.dropped.is_some() { heads * queries * keys } else { 0 };
    lanes::<T>() * (tokens + 3 * queries * keys + 2 * heads * queries + dropout)
}

/// Computes the gradients of some sequences.
pub(in crate::ops::attention::host::kernel) struct Backward<'a, T>(pub Task<'a, T>);

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Task { sizes, first, qkv: [q, k, v], d_o, kept, mut gradients, layouts, scores, memory } = self.0;
        let ScoreGradients { before, d_after, mut d_before } = scores;
        let Attention { heads, queries, keys, head_dim, scale, dropped, .. } = *sizes;
        let (each, rows) = (queries * keys, heads * queries);
        let [to_q, to_k, to_v] = layouts;
        let group = group(sizes, &[q.layout, k.layout, v.layout, d_o.layout, to_q, to_k, to_v]);
        let block = block(sizes);
        let visible = block.visible(keys);
        // The gradients of scores that are added or returned are those before the scale.
        let before_scale = d_after.is_some() || d_before.is_some();
        let (zero, factor) = (T::splat(simd, T::ZERO), T::splat(simd, scale));
        let memory = T::as_vectors_mut::<S>(memory).0;
        let (p, memory) = memory.split_at_mut(each);
        let (ds, memory) = memory.split_at_mut(each);
        let (added, memory) = memory.split_at_mut(each);
        let (tops, memory) = memory.split_at_mut(rows);
        let (factors, memory) = memory.split_at_mut(rows);
        let (dropout, memory) = memory.split_at_mut(if dropped.is_some() { heads * each } else { 0 });
        let sequences = kept[0].len() / rows;
        for from in (0..sequences).step_by(T::lanes::<S>()) {
            // The sequences among all, and in the task.
            let task = Lanes { first: from, count: T::lanes::<S>().min(sequences - from) };
            let all = Lanes { first: first + from, ..task };
            if let Some(dropped) = &dropped {
                all.dropout_factors::<S, T>(dropped, dropout);
            }
            task.load::<S, T>(&kept[0][from * rows..], rows, tops);
            task.load::<S, T>(&kept[1][from * rows..], rows, factors);
            for first_head in (0..heads).step_by(group) {
                let group = group.min(heads - first_head);
                let width = group * head_dim;
                let (q_vectors, memory) = memory.split_at_mut(queries * width);
                let (scaled, memory) = memory.split_at_mut(queries * width);
                let (d_o_vectors, memory) = memory.split_at_mut(queries * width);
                let (k_vectors, memory) = memory.split_at_mut(keys * width);
                let v_vectors = &mut memory[..keys * width];
                all.load_tokens::<S, T>(q, first_head, width, q_vectors);
                all.load_tokens::<S, T>(k, first_head, width, k_vectors);
                all.load_tokens::<S, T>(v, first_head, width, v_vectors);
                all.load_tokens::<S, T>(d_o, first_head, width, d_o_vectors);
                for (scaled, q) in scaled.iter_mut().zip(&*q_vectors) {
                    *scaled = T::mul_vectors(simd, *q, factor);
                }
                for i in 0..group {
                    let (h, at) = (first_head + i, i * head_dim);
                    let (of_queries, of_keys) = ([queries, head_dim, width], [visible, head_dim, width]);
                    let (q, d_o) =
                        (tokens(&q_vectors[at..], of_queries), tokens(&d_o_vectors[at..], of_queries));
                    let k = tokens(&k_vectors[at..], of_keys);
                    product::<S, T>(simd, tokens(&scaled[at..], of_queries), k.t(), p, keys);
                    product::<S, T>(simd, d_o, tokens(&v_vectors[at..], of_keys).t(), ds, keys);
                    if let Some(before) = before {
                        all.load_scores::<S, T>(before, h, keys, added);
                        for (s, before) in p.iter_mut().zip(&*added) {
                            *s = T::add_vectors(simd, *before, *s);
                        }
                    }
                    let dropout = dropped.is_some().then(|| &dropout[h * each..][..each]);
                    if let Some(dropout) = dropout {
                        apply_dropout::<S, T>(dropout, ds);
                    }
                    fill_unseen(block, keys, visible, p, T::splat(simd, T::NEG_INFINITY));
                    let kept = tops[h * queries..].iter().zip(&factors[h * queries..]);
                    let rows = p.chunks_exact_mut(keys).zip(ds.chunks_exact_mut(keys));
                    for ((p, ds), (top, inverse)) in rows.zip(kept) {
                        let scale = if before_scale { T::ONE } else { scale };
                        score_gradients::<S, T>(simd, (p, ds, 1), visible, [*top, *inverse], scale);
                    }
                    if before_scale {
                        let place = (from * heads + h) * each;
                        if let Some(d_after) = d_after {
                            task.load::<S, T>(&d_after[place..], heads * each, added);
                            fill_unseen(block, keys, keys, added, zero);
                            for (ds, d_after) in ds.iter_mut().zip(&*added) {
                                *ds = T::add_vectors(simd, *ds, *d_after);
                            }
                        }
                        if let Some(d_before) = &mut d_before {
                            fill_unseen(block, keys, keys, ds, zero);
                            task.store::<S, T>(ds, &mut d_before[place..], heads * each);
                        }
                        ds.iter_mut().for_each(|ds| *ds = T::mul_vectors(simd, *ds, factor));
                    }
                    if let Some(dropout) = dropout {
                        apply_dropout::<S, T>(dropout, p);
                    }
                    let ds = Matrix { cols: visible, ..Matrix::row_major(&*ds, queries, keys) };
                    let p = Matrix { data: &*p, ..ds };
                    // Each result takes the place of an operand that is not needed any more.
                    product::<S, T>(simd, ds, k, &mut scaled[at..], width);
                    product::<S, T>(simd, ds.t(), q, &mut k_vectors[at..], width);
                    product::<S, T>(simd, p.t(), d_o, &mut v_vectors[at..], width);
                }
                // No query sees the last keys.
                for unseen in [&mut *k_vectors, &mut *v_vectors] {
                    unseen[visible * width..].fill(zero);
                }
                for (i, result) in [scaled, k_vectors, v_vectors].into_iter().enumerate() {
                    task.store_tokens::<S, T>(result, width, first_head, gradients.of(i), layouts[i]);
                }
            }
        }
    }
}
