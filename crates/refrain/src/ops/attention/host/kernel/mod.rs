//! Scaled dot-product attention for the CPU, forward and backward.
//!
//! For each sequence and head, with `q` (queries, head_dim), `k` and `v` (keys, head_dim):
//!
//! ```text
//! s = scale q k^T        p = softmax of s by rows        o = p v
//! dv = p^T do            ds = p (do v^T - rowsum(do o))  dq = scale ds k      dk = scale ds^T q
//! ```
//!
//! The backward pass recomputes `p` from what the forward pass saves for each row of `s`, (batch, heads, queries):
//! the maximum, and 1 / the sum of `e^(s - maximum)`. The two are saved separately, because the logarithm of the sum
//! would lose digits beside a large score. Both passes compute the scores by the same products, so scores and `p` are
//! equal bit for bit.
//!
//! Scores may be added to `s`, for example a mask, and the sum may be returned for the next layer: then `s` is `scale q
//! k^T + before`. A row whose scores are then all minus infinity has output 0 and gradient 0. Dropout may set weights `p`
//! to zero and scale the others; `dp` is then that of the weights before it.
//!
//! Scores are computed and kept transposed: for each key, a register holds several queries. So the softmax needs no
//! sums across lanes. In the other products, the lanes hold the elements of a head. One block of queries with all its
//! keys is in cache at a time. One kernel call processes a sequence with all its heads, because for short sequences
//! the overhead of one call per product would dominate. Threads process different sequences, so results do not depend
//! on the number of threads.

mod backward;
mod dropped;
mod forward;
mod panels;
mod scores;
#[cfg(test)]
mod tests;

use rayon::iter::Either;
use rayon::prelude::*;

use crate::device::cpu::numeric::Real;
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::arch;
use crate::kernels::products::host::Matrix;
use backward::Backward;
pub(crate) use dropped::DroppedWeights;
use forward::Forward;

/// The maximum number of queries whose scores are kept at a time: whole registers.
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
    /// The factor of the products of queries and keys, usually `1 / sqrt(head_dim)`.
    pub scale: T,
    /// Whether query `i` sees only the keys `0..=i + past`.
    pub causal: bool,
    /// Keys ahead of the first query.
    pub past: usize,
    /// Dropout of the weights.
    pub dropped: Option<DroppedWeights<T>>,
}

/// The layout of queries, keys, values, outputs or their gradients. Element `(batch, token, head, i)` is at `offset +
/// batch * batch_stride + token * token_stride + head * head_stride + i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadLayout {
    /// The first element.
    pub offset: usize,
    /// Distance between sequences, in elements.
    pub batch_stride: usize,
    /// Distance between tokens.
    pub token_stride: usize,
    /// Distance between heads.
    pub head_stride: usize,
}

impl HeadLayout {
    /// The index of the first element of a head of a token.
    #[inline(always)]
    fn at(&self, batch: usize, token: usize, head: usize) -> usize {
        self.offset + batch * self.batch_stride + token * self.token_stride + head * self.head_stride
    }
}

/// Queries, keys, values, outputs or output gradients, to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Their layout.
    pub layout: HeadLayout,
}

impl<'a, T> Heads<'a, T> {
    #[inline(always)]
    fn matrix(&self, batch: usize, head: usize, tokens: usize, head_dim: usize) -> Matrix<'a, T> {
        let data = &self.data[self.layout.at(batch, 0, head)..];
        Matrix { data, rows: tokens, cols: head_dim, row_stride: self.layout.token_stride, col_stride: 1 }
    }
}

/// The gradients of queries, keys and values that the backward pass writes, of all sequences or of one.
#[derive(Debug)]
pub(crate) enum Gradients<'a, T> {
    /// In three separate slices.
    Separate([&'a mut [T]; 3]),
    /// In one slice; the offsets of their layouts distinguish them.
    Packed(&'a mut [T]),
}

impl<T> Gradients<'_, T> {
    /// The slice with the gradient of queries (0), keys (1) or values (2).
    #[inline(always)]
    fn of(&mut self, i: usize) -> &mut [T] {
        match self {
            Gradients::Separate(data) => data[i],
            Gradients::Packed(data) => data,
        }
    }
}

/// Scores to add. Element (batch, head, query, key) is at `batch * strides[0] + head * strides[1] + query * strides[2] +
/// key`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Added<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Distance between sequences, heads and queries.
    pub strides: [usize; 3],
}

impl<'a, T> Added<'a, T> {
    /// The scores from a query on.
    #[inline(always)]
    fn from(&self, batch: usize, head: usize, query: usize) -> &'a [T] {
        let [sequence, of_head, of_query] = self.strides;
        &self.data[batch * sequence + head * of_head + query * of_query..]
    }
}

/// The scores that the forward pass reads and writes, (batch, heads, queries, keys).
#[derive(Debug)]
pub(crate) struct Scores<'a, T> {
    /// Those to add.
    pub before: Option<Added<'a, T>>,
    /// Those for the next layer; 0 where a query does not see a key.
    pub after: Option<&'a mut [T]>,
}

