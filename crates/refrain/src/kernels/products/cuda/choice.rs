//! Chooses the kernel and the tiles of a matrix product.

use super::shared::DEPTH;
use crate::device::cuda::{MmaKind, Product};
use crate::tensor::DType;
use crate::types::Precision;

/// This many tiles keep a GPU busy. It does not depend on the GPU, so that sums have the same order on all GPUs that
/// run the same kernel.
const ENOUGH_TILES: usize = 128;
/// This many threads keep a GPU busy, if a tensor-core thread computes 32 numbers. It does not depend on the GPU
/// either.
const ENOUGH_THREADS: usize = 1 << 16;
/// The maximum number of parts that k is split into.
const MAX_SPLITS: usize = 512;
/// The same for f16 and bf16 on tensor cores, which are faster than their parts can be gathered.
const MAX_SPLITS_F16: usize = 128;
/// From this depth on, large tiles pay off, with tensor cores and without. Below it, the waiting at the start and the
/// end of a block matters more.
const DEEP: [usize; 2] = [192, 64];
/// From this depth on, wide tiles pay off, because they reuse their fragments more often.
const VERY_DEEP: usize = 4096;
/// A part of k of this length is worth a large tile.
const LARGE_PART: usize = 256;
/// At most this many rows or columns for [`GemmKernel::Skinny`].
const MAX_NARROW: usize = 8;
/// Threads of a block of a skinny product.
const SKINNY_THREADS: usize = 256;
/// From this many numbers on, tensor cores are faster for a sum over rows.
const LONG_COLUMN: usize = 1024;

/// Numbers along k of a tile of TF32 numbers for groups of warps.
const TF32_DEPTH: usize = 32;
/// The maximum size of C for groups of warps in TF32. On an H200, a product of 3,072 x 1,024 numbers gained, one of 27,552 x 256 lost.
const MOST_NUMBERS_OF_TF32: usize = 1 << 22;

/// Products of f32 with so many rows and sums of up to so many numbers have small tiles. What follows their sums takes longer than these, and
/// more blocks hide it: a step of `large` took 1.5 % less time on an H200.
const MANY_ROWS: usize = 1024;
const SHORT_SUM_OF_F32: usize = 128;

/// Whether a product is a long sum over rows, as the gradient of a weight is.
fn sums_rows(p: &Product) -> bool {
    !p.a.dense[1] && !p.b.dense[0] && p.k >= LONG_COLUMN
}

/// Warps of a block along m and n, and 16 x 8 fragments of each warp along m and n.
#[derive(Clone, Copy)]
pub(super) struct TensorTile {
    pub(super) warps: [usize; 2],
    pub(super) fragments: [usize; 2],
}

impl TensorTile {
    const LARGE: TensorTile = TensorTile { warps: [2, 4], fragments: [4, 4] };
    const WIDE: TensorTile = TensorTile { warps: [2, 2], fragments: [4, 4] };
    const MEDIUM: TensorTile = TensorTile { warps: [2, 2], fragments: [2, 4] };
    const SMALL: TensorTile = TensorTile { warps: [2, 2], fragments: [1, 2] };
    const THIN: TensorTile = TensorTile { warps: [4, 1], fragments: [2, 4] };
    const THINNEST: TensorTile = TensorTile { warps: [4, 1], fragments: [2, 2] };
    /// For long sums, of which a block takes all rows or all columns.
    const FLAT: TensorTile = TensorTile { warps: [1, 4], fragments: [2, 4] };
    const FLATTEST: TensorTile = TensorTile { warps: [1, 4], fragments: [1, 4] };
    const SHORT: TensorTile = TensorTile { warps: [4, 1], fragments: [1, 2] };

    pub(super) fn size(self) -> [usize; 2] {
        [self.warps[0] * self.fragments[0] * 16, self.warps[1] * self.fragments[1] * 8]
    }

