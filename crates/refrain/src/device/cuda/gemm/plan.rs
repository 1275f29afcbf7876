//! Which of our own kernels runs a product, and how.

use std::collections::HashSet;

use smallvec::{SmallVec, smallvec};

use super::shared::{DEPTH, Shared};
use super::{Flat, Matrix, Product};
use crate::device::cuda::kernel::{Grid, MMA, Params, Source, Spec};
use crate::error::{Error, Result};
use crate::ops::linear::Activation;
use crate::ops::unary::ACTIVATIONS;
use crate::precision::Precision;
use crate::tensor::DType;

const COMMON: &str = include_str!("common.cu");

static TENSOR: Source = Source {
    name: "gemm",
    parts: &[ACTIVATIONS, MMA, COMMON, include_str!("tiles.cu"), include_str!("tensor.cu")],
};
static SIMT: Source = Source { name: "gemm", parts: &[ACTIVATIONS, COMMON, include_str!("simt.cu")] };
static SKINNY: Source = Source { name: "gemm", parts: &[ACTIVATIONS, COMMON, include_str!("skinny.cu")] };
static SUM: Source = Source { name: "gemm", parts: &[ACTIVATIONS, COMMON, include_str!("sum.cu")] };

/// Dimensions of a batch that a kernel steps through (`BATCH_RANK` in `common.cu`).
const BATCH_RANK: usize = 4;
/// Tiles that keep a GPU busy. Of no GPU in particular, so that sums have one order on all.
const ENOUGH_TILES: usize = 128;
/// The depth from which on large tiles pay, on tensor cores and without: before it, what a block waits for at its
/// beginning and its end matters more.
const DEEP: [usize; 2] = [192, 64];
/// The depth from which on wide tiles pay, whose fragments are used more often.
const VERY_DEEP: usize = 4096;
/// A part of k that is worth a large tile.
const LARGE_PART: usize = 256;
/// Threads that keep a GPU busy, likewise, if one of tensor cores computes 32 numbers.
const ENOUGH_THREADS: usize = 1 << 16;
/// The most parts that k is cut into.
const MAX_SPLITS: usize = 512;
/// The most rows, columns and numbers along k: places within the last tile still fit 32 bits.
const MOST_NUMBERS: usize = i32::MAX as usize - 255;
/// Few enough rows or columns for [`SKINNY`].
const MAX_NARROW: usize = 8;
/// Numbers in a sum over rows from which on tensor cores take it faster.
const LONG_COLUMN: usize = 1024;

/// Warps of a block along m and n, and 16 x 8 fragments of each along m and n.
#[derive(Clone, Copy)]
struct TensorTile {
    warps: [usize; 2],
    fragments: [usize; 2],
}

impl TensorTile {
    const LARGE: TensorTile = TensorTile { warps: [2, 4], fragments: [4, 4] };
    const WIDE: TensorTile = TensorTile { warps: [2, 2], fragments: [4, 4] };
    const MEDIUM: TensorTile = TensorTile { warps: [2, 2], fragments: [2, 4] };
    const SMALL: TensorTile = TensorTile { warps: [2, 2], fragments: [1, 2] };
    const THIN: TensorTile = TensorTile { warps: [4, 1], fragments: [2, 4] };
    const THINNEST: TensorTile = TensorTile { warps: [4, 1], fragments: [2, 2] };

    fn size(self) -> [usize; 2] {
        [self.warps[0] * self.fragments[0] * 16, self.warps[1] * self.fragments[1] * 8]
    }

    fn of(p: &Product) -> TensorTile {
        // Each number is multiplied as two, which takes more instructions to make ready.
        let split = p.dtype == DType::F32 && p.precision != Precision::Tf32;
        match () {
            () if p.m <= 32 && p.n <= 32 => TensorTile::SMALL,
            () if p.n <= 16 => TensorTile::THINNEST,
            () if p.n <= 32 => TensorTile::THIN,
            // Numbers along k are read one by one where they don't follow each other: wide tiles use them more often.
            () if split && !p.a.dense[1] && fills(p, TensorTile::WIDE.size()) => TensorTile::WIDE,
            () if split => TensorTile::MEDIUM,
            () if p.k >= DEEP[0] && keeps_busy(p, TensorTile::LARGE.size()) => TensorTile::LARGE,
            () if p.k >= VERY_DEEP && 2 * p.m > TensorTile::WIDE.size()[0] => TensorTile::WIDE,
            () => TensorTile::MEDIUM,
        }
    }
}

