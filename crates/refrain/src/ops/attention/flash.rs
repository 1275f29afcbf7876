//! Attention on tensor cores for sequences of any length: tiles of keys pass by blocks of queries.

use super::Attention;
use super::cuda::{JOB, Job, SOFTMAX, WeightOptions, aligned};
use super::forms::{FORMS, form};
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, MMA, Source, View};
use crate::error::Result;
use crate::tensor::DType;

const COMMON: &str = include_str!("flash.cu");

static FORWARD: Source =
    Source { name: "attention", parts: &[MMA, FORMS, JOB, COMMON, include_str!("flash_forward.cu")] };
static QUERIES: Source =
    Source { name: "attention", parts: &[MMA, FORMS, JOB, COMMON, include_str!("flash_queries.cu")] };
static KEYS: Source =
    Source { name: "attention", parts: &[MMA, FORMS, JOB, COMMON, include_str!("flash_keys.cu")] };

/// Maximum of numbers per head: the registers hold no more.
const WIDEST: usize = 128;
/// Maximum of warps per block, and rows per warp.
const WARPS: usize = 4;
const ROWS: usize = 16;

/// How an attention is divided into blocks and tiles.
pub(super) struct Flash {
    dtype: DType,
    /// The number format of the products.
    form: &'static str,
    causal: bool,
    head_dim: usize,
    pairs: usize,
    queries: usize,
    keys: usize,
}

impl Flash {
    /// `None` if heads are too wide, f32 heads too narrow for so few keys, or the dtype is f64.
    pub(super) fn new(op: &Attention, q: &View<'_>, k: &View<'_>) -> Option<Flash> {
        let (shape, keys) = (q.layout.shape(), k.layout.shape()[1]);
        let (pairs, queries, head_dim) = (shape[0] * shape[2], shape[1], shape[3]);
        let form = form(op, q.dtype, head_dim, keys)?;
        let fits = (1..=WIDEST).contains(&head_dim)
            && [pairs * queries.div_ceil(ROWS), pairs * keys.div_ceil(ROWS)]
                .iter()
                .all(|&n| n <= i32::MAX as usize);
        fits.then_some(Flash { dtype: q.dtype, form, causal: op.causal, head_dim, pairs, queries, keys })
    }

    /// Bytes of a number in shared memory.
    fn size(&self) -> usize {
        if self.dtype == DType::BF16 { 2 } else { 4 }
    }

    /// How many numbers have 16 bytes there (`RUN` in the kernel text).
    fn run(&self) -> usize {
        16 / self.size()
    }

    /// Bytes of a row of shared memory (`PITCH` numbers in the kernel text).
    fn pitch(&self) -> usize {
        (self.head_dim.next_multiple_of(2 * self.run()) + self.run()) * self.size()
    }

    /// Rows that pass by at a time. Wider tiles of what the registers hold would leave too few of them.
    fn tile(&self) -> usize {
        let most = if self.dtype == DType::BF16 { 64 } else { 32 };
        if self.head_dim <= 64 { most } else { most / 2 }
    }

    /// Warps per block for so many rows.
    fn warps(&self, rows: usize) -> usize {
        // Rows of wide heads need much shared memory.
        let most = if self.pitch() > 288 { WARPS / 2 } else { WARPS };
        rows.div_ceil(ROWS).min(most)
    }

    /// Launches a kernel for blocks of `rows` rows, with `own` tiles of its own rows, four that pass by, and `more` bytes.
    fn launch(
        &self,
        (source, entry): (&'static Source, &'static str),
        (rows, own, more): (usize, usize, usize),
        args: &mut CudaArgs<'_>,
        operands: &[&View<'_>],
        job: &Job,
        options: WeightOptions,
    ) -> Result<()> {
        let warps = self.warps(rows);
        let parts = rows.div_ceil(warps * ROWS);
        let bytes = self.pitch() * (own * warps * ROWS + 4 * self.tile()) + more;
        let spec = options
            .constants(KernelSpec::new(source, entry))
            .dtype("IN", self.dtype)
            .word("FORM", self.form)
            .int("HEAD_DIM", self.head_dim as i64)
            .int("WARPS", warps as i64)
            .int("TILE", self.tile() as i64)
            .int("MEMORY_BYTES", bytes as i64)
            .flag("ALIGNED", aligned(operands, self.run()))
            .flag("CAUSAL", self.causal);
        let grid = Grid::line(self.pairs * parts, 32 * warps as u32).shared(bytes);
        args.kernel(spec, grid, &job.in_parts(parts))
    }

    pub(super) fn forward(
        &self,
        args: &mut CudaArgs<'_>,
        operands: &[&View<'_>],
        job: &Job,
        options: WeightOptions,
    ) -> Result<()> {
        let rows = (self.queries, 1, 0);
        self.launch((&FORWARD, "attention_flash_forward"), rows, args, operands, job, options)
    }

    /// Needs a workspace for what the kernel of the queries tells that of the keys.
    pub(super) fn backward(
        &self,
        args: &mut CudaArgs<'_>,
        operands: &[&View<'_>],
        job: &Job,
        options: WeightOptions,
    ) -> Result<()> {
        if self.queries > 0 {
            let rows = (self.queries, 2, 0);
            self.launch((&QUERIES, "attention_flash_queries"), rows, args, operands, job, options)?;
        }
        if self.keys > 0 {
            let rows = (self.keys, 2, 2 * self.tile() * SOFTMAX * size_of::<f32>());
            self.launch((&KEYS, "attention_flash_keys"), rows, args, operands, job, options)?;
        }
        Ok(())
    }
}