    fn of(p: &Product) -> TensorTile {
        // Each number is multiplied as two, which takes more instructions to prepare.
        let split = p.dtype == DType::F32 && p.precision != Precision::Tf32;
        match () {
            () if p.m <= 32 && p.n <= 32 => TensorTile::SMALL,
            () if p.n <= 16 && p.m <= 64 && sums_rows(p) => TensorTile::SHORT,
            () if p.n <= 16 => TensorTile::THINNEST,
            () if p.n <= 32 => TensorTile::THIN,
            () if p.m <= 16 && sums_rows(p) => TensorTile::FLATTEST,
            () if p.m <= 32 && sums_rows(p) => TensorTile::FLAT,
            // If numbers along k are not adjacent, they are read one by one. Wide tiles reuse them more often.
            () if split && !p.a.dense[1] && fills(p, TensorTile::WIDE.size()) => TensorTile::WIDE,
            () if split => TensorTile::MEDIUM,
            () if p.k >= DEEP[0] && keeps_busy(p, TensorTile::LARGE.size()) => TensorTile::LARGE,
            () if p.k >= VERY_DEEP && 2 * p.m > TensorTile::WIDE.size()[0] => TensorTile::WIDE,
            () => TensorTile::MEDIUM,
        }
    }
}

/// Warps of a block, one below the other, and 16 x 8 fragments of each along n.
#[derive(Clone, Copy)]
pub(super) struct GroupTile {
    pub(super) warps: usize,
    pub(super) fragments: usize,
    /// What is multiplied, as the text names it: f32 as the sum of two TF32 numbers, or rounded to TF32; f16 or bf16.
    pub(super) form: &'static str,
    /// How many tiles a block has room for: of both operands, or of B alone for f32.
    pub(super) stages: usize,
    /// Blocks that run at once, some room left for other launches of a step, and how long they take for a step along k as it
    /// was measured on an H200, of one unit.
    at_once: usize,
    pace: usize,
}

impl GroupTile {
    /// The tiles for a product of f32 as sums of two TF32 numbers.
    const OF_F32: [GroupTile; 3] = [
        GroupTile { warps: 8, fragments: 16, form: "SPLIT_TF32", stages: 2, at_once: 132, pace: 17 },
        GroupTile { warps: 8, fragments: 8, form: "SPLIT_TF32", stages: 2, at_once: 132, pace: 10 },
        GroupTile { warps: 4, fragments: 8, form: "SPLIT_TF32", stages: 2, at_once: 396, pace: 14 },
    ];

    /// The tiles for a product of f32 that is rounded to TF32.
    const OF_TF32: [GroupTile; 3] = [
        GroupTile { warps: 8, fragments: 16, form: "TF32", stages: 2, at_once: 264, pace: 14 },
        GroupTile { warps: 8, fragments: 8, form: "TF32", stages: 2, at_once: 264, pace: 8 },
        GroupTile { warps: 4, fragments: 8, form: "TF32", stages: 2, at_once: 528, pace: 7 },
    ];

    /// The tiles for a product of f16 or bf16 with sums of `k` numbers. Of long ones, more are on their way: the gradients of all weights
    /// of `large` took 3 % less time on an H200. Small blocks share a multiprocessor, where more would not fit.
    fn of_f16(form: &'static str, k: usize) -> [GroupTile; 3] {
        let stages = if k >= LONG_COLUMN { [5, 6, GroupTile::STAGES] } else { [GroupTile::STAGES; 3] };
        [
            GroupTile { warps: 8, fragments: 16, form, stages: stages[0], at_once: 96, pace: 14 },
            GroupTile { warps: 8, fragments: 8, form, stages: stages[1], at_once: 96, pace: 10 },
            GroupTile { warps: 4, fragments: 8, form, stages: stages[2], at_once: 192, pace: 9 },
        ]
    }

    /// The tile for a product whose rows [pass](Product::passes_rows): with fewer stages, two blocks run on a multiprocessor, so that one
    /// loads what follows its product while the other one multiplies.
    fn of_passing(form: &'static str) -> GroupTile {
        let [large, ..] = GroupTile::of_f16(form, 0);
        GroupTile { stages: 3, ..large }
    }