/// Numbers of C that a block computes along m and n, how deep its tiles are, and the numbers of a thread.
#[derive(Clone, Copy)]
struct SimtTile {
    size: [usize; 2],
    depth: usize,
    thread: [usize; 2],
}

impl SimtTile {
    const LARGE: SimtTile = SimtTile { size: [128, 128], depth: 8, thread: [8, 8] };
    const MEDIUM: SimtTile = SimtTile { size: [64, 64], depth: 16, thread: [4, 4] };
    const SMALL: SimtTile = SimtTile { size: [32, 32], depth: 16, thread: [4, 4] };
    const THIN: SimtTile = SimtTile { size: [128, 32], depth: 16, thread: [4, 4] };
    const THINNEST: SimtTile = SimtTile { size: [128, 16], depth: 16, thread: [4, 4] };

    fn threads(self) -> usize {
        self.size[0] / self.thread[0] * (self.size[1] / self.thread[1])
    }

    fn of(p: &Product) -> SimtTile {
        match () {
            () if p.m <= 32 && p.n <= 32 => SimtTile::SMALL,
            () if p.n <= 16 => SimtTile::THINNEST,
            () if p.n <= 32 => SimtTile::THIN,
            () if p.dtype != DType::F64 && p.k >= DEEP[1] && keeps_busy(p, SimtTile::LARGE.size) => {
                SimtTile::LARGE
            }
            () => SimtTile::MEDIUM,
        }
    }
}

