//! Gradients of one sequence.

use pulp::{Simd, WithSimd};

use super::super::gemm::Matrix;
use super::super::numeric::Real;
use super::panels::{Destination, Group, pack, pack_transposed, product};
use super::{Attention, BLOCK_QUERIES, HeadLayout, Heads, block_width, register_len};

/// The working memory of [`Backward`], in elements.
pub(super) fn scratch_len<T: Real>(sizes: &Attention<T>) -> usize {
    let Attention { queries, keys, head_dim, .. } = *sizes;
    let register = register_len::<T>();
    let width = block_width::<T>(sizes);
    let rows = keys + 2 * queries.min(BLOCK_QUERIES) + 3;
    register * (head_dim.div_ceil(register) * rows + 2 * (head_dim + 1)) + 2 * keys * width
}

/// Computes the gradients of one sequence.
pub(super) struct Backward<'a, T> {
    pub sizes: &'a Attention<T>,
    pub batch: usize,
    pub qkv: [Heads<'a, T>; 3],
    pub d_o: Heads<'a, T>,
    /// (heads, queries)
    pub log_sum_exp: &'a [T],
    /// The sequence's gradients of queries, keys and values.
    pub gradients: [&'a mut [T]; 3],
    pub layouts: [HeadLayout; 3],
    /// [`scratch_len`] elements of working memory.
    pub memory: &'a mut [T],
}

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { sizes, batch, qkv: [q, k, v], d_o, log_sum_exp, gradients, layouts, memory } = self;
        let Attention { heads, queries, keys, head_dim, scale, causal, .. } = *sizes;
        let [dq, dk, dv] = gradients;
        let lanes = T::lanes::<S>();
        let panels = head_dim.div_ceil(lanes);
        let width = block_width::<T>(sizes);
        let memory = T::as_vectors_mut::<S>(memory).0;
        let (q_panel, memory) = memory.split_at_mut(head_dim + 1);
        let (d_o_panel, memory) = memory.split_at_mut(head_dim + 1);
        let (p, memory) = memory.split_at_mut(keys * width / lanes);
        let (ds, memory) = memory.split_at_mut(keys * width / lanes);
        let (k_panels, memory) = memory.split_at_mut(panels * (keys + 1));
        let (q_panels, d_o_panels) = memory.split_at_mut(panels * (queries.min(BLOCK_QUERIES) + 1));
        for h in 0..heads {
            let (q, d_o) = (q.matrix(batch, h, queries, head_dim), d_o.matrix(batch, h, queries, head_dim));
            let (k, v) = (k.matrix(batch, h, keys, head_dim), v.matrix(batch, h, keys, head_dim));
            pack(simd, k, k_panels);
            for first in (0..queries).step_by(BLOCK_QUERIES) {
                let rows = BLOCK_QUERIES.min(queries - first);
                let (q, d_o) = (q.rows_from(first, rows), d_o.rows_from(first, rows));
                let log_sum_exp = &log_sum_exp[h * queries + first..][..rows];
                for (g, i) in (0..rows).step_by(lanes).enumerate() {
                    let group = Group { first: first + i, rows: lanes.min(rows - i), causal };
                    pack_transposed(simd, q.rows_from(i, group.rows), scale, q_panel);
                    pack_transposed(simd, d_o.rows_from(i, group.rows), T::ONE, d_o_panel);
                    group.scores(simd, k, q_panel, (bytemuck::cast_slice_mut(p), i, width));
                    let dp = (bytemuck::cast_slice_mut(ds), i, width);
                    Group { causal: false, ..group }.scores(
                        simd,
                        Matrix { rows: group.visible(keys), ..v },
                        d_o_panel,
                        dp,
                    );
                    let sums = &log_sum_exp[i..][..group.rows];
                    let sums = match T::as_vectors::<S>(sums).0 {
                        [whole] => *whole,
                        _ => T::load_partial(simd, sums),
                    };
                    let columns = (&mut p[g..], &mut ds[g..], width / lanes);
                    score_gradients::<S, T>(simd, columns, group.visible(keys), sums, scale);
                }
                let visible = Group { first, rows, causal }.visible(keys);
                let p = Matrix {
                    data: bytemuck::cast_slice(p),
                    rows: keys,
                    cols: rows,
                    row_stride: width,
                    col_stride: 1,
                };
                let ds = Matrix { data: bytemuck::cast_slice(ds), ..p };
                pack(simd, q, q_panels);
                pack(simd, d_o, d_o_panels);
                for c in 0..panels {
                    let columns = lanes.min(head_dim - c * lanes);
                    let at = |token: usize, layout: HeadLayout| {
                        token * layout.token_stride + h * layout.head_stride + c * lanes
                    };
                    let panel = &k_panels[c * (keys + 1)..][..=visible];
                    let to = Destination {
                        data: &mut dq[at(first, layouts[0])..],
                        row_stride: layouts[0].token_stride,
                        columns,
                        add: false,
                    };
                    product(simd, Matrix { cols: rows, rows: visible, ..ds }.t(), panel, None, to);
                    let add = first > 0;
                    let panel = &q_panels[c * (rows + 1)..][..=rows];
                    let to = Destination {
                        data: &mut dk[at(0, layouts[1])..],
                        row_stride: layouts[1].token_stride,
                        columns,
                        add,
                    };
                    product(simd, ds, panel, None, to);
                    let panel = &d_o_panels[c * (rows + 1)..][..=rows];
                    let to = Destination {
                        data: &mut dv[at(0, layouts[2])..],
                        row_stride: layouts[2].token_stride,
                        columns,
                        add,
                    };
                    product(simd, p, panel, None, to);
                }
            }
        }
    }
}

/// Turns scores into probabilities `p` and their gradients `dp` into `ds`: of every `stride`-th register
/// the first `visible`; the rest become zeros.
#[inline(always)]
fn score_gradients<S: Simd, T: Real>(
    simd: S,
    (p, ds, stride): (&mut [T::Vector<S>], &mut [T::Vector<S>], usize),
    visible: usize,
    log_sum_exp: T::Vector<S>,
    scale: T,
) {
    let zero = T::splat(simd, T::ZERO);
    let shift = T::mul_vectors(simd, log_sum_exp, T::splat(simd, -T::ONE));
    let mut mean = zero;
    for j in (0..visible).map(|j| j * stride) {
        p[j] = T::exp_vectors(simd, T::add_vectors(simd, p[j], shift));
        mean = T::mul_add(simd, p[j], ds[j], mean);
    }
    let shift = T::mul_vectors(simd, mean, T::splat(simd, -scale));
    let scale = T::splat(simd, scale);
    for j in (0..visible).map(|j| j * stride) {
        ds[j] = T::mul_vectors(simd, p[j], T::mul_add(simd, ds[j], scale, shift));
    }
    for (p, ds) in p.iter_mut().zip(ds).step_by(stride).skip(visible) {
        (*p, *ds) = (zero, zero);
    }
}
