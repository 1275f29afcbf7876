//! A matrix product, as kernels ask a GPU for it.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use smallvec::{SmallVec, smallvec};

use super::args::View;
use super::params::Pointer;
use crate::activation::Activation;
use crate::types::DType;
use crate::types::Precision;

/// The fastest matrix instructions of a GPU's tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MmaKind {
    /// `mma.sync`: each warp works alone.
    Warp,
    /// `wgmma`: four warps work together, with operands in shared memory.
    WarpGroup,
}

impl MmaKind {
    pub(super) fn of(compute_capability: (i32, i32)) -> MmaKind {
        if compute_capability == (9, 0) && !warps_alone() { MmaKind::WarpGroup } else { MmaKind::Warp }
    }
}

/// Whether `REFRAIN_MMA=warp` asks for the kernels of GPUs without groups of warps.
fn warps_alone() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var("REFRAIN_MMA").is_ok_and(|v| v == "warp"))
}

/// An operand: a matrix, or one for each element of the batch.
#[derive(Clone, Debug)]
pub(crate) struct MatrixOperand {
    /// The dtype of the elements in memory.
    pub(crate) dtype: DType,
    /// The first element.
    pub(crate) pointer: Pointer,
    /// The largest power of two, at most 256, that is known to divide the address.
    pub(crate) alignment: usize,
    /// Elements from one row to the next; 0 if there is only one.
    pub(crate) row: usize,
    /// Elements from one column to the next; 0 if there is only one.
    pub(crate) col: usize,
    /// Whether the elements of a column, and those of a row, are adjacent in memory.
    pub(crate) dense: [bool; 2],
    /// Elements from one matrix to the next, for each dimension of the batch.
    pub(crate) batch: SmallVec<[usize; 4]>,
}

impl MatrixOperand {
    /// The last two dimensions of an operand.
    pub(crate) fn of(operand: &View<'_>) -> MatrixOperand {
        let (shape, strides) = (operand.layout.shape(), operand.layout.strides());
        let r = shape.rank();
        MatrixOperand::place(operand, [shape[r - 2], shape[r - 1]], [strides[r - 2], strides[r - 1]])
            .batched(&strides[..r - 2])
    }

    /// A contiguous operand as a matrix of that many rows and columns.
    pub(crate) fn row_major(operand: &View<'_>, rows: usize, cols: usize) -> MatrixOperand {
        MatrixOperand::place(operand, [rows, cols], [cols, 1])
    }

    fn place(operand: &View<'_>, sizes: [usize; 2], strides: [usize; 2]) -> MatrixOperand {
        let step = |i: usize| if sizes[i] > 1 { strides[i] } else { 0 };
        MatrixOperand {
            dtype: operand.dtype,
            pointer: operand.pointer,
            alignment: operand.alignment(),
            row: step(0),
            col: step(1),
            dense: [0, 1].map(|i| sizes[i] <= 1 || strides[i] == 1),
            batch: SmallVec::new(),
        }
    }

    fn batched(mut self, strides: &[usize]) -> MatrixOperand {
        self.batch = strides.into();
        self
    }

    /// The transpose.
    pub(crate) fn t(self) -> MatrixOperand {
        MatrixOperand { row: self.col, col: self.row, dense: [self.dense[1], self.dense[0]], ..self }
    }
}

/// Contiguous elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlatOperand {
    pub(crate) dtype: DType,
    pub(crate) pointer: Pointer,
    pub(crate) alignment: usize,
}

impl FlatOperand {
    pub(crate) fn of(operand: &View<'_>) -> FlatOperand {
        FlatOperand { dtype: operand.dtype, pointer: operand.pointer, alignment: operand.alignment() }
    }
}

/// `C = activation(A B + bias) + residual`, or a batch of such products.
///
/// C is contiguous and row-major, one matrix after the other, and so are `residual` and `kept`.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    /// The dtype in which A and B are multiplied. An f32 operand beside f16 or bf16 is rounded. f16 and bf16 are
    /// summed in f32; then what is not multiplied (bias, residual, C) may be f32.
    pub(crate) dtype: DType,
    pub(crate) precision: Precision,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// The sizes of the batch.
    pub(crate) batch: SmallVec<[usize; 4]>,
    /// m x k
    pub(crate) a: MatrixOperand,
    /// k x n
    pub(crate) b: MatrixOperand,
    pub(crate) c: FlatOperand,
    /// Whether the result is added to C.
    pub(crate) add: bool,
    /// n numbers, added to each row.
    pub(crate) bias: Option<FlatOperand>,
    pub(crate) activation: Activation,
    /// Added last.
    pub(crate) residual: Option<FlatOperand>,
    /// Stores the input of the activation, in C's dtype.
    pub(crate) kept: Option<FlatOperand>,
    /// m numbers that get the sums of A's rows (or to which they are added). Not with a batch.
    pub(crate) sums: Option<(FlatOperand, bool)>,
}

/// Products of f16 and bf16 whose rows [pass](Product::passes_rows): columns, numbers of a sum, and the fewest rows, which are enough for
/// all multiprocessors without parts of k.
const COLUMNS_OF_PASSING: usize = 128;
const SUMS_OF_PASSING: RangeInclusive<usize> = 65..=256;
const FEWEST_PASSING: usize = 12_288;
/// At so many bytes, vectors of all operands begin.
const EVEN_BYTES: usize = 16;

