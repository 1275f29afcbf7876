//! How our own kernels run a product.

use smallvec::{SmallVec, smallvec};

use super::choice::{GemmKernel, GroupTile, SplitK};
use super::shared::SharedMemory;
use super::tail::Tail;
use super::whole_rows::WholeRows;
use super::{FORMS, FRAGMENTS, SWIZZLE};
use crate::activation::Activation;
use crate::device::cuda::cublaslt;
use crate::device::cuda::{
    CudaArgs, FlatOperand, Following, Gpu, Grid, KernelSpec, MMA, MatrixOperand, MmaKind, Pointer, Product,
    RowNorm, Source, TailArgs, WGMMA, padded, params,
};
use crate::error::{Error, Result};
use crate::kernels::activations::ACTIVATIONS;
use crate::kernels::norm::{self, NormArgs};
use crate::tensor::DType;

pub(super) const COMMON: &str = include_str!("common.cu");
pub(super) const TILES: &str = include_str!("tiles.cu");

static TENSOR: Source = Source {
    name: "gemm",
    parts: &[ACTIVATIONS, MMA, COMMON, FORMS, TILES, FRAGMENTS, include_str!("tensor.cu")],
};
static WARPGROUP: Source = Source {
    name: "gemm",
    parts: &[ACTIVATIONS, MMA, WGMMA, COMMON, FORMS, TILES, FRAGMENTS, include_str!("warpgroup.cu")],
};
static SWIZZLED: Source = Source {
    name: "gemm",
    parts: &[ACTIVATIONS, MMA, WGMMA, COMMON, FORMS, TILES, FRAGMENTS, SWIZZLE, include_str!("swizzled.cu")],
};
static SIMT: Source = Source { name: "gemm", parts: &[ACTIVATIONS, COMMON, include_str!("simt.cu")] };
static SKINNY: Source = Source { name: "gemm", parts: &[ACTIVATIONS, COMMON, include_str!("skinny.cu")] };
static SUM: Source = Source { name: "gemm", parts: &[ACTIVATIONS, COMMON, include_str!("sum.cu")] };

/// Dimensions of a batch that a kernel steps through (also in `common.cu`).
pub(super) const BATCH_RANK: usize = 4;
/// Up to this many multiplications, our own kernel with sums was measured to be faster than cuBLASLt without sums
/// followed by a separate sum.
const MOST_WORK_BESIDE: usize = 1 << 32;
/// Bytes that one instruction moves, most first.
const MOVED_BYTES: [usize; 3] = [16, 8, 4];
/// The maximum number of rows, columns and numbers along k: positions within the last tile still fit in 32 bits.
pub(super) const MOST_NUMBERS: usize = i32::MAX as usize - 255;

/// From this many tiles along m on, so many blocks read the same numbers of B at once that multiprocessors should cache them.
/// On an H100, a product of 36,736 rows by 16 x 48 numbers took 5.8 us without that and 3.2 with it.
const MANY_TILES: usize = 64;
/// Bytes of a matrix that a multiprocessor has room for.
const SMALL_MATRIX: usize = 32 << 10;
/// Adjacent elements of C that a thread has.
const TAIL_ELEMENTS: usize = 4;
/// Numbers of C in a tile with a tail, if not two blocks share a multiprocessor.
const MOST_NUMBERS_WITH_TAIL: usize = 64 * 64;
/// The same with a norm, which waits for nothing but its parameters.
const MOST_NUMBERS_WITH_NORM: usize = 128 * 64;
/// A lane writes so many adjacent elements of C, and four lanes write them side by side.
const ELEMENTS_SIDE_BY_SIDE: usize = 16;

