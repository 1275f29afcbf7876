//! On CUDA, threads sum strips of results, with the sizes of the window as constants.

use super::super::cuda::{ConvSizes, check, compute, sum_parts};
use super::super::places::Places;
use super::super::weight_gradient::WeightGradient;
use super::super::{Convolution, Direction};
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::window::Window;
use crate::tensor::DType;

const WINDOW: &str = include_str!("window.cu");

static CONVOLVE: Source = Source { name: "conv", parts: &[WINDOW, include_str!("convolve.cu")] };
static GRADIENT: Source = Source { name: "conv", parts: &[WINDOW, include_str!("weight_gradient.cu")] };

const THREADS: usize = 256;
/// Results of a row that a thread sums, at least.
const STRIP: usize = 4;
/// Elements along a window that a thread takes at a time, at most.
const TAPS: usize = 8;
/// Sums of a weight's gradient that a thread keeps in registers, at most.
const MOST_SUMS: usize = 49;
/// Blocks that keep a GPU busy.
const ENOUGH_BLOCKS: usize = 1056;

params! {
    struct DirectConvolution {
        x: Pointer = "const X_TYPE*",
        weight: Pointer = "const W_TYPE*",
        bias: Pointer,
        y: Pointer = "Y_TYPE*",
        /// Those of an image.
        blocks: i64,
        sizes: ConvSizes,
    }

    struct DirectGradient {
        x: Pointer = "const X_TYPE*",
        dy: Pointer = "const DY_TYPE*",
        partial: Pointer = "COMPUTE*",
        splits: i64,
        /// Strips of a part.
        depth: i64,
        weights: i64,
        sizes: ConvSizes,
    }
}

/// Strides of a transposed convolution, at most: a strip of results has whole periods of them.
const MOST_STRIDE: usize = TAPS;
/// Steps of a window are below this, so that kernels count pixels in 32 bits.
const LARGEST_STEP: usize = 1 << 24;

/// Whether these kernels compute a convolution. Its weight's gradient is that of the forward direction.
pub(in super::super) fn suits(places: &Places, direction: Direction) -> bool {
    let Window { stride, padding, dilation, .. } = places.window;
    let has_small_steps = [stride, padding, dilation].as_flattened().iter().all(|&step| step < LARGEST_STEP);
    let has_short_periods = direction == Direction::Forward || stride[1] <= MOST_STRIDE;
    super::suits(places) && has_small_steps && has_short_periods
}

/// The constants of window.cu.
fn spec(
    source: &'static Source,
    entry: &'static str,
    (window, direction): (&Window, Direction),
    (strip, taps): (usize, usize),
    factors: DType,
) -> KernelSpec {
    let mut spec = KernelSpec::new(source, entry)
        .dtype("IN", factors)
        .dtype("COMPUTE", compute(factors))
        .flag("TRANSPOSED", direction == Direction::Transposed)
        .int("STRIP", strip as i64)
        .int("TAPS", taps as i64);
    let sizes = [
        (["KERNEL_H", "KERNEL_W"], window.kernel),
        (["STRIDE_H", "STRIDE_W"], window.stride),
        (["PADDING_H", "PADDING_W"], window.padding),
        (["DILATION_H", "DILATION_W"], window.dilation),
    ];
    for (names, sizes) in sizes {
        for (name, size) in names.into_iter().zip(sizes) {
            spec = spec.int(name, size as i64);
        }
    }
    spec
}

/// The size of parts of up to `most`, as equal as can be.
fn part_size(size: usize, most: usize) -> usize {
    size.div_ceil(size.div_ceil(most).max(1))
}

/// Whether pixels of a source with such rows can be loaded in fours: a strip's first pixel is at a multiple of four from its window's
/// padding, and the window is taken at once.
fn in_vectors(
    args: &CudaArgs<'_>,
    (data, dtype, width): (Pointer, DType, usize),
    (window, direction): (&Window, Direction),
    (strip, taps): (usize, usize),
) -> bool {
    let in_step = direction == Direction::Forward || window.stride[1] == 1;
    in_step && window.kernel[1] <= taps && is_aligned(args, data, dtype, width, strip)
}

/// Whether a strip of such rows, which begin at `data`, is loaded and stored at once.
fn is_aligned(args: &CudaArgs<'_>, data: Pointer, dtype: DType, width: usize, strip: usize) -> bool {
    strip == STRIP && width.is_multiple_of(strip) && args.alignment(data).is_multiple_of(strip * dtype.size())
}

