//! What a launch does, before a kernel is written around it, so that several can share one kernel.

use smallvec::SmallVec;

use super::args::{CudaArgs, Sink};
use super::head::Summing;
use super::kernel::{Constants, Grid, KernelSpec, Source};
use super::norm::RowNorm;
use super::params::Put;
use super::product::{MmaKind, Product};
use super::tail::Elements;
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

/// A result whose slices are picked along an axis: element (o, e, w) of the first result is element (o, `index[e]`, w) of a table. Both
/// operands are contiguous.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    /// The numbers of the operands in the launch.
    pub(crate) table: usize,
    pub(crate) index: usize,
    /// Entries of the index, and slices of the table.
    pub(crate) count: usize,
    pub(crate) size: usize,
    /// Elements of a slice.
    pub(crate) width: usize,
}

/// What a launch does, where that can be said: it computes each of its results element by element, it picks slices, it is one product,
/// it is a norm of rows, it ends with a kernel that takes a tail, or it is one that takes a head.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Pieces(Vec<Piece>),
    Pick(Pick),
    Product(Box<Product>),
    Norm(Box<RowNorm>),
    Elements(Box<dyn Elements>),
    Summing(Box<dyn Summing>),
}

/// What a launch does on GPUs with these matrix instructions. `None` if it does something else, too. Only layouts and dtypes
/// of the operands are looked at.
pub(crate) fn work(launch: &Launch<'_>, mma: MmaKind) -> Option<Work> {
    let mut describe = Describe { found: Description::default(), mma };
    launch.kernel.cuda(&mut CudaArgs::new(launch, &mut describe)).ok()?;
    let Description { pieces, mut products, mut norms, mut elements, whole } = describe.found;
    if whole.is_some() {
        return whole;
    }
    if let Some(norm) = norms.pop() {
        let is_all = pieces.is_empty() && products.is_empty() && norms.is_empty() && elements.is_empty();
        return is_all.then(|| Work::Norm(norm.into()));
    }
    if let Some(last) = elements.pop() {
        let is_all = pieces.is_empty() && products.is_empty() && elements.is_empty();
        return is_all.then_some(Work::Elements(last));
    }
    let is_one = |o: usize| pieces.iter().filter(|piece| piece.y == o).count() == 1;
    match (products.pop(), products.is_empty()) {
        (Some(product), true) => pieces.is_empty().then(|| Work::Product(product.into())),
        (Some(_), false) => None,
        (None, _) => ((0..launch.writes.len()).all(is_one) && pieces.len() == launch.writes.len())
            .then_some(Work::Pieces(pieces)),
    }
}

/// Descriptions of what a launch does.
#[derive(Debug, Default)]
pub(crate) struct Description {
    pub(super) pieces: Vec<Piece>,
    pub(super) products: Vec<Product>,
    pub(super) norms: Vec<RowNorm>,
    pub(super) elements: Vec<Box<dyn Elements>>,
    /// What a launch does that does nothing else.
    pub(super) whole: Option<Work>,
}

/// Takes descriptions of elementwise kernels, products and norms of rows, and refuses all other work.
struct Describe {
    found: Description,
    mma: MmaKind,
}

impl Describe {
    fn refuse<T>(op: &'static str) -> Result<T> {
        Err(Error::internal(op, "it is neither elementwise nor a product nor a norm"))
    }
}

impl Sink for Describe {
    fn kernel(&mut self, op: &'static str, _: KernelSpec, _: Grid, _: &dyn Put) -> Result<()> {
        Describe::refuse(op)
    }

    fn library_product(&mut self, op: &'static str, _: &Product) -> Result<bool> {
        Describe::refuse(op)
    }

    fn library_takes(&self, _: &Product) -> bool {
        false
    }

    fn collective(&mut self, _: &Communicator, _: CollectiveCall) -> Result<()> {
        Describe::refuse("collective")
    }

    fn mma(&self) -> MmaKind {
        self.mma
    }

    fn runs(&self) -> bool {
        false
    }

    fn multiprocessors(&self) -> usize {
        1
    }

    fn description(&mut self) -> Option<&mut Description> {
        Some(&mut self.found)
    }
}
