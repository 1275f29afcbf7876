//! Attention on tensor cores for sequences of any length: tiles of keys pass by blocks of queries.

use super::Attention;
use super::cuda::{JOB, Job, SOFTMAX, WeightOptions, aligned};
use super::forms::{FORMS, form};
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, MMA, MmaKind, Source, View, WGMMA};
use crate::error::Result;
use crate::tensor::DType;

const COMMON: &str = include_str!("flash.cu");
const WARPS_ALONE: &str = include_str!("flash_warps.cu");
const GROUPS: &str = include_str!("flash_groups.cu");

/// The text of a kernel: for warps that multiply alone, and for groups of four. Both compute the same bits.
macro_rules! sources {
    ($file:literal) => {
        [
            Source { name: "attention", parts: &[MMA, JOB, FORMS, COMMON, WARPS_ALONE, include_str!($file)] },
            Source {
                name: "attention",
                parts: &[MMA, WGMMA, JOB, FORMS, COMMON, GROUPS, include_str!($file)],
            },
        ]
    };
}
static FORWARD: [Source; 2] = sources!("flash_forward.cu");
static QUERIES: [Source; 2] = sources!("flash_queries.cu");
static KEYS: [Source; 2] = sources!("flash_keys.cu");

/// Maximum of numbers per head: the registers hold no more.
const WIDEST: usize = 128;
/// Maximum of warps per block, and rows per warp.
const WARPS: usize = 4;
const ROWS: usize = 16;
/// Rows of a block whose warps multiply together, and numbers per head: from half of each on it is faster. Of more rows or numbers, no
/// block computes all gradients of a head.
const GROUP: usize = 64;
/// Heads of at most so many numbers have tiles that are as short as their keys.
const NARROW: usize = 32;
/// With fewer keys, short tiles that leave less of the last one empty are faster than long ones.
const MANY_KEYS: usize = 128;
/// Numbers behind each row of weights in shared memory (`SCORE_PITCH` in the kernel text).
const BEHIND_WEIGHTS: usize = 8;

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
    mma: MmaKind,
}

impl Flash {
    /// `None` if heads are too wide, f32 heads too narrow for so few keys, or the dtype is f64.
    pub(super) fn new(op: &Attention, q: &View<'_>, k: &View<'_>, mma: MmaKind) -> Option<Flash> {
        let (shape, keys) = (q.layout.shape(), k.layout.shape()[1]);
        let (pairs, queries, head_dim) = (shape[0] * shape[2], shape[1], shape[3]);
        let form = form(op, q.dtype, head_dim, keys)?;
        let fits = (1..=WIDEST).contains(&head_dim)
            && [pairs * queries.div_ceil(ROWS), pairs * keys.div_ceil(ROWS)]
                .iter()
                .all(|&n| n <= i32::MAX as usize);
        fits.then_some(Flash { dtype: q.dtype, form, causal: op.causal, head_dim, pairs, queries, keys, mma })
    }

    /// Bytes of a number in shared memory.
    fn size(&self) -> usize {
        if self.dtype == DType::BF16 { 2 } else { 4 }
    }

    /// How many numbers have 16 bytes there (`RUN` in the kernel text).
    fn run(&self) -> usize {
        16 / self.size()
    }

