//! Attention for short sequences on tensor cores: one warp for each sequence and head.

use super::Attention;
use super::cuda::{JOB, Job, WeightOptions, aligned};
use super::forms::{FORMS, form};
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, MMA, Source, View};
use crate::error::Result;
use crate::tensor::DType;

const COMMON: &str = include_str!("tensor.cu");
const SCORES: &str = include_str!("tensor_scores.cu");

static FORWARD: Source = Source {
    name: "attention",
    parts: &[MMA, JOB, FORMS, COMMON, SCORES, include_str!("tensor_forward.cu")],
};
static BACKWARD: Source = Source {
    name: "attention",
    parts: &[MMA, JOB, FORMS, COMMON, SCORES, include_str!("tensor_backward.cu")],
};

/// Maximum of queries, of keys, and of numbers per head.
const MOST: usize = 64;
/// Maximum of warps per block.
const WARPS: usize = 4;
/// Shared memory of a block that leaves room for several blocks on a multiprocessor.
const BYTES: usize = 56 << 10;
/// How many sums of the gradient kernel the registers of a lane hold besides everything else.
const SUMS: usize = 128;

/// How an attention is divided into tensor-core fragments.
pub(super) struct Fragments {
    dtype: DType,
    /// The number format of the fragments.
    form: &'static str,
    causal: bool,
    head_dim: usize,
    /// How many groups of 8 numbers a head has, of 16 queries and of 8 keys.
    eights: usize,
    query_blocks: usize,
    key_eights: usize,
}

impl Fragments {
    /// `None` if sequences or heads are too long, f32 heads too short for so few keys, or the dtype is f64.
    pub(super) fn new(op: &Attention, q: &View<'_>, k: &View<'_>) -> Option<Fragments> {
        let (shape, keys) = (q.layout.shape(), k.layout.shape()[1]);
        let (queries, head_dim) = (shape[1], shape[3]);
        let short = [queries, keys, head_dim].iter().all(|n| (1..=MOST).contains(n));
        let form = form(op, q.dtype, head_dim, keys)?;
        (short && shape[0] * shape[2] <= i32::MAX as usize).then_some(Fragments {
            dtype: q.dtype,
            form,
            causal: op.causal,
            head_dim,
            eights: head_dim.div_ceil(8),
            query_blocks: queries.div_ceil(16),
            key_eights: keys.div_ceil(8),
        })
    }

    /// Also `None` if the registers of a warp can't hold the gradients of keys and values.
    pub(super) fn for_gradients(op: &Attention, q: &View<'_>, k: &View<'_>) -> Option<Fragments> {
        Fragments::new(op, q, k).filter(Fragments::hold_gradients)
    }

    /// Whether the registers of a warp can hold the gradients of keys and values.
    pub(super) fn hold_gradients(&self) -> bool {
        self.key_eights.div_ceil(2) * (16 + 8 * self.eights) <= SUMS
    }

    /// Bytes of shared memory for `rows` rows of a head (`Tile` in the kernel text).
    fn tile(&self, rows: usize) -> usize {
        let (size, pitch) = match self.form {
            "BF16" => (2, (self.eights | 1) * 8),
            _ if self.head_dim <= 4 => (4, 4),
            _ => (4, self.eights * 8 + 4),
        };
        (rows * pitch * size).next_multiple_of(128) + self.eights * 8 * size % 128
    }

    /// Launches a kernel that needs so many bytes of shared memory for a warp, and room for so many of scores and their gradients.
    fn launch(
        &self,
        (source, entry): (&'static Source, &'static str),
        (of_warp, scores): (usize, usize),
        args: &mut CudaArgs<'_>,
        operands: &[&View<'_>],
        job: &Job,
        options: WeightOptions,
    ) -> Result<()> {
        let (queries, keys) = (job.queries as usize, job.keys as usize);
        let padded = keys.is_multiple_of(16);
        let pitch = keys + if padded { 8 } else { 0 };
        let of_scores = |warps: usize| (warps * queries * pitch * self.dtype.size()).next_multiple_of(16);
        let zeros = if scores > 0 { 16 * keys.div_ceil(16) * self.dtype.size() } else { 0 };
        let bytes = |warps: usize| warps * of_warp + scores * of_scores(warps) + zeros;
        let warps = [WARPS, WARPS / 2].into_iter().find(|&w| bytes(w) <= BYTES).unwrap_or(1);
        let spec = options
            .constants(KernelSpec::new(source, entry))
            .dtype("IN", self.dtype)
            .word("FORM", self.form)
            .int("HEAD_DIM", self.head_dim as i64)
            .int("QUERY_BLOCKS", self.query_blocks as i64)
            .int("KEY_EIGHTS", self.key_eights as i64)
            .int("WARPS", warps as i64)
            .int("TILE_BYTES", (warps * of_warp) as i64)
            .int("SCORE_RUN", if scores > 0 { options.run(warps * queries, keys) as i64 } else { 1 })
            .flag("PADDED", scores > 0 && padded)
            .flag("ALIGNED", aligned(operands, 4))
            .flag("CAUSAL", self.causal);
        let blocks = (job.pairs as usize).div_ceil(warps);
        args.kernel(spec, Grid::line(blocks, 32 * warps as u32).shared(bytes(warps)), job)
    }

    pub(super) fn forward(
        &self,
        args: &mut CudaArgs<'_>,
        operands: &[&View<'_>],
        job: &Job,
        options: WeightOptions,
    ) -> Result<()> {
        let of_warp = self.tile(self.query_blocks * 16) + 2 * self.tile(self.key_eights * 8);
        let scores = usize::from(options.before || options.after);
        self.launch((&FORWARD, "attention_tensor_forward"), (of_warp, scores), args, operands, job, options)
    }

    pub(super) fn backward(
        &self,
        args: &mut CudaArgs<'_>,
        operands: &[&View<'_>],
        job: &Job,
        options: WeightOptions,
    ) -> Result<()> {
        let (queries, keys) = (self.query_blocks * 16, self.key_eights.div_ceil(2) * 16);
        // Space to transpose fragments.
        let turned = if self.form == "BF16" { 0 } else { keys * 20 };
        let of_warp = 2 * (self.tile(queries) + self.tile(keys)) + 4 * (2 * queries + turned);
        let scores = usize::from(options.before) + usize::from(options.after);
        self.launch((&BACKWARD, "attention_tensor_backward"), (of_warp, scores), args, operands, job, options)
    }
}
