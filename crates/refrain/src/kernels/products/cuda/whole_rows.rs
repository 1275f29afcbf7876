//! Large products of matrices whose rows do not begin at multiples of 16 bytes, such as logits of 50,257 classes: neither tensor cores'
//! copies nor the library take those. They are copied to rows that do, and the library multiplies the copies.

use crate::activation::Activation;
use crate::device::cuda::{
    CudaArgs, FlatOperand, Grid, KernelSpec, MatrixOperand, Pointer, Product, Source, cublaslt, params,
};
use crate::error::Result;
use crate::tensor::DType;

static SOURCE: Source = Source { name: "gemm_whole_rows", parts: &[include_str!("whole_rows.cu")] };

/// Fewer multiplications are not worth a copy.
const LEAST_WORK: usize = 1 << 28;
/// A factor is copied if each of its numbers is multiplied so often, and the result if its sums are so long.
const LEAST_USES: usize = 256;
const LEAST_SUM: usize = 512;
/// The most bytes of all copies.
const MOST_BYTES: usize = 1 << 32;
/// Bytes at whose multiples rows begin, and of a piece that a thread copies.
const PIECE_BYTES: usize = 16;
/// Bytes at whose multiples copies begin.
const ALIGNMENT: usize = 256;
const THREADS: usize = 256;
const MOST_BLOCKS: usize = 132 * 32;

params! {
    struct WholeRowsArgs {
        x: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        rows: i64,
        /// Rows of zeros behind them, included.
        all_rows: i64,
        /// Numbers of a row.
        width: i64,
        /// From one row to the next where they are not whole, and where they are.
        step: i64,
        whole: i64,
    }
}

/// The next multiple of so many numbers as a piece has.
fn whole(numbers: usize, dtype: DType) -> usize {
    numbers.next_multiple_of(PIECE_BYTES / dtype.size())
}

/// A copy with whole rows; rows are what is adjacent in memory.
struct Copied {
    rows: usize,
    all_rows: usize,
    width: usize,
    step: usize,
    whole: usize,
    /// Where it begins, behind those before it.
    at: usize,
}

impl Copied {
    /// `None` if the rows of a factor of such sizes, which becomes one of sizes `to`, are whole.
    fn of(factor: &MatrixOperand, sizes: [usize; 2], to: [usize; 2], at: usize) -> Option<Copied> {
        let dtype = factor.dtype;
        let ([rows, width], [all_rows, all], step) = match factor.dense[1] {
            true => (sizes, to, factor.row),
            false => ([sizes[1], sizes[0]], [to[1], to[0]], factor.col),
        };
        let is_aligned = whole(step, dtype) == step && factor.alignment >= PIECE_BYTES;
        let is_whole = is_aligned && sizes == to;
        (!is_whole).then_some(Copied { rows, all_rows, width, step, whole: whole(all, dtype), at })
    }

    fn bytes(&self, dtype: DType) -> usize {
        (self.all_rows * self.whole * dtype.size()).next_multiple_of(ALIGNMENT)
    }

    fn place(&self, first: usize) -> Pointer {
        Pointer::WORKSPACE.plus(first + self.at)
    }

    fn factor(&self, of: &MatrixOperand, first: usize) -> MatrixOperand {
        let step = |is_step: bool, step: usize| if is_step { self.whole } else { step };
        MatrixOperand {
            pointer: self.place(first),
            alignment: ALIGNMENT,
            row: step(of.dense[1], of.row),
            col: step(!of.dense[1], of.col),
            ..of.clone()
        }
    }

    /// Copies between rows that are not whole and those that are: to the latter, or from them.
    fn launch(
        &self,
        entry: &'static str,
        dtype: DType,
        [x, y]: [Pointer; 2],
        args: &mut CudaArgs<'_>,
    ) -> Result<()> {
        let &Copied { rows, all_rows, width, step, whole, .. } = self;
        let pieces = (all_rows * whole * dtype.size()).div_ceil(PIECE_BYTES);
        // Bits are moved only.
        let element = if dtype.size() == 2 { DType::F16 } else { DType::I32 };
        let spec = KernelSpec::new(&SOURCE, entry)
            .dtype("ELEMENT", element)
            .word("INDEX", if all_rows * whole >= 1 << 30 { "u64" } else { "u32" });
        let told = WholeRowsArgs {
            x,
            y,
            rows: rows as i64,
            all_rows: all_rows as i64,
            width: width as i64,
            step: step as i64,
            whole: whole as i64,
        };
        args.kernel(spec, Grid::line(pieces.div_ceil(THREADS).min(MOST_BLOCKS), THREADS as u32), &told)
    }
}

/// A product that the library takes if matrices are copied.
pub(super) struct WholeRows<'a> {
    product: &'a Product,
    /// Of the factors and of the result.
    copied: [Option<Copied>; 3],
    n: usize,
    k: usize,
}

