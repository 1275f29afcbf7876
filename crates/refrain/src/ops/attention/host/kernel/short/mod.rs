//! Attention over short sequences: a register holds the same element of as many sequences as it has lanes.
//!
//! The queries of a head of a short sequence do not fill a register, and what must be done for each head before its
//! products takes longer than the products. Here, one pass processes a head of many sequences, whose elements are
//! transposed on the way from and to memory.
//!
//! A lane does what the kernels for long sequences do for a head, in the same order. So both give the same bits.

mod backward;
mod forward;
mod products;

use pulp::Simd;

use super::scores::Block;
use super::{Added, Attention, DroppedWeights, HeadLayout, Heads, REGISTER};
use crate::device::cpu::numeric::Real;
use crate::kernels::elementwise::{Lines, LinesMut, transpose};
use crate::kernels::products::host::Matrix;
pub(super) use backward::{Backward, scratch_len as backward_scratch_len};
pub(super) use forward::{Forward, scratch_len as forward_scratch_len};

/// The maximum number of queries and of keys.
const MAX_TOKENS: usize = 8;

/// Elements of a token that are transposed together, at least: whole cache lines.
const MIN_WIDTH: usize = 16;

/// Registers for the tokens of all operands, at most: 256 KiB of the L2 cache. The more is read of a sequence at a time, the
/// better memory is prefetched.
const MAX_REGISTERS: usize = 1 << 12;

/// Whether this way is the faster one.
pub(super) fn suits<T>(sizes: &Attention<'_, T>) -> bool {
    sizes.queries.max(sizes.keys) <= MAX_TOKENS && 2 * sizes.batch >= lanes::<T>()
}

/// The lanes of the widest register.
pub(super) const fn lanes<T>() -> usize {
    REGISTER / size_of::<T>()
}

/// How many heads of a token are transposed together, if they are adjacent.
fn max_group<T>(sizes: &Attention<'_, T>) -> usize {
    let Attention { heads, queries, keys, head_dim, .. } = *sizes;
    let fits = MAX_REGISTERS / ((3 * queries + 2 * keys) * head_dim);
    fits.max(MIN_WIDTH.div_ceil(head_dim)).min(heads)
}

/// How many heads of a token are transposed together.
fn group<T>(sizes: &Attention<'_, T>, layouts: &[HeadLayout]) -> usize {
    let are_adjacent = layouts.iter().all(|layout| layout.head_stride == sizes.head_dim);
    if are_adjacent { max_group(sizes) } else { 1 }
}

/// The sequences in the lanes of a register.
#[derive(Clone, Copy)]
struct Lanes {
    /// The first sequence.
    first: usize,
    /// How many there are. Further lanes have any values.
    count: usize,
}

impl Lanes {
    /// Element `i` of each sequence becomes register `i` of `to`. `from` begins with the first sequence; the next one is
    /// `step` elements away.
    #[inline(always)]
    fn load<S: Simd, T: Real>(self, from: &[T], step: usize, to: &mut [T::Vector<S>]) {
        let rows = to.len();
        let to = LinesMut { data: bytemuck::cast_slice_mut(to), step: T::lanes::<S>() };
        transpose(Lines { data: from, step }, to, rows, self.count);
    }

    /// The reverse of [`load`](Self::load).
    #[inline(always)]
    fn store<S: Simd, T: Real>(self, from: &[T::Vector<S>], to: &mut [T], step: usize) {
        let columns = from.len();
        let from = Lines { data: bytemuck::cast_slice(from), step: T::lanes::<S>() };
        transpose(from, LinesMut { data: to, step }, self.count, columns);
    }

    /// Loads `width` elements of each token, from a head on.
    #[inline(always)]
    fn load_tokens<S: Simd, T: Real>(
        self,
        x: Heads<'_, T>,
        head: usize,
        width: usize,
        to: &mut [T::Vector<S>],
    ) {
        for (token, to) in to.chunks_exact_mut(width).enumerate() {
            self.load::<S, T>(&x.data[x.at(self.first, token, head)..], x.layout.batch_stride, to);
        }
    }

    /// The reverse of [`load_tokens`](Self::load_tokens).
    #[inline(always)]
    fn store_tokens<S: Simd, T: Real>(
        self,
        from: &[T::Vector<S>],
        width: usize,
        head: usize,
        to: &mut [T],
        layout: HeadLayout,
    ) {
        for (token, from) in from.chunks_exact(width).enumerate() {
            self.store::<S, T>(from, &mut to[layout.at(self.first, token, head)..], layout.batch_stride);
        }
    }

    /// Loads the scores to add to those of a head, (queries, keys).
    #[inline(always)]
    fn load_scores<S: Simd, T: Real>(
        self,
        x: Added<'_, T>,
        head: usize,
        keys: usize,
        to: &mut [T::Vector<S>],
    ) {
        for (query, to) in to.chunks_exact_mut(keys).enumerate() {
            self.load::<S, T>(x.from(self.first, head, query), x.strides[0], to);
        }
    }

    /// The factors of all weights of each sequence: 0 for those that are dropped.
    #[inline(always)]
    fn dropout_factors<S: Simd, T: Real>(self, dropped: &DroppedWeights<'_, T>, to: &mut [T::Vector<S>]) {
        let rows = to.len() / dropped.keys.max(1);
        let to: &mut [T] = bytemuck::cast_slice_mut(to);
        for lane in 0..self.count {
            let mut to = to.iter_mut().skip(lane).step_by(T::lanes::<S>());
            dropped.for_each((self.first + lane) * rows, rows, |is_kept| {
                if let Some(to) = to.next() {
                    *to = if is_kept { dropped.scale } else { T::ZERO };
                }
            });
        }
    }
}

/// Drops the weights whose factor is 0, and scales the others.
#[inline(always)]
fn apply_dropout<S: Simd, T: Real>(factors: &[T::Vector<S>], x: &mut [T::Vector<S>]) {
    let (factors, x): (&[T], &mut [T]) = (bytemuck::cast_slice(factors), bytemuck::cast_slice_mut(x));
    for (x, factor) in x.iter_mut().zip(factors) {
        *x = if *factor == T::ZERO { T::ZERO } else { *x * *factor };
    }
}

/// The first `rows` tokens of a head, of tokens with `width` elements.
fn tokens<V>(data: &[V], [rows, head_dim, width]: [usize; 3]) -> Matrix<'_, V> {
    Matrix { data, rows, cols: head_dim, row_stride: width, col_stride: 1 }
}

/// Which queries see which keys: all queries are one block.
fn block<T>(sizes: &Attention<'_, T>) -> Block {
    let Attention { queries, causal, past, .. } = *sizes;
    Block { first: 0, rows: queries, width: queries, causal, past }
}

/// Writes `value` where a query does not see one of the keys before `end`.
#[inline(always)]
fn fill_unseen<V: Copy>(block: Block, keys: usize, end: usize, scores: &mut [V], value: V) {
    for (i, scores) in scores.chunks_exact_mut(keys).enumerate() {
        scores[block.seen(i, keys)..end].fill(value);
    }
}