pub(in super::super) fn convolve(op: &Convolution, args: &mut CudaArgs<'_>) -> Result<()> {
    check(args.op(), &op.places)?;
    let window = &op.places.window;
    let stride = window.stride[1];
    // Whole periods of the elements of the window that reach a result.
    let (strip, taps) = match op.direction {
        Direction::Forward => (STRIP, part_size(window.kernel[1], TAPS)),
        Direction::Transposed if window.kernel[1] <= TAPS => {
            (STRIP.next_multiple_of(stride), window.kernel[1])
        }
        Direction::Transposed => (STRIP.next_multiple_of(stride), TAPS / stride * stride),
    };
    let (n, [(_, [_, from]), (channels, [rows, width])]) = (op.places.images[0], op.sides());
    let blocks = (channels * rows * width.div_ceil(strip)).div_ceil(THREADS);
    let (y, dtype) = (args.write(0), args.write_dtype(0));
    let source = (args.read(0), args.read_dtype(0), from);
    let vectors = in_vectors(args, source, (window, op.direction), (strip, taps));
    let spec = spec(&CONVOLVE, "convolve_directly", (window, op.direction), (strip, taps), op.factors)
        .dtype("X_TYPE", args.read_dtype(0))
        .dtype("W_TYPE", args.read_dtype(1))
        .dtype("BIAS_TYPE", if op.bias { args.read_dtype(2) } else { dtype })
        .dtype("Y_TYPE", dtype)
        .flag("ADDS", args.accumulate(0))
        .flag("VECTORS", vectors)
        .flag("ALIGNED", is_aligned(args, y, dtype, width, strip));
    let told = DirectConvolution {
        x: args.read(0),
        weight: args.read(1),
        bias: if op.bias { args.read(2) } else { Pointer::NOTHING },
        y,
        blocks: blocks as i64,
        sizes: ConvSizes::of(&op.places, op.direction),
    };
    args.kernel(spec, Grid::line(n * blocks, THREADS as u32), &told)
}

/// How a weight's gradient is split.
struct Parts {
    /// Rows of the window, and elements of each, whose sums a thread keeps.
    taps: [usize; 2],
    tiles: usize,
    splits: usize,
    /// Strips of a part.
    depth: usize,
    weights: usize,
    biases: usize,
}

impl Parts {
    fn of(op: &WeightGradient) -> Parts {
        let Places { window, images: [n, channels, ..], count: [rows, columns], out, groups, .. } = op.places;
        let [height, width] = window.kernel;
        let across = part_size(width, TAPS);
        let down = part_size(height, MOST_SUMS / across);
        let tiles = width.div_ceil(across) * height.div_ceil(down);
        let pairs = out * (channels / groups);
        let strips = n * rows * columns.div_ceil(STRIP);
        let depth = strips.div_ceil(ENOUGH_BLOCKS.div_ceil(tiles * pairs)).max(THREADS);
        Parts {
            taps: [down, across],
            tiles,
            splits: strips.div_ceil(depth).max(1),
            depth,
            weights: pairs * height * width,
            biases: if op.bias.is_some() { out } else { 0 },
        }
    }
}

pub(in super::super) fn gradient_workspace(op: &WeightGradient) -> usize {
    let Parts { splits, weights, biases, .. } = Parts::of(op);
    splits * (weights + biases) * compute(op.factors).size()
}

pub(in super::super) fn weight_gradient(op: &WeightGradient, args: &mut CudaArgs<'_>) -> Result<()> {
    check(args.op(), &op.places)?;
    let Parts { taps: [down, across], tiles, splits, depth, weights, biases } = Parts::of(op);
    let (places, dy) = (&op.places, args.read(0));
    let aligned = is_aligned(args, dy, args.read_dtype(0), places.count[1], STRIP);
    let source = (args.read(1), args.read_dtype(1), places.images[3]);
    let vectors = in_vectors(args, source, (&places.window, Direction::Forward), (STRIP, across));
    let spec = spec(
        &GRADIENT,
        "weight_gradient_directly",
        (&places.window, Direction::Forward),
        (STRIP, across),
        op.factors,
    )
    .dtype("X_TYPE", args.read_dtype(1))
    .dtype("DY_TYPE", args.read_dtype(0))
    .int("TAPS_H", down as i64)
    .flag("BIAS", biases > 0)
    .flag("VECTORS", vectors)
    .flag("ALIGNED", aligned);
    let told = DirectGradient {
        x: args.read(1),
        dy,
        partial: args.workspace(),
        splits: splits as i64,
        depth: depth as i64,
        weights: weights as i64,
        sizes: ConvSizes::of(places, Direction::Forward),
    };
    let pairs = places.out * (places.images[1] / places.groups);
    args.kernel(spec, Grid::line(tiles * pairs * splits, THREADS as u32), &told)?;
    let of_bias = args.workspace().plus(splits * weights * compute(op.factors).size());
    sum_parts(op, args, [(args.workspace(), splits), (of_bias, splits)], [weights, biases])
}
