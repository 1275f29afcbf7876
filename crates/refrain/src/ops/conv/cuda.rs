//! Convolutions on CUDA: products on tensor cores whose operands are gathered from the images where they lie.

use super::channels_last::{Pixels, WeightPixels};
use super::direct;
use super::places::Places;
use super::pointwise::Pointwise;
use super::unfolded::{PIECE_BYTES, Unfolded, UnfoldedWeight};
use super::weight_gradient::WeightGradient;
use super::{Convolution, Direction};
use crate::device::Launch;
use crate::device::cuda::{CudaArgs, Gpu, Grid, KernelSpec, MMA, Pointer, Source, params};
use crate::error::{Error, Result};
use crate::kernels::products::cuda::{FORMS, FRAGMENTS};
use crate::tensor::DType;
use crate::types::Precision;

pub(super) const TAPS: &str = include_str!("taps.cu");
pub(super) const FACTOR: &str = include_str!("factor.cu");
pub(super) const GATHER: &str = include_str!("gather.cu");
pub(super) const RESULTS: &str = include_str!("results.cu");

static WEIGHTS: Source =
    Source { name: "conv", parts: &[MMA, FORMS, TAPS, FACTOR, GATHER, include_str!("weights.cu")] };
static CONVOLVE: Source = Source {
    name: "conv",
    parts: &[MMA, FORMS, TAPS, FACTOR, GATHER, FRAGMENTS, RESULTS, include_str!("convolve.cu")],
};
static GRADIENT: Source = Source {
    name: "conv",
    parts: &[MMA, FORMS, TAPS, FACTOR, GATHER, FRAGMENTS, include_str!("weight_gradient.cu")],
};
static PARTS: Source = Source { name: "conv", parts: &[include_str!("sum_parts.cu")] };

/// Blocks that keep a GPU busy.
const ENOUGH_BLOCKS: usize = 264;
/// A part of the pixels of a weight's gradient has at least so many.
const LEAST_PIXELS: usize = 128;
/// The kernel that adds up as few parts knows their number, so that it loads those of several numbers at once.
const FEW_PARTS: usize = 3;
/// From so many parts on, several threads add up those of a number.
const MANY_PARTS: usize = 16;
/// Taps that a block of the sums of parts turns, and its threads.
const SUMMED_TAPS: usize = 16;
const SUM_THREADS: usize = 256;
/// An entry of the tables of steps.
const STEP_BYTES: usize = 16;
/// Positions fit in 31 bits, also those beside an image.
pub(super) const MOST: usize = 1 << 30;

params! {
    /// The sizes of a convolution, as its sums see them: `from` the source `to` the result.
    pub(super) struct ConvSizes {
        images: i64,
        groups: i64,
        /// Channels of a group.
        from_channels: i64,
        to_channels: i64,
        from: [i64; 2],
        to: [i64; 2],
        kernel: [i64; 2],
        stride: [i64; 2],
        padding: [i64; 2],
        dilation: [i64; 2],
    }

    struct ConvWeights {
        weight: Pointer = "const W_TYPE*",
        y: Pointer = "IN*",
        n: i64,
        rows: i64,
        columns: i64,
        sizes: ConvSizes,
    }

    struct Convolve {
        x: Pointer = "const X_TYPE*",
        /// Rows of a group's and phase's matrix, and the numbers of a row.
        weights: Pointer = "const IN*",
        rows: i64,
        columns: i64,
        bias: Pointer,
        y: Pointer = "Y_TYPE*",
        tiles_m: i64,
        tiles_n: i64,
        sizes: ConvSizes,
    }

    struct ConvGradient {
        x: Pointer = "const X_TYPE*",
        dy: Pointer = "const DY_TYPE*",
        partial: Pointer = "COMPUTE*",
        tiles_m: i64,
        tiles_n: i64,
        splits: i64,
        /// Pixels of a part.
        depth: i64,
        sizes: ConvSizes,
    }

    struct ConvParts {
        partial: Pointer = "const COMPUTE*",
        partial_bias: Pointer = "const COMPUTE*",
        dw: Pointer = "DW_TYPE*",
        db: Pointer,
        /// Those of the weight's gradient.
        blocks: i64,
        splits: i64,
        bias_splits: i64,
        weights: i64,
        biases: i64,
        /// Of a row of the weight.
        channels: i64,
        taps: i64,
        add: i64,
        add_bias: i64,
    }
}

