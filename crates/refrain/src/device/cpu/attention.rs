//! Scaled dot-product attention for the CPU, forward and backward.
//!
//! For each sequence and head, with `q` (queries, head_dim), `k` and `v` (keys, head_dim):
//!
//! ```text
//! s = scale q k^T        p = softmax of s by rows        o = p v
//! dv = p^T do            ds = p (do v^T - rowsum(do o))  dq = scale ds k      dk = scale ds^T q
//! ```
//!
//! The backward pass recomputes `p` from the log-sum-exp of each row of `s`, which the forward pass keeps.
//! A block of whole rows of `s` is at hand at a time, in cache; the products are those of
//! [`gemm`](super::gemm), on the views where they lie. Sequences are spread over the threads, so results
//! don't depend on their number.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::gemm::Matrix;
use super::gemm::block::{Block, block_scratch_len};
use super::gemm::pack::{pack_panels, packed_len};
use super::numeric::Real;
use super::scratch::with_scratch;
use super::simd::{arch, lanes};

/// The most queries whose scores are at hand at a time.
const BLOCK_QUERIES: usize = 64;

/// The sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Attention<T> {
    /// Number of sequences.
    pub batch: usize,
    /// Heads of each sequence.
    pub heads: usize,
    /// Queries of each sequence.
    pub queries: usize,
    /// Keys, and values, of each sequence.
    pub keys: usize,
    /// Elements of a query, a key and a value.
    pub head_dim: usize,
    /// What the products of queries and keys are multiplied by, mostly `1 / sqrt(head_dim)`.
    pub scale: T,
    /// Whether query `i` sees only the keys `0..=i`.
    pub causal: bool,
}

/// Where the elements of queries, keys, values, outputs or their gradients lie: element
/// `(batch, token, head, i)` at `offset + batch * batch_stride + token * token_stride +
/// head * head_stride + i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadLayout {
    /// The first element.
    pub offset: usize,
    /// Distance from a sequence to the next, in elements.
    pub batch_stride: usize,
    /// Distance from a token to the next.
    pub token_stride: usize,
    /// Distance from a head to the next.
    pub head_stride: usize,
}

/// Queries, keys, values, outputs or the gradient of outputs, to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Where they lie.
    pub layout: HeadLayout,
}

impl<'a, T> Heads<'a, T> {
    fn matrix(&self, batch: usize, head: usize, tokens: usize, head_dim: usize) -> Matrix<'a, T> {
        let HeadLayout { offset, batch_stride, token_stride, head_stride } = self.layout;
        let data = &self.data[offset + batch * batch_stride + head * head_stride..];
        Matrix { data, rows: tokens, cols: head_dim, row_stride: token_stride, col_stride: 1 }
    }
}