impl Product {
    /// Whether groups of warps compute whole rows of this layer of f16 or bf16 in a block, so that dropout, a residual or a norm behind it
    /// does not read them again. On an H200, 27,552 rows by 128 x 128 with a residual and a layer norm take 13.6 us so, and 18.8 by the
    /// library and another kernel. An activation computes long, which smaller blocks hide better.
    pub(crate) fn passes_rows(&self, mma: MmaKind) -> bool {
        let beside = [self.bias, self.residual];
        let flat = beside.into_iter().flatten().chain([self.c]).map(|x| (x.dtype, x.alignment));
        let factors = [&self.a, &self.b].map(|x| (x.dtype, x.alignment));
        let is_even = |(dtype, alignment): (DType, usize)| dtype == self.dtype && alignment >= EVEN_BYTES;
        let is_plain = self.batch.is_empty() && self.sums.is_none() && self.activation == Activation::None;
        mma == MmaKind::WarpGroup
            && self.dtype.size() == 2
            && beside.iter().any(Option::is_some)
            && is_plain
            && self.n == COLUMNS_OF_PASSING
            && SUMS_OF_PASSING.contains(&self.k)
            && (self.k * self.dtype.size()).is_multiple_of(EVEN_BYTES)
            && self.m >= FEWEST_PASSING
            && flat.chain(factors).all(is_even)
    }

    /// The product of operands `[.., m, k]` and `[.., k, n]` of the same batch, with any strides.
    pub(crate) fn batched(precision: Precision, a: &View<'_>, b: &View<'_>, c: &View<'_>) -> Product {
        let (shape, r) = (a.layout.shape(), a.layout.rank());
        let [m, k, n] = [shape[r - 2], shape[r - 1], b.layout.shape()[r - 1]];
        let mut product = Product::new(precision, [m, n, k], MatrixOperand::of(a), MatrixOperand::of(b), c);
        product.batch = shape[..r - 2].into();
        product.merge();
        product
    }

    /// A single product of sizes `m, n, k`.
    pub(crate) fn new(
        precision: Precision,
        [m, n, k]: [usize; 3],
        a: MatrixOperand,
        b: MatrixOperand,
        c: &View<'_>,
    ) -> Product {
        Product {
            dtype: precision.product(a.dtype, b.dtype),
            precision,
            m,
            n,
            k,
            batch: SmallVec::new(),
            a,
            b,
            c: FlatOperand::of(c),
            add: false,
            bias: None,
            activation: Activation::None,
            residual: None,
            kept: None,
            sums: None,
        }
    }

    /// The same product in another launch: its operands are `reads` and `writes` instead of those of its own launch, in their
    /// order. `None` if one is missing.
    pub(crate) fn moved(&self, reads: &[Pointer], writes: &[Pointer]) -> Option<Product> {
        let matrix =
            |x: &MatrixOperand| Some(MatrixOperand { pointer: x.pointer.moved(reads, writes)?, ..x.clone() });
        let flat = |x: FlatOperand| Some(FlatOperand { pointer: x.pointer.moved(reads, writes)?, ..x });
        let optional = |x: Option<FlatOperand>| x.map_or(Some(None), |x| flat(x).map(Some));
        let sums = match self.sums {
            Some((sums, adds)) => Some((flat(sums)?, adds)),
            None => None,
        };
        Some(Product {
            a: matrix(&self.a)?,
            b: matrix(&self.b)?,
            c: flat(self.c)?,
            bias: optional(self.bias)?,
            residual: optional(self.residual)?,
            kept: optional(self.kept)?,
            sums,
            ..self.clone()
        })
    }

    /// The number of products.
    pub(crate) fn batches(&self) -> usize {
        self.batch.iter().product()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.m * self.n * self.batches() == 0 && (self.m == 0 || self.sums.is_none())
    }

    /// Merges evenly spaced dimensions of the batch, and turns a batch that shares B into rows.
    fn merge(&mut self) {
        let mut batch: SmallVec<[usize; 4]> = smallvec![];
        let (mut a, mut b): (SmallVec<[usize; 4]>, SmallVec<[usize; 4]>) = (smallvec![], smallvec![]);
        for (i, &size) in self.batch.iter().enumerate().filter(|&(_, &size)| size != 1) {
            let (step_a, step_b) = (self.a.batch[i], self.b.batch[i]);
            match (batch.last_mut(), a.last_mut(), b.last_mut()) {
                (Some(outer), Some(x), Some(y)) if *x == step_a * size && *y == step_b * size => {
                    (*outer, *x, *y) = (*outer * size, step_a, step_b);
                }
                _ => {
                    batch.push(size);
                    a.push(step_a);
                    b.push(step_b);
                }
            }
        }
        if let ([size], [step], [0]) = (&batch[..], &a[..], &b[..])
            && (self.m == 1 || *step == self.m * self.a.row)
        {
            if self.m == 1 {
                self.a.row = *step;
                self.a.dense[0] = *step == 1;
            }
            self.m *= size;
            (batch, a, b) = (smallvec![], smallvec![], smallvec![]);
        }
        self.batch = batch;
        self.a.batch = a;
        self.b.batch = b;
    }
}
