//! Cholesky factors and triangular systems on CUDA, in blocks. A launch factors or solves a block of each matrix, and another one takes
//! from the rest what follows from it, on all multiprocessors.

use super::host::{NOT_DEFINITE, SINGULAR};
use super::{SolveTriangular, Square};
use crate::device::Launch;
use crate::device::cuda::{Bounds, CudaArgs, Grid, KernelSpec, Pointer, Reporter, Source, params};
use crate::error::Result;
use crate::types::DType;

static COPY: Source = Source { name: "copy_matrices", parts: &[include_str!("copy.cu")] };
static FACTOR: Source = Source { name: "factor", parts: &[include_str!("factor.cu")] };
static SOLVE: Source = Source { name: "solve", parts: &[include_str!("solve.cu")] };
static PANEL: Source = Source { name: "panel", parts: &[include_str!("panel.cu")] };
static SWAP: Source = Source { name: "swap", parts: &[include_str!("swap.cu")] };
static UPDATE: Source = Source { name: "update", parts: &[include_str!("update.cu")] };

const THREADS: u32 = 256;
/// Right sides that a block solves for.
const COLUMNS: usize = 64;
/// Rows and columns of a tile.
const TILE: usize = 64;

params! {
    struct CopyArgs {
        x: Pointer = "const COMPUTE*",
        y: Pointer = "COMPUTE*",
        n: i64,
        all: i64,
    }

    /// The matrices are dense, of n rows.
    struct FactorArgs {
        from: Pointer = "const COMPUTE*",
        to: Pointer = "COMPUTE*",
        n: i64,
        /// The first row of the block, and how many it has.
        first: i64,
        size: i64,
        faults: Reporter,
    }

    /// The matrices are dense, of n rows, and so are the numbers of rows.
    struct PanelArgs {
        a: Pointer = "COMPUTE*",
        rows: Pointer = "i64*",
        n: i64,
        /// The first column, and how many.
        first: i64,
        size: i64,
        faults: Reporter,
    }

    /// Columns of c are neighbours.
    struct SwapArgs {
        rows: Pointer = "const i64*",
        c: Pointer = "COMPUTE*",
        n: i64,
        first: i64,
        size: i64,
        columns: i64,
        c_batch: i64,
        c_first: i64,
        c_row: i64,
    }

    /// Of each matrix: the distance to the next one, the place of the first number, and the distances of rows and columns.
    struct SolveArgs {
        t: Pointer = "const COMPUTE*",
        b: Pointer = "const COMPUTE*",
        y: Pointer = "COMPUTE*",
        size: i64,
        columns: i64,
        t_batch: i64,
        t_first: i64,
        t_row: i64,
        t_column: i64,
        /// Those of y are the same.
        b_batch: i64,
        b_first: i64,
        b_row: i64,
        b_column: i64,
    }

    /// As above. Columns of c are neighbours, and `from` has its layout.
    struct UpdateArgs {
        a: Pointer = "const COMPUTE*",
        b: Pointer = "const COMPUTE*",
        from: Pointer = "const COMPUTE*",
        c: Pointer = "COMPUTE*",
        rows: i64,
        columns: i64,
        size: i64,
        a_batch: i64,
        a_first: i64,
        a_row: i64,
        a_column: i64,
        b_batch: i64,
        b_first: i64,
        b_row: i64,
        b_column: i64,
        c_batch: i64,
        c_first: i64,
        c_row: i64,
    }
}

/// A matrix of each batch.
#[derive(Clone, Copy)]
struct Matrices {
    data: Pointer,
    /// From a matrix to the next one.
    batch: usize,
    /// Of the first number that is used.
    first: usize,
    row: usize,
    column: usize,
}

impl Matrices {
    /// Dense matrices of so many columns.
    fn dense(data: Pointer, rows: usize, columns: usize) -> Matrices {
        Matrices { data, batch: rows * columns, first: 0, row: columns, column: 1 }
    }

    fn transposed(self) -> Matrices {
        Matrices { row: self.column, column: self.row, ..self }
    }

    /// From a row and a column on.
    fn from(self, row: usize, column: usize) -> Matrices {
        Matrices { first: self.first + row * self.row + column * self.column, ..self }
    }
}

/// A triangle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Lower,
    /// Its diagonal is 1, whatever is stored.
    UnitLower,
    Upper,
}

/// The launches for batches of matrices.
struct Blocks<'a, 'b> {
    args: &'a mut CudaArgs<'b>,
    dtype: DType,
    /// Matrices.
    count: usize,
    /// Rows of a block, so that two of them are in a multiprocessor's shared memory.
    rows: usize,
}

