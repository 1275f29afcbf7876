//! Cholesky factorisation and triangular solves of small dense systems: f64, row-major.

use rayon::prelude::*;

/// The lower factor `L` of a symmetric positive definite `[n, n]` matrix: `A = L L'`. It reads only the lower
/// triangle of `a`. `None` if a pivot is not positive.
pub(super) fn factor(a: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut l = vec![0.0; n * n];
    for i in 0..n {
        let (above, rest) = l.split_at_mut(i * n);
        let row = &mut rest[..n];
        for j in 0..i {
            let other = &above[j * n..][..n];
            row[j] = (a[i * n + j] - dot(&row[..j], &other[..j])) / other[j];
        }
        let pivot = a[i * n + i] - dot(&row[..i], &row[..i]);
        if pivot.is_nan() || pivot <= 0.0 {
            return None;
        }
        row[i] = pivot.sqrt();
    }
    Some(l)
}

/// How many right-hand sides a task of the thread pool solves.
const COLUMNS_AT_ONCE: usize = 32;

/// Solves `L L' X = B` in place for `[n, columns]` right-hand sides.
pub(super) fn solve(l: &[f64], n: usize, b: &mut [f64], columns: usize) {
    let solve_some = |some: std::ops::Range<usize>| {
        let width = some.len();
        let mut x: Vec<f64> = b.chunks_exact(columns).flat_map(|row| &row[some.clone()]).copied().collect();
        for i in 0..n {
            eliminate(&mut x, width, i, 0..i, |j| l[i * n + j], l[i * n + i]);
        }
        for i in (0..n).rev() {
            eliminate(&mut x, width, i, i + 1..n, |j| l[j * n + i], l[i * n + i]);
        }
        (some, x)
    };
    let firsts = (0..columns).step_by(COLUMNS_AT_ONCE);
    let parts: Vec<_> = firsts.map(|first| first..columns.min(first + COLUMNS_AT_ONCE)).collect();
    let solved: Vec<_> = parts.into_par_iter().map(solve_some).collect();
    for (some, x) in solved {
        for (row, x) in b.chunks_exact_mut(columns).zip(x.chunks_exact(some.len())) {
            row[some.clone()].copy_from_slice(x);
        }
    }
}

/// Replaces row i of b by `(b_i - sum_j factor(j) b_j) / pivot`.
fn eliminate(
    b: &mut [f64],
    columns: usize,
    i: usize,
    others: std::ops::Range<usize>,
    factor: impl Fn(usize) -> f64,
    pivot: f64,
) {
    let mut row = b[i * columns..][..columns].to_vec();
    for j in others {
        let factor = factor(j);
        for (value, &other) in row.iter_mut().zip(&b[j * columns..][..columns]) {
            *value -= factor * other;
        }
    }
    row.iter_mut().for_each(|value| *value /= pivot);
    b[i * columns..][..columns].copy_from_slice(&row);
}

/// Inner product with eight independent sums, so that the compiler can vectorise it.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a8.remainder().iter().zip(b8.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a8.zip(b8) {
        for lane in 0..8 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solves_what_it_factored() {
        let (n, columns) = (13, 70);
        let root: Vec<f64> = (0..n * n).map(|i| ((i * 37) % 17) as f64 / 17.0 - 0.4).collect();
        let row = |i: usize| &root[i * n..][..n];
        let a: Vec<f64> = (0..n * n)
            .map(|i| dot(row(i / n), row(i % n)) + if i / n == i % n { 0.1 } else { 0.0 })
            .collect();
        let x: Vec<f64> = (0..n * columns).map(|i| i as f64).collect();
        let mut b = vec![0.0; n * columns];
        for (i, j, c) in (0..n * n * columns).map(|k| (k / (n * columns), k / columns % n, k % columns)) {
            b[i * columns + c] += a[i * n + j] * x[j * columns + c];
        }
        solve(&factor(&a, n).unwrap(), n, &mut b, columns);
        for (got, want) in b.iter().zip(&x) {
            assert!((got - want).abs() < 1e-9, "{got} {want}");
        }
    }

    #[test]
    fn refuses_what_is_not_positive_definite() {
        assert!(factor(&[1.0, 2.0, 2.0, 1.0], 2).is_none());
        assert!(factor(&[f64::NAN], 1).is_none());
    }
}
