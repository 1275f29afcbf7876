//! Packs blocks of a matrix into the order in which the innermost loops read them.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::Matrix;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::parallel;
use crate::device::cpu::simd::arch;
use crate::kernels::elementwise::{Lines, LinesMut, transpose};

/// From this many elements on, several threads pack.
const PARALLEL: usize = 1 << 14;

/// The width of a full panel in registers: four if there are 32 registers, otherwise two.
#[inline(always)]
pub(crate) fn panel_vectors<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 4 } else { 2 }
}

/// The lanes of a register and the columns of a full panel on this machine.
pub(crate) fn panel_width<T: Real>(arch: Arch) -> (usize, usize) {
    arch.dispatch(PanelWidth::<T>(std::marker::PhantomData))
}

struct PanelWidth<T>(std::marker::PhantomData<T>);

impl<T: Real> WithSimd for PanelWidth<T> {
    type Output = (usize, usize);

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> (usize, usize) {
        (T::lanes::<S>(), T::lanes::<S>() * panel_vectors::<S>())
    }
}

/// The number of elements of a packed block of `k` rows and `n` columns, on any machine.
pub(crate) fn packed_len<T>(k: usize, n: usize) -> usize {
    // No register is wider than 64 bytes.
    (k + 1) * n.next_multiple_of(64 / size_of::<T>())
}

/// What of a second factor `b` is packed at once: `b[p0..p0 + k, j0..j0 + n]`, as blocks of at most `depth` rows.
///
/// The columns become panels with the width of [`panel_vectors`] registers; the last one is as narrow as possible. A panel is stored
/// block by block, and row by row; columns past the end are zeros. Before the rows of a block comes one with the starting values of the
/// sums. An empty sum has a block, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    pub p0: usize,
    pub k: usize,
    pub depth: usize,
    pub j0: usize,
    pub n: usize,
}

impl Packing {
    /// All of a factor of `k` rows and `n` columns as one block.
    pub(crate) fn one_block(k: usize, n: usize) -> Packing {
        Packing { p0: 0, k, depth: k.max(1), j0: 0, n }
    }

    /// The number of blocks.
    fn count(self) -> usize {
        self.k.div_ceil(self.depth).max(1)
    }

    /// The first row of each block, how many it has, and its panels from a column on, at which one begins. `packed` is all that was
    /// packed.
    pub(super) fn blocks<T>(
        self,
        packed: &[T],
        column: usize,
    ) -> impl Iterator<Item = (usize, usize, Panels<'_, T>)> {
        let (Packing { p0, k, depth, .. }, rows) = (self, self.rows());
        let all = &packed[column * rows..];
        (0..self.count()).map(move |block| {
            let panels = Panels { all, rows, before: block * (depth + 1) };
            (p0 + block * depth, depth.min(k - block * depth), panels)
        })
    }

    /// The number of elements of all panels, on any machine.
    pub(crate) fn len<T>(self) -> usize {
        packed_len::<T>(self.rows() - 1, self.n)
    }

    /// Rows of a panel in all blocks.
    fn rows(self) -> usize {
        self.k + self.count()
    }

    /// Packs this of `b`. The sums of the first block start at `start[j0..j0 + n]`, all others at zero. Only with `splits` may several
    /// threads pack.
    pub(crate) fn pack<T: Real>(self, b: Matrix<'_, T>, start: Option<&[T]>, packed: &mut [T], splits: bool) {
        let (arch, layout) = (arch(), Layout::of::<T>(self));
        let Layout { lanes, widest, .. } = layout;
        let Packing { p0, k, j0, n, .. } = self;
        let splits = splits && k * n >= PARALLEL && parallel::allowed();
        // One thread reads whole rows, which memory is prefetched for.
        let by_rows = !splits && b.col_stride == 1 && k * n > 0;
        let [_, count] = layout.counts();
        let packed = &mut packed[..self.rows() * n.next_multiple_of(lanes)];
        if by_rows {
            let b = Matrix { data: &b.data[p0 * b.row_stride + j0..], rows: k, cols: n, ..b };
            arch.dispatch(PackByRows { b, depth: self.depth, packed: &mut *packed });
        }
        let pieces = Pieces { layout, packed, left: 0..count };
        parallel::share(splits, count, pieces, Pieces::split_at, &|pieces| {
            pieces.for_each(|piece, mut rows| {
                let columns = widest.min(n - piece.column);
                let width = columns.next_multiple_of(lanes);
                if piece.row == 0 {
                    let (first, others) = rows.split_at_mut(width);
                    first.fill(T::default());
                    if let Some(start) = start.filter(|_| piece.first == 0) {
                        first[..columns].copy_from_slice(&start[j0 + piece.column..][..columns]);
                    }
                    rows = others;
                }
                if by_rows || rows.is_empty() {
                    return;
                }
                let data = &b.data[(p0 + piece.first + piece.row) * b.row_stride..];
                let data = &data[(j0 + piece.column) * b.col_stride..];
                arch.dispatch(PackRows { b: Matrix { data, ..b }, columns, width, rows });
            });
        });
    }
}

