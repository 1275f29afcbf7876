//! Cholesky factors and systems of equations on the CPU, in blocks: what is beside a block is a matrix product.

use std::cmp::Ordering;
use std::sync::{Mutex, PoisonError};

use super::{SolveTriangular, Square};
use crate::device::HostArgs;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::error::{Error, Result};
use crate::kernels::elementwise::{Lines, LinesMut, transpose};
use crate::kernels::products::host::{Accumulate, Epilogue, Matrix, MatrixMut, Single, gemm};
use crate::types::DType;

/// Rows and columns of a block.
const BLOCK: usize = 64;
/// Rows below a block that are one product.
const STRIP: usize = 256;

/// The first matrix that can't be used, and the row or column at which that shows.
#[derive(Default)]
struct Failures(Mutex<Option<(usize, usize)>>);

impl Failures {
    fn add(&self, matrix: usize, at: usize) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *first = Some(first.map_or((matrix, at), |first| first.min((matrix, at))));
    }

    fn first(self) -> Option<(usize, usize)> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn cholesky(args: &HostArgs<'_>) -> Result<()> {
    match args.write_dtype(0) {
        DType::F64 => factor_all::<f64>(args),
        _ => factor_all::<f32>(args),
    }
}

fn factor_all<R: Real>(args: &HostArgs<'_>) -> Result<()> {
    let n = Square::of(args.read_shape(0)).n;
    let (x, y) = (args.read::<R>(0)?, args.write::<R>(0)?);
    let (all, failures) = (y.len() * n, Failures::default());
    parallel::pieces_that_read(y, n * n, all, |i, l| {
        l.copy_from_slice(&x[i * n * n..][..n * n]);
        if let Err(row) = factor(l, n) {
            l.fill(R::c(f64::NAN));
            failures.add(i, row);
        }
    });
    failures.first().map_or(Ok(()), |(matrix, row)| args.fault(named(args.op(), NOT_DEFINITE, matrix, row)))
}

/// The factor of a matrix, of which the lower triangle counts, in its place; or the row at which the matrix is not positive definite.
fn factor<R: Real>(l: &mut [R], n: usize) -> std::result::Result<(), usize> {
    let mut block = Scratch::<R>::new(BLOCK * BLOCK);
    let mut copies = Scratch::<R>::new(if n > BLOCK { 2 * n * BLOCK } else { 0 });
    for first in (0..n).step_by(BLOCK) {
        let size = BLOCK.min(n - first);
        let rest = first + size;
        // As an upper triangle, whose rows are contiguous.
        let upper = &mut block[..size * size];
        let from = Lines { data: &l[first * (n + 1)..], step: n };
        transpose(from, LinesMut { data: &mut *upper, step: size }, size, size);
        factor_block(upper, size).map_err(|row| first + row)?;
        for (r, to) in l[first * n..rest * n].chunks_exact_mut(n).enumerate() {
            for (c, to) in to[first..=first + r].iter_mut().enumerate() {
                *to = upper[c * size + r];
            }
        }
        if rest == n {
            break;
        }
        // Below the block: the rows of `x` of `x u = a`, and then what they take away from the columns beside.
        let (solved, negated) = copies[..2 * (n - rest) * size].split_at_mut((n - rest) * size);
        let below = &mut l[rest * n..];
        parallel::pieces_that_read(below, n, (n - rest) * size * size, |_, row| {
            divide_row(&mut row[first..rest], upper, size);
        });
        let rows = below.chunks_exact(n).zip(solved.chunks_exact_mut(size));
        for ((row, solved), negated) in rows.zip(negated.chunks_exact_mut(size)) {
            solved.copy_from_slice(&row[first..rest]);
            negated.iter_mut().zip(&*solved).for_each(|(to, &v)| *to = -v);
        }
        for (strip, (a, c)) in negated.chunks(STRIP * size).zip(below.chunks_mut(STRIP * n)).enumerate() {
            let rows = c.len() / n;
            let columns = strip * STRIP + rows;
            let a = Matrix::row_major(a, rows, size);
            let b = Matrix::row_major(&*solved, columns, size).t();
            let c = MatrixMut { data: &mut c[rest..], rows, cols: columns, row_stride: n };
            gemm(Single, a, b, c, Accumulate::Add, Epilogue::default());
        }
    }
    for (r, row) in l.chunks_exact_mut(n).enumerate() {
        row[r + 1..].fill(R::ZERO);
    }
    Ok(())
}

/// The factor `u` of a block `u^T u`, in the place of its upper triangle.
fn factor_block<R: Real>(u: &mut [R], size: usize) -> std::result::Result<(), usize> {
    simd(
        #[inline(always)]
        || {
            for j in 0..size {
                let (above, below) = u.split_at_mut((j + 1) * size);
                let row = &mut above[j * size..];
                if !is_positive(row[j]) {
                    return Err(j);
                }
                let root = row[j].sqrt();
                row[j] = root;
                row[j + 1..].iter_mut().for_each(|v| *v = *v / root);
                for (i, to) in below.chunks_exact_mut(size).enumerate() {
                    let i = j + 1 + i;
                    let factor = row[i];
                    to[i..].iter_mut().zip(&row[i..]).for_each(|(to, &v)| *to = *to - factor * v);
                }
            }
            Ok(())
        },
    )
}