params! {
    /// The arguments of the kernels of matrix products.
    pub(super) struct Job<const TAILS: usize, const NORMS: usize> {
        /// Nothing for what there is not.
        a: Pointer,
        b: Pointer,
        c: Pointer,
        bias: Pointer,
        residual: Pointer,
        kept: Pointer,
        /// Gets the sums of A's rows.
        sums: Pointer,
        partial: Pointer,
        m: i64,
        n: i64,
        k: i64,
        /// Steps, in elements.
        a_row: i64,
        a_col: i64,
        b_row: i64,
        b_col: i64,
        tiles_m: i64,
        tiles_n: i64,
        batches: i64,
        splits: i64,
        /// How much of k a split sums.
        depth: i64,
        sizes: [i64; BATCH_RANK],
        a_batch: [i64; BATCH_RANK],
        b_batch: [i64; BATCH_RANK],
        /// Whether the sums are added to.
        add_sums: i64,
        /// Of a kernel with a tail one.
        tail: [TailArgs; TAILS],
        /// Of a kernel with a norm one.
        norm: [NormArgs; NORMS],
    }
}

/// What follows a product in its kernel: elementwise kernels, and then a norm of the rows.
#[derive(Clone, Copy, Default)]
pub(crate) struct Followers<'a> {
    pub(crate) tail: Option<&'a Tail>,
    pub(crate) norm: Option<&'a RowNorm>,
}

/// Rows of a block's tile in shared memory, for what follows a product.
pub(super) struct TileRows {
    dtype: DType,
    /// Elements from one row to the next.
    pub(super) pitch: usize,
    pub(super) bytes: usize,
}

impl TileRows {
    /// With an odd multiple of what is written side by side from one row to the next, so that rows that are written at once lie in
    /// different banks.
    pub(super) fn of(rows: usize, width: usize, dtype: DType) -> TileRows {
        TileRows::apart(rows, (width.div_ceil(ELEMENTS_SIDE_BY_SIDE) | 1) * ELEMENTS_SIDE_BY_SIDE, dtype)
    }

    /// With so many elements from one row to the next.
    pub(super) fn apart(rows: usize, pitch: usize, dtype: DType) -> TileRows {
        TileRows { dtype, pitch, bytes: rows * pitch * dtype.size() }
    }

    pub(super) fn constants(&self, spec: KernelSpec) -> KernelSpec {
        spec.dtype("ROW_TYPE", self.dtype)
            .int("ROW_PITCH", self.pitch as i64)
            .int("ROW_BYTES", self.bytes as i64)
    }
}

impl Followers<'_> {
    /// The texts of both, which come before the product's own.
    pub(super) fn text(self, args: &CudaArgs<'_>) -> String {
        let tail = self.tail.map(|tail| tail.text());
        let norm = self.norm.and_then(|norm| norm::text(norm, args));
        [tail, norm].iter().flatten().map(|text| &**text).collect()
    }
}

/// How our own kernels compute a product.
pub(super) struct GemmPlan {
    pub(super) way: GemmKernel,
    /// Tiles along m and n.
    tiles: [usize; 2],
    /// The tiles are repeated for each matrix of the batch; once if a block may have lines of several matrices.
    repeats: usize,
    pub(super) cut: SplitK,
    /// How much of k a block sums.
    depth: usize,
    /// Whether four elements of a row of C, and of everything with its shape, can be loaded and stored in one
    /// instruction.
    pub(super) aligned: bool,
    /// Whether a row of C has a multiple of the numbers that a block computes of it.
    even: bool,
    /// Whether multiprocessors should cache B.
    b_cached: bool,
}