    /// How many steps the start and end of a block cost, or gathering partial sums.
    const BESIDE: usize = 3;
    /// Up to this depth, less than half of a tile of f16 or bf16 would be there.
    const SHALLOW: usize = 31;
    /// Numbers of f16 or bf16 that are moved at once, at least: with fewer, the copies take longer than the products.
    const FEWEST_MOVED: usize = 4;
    /// Tiles of both f16 or bf16 operands that a block has room for, where nothing else is better.
    const STAGES: usize = 4;
    /// The most shared memory of a block of which a multiprocessor has room for two.
    const HALF_BYTES: usize = 112 << 10;

    pub(super) fn size(self) -> [usize; 2] {
        [self.warps * 16, self.fragments * 8]
    }

    /// Whether numbers are multiplied as they are in memory.
    pub(super) fn as_they_are(self) -> bool {
        !matches!(self.form, "SPLIT_TF32" | "TF32")
    }

    /// Numbers per tile along k.
    pub(super) fn depth(self) -> usize {
        if self.as_they_are() { 64 } else { TF32_DEPTH }
    }

    /// Numbers that are multiplied for each number of f32.
    fn parts(self) -> usize {
        if self.form == "SPLIT_TF32" { 2 } else { 1 }
    }

    /// Shared memory of a block: tiles of both operands; for f32, tiles of B with each number in its parts.
    pub(super) fn bytes(self) -> usize {
        self.bytes_for(self.stages)
    }

    /// What a block of so many steps uses of it. Without the rest, more blocks run at once.
    pub(super) fn bytes_for(self, steps: usize) -> usize {
        let [m, n] = self.size();
        let slot = match self.as_they_are() {
            true => (m + n) * self.depth() * 2,
            false => self.parts() * n * self.depth() * 4,
        };
        steps.min(self.stages) * slot
    }

    /// Whether groups of warps are faster than single warps for a product of f32 rounded to TF32: A's numbers along k are adjacent,
    /// they fill two tiles, and C is so small that nearly all blocks run at once. Of more blocks, one computes while others wait, and
    /// small ones wait less.
    fn fits_tf32(p: &Product) -> bool {
        let numbers = p.m.saturating_mul(p.n).saturating_mul(p.batches());
        p.a.dense[1] && p.k >= 2 * TF32_DEPTH && numbers <= MOST_NUMBERS_OF_TF32
    }

    /// `None` if the product does not suit warp groups.
    fn of(p: &Product, form: &'static str) -> Option<GroupTile> {
        let (tiles, suits) = match form {
            "SPLIT_TF32" | "TF32" => {
                let near = |step: usize| step * size_of::<f32>() <= u32::MAX as usize;
                let tiles = if form == "TF32" { GroupTile::OF_TF32 } else { GroupTile::OF_F32 };
                let fits = form == "SPLIT_TF32" || GroupTile::fits_tf32(p);
                (tiles, near(p.a.col) && near(p.b.row) && fits)
            }
            "F16" | "BF16" => {
                let as_it_is = [&p.a, &p.b].iter().all(|x| x.dtype == p.dtype);
                let across = p.sums.is_none() || !p.a.dense[1];
                let deep = p.k > GroupTile::SHALLOW || p.sums.is_some();
                let moved = p.vector_width().into_iter().min() >= Some(GroupTile::FEWEST_MOVED);
                (GroupTile::of_f16(form, p.k), as_it_is && across && deep && moved)
            }
            _ => return None,
        };
        if !suits || p.m.min(p.n) <= 32 {
            return None;
        }
        if tiles[0].as_they_are() && p.passes_rows(MmaKind::WarpGroup) {
            return Some(GroupTile::of_passing(form));
        }
        // Rows of f32 that do not run along k are read number by number; small tiles would read too many.
        let small = tiles[0].as_they_are() || p.a.dense[1] || p.m <= tiles[2].size()[0];
        let is_short = form == "SPLIT_TF32" && p.k <= SHORT_SUM_OF_F32 && p.m >= MANY_ROWS;
        if small && is_short {
            return Some(tiles[2]);
        }
        tiles.into_iter().take(if small { 3 } else { 2 }).min_by_key(|tile| tile.time(p))
    }

    /// Whether a multiprocessor has the memory for two blocks of so many steps.
    pub(super) fn leaves_half(self, steps: usize) -> bool {
        self.bytes_for(steps) <= GroupTile::HALF_BYTES
    }

