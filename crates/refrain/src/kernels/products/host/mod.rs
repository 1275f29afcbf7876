//! Matrix products on the CPU, with fused epilogues.
//!
//! [`gemm`] handles every shape and every stride. [`weight_gradient`] also computes the sums over the tokens for a
//! bias. Both use one blocked algorithm: a block of `b` is packed into panels as wide as four registers, threads
//! process different rectangles of the result ([`Terms::rectangle`]), and an innermost loop keeps a tile of it in registers.
//! Contiguous rows or columns of `a` are read in place; only an `a` with neither is packed. If `a` has few rows, it can be
//! packed instead of `b` ([`swapped`]).
//!
//! Each element of a product is summed in the order of the reduced dimension, in blocks of a fixed size. If that
//! dimension is long and the result small, only a split sum gives all threads work. Then it is split into parts whose
//! number depends only on the shape, and the parts are added in order. A matrix times a vector is a dot product for each
//! row. So the result is the same, bit for bit, for any number of threads.
//!
//! Where the processor has instructions for pairs of bf16, an element of a factor may be such a pair ([`Terms`]). That of AVX-512
//! adds its two products one after the other, so results have the same bits as without it, except where a number is subnormal.
//! The tiles of AMX ([`in_tiles`]) add 32 products first, so the last bits differ from those of other processors.

pub(crate) mod block;
mod epilogue;
mod in_tiles;
pub(crate) mod pack;
mod reduction;
mod swapped;
mod terms;
#[cfg(test)]
mod tests;
pub(crate) mod tile;
mod vector;

use rayon::prelude::*;

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored};
use crate::device::cpu::parallel;
use crate::device::cpu::rectangle::{RectangleMut, Tiles};
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::device::cpu::simd::arch;
use block::{Block, block_scratch_len};
pub(crate) use epilogue::Epilogue;
use epilogue::Finish;
use pack::{Packing, packed_len, panel_width};
pub(crate) use terms::{MulAdd, Single, Terms};
pub(crate) use vector::vector_product;

/// A matrix to read: element `(i, j)` is `data[i * row_stride + j * col_stride]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    /// The elements; may be longer than needed.
    pub data: &'a [T],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Distance from a row to the next, in elements.
    pub row_stride: usize,
    /// Distance from a column to the next, in elements.
    pub col_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A matrix with contiguous, adjacent rows.
    pub(crate) fn row_major(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// Rows `first..first + rows`.
    #[inline(always)]
    pub(crate) fn rows_from(self, first: usize, rows: usize) -> Self {
        Self { data: &self.data[first * self.row_stride..], rows, ..self }
    }

    /// The matrix with other elements in the same places.
    fn with_data<U>(self, data: &[U]) -> Matrix<'_, U> {
        let Self { rows, cols, row_stride, col_stride, .. } = self;
        Matrix { data, rows, cols, row_stride, col_stride }
    }

    /// The transposed matrix.
    #[must_use]
    #[inline(always)]
    pub(crate) fn t(self) -> Self {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Self { data, rows: cols, cols: rows, row_stride: col_stride, col_stride: row_stride }
    }
}

/// A matrix to write: element `(i, j)` is `data[i * row_stride + j]`.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a, T> {
    /// The elements; may be longer than needed. Elements between the rows do not change.
    pub data: &'a mut [T],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Distance from a row to the next, in elements; at least `cols`.
    pub row_stride: usize,
}

impl<'a, T> MatrixMut<'a, T> {
    /// A matrix with adjacent rows.
    pub(crate) fn row_major(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, row_stride: cols }
    }

    /// The elements from the first to the end of the last row.
    fn used(self) -> &'a mut [T] {
        let len = if self.rows == 0 { 0 } else { (self.rows - 1) * self.row_stride + self.cols };
        &mut self.data[..len]
    }

    fn rectangle(self) -> RectangleMut<'a, T> {
        RectangleMut::new(self.data, [self.rows, self.cols], self.row_stride)
    }
}

/// Whether a result replaces the destination or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accumulate {
    /// The destination is written and never read.
    Replace,
    /// The result is added to the destination.
    Add,
}

impl Accumulate {
    /// What a launch asks for its result `o`.
    pub(crate) fn of(args: &HostArgs<'_>, o: usize) -> Accumulate {
        if args.accumulate(o) { Accumulate::Add } else { Accumulate::Replace }
    }
}

/// Rows of a block of `b`, after which sums are added to the result. Times the width of a panel, this is its share of the L2 cache.
pub(crate) const BLOCK_K: usize = 256;
/// Columns of `b` that are packed at a time.
const BLOCK_N: usize = 1024;
/// Bytes of `b` that several threads pack at a time.
const PACKED: usize = 1 << 22;
/// Rows of the result that a thread without others computes at a time: a multiple of [`Terms::rows_of_blocks`] and of every tile's height.
pub(crate) const BLOCK_M: usize = 96;
/// With fewer multiplications, one thread does everything.
const PARALLEL: usize = 1 << 17;