/// Rows of a panel that are packed at a time.
const ROWS: usize = 64;

/// The panels of a block.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a, T> {
    /// All blocks of these panels.
    all: &'a [T],
    /// Rows of a panel in all blocks, and before those of this block.
    rows: usize,
    before: usize,
}

impl<'a, T> Panels<'a, T> {
    /// Those of [`Packing::one_block`], of `k` rows.
    pub(crate) fn of_one_block(all: &'a [T], k: usize) -> Self {
        Panels { all, rows: k + 1, before: 0 }
    }

    /// The first `rows` rows of the panel that begins at a column.
    #[inline(always)]
    pub(super) fn panel(self, column: usize, width: usize, rows: usize) -> &'a [T] {
        &self.all[column * self.rows + self.before * width..][..rows * width]
    }
}

/// Where the panels of a [`Packing`] lie.
#[derive(Clone, Copy)]
struct Layout {
    packing: Packing,
    lanes: usize,
    widest: usize,
}

/// Some rows of a panel.
struct Piece {
    /// The first column of the panel and the first row of the block, from those of the packing on.
    column: usize,
    first: usize,
    /// The first row, from that of the block on. With row 0 comes the one before it.
    row: usize,
}

impl Layout {
    /// That of a packing on this machine.
    fn of<T: Real>(packing: Packing) -> Layout {
        let (lanes, widest) = panel_width::<T>(arch());
        Layout { packing, lanes, widest }
    }

    /// Pieces of a block of a panel, and all of them.
    fn counts(self) -> [usize; 2] {
        let Packing { k, depth, n, .. } = self.packing;
        let pieces = depth.min(k).div_ceil(ROWS).max(1);
        [pieces, n.div_ceil(self.widest) * self.packing.count() * pieces]
    }

    fn piece(self, index: usize) -> Piece {
        let ([pieces, _], blocks) = (self.counts(), self.packing.count());
        let (block, row) = (index / pieces, index % pieces * ROWS);
        let (column, first) = (block / blocks * self.widest, block % blocks * self.packing.depth);
        Piece { column, first, row }
    }

    /// The elements before a piece.
    fn offset(self, index: usize) -> usize {
        let Packing { k, depth, n, .. } = self.packing;
        let Piece { column, first, row } = self.piece(index);
        let width = self.widest.min((n - column.min(n)).next_multiple_of(self.lanes));
        let before = if row == 0 { 0 } else { 1 + row.min(depth.min(k - first)) };
        column.min(n.next_multiple_of(self.lanes)) * self.packing.rows()
            + (first / depth * (depth + 1) + before) * width
    }
}

/// Panels to be packed, in pieces.
struct Pieces<'a, T> {
    layout: Layout,
    packed: &'a mut [T],
    left: Range<usize>,
}

impl<'a, T> Pieces<'a, T> {
    fn split_at(self, first: usize) -> (Self, Self) {
        let Pieces { layout, packed, left: Range { start, end } } = self;
        let (own, others) = packed.split_at_mut(layout.offset(start + first) - layout.offset(start));
        let own = Pieces { layout, packed: own, left: start..start + first };
        (own, Pieces { layout, packed: others, left: start + first..end })
    }