/// The type of the sums.
fn compute(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// How many elements of up to 16 bytes can be moved in one instruction along a dense dimension of an operand, which has `length` of
/// them, and `other_step` from one line to the next.
fn vector_width(x: &MatrixOperand, other_step: usize, length: usize) -> usize {
    let size = x.dtype.size();
    // Pieces are whole, because there may be no memory past the end of the last line.
    let fits = |&count: &usize| {
        let is_even = x.batch.iter().chain([&other_step, &length]).all(|n| n.is_multiple_of(count));
        is_even && x.alignment.is_multiple_of(count * size)
    };
    MOVED_BYTES.into_iter().map(|bytes| bytes / size).filter(|&count| count > 0).find(fits).unwrap_or(1)
}

impl GemmPlan {
    pub(super) fn of(p: &Product, mma: MmaKind) -> GemmPlan {
        GemmPlan::with(p, GemmKernel::of(p, mma))
    }

    fn with(p: &Product, way: GemmKernel) -> GemmPlan {
        let (size, step) = way.tile();
        let (tiles, repeats) = match way {
            GemmKernel::Skinny { wide_is_a, lines, .. } => {
                let wide = if wide_is_a { p.m } else { p.n };
                // A block may have lines of several matrices.
                let (lines, repeats) =
                    if lines.is_some() { (wide * p.batches(), 1) } else { (wide, p.batches()) };
                ([lines.div_ceil(size[0]), 1], repeats)
            }
            _ => ([p.m.div_ceil(size[0]), p.n.div_ceil(size[1]).max(1)], p.batches()),
        };
        let cut = way.cut(p, tiles[0] * tiles[1] * repeats);
        let depth = if cut.parts == 1 { p.k } else { cut.steps * step };
        let even = !matches!(way, GemmKernel::Skinny { .. }) && p.n.is_multiple_of(size[1]);
        let b_cached = tiles[0] >= MANY_TILES && p.n * p.k * p.b.dtype.size() <= SMALL_MATRIX;
        GemmPlan { way, tiles, repeats, cut, depth, aligned: aligned(p), even, b_cached }
    }

    /// A plan of which each block sums all of k.
    pub(super) fn unsplit(p: &Product, way: GemmKernel) -> GemmPlan {
        let cut = SplitK { parts: 1, steps: p.k.div_ceil(way.tile().1) };
        GemmPlan { cut, depth: p.k, ..GemmPlan::with(p, way) }
    }

    /// Takes account of what a tail loads and stores.
    pub(super) fn align(&mut self, args: &CudaArgs<'_>, tail: Option<&Tail>) {
        self.aligned &= tail.is_none_or(|tail| tail.is_aligned(args, TAIL_ELEMENTS));
    }

    /// Whether other blocks work while one waits for what a tail reads. A block of large tiles may be the only one on a
    /// multiprocessor: on an H200, an input gradient of f32 in tiles of 128 x 128 took 20 us longer with the gradient of GELU behind it
    /// than both one by one. Parts are gathered by a kernel of its own, which has small blocks.
    pub(super) fn hides_tail(&self, p: &Product) -> bool {
        self.cut.parts > 1 || self.way.numbers() <= MOST_NUMBERS_WITH_TAIL || self.is_one_of_two(p)
    }

    /// Whether a block has whole rows of C, and room to pass them through shared memory to a norm, while another one runs on the
    /// multiprocessor.
    pub(super) fn has_rows(&self, p: &Product) -> bool {
        let has_tiles = matches!(self.way, GemmKernel::Tensor { .. } | GemmKernel::Groups { .. });
        has_tiles
            && self.cut.parts == 1
            && p.n <= self.way.tile().0[1]
            && (self.way.numbers() <= MOST_NUMBERS_WITH_NORM || self.is_one_of_two(p))
    }

    /// Whether a multiprocessor has two blocks of large tiles: in shared memory, and in registers, which are too few for what does not
    /// have 16 bits, is not aligned or not there. Layers of 300 columns in bf16 took longer with dropout in their kernel.
    fn is_one_of_two(&self, p: &Product) -> bool {
        let flat = [Some(p.c), p.bias, p.residual, p.kept];
        let has_16_bits = p.dtype.size() == 2 && flat.iter().flatten().all(|x| x.dtype == p.dtype);
        let is_plain = p.sums.is_none() && has_16_bits && aligned(p) && self.even;
        let fits = |tile: GroupTile| tile.as_they_are() && tile.leaves_half(self.cut.steps);
        is_plain && matches!(self.way, GemmKernel::Groups { tile } if fits(tile))
    }

    /// A tile's rows in shared memory, for a norm.
    pub(super) fn rows(&self, norm: &RowNorm) -> TileRows {
        let [rows, width] = self.way.tile().0;
        TileRows::of(rows, width, norm.dtype())
    }

    fn blocks(&self) -> usize {
        self.tiles[0] * self.tiles[1] * self.repeats * self.cut.parts
    }

    fn grid(&self, p: &Product) -> Grid {
        let grid = Grid::line(self.blocks(), self.way.threads());
        match self.way {
            GemmKernel::Tensor { tile, .. } => grid.shared(SharedMemory::of(p, tile.size()).bytes),
            GemmKernel::Groups { tile } => grid.shared(tile.bytes_for(self.cut.steps)),
            _ => grid,
        }
    }

    /// Bytes in which the parts are gathered.
    fn workspace(&self, p: &Product) -> usize {
        if self.cut.parts == 1 {
            return 0;
        }
        let sums = if p.sums.is_some() { p.m } else { 0 };
        self.cut.parts * (p.batches() * p.m * p.n + sums) * compute(p.dtype).size()
    }

    pub(super) fn spec(&self, p: &Product) -> KernelSpec {
        let partial = self.cut.parts > 1;
        let common = |source: &'static Source, entry: &'static str| {
            // What follows a product is for the kernel that gathers its parts.
            let first = if partial { alone(p) } else { p.clone() };
            constants(KernelSpec::new(source, entry), &first)
                .flag("PARTIAL", partial)
                .flag("ALIGNED", self.aligned)
                .flag("EVEN", self.even)
        };
        let (a_along_k, b_along_k) = (p.a.dense[1], p.b.dense[0]);
        let [a_copy, b_copy] = p.vector_width();
        match self.way {
            GemmKernel::Tensor { tile, form, adjacent } => {
                let shared = SharedMemory::of(p, tile.size());
                common(&TENSOR, "gemm_tensor")
                    .word("FORM", form)
                    .flag("A_ALONG_K", a_along_k)
                    .flag("B_ALONG_K", b_along_k)
                    .flag("ADJACENT", adjacent)
                    .int("A_COPY", a_copy as i64)
                    .int("B_COPY", b_copy as i64)
                    .flag("B_CACHED", self.b_cached)
                    .int("WARPS_M", tile.warps[0] as i64)
                    .int("WARPS_N", tile.warps[1] as i64)
                    .int("FRAGS_M", tile.fragments[0] as i64)
                    .int("FRAGS_N", tile.fragments[1] as i64)
                    .int("TILE_K", shared.depth as i64)
                    .int("STAGES", shared.stages as i64)
                    .int("MEMORY_BYTES", shared.bytes as i64)
                    .flag("SUMS", p.sums.is_some())
            }
            GemmKernel::Groups { tile } => {
                let spec = match tile.as_they_are() {
                    true => common(&SWIZZLED, "gemm_swizzled")
                        .int("STAGES", tile.stages as i64)
                        .flag("ONE_OF_TWO", self.aligned && self.is_one_of_two(p)),
                    false => common(&WARPGROUP, "gemm_warpgroup"),
                };
                spec.word("FORM", tile.form)
                    .flag("A_ALONG_K", a_along_k)
                    .flag("B_ALONG_K", b_along_k)
                    .flag("ADJACENT", true)
                    .int("A_COPY", a_copy as i64)
                    .int("B_COPY", b_copy as i64)
                    .flag("B_CACHED", self.b_cached)
                    .int("WARPS_M", tile.warps as i64)
                    .int("WARPS_N", 1)
                    .int("FRAGS_M", 1)
                    .int("FRAGS_N", tile.fragments as i64)
                    .int("TILE_K", tile.depth() as i64)
                    .int("MEMORY_BYTES", tile.bytes() as i64)
                    .flag("SUMS", p.sums.is_some())
            }
            GemmKernel::Simt { tile } => {
                // `other` is the stride of the dimension that is not dense, `length` the size of the one that is.
                let load = |x: &MatrixOperand, other, length, outer: usize| {
                    let most = if x.dense[0] || x.dense[1] { vector_width(x, other, length) } else { 1 };
                    most.min(16 / compute(p.dtype).size()).min(outer * tile.depth / tile.threads())
                };
                let (a_other, a_length) = if a_along_k { (p.a.row, p.k) } else { (p.a.col, p.m) };
                let (b_other, b_length) = if b_along_k { (p.b.col, p.k) } else { (p.b.row, p.n) };
                let a_load = load(&p.a, a_other, a_length, tile.size[0]);
                let b_load = load(&p.b, b_other, b_length, tile.size[1]);
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
            GemmKernel::Skinny { narrow, wide_is_a, lines } => {
                let spec = common(&SKINNY, "gemm_skinny")
                    .int("NARROW", narrow as i64)
                    .flag("WIDE_IS_A", wide_is_a)
                    .flag("ALONG_K", lines.is_some());
                match lines {
                    None => spec,
                    Some(lines) => spec
                        .int("LOAD", lines.load as i64)
                        .int("LANES", lines.lanes as i64)
                        .int("RUN", lines.run as i64)
                        .flag("NARROW_LOADS", lines.narrow_loads),
                }
            }
        }
    }

    /// The kernel that gathers the parts, and its blocks.
    fn gather(&self, p: &Product) -> Option<(KernelSpec, Grid)> {
        // Warps that share the parts of a number.
        let slices = if self.cut.parts < 16 { 1 } else { 16 };
        (self.cut.parts > 1).then(|| {
            let each = if self.aligned { 4 } else { 1 };
            // A thread's numbers all exist.
            let spec = constants(KernelSpec::new(&SUM, "gemm_sum"), p)
                .flag("PARTIAL", false)
                .flag("ALIGNED", self.aligned)
                .flag("EVEN", true)
                .int("SLICES", slices as i64)
                .int("EACH", each as i64);
            let groups = p.batches() * p.m * p.n / each + if p.sums.is_some() { p.m } else { 0 };
            let (each_block, threads) = if slices == 1 { (256, 256) } else { (32, 32 * slices) };
            (spec, Grid::line(groups.div_ceil(each_block), threads as u32))
        })
    }

    pub(super) fn job<const TAILS: usize, const NORMS: usize>(
        &self,
        p: &Product,
        partial: Pointer,
        tail: [TailArgs; TAILS],
        norm: [NormArgs; NORMS],
    ) -> Job<TAILS, NORMS> {
        let pointer = |x: Option<FlatOperand>| x.map_or(Pointer::NOTHING, |x| x.pointer);
        Job {
            a: p.a.pointer,
            b: p.b.pointer,
            c: p.c.pointer,
            bias: pointer(p.bias),
            residual: pointer(p.residual),
            kept: pointer(p.kept),
            sums: pointer(p.sums.map(|s| s.0)),
            partial,
            m: p.m as i64,
            n: p.n as i64,
            k: p.k as i64,
            a_row: p.a.row as i64,
            a_col: p.a.col as i64,
            b_row: p.b.row as i64,
            b_col: p.b.col as i64,
            tiles_m: self.tiles[0] as i64,
            tiles_n: self.tiles[1] as i64,
            batches: p.batches() as i64,
            splits: self.cut.parts as i64,
            depth: self.depth as i64,
            sizes: padded(&p.batch, 1),
            a_batch: padded(&p.a.batch, 0),
            b_batch: padded(&p.b.batch, 0),
            add_sums: p.sums.is_some_and(|s| s.1).into(),
            tail,
            norm,
        }
    }
}

/// [`GemmPlan::aligned`] of a product without a tail.
fn aligned(p: &Product) -> bool {
    let parts = [Some(p.c), p.bias, p.residual, p.kept];
    let whole = |x: &FlatOperand| x.alignment.is_multiple_of(4 * x.dtype.size());
    p.n.is_multiple_of(4) && parts.iter().flatten().all(whole)
}

/// A product without what follows it.
fn alone(p: &Product) -> Product {
    Product { activation: Activation::None, bias: None, residual: None, add: false, kept: None, ..p.clone() }
}

fn constants(spec: KernelSpec, p: &Product) -> KernelSpec {
    let activation = match p.activation {
        Activation::None => "NONE",
        Activation::Relu => "RELU",
        Activation::Gelu => "GELU",
        Activation::GeluTanh => "GELU_TANH",
        Activation::Silu => "SILU",
    };
    let beside = |x: Option<FlatOperand>| x.map_or(p.c.dtype, |x| x.dtype);
    spec.dtype("IN", p.dtype)
        .dtype("COMPUTE", compute(p.dtype))
        .dtype("A_TYPE", p.a.dtype)
        .dtype("B_TYPE", p.b.dtype)
        .dtype("C_TYPE", p.c.dtype)
        .dtype("BIAS_TYPE", beside(p.bias))
        .dtype("RESIDUAL_TYPE", beside(p.residual))
        .dtype("SUMS_TYPE", beside(p.sums.map(|s| s.0)))
        .word("ACTIVATION", activation)
        .flag("HAS_BIAS", p.bias.is_some())
        .flag("HAS_RESIDUAL", p.residual.is_some())
        .flag("ADDS", p.add)
        .flag("KEEPS", p.kept.is_some_and(|kept| kept.pointer != Pointer::NOTHING))
        .flag("STORES", p.c.pointer != Pointer::NOTHING)
}

impl Product {
    /// How many elements of A and of B can be moved in one instruction.
    pub(super) fn vector_width(&self) -> [usize; 2] {
        let (a, b) = (&self.a, &self.b);
        [
            if a.dense[1] { vector_width(a, a.row, self.k) } else { vector_width(a, a.col, self.m) },
            if b.dense[0] { vector_width(b, b.col, self.k) } else { vector_width(b, b.row, self.n) },
        ]
    }

    /// Products of a batch that kernels can iterate. Further outer dimensions are split off one by one.
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
                    (&mut p.a.pointer, &mut p.a.alignment, at_a * self.a.dtype.size()),
                    (&mut p.b.pointer, &mut p.b.alignment, at_b * self.b.dtype.size()),
                    (&mut p.c.pointer, &mut p.c.alignment, i * matrices * self.c.dtype.size()),
                ];
                for (pointer, alignment, by) in places {
                    *pointer = pointer.plus(by);
                    *alignment = (*alignment).min(1 << by.trailing_zeros().min(usize::BITS - 1));
                }
                p
            })
            .collect()
    }
}