/// `c = epilogue(a b)`, or with [`Accumulate::Add`] `c = epilogue(c + a b)`.
///
/// `a` is (m, k), `b` (k, n) and `c` (m, n), where k counts elements: numbers or pairs, as `terms` says.
///
/// # Panics
///
/// If shapes disagree or a slice is too short for its matrix. The caller has checked both.
pub(crate) fn gemm<T: Real, M: Terms<T>>(
    terms: M,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: MatrixMut<'_, T>,
    accumulate: Accumulate,
    epilogue: Epilogue<'_, T>,
) {
    assert_eq!((a.rows, a.cols, b.cols), (c.rows, b.rows, c.cols), "shapes of a product");
    if M::COUNT == 1 && epilogue.is_empty() && a.cols > 0 {
        if b.cols == 1 && a.col_stride == 1 {
            return vector_product(a, b.t(), c, accumulate);
        }
        if a.rows == 1 && b.row_stride == 1 {
            let c = MatrixMut { rows: c.cols, cols: 1, row_stride: 1, ..c };
            return vector_product(b.t(), a, c, accumulate);
        }
    }
    let (m, n, k) = (a.rows, b.cols, a.cols);
    if epilogue.is_empty() && reduction::is_tall([m, n, k * M::COUNT]) {
        return reduction::product(terms, (&a.t(), &b, k), c, None, accumulate);
    }
    if m == 0 || n == 0 {
        return;
    }
    let splits = m * n * k.max(1) >= PARALLEL;
    if epilogue.is_empty() && accumulate == Accumulate::Replace && swapped::suits(a, b) {
        return swapped::product(terms, a, b, c, splits);
    }
    let bias = epilogue.bias;
    // Several threads pack many blocks at once, so that they meet less often; one thread packs as much as its cache holds.
    let depth = depth::<T, M>();
    let most = if splits && parallel::threads() > 1 {
        (PACKED / size_of::<T>() / packed_len::<T>(0, n.min(BLOCK_N)) / depth * depth).max(depth)
    } else {
        depth
    };
    let mut product = Product::new(terms, a, c, accumulate, epilogue, splits);
    for packing in packings::<T, M>([k, n], most) {
        with_scratch(packing.len::<T>(), |panels: &mut [T]| {
            packing.pack(b, bias.filter(|_| packing.p0 == 0), panels, splits);
            product.add(packing, panels);
        });
    }
}

/// Rows of elements of a block of `b`.
fn depth<T: Real, M: Terms<T>>() -> usize {
    BLOCK_K / M::COUNT
}

/// What is packed at once of a factor of `k` rows and `n` columns: at most so many rows. An empty sum is packed, too.
fn packings<T: Real, M: Terms<T>>([k, n]: [usize; 2], most: usize) -> impl Iterator<Item = Packing> {
    (0..n).step_by(BLOCK_N).flat_map(move |j0| {
        (0..k.max(1)).step_by(most).map(move |p0| {
            let (k, n) = (most.min(k - p0), BLOCK_N.min(n - j0));
            Packing { p0, k, depth: depth::<T, M>(), j0, n }
        })
    })
}

/// A second factor that is packed once, with the bias, for several products.
pub(crate) struct Packed<T> {
    panels: Scratch<T>,
    rows: usize,
    columns: usize,
}

impl<T: Real> Packed<T> {
    pub(crate) fn of<M: Terms<T>>(_terms: M, b: Matrix<'_, T>, bias: Option<&[T]>) -> Packed<T> {
        let (rows, columns) = (b.rows, b.cols);
        let all = || packings::<T, M>([rows, columns], rows.max(1));
        let mut panels = Scratch::new(all().map(Packing::len::<T>).sum());
        let mut rest = &mut *panels;
        for packing in all() {
            let (panels, after) = rest.split_at_mut(packing.len::<T>());
            packing.pack(b, bias, panels, true);
            rest = after;
        }
        Packed { panels, rows, columns }
    }

    /// The number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// [`gemm`] with this factor and its bias, on this thread. `terms` are those of [`of`](Self::of).
    pub(crate) fn product<M: Terms<T>>(
        &self,
        terms: M,
        a: Matrix<'_, T>,
        c: MatrixMut<'_, T>,
        accumulate: Accumulate,
        epilogue: Epilogue<'_, T>,
    ) {
        let shape = (c.rows, self.rows, c.cols);
        assert_eq!((a.rows, a.cols, self.columns), shape, "shapes of a product");
        let mut product = Product::new(terms, a, c, accumulate, epilogue, false);
        let mut rest = &*self.panels;
        for packing in packings::<T, M>([self.rows, self.columns], self.rows.max(1)) {
            let (panels, after) = rest.split_at(packing.len::<T>());
            product.add(packing, panels);
            rest = after;
        }
    }
}

/// A product to which the packed blocks of the second factor are added.
struct Product<'a, T, M> {
    terms: M,
    a: Matrix<'a, T>,
    c: RectangleMut<'a, T>,
    accumulate: Accumulate,
    /// Without the bias, which is packed, and without the input of the activation.
    epilogue: Epilogue<'a, T>,
    kept: Option<RectangleMut<'a, T>>,
    splits: bool,
}