    /// Blocks of so many steps that run at once. With few steps, memory leaves room for as many as the registers do.
    fn at_once(self, steps: usize) -> usize {
        if !self.as_they_are() {
            return self.at_once;
        }
        let by_registers = 64 / (self.warps * self.fragments / 4).max(16);
        self.at_once * (GroupTile::STAGES / steps.clamp(1, GroupTile::STAGES)).min(by_registers)
    }

    /// The approximate time of a product.
    fn time(self, p: &Product) -> usize {
        let tiles = tiles(p, self.size());
        let cut = GemmKernel::Groups { tile: self }.cut(p, tiles);
        let gathering = if cut.parts > 1 { GroupTile::BESIDE } else { 0 };
        ((tiles * cut.parts).div_ceil(self.at_once(cut.steps)) * (cut.steps + GroupTile::BESIDE) + gathering)
            * self.pace
    }
}

/// How k is split.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitK {
    /// The number of parts. Their sums are gathered in the workspace.
    pub(super) parts: usize,
    /// The number of steps per part.
    pub(super) steps: usize,
}

/// Numbers of C that a block computes along m and n, the depth of its tiles, and the numbers per thread.
#[derive(Clone, Copy)]
pub(super) struct SimtTile {
    pub(super) size: [usize; 2],
    pub(super) depth: usize,
    pub(super) thread: [usize; 2],
}

impl SimtTile {
    const LARGE: SimtTile = SimtTile { size: [128, 128], depth: 8, thread: [8, 8] };
    const MEDIUM: SimtTile = SimtTile { size: [64, 64], depth: 16, thread: [4, 4] };
    const SMALL: SimtTile = SimtTile { size: [32, 32], depth: 16, thread: [4, 4] };
    const THIN: SimtTile = SimtTile { size: [128, 32], depth: 16, thread: [4, 4] };
    const THINNEST: SimtTile = SimtTile { size: [128, 16], depth: 16, thread: [4, 4] };

    pub(super) fn threads(self) -> usize {
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

/// The kernel and the tile of a block.
#[derive(Clone, Copy)]
pub(super) enum GemmKernel {
    /// `adjacent`: whether a lane's four of 16 numbers of f32 along k are neighbours; otherwise it takes every fourth.
    Tensor {
        tile: TensorTile,
        form: &'static str,
        adjacent: bool,
    },
    Groups {
        tile: GroupTile,
    },
    Simt {
        tile: SimtTile,
    },
    /// `lines`: how lanes sum the rows of the wide operand, if these lie along k.
    Skinny {
        narrow: usize,
        wide_is_a: bool,
        lines: Option<Lines>,
    },
}

/// How a skinny product reads the lines of its wide operand along k.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    /// Numbers per load.
    pub(super) load: usize,
    /// Lanes that sum a line, no more than have something to load.
    pub(super) lanes: usize,
    /// Lines that they sum side by side.
    pub(super) run: usize,
    /// Whether the narrow operand is loaded likewise.
    pub(super) narrow_loads: bool,
}

impl Lines {
    /// With so many lines for a lane, the cost to start a block is hidden if each line is one load.
    const RUN: usize = 4;

    fn of(p: &Product, wide_is_a: bool) -> Lines {
        let [a, b] = p.vector_width();
        let (load, other, wide) = if wide_is_a { (a, b, p.m) } else { (b, a, p.n) };
        let narrow_along_k = if wide_is_a { p.b.dense[0] } else { p.a.dense[1] };
        let lanes = p.k.div_ceil(load).next_power_of_two().min(32);
        let blocks = (wide * p.batches()).div_ceil(SKINNY_THREADS / lanes);
        let run = if p.k <= lanes * load && blocks >= Lines::RUN * ENOUGH_TILES { Lines::RUN } else { 1 };
        Lines { load, lanes, run, narrow_loads: load > 1 && narrow_along_k && other >= load }
    }

