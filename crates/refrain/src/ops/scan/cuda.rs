//! Running sums, products and recurrences on CUDA. A line is cut into chunks that are scanned side by side. If there is more than one, a
//! first pass gives the total of each chunk. What lies before a chunk is added up by each block of a row, and by a pass of
//! its own for columns.
//!
//! How a line is cut depends only on the extents, so results do not depend on the size of the device.

use super::{Kind, Scan};
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, View, params};
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::tensor::DType;

static ROWS: Source = Source { name: "scan", parts: &[include_str!("common.cu"), include_str!("rows.cu")] };
static COLUMNS: Source =
    Source { name: "scan", parts: &[include_str!("common.cu"), include_str!("columns.cu")] };
static BEFORE: Source =
    Source { name: "scan", parts: &[include_str!("common.cu"), include_str!("before.cu")] };

const THREADS: usize = 256;
/// Elements that a warp scans of a row at a time.
const WARP: usize = 256;
/// Elements that a block scans of a row at a time.
const BLOCK: usize = WARP * WARPS;
const WARPS: usize = THREADS / 32;
/// Neighbours that a thread scans of a row.
const NEAR: usize = 4;
/// This many blocks fill a device. Fewer rows are cut into chunks.
const BLOCKS: usize = 512;
/// This many threads keep a device busy. Fewer columns are cut into chunks, whose elements are read twice.
const FULL: usize = 1 << 15;
/// The least rows of a column that are worth a thread.
const LEAST: usize = 32;
/// The maximum size of a state in bytes: two f64.
const STATE: usize = 16;

params! {
    struct ScanArgs {
        /// What is added up or multiplied; of recurrences and of gradients, what a step multiplies by.
        x: Pointer = "const IN*",
        /// What a step of these adds.
        d: Pointer = "const IN*",
        /// Of gradients: the running product, or the results of the recurrence.
        results: Pointer = "const IN*",
        /// Of recurrences: what is before them.
        first: Pointer = "const IN*",
        y: Pointer = "OUT*",
        decay_gradient: Pointer = "OUT*",
        first_gradient: Pointer = "OUT*",
        /// Of each chunk, its total. Of columns, then what lies before it.
        totals: Pointer,
        outer: i64,
        n: i64,
        inner: i64,
        /// The number of chunks of a line, and how long each is.
        chunks: i64,
        length: i64,
    }
}

/// How lines are cut: the length of a chunk, and how many there are.
fn cut(extent: Extent) -> (usize, usize) {
    let Extent { outer, n, inner } = extent;
    let length = match inner {
        1 => {
            let rounds = n.div_ceil(BLOCK).max(1);
            rounds.div_ceil((BLOCKS / outer.max(1)).clamp(1, rounds)) * BLOCK
        }
        _ => {
            let wanted = (n / LEAST).min(FULL.div_ceil((outer * inner).max(1))).max(1);
            n.div_ceil(wanted).max(1)
        }
    };
    (length, n.div_ceil(length).max(1))
}

pub(super) fn workspace(extent: Extent) -> usize {
    match cut(extent).1 {
        1 => 0,
        chunks => extent.outer * extent.inner * chunks * STATE,
    }
}

/// What runs along the lines.
#[derive(Clone, Copy)]
struct Run {
    kind: &'static str,
    extent: Extent,
    reverse: bool,
    /// Whether there are neighbours that are loaded and stored at once.
    vectors: bool,
}

pub(super) fn forward(scan: &Scan, args: &mut CudaArgs<'_>) -> Result<()> {
    let kind = if scan.kind == Kind::Sum { "SUM" } else { "PRODUCT" };
    let vectors = vectors(scan.extent.n, args);
    let run = Run { kind, extent: scan.extent, reverse: scan.reverse, vectors };
    run.launch(ScanArgs { x: args.read(0), y: args.write(0), ..run.args() }, &[], args)
}

pub(super) fn product_backward(extent: Extent, args: &mut CudaArgs<'_>) -> Result<()> {
    let run = Run { kind: "PRODUCT_GRADIENT", extent, reverse: true, vectors: false };
    let (x, results, d) = (args.read(0), args.read(1), args.read(2));
    run.launch(ScanArgs { x, results, d, y: args.write(0), ..run.args() }, &[], args)
}

/// Operands: what is added, the decay, and what is before, if anything.
pub(super) fn recurrence(extent: Extent, first: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let run = Run { kind: "RECURRENCE", extent, reverse: false, vectors: false };
    let (d, x) = (args.read(0), args.read(1));
    let first_at = if first { args.read(2) } else { Pointer::NOTHING };
    run.launch(ScanArgs { d, x, first: first_at, y: args.write(0), ..run.args() }, &[("FIRST", first)], args)
}

