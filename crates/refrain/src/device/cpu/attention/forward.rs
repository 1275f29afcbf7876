//! Outputs and log-sum-exps of one sequence.

use pulp::{Simd, WithSimd};

use super::super::gemm::Matrix;
use super::super::numeric::Real;
use super::panels::{Destination, Group, pack, pack_transposed, product};
use super::{Attention, BLOCK_QUERIES, HeadLayout, Heads, block_width, register_len};

/// The working memory of [`Forward`], in elements.
pub(super) fn scratch_len<T: Real>(sizes: &Attention<T>) -> usize {
    let Attention { keys, head_dim, .. } = *sizes;
    let register = register_len::<T>();
    let width = block_width::<T>(sizes);
    register * (head_dim.div_ceil(register) * (keys + 1) + head_dim + 1) + (keys + 1) * width
}

/// Computes the outputs and log-sum-exps of one sequence.
pub(super) struct Forward<'a, T> {
    pub sizes: &'a Attention<T>,
    pub batch: usize,
    pub qkv: [Heads<'a, T>; 3],
    /// The sequence's outputs.
    pub o: &'a mut [T],
    pub o_layout: HeadLayout,
    /// (heads, queries)
    pub log_sum_exp: &'a mut [T],
    /// [`scratch_len`] elements of working memory.
    pub memory: &'a mut [T],
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { sizes, batch, qkv: [q, k, v], o, o_layout, log_sum_exp, memory } = self;
        let Attention { queries, keys, head_dim, scale, causal, .. } = *sizes;
        let lanes = T::lanes::<S>();
        let width = block_width::<T>(sizes);
        let memory = T::as_vectors_mut::<S>(memory).0;
        let (v_panels, memory) = memory.split_at_mut(head_dim.div_ceil(lanes) * (keys + 1));
        let (q_panel, memory) = memory.split_at_mut(head_dim + 1);
        let (scores, factors) = memory.split_at_mut(keys * width / lanes);
        for (h, log_sum_exp) in log_sum_exp.chunks_mut(queries).enumerate() {
            let q = q.matrix(batch, h, queries, head_dim);
            let k = k.matrix(batch, h, keys, head_dim);
            pack(simd, v.matrix(batch, h, keys, head_dim), v_panels);
            for (block, log_sum_exp) in log_sum_exp.chunks_mut(BLOCK_QUERIES).enumerate() {
                let (first, rows) = (block * BLOCK_QUERIES, log_sum_exp.len());
                for (g, i) in (0..rows).step_by(lanes).enumerate() {
                    let group = Group { first: first + i, rows: lanes.min(rows - i), causal };
                    pack_transposed(simd, q.rows_from(group.first, group.rows), scale, q_panel);
                    group.scores(simd, k, q_panel, (bytemuck::cast_slice_mut(scores), i, width));
                    let columns = (&mut scores[g..], width / lanes);
                    let (sum, factor) = exponentials::<S, T>(simd, columns, group.visible(keys));
                    factors[g] = factor;
                    let log_sum_exp = &mut log_sum_exp[i..][..group.rows];
                    match T::as_vectors_mut::<S>(log_sum_exp).0 {
                        [whole] => *whole = sum,
                        _ => T::store_partial(simd, log_sum_exp, sum),
                    }
                }
                let visible = Group { first, rows, causal }.visible(keys);
                let data = bytemuck::cast_slice(scores);
                let p = Matrix { data, rows, cols: visible, row_stride: 1, col_stride: width };
                for (c, panel) in v_panels.chunks_exact(keys + 1).enumerate() {
                    let at = first * o_layout.token_stride + h * o_layout.head_stride + c * lanes;
                    let to = Destination {
                        data: &mut o[at..],
                        row_stride: o_layout.token_stride,
                        columns: lanes.min(head_dim - c * lanes),
                        add: false,
                    };
                    product(simd, p, &panel[..=visible], Some(bytemuck::cast_slice(factors)), to);
                }
            }
        }
    }
}

/// Turns scores into `e^(s - m)`, where `m` is the largest, lane by lane: of every `stride`-th register
/// the first `visible`; the rest become zeros. Returns the log-sum-exps and what makes probabilities of
/// the results.
#[inline(always)]
fn exponentials<S: Simd, T: Real>(
    simd: S,
    (scores, stride): (&mut [T::Vector<S>], usize),
    visible: usize,
) -> (T::Vector<S>, T::Vector<S>) {
    let zero = T::splat(simd, T::ZERO);
    let (mut largest, mut total) = (T::splat(simd, T::NEG_INFINITY), zero);
    for j in 0..visible {
        largest = T::max_vectors(simd, largest, scores[j * stride]);
    }
    let shift = T::mul_vectors(simd, largest, T::splat(simd, -T::ONE));
    for j in 0..visible {
        let s = &mut scores[j * stride];
        *s = T::exp_vectors(simd, T::add_vectors(simd, *s, shift));
        total = T::add_vectors(simd, total, *s);
    }
    for s in scores.iter_mut().step_by(stride).skip(visible) {
        *s = zero;
    }
    let (mut sum, mut factor) = ([total], [total]);
    for (sum, factor) in
        bytemuck::cast_slice_mut(&mut sum).iter_mut().zip(bytemuck::cast_slice_mut(&mut factor))
    {
        let total: T = *sum;
        (*sum, *factor) = (total.ln(), T::ONE / total);
    }
    (T::add_vectors(simd, largest, sum[0]), factor[0])
}
