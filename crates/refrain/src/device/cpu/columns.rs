//! The columns of a matrix in strips, for loops along them on several threads.
#![allow(unsafe_code)] // Strips of one matrix lie between each other in memory, as no two slices do.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// Some columns of a matrix that is written.
pub(crate) struct ColumnsMut<'a, T> {
    matrix: NonNull<T>,
    rows: usize,
    row_stride: usize,
    columns: Range<usize>,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: the columns are borrowed exclusively, as by a `&mut [T]`.
unsafe impl<T: Send> Send for ColumnsMut<'_, T> {}

impl<'a, T> ColumnsMut<'a, T> {
    /// All columns of a matrix with adjacent rows of so many.
    ///
    /// # Panics
    /// If there are no columns. The caller has checked that.
    pub(crate) fn all(matrix: &'a mut [T], columns: usize) -> Self {
        let rows = matrix.len() / columns;
        let matrix = NonNull::from(matrix).cast();
        ColumnsMut { matrix, rows, row_stride: columns, columns: 0..columns, borrowed: PhantomData }
    }

    /// Which columns of the matrix these are.
    pub(crate) fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The first ones, and the others.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn split_at(self, first: usize) -> (Self, Self) {
        let Range { start, end } = self.columns;
        assert!(first <= end - start, "columns to split");
        (Self { columns: start..start + first, ..self }, Self { columns: start + first..end, ..self })
    }

    /// The elements of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline(always)]
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "a row of columns");
        let Range { start, end } = self.columns;
        // SAFETY: the columns are within rows that are within the slice of `all`, which is borrowed exclusively as long as this is.
        // Others of its columns are apart from these, since `split_at` gives away each column once.
        unsafe {
            slice::from_raw_parts_mut(self.matrix.add(row * self.row_stride + start).as_ptr(), end - start)
        }
    }
}