/// The gradients that the backward pass writes.
#[derive(Debug)]
pub(crate) enum Gradients<'a, T> {
    /// `dq`, `dk` and `dv` in a buffer each. Layouts have no offset, and sequence follows sequence:
    /// the batch stride covers all tokens and heads.
    Separate([(&'a mut [T], HeadLayout); 3]),
    /// All three in one buffer, as the gradient of a joint projection: the layouts of `dq`, `dk` and `dv`
    /// differ in nothing but the offset, and the batch stride covers all three.
    Joint(&'a mut [T], [HeadLayout; 3]),
}

/// Writes the output `o`, of layout `o_layout` (no offset, sequence follows sequence), and the log-sum-exp
/// of each row of scores, (batch, heads, queries).
///
/// # Panics
///
/// If a slice is too short for the sizes: the caller has checked that.
pub(crate) fn forward<T: Real>(
    sizes: &Attention<T>,
    [q, k, v]: [Heads<'_, T>; 3],
    o: &mut [T],
    o_layout: HeadLayout,
    log_sum_exp: &mut [T],
) {
    let Attention { batch, heads, queries, keys, head_dim, scale, causal } = *sizes;
    if batch * heads * queries * head_dim == 0 {
        return;
    }
    let o = o.par_chunks_mut(o_layout.batch_stride).take(batch);
    let log_sum_exp = log_sum_exp.par_chunks_mut(heads * queries);
    o.zip(log_sum_exp).enumerate().for_each(|(b, (o, log_sum_exp))| {
        Work::with(sizes, 1, |mut work| {
            for (h, log_sum_exp) in log_sum_exp.chunks_mut(queries).enumerate() {
                let q = q.matrix(b, h, queries, head_dim);
                work.pack(0, k.matrix(b, h, keys, head_dim).t(), scale);
                work.pack(1, v.matrix(b, h, keys, head_dim), T::ONE);
                for (index, log_sum_exp) in log_sum_exp.chunks_mut(BLOCK_QUERIES).enumerate() {
                    let (first, rows) = (index * BLOCK_QUERIES, log_sum_exp.len());
                    work.scores(0, 0, q, first, rows);
                    let Work { arch, width, .. } = work;
                    let scores = &mut work.scores[0][..rows * width];
                    let rows_of_scores = Rows { scores, width, keys, first, causal };
                    let totals = &mut work.sums[..rows];
                    arch.dispatch(Softmax { rows: rows_of_scores, log_sum_exp, totals });
                    let o = &mut o[first * o_layout.token_stride + h * o_layout.head_stride..];
                    let to = (o, o_layout.token_stride);
                    work.times_panels((0, rows, false), 1, to, false);
                }
            }
        });
    });
}

/// Writes the gradients of queries, keys and values, given those of the output.
///
/// `o` and `log_sum_exp` are what [`forward`] wrote.
///
/// # Panics
///
/// If a slice is too short for the sizes: the caller has checked that.
pub(crate) fn backward<T: Real>(
    sizes: &Attention<T>,
    qkv: [Heads<'_, T>; 3],
    o: Heads<'_, T>,
    d_o: Heads<'_, T>,
    log_sum_exp: &[T],
    gradients: Gradients<'_, T>,
) {
    let Attention { batch, heads, queries, keys, head_dim, .. } = *sizes;
    if batch * heads * (queries + keys) * head_dim == 0 {
        return;
    }
    let sequence = |b: usize, layouts: &[HeadLayout; 3], to: Targets<'_, T>| {
        let log_sum_exp = &log_sum_exp[b * heads * queries..][..heads * queries];
        sequence_backward(sizes, b, qkv, [o, d_o], log_sum_exp, layouts, to);
    };
    match gradients {
        Gradients::Separate([(dq, q_layout), (dk, k_layout), (dv, v_layout)]) => {
            let layouts = [q_layout, k_layout, v_layout];
            let dq = dq.par_chunks_mut(q_layout.batch_stride.max(1)).take(batch);
            let dk = dk.par_chunks_mut(k_layout.batch_stride.max(1));
            let dv = dv.par_chunks_mut(v_layout.batch_stride.max(1));
            dq.zip(dk).zip(dv).enumerate().for_each(|(b, ((dq, dk), dv))| {
                sequence(b, &layouts, Targets::Separate([dq, dk, dv]));
            });
        }
        Gradients::Joint(d, layouts) => {
            let d = d.par_chunks_mut(layouts[0].batch_stride).take(batch);
            d.enumerate().for_each(|(b, d)| sequence(b, &layouts, Targets::Joint(d)));
        }
    }
}

/// The gradients of one sequence.
enum Targets<'a, T> {
    Separate([&'a mut [T]; 3]),
    Joint(&'a mut [T]),
}

impl<T> Targets<'_, T> {
    fn from(&mut self, which: usize, at: usize) -> &mut [T] {
        match self {
            Self::Separate(slices) => &mut slices[which][at..],
            Self::Joint(slice) => &mut slice[at..],
        }
    }
}

fn sequence_backward<T: Real>(
    sizes: &Attention<T>,
    b: usize,
    [q, k, v]: [Heads<'_, T>; 3],
    [o, d_o]: [Heads<'_, T>; 2],
    log_sum_exp: &[T],
    layouts: &[HeadLayout; 3],
    mut to: Targets<'_, T>,
) {
    let Attention { heads, queries, keys, head_dim, scale, causal, .. } = *sizes;
    let at = |which: usize, h: usize, token: usize| {
        let HeadLayout { offset, token_stride, head_stride, .. } = layouts[which];
        offset + h * head_stride + token * token_stride
    };
    let stride = |which: usize| layouts[which].token_stride;
    Work::with(sizes, 2, |mut work| {
        let width = work.width;
        for h in 0..heads {
            let (q, d_o) = (q.matrix(b, h, queries, head_dim), d_o.matrix(b, h, queries, head_dim));
            let (k, v) = (k.matrix(b, h, keys, head_dim), v.matrix(b, h, keys, head_dim));
            let o = o.matrix(b, h, queries, head_dim);
            work.pack(0, k.t(), scale);
            work.pack(1, v.t(), T::ONE);
            work.pack(2, k, scale);
            for first in (0..queries.max(1)).step_by(BLOCK_QUERIES) {
                let rows = BLOCK_QUERIES.min(queries - first);
                let add = first > 0;
                // p
                work.scores(0, 0, q, first, rows);
                let scores = &mut work.scores[0][..rows * width];
                let rows_of_scores = Rows { scores, width, keys, first, causal };
                let log_sum_exp = &log_sum_exp[h * queries + first..][..rows];
                work.arch.dispatch(SoftmaxAgain { rows: rows_of_scores, log_sum_exp });
                // do v^T, then ds / scale
                work.scores(1, 1, d_o, first, rows);
                let [p, ds] = &mut work.scores;
                work.arch.dispatch(ScoreGradient { p, ds, width, o, d_o, first, rows });
                let dq = (to.from(0, at(0, h, first)), stride(0));
                work.times_panels((1, rows, false), 2, dq, false);
                work.pack(3, d_o.rows_from(first, rows), T::ONE);
                let dv = (to.from(2, at(2, h, 0)), stride(2));
                work.times_panels((0, rows, true), 3, dv, add);
                work.pack(3, q.rows_from(first, rows), scale);
                let dk = (to.from(1, at(1, h, 0)), stride(1));
                work.times_panels((1, rows, true), 3, dk, add);
            }
        }
    });
}

/// The working memory of a thread for one sequence.
struct Work<'a, T> {
    arch: Arch,
    keys: usize,
    head_dim: usize,
    /// The length of a row of scores: the keys, up to whole registers.
    width: usize,
    /// Packed matrices: `k^T` and `v`; backward `k^T`, `v^T`, `k` and the rows of `q` or `do`.
    panels: [&'a mut [T]; 4],
    /// Up to [`BLOCK_QUERIES`] rows of scores; backward, and of their gradients.
    scores: [&'a mut [T]; 2],
    /// A number for each of these rows.
    sums: &'a mut [T],
    block: &'a mut [T],
}

impl<T: Real> Work<'_, T> {
    fn with(sizes: &Attention<T>, score_blocks: usize, f: impl FnOnce(Work<'_, T>)) {
        let Attention { queries, keys, head_dim, .. } = *sizes;
        let arch = arch();
        let lanes = lanes::<T>(arch);
        let width = keys.next_multiple_of(lanes).max(lanes);
        let rows = queries.min(BLOCK_QUERIES);
        let panel_len = packed_len::<T>(head_dim, keys).max(packed_len::<T>(keys.max(rows), head_dim));
        let panel_len = panel_len.next_multiple_of(64 / size_of::<T>());
        let scores_len = rows * width;
        let block_len = block_scratch_len::<T>(keys.max(head_dim).max(rows));
        let len = 4 * panel_len + score_blocks * scores_len + BLOCK_QUERIES + block_len;
        with_scratch(len, |memory: &mut [T]| {
            let mut memory = memory;
            let mut take = |len: usize| memory.split_off_mut(..len).unwrap_or_default();
            let panels = std::array::from_fn(|_| take(panel_len));
            let scores = std::array::from_fn(|i| take(if i < score_blocks { scores_len } else { 0 }));
            let (block, sums) = (take(block_len), take(BLOCK_QUERIES));
            f(Work { arch, keys, head_dim, width, panels, scores, sums, block });
        });
    }

    /// Packs `scale b` to panels `to`.
    fn pack(&mut self, to: usize, b: Matrix<'_, T>, scale: T) {
        let panels = &mut *self.panels[to];
        pack_panels(self.arch, b, None, (0, b.rows), (0, b.cols), panels);
        if scale != T::ONE {
            let panels = &mut panels[..packed_len::<T>(b.rows, b.cols)];
            self.arch.dispatch(
                #[inline(always)]
                || panels.iter_mut().for_each(|x| *x = *x * scale),
            );
        }
    }

    /// `scores[to] = a[first..first + rows] * panels[panels]`.
    fn scores(&mut self, to: usize, panels: usize, a: Matrix<'_, T>, first: usize, rows: usize) {
        self.arch.dispatch(Block {
            a,
            i0: first,
            p0: 0,
            m: rows,
            n: self.width,
            k: self.head_dim,
            panels: &*self.panels[panels],
            c: &mut *self.scores[to],
            c_row_stride: self.width,
            add: false,
            scratch: &mut *self.block,
        });
    }

    /// `c (+)= s * panels[panels]`, where `s` is the first rows of `scores[from]`, or those transposed.
    /// `c` has a row for each row of `s` and starts at its first element.
    fn times_panels(
        &mut self,
        (from, rows, transposed): (usize, usize, bool),
        panels: usize,
        (c, c_row_stride): (&mut [T], usize),
        add: bool,
    ) {
        let (row_stride, col_stride) = (self.width, 1);
        let data = &*self.scores[from];
        let a = Matrix { data, rows, cols: self.keys, row_stride, col_stride };
        let a = if transposed { a.t() } else { a };
        self.arch.dispatch(Block {
            a,
            i0: 0,
            p0: 0,
            m: a.rows,
            n: self.head_dim,
            k: a.cols,
            panels: &*self.panels[panels],
            c,
            c_row_stride,
            add,
            scratch: &mut *self.block,
        });
    }
}

/// Some rows of scores.
struct Rows<'a, T> {
    scores: &'a mut [T],
    width: usize,
    keys: usize,
    /// The query of the first row.
    first: usize,
    causal: bool,
}

impl<T: Real> Rows<'_, T> {
    /// Each row as registers, with negative infinity for the keys that its query doesn't see.
    #[inline(always)]
    fn masked<S: Simd>(&mut self) -> impl Iterator<Item = &mut [T::Vector<S>]> {
        let Self { keys, first, causal, .. } = *self;
        self.scores.chunks_exact_mut(self.width).enumerate().map(
            #[inline(always)]
            move |(i, row)| {
                let visible = if causal { keys.min(first + i + 1) } else { keys };
                for x in &mut row[visible..] {
                    *x = T::NEG_INFINITY;
                }
                T::as_vectors_mut::<S>(row).0
            },
        )
    }
}

/// Turns rows of scores into probabilities.
struct Softmax<'a, T> {
    rows: Rows<'a, T>,
    /// Written: a number for each row.
    log_sum_exp: &'a mut [T],
    /// Working memory: a number for each row.
    totals: &'a mut [T],
}

impl<T: Real> WithSimd for Softmax<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { mut rows, log_sum_exp, totals } = self;
        let sums = log_sum_exp.iter_mut().zip(&mut *totals);
        for (row, (sum, total)) in rows.masked::<S>().zip(sums) {
            let mut largest = T::splat(simd, T::NEG_INFINITY);
            for x in &*row {
                largest = T::max_vectors(simd, largest, *x);
            }
            *sum = T::max_lane(simd, largest);
            let shift = T::splat(simd, T::default() - *sum);
            let mut sums = T::splat(simd, T::default());
            for x in &mut *row {
                *x = T::exp_vectors(simd, T::add_vectors(simd, *x, shift));
                sums = T::add_vectors(simd, sums, *x);
            }
            *total = T::sum_lanes(simd, sums);
            let share = T::splat(simd, T::ONE / *total);
            for x in row {
                *x = T::mul_vectors(simd, *x, share);
            }
        }
        for (sum, total) in log_sum_exp.iter_mut().zip(totals) {
            *sum += total.ln();
        }
    }
}

/// Turns rows of scores into probabilities again.
struct SoftmaxAgain<'a, T> {
    rows: Rows<'a, T>,
    /// A number for each row.
    log_sum_exp: &'a [T],
}

impl<T: Real> WithSimd for SoftmaxAgain<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for (row, sum) in self.rows.masked::<S>().zip(self.log_sum_exp) {
            let shift = T::splat(simd, T::default() - *sum);
            for x in row {
                *x = T::exp_vectors(simd, T::add_vectors(simd, *x, shift));
            }
        }
    }
}