impl ConvSizes {
    pub(super) fn of(places: &Places, direction: Direction) -> ConvSizes {
        let pair = |n: [usize; 2]| n.map(|n| n as i64);
        let Places { window, images: [n, channels, height, width], count, out, groups, .. } = *places;
        let [large, small] = [(channels, [height, width]), (out, count)];
        let [from, to] = match direction {
            Direction::Forward => [large, small],
            Direction::Transposed => [small, large],
        };
        ConvSizes {
            images: n as i64,
            groups: groups as i64,
            from_channels: (from.0 / groups) as i64,
            to_channels: (to.0 / groups) as i64,
            from: pair(from.1),
            to: pair(to.1),
            kernel: pair(window.kernel),
            stride: pair(window.stride),
            padding: pair(window.padding),
            dilation: pair(window.dilation),
        }
    }

    /// Those of so many of the images.
    pub(super) fn of_images(self, images: usize) -> ConvSizes {
        ConvSizes { images: images as i64, ..self }
    }
}

/// What a block computes.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Warps along m and n, and the 16 x 8 fragments of each.
    pub(super) warps: [usize; 2],
    pub(super) fragments: [usize; 2],
    /// Numbers along k.
    pub(super) depth: usize,
}

impl Tile {
    pub(super) fn size(self) -> [usize; 2] {
        [self.warps[0] * self.fragments[0] * 16, self.warps[1] * self.fragments[1] * 8]
    }

    fn depth(factors: DType) -> usize {
        if factors == DType::F64 { 16 } else { 32 }
    }

    pub(super) fn threads(self) -> usize {
        self.warps[0] * self.warps[1] * 32
    }

    /// The shared memory: two tiles of both operands, and tables of so many bytes.
    fn bytes(self, factors: DType, tables: usize) -> usize {
        let [m, n] = self.size();
        2 * (m + n) * self.depth * factors.size() + tables
    }

    /// For a convolution of so many channels.
    fn of_result(channels: usize, factors: DType) -> Tile {
        let (warps, fragments) = match channels {
            0..=16 => ([1, 8], [1, 2]),
            17..=32 => ([1, 8], [2, 2]),
            _ => ([2, 4], [2, 4]),
        };
        Tile { warps, fragments, depth: Tile::depth(factors) }
    }

    /// For the gradient of a weight.
    fn of_weight(channels: usize, factors: DType, precision: Precision) -> Tile {
        let (warps, fragments) = match channels {
            0..=32 => ([1, 8], [2, 2]),
            // Two TF32 numbers for each f32 take many registers.
            _ if factors == DType::F32 && precision != Precision::Tf32 => ([2, 4], [2, 2]),
            _ => ([2, 4], [2, 4]),
        };
        Tile { warps, fragments, depth: Tile::depth(factors) }
    }
}

/// How many numbers of the sums have one tap, from a multiple of it on: up to those of a piece of 16 bytes.
fn run(channels: usize, factors: DType) -> usize {
    (16 / factors.size()).min(1 << channels.trailing_zeros().min(3))
}

