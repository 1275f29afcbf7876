//! Elementwise kernels before a loop is written around them, so that several can share one loop.

use smallvec::SmallVec;

use super::args::{CudaArgs, Sink};
use super::kernel::{Constants, Grid, KernelSpec, Source};
use super::params::Put;
use super::product::{MmaKind, Product};
use crate::device::communicator::{CollectiveCall, Communicator};
use crate::device::launch::Launch;
use crate::error::{Error, Result};
use crate::types::DType;

/// One result of a launch, computed element by element: `y = apply(x, scalars)`, or `apply(x, scalars, word)` where it
/// needs a random word.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// The text that defines `apply`, and the constants of that text.
    pub(crate) source: &'static Source,
    pub(crate) constants: Constants,
    /// The arithmetic of `apply`.
    pub(crate) compute: DType,
    pub(crate) scalars: SmallVec<[f64; 2]>,
    /// The numbers of the operands in the launch. All have the shape of the result.
    pub(crate) x: SmallVec<[usize; 5]>,
    /// The number of the result in the launch.
    pub(crate) y: usize,
    pub(crate) words: Option<RandomWords>,
}

/// Random words: element `i` (row-major) gets word `i` of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RandomWords {
    /// The number of the operand that is the state of the generator.
    pub(crate) state: usize,
    /// Added to the counter in the state.
    pub(crate) offset: u64,
}

/// What a launch consists of, if it computes each of its results element by element and does nothing else. Only layouts
/// and dtypes of the operands are looked at.
pub(crate) fn pieces(launch: &Launch<'_>) -> Option<Vec<Piece>> {
    let mut described = Describe(Vec::new());
    launch.kernel.cuda(&mut CudaArgs::new(launch, &mut described)).ok()?;
    let Describe(pieces) = described;
    let is_one = |o: usize| pieces.iter().filter(|piece| piece.y == o).count() == 1;
    ((0..launch.writes.len()).all(is_one) && pieces.len() == launch.writes.len()).then_some(pieces)
}

/// Takes descriptions of elementwise kernels, and refuses all other work.
struct Describe(Vec<Piece>);

impl Sink for Describe {
    fn kernel(&mut self, op: &'static str, _: KernelSpec, _: Grid, _: &dyn Put) -> Result<()> {
        Err(Error::internal(op, "it is not elementwise"))
    }

    fn library_product(&mut self, op: &'static str, _: &Product) -> Result<bool> {
        Err(Error::internal(op, "it is not elementwise"))
    }

    fn collective(&mut self, _: &Communicator, _: CollectiveCall) -> Result<()> {
        Err(Error::internal("collective", "it is not elementwise"))
    }

    fn mma(&self) -> MmaKind {
        MmaKind::Warp
    }

    fn runs(&self) -> bool {
        false
    }

    fn multiprocessors(&self) -> usize {
        1
    }

    fn pieces(&mut self) -> Option<&mut Vec<Piece>> {
        Some(&mut self.0)
    }
}
