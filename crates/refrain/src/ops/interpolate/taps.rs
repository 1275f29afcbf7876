//! Which elements of an axis an element of the resized axis is computed from, and by which weights. `taps.cu` has the same.

use super::Interpolation;

/// An axis and what it becomes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) from: usize,
    pub(super) to: usize,
}

/// `count` elements from `first` on. Indices outside the axis are clamped to its ends.
pub(super) struct Taps {
    first: i64,
    count: usize,
    /// Used in turn: all equal for [`Interpolation::Area`].
    weights: [f64; 4],
}

impl Taps {
    fn new(first: i64, count: usize, weights: [f64; 4]) -> Taps {
        Taps { first, count, weights }
    }

    /// The elements of an axis of `size` and their weights.
    pub(super) fn iter(&self, size: usize) -> impl Iterator<Item = (usize, f64)> {
        let last = size as i64 - 1;
        let places = (self.first..).map(move |at| at.clamp(0, last) as usize);
        places.zip(self.weights.into_iter().cycle()).take(self.count)
    }
}

/// The coefficient of cubic interpolation.
const CUBIC: f64 = -0.75;

/// The weight of an element at this distance, by the polynomial for distances up to 1.
fn near(d: f64) -> f64 {
    ((CUBIC + 2.0) * d - (CUBIC + 3.0)) * d * d + 1.0
}

/// The weight of an element at this distance, by the polynomial for distances from 1 to 2.
fn far(d: f64) -> f64 {
    ((CUBIC * d - 5.0 * CUBIC) * d + 8.0 * CUBIC) * d - 4.0 * CUBIC
}

impl Axis {
    /// More than the largest number that places are computed from, if an `i64` holds it.
    pub(super) fn checked_reach(&self) -> Option<i64> {
        let (from, to) = (i64::try_from(self.from).ok()?, i64::try_from(self.to).ok()?);
        from.checked_add(1)?.checked_mul(to.checked_mul(2)?.checked_add(2)?)
    }

    /// The place of element `i` among those of the operand, as a fraction.
    fn place(&self, i: i64, align_corners: bool) -> (i64, i64) {
        let (n, m) = (self.from as i64, self.to as i64);
        if align_corners { (i * (n - 1), (m - 1).max(1)) } else { ((2 * i + 1) * n - m, 2 * m) }
    }

    pub(super) fn taps(&self, mode: Interpolation, i: usize) -> Taps {
        let (n, m, i) = (self.from as i64, self.to as i64, i as i64);
        let one = |first: i64| Taps::new(first, 1, [1.0; 4]);
        match mode {
            Interpolation::Nearest => one(i * n / m),
            Interpolation::NearestExact => one((2 * i + 1) * n / (2 * m)),
            Interpolation::Linear { align_corners } => {
                let (part, of) = self.place(i, align_corners);
                let part = part.max(0);
                let t = (part % of) as f64 / of as f64;
                Taps::new(part / of, 2, [1.0 - t, t, 0.0, 0.0])
            }
            Interpolation::Cubic { align_corners } => {
                let (part, of) = self.place(i, align_corners);
                let t = part.rem_euclid(of) as f64 / of as f64;
                let weights = [far(1.0 + t), near(t), near(1.0 - t), far(2.0 - t)];
                Taps::new(part.div_euclid(of) - 1, 4, weights)
            }
            Interpolation::Area => {
                let (first, end) = (i * n / m, ((i + 1) * n + m - 1) / m);
                let count = (end - first) as usize;
                Taps::new(first, count, [1.0 / count as f64; 4])
            }
        }
    }
}