pub(super) fn compute(factors: DType) -> DType {
    if factors == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The constants of the kernels of a convolution, or (without a direction) of a weight's gradient.
pub(super) fn spec(
    source: &'static Source,
    entry: &'static str,
    tile: Tile,
    how: (DType, Precision),
    direction: Option<Direction>,
) -> KernelSpec {
    spec_along(source, entry, tile, how, [direction.is_some(); 2])
        .flag("TRANSPOSED", direction == Some(Direction::Transposed))
}

/// The constants of tiles whose lines run along k or across it.
pub(super) fn spec_along(
    source: &'static Source,
    entry: &'static str,
    tile: Tile,
    (factors, precision): (DType, Precision),
    along_k: [bool; 2],
) -> KernelSpec {
    let form = match (factors, precision) {
        (DType::F16, _) => "F16",
        (DType::BF16, _) => "BF16",
        (DType::F64, _) => "F64",
        (_, Precision::Tf32) => "TF32",
        _ => "SPLIT_TF32",
    };
    KernelSpec::new(source, entry)
        .word("FORM", form)
        .dtype("IN", factors)
        .dtype("A_TYPE", factors)
        .dtype("B_TYPE", factors)
        .dtype("COMPUTE", compute(factors))
        .flag("A_ALONG_K", along_k[0])
        .flag("B_ALONG_K", along_k[1])
        .int("WARPS_M", tile.warps[0] as i64)
        .int("WARPS_N", tile.warps[1] as i64)
        .int("FRAGS_M", tile.fragments[0] as i64)
        .int("FRAGS_N", tile.fragments[1] as i64)
        .int("TILE_K", tile.depth as i64)
}

/// # Errors
/// If positions do not fit in the numbers that kernels count with.
pub(super) fn check(op: &'static str, places: &Places) -> Result<()> {
    let Places { window, images: [n, channels, height, width], count: [rows, columns], out, groups, .. } =
        *places;
    let all = |sizes: &[usize]| sizes.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
    let [kernel_h, kernel_w] = window.kernel;
    let fits = [
        all(&[n, height, width]),
        all(&[n, rows, columns]),
        all(&[n, groups]),
        all(&[channels, height + window.padding[0], width + window.padding[1]]),
        all(&[out, rows + kernel_h * window.dilation[0], columns + kernel_w * window.dilation[1]]),
        all(&[channels.max(out), kernel_h, kernel_w]),
    ];
    match fits.iter().all(|size| size.is_some_and(|size| size < MOST)) {
        true => Ok(()),
        false => {
            Err(Error::invalid(op, "the images are too many or too large for one launch; split the batch"))
        }
    }
}

impl Convolution {
    /// Kinds of result pixels that have other taps, the most taps that one has, and the most pixels of one in an image of such a size.
    pub(super) fn phases(&self, size: [usize; 2]) -> (usize, usize, usize) {
        let window = self.places.window;
        let (mut phases, mut taps, mut each) = (1, 1, 1);
        for axis in [0, 1] {
            let [kernel, stride, dilation] = [window.kernel, window.stride, window.dilation].map(|x| x[axis]);
            let apart = match self.direction {
                Direction::Forward => 1,
                Direction::Transposed => stride,
            };
            phases *= apart;
            each *= size[axis].div_ceil(apart);
            let period = (1..=apart).find(|n| (n * dilation).is_multiple_of(apart)).unwrap_or(apart);
            taps *= kernel.div_ceil(period);
        }
        (phases, taps, each)
    }
}

/// The matrices of the weight in the working memory, and the blocks.
pub(super) struct Plan {
    tile: Tile,
    /// Kinds of result pixels that have other taps, and the most taps that one has.
    phases: usize,
    rows: usize,
    /// Numbers of a row.
    pub(super) columns: usize,
    tiles: [usize; 2],
}

impl Plan {
    pub(super) fn of(op: &Convolution) -> Plan {
        let Places { images: [n, ..], groups, .. } = op.places;
        let [(from, _), (to, size)] = op.sides();
        let tile = Tile::of_result(to / groups, op.factors);
        let [m, pixels] = tile.size();
        let (phases, taps, each) = op.phases(size);
        Plan {
            tile,
            phases,
            rows: (to / groups).next_multiple_of(m),
            columns: (from / groups * taps).next_multiple_of(tile.depth),
            tiles: [(to / groups).div_ceil(m), (n * each).div_ceil(pixels)],
        }
    }

    /// Numbers of the weight.
    pub(super) fn weights(&self, groups: usize) -> usize {
        self.phases * groups * self.rows * self.columns
    }
}

/// Whether images of this dtype are multiplied with a weight that is laid out, by [`Pointwise`] or [`Pixels`].
pub(super) fn lays_out(op: &Convolution, dtype: DType) -> bool {
    let is_direct = direct::cuda::suits(&op.places, op.direction);
    !is_direct && (Pointwise::suits(op, dtype) || Pixels::suits(op))
}

pub(super) fn workspace(op: &Convolution, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
    if op.is_laid_out {
        return match Pointwise::of(op, launch) {
            Some(pointwise) => pointwise.workspace(launch.op, gpu),
            None => Ok(Pixels::of(op, launch).workspace()),
        };
    }
    if direct::cuda::suits(&op.places, op.direction) {
        return Ok(0);
    }
    match Unfolded::of(op) {
        Some(unfolded) => unfolded.workspace(launch.op, gpu),
        None => Ok(Plan::of(op).weights(op.places.groups) * op.factors.size()),
    }
}

/// The constants of kernels with numbers as the products of a convolution have them.
pub(super) fn forms(source: &'static Source, entry: &'static str, op: &Convolution) -> KernelSpec {
    let run = run(op.sides()[0].0 / op.places.groups, op.factors);
    spec(source, entry, Plan::of(op).tile, (op.factors, op.precision), Some(op.direction))
        .flag("ADJACENT", true)
        .int("RUN", run as i64)
}

/// Packs the weight into a matrix for each phase.
pub(super) fn pack_weights(
    op: &Convolution,
    plan: &Plan,
    to: Pointer,
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    let weights = plan.weights(op.places.groups);
    if weights == 0 {
        return Ok(());
    }
    let spec = forms(&WEIGHTS, "conv_weights", op)
        .dtype("X_TYPE", args.read_dtype(0))
        .dtype("W_TYPE", args.read_dtype(1));
    let told = ConvWeights {
        weight: args.read(1),
        y: to,
        n: weights as i64,
        rows: plan.rows as i64,
        columns: plan.columns as i64,
        sizes: ConvSizes::of(&op.places, op.direction),
    };
    args.kernel(spec, Grid::line(weights.div_ceil(256).min(1 << 16), 256), &told)
}

/// Other kernels take images with their channels first.
fn check_order(args: &CudaArgs<'_>, places: &Places) -> Result<()> {
    match places.channels_last {
        true => Err(Error::internal(args.op(), "no kernel takes these images with their channels last")),
        false => Ok(()),
    }
}

pub(super) fn convolve(op: &Convolution, args: &mut CudaArgs<'_>) -> Result<()> {
    if args.write_shape(0).numel() == 0 {
        return Ok(());
    }
    if op.is_laid_out {
        return match Pointwise::of(op, args.launch()) {
            Some(pointwise) => pointwise.run(args),
            None => Pixels::of(op, args.launch()).run(args),
        };
    }
    check_order(args, &op.places)?;
    if direct::cuda::suits(&op.places, op.direction) {
        return direct::cuda::convolve(op, args);
    }
    if let Some(unfolded) = Unfolded::of(op) {
        return unfolded.run(args);
    }
    check(args.op(), &op.places)?;
    let plan = Plan::of(op);
    let Plan { tile, phases, rows, columns, tiles } = plan;
    let groups = op.places.groups;
    let sizes = ConvSizes::of(&op.places, op.direction);
    let run = run(op.sides()[0].0 / groups, op.factors);
    let shared =
        tile.bytes(op.factors, 2 * tile.depth / run * STEP_BYTES + tile.size()[1] * size_of::<i64>());
    let product = forms(&CONVOLVE, "convolve", op)
        .dtype("X_TYPE", args.read_dtype(0))
        .int("MEMORY_BYTES", shared as i64);
    pack_weights(op, &plan, args.workspace(), args)?;
    let y = args.write(0);
    let product = results(op, product, y, [phases, 1], args);
    let told = Convolve {
        x: args.read(0),
        weights: args.workspace(),
        rows: rows as i64,
        columns: columns as i64,
        bias: if op.bias { args.read(2) } else { Pointer::NOTHING },
        y,
        tiles_m: tiles[0] as i64,
        tiles_n: tiles[1] as i64,
        sizes,
    };
    let blocks = tiles[0] * tiles[1] * groups * phases;
    args.kernel(product, Grid::line(blocks, tile.threads() as u32).shared(shared), &told)
}

/// The constants of what is written to `y`, of so many phases, and those of them that a block computes.
pub(super) fn results(
    op: &Convolution,
    spec: KernelSpec,
    y: Pointer,
    [phases, across]: [usize; 2],
    args: &CudaArgs<'_>,
) -> KernelSpec {
    let (dtype, last) = (args.write_dtype(0), op.places.channels_last);
    let (channels, [rows, columns]) = op.sides()[1];
    // A piece of the channels of a pixel is stored at once; or what a lane's four pixels are in: a plane, or a row whose columns are of
    // these phases alone.
    let (line, each) = match phases {
        _ if last => (channels / op.places.groups, PIECE_BYTES / dtype.size()),
        1 => (rows * columns, 4),
        _ => (columns, 4 * across),
    };
    let is_aligned = (last || phases == 1 || across > 1)
        && line.is_multiple_of(each)
        && args.alignment(y).is_multiple_of(each * dtype.size());
    spec.dtype("Y_TYPE", dtype)
        .dtype("BIAS_TYPE", if op.bias { args.read_dtype(2) } else { dtype })
        .flag("ALIGNED", is_aligned)
        .flag("ADDS", args.accumulate(0))
}

/// How the pixels of a weight's gradient are split.
struct Parts {
    tile: Tile,
    tiles: [usize; 2],
    splits: usize,
    /// Pixels of a part.
    depth: usize,
    weights: usize,
    biases: usize,
}

impl Parts {
    fn of(op: &WeightGradient) -> Parts {
        let Places { window, images: [n, channels, ..], count: [rows, columns], out, groups, .. } = op.places;
        let (m, k) = (out / groups, channels / groups * window.kernel[0] * window.kernel[1]);
        let tile = Tile::of_weight(m, op.factors, op.precision);
        let size = tile.size();
        let tiles = [m.div_ceil(size[0]), k.div_ceil(size[1])];
        let pixels = n * rows * columns;
        let wanted = ENOUGH_BLOCKS.div_ceil((tiles[0] * tiles[1] * groups).max(1));
        let depth = pixels.div_ceil(wanted).max(LEAST_PIXELS).next_multiple_of(tile.depth);
        let biases = if op.bias.is_some() { out } else { 0 };
        Parts { tile, tiles, splits: pixels.div_ceil(depth).max(1), depth, weights: out * k, biases }
    }
}

pub(super) fn gradient_workspace(op: &WeightGradient, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
    if direct::cuda::suits(&op.places, Direction::Forward) {
        return Ok(direct::cuda::gradient_workspace(op));
    }
    if let Some(pixels) = WeightPixels::of(op, launch, gpu.mma()) {
        return Ok(pixels.workspace());
    }
    if let Some(unfolded) = UnfoldedWeight::of(op) {
        return unfolded.workspace(launch.op, gpu);
    }
    let Parts { splits, weights, biases, .. } = Parts::of(op);
    Ok(splits * (weights + biases) * compute(op.factors).size())
}

pub(super) fn weight_gradient(op: &WeightGradient, args: &mut CudaArgs<'_>) -> Result<()> {
    if direct::cuda::suits(&op.places, Direction::Forward) {
        return direct::cuda::weight_gradient(op, args);
    }
    if let Some(pixels) = WeightPixels::of(op, args.launch(), args.mma()) {
        return pixels.run(args);
    }
    check_order(args, &op.places)?;
    if let Some(unfolded) = UnfoldedWeight::of(op) {
        return unfolded.run(args);
    }
    check(args.op(), &op.places)?;
    let Parts { tile, tiles, splits, depth, weights, biases } = Parts::of(op);
    if weights == 0 && biases == 0 {
        return Ok(());
    }
    let run = run(op.places.images[1] / op.places.groups, op.factors);
    let shared = tile.bytes(op.factors, tile.size()[1] / run * STEP_BYTES);
    let product = spec(&GRADIENT, "conv_weight_gradient", tile, (op.factors, op.precision), None)
        .dtype("X_TYPE", args.read_dtype(1))
        .dtype("DY_TYPE", args.read_dtype(0))
        .flag("ADJACENT", false)
        .int("RUN", run as i64)
        .int("MEMORY_BYTES", shared as i64)
        .flag("BIAS", biases > 0);
    let told = ConvGradient {
        x: args.read(1),
        dy: args.read(0),
        partial: args.workspace(),
        tiles_m: tiles[0] as i64,
        // The first column of blocks sums the bias's gradient, also where a window has no numbers.
        tiles_n: tiles[1].max(1) as i64,
        splits: splits as i64,
        depth: depth as i64,
        sizes: ConvSizes::of(&op.places, Direction::Forward),
    };
    let blocks = tiles[0] * tiles[1].max(1) * op.places.groups * splits;
    args.kernel(product, Grid::line(blocks, tile.threads() as u32).shared(shared), &told)?;
    let of_bias = args.workspace().plus(splits * weights * compute(op.factors).size());
    sum_parts(op, args, [(args.workspace(), splits), (of_bias, splits)], [weights, biases])
}

/// Adds up the parts of a weight's gradient, and those of a bias.
pub(super) fn sum_parts(
    op: &WeightGradient,
    args: &mut CudaArgs<'_>,
    [(partial, splits), (partial_bias, bias_splits)]: [(Pointer, usize); 2],
    [weights, biases]: [usize; 2],
) -> Result<()> {
    let (channels, taps) =
        (op.places.images[1] / op.places.groups, op.places.window.kernel.iter().product::<usize>());
    let (most, slices) = match splits {
        0..=2 => (128, 1),
        3..MANY_PARTS => (32, 1),
        _ => (8, 8),
    };
    let together = channels.next_power_of_two().min(most);
    let gather = KernelSpec::new(&PARTS, "conv_sum_parts")
        .dtype("COMPUTE", compute(op.factors))
        .dtype("DW_TYPE", args.write_dtype(0))
        .dtype("DB_TYPE", args.write_dtype(if biases > 0 { 1 } else { 0 }))
        .int("CHANNELS", together as i64)
        .int("SLICES", slices as i64)
        .int("FEW", if splits <= FEW_PARTS { splits as i64 } else { 0 });
    let blocks = op.places.out * channels.div_ceil(together) * taps.div_ceil(SUMMED_TAPS);
    let told = ConvParts {
        partial,
        partial_bias,
        dw: args.write(0),
        db: if biases > 0 { args.write(1) } else { Pointer::NOTHING },
        blocks: blocks as i64,
        splits: splits as i64,
        bias_splits: bias_splits as i64,
        weights: weights as i64,
        biases: biases as i64,
        channels: channels as i64,
        taps: taps as i64,
        add: args.accumulate(0).into(),
        add_bias: (biases > 0 && args.accumulate(1)).into(),
    };
    args.kernel(gather, Grid::line(blocks + biases.div_ceil(SUM_THREADS), SUM_THREADS as u32), &told)
}