/// Operands and results as [`RecurrenceBackward`](super::recurrence::RecurrenceBackward) has them.
pub(super) fn recurrence_backward(
    extent: Extent,
    [first, decay]: [bool; 2],
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    let run = Run { kind: "RECURRENCE_GRADIENT", extent, reverse: true, vectors: false };
    let (x, d) = (args.read(0), args.read(1));
    let last = usize::from(decay) + 1;
    let adds = |there: bool, result: usize, args: &CudaArgs<'_>| there && args.accumulate(result);
    let flags = [
        ("FIRST", first),
        ("DECAY", decay),
        ("ADD_DECAY", adds(decay, 1, args)),
        ("ADD_FIRST", adds(first, last, args)),
    ];
    let kernel_args = ScanArgs {
        x,
        d,
        results: if decay { args.read(2) } else { Pointer::NOTHING },
        first: if decay && first { args.read(3) } else { Pointer::NOTHING },
        y: args.write(0),
        decay_gradient: if decay { args.write(1) } else { Pointer::NOTHING },
        first_gradient: if first { args.write(last) } else { Pointer::NOTHING },
        ..run.args()
    };
    run.launch(kernel_args, &flags, args)
}

/// Whether a GPU can load and store neighbours of rows at once.
fn vectors(n: usize, args: &CudaArgs<'_>) -> bool {
    let fits = |view: View<'_>| view.alignment().is_multiple_of(NEAR * view.dtype.size());
    n.is_multiple_of(NEAR) && fits(args.input(0)) && fits(args.output(0))
}

impl Run {
    /// The arguments that follow from the extent.
    fn args(&self) -> ScanArgs {
        let Extent { outer, n, inner } = self.extent;
        let (length, chunks) = cut(self.extent);
        ScanArgs {
            x: Pointer::NOTHING,
            d: Pointer::NOTHING,
            results: Pointer::NOTHING,
            first: Pointer::NOTHING,
            y: Pointer::NOTHING,
            decay_gradient: Pointer::NOTHING,
            first_gradient: Pointer::NOTHING,
            totals: Pointer::NOTHING,
            outer: outer as i64,
            n: n as i64,
            inner: inner as i64,
            chunks: chunks as i64,
            length: length as i64,
        }
    }

    /// Launches the passes, whose arguments lack the workspace.
    fn launch(
        self,
        mut kernel_args: ScanArgs,
        flags: &[(&'static str, bool)],
        args: &mut CudaArgs<'_>,
    ) -> Result<()> {
        let Extent { outer, n, inner } = self.extent;
        if outer * n * inner == 0 {
            return Ok(());
        }
        let (_, chunks) = cut(self.extent);
        if chunks > 1 {
            kernel_args.totals = args.workspace();
        }
        let (dtype, out) = (args.read_dtype(0), args.write_dtype(0));
        let compute = if dtype.is_float() { dtype.accumulator() } else { DType::I64 };
        let add = args.accumulate(0);
        let common = |source: &'static Source, entry: &'static str| {
            let spec = KernelSpec::new(source, entry)
                .word("KIND", self.kind)
                .dtype("COMPUTE", compute)
                .dtype("IN", dtype)
                .dtype("OUT", out)
                .flag("REVERSE", self.reverse)
                .flag("ADD", add);
            flags.iter().fold(spec, |spec, &(name, value)| spec.flag(name, value))
        };
        let lines = outer * inner;
        let pass = |totals: bool, args: &mut CudaArgs<'_>| {
            if inner == 1 {
                let warps = n.div_ceil(WARP).next_power_of_two().min(WARPS);
                let spec = common(&ROWS, "scan_rows")
                    .int("WARPS", warps as i64)
                    .flag("VECTORS", self.vectors)
                    .flag("TOTALS", totals);
                let blocks = (outer * chunks).div_ceil(WARPS / warps);
                args.kernel(spec, Grid::line(blocks, THREADS as u32), &kernel_args)
            } else {
                let spec = common(&COLUMNS, "scan_columns").flag("TOTALS", totals);
                let grid = Grid::line((lines * chunks).div_ceil(THREADS), THREADS as u32);
                args.kernel(spec, grid, &kernel_args)
            }
        };
        if chunks > 1 {
            pass(true, args)?;
            if inner > 1 {
                args.kernel(common(&BEFORE, "scan_before"), Grid::line(lines, THREADS as u32), &kernel_args)?;
            }
        }
        pass(false, args)
    }
}