/// Tiles of a result, and those of the input of its activation.
struct Written<'a, T> {
    c: Tiles<'a, T>,
    kept: Option<Tiles<'a, T>>,
}

impl<T> Written<'_, T> {
    fn split_at(self, first: usize) -> (Self, Self) {
        let (c, rest) = self.c.split_at(first);
        let (kept, others) = self.kept.map(|kept| kept.split_at(first)).unzip();
        (Written { c, kept }, Written { c: rest, kept: others })
    }
}

impl<'a, T: Real, M: Terms<T>> Product<'a, T, M> {
    fn new(
        terms: M,
        a: Matrix<'a, T>,
        c: MatrixMut<'a, T>,
        accumulate: Accumulate,
        mut epilogue: Epilogue<'a, T>,
        splits: bool,
    ) -> Self {
        // An empty sum has no elements to step over.
        let a = if a.cols == 0 { Matrix { row_stride: 0, col_stride: 0, ..a } } else { a };
        let kept = epilogue.pre_activation.take().map(MatrixMut::rectangle);
        Product { terms, a, c: c.rectangle(), accumulate, epilogue, kept, splits }
    }

    /// Adds the products with what is packed of the second factor. After the last of some columns comes their epilogue.
    // One copy for `gemm` and `Packed`: with one in each, a step of `large` took 2 to 5 % longer.
    #[inline(never)]
    fn add(&mut self, packing: Packing, panels: &[T]) {
        let Product { terms, a, splits, ref epilogue, .. } = *self;
        let Packing { p0, k, depth, j0, n } = packing;
        let (m, arch) = (a.rows, arch());
        let add = p0 > 0 || self.accumulate == Accumulate::Add;
        let finish = p0 + k == a.cols && !(epilogue.is_only_bias() && self.kept.is_none());
        let Epilogue { activation, gradient, residual, .. } = *epilogue;
        let block =
            |mut c: RectangleMut<'_, T>, pre_activation: Option<RectangleMut<'_, T>>, scratch: &mut [T]| {
                let ([rows, columns], i0, j) = (c.size(), c.rows().start, c.columns().start - j0);
                for (p, k, panels) in packing.blocks(panels, j) {
                    let (c, add) = (c.part(0..rows, 0..columns), add || p > p0);
                    terms.compute(Block { a, i0, p0: p, k, panels, c, add, scratch: &mut *scratch });
                }
                if finish {
                    arch.dispatch(Finish { activation, gradient, residual, pre_activation, c });
                }
            };
        let tile = match if splits { parallel::threads() } else { 1 } {
            1 => [BLOCK_M, n],
            threads => terms.rectangle(threads, [m, n], panel_width::<T>(arch).1),
        };
        let c = self.c.part(0..m, j0..j0 + n).tiles(tile);
        let kept = self.kept.as_mut().map(|kept| kept.part(0..m, j0..j0 + n).tiles(tile));
        parallel::share(
            splits,
            c.len(),
            Written { c, kept },
            Written::split_at,
            &|Written { c, mut kept }| {
                with_scratch(block_scratch_len::<T>(depth.min(k)), |scratch| {
                    for c in c {
                        block(c, kept.as_mut().and_then(Tiles::next), scratch);
                    }
                });
            },
        );
    }
}

/// The gradients of `y = x w^T + b` by `w` and `b`: `dw (+)= dy^T x`, and `db (+)=` the sums of the columns of `dy`.
///
/// `dy` is (tokens, out), `x` (tokens, in), `dw` (out, in) and `db` has `out` elements. The columns of `dy` and `x` are divided into
/// elements. Their rows are contiguous, if they have another type than the result.
///
/// # Panics
///
/// If shapes disagree or a slice is too short for its matrix. The caller has checked both.
pub(crate) fn weight_gradient<A: Stored, T: Real, M: Terms<T>>(
    terms: M,
    dy: Matrix<'_, A>,
    x: Matrix<'_, A>,
    dw: MatrixMut<'_, T>,
    db: Option<&mut [T]>,
    accumulate: Accumulate,
) {
    assert_eq!(dy.rows, x.rows, "tokens of a product");
    if reduction::is_tall([dy.cols, x.cols, dy.rows]) {
        let k = dy.rows.div_ceil(M::COUNT);
        let (dy, x) = (reduction::Numbers { terms, x: dy }, reduction::Numbers { terms, x });
        reduction::product(terms, (&dy, &x, k), dw, db, accumulate);
    } else {
        let (a, b) = (terms.elements(dy.t()), terms.elements(x.t()));
        gemm(terms, a.matrix(), b.matrix().t(), dw, accumulate, Epilogue::default());
        if let Some(db) = db {
            reduction::column_sums(dy, db, accumulate);
        }
    }
}

/// Calls `f` with the index and the slice of each chunk, on all threads or on this one.
fn for_each_chunk<T: Send>(slice: &mut [T], len: usize, splits: bool, f: impl Fn(usize, &mut [T]) + Sync) {
    parallel::for_each(splits, slice.par_chunks_mut(len).enumerate(), |(index, chunk)| f(index, chunk));
}