impl<'a> WholeRows<'a> {
    /// `None` if the library takes the product as it is, would not take it with copies either, or gains too little.
    pub(super) fn of(product: &'a Product) -> Option<WholeRows<'a>> {
        let &Product { m, n, k, dtype, ref a, ref b, ref c, .. } = product;
        let work = m.checked_mul(n)?.checked_mul(k)?;
        let numbers = [(m, k), (k, n), (m, n)].map(|(rows, columns)| (rows + 8).saturating_mul(columns + 8));
        if numbers.iter().any(|&n| n > MOST_BYTES) {
            return None;
        }
        let is_known = |x: &MatrixOperand| x.dtype == dtype && (x.dense[0] || x.dense[1]);
        let has_whole_pieces = [2, 4].contains(&dtype.size()) && [2, 4].contains(&c.dtype.size());
        let is_candidate = work >= LEAST_WORK && product.batch.is_empty() && has_whole_pieces;
        if !is_candidate || !is_known(a) || !is_known(b) || cublaslt::suits(product) {
            return None;
        }
        // Sums and rows of the result have whole pieces, too: zeros are added to the sums, and columns to the result.
        let all_k = if a.dense[1] || !b.dense[1] { whole(k, dtype) } else { k };
        let narrows = whole(n, c.dtype) != n;
        let all_n = if narrows { whole(whole(n, c.dtype), dtype) } else { n };
        let first = Copied::of(a, [m, k], [m, all_k], 0);
        let mut at = first.as_ref().map_or(0, |copied| copied.bytes(dtype));
        let second = Copied::of(b, [k, n], [all_k, all_n], at);
        at += second.as_ref().map_or(0, |copied| copied.bytes(dtype));
        let result = Copied { rows: m, all_rows: m, width: n, step: n, whole: all_n, at };
        let is_alone = product.bias.is_none()
            && product.residual.is_none()
            && product.kept.is_none()
            && product.activation == Activation::None
            && !product.add;
        let pays = (first.is_none() || n >= LEAST_USES)
            && (second.is_none() || m >= LEAST_USES)
            && (!narrows || (k >= LEAST_SUM && is_alone && c.alignment >= PIECE_BYTES));
        let copied = [first, second, narrows.then_some(result)];
        let all = WholeRows { product, copied, n: all_n, k: all_k };
        (pays && all.bytes() <= MOST_BYTES && cublaslt::suits(&all.product(0))).then_some(all)
    }

    /// The product of the copies, of which the first one begins so many bytes behind the beginning of the workspace.
    pub(super) fn product(&self, first: usize) -> Product {
        let Product { a, b, c, .. } = self.product;
        let [of_a, of_b, of_c] = &self.copied;
        let factor = |copied: &Option<Copied>, of: &MatrixOperand| {
            copied.as_ref().map_or_else(|| of.clone(), |copied| copied.factor(of, first))
        };
        let result = |copied: &Copied| FlatOperand {
            pointer: copied.place(first),
            alignment: ALIGNMENT,
            dtype: c.dtype,
        };
        Product {
            n: self.n,
            k: self.k,
            a: factor(of_a, a),
            b: factor(of_b, b),
            c: of_c.as_ref().map_or(*c, result),
            ..self.product.clone()
        }
    }

    fn bytes(&self) -> usize {
        let Product { a, b, c, .. } = self.product;
        let bytes = |(copied, dtype): (&Option<Copied>, DType)| Some(copied.as_ref()?.bytes(dtype));
        self.copied.iter().zip([a.dtype, b.dtype, c.dtype]).filter_map(bytes).sum()
    }

    /// Workspace bytes, of which the library needs so many, at the beginning.
    pub(super) fn workspace(&self, library: usize) -> usize {
        library.next_multiple_of(ALIGNMENT) + self.bytes()
    }

    /// Copies and multiplies. Returns `false` if the library is not there.
    pub(super) fn run(&self, args: &mut CudaArgs<'_>) -> Result<bool> {
        // The copies lie at the end, behind what the library needs.
        let first = match args.runs() {
            true => args.workspace_bytes().saturating_sub(self.bytes()) / ALIGNMENT * ALIGNMENT,
            false => 0,
        };
        let product = self.product(first);
        if !args.library_takes(&product) {
            return Ok(false);
        }
        let Product { a, b, c, .. } = self.product;
        let [of_a, of_b, of_c] = &self.copied;
        for (copied, of) in [(of_a, a), (of_b, b)] {
            if let Some(copied) = copied {
                copied.launch("whole_rows", of.dtype, [of.pointer, copied.place(first)], args)?;
            }
        }
        let is_done = args.library_product(&product)?;
        if let Some(copied) = of_c {
            copied.launch("narrow_rows", c.dtype, [copied.place(first), c.pointer], args)?;
        }
        Ok(is_done)
    }
}