/// The row `x` of `x u = row`, in its place.
fn divide_row<R: Real>(row: &mut [R], u: &[R], size: usize) {
    simd(
        #[inline(always)]
        || {
            for (j, u) in u.chunks_exact(size).enumerate() {
                let v = row[j] / u[j];
                row[j] = v;
                row[j + 1..].iter_mut().zip(&u[j + 1..]).for_each(|(to, &u)| *to = *to - v * u);
            }
        },
    );
}

/// What a matrix and a row are said to be.
pub(super) const NOT_DEFINITE: &str = "matrix {0} of the batch is not positive definite, which shows at row {1}; if it nearly is, add a small multiple of the identity to it";

/// What a matrix and a column are said to be.
pub(super) const SINGULAR: &str =
    "matrix {0} of the batch is singular, which shows at column {1}: its equations do not have one solution";

fn named(op: &'static str, text: &str, matrix: usize, row: usize) -> Error {
    Error::invalid(op, text.replace("{0}", &matrix.to_string()).replace("{1}", &row.to_string()))
}

pub(super) fn solve(args: &HostArgs<'_>) -> Result<()> {
    match args.write_dtype(0) {
        DType::F64 => solve_by_factors::<f64>(args),
        _ => solve_by_factors::<f32>(args),
    }
}

fn solve_by_factors<R: Real>(args: &HostArgs<'_>) -> Result<()> {
    let failures = Failures::default();
    each_system::<R>(args, |i, a, y, [n, k]| {
        let mut factors = Scratch::<R>::new(n * n);
        factors.copy_from_slice(a);
        match eliminate(&mut factors, y, n, k) {
            Ok(()) => substitute(Matrix::row_major(&factors, n, n), true, y, k),
            Err(column) => {
                y.fill(R::c(f64::NAN));
                failures.add(i, column);
            }
        }
    })?;
    failures.first().map_or(Ok(()), |(matrix, column)| args.fault(named(args.op(), SINGULAR, matrix, column)))
}

/// Calls `f` with the number of each matrix, the matrix, its right sides, which become the solution, and the sizes of these.
fn each_system<R: Real>(
    args: &HostArgs<'_>,
    f: impl Fn(usize, &[R], &mut [R], [usize; 2]) + Sync,
) -> Result<()> {
    let shape = args.write_shape(0);
    let (n, k) = (shape[shape.rank() - 2], shape[shape.rank() - 1]);
    let (a, y) = (args.read::<R>(0)?, args.write::<R>(0)?);
    let b = if args.in_place(1).is_some() { None } else { Some(args.read::<R>(1)?) };
    let all = y.len() * n;
    parallel::pieces_that_read(y, n * k, all, |i, y| {
        if let Some(b) = b {
            y.copy_from_slice(&b[i * n * k..][..n * k]);
        }
        f(i, &a[i * n * n..][..n * n], y, [n, k]);
    });
    Ok(())
}

/// Makes an upper triangle of `a`, by adding multiples of rows to those below, the largest number of a column first; and does the same to
/// `y`. Or the column in which there is none but 0.
fn eliminate<R: Real>(a: &mut [R], y: &mut [R], n: usize, k: usize) -> std::result::Result<(), usize> {
    let mut negated = Scratch::<R>::new(if n > BLOCK { n * BLOCK } else { 0 });
    for first in (0..n).step_by(BLOCK) {
        let size = BLOCK.min(n - first);
        let rest = first + size;
        for j in first..rest {
            // NaN is larger than all numbers; of equal ones, the first counts.
            let size_of = |row: usize| a[row * n + j].abs().to_f64();
            let largest = (j..n).max_by(|&r, &s| size_of(r).total_cmp(&size_of(s)).then(Ordering::Greater));
            let pivot = largest.unwrap_or(j);
            if !is_positive(a[pivot * n + j].abs()) {
                return Err(j);
            }
            swap_rows(a, n, j, pivot);
            swap_rows(y, k, j, pivot);
            let (above, below) = a.split_at_mut((j + 1) * n);
            let top = &above[j * n..];
            simd(
                #[inline(always)]
                || {
                    for row in below.chunks_exact_mut(n) {
                        let factor = row[j] / top[j];
                        row[j] = factor;
                        row[j + 1..rest]
                            .iter_mut()
                            .zip(&top[j + 1..rest])
                            .for_each(|(to, &v)| *to = *to - factor * v);
                    }
                },
            );
        }
        // The same in the columns beside, first of the rows of the block.
        for r in first + 1..rest {
            let (above, below) = a.split_at_mut(r * n);
            let (factors, own) = below[..n].split_at_mut(rest);
            let (solved, rows) = y.split_at_mut(r * k);
            simd(
                #[inline(always)]
                || {
                    for q in first..r {
                        let factor = factors[q];
                        own.iter_mut()
                            .zip(&above[q * n + rest..][..n - rest])
                            .for_each(|(to, &v)| *to = *to - factor * v);
                        rows[..k]
                            .iter_mut()
                            .zip(&solved[q * k..][..k])
                            .for_each(|(to, &v)| *to = *to - factor * v);
                    }
                },
            );
        }
        let m = n - rest;
        if m == 0 {
            break;
        }
        let (above, below) = a.split_at_mut(rest * n);
        for (to, row) in negated[..m * size].chunks_exact_mut(size).zip(below.chunks_exact(n)) {
            to.iter_mut().zip(&row[first..rest]).for_each(|(to, &v)| *to = -v);
        }
        let factors = Matrix::row_major(&negated[..m * size], m, size);
        let solved =
            Matrix { data: &above[first * n + rest..], rows: size, cols: m, row_stride: n, col_stride: 1 };
        let c = MatrixMut { data: &mut below[rest..], rows: m, cols: m, row_stride: n };
        gemm(Single, factors, solved, c, Accumulate::Add, Epilogue::default());
        let (solved, c) = y.split_at_mut(rest * k);
        let (solved, c) = (Matrix::row_major(&solved[first * k..], size, k), MatrixMut::row_major(c, m, k));
        gemm(Single, factors, solved, c, Accumulate::Add, Epilogue::default());
    }
    Ok(())
}

