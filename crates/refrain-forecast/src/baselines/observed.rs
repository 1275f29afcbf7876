//! A linear fit that ignores values that were not observed.

use super::cholesky::dot;
use crate::data::series::{Grid, Part};
use rayon::prelude::*;

/// The filled values of a part that windows would forecast.
pub(super) struct FilledTargets<'a> {
    columns: &'a [Vec<f64>],
    /// For each channel, the filled rows of the part.
    rows: Vec<Vec<usize>>,
    /// For each row of the part, whether a window begins there.
    starts: Vec<bool>,
    context: usize,
}

impl FilledTargets<'_> {
    /// The filled targets of a part with these columns.
    pub(super) fn of<'a>(
        grid: &Grid,
        part: &Part,
        columns: &'a [Vec<f64>],
        context: usize,
    ) -> FilledTargets<'a> {
        let mut starts = vec![false; part.rows.len()];
        part.starts().for_each(|start| starts[start - part.rows.start] = true);
        let filled = |channel: usize| {
            let rows = part.rows.clone().filter(|&row| !grid.is_observed(row, channel));
            rows.map(|row| row - part.rows.start).collect()
        };
        let rows = match part.has_filled() {
            true => (0..grid.channels()).map(filled).collect(),
            false => Vec::new(),
        };
        FilledTargets { columns, rows, starts, context }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.iter().all(Vec::is_empty)
    }

    /// For each window whose value at this step of the horizon was filled: its context and the filled value.
    fn at(&self, step: usize) -> impl Iterator<Item = (&[f64], f64)> + '_ {
        self.rows.iter().zip(self.columns).flat_map(move |(rows, x)| {
            let starts =
                rows.iter().filter_map(move |&row| Some((row.checked_sub(self.context + step)?, row)));
            let windows = starts.filter(|&(start, _)| self.starts[start]);
            windows.map(|(start, row)| (&x[start..start + self.context], x[row]))
        })
    }
}

/// A least-squares fit over all windows: `H w = c`, where `w` has the weights of one step and a bias. Contexts are
/// centred.
pub(super) struct Fit<'a> {
    /// The mean context.
    pub(super) mean: &'a [f64],
    /// The inverse of `H` [context, context] (the mean over all windows, ridge included).
    pub(super) inverse: &'a [f64],
    /// Number of windows, summed over the channels.
    pub(super) count: f64,
}

/// Weights and bias, for a context minus its mean.
#[derive(Clone)]
struct Line {
    weights: Vec<f64>,
    bias: f64,
}

impl Line {
    fn dot(&self, other: &Line) -> f64 {
        dot(&self.weights, &other.weights) + self.bias * other.bias
    }

    /// `self + scale other`.
    fn add(&mut self, scale: f64, other: &Line) {
        self.weights.iter_mut().zip(&other.weights).for_each(|(sum, more)| *sum += scale * more);
        self.bias += scale * other.bias;
    }
}

impl Fit<'_> {
    /// Removes the filled values from a fit to all values: `weights` [context, horizon], `bias` [horizon], for a
    /// context minus its mean.
    ///
    /// The weights of a step solve `(H - D) w = c - d`, where `D` and `d` are the sums over the filled values of the
    /// step. `H` is already factorised, so conjugate gradients with `H` as preconditioner need only a few iterations:
    /// the more values are filled, the more iterations.
    pub(super) fn without(&self, filled: &FilledTargets<'_>, weights: &mut [f64], bias: &mut [f64]) {
        let horizon = bias.len();
        let fitted: Vec<Line> = (0..horizon)
            .into_par_iter()
            .map(|step| {
                let weights = weights.iter().skip(step).step_by(horizon).copied().collect();
                self.step(filled, step, Line { weights, bias: bias[step] })
            })
            .collect();
        for (step, line) in fitted.into_iter().enumerate() {
            weights
                .iter_mut()
                .skip(step)
                .step_by(horizon)
                .zip(line.weights)
                .for_each(|(old, new)| *old = new);
            bias[step] = line.bias;
        }
    }

    fn step(&self, filled: &FilledTargets<'_>, step: usize, mut line: Line) -> Line {
        const RELATIVE: f64 = 1e-20; // of the squared error
        // The gradient over all windows is zero, so only that of the filled values remains.
        let mut residual = self.sum(filled, step, &line, 1.0);
        let mut solved = self.solve(&residual);
        // The direction, and H times the direction, which follows from residuals without H.
        let (mut direction, mut by_h) = (solved.clone(), residual.clone());
        let mut error = residual.dot(&solved);
        let enough = error * RELATIVE;
        for _ in 0..2 * line.weights.len() {
            if error.is_nan() || error <= enough {
                break;
            }
            let mut product = by_h.clone();
            product.add(-1.0, &self.sum(filled, step, &direction, 0.0));
            let curvature = direction.dot(&product);
            if curvature.is_nan() || curvature <= 0.0 {
                break; // no observed value constrains the line
            }
            line.add(error / curvature, &direction);
            residual.add(-error / curvature, &product);
            solved = self.solve(&residual);
            let before = std::mem::replace(&mut error, residual.dot(&solved));
            for (old, new) in [(&mut direction, &solved), (&mut by_h, &residual)] {
                let previous = std::mem::replace(old, new.clone());
                old.add(error / before, &previous);
            }
        }
        line
    }

    /// `sum x (line(x) - by y) / count` over the filled values `y` of a step, where `x` is a context minus its mean.
    fn sum(&self, filled: &FilledTargets<'_>, step: usize, line: &Line, by: f64) -> Line {
        let mut sum = Line { weights: vec![0.0; self.mean.len()], bias: 0.0 };
        let at_mean = dot(self.mean, &line.weights) - line.bias;
        for (x, y) in filled.at(step) {
            let error = (dot(x, &line.weights) - at_mean - by * y) / self.count;
            sum.weights.iter_mut().zip(x).for_each(|(sum, x)| *sum += error * x);
            sum.bias += error;
        }
        let total = sum.bias;
        sum.weights.iter_mut().zip(self.mean).for_each(|(sum, mean)| *sum -= total * mean);
        sum
    }

    /// `H^-1 r`. Contexts are centred, so the bias is independent of the weights.
    fn solve(&self, r: &Line) -> Line {
        let weights = self.inverse.chunks_exact(self.mean.len()).map(|row| dot(row, &r.weights)).collect();
        Line { weights, bias: r.bias }
    }
}