/// The kernel and the tile that a block of it computes.
#[derive(Clone, Copy)]
enum Way {
    Tensor { tile: TensorTile, form: &'static str },
    Simt { tile: SimtTile },
    Skinny { narrow: usize, wide_is_a: bool, along_k: bool },
}

/// The way of a product through our own kernels.
struct Plan {
    way: Way,
    /// Tiles along m and n.
    tiles: [usize; 2],
    splits: usize,
    /// How much of k a split sums.
    depth: usize,
}

fn tiles(p: &Product, size: [usize; 2]) -> usize {
    p.m.div_ceil(size[0]) * p.n.div_ceil(size[1]) * p.batches()
}

/// Whether a product fills more than half of a tile along m and along n.
fn fills(p: &Product, size: [usize; 2]) -> bool {
    2 * p.m > size[0] && 2 * p.n > size[1]
}

/// Whether large tiles are filled by half at least and there are enough of them, parts of k counted.
fn keeps_busy(p: &Product, size: [usize; 2]) -> bool {
    fills(p, size) && tiles(p, size) * (p.k / LARGE_PART).clamp(1, MAX_SPLITS) >= ENOUGH_TILES
}

/// The type that is summed in.
fn compute(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// How many elements of 16 bytes or fewer can be moved at once along a dense dimension of an operand.
fn together(x: &Matrix, other_step: usize) -> usize {
    let whole = 16 / x.dtype.size();
    let even = x.batch.iter().chain([&other_step]).all(|step| step.is_multiple_of(whole));
    if even && x.alignment.is_multiple_of(16) { whole } else { 1 }
}

impl Way {
    fn of(p: &Product) -> Way {
        let form = match (p.dtype, p.precision) {
            (DType::F16, _) => Some("HALVES"),
            (DType::BF16, _) => Some("BRAINS"),
            (DType::F32, Precision::Tf32) => Some("TF32"),
            (DType::F32, _) => Some("SPLIT"),
            _ => None,
        };
        let form = form.filter(|_| [&p.a, &p.b].iter().all(|x| x.dense[0] || x.dense[1]));
        let narrow = p.m.min(p.n);
        let wide_is_a = p.n <= p.m;
        let along_k = if wide_is_a { p.a.dense[1] } else { p.b.dense[0] };
        // Tensor cores take 8 columns as fast as one, and long columns faster.
        let few = match form {
            None => MAX_NARROW,
            Some(_) if !along_k && p.k >= LONG_COLUMN => 0,
            Some(_) => MAX_NARROW / 2,
        };
        if narrow <= few && p.sums.is_none() {
            return Way::Skinny { narrow: narrow.next_power_of_two(), wide_is_a, along_k };
        }
        match form {
            Some(form) => Way::Tensor { tile: TensorTile::of(p), form },
            None => Way::Simt { tile: SimtTile::of(p) },
        }
    }

    /// Numbers of C along m and n that a block computes; the step along k. A skinny product's tiles are counted
    /// along m, whichever side is wide.
    fn tile(self) -> ([usize; 2], usize) {
        match self {
            Way::Tensor { tile, .. } => (tile.size(), DEPTH),
            Way::Simt { tile } => (tile.size, tile.depth),
            Way::Skinny { along_k, .. } => ([if along_k { 8 } else { 32 }, usize::MAX], 64),
        }
    }

    fn threads(self) -> u32 {
        match self {
            Way::Tensor { tile, .. } => (tile.warps[0] * tile.warps[1] * 32) as u32,
            Way::Simt { tile } => tile.threads() as u32,
            Way::Skinny { .. } => 256,
        }
    }

    /// How many of [`ENOUGH_THREADS`] a block stands for.
    fn share(self) -> usize {
        match self {
            Way::Tensor { tile, .. } => (tile.size()[0] * tile.size()[1] / 32).max(self.threads() as usize),
            _ => self.threads() as usize,
        }
    }
}

impl Plan {
    fn of(p: &Product) -> Plan {
        let way = Way::of(p);
        let (size, step) = way.tile();
        let tiles = match way {
            Way::Skinny { wide_is_a, .. } => [if wide_is_a { p.m } else { p.n }.div_ceil(size[0]), 1],
            _ => [p.m.div_ceil(size[0]), p.n.div_ceil(size[1]).max(1)],
        };
        // k is cut where there are too few tiles, into parts of a few steps at least.
        let threads = tiles[0] * tiles[1] * p.batches() * way.share();
        let wanted = ENOUGH_THREADS.checked_div(threads).unwrap_or(1).clamp(1, MAX_SPLITS);
        let steps = p.k.div_ceil(step).max(1);
        let depth = steps.div_ceil(wanted.min(steps.div_ceil(4)));
        let splits = steps.div_ceil(depth);
        Plan { way, tiles, splits, depth: if splits == 1 { p.k } else { depth * step } }
    }

    /// Tiles of C, counted for each split.
    fn blocks(&self, p: &Product) -> usize {
        self.tiles[0] * self.tiles[1] * p.batches() * self.splits
    }

    fn grid(&self, p: &Product) -> Grid {
        let grid = Grid::line(self.blocks(p), self.way.threads());
        match self.way {
            Way::Tensor { tile, .. } => grid.shared(Shared::of(p, tile.size()).bytes),
            _ => grid,
        }
    }

    /// Bytes that the splits are gathered in.
    fn workspace(&self, p: &Product) -> usize {
        if self.splits == 1 {
            return 0;
        }
        let sums = if p.sums.is_some() { p.m } else { 0 };
        self.splits * (p.batches() * p.m * p.n + sums) * compute(p.dtype).size()
    }

    fn spec(&self, p: &Product) -> Spec {
        let partial = self.splits > 1;
        let common = |source: &'static Source, entry: &'static str| {
            constants(Spec::new(source, entry), p, if partial { Activation::None } else { p.activation })
                .flag("PARTIAL", partial)
        };
        let (a_along_k, b_along_k) = (p.a.dense[1], p.b.dense[0]);
        match self.way {
            Way::Tensor { tile, form } => {
                let a_copy = together(&p.a, if a_along_k { p.a.row } else { p.a.col });
                let b_copy = together(&p.b, if b_along_k { p.b.col } else { p.b.row });
                let shared = Shared::of(p, tile.size());
                common(&TENSOR, "gemm_tensor")
                    .word("FORM", form)
                    .flag("A_ALONG_K", a_along_k)
                    .flag("B_ALONG_K", b_along_k)
                    .int("A_COPY", a_copy as i64)
                    .int("B_COPY", b_copy as i64)
                    .int("WARPS_M", tile.warps[0] as i64)
                    .int("WARPS_N", tile.warps[1] as i64)
                    .int("FRAGS_M", tile.fragments[0] as i64)
                    .int("FRAGS_N", tile.fragments[1] as i64)
                    .int("TILE_K", shared.depth as i64)
                    .int("STAGES", shared.stages as i64)
                    .int("MEMORY_BYTES", shared.bytes as i64)
                    .flag("SUMS", p.sums.is_some())
            }
            Way::Simt { tile } => {
                // `other` is the step along the dimension that does not follow itself in memory.
                let load = |x: &Matrix, other, outer: usize| {
                    let most = if x.dense[0] || x.dense[1] { together(x, other) } else { 1 };
                    most.min(16 / compute(p.dtype).size()).min(outer * tile.depth / tile.threads())
                };
                let a_load = load(&p.a, if a_along_k { p.a.row } else { p.a.col }, tile.size[0]);
                let b_load = load(&p.b, if b_along_k { p.b.col } else { p.b.row }, tile.size[1]);
                common(&SIMT, "gemm_simt")
                    .int("TILE_M", tile.size[0] as i64)
                    .int("TILE_N", tile.size[1] as i64)
                    .int("TILE_K", tile.depth as i64)
                    .int("ROWS", tile.thread[0] as i64)
                    .int("COLS", tile.thread[1] as i64)
                    .flag("A_ALONG_K", a_along_k)
                    .flag("B_ALONG_K", b_along_k)
                    .int("A_LOAD", a_load as i64)
                    .int("B_LOAD", b_load as i64)
                    .flag("SUMS", p.sums.is_some())
            }
            Way::Skinny { narrow, wide_is_a, along_k } => {
                let (x, step) = if wide_is_a { (&p.a, p.a.row) } else { (&p.b, p.b.col) };
                let load = if along_k { together(x, step) } else { 1 };
                common(&SKINNY, "gemm_skinny")
                    .int("NARROW", narrow as i64)
                    .flag("WIDE_IS_A", wide_is_a)
                    .flag("ALONG_K", along_k)
                    .int("LOAD", load as i64)
            }
        }
    }

    /// The kernel that gathers the splits, and how many blocks of it.
    fn gather(&self, p: &Product) -> Option<(Spec, usize)> {
        // Warps that share a number's splits.
        let slices = if self.splits < 16 { 1 } else { 8 };
        (self.splits > 1).then(|| {
            let spec = constants(Spec::new(&SUM, "gemm_sum"), p, p.activation);
            let each = if aligned(p) { 4 } else { 1 };
            let spec = spec.flag("PARTIAL", false).int("SLICES", slices as i64).int("EACH", each as i64);
            let groups = p.batches() * p.m * p.n / each + if p.sums.is_some() { p.m } else { 0 };
            (spec, groups.div_ceil(256 / slices))
        })
    }

    /// The kernel's parameter (`Job` in `common.cu`).
    fn job(&self, p: &Product, workspace: u64) -> Params {
        let address = |x: Option<Flat>| x.map_or(0, |x| x.address);
        let mut words: SmallVec<[u64; 36]> = smallvec![
            p.a.address,
            p.b.address,
            p.c.address,
            address(p.bias),
            address(p.residual),
            address(p.kept),
            address(p.sums.map(|s| s.0)),
            workspace,
        ];
        let numbers = [p.m, p.n, p.k, p.a.row, p.a.col, p.b.row, p.b.col];
        words.extend(numbers.iter().map(|&x| x as u64));
        let counts = [self.tiles[0], self.tiles[1], p.batches(), self.splits, self.depth];
        words.extend(counts.iter().map(|&x| x as u64));
        for (values, fill) in [(&p.batch, 1), (&p.a.batch, 0), (&p.b.batch, 0)] {
            words.extend(std::iter::repeat_n(fill, BATCH_RANK - values.len()));
            words.extend(values.iter().map(|&x| x as u64));
        }
        words.extend([p.add, p.sums.is_some_and(|s| s.1), aligned(p)].map(u64::from));
        Params::new().words(&words)
    }
}

/// Whether four elements of a row of C, and of what has its shape, can be loaded and stored at once.
fn aligned(p: &Product) -> bool {
    let parts = [Some(p.c), p.bias, p.residual, p.kept];
    let whole = |x: &Flat| x.alignment.is_multiple_of(4 * x.dtype.size());
    p.n.is_multiple_of(4) && parts.iter().flatten().all(whole)
}

fn constants(spec: Spec, p: &Product, activation: Activation) -> Spec {
    let activation = match activation {
        Activation::None => "NONE",
        Activation::Relu => "RELU",
        Activation::Gelu => "GELU",
        Activation::GeluTanh => "GELU_TANH",
        Activation::Silu => "SILU",
    };
    let beside = |x: Option<Flat>| x.map_or(p.c.dtype, |x| x.dtype);
    spec.dtype("IN", p.dtype)
        .dtype("COMPUTE", compute(p.dtype))
        .dtype("A_TYPE", p.a.dtype)
        .dtype("B_TYPE", p.b.dtype)
        .dtype("C_TYPE", p.c.dtype)
        .dtype("BIAS_TYPE", beside(p.bias))
        .dtype("RESIDUAL_TYPE", beside(p.residual))
        .dtype("SUMS_TYPE", beside(p.sums.map(|s| s.0)))
        .word("ACTIVATION", activation)
}

impl Product {
    /// Products of a batch that kernels can step through: outer dimensions are taken one by one.
    fn steppable(&self) -> SmallVec<[Product; 1]> {
        let Some(outer) = self.batch.len().checked_sub(BATCH_RANK).filter(|&n| n > 0) else {
            return smallvec![self.clone()];
        };
        let mut inner = self.clone();
        inner.batch.drain(..outer);
        inner.a.batch.drain(..outer);
        inner.b.batch.drain(..outer);
        let matrices = inner.batches() * self.m * self.n;
        let count: usize = self.batch[..outer].iter().product();
        (0..count)
            .map(|i| {
                let (mut rest, mut at_a, mut at_b) = (i, 0, 0);
                for d in (0..outer).rev() {
                    at_a += rest % self.batch[d] * self.a.batch[d];
                    at_b += rest % self.batch[d] * self.b.batch[d];
                    rest /= self.batch[d];
                }
                let mut p = inner.clone();
                let places = [
                    (&mut p.a.address, &mut p.a.alignment, at_a * self.a.dtype.size()),
                    (&mut p.b.address, &mut p.b.alignment, at_b * self.b.dtype.size()),
                    (&mut p.c.address, &mut p.c.alignment, i * matrices * self.c.dtype.size()),
                ];
                for (address, alignment, by) in places {
                    *address += by as u64;
                    *alignment = (*alignment).min(1 << by.trailing_zeros().min(usize::BITS - 1));
                }
                p
            })
            .collect()
    }

    /// Our own kernels that it may run by, each with the dynamic shared memory that it needs.
    pub(in crate::device::cuda) fn kernels(&self) -> SmallVec<[(Spec, u32); 2]> {
        if self.is_empty() {
            return SmallVec::new();
        }
        let mut kernels: SmallVec<[(Spec, u32); 2]> = self
            .steppable()
            .iter()
            .flat_map(|p| {
                let plan = Plan::of(p);
                [Some((plan.spec(p), plan.grid(p).shared)), plan.gather(p).map(|(spec, _)| (spec, 0))]
            })
            .flatten()
            .collect();
        // Those of a batch differ where some begin at addresses that are less aligned.
        let mut seen = HashSet::new();
        kernels.retain(|(spec, _)| seen.insert(spec.clone()));
        kernels
    }

    /// Bytes of memory that our own kernels work in.
    pub(in crate::device) fn own_workspace(&self) -> usize {
        match self.is_empty() {
            true => 0,
            false => self.steppable().iter().map(|p| Plan::of(p).workspace(p)).max().unwrap_or(0),
        }
    }

    /// Runs it by our own kernels.
    pub(in crate::device::cuda) fn run_own(
        &self,
        workspace: (u64, usize),
        launch: &mut dyn FnMut(Spec, Grid, &Params) -> Result<()>,
    ) -> Result<()> {
        const OP: &str = "matmul";
        if self.is_empty() {
            return Ok(());
        }
        for p in &self.steppable() {
            let plan = Plan::of(p);
            let countable =
                plan.blocks(p) <= i32::MAX as usize && [p.m, p.n, p.k].iter().all(|&x| x <= MOST_NUMBERS);
            if !countable {
                let message = format!(
                    "{} products of sizes {} x {} x {} are more than a kernel counts",
                    p.batches(),
                    p.m,
                    p.n,
                    p.k
                );
                return Err(Error::invalid(OP, message));
            }
            if plan.workspace(p) > workspace.1 {
                return Err(Error::internal(OP, "too little memory to work in"));
            }
            let job = plan.job(p, workspace.0);
            launch(plan.spec(p), plan.grid(p), &job)?;
            if let Some((gather, blocks)) = plan.gather(p) {
                launch(gather, Grid::line(blocks, 256), &job)?;
            }
        }
        Ok(())
    }
}