/// NaN is not.
#[inline(always)]
fn is_positive<R: Real>(x: R) -> bool {
    x > R::ZERO
}

fn swap_rows<R>(x: &mut [R], width: usize, row: usize, below: usize) {
    if row < below {
        let (above, rest) = x.split_at_mut(below * width);
        above[row * width..][..width].swap_with_slice(&mut rest[..width]);
    }
}

pub(super) fn solve_triangular(op: &SolveTriangular, args: &HostArgs<'_>) -> Result<()> {
    match args.write_dtype(0) {
        DType::F64 => solve_all::<f64>(op, args),
        _ => solve_all::<f32>(op, args),
    }
}

fn solve_all<R: Real>(op: &SolveTriangular, args: &HostArgs<'_>) -> Result<()> {
    each_system::<R>(args, |_, a, y, [n, k]| {
        let a = Matrix::row_major(a, n, n);
        substitute(if op.transposed { a.t() } else { a }, op.upper != op.transposed, y, k);
    })
}

/// The solution of `a y = y`, whose rows have `k` elements, in its place, where `a` is a triangle.
fn substitute<R: Real>(a: Matrix<'_, R>, upper: bool, y: &mut [R], k: usize) {
    let n = a.rows;
    let mut negated = Scratch::<R>::new(if n > BLOCK { n * BLOCK } else { 0 });
    let at = |row: usize, column: usize| a.data[row * a.row_stride + column * a.col_stride];
    let blocks = n.div_ceil(BLOCK);
    for block in 0..blocks {
        let first = BLOCK * if upper { blocks - 1 - block } else { block };
        let size = BLOCK.min(n - first);
        let (before, rest) = y.split_at_mut(first * k);
        let (own, behind) = rest.split_at_mut(size * k);
        substitute_block(|row, column| at(first + row, first + column), upper, own, k, size);
        // What the solved rows take away from the others.
        let (others, from) = if upper { (before, 0) } else { (behind, first + size) };
        let rows = others.len() / k;
        if rows == 0 {
            continue;
        }
        for (r, to) in negated[..rows * size].chunks_exact_mut(size).enumerate() {
            to.iter_mut().enumerate().for_each(|(c, to)| *to = -at(from + r, first + c));
        }
        let (a, b) =
            (Matrix::row_major(&negated[..rows * size], rows, size), Matrix::row_major(own, size, k));
        let c = MatrixMut::row_major(others, rows, k);
        gemm(Single, a, b, c, Accumulate::Add, Epilogue::default());
    }
}

/// The same for one block.
fn substitute_block<R: Real>(
    at: impl Fn(usize, usize) -> R,
    upper: bool,
    y: &mut [R],
    k: usize,
    size: usize,
) {
    simd(
        #[inline(always)]
        || {
            for step in 0..size {
                let row = if upper { size - 1 - step } else { step };
                let (before, rest) = y.split_at_mut(row * k);
                let (own, behind) = rest.split_at_mut(k);
                let diagonal = at(row, row);
                own.iter_mut().for_each(|v| *v = *v / diagonal);
                let (others, from) = if upper { (before, 0) } else { (behind, row + 1) };
                for (r, to) in others.chunks_exact_mut(k).enumerate() {
                    let factor = at(from + r, row);
                    to.iter_mut().zip(&*own).for_each(|(to, &v)| *to = *to - factor * v);
                }
            }
        },
    );
}
