//! How a transform is cut into short ones.
//!
//! A transform of `points` complex numbers is a sequence of stages, each with a radix: Stockham's form of the algorithm, whose
//! results come in order (Cochran and others, "What is the fast Fourier transform?", 1967). The transform of an even number of
//! real numbers is one of half as many complex numbers, whose parts are the numbers at even and at odd places.

use smallvec::SmallVec;

/// The largest radix. A number of points with a larger prime factor has no plan.
const LARGEST: usize = 127;

/// How many numbers, of how many complex points, in which stages.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The numbers along the axis.
    pub(super) n: usize,
    /// The complex points: `n`, or half of it.
    pub(super) points: usize,
    /// The radix of each stage. Their product is `points`.
    pub(super) radices: SmallVec<[usize; 16]>,
}

impl Plan {
    /// The plan for `n` numbers, which are real or complex, whose stages have powers of two up to `most` as radices. `None` if a prime
    /// factor is too large.
    pub(super) fn new(n: usize, real: bool, most: usize) -> Option<Plan> {
        let points = if real && n.is_multiple_of(2) { n / 2 } else { n };
        let (mut radices, mut rest) = (SmallVec::new(), points);
        let powers = [8, 4, 2].into_iter().filter(|&radix| radix <= most);
        for radix in powers.chain((3..=LARGEST).step_by(2)) {
            while rest.is_multiple_of(radix) && rest > 1 {
                radices.push(radix);
                rest /= radix;
            }
        }
        (rest == 1).then_some(Plan { n, points, radices })
    }

    /// The stages in order: the radix, and the product of those before.
    pub(super) fn stages(&self) -> impl Iterator<Item = (usize, usize)> {
        self.radices.iter().scan(1, |before, &radix| {
            let stage = (radix, *before);
            *before *= radix;
            Some(stage)
        })
    }

    /// Whether there is a plan.
    pub(super) fn exists(n: usize, real: bool) -> bool {
        Plan::new(n, real, 2).is_some()
    }

    /// Whether a complex point holds two real numbers.
    pub(super) fn is_halved(&self) -> bool {
        self.points < self.n
    }
}