    fn of_block(self) -> usize {
        SKINNY_THREADS / self.lanes * self.run
    }
}

/// What tensor cores multiply, as the texts name it. `None` if they don't.
fn form(p: &Product) -> Option<&'static str> {
    match (p.dtype, p.precision) {
        (DType::F16, _) => Some("F16"),
        (DType::BF16, _) => Some("BF16"),
        (DType::F32, Precision::Tf32) => Some("TF32"),
        (DType::F32, _) => Some("SPLIT_TF32"),
        _ => None,
    }
}

fn tiles(p: &Product, size: [usize; 2]) -> usize {
    p.m.div_ceil(size[0]) * p.n.div_ceil(size[1]) * p.batches()
}

/// Whether a product fills more than half of a tile along m and along n.
fn fills(p: &Product, size: [usize; 2]) -> bool {
    2 * p.m > size[0] && 2 * p.n > size[1]
}

/// Whether large tiles are at least half full and there are enough of them, counting parts of k.
fn keeps_busy(p: &Product, size: [usize; 2]) -> bool {
    fills(p, size) && tiles(p, size) * (p.k / LARGE_PART).clamp(1, MAX_SPLITS) >= ENOUGH_TILES
}

impl GemmKernel {
    /// Whether the sums of A's rows cost this kernel next to nothing.
    pub(super) fn sums_well(self, p: &Product) -> bool {
        match self {
            GemmKernel::Groups { .. } => true,
            GemmKernel::Tensor { .. } => p.dtype.size() == 2 && sums_rows(p) && p.m.min(p.n) <= 32,
            _ => false,
        }
    }

    pub(super) fn of(p: &Product, mma: MmaKind) -> GemmKernel {
        let form = form(p).filter(|_| [&p.a, &p.b].iter().all(|x| x.dense[0] || x.dense[1]));
        let narrow = p.m.min(p.n);
        let wide_is_a = p.n <= p.m;
        let along_k = if wide_is_a { p.a.dense[1] } else { p.b.dense[0] };
        // Tensor cores compute 8 columns as fast as one, and long columns faster.
        let few = match form {
            None => MAX_NARROW,
            Some(_) if !along_k && p.k >= LONG_COLUMN => 0,
            Some(_) => MAX_NARROW / 2,
        };
        if narrow <= few && p.sums.is_none() {
            let lines = along_k.then(|| Lines::of(p, wide_is_a));
            return GemmKernel::Skinny { narrow: narrow.next_power_of_two(), wide_is_a, lines };
        }
        let groups = form.filter(|_| mma == MmaKind::WarpGroup);
        if let Some(tile) = groups.and_then(|form| GroupTile::of(p, form)) {
            return GemmKernel::Groups { tile };
        }
        match form {
            Some(form) => {
                let adjacent = p.a.dense[1] && p.b.dense[0];
                GemmKernel::Tensor { tile: TensorTile::of(p), form, adjacent }
            }
            None => GemmKernel::Simt { tile: SimtTile::of(p) },
        }
    }

    /// Numbers of C that a block computes along m and n, and the step along k. The tiles of a skinny product are
    /// counted along m, whichever side is wide.
    pub(super) fn tile(self) -> ([usize; 2], usize) {
        match self {
            GemmKernel::Tensor { tile, .. } => (tile.size(), DEPTH),
            GemmKernel::Groups { tile } => (tile.size(), tile.depth()),
            GemmKernel::Simt { tile } => (tile.size, tile.depth),
            GemmKernel::Skinny { lines, .. } => ([lines.map_or(32, Lines::of_block), usize::MAX], 64),
        }
    }

    /// Numbers of C that a block computes.
    pub(super) fn numbers(self) -> usize {
        match self {
            GemmKernel::Skinny { narrow, .. } => narrow * self.tile().0[0],
            _ => self.tile().0.iter().product(),
        }
    }

    pub(super) fn threads(self) -> u32 {
        match self {
            GemmKernel::Tensor { tile, .. } => (tile.warps[0] * tile.warps[1] * 32) as u32,
            GemmKernel::Groups { tile } => (tile.warps * 32) as u32,
            GemmKernel::Simt { tile } => tile.threads() as u32,
            GemmKernel::Skinny { .. } => SKINNY_THREADS as u32,
        }
    }

