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
//! on the number of threads. Operands and results of 16 bits are converted by the task that processes their sequences, while they
//! are in cache. If sequences are so short that their queries do not fill a register, the lanes hold different
//! sequences instead ([`short`]).

mod backward;
mod dropped;
mod forward;
mod operands;
mod panels;
mod scores;
mod short;
#[cfg(test)]
mod tests;

use rayon::prelude::*;

use crate::device::cpu::numeric::{Real, Stored};
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::arch;
use crate::device::cpu::widen::narrow;
use backward::Backward;
pub(crate) use dropped::DroppedWeights;
use forward::Forward;
use operands::Operands;
pub(crate) use operands::{HeadLayout, Heads};

/// The maximum number of queries whose scores are kept at a time: whole registers.
const BLOCK_QUERIES: usize = 64;

/// The sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Attention<'a, T> {
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
    pub dropped: Option<DroppedWeights<'a, T>>,
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

impl<A: Stored> Gradients<'_, A> {
    /// Lets `f` write the gradients in the arithmetic type.
    fn write<T: Real>(self, f: impl FnOnce(Gradients<'_, T>)) {
        match self {
            Gradients::Packed(data) => narrow(data, false, |data| f(Gradients::Packed(data))),
            Gradients::Separate([dq, dk, dv]) => narrow(dq, false, |dq| {
                narrow(dk, false, |dk| {
                    narrow(dv, false, |dv| f(Gradients::Separate([dq, dk, dv])));
                });
            }),
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

/// Bytes of the widest SIMD register.
const REGISTER: usize = 64;

/// What the lanes of a register hold. Both kernels give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    /// Queries of one head.
    Long,
    /// Sequences.
    Short,
}

impl Kernel {
    /// The faster one.
    fn of<T>(sizes: &Attention<'_, T>) -> Kernel {
        if short::suits(sizes) { Kernel::Short } else { Kernel::Long }
    }

    /// How many sequences one task processes.
    fn task_sequences<T>(self) -> usize {
        match self {
            Kernel::Short => short::lanes::<T>(),
            Kernel::Long => 1,
        }
    }

    // The arithmetic is compiled once, and not for each type that operands are stored in.

    #[inline(never)]
    fn forward<T: Real>(self, task: Forward<'_, T>) {
        match self {
            Kernel::Short => arch().dispatch(short::Forward(task)),
            Kernel::Long => arch().dispatch(task),
        }
    }

    #[inline(never)]
    fn backward<T: Real>(self, task: Backward<'_, T>) {
        match self {
            Kernel::Short => arch().dispatch(short::Backward(task)),
            Kernel::Long => arch().dispatch(task),
        }
    }
}

/// Writes the output `o` in layout `o_layout` (offset 0, one sequence after the other), the saved statistics of each
/// score row, and the scores to return.
///
/// # Panics
///
/// If a slice is too short for the sizes. The caller has checked that.
pub(crate) fn forward<A: Stored, T: Real>(
    sizes: &Attention<'_, T>,
    qkv: [Heads<'_, A>; 3],
    o: &mut [A],
    o_layout: HeadLayout,
    kept: [&mut [T]; 2],
    scores: Scores<'_, T>,
) {
    forward_by(Kernel::of(sizes), sizes, qkv, o, o_layout, kept, scores);
}

fn forward_by<A: Stored, T: Real>(
    kernel: Kernel,
    sizes: &Attention<'_, T>,
    [q, k, v]: [Heads<'_, A>; 3],
    o: &mut [A],
    o_layout: HeadLayout,
    [largest, inverse]: [&mut [T]; 2],
    Scores { before, after }: Scores<'_, T>,
) {
    let Attention { batch, heads, queries, keys, head_dim, .. } = *sizes;
    if batch * heads * queries * head_dim == 0 {
        return;
    }
    let operands = Operands::of([(q, queries), (k, keys), (v, keys)], sizes);
    let sequences = kernel.task_sequences::<T>();
    let o = o.par_chunks_mut(sequences * o_layout.batch_stride).take(batch.div_ceil(sequences));
    let rows = sequences * heads * queries;
    let kept = largest.par_chunks_mut(rows).zip(inverse.par_chunks_mut(rows));
    let after = parallel::optional_pieces(after, batch.div_ceil(sequences), rows * keys);
    parallel::for_each(
        true,
        o.zip(kept).zip(after).enumerate(),
        |(task, ((o, (largest, inverse)), after))| {
            let (first, scores) = (task * sequences, Scores { before, after });
            let scratch_len = match kernel {
                Kernel::Short => short::forward_scratch_len(sizes),
                Kernel::Long => forward::scratch_len(sizes),
            };
            let count = largest.len() / (heads * queries);
            let kept = [largest, inverse];
            operands.read(first, count, |qkv| {
                narrow(o, false, |o| {
                    with_scratch(scratch_len, |memory| {
                        kernel.forward(Forward { sizes, first, qkv, o, o_layout, kept, scores, memory });
                    });
                });
            });
        },
    );
}

/// Writes the gradients of queries, keys and values, given the gradient of the output and what [`forward()`] saved.
/// In the layouts of the gradients, one sequence follows the other: the batch stride spans a whole sequence.
///
/// # Panics
///
/// If a slice is too short for the sizes. The caller has checked that.
pub(crate) fn backward<A: Stored, T: Real>(
    sizes: &Attention<'_, T>,
    qkv: [Heads<'_, A>; 3],
    d_o: Heads<'_, A>,
    kept: [&[T]; 2],
    gradients: Gradients<'_, A>,
    layouts: [HeadLayout; 3],
    scores: ScoreGradients<'_, T>,
) {
    backward_by(Kernel::of(sizes), sizes, [qkv[0], qkv[1], qkv[2], d_o], kept, gradients, layouts, scores);
}

fn backward_by<A: Stored, T: Real>(
    kernel: Kernel,
    sizes: &Attention<'_, T>,
    [q, k, v, d_o]: [Heads<'_, A>; 4],
    kept: [&[T]; 2],
    gradients: Gradients<'_, A>,
    layouts: [HeadLayout; 3],
    ScoreGradients { before, d_after, d_before }: ScoreGradients<'_, T>,
) {
    let Attention { batch, heads, queries, keys, head_dim, .. } = *sizes;
    if batch * heads * (queries + keys) * head_dim == 0 {
        return;
    }
    if queries == 0 {
        if let Gradients::Separate([_, dk, dv]) = gradients {
            dk.fill(A::zeroed());
            dv.fill(A::zeroed());
        }
        return;
    }
    let operands = Operands::of([(q, queries), (k, keys), (v, keys), (d_o, queries)], sizes);
    let sequences = kernel.task_sequences::<T>();
    let tasks = batch.div_ceil(sequences);
    let rows = sequences * heads * queries;
    let d_before = parallel::optional_pieces(d_before, tasks, rows * keys);
    let run = |task: usize, gradients: Gradients<'_, A>, d_before: Option<&mut [T]>| {
        let first = task * sequences;
        let count = rows.min((batch - first) * heads * queries);
        let kept = kept.map(|x| &x[task * rows..][..count]);
        let d_after = d_after.map(|x| &x[task * rows * keys..][..count * keys]);
        let scores = ScoreGradients { before, d_after, d_before };
        let scratch_len = match kernel {
            Kernel::Short => short::backward_scratch_len(sizes),
            Kernel::Long => backward::scratch_len(sizes),
        };
        operands.read(first, count / (heads * queries), |[q, k, v, d_o]| {
            gradients.write(|gradients| {
                with_scratch(scratch_len, |memory| {
                    let qkv = [q, k, v];
                    let task = Backward { sizes, first, qkv, d_o, kept, gradients, layouts, scores, memory };
                    kernel.backward(task);
                });
            });
        });
    };
    match gradients {
        Gradients::Separate(data) => {
            let [dq, dk, dv] = data;
            let chunks = |data, i: usize| {
                let data: &mut [A] = data;
                data.par_chunks_mut(sequences * layouts[i].batch_stride.max(1))
            };
            let (dq, dk, dv) = (chunks(dq, 0), chunks(dk, 1), chunks(dv, 2));
            let all = dq.zip(dk).zip(dv).take(tasks).zip(d_before);
            parallel::for_each(true, all.enumerate(), |(task, (((dq, dk), dv), d_before))| {
                run(task, Gradients::Separate([dq, dk, dv]), d_before);
            });
        }
        Gradients::Packed(data) => {
            let data = data.par_chunks_mut(sequences * layouts[0].batch_stride).take(tasks);
            parallel::for_each(true, data.zip(d_before).enumerate(), |(task, (data, d_before))| {
                run(task, Gradients::Packed(data), d_before);
            });
        }
    }
}