    /// How many neighbouring numbers of these operands can be moved in one instruction, at most a run.
    fn piece(&self, operands: &[&View<'_>]) -> usize {
        let fits = |&piece: &usize| self.run().is_multiple_of(piece) && aligned(operands, piece);
        [8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Whether the warps of a block of so many rows multiply together.
    fn groups(&self, rows: usize) -> bool {
        let half_full = |n: usize| n > GROUP / 2;
        self.mma == MmaKind::WarpGroup
            && self.form == "BF16"
            && half_full(self.head_dim)
            && self.head_dim <= GROUP
            && half_full(rows)
    }

    /// Whether one block computes all gradients of a head.
    fn whole(&self) -> bool {
        // Warps that work alone have blocks of the longer side. If it is one for groups of warps, two kernels are faster.
        let is_alike = self.groups(self.queries) || !self.groups(self.queries.max(self.keys));
        self.form == "BF16"
            && self.head_dim <= GROUP
            && (1..=GROUP).contains(&self.queries)
            && (1..=self.tile()).contains(&self.keys)
            && is_alike
    }

    /// Bytes of a row of shared memory (`PITCH` numbers in the kernel text).
    fn pitch(&self, groups: bool) -> usize {
        let numbers = match groups {
            true => GROUP,
            false => self.head_dim.next_multiple_of(2 * self.run()) + self.run(),
        };
        numbers * self.size()
    }

    /// Rows that pass by at a time. Wider tiles of what the registers hold would leave too few of them.
    fn tile(&self) -> usize {
        let is_bf16 = self.dtype == DType::BF16;
        let most = if is_bf16 { 64 } else { 32 };
        if self.head_dim > 64 {
            return most / 2;
        }
        if !is_bf16 || self.head_dim > NARROW {
            return most;
        }
        let leaves_less = self.keys.next_multiple_of(32) < self.keys.next_multiple_of(64);
        match self.keys {
            33..=48 => 48,
            keys if leaves_less && keys < MANY_KEYS => 32,
            _ => 64,
        }
    }

    /// Warps per block for so many rows. Of few rows, two to four warps: as many as leave the fewest without rows.
    fn warps(&self, rows: usize) -> usize {
        if self.groups(rows) {
            return WARPS;
        }
        // Rows of wide heads need much shared memory.
        let most = if self.pitch(false) > 288 { WARPS / 2 } else { WARPS };
        let wanted = rows.div_ceil(ROWS);
        if wanted <= most || wanted > 2 * most {
            return wanted.min(most);
        }
        (2..=most).rev().min_by_key(|&warps| wanted.next_multiple_of(warps)).unwrap_or(most)
    }

    /// Launches a kernel for blocks of `rows` rows, with `own` tiles of its own rows, `passing` ones that pass by, and `more` bytes.
    fn launch(
        &self,
        (sources, entry): (&'static [Source; 2], &'static str),
        (rows, own, passing, more): (usize, usize, usize, usize),
        args: &mut CudaArgs<'_>,
        operands: &[&View<'_>],
        job: &Job,
        options: WeightOptions,
    ) -> Result<()> {
        let (warps, groups) = (self.warps(rows), self.groups(rows));
        let parts = rows.div_ceil(warps * ROWS);
        let bytes = self.pitch(groups) * (own * warps * ROWS + passing * self.tile()) + more;
        let spec = options
            .constants(KernelSpec::new(&sources[usize::from(groups)], entry))
            .dtype("IN", self.dtype)
            .word("FORM", self.form)
            .int("HEAD_DIM", self.head_dim as i64)
            .int("WARPS", warps as i64)
            .int("TILE", self.tile() as i64)
            .flag("GROUPS", groups)
            .flag("WHOLE", self.whole())
            .int("MEMORY_BYTES", bytes as i64)
            .int("PIECE", self.piece(operands) as i64)
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
        let rows = (self.queries, 1, 4, 0);
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
            let rows = if self.whole() && !self.groups(self.queries) {
                // Of keys and values there is one tile. Weights and the gradients of scores, of 16 bits, are there, too.
                let rows = self.queries.max(self.keys);
                let scores = self.warps(rows) * ROWS * (self.tile() + BEHIND_WEIGHTS) * size_of::<u16>();
                (rows, 2, 2, 2 * scores)
            } else {
                (self.queries, 2, 4, 0)
            };
            self.launch((&QUERIES, "attention_flash_queries"), rows, args, operands, job, options)?;
        }
        if self.keys > 0 && !self.whole() {
            let rows = (self.keys, 2, 4, 2 * self.tile() * SOFTMAX * size_of::<f32>());
            self.launch((&KEYS, "attention_flash_keys"), rows, args, operands, job, options)?;
        }
        Ok(())
    }
}