    /// How to split k if a product has too few tiles: into parts of at least four steps.
    pub(super) fn cut(self, p: &Product, tiles: usize) -> SplitK {
        let enough = match self {
            GemmKernel::Groups { tile } => tile.at_once,
            // A tensor-core block counts as more threads than it has.
            GemmKernel::Tensor { tile, .. } => {
                ENOUGH_THREADS / (tile.size()[0] * tile.size()[1] / 32).max(self.threads() as usize)
            }
            _ => ENOUGH_THREADS / self.threads() as usize,
        };
        let most = match self {
            GemmKernel::Tensor { .. } if p.dtype.size() == 2 => MAX_SPLITS_F16,
            _ => MAX_SPLITS,
        };
        let steps = p.k.div_ceil(self.tile().1).max(1);
        let wanted = enough.checked_div(tiles).unwrap_or(1).clamp(1, most).min(steps.div_ceil(4));
        let each = steps.div_ceil(wanted);
        SplitK { parts: steps.div_ceil(each), steps: each }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::activation::Activation;
    use crate::device::cuda::{FlatOperand, MatrixOperand, Pointer};

    /// Contiguous row-major operands; A is transposed if it does not run along k.
    fn product(dtype: DType, [m, n, k]: [usize; 3], a_along_k: bool) -> Product {
        let matrix = |rows: usize, cols: usize| MatrixOperand {
            dtype,
            pointer: Pointer::NOTHING,
            alignment: 256,
            row: cols,
            col: 1,
            dense: [rows <= 1, true],
            batch: SmallVec::new(),
        };
        Product {
            dtype,
            precision: Precision::F32,
            m,
            n,
            k,
            batch: SmallVec::new(),
            a: if a_along_k { matrix(m, k) } else { matrix(k, m).t() },
            b: matrix(k, n),
            c: FlatOperand { dtype, pointer: Pointer::NOTHING, alignment: 256 },
            add: false,
            bias: None,
            activation: Activation::None,
            residual: None,
            kept: None,
            sums: None,
        }
    }

    #[test]
    fn every_part_of_k_is_there_and_all_of_it_is() {
        let sizes = [1, 8, 40, 64, 96, 200, 768, 3_000];
        let depths = [1, 31, 64, 1_000, 3_072, 40_000];
        let pairs = sizes.into_iter().flat_map(|m| sizes.map(|n| [m, n]));
        for ([m, n], k) in pairs.flat_map(|pair| depths.map(|k| (pair, k))) {
            for dtype in [DType::F64, DType::F32, DType::BF16] {
                for (mma, along_k) in
                    [(MmaKind::Warp, true), (MmaKind::WarpGroup, true), (MmaKind::WarpGroup, false)]
                {
                    let p = product(dtype, [m, n, k], along_k);
                    let way = GemmKernel::of(&p, mma);
                    let ([rows, cols], step) = way.tile();
                    let SplitK { parts, steps } = way.cut(&p, tiles(&p, [rows, cols.min(n)]));
                    let whole = steps * step;
                    let fits = (parts - 1) * whole < k && k <= parts * whole;
                    assert!(fits, "{dtype} {m} {n} {k}: {parts} parts of {whole}");
                }
            }
        }
    }

    #[test]
    fn gradients_of_narrow_weights_are_summed_with_those_of_their_biases_in_tiles_as_narrow() {
        let narrow = [([16, 16], [32, 32]), ([48, 16], [64, 16]), ([128, 16], [128, 16])];
        let flat = [([100, 32], [128, 32]), ([16, 128], [16, 128]), ([32, 100], [32, 128])];
        for (dtype, mma) in
            [DType::F16, DType::BF16].map(|d| [(d, MmaKind::Warp), (d, MmaKind::WarpGroup)]).concat()
        {
            for ([m, n], tile) in narrow.into_iter().chain(flat) {
                let p = product(dtype, [m, n, 36_736], false);
                let kernel = GemmKernel::of(&p, mma);
                assert!(kernel.sums_well(&p) && kernel.tile().0 == tile, "{m} {n}: {:?}", kernel.tile());
                let parts = kernel.cut(&p, tiles(&p, tile)).parts;
                assert!((64..=MAX_SPLITS_F16).contains(&parts), "{m} {n}: {parts} parts");
            }
            let p = product(dtype, [16, 128, 36_736], true);
            assert!(!GemmKernel::of(&p, mma).sums_well(&p), "rows that run along k");
        }
    }

    #[test]
    fn lines_are_read_in_pieces_only_if_they_are_whole_pieces() {
        for (dtype, whole) in [(DType::F32, 4), (DType::F64, 2), (DType::F16, 8), (DType::BF16, 8)] {
            for (k, pieces) in [(8, whole), (24, whole), (20, whole.min(4)), (10, whole.min(2)), (13, 1)] {
                let mut p = product(dtype, [1, 16, k], true);
                p.a.row = 0;
                assert_eq!(p.vector_width(), [pieces, whole], "{dtype} {k}");
            }
            // Lines that begin at odd places; and those that overlap or have numbers between them, as windows have.
            for (k, row) in [(13, 13), (13, 8), (13, 16)] {
                let mut p = product(dtype, [2, 16, k], true);
                p.a.row = row;
                assert_eq!(p.vector_width(), [1, whole], "{dtype} {k} {row}");
            }
            let mut p = product(dtype, [2, 16, 24], true);
            p.a.alignment = 8;
            assert_eq!(p.vector_width(), [8 / dtype.size(), whole], "{dtype} at a multiple of eight bytes");
        }
    }

    #[test]
    fn gradients_of_narrow_f32_weights_have_tiles_as_narrow_without_the_sums_of_their_biases() {
        for ([m, n], tile) in
            [([16, 16], [32, 32]), ([48, 16], [64, 16]), ([16, 128], [16, 128]), ([32, 100], [32, 128])]
        {
            let p = product(DType::F32, [m, n, 36_736], false);
            let kernel = GemmKernel::of(&p, MmaKind::WarpGroup);
            assert_eq!(kernel.tile().0, tile, "{m} {n}");
            assert!(!kernel.sums_well(&p), "f32 sums row by row");
        }
    }

    #[test]
    fn short_sums_are_not_padded_to_the_depth_of_a_tile() {
        let is_of_groups = |sizes| {
            let kernel = GemmKernel::of(&product(DType::BF16, sizes, true), MmaKind::WarpGroup);
            matches!(kernel, GemmKernel::Groups { .. })
        };
        assert!(!is_of_groups([36_736, 128, 16]), "a quarter of a tile");
        assert!(is_of_groups([36_736, 128, 64]), "a whole tile");
    }

    #[test]
    fn short_sums_of_f32_over_many_rows_have_small_tiles() {
        let size = |sizes| match GemmKernel::of(&product(DType::F32, sizes, true), MmaKind::WarpGroup) {
            GemmKernel::Groups { tile } => tile.size(),
            _ => [0, 0],
        };
        assert_eq!(size([27_552, 256, 128]), [64, 64]);
        for sizes in [[27_552, 256, 256], [400, 256, 128]] {
            assert!(size(sizes)[0] > 64, "{sizes:?}: {:?}", size(sizes));
        }
    }

    #[test]
    fn a_block_has_whole_rows_of_narrow_products_that_are_not_split() {
        use super::super::plan::GemmPlan;

        let has_rows = |dtype, sizes, mma| {
            let p = product(dtype, sizes, true);
            GemmPlan::of(&p, mma).has_rows(&p)
        };
        for mma in [MmaKind::Warp, MmaKind::WarpGroup] {
            for (m, n, k) in
                [6_400, 36_736].into_iter().flat_map(|m| [(m, 16, 128), (m, 48, 48), (m, 64, 64)])
            {
                assert!(has_rows(DType::F32, [m, n, k], mma), "{m} {n} {k}");
                assert!(has_rows(DType::BF16, [m, n, k], mma), "{m} {n} {k}");
                assert!(!has_rows(DType::F64, [m, n, k], mma), "{m} {n} {k}");
            }
            assert!(!has_rows(DType::BF16, [6_400, 136, 64], mma), "two tiles, or one that is too large");
            assert!(!has_rows(DType::BF16, [40, 64, 40_000], mma), "parts of k");
            assert!(!has_rows(DType::F32, [6_400, 2, 64], mma), "a few columns");
        }
    }

    #[test]
    fn a_block_has_the_rows_of_a_layer_of_128_columns_and_shares_a_multiprocessor() {
        use super::super::plan::{GemmPlan, suits};

        let bias = |dtype| Some(FlatOperand { dtype, pointer: Pointer::NOTHING, alignment: 256 });
        let layer = |dtype, sizes| Product { bias: bias(dtype), ..product(dtype, sizes, true) };
        let is_followed = |p: &Product| {
            let plan = GemmPlan::of(p, MmaKind::WarpGroup);
            !suits(p, MmaKind::WarpGroup) && plan.has_rows(p) && plan.hides_tail(p)
        };
        for dtype in [DType::F16, DType::BF16] {
            for k in [96, 128, 256] {
                let p = layer(dtype, [27_552, 128, k]);
                assert!(is_followed(&p), "{dtype} {k}");
                // Also with a tail that is not aligned, of which the choice of what follows knows nothing.
                let mut plan = GemmPlan::of(&p, MmaKind::WarpGroup);
                plan.aligned = false;
                assert!(plan.has_rows(&p), "{dtype} {k}");
            }
            for sizes in [[27_552, 136, 128], [27_552, 120, 128], [27_552, 128, 264], [6_400, 128, 128]] {
                assert!(!is_followed(&layer(dtype, sizes)), "{dtype} {sizes:?}");
            }
            let sizes = [27_552, 128, 128];
            assert!(
                suits(&product(dtype, sizes, true), MmaKind::WarpGroup),
                "{dtype}: nothing is added to it"
            );
            assert!(
                suits(&layer(dtype, sizes), MmaKind::Warp),
                "{dtype}: blocks of single warps have no whole rows"
            );
            let activated = Product { activation: Activation::GeluTanh, ..layer(dtype, sizes) };
            assert!(suits(&activated, MmaKind::WarpGroup), "{dtype}: it computes long");
        }
        assert!(!is_followed(&layer(DType::F32, [27_552, 128, 128])), "f32 has small tiles");
    }

    #[test]
    fn groups_of_warps_take_what_lies_as_they_need_it() {
        let groups = |p: &Product| matches!(GemmKernel::of(p, MmaKind::WarpGroup), GemmKernel::Groups { .. });
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            assert!(groups(&product(dtype, [100, 64, 504], true)), "{dtype}");
            assert!(!groups(&product(dtype, [100, 32, 504], true)), "{dtype}: too few columns");
            let elsewhere = GemmKernel::of(&product(dtype, [100, 64, 504], true), MmaKind::Warp);
            assert!(matches!(elsewhere, GemmKernel::Tensor { .. }), "{dtype}: no GPU for it");
        }
        // Rows of 68 and 70 bf16 are a multiple of eight and of four bytes. f32 is read number by number.
        assert!(groups(&product(DType::BF16, [100, 68, 500], true)));
        assert!(!groups(&product(DType::BF16, [100, 70, 512], true)), "many small copies");
        assert!(groups(&product(DType::F32, [100, 70, 511], true)));
        let tf32 =
            |sizes, along_k| Product { precision: Precision::Tf32, ..product(DType::F32, sizes, along_k) };
        assert!(groups(&tf32([100, 64, 512], true)));
        assert!(!groups(&tf32([100, 64, 512], false)), "numbers of A along k lie apart");
        assert!(!groups(&tf32([100, 64, 32], true)), "a single tile along k");
        assert!(!groups(&tf32([40_000, 256, 128], true)), "many blocks");
        // f32 that is rounded to bf16 beside a bf16 operand uses other kernels.
        let mut mixed = product(DType::BF16, [100, 64, 512], true);
        mixed.b.dtype = DType::F32;
        assert!(!groups(&mixed));
        // Sums of rows run across k.
        let sums =
            Some((FlatOperand { dtype: DType::F32, pointer: Pointer::NOTHING, alignment: 256 }, false));
        assert!(groups(&Product { sums, ..product(DType::BF16, [104, 64, 512], false) }));
        assert!(!groups(&Product { sums, ..product(DType::BF16, [104, 64, 512], true) }));
    }
}
