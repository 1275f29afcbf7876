//! Products of small matrices whose elements are registers: one product for each lane.

use pulp::{NullaryFnOnce, Simd};

use crate::device::cpu::numeric::Real;
use crate::device::cpu::simd::Vectors;
use crate::kernels::products::host::Matrix;

/// The height and width of a tile of sums.
const ROWS: usize = 2;
const COLUMNS: usize = 4;

/// `c = a b`. The sums are in the order of the reduced dimension. Either the rows of `b` are contiguous, or both its columns
/// and the rows of `a`.
#[inline(always)]
pub(super) fn product<S: Simd, T: Real>(
    simd: S,
    a: Matrix<'_, T::Vector<S>>,
    b: Matrix<'_, T::Vector<S>>,
    c: &mut [T::Vector<S>],
    c_row_stride: usize,
) {
    // A separate function: with all products inlined, a kernel would exceed the instruction cache.
    simd.vectorize(Product::<T, S> { simd, a, b, c, c_row_stride });
}

struct Product<'a, T: Vectors, S: Simd> {
    simd: S,
    a: Matrix<'a, T::Vector<S>>,
    b: Matrix<'a, T::Vector<S>>,
    c: &'a mut [T::Vector<S>],
    c_row_stride: usize,
}

impl<T: Real, S: Simd> NullaryFnOnce for Product<'_, T, S> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let whole = self.a.rows / ROWS * ROWS;
        for i in (0..whole).step_by(ROWS) {
            self.rows::<ROWS>(i);
        }
        for i in whole..self.a.rows {
            self.rows::<1>(i);
        }
    }
}

impl<T: Real, S: Simd> Product<'_, T, S> {
    #[inline(always)]
    fn rows<const R: usize>(&mut self, i: usize) {
        let whole = self.b.cols / COLUMNS * COLUMNS;
        for j in (0..whole).step_by(COLUMNS) {
            self.tile::<R, COLUMNS>(i, j);
        }
        for j in whole..self.b.cols {
            self.tile::<R, 1>(i, j);
        }
    }

    #[inline(always)]
    fn tile<const R: usize, const C: usize>(&mut self, i: usize, j: usize) {
        let Self { simd, a, b, ref mut c, c_row_stride } = *self;
        let mut sums = [[T::splat(simd, T::ZERO); C]; R];
        if b.col_stride == 1 {
            for p in 0..a.cols {
                let b = &b.data[p * b.row_stride + j..][..C];
                for r in 0..R {
                    let a = a.data[(i + r) * a.row_stride + p * a.col_stride];
                    for c in 0..C {
                        sums[r][c] = T::mul_add(simd, a, b[c], sums[r][c]);
                    }
                }
            }
        } else {
            // A single known length lets the compiler remove the bounds checks of the loop.
            let (mut rows, mut columns) = ([&a.data[..0]; R], [&b.data[..0]; C]);
            for r in 0..R {
                rows[r] = &a.data[(i + r) * a.row_stride..][..a.cols];
            }
            for c in 0..C {
                columns[c] = &b.data[(j + c) * b.col_stride..][..a.cols];
            }
            for p in 0..a.cols {
                for r in 0..R {
                    for c in 0..C {
                        sums[r][c] = T::mul_add(simd, rows[r][p], columns[c][p], sums[r][c]);
                    }
                }
            }
        }
        for r in 0..R {
            for (c, to) in c[(i + r) * c_row_stride + j..][..C].iter_mut().enumerate() {
                *to = sums[r][c];
            }
        }
    }
}