/// `ds = p (ds - rowsum(do o))` for some rows, where `ds` holds `do v^T` before.
struct ScoreGradient<'a, T> {
    p: &'a [T],
    ds: &'a mut [T],
    width: usize,
    o: Matrix<'a, T>,
    d_o: Matrix<'a, T>,
    first: usize,
    rows: usize,
}

impl<T: Real> WithSimd for ScoreGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { p, ds, width, o, d_o, first, rows } = self;
        let rows = p.chunks_exact(width).zip(ds.chunks_exact_mut(width)).take(rows);
        for (i, (p, ds)) in rows.enumerate() {
            let o = &o.data[(first + i) * o.row_stride..][..o.cols];
            let d_o = &d_o.data[(first + i) * d_o.row_stride..][..d_o.cols];
            let dot = dot(simd, o, d_o);
            let shift = T::splat(simd, T::default() - dot);
            let (p, ds) = (T::as_vectors::<S>(p).0, T::as_vectors_mut::<S>(ds).0);
            for (p, ds) in p.iter().zip(ds) {
                *ds = T::mul_vectors(simd, *p, T::add_vectors(simd, *ds, shift));
            }
        }
    }
}

/// The sum of the products of the elements.
#[inline(always)]
fn dot<S: Simd, T: Real>(simd: S, a: &[T], b: &[T]) -> T {
    let ((a, a_rest), (b, b_rest)) = (T::as_vectors::<S>(a), T::as_vectors::<S>(b));
    let mut sum = T::splat(simd, T::default());
    for (a, b) in a.iter().zip(b) {
        sum = T::mul_add(simd, *a, *b, sum);
    }
    if !a_rest.is_empty() {
        let (a, b) = (T::load_partial(simd, a_rest), T::load_partial(simd, b_rest));
        sum = T::mul_add(simd, a, b, sum);
    }
    T::sum_lanes(simd, sum)
}

#[cfg(test)]
mod tests;