    fn for_each(self, mut f: impl FnMut(Piece, &mut [T])) {
        let Pieces { layout, mut packed, left } = self;
        let mut at = layout.offset(left.start);
        for index in left {
            let end = layout.offset(index + 1);
            let (own, others) = packed.split_at_mut(end - std::mem::replace(&mut at, end));
            packed = others;
            f(layout.piece(index), own);
        }
    }
}

/// Packs `b`, whose rows are contiguous, into panels of blocks of at most `depth` rows, without the rows before those of a block.
struct PackByRows<'a, T> {
    b: Matrix<'a, T>,
    depth: usize,
    packed: &'a mut [T],
}

impl<T: Real> WithSimd for PackByRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match panel_vectors::<S>() {
            2 => self.panels::<S, 2>(simd),
            _ => self.panels::<S, 4>(simd),
        }
    }
}

impl<T: Real> PackByRows<'_, T> {
    /// Packs into panels as wide as `NV` registers. The last one may be narrower.
    #[inline(always)]
    fn panels<S: Simd, const NV: usize>(self, simd: S) {
        let Self { b, depth, packed } = self;
        let (rows, lanes) = (b.rows + b.rows.div_ceil(depth), T::lanes::<S>());
        let whole = b.cols / (NV * lanes);
        let (panels, last) = packed.split_at_mut(whole * rows * NV * lanes);
        let panels: &mut [[T::Vector<S>; NV]] = bytemuck::cast_slice_mut(T::as_vectors_mut::<S>(panels).0);
        let last_width = (b.cols - whole * NV * lanes).next_multiple_of(lanes);
        for p in 0..b.rows {
            let (row, rest) = b.data[p * b.row_stride..][..b.cols].split_at(whole * NV * lanes);
            let row: &[[T::Vector<S>; NV]] = bytemuck::cast_slice(T::as_vectors::<S>(row).0);
            let at = p + p / depth + 1;
            for (to, x) in panels.iter_mut().skip(at).step_by(rows).zip(row) {
                *to = *x;
            }
            if !rest.is_empty() {
                copy_row(simd, rest, &mut last[at * last_width..][..last_width]);
            }
        }
    }
}

/// Writes a row and zeros after it.
#[inline(always)]
fn copy_row<S: Simd, T: Real>(simd: S, row: &[T], to: &mut [T]) {
    let (row, rest) = T::as_vectors::<S>(row);
    let to = T::as_vectors_mut::<S>(to).0;
    for (to, x) in to.iter_mut().zip(row) {
        *to = *x;
    }
    if !rest.is_empty() {
        to[row.len()] = T::load_partial(simd, rest);
    }
}

/// Packs the first `columns` columns of the first rows of `b` into `rows`, each with `width` elements.
struct PackRows<'a, T> {
    b: Matrix<'a, T>,
    columns: usize,
    width: usize,
    rows: &'a mut [T],
}

impl<T: Real> WithSimd for PackRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { b, columns, width, rows } = self;
        if b.col_stride == 1 {
            for (p, row) in rows.chunks_exact_mut(width).enumerate() {
                copy_row(simd, &b.data[p * b.row_stride..][..columns], row);
            }
            return;
        }
        if columns < width {
            rows.fill(T::default());
        }
        if b.row_stride == 1 {
            let height = rows.len() / width;
            let from = Lines { data: b.data, step: b.col_stride };
            transpose(from, LinesMut { data: rows, step: width }, height, columns);
            return;
        }
        for (p, row) in rows.chunks_exact_mut(width).enumerate() {
            for (c, x) in row[..columns].iter_mut().enumerate() {
                *x = b.data[p * b.row_stride + c * b.col_stride];
            }
        }
    }
}

/// Packs `a[i0..i0 + rows, p0..p0 + k]` column by column, each padded with zeros to `width`. `packed` has `k * width`
/// elements.
#[inline(always)]
pub(crate) fn pack_columns<T: Real>(
    a: Matrix<'_, T>,
    i0: usize,
    p0: usize,
    rows: usize,
    width: usize,
    packed: &mut [T],
) {
    for (p, column) in packed.chunks_exact_mut(width).enumerate() {
        let source = &a.data[i0 * a.row_stride + (p0 + p) * a.col_stride..];
        for (i, x) in column.iter_mut().enumerate() {
            *x = if i < rows { source[i * a.row_stride] } else { T::default() };
        }
    }
}