impl<'a, 'b> Blocks<'a, 'b> {
    fn new(args: &'a mut CudaArgs<'b>, count: usize) -> Self {
        let dtype = args.write_dtype(0);
        let rows = if dtype == DType::F64 { 32 } else { 64 };
        Blocks { args, dtype, count, rows }
    }

    fn spec(&self, source: &'static Source, entry: &'static str) -> KernelSpec {
        let spec = KernelSpec::new(source, entry).dtype("COMPUTE", self.dtype);
        spec.int("THREADS", THREADS.into()).int("BLOCK", self.rows as i64)
    }

    /// Copies dense matrices of `n` columns, or their lower triangles, with zeros above.
    fn copy(&mut self, x: Pointer, y: Pointer, [all, n]: [usize; 2], lower: bool) -> Result<()> {
        let spec = self.spec(&COPY, "copy").flag("LOWER", lower);
        let blocks = all.div_ceil(THREADS as usize).min(self.args.multiprocessors() * 64);
        let kernel_args = CopyArgs { x, y, n: n as i64, all: all as i64 };
        self.args.kernel(spec, Grid::line(blocks, THREADS), &kernel_args)
    }

    /// `y = t^-1 b` for blocks of `size` rows on the diagonal, and so many right sides. `y` has the layout of `b`.
    fn solve(
        &mut self,
        (t, form): (Matrices, Form),
        b: Matrices,
        y: Pointer,
        [size, columns]: [usize; 2],
    ) -> Result<()> {
        let spec = self.spec(&SOLVE, "solve").int("COLUMNS", COLUMNS as i64);
        let spec = spec.flag("UPPER", form == Form::Upper).flag("UNIT", form == Form::UnitLower);
        let kernel_args = SolveArgs {
            t: t.data,
            b: b.data,
            y,
            size: size as i64,
            columns: columns as i64,
            t_batch: t.batch as i64,
            t_first: t.first as i64,
            t_row: t.row as i64,
            t_column: t.column as i64,
            b_batch: b.batch as i64,
            b_first: b.first as i64,
            b_row: b.row as i64,
            b_column: b.column as i64,
        };
        let blocks = self.count * columns.div_ceil(COLUMNS);
        self.args.kernel(spec, Grid::line(blocks, THREADS), &kernel_args)
    }

    /// `c = from - a b`, where `a` is `[rows, size]`, `b` `[size, columns]`, and `from` lies like `c`; or only the lower triangle of `c`,
    /// with what is in the tiles on its diagonal.
    fn update(
        &mut self,
        [a, b, c]: [Matrices; 3],
        from: Pointer,
        [rows, columns, size]: [usize; 3],
        lower: bool,
    ) -> Result<()> {
        let spec = self.spec(&UPDATE, "update").int("TILE", TILE as i64).flag("LOWER", lower);
        let kernel_args = UpdateArgs {
            a: a.data,
            b: b.data,
            from,
            c: c.data,
            rows: rows as i64,
            columns: columns as i64,
            size: size as i64,
            a_batch: a.batch as i64,
            a_first: a.first as i64,
            a_row: a.row as i64,
            a_column: a.column as i64,
            b_batch: b.batch as i64,
            b_first: b.first as i64,
            b_row: b.row as i64,
            b_column: b.column as i64,
            c_batch: c.batch as i64,
            c_first: c.first as i64,
            c_row: c.row as i64,
        };
        let blocks = self.count * rows.div_ceil(TILE) * columns.div_ceil(TILE);
        self.args.kernel(spec, Grid::line(blocks, THREADS), &kernel_args)
    }
}

impl Blocks<'_, '_> {
    /// The dense `y` of `a y = b`, where `a` is an upper triangle or a lower one.
    fn solve_triangular(
        &mut self,
        (a, upper): (Matrices, bool),
        b: Pointer,
        y: Pointer,
        [n, k]: [usize; 2],
    ) -> Result<()> {
        let form = if upper { Form::Upper } else { Form::Lower };
        let steps = n.div_ceil(self.rows);
        for step in 0..steps {
            let first = self.rows * if upper { steps - 1 - step } else { step };
            let size = self.rows.min(n - first);
            let solved = Matrices::dense(y, n, k).from(first, 0);
            // What is left of the right sides: the first update makes it of `b`.
            let from = if step == 0 { b } else { y };
            let own = Matrices { data: from, ..solved };
            self.solve((a.from(first, first), form), own, y, [size, k])?;
            let (others, rows) = if upper { (0, first) } else { (first + size, n - first - size) };
            if rows > 0 {
                let own = [a.from(others, first), solved, Matrices::dense(y, n, k).from(others, 0)];
                self.update(own, from, [rows, k, size], false)?;
            }
        }
        Ok(())
    }
}

