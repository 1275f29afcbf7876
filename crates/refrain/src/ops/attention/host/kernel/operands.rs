//! Where queries, keys, values and output gradients lie, and how a task reads them in the arithmetic type.

use std::ops::Range;

use smallvec::SmallVec;

use super::Attention;
use crate::device::cpu::numeric::{Real, Stored, convert};
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::widen::Widened;
use crate::kernels::products::host::Matrix;

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
    pub(super) fn at(&self, batch: usize, token: usize, head: usize) -> usize {
        self.offset + batch * self.batch_stride + token * self.token_stride + head * self.head_stride
    }
}

/// Queries, keys, values, outputs or output gradients, to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads<'a, T> {
    /// The elements.
    pub(super) data: &'a [T],
    /// Their layout, from sequence `first` on.
    pub(super) layout: HeadLayout,
    first: usize,
}

impl<'a, T> Heads<'a, T> {
    /// The heads of all sequences.
    pub(crate) fn new(data: &'a [T], layout: HeadLayout) -> Self {
        Self { data, layout, first: 0 }
    }

    /// The index of the first element of a head of a token.
    #[inline(always)]
    pub(super) fn at(&self, batch: usize, token: usize, head: usize) -> usize {
        self.layout.at(batch - self.first, token, head)
    }

    #[inline(always)]
    pub(super) fn matrix(&self, batch: usize, head: usize, tokens: usize, head_dim: usize) -> Matrix<'a, T> {
        let data = &self.data[self.at(batch, 0, head)..];
        Matrix { data, rows: tokens, cols: head_dim, row_stride: self.layout.token_stride, col_stride: 1 }
    }
}

/// `K` operands, some of which may lie in the same memory, as packed queries, keys and values do.
pub(super) struct Operands<'a, A, T, const K: usize> {
    heads: [Heads<'a, A>; K],
    /// The memory in which each lies.
    source_of: [usize; K],
    sources: SmallVec<[Source<'a, A, T>; K]>,
}

/// Memory with operands.
enum Source<'a, A, T> {
    /// All elements in the arithmetic type.
    Whole(Widened<'a, T>),
    /// Elements that each task converts for its sequences: `first` is where those of the first sequence lie, and those of the next
    /// one follow after `stride` elements.
    ByTask { data: &'a [A], first: Range<usize>, stride: usize },
}

impl<'a, A: Stored, T: Real, const K: usize> Operands<'a, A, T, K> {
    /// Operands with their numbers of tokens.
    pub(super) fn of(heads: [(Heads<'a, A>, usize); K], sizes: &Attention<'_, T>) -> Self {
        let (mut source_of, mut sources) = ([0; K], SmallVec::<[Source<'a, A, T>; K]>::new());
        for (i, (x, _)) in heads.iter().enumerate() {
            let is_same = |other: &Heads<'_, A>| std::ptr::eq(other.data, x.data);
            match heads[..i].iter().position(|(other, _)| is_same(other)) {
                Some(before) => source_of[i] = source_of[before],
                None => {
                    source_of[i] = sources.len();
                    let sharing = heads.iter().filter(|(other, _)| is_same(other));
                    sources.push(Source::of(x, sharing, sizes));
                }
            }
        }
        Self { heads: heads.map(|(x, _)| x), source_of, sources }
    }

    /// Calls `f` with the operands in the arithmetic type, in which `count` sequences from `first` on may be read.
    pub(super) fn read(&self, first: usize, count: usize, f: impl FnOnce([Heads<'_, T>; K])) {
        let copies: SmallVec<[Scratch<T>; K]> = self.sources.iter().map(|x| x.copy(first, count)).collect();
        f(std::array::from_fn(|i| {
            let (source, layout) = (self.source_of[i], self.heads[i].layout);
            match &self.sources[source] {
                Source::Whole(x) => Heads::new(x.get(), layout),
                Source::ByTask { first: of_first, .. } => {
                    let layout = HeadLayout { offset: layout.offset - of_first.start, ..layout };
                    Heads { data: &copies[source], layout, first }
                }
            }
        }));
    }
}

impl<'a, A: Stored, T: Real> Source<'a, A, T> {
    /// The memory of `x`, which is that of all operands in `sharing`.
    fn of<'b>(
        x: &Heads<'a, A>,
        sharing: impl Iterator<Item = &'b (Heads<'a, A>, usize)>,
        sizes: &Attention<'_, T>,
    ) -> Self
    where
        'a: 'b,
    {
        if let Some(same) = T::same(x.data) {
            return Source::Whole(Widened::Same(same));
        }
        let stride = x.layout.batch_stride;
        let (mut first, mut is_alike) = (x.layout.offset..x.layout.offset, true);
        for (other, tokens) in sharing {
            let HeadLayout { offset, batch_stride, .. } = other.layout;
            let last = other.layout.at(0, tokens.saturating_sub(1), sizes.heads - 1);
            first = first.start.min(offset)..first.end.max(last + sizes.head_dim);
            is_alike &= batch_stride == stride && *tokens > 0;
        }
        // Sequences that lie one in the other would be converted several times.
        match is_alike && (sizes.batch == 1 || first.len() <= stride) {
            true => Source::ByTask { data: x.data, first, stride },
            false => Source::Whole(Widened::of(x.data)),
        }
    }

    /// The elements of `count` sequences from `from` on, if a task converts them.
    fn copy(&self, from: usize, count: usize) -> Scratch<T> {
        let Source::ByTask { data, first, stride } = self else { return Scratch::new(0) };
        let data = &data[first.start + from * stride..first.end + (from + count - 1) * stride];
        let mut copy = Scratch::new(data.len());
        convert(data, &mut copy);
        copy
    }
}
