//! Rectangles of a matrix that is written, for loops that share it among threads by columns or by tiles.
#![allow(unsafe_code)] // Rectangles of one matrix lie between each other in memory, as no two slices do.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// Some rows and columns of a matrix that is written.
#[derive(Debug)]
pub(crate) struct RectangleMut<'a, T> {
    /// Where the matrix begins.
    matrix: NonNull<T>,
    row_stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: the elements are borrowed exclusively, as by a `&mut [T]`.
unsafe impl<T: Send> Send for RectangleMut<'_, T> {}

impl<'a, T> RectangleMut<'a, T> {
    /// A matrix of so many rows and columns. A row begins `row_stride` elements behind the one before it.
    ///
    /// # Panics
    /// If rows overlap, or the data are too short. The caller has checked both.
    #[inline(always)]
    pub(crate) fn new(data: &'a mut [T], [rows, columns]: [usize; 2], row_stride: usize) -> Self {
        let end = rows.saturating_sub(1).saturating_mul(row_stride).saturating_add(columns);
        let fits = rows == 0 || end <= data.len();
        assert!(fits && (rows <= 1 || columns <= row_stride), "a matrix to write");
        let (matrix, borrowed) = (NonNull::from(data).cast(), PhantomData);
        RectangleMut { matrix, row_stride, rows: 0..rows, columns: 0..columns, borrowed }
    }

    /// All columns of a matrix with adjacent rows of so many.
    ///
    /// # Panics
    /// If there are no columns. The caller has checked that.
    pub(crate) fn all(data: &'a mut [T], columns: usize) -> Self {
        let rows = data.len() / columns;
        RectangleMut::new(data, [rows, columns], columns)
    }

    /// Rows and columns.
    #[inline(always)]
    pub(crate) fn size(&self) -> [usize; 2] {
        [self.rows.len(), self.columns.len()]
    }

    /// Which rows of the matrix these are.
    #[inline(always)]
    pub(crate) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Which columns of the matrix these are.
    #[inline(always)]
    pub(crate) fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The distance from a row to the next.
    #[inline(always)]
    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// The first columns, and the others.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn split_at(self, first: usize) -> (Self, Self) {
        let Range { start, end } = self.columns;
        assert!(first <= end - start, "columns to split");
        let rows = self.rows.clone();
        (Self { rows, columns: start..start + first, ..self }, Self { columns: start + first..end, ..self })
    }

    /// Some of these rows and columns, counted from the first ones.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline(always)]
    pub(crate) fn part(&mut self, rows: Range<usize>, columns: Range<usize>) -> RectangleMut<'_, T> {
        let within = |some: Range<usize>, all: &Range<usize>| {
            assert!(some.start <= some.end && some.end <= all.len(), "a part of a rectangle");
            all.start + some.start..all.start + some.end
        };
        let (rows, columns) = (within(rows, &self.rows), within(columns, &self.columns));
        RectangleMut { rows, columns, ..*self }
    }

    /// The elements of a row, counted from the first one.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline(always)]
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        self.run(row, 1)
    }

    /// The elements of adjacent rows, or of one row.
    ///
    /// # Panics
    /// If there are fewer rows, or several that are not adjacent.
    #[inline(always)]
    pub(crate) fn run(&mut self, row: usize, count: usize) -> &mut [T] {
        let columns = self.columns.len();
        assert!(row < self.rows.len() && count <= self.rows.len() - row, "rows of a rectangle");
        assert!(count == 1 || columns == self.row_stride, "adjacent rows");
        // SAFETY: the rows and columns are within the matrix of `new`, which is borrowed exclusively as long as this is: several rows
        // are adjacent, so that all elements between them are theirs. What others write of it are other elements, since
        // `split_at` and `Tiles` give away each of them once.
        unsafe {
            let first = self.as_mut_ptr().wrapping_add(row * self.row_stride);
            slice::from_raw_parts_mut(first, count * columns)
        }
    }

    /// Where the first row begins; for instructions that write several rows at once.
    #[inline(always)]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut T {
        self.matrix.as_ptr().wrapping_add(self.rows.start * self.row_stride + self.columns.start)
    }

    /// Tiles of so many rows and columns, or what is left of them at the edges: those of the first columns come first.
    ///
    /// # Panics
    /// If a tile has no rows or no columns. The caller has checked that.
    pub(crate) fn tiles(self, [rows, columns]: [usize; 2]) -> Tiles<'a, T> {
        let count = self.rows.len().div_ceil(rows) * self.columns.len().div_ceil(columns);
        Tiles { all: self, tile: [rows, columns], left: 0..count }
    }
}