/// The scores that the backward pass needs, and their gradients, (batch, heads, queries, keys).
#[derive(Debug)]
pub(crate) struct ScoreGradients<'a, T> {
    /// The scores that were added.
    pub before: Option<Added<'a, T>>,
    /// The gradient of the scores that were returned.
    pub d_after: Option<&'a [T]>,
    /// The gradient of the scores that were added.
    pub d_before: Option<&'a mut [T]>,
}

/// The part of each sequence, in order; `None` for each if there is nothing.
fn by_sequence<T: Send>(
    x: Option<&mut [T]>,
    batch: usize,
    each: usize,
) -> impl IndexedParallelIterator<Item = Option<&mut [T]>> {
    match x {
        Some(x) => Either::Left(x.par_chunks_mut(each).map(Some)),
        None => Either::Right((0..batch).into_par_iter().map(|_| None)),
    }
}

/// Bytes of the widest SIMD register.
const REGISTER: usize = 64;

/// Writes the output `o` in layout `o_layout` (offset 0, one sequence after the other), the saved statistics of each
/// score row, and the scores to return.
///
/// # Panics
///
/// If a slice is too short for the sizes. The caller has checked that.
pub(crate) fn forward<T: Real>(
    sizes: &Attention<T>,
    qkv: [Heads<'_, T>; 3],
    o: &mut [T],
    o_layout: HeadLayout,
    [largest, inverse]: [&mut [T]; 2],
    Scores { before, after }: Scores<'_, T>,
) {
    let Attention { batch, heads, queries, keys, head_dim, .. } = *sizes;
    if batch * heads * queries * head_dim == 0 {
        return;
    }
    let arch = arch();
    let o = o.par_chunks_mut(o_layout.batch_stride).take(batch);
    let rows = heads * queries;
    let kept = largest.par_chunks_mut(rows).zip(inverse.par_chunks_mut(rows));
    let each = rows * keys;
    let after = by_sequence(after, batch, each);
    let sequences = o.zip(kept).zip(after).enumerate();
    parallel::for_each(true, sequences, |(batch, ((o, (largest, inverse)), after))| {
        let scores = Scores { before, after };
        let kept = [largest, inverse];
        with_scratch(forward::scratch_len(sizes), |memory| {
            arch.dispatch(Forward { sizes, batch, qkv, o, o_layout, kept, scores, memory });
        });
    });
}

/// Writes the gradients of queries, keys and values, given the gradient of the output and what [`forward()`] saved.
/// In the layouts of the gradients, one sequence follows the other: the batch stride spans a whole sequence.
///
/// # Panics
///
/// If a slice is too short for the sizes. The caller has checked that.
pub(crate) fn backward<T: Real>(
    sizes: &Attention<T>,
    qkv: [Heads<'_, T>; 3],
    d_o: Heads<'_, T>,
    kept: [&[T]; 2],
    gradients: Gradients<'_, T>,
    layouts: [HeadLayout; 3],
    ScoreGradients { before, d_after, d_before }: ScoreGradients<'_, T>,
) {
    let Attention { batch, heads, queries, keys, head_dim, .. } = *sizes;
    if batch * heads * (queries + keys) * head_dim == 0 {
        return;
    }
    if queries == 0 {
        if let Gradients::Separate([_, dk, dv]) = gradients {
            dk.fill(T::ZERO);
            dv.fill(T::ZERO);
        }
        return;
    }
    let arch = arch();
    let each = heads * queries * keys;
    let d_before = by_sequence(d_before, batch, each);
    let sequence = |batch: usize, gradients: Gradients<'_, T>, d_before: Option<&mut [T]>| {
        let kept = kept.map(|rows| &rows[batch * heads * queries..][..heads * queries]);
        let d_after = d_after.map(|x| &x[batch * each..][..each]);
        let scores = ScoreGradients { before, d_after, d_before };
        with_scratch(backward::scratch_len(sizes), |memory| {
            arch.dispatch(Backward { sizes, batch, qkv, d_o, kept, gradients, layouts, scores, memory });
        });
    };
    match gradients {
        Gradients::Separate(data) => {
            let [dq, dk, dv] = data;
            let chunks = |data, i: usize| {
                let data: &mut [T] = data;
                data.par_chunks_mut(layouts[i].batch_stride.max(1))
            };
            let (dq, dk, dv) = (chunks(dq, 0), chunks(dk, 1), chunks(dv, 2));
            let all = dq.zip(dk).zip(dv).take(batch).zip(d_before);
            parallel::for_each(true, all.enumerate(), |(batch, (((dq, dk), dv), d_before))| {
                sequence(batch, Gradients::Separate([dq, dk, dv]), d_before);
            });
        }
        Gradients::Packed(data) => {
            let sequences = data.par_chunks_mut(layouts[0].batch_stride).take(batch);
            parallel::for_each(true, sequences.zip(d_before).enumerate(), |(batch, (data, d_before))| {
                sequence(batch, Gradients::Packed(data), d_before);
            });
        }
    }
}
