//! Cholesky factors and systems of equations on CUDA, in blocks. A launch factors or solves a block of each matrix, and another one takes
//! from the rest what follows from it, on all multiprocessors.

use super::host::{NOT_DEFINITE, SINGULAR};
use super::{SolveTriangular, Square};
use crate::device::Launch;
use crate::device::cuda::{Bounds, CudaArgs, Grid, KernelSpec, Pointer, Reporter, Source, params};
use crate::error::{Error, Result};
use crate::types::DType;

static COPY: Source = Source { name: "copy_matrices", parts: &[include_str!("copy.cu")] };
static FACTOR: Source = Source { name: "factor", parts: &[include_str!("factor.cu")] };
static SOLVE: Source = Source { name: "solve", parts: &[include_str!("solve.cu")] };
static PANEL: Source = Source { name: "panel", parts: &[include_str!("panel.cu")] };
static UPDATE: Source = Source { name: "update", parts: &[include_str!("update.cu")] };

const THREADS: u32 = 256;
/// Rows and columns of a tile.
const TILE: usize = 64;
/// Columns that are factored at a time, at most.
const PANEL_COLUMNS: usize = 16;

params! {
    struct CopyArgs {
        x: Pointer = "const COMPUTE*",
        y: Pointer = "COMPUTE*",
        count: i64,
        rows: i64,
        columns: i64,
        /// From a matrix to the next one, and from a row to the next.
        x_batch: i64,
        x_row: i64,
        y_batch: i64,
        y_row: i64,
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

    struct PanelArgs {
        a: Pointer = "COMPUTE*",
        moves: Pointer = "i64*",
        /// From a matrix to the next one, and from a row to the next.
        batch: i64,
        stride: i64,
        /// Rows; the first column, and how many.
        n: i64,
        first: i64,
        size: i64,
        faults: Reporter,
    }

    /// Of each matrix: the distance to the next one, the place of the first number, and the distances of rows and columns.
    struct SolveArgs {
        t: Pointer = "const COMPUTE*",
        b: Pointer = "const COMPUTE*",
        y: Pointer = "COMPUTE*",
        moves: Pointer = "const i64*",
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

/// A triangle, and what is done with the right sides.
#[derive(Clone, Copy)]
enum Form {
    Lower,
    /// Its diagonal is 1, whatever is stored. Rows of the right sides are first moved as a panel says.
    UnitLower(Pointer),
    Upper,
}

/// The launches for batches of matrices.
struct Blocks<'a, 'b> {
    args: &'a mut CudaArgs<'b>,
    dtype: DType,
    /// Matrices.
    count: usize,
    /// Rows of a block: a thread has so many numbers in its registers.
    rows: usize,
}

impl<'a, 'b> Blocks<'a, 'b> {
    fn new(args: &'a mut CudaArgs<'b>, Square { count, n }: Square) -> Self {
        let dtype = args.write_dtype(0);
        let rows = n.next_power_of_two().clamp(8, if dtype == DType::F64 { 32 } else { 64 });
        Blocks { args, dtype, count, rows }
    }

    fn spec(&self, source: &'static Source, entry: &'static str, threads: u32) -> KernelSpec {
        let spec = KernelSpec::new(source, entry).dtype("COMPUTE", self.dtype);
        spec.int("THREADS", threads.into()).int("BLOCK", self.rows as i64)
    }

    /// So many blocks for each matrix. They don't go around more than once.
    fn grid(&self, blocks: usize, threads: u32) -> Result<Grid> {
        match self.count.checked_mul(blocks).filter(|&all| all <= i32::MAX as usize) {
            Some(all) => Ok(Grid::line(all, threads)),
            None => Err(Error::invalid(
                self.args.op(),
                format!("{} matrices, more than a GPU takes at once; divide the batch", self.count),
            )),
        }
    }

    /// Copies matrices whose columns are neighbours, or their lower triangles, with zeros above.
    fn copy(&mut self, x: Matrices, y: Matrices, [rows, columns]: [usize; 2], lower: bool) -> Result<()> {
        let spec = self.spec(&COPY, "copy", THREADS).flag("LOWER", lower);
        let all = self.count * rows * columns;
        let blocks = all.div_ceil(THREADS as usize).min(self.args.multiprocessors() * 64);
        let start = |x: Matrices| x.data.plus(x.first * self.dtype.size());
        let kernel_args = CopyArgs {
            x: start(x),
            y: start(y),
            count: self.count as i64,
            rows: rows as i64,
            columns: columns as i64,
            x_batch: x.batch as i64,
            x_row: x.row as i64,
            y_batch: y.batch as i64,
            y_row: y.row as i64,
        };
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
        let (upper, moves) = match form {
            Form::Lower => (false, None),
            Form::UnitLower(moves) => (false, Some(moves)),
            Form::Upper => (true, None),
        };
        let spec = self.spec(&SOLVE, "solve", THREADS).flag("UPPER", upper);
        let spec = spec.flag("UNIT", moves.is_some()).flag("MOVED", moves.is_some());
        let kernel_args = SolveArgs {
            t: t.data,
            b: b.data,
            y,
            moves: moves.unwrap_or(Pointer::NOTHING),
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
        let grid = self.grid(columns.div_ceil(THREADS as usize), THREADS)?;
        self.args.kernel(spec, grid, &kernel_args)
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
        let spec = self.spec(&UPDATE, "update", THREADS).int("TILE", TILE as i64).flag("LOWER", lower);
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
        let grid = self.grid(rows.div_ceil(TILE) * columns.div_ceil(TILE), THREADS)?;
        self.args.kernel(spec, grid, &kernel_args)
    }
}

impl Blocks<'_, '_> {
    /// The `y` of `a y = b`, where `a` is an upper triangle or a lower one. `y` has `k` columns, and lies like `b`.
    fn solve_triangular(
        &mut self,
        (a, upper): (Matrices, bool),
        b: Pointer,
        y: Matrices,
        [n, k]: [usize; 2],
    ) -> Result<()> {
        let form = if upper { Form::Upper } else { Form::Lower };
        let steps = n.div_ceil(self.rows);
        for step in 0..steps {
            let first = self.rows * if upper { steps - 1 - step } else { step };
            let size = self.rows.min(n - first);
            let solved = y.from(first, 0);
            // What is left of the right sides: the first update makes it of `b`.
            let from = if step == 0 { b } else { y.data };
            self.solve((a.from(first, first), form), Matrices { data: from, ..solved }, y.data, [size, k])?;
            let (others, rows) = if upper { (0, first) } else { (first + size, n - first - size) };
            if rows > 0 {
                let own = [a.from(others, first), solved, y.from(others, 0)];
                self.update(own, from, [rows, k, size], false)?;
            }
        }
        Ok(())
    }
}

pub(super) fn cholesky(args: &mut CudaArgs<'_>) -> Result<()> {
    let square = Square::of(args.read_shape(0));
    let Square { count, n } = square;
    if count * n == 0 {
        return Ok(());
    }
    let (x, y, faults) = (args.read(0), args.write(0), args.faults(Bounds::Message(NOT_DEFINITE)));
    let mut blocks = Blocks::new(args, square);
    let (l, rows) = (Matrices::dense(y, n, n), blocks.rows);
    let mut from = x;
    if n > rows {
        blocks.copy(Matrices::dense(x, n, n), l, [n, n], true)?;
        from = y;
    }
    for first in (0..n).step_by(rows) {
        let size = rows.min(n - first);
        let rest = first + size;
        let spec = blocks.spec(&FACTOR, "factor", rows as u32);
        let kernel_args =
            FactorArgs { from, to: y, n: n as i64, first: first as i64, size: size as i64, faults };
        let grid = blocks.grid(1, rows as u32)?;
        blocks.args.kernel(spec, grid, &kernel_args)?;
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
    let square = Square::of(args.read_shape(0));
    let (Square { count, n }, shape) = (square, args.write_shape(0));
    let k = shape[shape.rank() - 1];
    if count * n * k == 0 {
        return Ok(());
    }
    let (a, b, y) = (args.read(0), args.read(1), args.write(0));
    let (a, upper) = (Matrices::dense(a, n, n), op.upper != op.transposed);
    let a = if op.transposed { a.transposed() } else { a };
    Blocks::new(args, square).solve_triangular((a, upper), b, Matrices::dense(y, n, k), [n, k])
}

/// Bytes of the moves of a panel's rows, and of all of the workspace, where matrices and their right sides lie behind them.
fn bytes(count: usize, n: usize, k: usize, dtype: DType) -> [usize; 2] {
    let moves = (count * 4 * panel_columns(n) * size_of::<i64>()).next_multiple_of(16);
    [moves, moves + count * n * width(n, k) * dtype.size()]
}

/// Columns of a panel at most.
fn panel_columns(n: usize) -> usize {
    n.next_power_of_two().min(PANEL_COLUMNS)
}

/// Numbers in a row of a matrix with its right sides: rows begin at multiples of 16 bytes.
fn width(n: usize, k: usize) -> usize {
    (n + k).next_multiple_of(4)
}

pub(super) fn workspace(launch: &Launch<'_>) -> usize {
    let (a, y) = (&launch.reads[0], launch.writes[0].0.layout.shape());
    let Square { count, n } = Square::of(a.layout.shape());
    bytes(count, n, y[y.rank() - 1], a.dtype)[1]
}

pub(super) fn solve(args: &mut CudaArgs<'_>) -> Result<()> {
    let square = Square::of(args.read_shape(0));
    let (Square { count, n }, shape) = (square, args.write_shape(0));
    let k = shape[shape.rank() - 1];
    if count * n * k == 0 {
        return Ok(());
    }
    let (moves, faults) = (args.workspace(), args.faults(Bounds::Message(SINGULAR)));
    let (a, b, y) = (args.read(0), args.read(1), args.write(0));
    let mut blocks = Blocks::new(args, square);
    let rows_of_triangles = blocks.rows;
    // The right sides are more columns of the matrices.
    let width = width(n, k);
    let all = Matrices::dense(moves.plus(bytes(count, n, k, blocks.dtype)[0]), n, width);
    blocks.copy(Matrices::dense(a, n, n), all, [n, n], false)?;
    blocks.copy(Matrices::dense(b, n, k), all.from(0, n), [n, k], false)?;
    // A thread has some rows of a panel in its registers: 16 numbers, unless it has more rows. There are registers for so many threads.
    let most = if blocks.dtype == DType::F64 { 512 } else { 1024 };
    let threads = n.next_power_of_two().clamp(32, most);
    let rows = n.div_ceil(threads).next_power_of_two();
    blocks.rows = (PANEL_COLUMNS / rows).clamp(1, panel_columns(n));
    for first in (0..n).step_by(blocks.rows) {
        let size = blocks.rows.min(n - first);
        let rest = first + size;
        let kernel_args = PanelArgs {
            a: all.data,
            moves,
            batch: all.batch as i64,
            stride: width as i64,
            n: n as i64,
            first: first as i64,
            size: size as i64,
            faults,
        };
        let spec = blocks.spec(&PANEL, "panel", threads as u32).int("ROWS", rows as i64);
        let spec = spec.int("WIDE", (16 / blocks.dtype.size()).min(blocks.rows) as i64);
        let grid = blocks.grid(1, threads as u32)?;
        blocks.args.kernel(spec, grid, &kernel_args)?;
        let (own, columns) = (all.from(first, rest), n + k - rest);
        blocks.solve((all.from(first, first), Form::UnitLower(moves)), own, all.data, [size, columns])?;
        if rest < n {
            let own = [all.from(rest, first), own, all.from(rest, rest)];
            blocks.update(own, all.data, [n - rest, columns, size], false)?;
        }
    }
    blocks.rows = rows_of_triangles;
    let sides = all.from(0, n);
    blocks.solve_triangular((all, true), all.data, sides, [n, k])?;
    blocks.copy(sides, Matrices::dense(y, n, k), [n, k], false)
}