/// Tiles of a rectangle.
#[derive(Debug)]
pub(crate) struct Tiles<'a, T> {
    all: RectangleMut<'a, T>,
    tile: [usize; 2],
    left: Range<usize>,
}

impl<'a, T> Tiles<'a, T> {
    /// The first tiles, and the others.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn split_at(self, first: usize) -> (Self, Self) {
        let Tiles { all, tile, left: Range { start, end } } = self;
        assert!(first <= end - start, "tiles to split");
        let (rows, columns) = (all.rows(), all.columns());
        let same = RectangleMut { rows, columns, ..all };
        (Tiles { all: same, tile, left: start..start + first }, Tiles { all, tile, left: start + first..end })
    }
}

impl<'a, T> Iterator for Tiles<'a, T> {
    type Item = RectangleMut<'a, T>;

    fn next(&mut self) -> Option<RectangleMut<'a, T>> {
        let index = self.left.next()?;
        let RectangleMut { ref rows, ref columns, .. } = self.all;
        let tiles = rows.len().div_ceil(self.tile[0]);
        let side = |all: &Range<usize>, index: usize, side: usize| {
            let start = all.start + index * side;
            start..all.end.min(start + side)
        };
        let (rows, columns) =
            (side(rows, index % tiles, self.tile[0]), side(columns, index / tiles, self.tile[1]));
        Some(RectangleMut { rows, columns, ..self.all })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl<T> ExactSizeIterator for Tiles<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_in_one_tile_however_they_are_divided() {
        for ([rows, columns], tile) in
            [([7, 10], [3, 4]), ([1, 1], [5, 5]), ([6, 8], [6, 2]), ([0, 3], [2, 2]), ([12, 5], [4, 9])]
        {
            let row_stride = columns + 3;
            let mut data = vec![0; rows * row_stride];
            let mut all = RectangleMut::new(&mut data, [rows, columns], row_stride);
            let tiles = all.part(0..rows, 0..columns).tiles(tile);
            let count = tiles.len();
            let (first, rest) = tiles.split_at(count / 3);
            let (second, third) = rest.split_at(count / 2 - count / 3);
            assert_eq!(first.len() + second.len() + third.len(), count);
            for mut tile in first.chain(second).chain(third) {
                let ([m, n], i0, j0) = (tile.size(), tile.rows().start, tile.columns().start);
                for i in 0..m {
                    let row = tile.row(i);
                    assert_eq!(row.len(), n);
                    row.iter_mut().enumerate().for_each(|(j, x)| *x += 100 * (i0 + i) + j0 + j + 1);
                }
            }
            for (i, row) in data.chunks(row_stride).enumerate() {
                let expected = (0..row_stride).map(|j| if j < columns { 100 * i + j + 1 } else { 0 });
                assert!(row.iter().copied().eq(expected), "row {i} of {rows} x {columns}: {row:?}");
            }
        }
    }

    #[test]
    fn adjacent_rows_are_one_slice() {
        let mut data: Vec<_> = (0..12).collect();
        let mut all = RectangleMut::all(&mut data, 3);
        assert_eq!(all.part(1..4, 0..3).run(1, 2), [6, 7, 8, 9, 10, 11]);
        assert_eq!(all.part(1..3, 1..3).row(1), [7, 8]);
    }

    #[test]
    #[should_panic(expected = "adjacent rows")]
    fn rows_with_elements_of_others_between_them_are_no_slice() {
        let mut data = [0; 12];
        RectangleMut::all(&mut data, 3).part(0..2, 0..2).run(0, 2);
    }

    #[test]
    #[should_panic(expected = "a matrix to write")]
    fn a_matrix_ends_where_its_elements_do() {
        let mut data = [0; 11];
        RectangleMut::new(&mut data, [3, 4], 4);
    }
}