pub(super) fn cholesky(args: &mut CudaArgs<'_>) -> Result<()> {
    let Square { count, n } = Square::of(args.read_shape(0));
    if count * n == 0 {
        return Ok(());
    }
    let (x, y, faults) = (args.read(0), args.write(0), args.faults(Bounds::Message(NOT_DEFINITE)));
    let mut blocks = Blocks::new(args, count);
    let l = Matrices::dense(y, n, n);
    let mut from = x;
    if n > blocks.rows {
        blocks.copy(x, y, [count * n * n, n], true)?;
        from = y;
    }
    for first in (0..n).step_by(blocks.rows) {
        let size = blocks.rows.min(n - first);
        let rest = first + size;
        let spec = blocks.spec(&FACTOR, "factor");
        let kernel_args =
            FactorArgs { from, to: y, n: n as i64, first: first as i64, size: size as i64, faults };
        blocks.args.kernel(spec, Grid::line(count, THREADS), &kernel_args)?;
        if rest == n {
            break;
        }
        // A row `x` below the block has `x l^T = a`: it is a column of the transposed system.
        let (block, below) = (l.from(first, first), l.from(rest, first));
        blocks.solve((block, Form::Lower), below.transposed(), y, [size, n - rest])?;
        let own = [below, below.transposed(), l.from(rest, rest)];
        blocks.update(own, y, [n - rest, n - rest, size], true)?;
    }
    Ok(())
}

pub(super) fn solve_triangular(op: &SolveTriangular, args: &mut CudaArgs<'_>) -> Result<()> {
    let Square { count, n } = Square::of(args.read_shape(0));
    let shape = args.write_shape(0);
    let k = shape[shape.rank() - 1];
    if count * n * k == 0 {
        return Ok(());
    }
    let (a, b, y) = (args.read(0), args.read(1), args.write(0));
    let (a, upper) = (Matrices::dense(a, n, n), op.upper != op.transposed);
    let a = if op.transposed { a.transposed() } else { a };
    Blocks::new(args, count).solve_triangular((a, upper), b, y, [n, k])
}

/// Where the numbers of rows and the factors lie in the workspace, and its bytes.
fn places(count: usize, n: usize, dtype: DType) -> [usize; 2] {
    let rows = count * n * size_of::<i64>();
    [rows, rows + count * n * n * dtype.size()]
}

pub(super) fn workspace(launch: &Launch<'_>) -> usize {
    let a = &launch.reads[0];
    let Square { count, n } = Square::of(a.layout.shape());
    places(count, n, a.dtype)[1]
}

pub(super) fn solve(args: &mut CudaArgs<'_>) -> Result<()> {
    let Square { count, n } = Square::of(args.read_shape(0));
    let shape = args.write_shape(0);
    let k = shape[shape.rank() - 1];
    if count * n * k == 0 {
        return Ok(());
    }
    let (y, rows, faults) = (args.write(0), args.workspace(), args.faults(Bounds::Message(SINGULAR)));
    let (a, b) = (args.read(0), args.read(1));
    let mut blocks = Blocks::new(args, count);
    let factors = rows.plus(places(count, n, blocks.dtype)[0]);
    blocks.copy(a, factors, [count * n * n, n], false)?;
    blocks.copy(b, y, [count * n * k, k], false)?;
    let (a, sides) = (Matrices::dense(factors, n, n), Matrices::dense(y, n, k));
    for first in (0..n).step_by(blocks.rows) {
        let size = blocks.rows.min(n - first);
        let rest = first + size;
        let [n_, first_, size_] = [n, first, size].map(|n| n as i64);
        let kernel_args = PanelArgs { a: factors, rows, n: n_, first: first_, size: size_, faults };
        let spec = blocks.spec(&PANEL, "panel");
        blocks.args.kernel(spec, Grid::line(count, THREADS), &kernel_args)?;
        // The other columns, and the right sides.
        let (block, below) = (a.from(first, first), a.from(rest, first));
        for (all, columns) in [(a.from(0, rest), n - rest), (sides, k)] {
            if columns == 0 {
                continue;
            }
            let kernel_args = SwapArgs {
                rows,
                c: all.data,
                n: n_,
                first: first_,
                size: size_,
                columns: columns as i64,
                c_batch: all.batch as i64,
                c_first: all.first as i64,
                c_row: all.row as i64,
            };
            let grid = Grid::line(count * columns.div_ceil(THREADS as usize), THREADS);
            blocks.args.kernel(blocks.spec(&SWAP, "swap"), grid, &kernel_args)?;
            let own = all.from(first, 0);
            blocks.solve((block, Form::UnitLower), own, own.data, [size, columns])?;
            if rest < n {
                let others = all.from(rest, 0);
                blocks.update([below, own, others], others.data, [n - rest, columns, size], false)?;
            }
        }
    }
    blocks.solve_triangular((a, true), y, y, [n, k])
}