/// Whether our own kernel with the sums of A's rows is better than cuBLASLt without them.
pub(crate) fn sums_beside(product: &Product, mma: MmaKind) -> bool {
    let work = product.m.saturating_mul(product.n).saturating_mul(product.k);
    let sums_well = || GemmKernel::of(product, mma).sums_well(product);
    !suits(&Product { sums: None, ..product.clone() }, mma) || (work <= MOST_WORK_BESIDE && sums_well())
}

/// Whether the library computes a product, if it is installed: as it is, or with whole rows. Not if its rows pass to what follows.
pub(super) fn suits(product: &Product, mma: MmaKind) -> bool {
    !product.passes_rows(mma) && (cublaslt::suits(product) || WholeRows::of(product).is_some())
}

/// Workspace bytes of a product on a GPU.
pub(crate) fn workspace(gpu: &dyn Gpu, op: &'static str, product: &Product) -> Result<usize> {
    if let Some(bytes) = gpu.library_workspace(op, product)? {
        return Ok(bytes);
    }
    let own = own_workspace(gpu, product);
    let Some(whole) = WholeRows::of(product) else { return Ok(own) };
    Ok(match gpu.library_workspace(op, &whole.product(0))? {
        Some(bytes) => own.max(whole.workspace(bytes)),
        None => own,
    })
}

/// Workspace bytes of a product on a GPU if our own kernels compute it.
pub(crate) fn own_workspace(gpu: &dyn Gpu, product: &Product) -> usize {
    let of = |p: &Product| GemmPlan::of(p, gpu.mma()).workspace(p);
    match product.is_empty() {
        true => 0,
        false => product.steppable().iter().map(of).max().unwrap_or(0),
    }
}

/// Runs a product: by cuBLASLt if it is installed and suits, otherwise by our own kernels.
pub(crate) fn run(args: &mut CudaArgs<'_>, product: &Product) -> Result<()> {
    if args.describes() {
        args.describe_product(product);
        return Ok(());
    }
    if args.library_product(product)? {
        return Ok(());
    }
    if let Some(whole) = WholeRows::of(product)
        && whole.run(args)?
    {
        return Ok(());
    }
    run_own(args, product, Followers::default())
}

/// Runs a product by our own kernels, with a tail if it [`takes_tail`](super::takes_tail), and with a norm if it
/// [`takes_norm`](super::takes_norm).
pub(crate) fn run_own(args: &mut CudaArgs<'_>, product: &Product, followers: Followers<'_>) -> Result<()> {
    const OP: &str = "matmul";
    if product.is_empty() {
        return Ok(());
    }
    let mma = args.mma();
    for p in &product.steppable() {
        let mut plan = GemmPlan::of(p, mma);
        plan.align(args, followers.tail);
        let countable = plan.blocks().max(p.batches()) <= i32::MAX as usize
            && [p.m, p.n, p.k].iter().all(|&x| x <= MOST_NUMBERS);
        if !countable {
            let message = format!(
                "{} products of sizes {} x {} x {} are more than a kernel can count",
                p.batches(),
                p.m,
                p.n,
                p.k
            );
            return Err(Error::invalid(OP, message));
        }
        if plan.workspace(p) > args.workspace_bytes() {
            return Err(Error::internal(OP, "the workspace is too small"));
        }
        let partial = args.workspace();
        let (mut spec, mut grid) = (plan.spec(p), plan.grid(p));
        if let Some((gather, gather_grid)) = plan.gather(p) {
            args.kernel(followed(spec, false, false), grid, &plan.job(p, partial, [], []))?;
            (spec, grid) = (gather, gather_grid);
        }
        let Followers { tail, norm } = followers;
        spec = followed(spec, tail.is_some(), norm.is_some());
        if let Some(norm) = norm {
            if !plan.has_rows(p) {
                // Kernels that are only looked at may be those of another GPU, which has other tiles.
                if !args.runs() {
                    return Ok(());
                }
                return Err(Error::internal(OP, "no block has whole rows for the norm"));
            }
            let rows = plan.rows(norm);
            spec = rows.constants(spec);
            grid.shared = grid.shared.max(rows.bytes as u32);
        }
        if tail.is_some() || norm.is_some() {
            spec = spec.ahead(followers.text(args).into());
        }
        match (tail.map(|tail| tail.args(args)), norm.map(NormArgs::of)) {
            (None, None) => args.kernel(spec, grid, &plan.job(p, partial, [], []))?,
            (Some(tail), None) => args.kernel(spec, grid, &plan.job(p, partial, [tail], []))?,
            (None, Some(norm)) => args.kernel(spec, grid, &plan.job(p, partial, [], [norm]))?,
            (Some(tail), Some(norm)) => args.kernel(spec, grid, &plan.job(p, partial, [tail], [norm]))?,
        }
    }
    Ok(())
}

fn followed(spec: KernelSpec, has_tail: bool, has_norm: bool) -> KernelSpec {
    spec.flag("TAIL", has_tail).flag("NORM", has_norm).flag("PASSES", false).flag("FOLLOWS", false)
}
