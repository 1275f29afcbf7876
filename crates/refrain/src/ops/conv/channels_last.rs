//! Convolutions of 16-bit and TF32 numbers on CUDA: the images are laid out with their channels last in the working memory, so that
//! tensor cores find the channels of a pixel side by side, and are gathered from there tap by tap while they are multiplied.

use super::cuda::{ConvSizes, MOST, RESULTS, TAPS, Tile, check, results, spec, sum_parts};
use super::weight_gradient::WeightGradient;
use super::{Convolution, Direction};
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, MMA, MmaKind, Pointer, Source, WGMMA, params};
use crate::error::Result;
use crate::kernels::products::cuda::{FORMS, FRAGMENTS, SWIZZLE};
use crate::tensor::DType;
use crate::types::Precision;

const TILES: &str = include_str!("channels_last.cu");
const PRODUCTS: &str = include_str!("products.cu");

static LAY_OUT: Source =
    Source { name: "conv_lay_out", parts: &[MMA, FORMS, TAPS, include_str!("lay_out.cu")] };
static PIXELS: Source = Source {
    name: "conv_pixels",
    parts: &[
        MMA,
        WGMMA,
        FORMS,
        SWIZZLE,
        TAPS,
        TILES,
        FRAGMENTS,
        PRODUCTS,
        RESULTS,
        include_str!("convolve_pixels.cu"),
    ],
};
static GRADIENT: Source = Source {
    name: "conv_weight_pixels",
    parts: &[
        MMA,
        WGMMA,
        FORMS,
        SWIZZLE,
        TAPS,
        TILES,
        FRAGMENTS,
        PRODUCTS,
        include_str!("gradient_pixels.cu"),
    ],
};

/// Groups of fewer channels would be mostly zeros.
const LEAST_CHANNELS_OF_GROUP: usize = 16;
/// The most bytes of images, with those of the result for the gradient of a weight, that are laid out at once, but at least one image. In
/// tests few images are laid out in several parts.
const IMAGE_BYTES: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };
/// The kernel of a convolution counts the bytes of images that are laid out in 32 bits.
const MOST_BYTES: usize = 1 << 31;
/// Pieces that a block lays out, the most of them of one pixel, and what it lays out of a weight.
const TURNED: usize = 512;
const MOST_WIDE: usize = 8;
const TURNED_ROWS: usize = 8;
const TURNED_CHANNELS: usize = 64;
const TURNED_TAPS: usize = 16;
/// Bytes of a line of a tile.
const LINE_BYTES: usize = 128;
/// Blocks that keep a GPU busy.
const ENOUGH_BLOCKS: usize = 132;
/// A part of the pixels of a weight's gradient has at least so many.
const LEAST_PIXELS: usize = 256;
const ALIGNMENT: usize = 256;
const THREADS: usize = 256;
/// An entry of the tables of pixels of the gradient of a weight, and of a convolution.
const ORIGIN_BYTES: usize = 16;
const PIXEL_BYTES: usize = 24;

params! {
    struct ConvImages {
        x: Pointer,
        y: Pointer,
        blocks: i64,
        /// Of all images.
        pixels: i64,
        plane: i64,
        groups: i64,
        /// Channels and pieces of a group.
        channels: i64,
        pieces: i64,
        /// Whether eight pixels can be loaded at once.
        aligned: i64,
    }

    struct ConvLayOut {
        images: [ConvImages; 2],
        weight: Pointer,
        y: Pointer,
        /// Rows of a group's and phase's matrix, numbers of a row, and pieces of a tap.
        rows: i64,
        columns: i64,
        pieces: i64,
        sizes: ConvSizes,
    }

    struct ConvPixels {
        x: Pointer = "const IN*",
        weights: Pointer = "const IN*",
        /// Numbers of a pixel, and those of a group.
        pitch: i64,
        channels: i64,
        rows: i64,
        columns: i64,
        bias: Pointer,
        y: Pointer = "Y_TYPE*",
        tiles_m: i64,
        tiles_n: i64,
        sizes: ConvSizes,
    }

    struct ConvWeightPixels {
        x: Pointer = "const IN*",
        dy: Pointer = "const IN*",
        partial: Pointer = "COMPUTE*",
        /// Numbers of a pixel, and those of a group.
        x_pitch: i64,
        channels: i64,
        dy_pitch: i64,
        dy_channels: i64,
        tiles_m: i64,
        tiles_n: i64,
        /// All parts, and those of the images before.
        splits: i64,
        first_split: i64,
        /// Pixels of a part.
        depth: i64,
        sizes: ConvSizes,
    }
}

/// Numbers of a piece of 16 bytes, to which the channels of a group are filled up with zeros.
fn piece(factors: DType) -> usize {
    16 / factors.size()
}

/// Numbers of a tile along k.
fn depth(factors: DType) -> usize {
    LINE_BYTES / factors.size()
}

/// Images `[n, groups, channels, plane]` and how they are laid out.
#[derive(Clone, Copy)]
struct Images {
    groups: usize,
    channels: usize,
    plane: usize,
    factors: DType,
}

impl Images {
    /// The numbers of a group's pixel.
    fn padded(&self) -> usize {
        self.channels.next_multiple_of(piece(self.factors))
    }

    fn pitch(&self) -> usize {
        self.groups * self.padded()
    }

    /// Pieces of a group's pixel.
    fn pieces(&self) -> usize {
        self.padded() / piece(self.factors)
    }

    /// Pieces of a pixel that a block turns.
    fn wide(&self) -> usize {
        (self.groups * self.pieces()).next_power_of_two().min(MOST_WIDE)
    }

    fn bytes(&self, images: usize) -> usize {
        (images * self.plane * self.pitch() * self.factors.size()).next_multiple_of(ALIGNMENT)
    }

    /// The images at `x`, whose address and numbers are of so many bytes.
    fn told(&self, images: usize, x: Pointer, y: Pointer, alignment: usize, size: usize) -> ConvImages {
        let (pixels, pieces) = (images * self.plane, self.groups * self.pieces());
        let wide = self.wide();
        let is_aligned = self.plane.is_multiple_of(8) && alignment.is_multiple_of(8 * size);
        ConvImages {
            x,
            y,
            blocks: (pixels.div_ceil(TURNED / wide) * pieces.div_ceil(wide)) as i64,
            pixels: pixels as i64,
            plane: self.plane as i64,
            groups: self.groups as i64,
            channels: self.channels as i64,
            pieces: self.pieces() as i64,
            aligned: is_aligned.into(),
        }
    }
}

/// Nothing to lay out.
const NO_IMAGES: ConvImages = ConvImages {
    x: Pointer::NOTHING,
    y: Pointer::NOTHING,
    blocks: 0,
    pixels: 1,
    plane: 1,
    groups: 1,
    channels: 0,
    pieces: 1,
    aligned: 0,
};

/// Whether convolutions with these factors and channels of each group are laid out.
fn suits(factors: DType, precision: Precision, groups: usize, channels: [usize; 2]) -> bool {
    let least = if groups == 1 { 1 } else { LEAST_CHANNELS_OF_GROUP };
    let is_narrow = match factors {
        DType::F32 => precision == Precision::Tf32,
        factors => matches!(factors, DType::BF16 | DType::F16),
    };
    is_narrow && channels.iter().all(|&n| n >= least)
}

/// The tile of a block for a product of so many rows and columns, `times` times; and the tiles in shared memory.
fn tile(rows: usize, columns: usize, times: usize, factors: DType, mma: MmaKind) -> (Tile, usize) {
    let groups = mma == MmaKind::WarpGroup;
    let of = |warps, fragments| Tile { warps, fragments, depth: depth(factors) };
    let tall = (if groups { of([8, 1], [1, 16]) } else { of([2, 4], [4, 4]) }, 3);
    let middle = (if groups { of([4, 1], [1, 16]) } else { of([1, 4], [4, 4]) }, if groups { 4 } else { 3 });
    let small = (if groups { of([4, 1], [1, 8]) } else { of([2, 2], [2, 4]) }, 4);
    let first = (rows > 64).then_some(tall);
    let enough = |(tile, _): &(Tile, usize)| {
        let [m, n] = tile.size();
        rows.div_ceil(m) * columns.div_ceil(n) * times >= ENOUGH_BLOCKS
    };
    first.into_iter().chain([middle]).find(enough).unwrap_or(small)
}

/// The constants of both products.
fn product(
    source: &'static Source,
    entry: &'static str,
    (tile, stages): (Tile, usize),
    (factors, precision): (DType, Precision),
    direction: Option<Direction>,
    mma: MmaKind,
) -> KernelSpec {
    // Groups see eight TF32 numbers at a time in their order, and so do warps.
    spec(source, entry, tile, (factors, precision), direction)
        .flag("ADJACENT", false)
        .flag("GROUPS", mma == MmaKind::WarpGroup)
        .int("STAGES", stages as i64)
}

/// How many images are laid out at once.
fn at_once(images: usize, bytes_of_image: usize) -> usize {
    let most = (IMAGE_BYTES / bytes_of_image.max(1)).max(1);
    images.div_ceil(images.div_ceil(most).max(1)).max(1)
}

/// A convolution of images laid out with their channels last.
pub(super) struct Pixels<'a> {
    op: &'a Convolution,
    source: Images,
    /// Kinds of pixels that have other taps, and the numbers of a row of the weight.
    phases: usize,
    columns: usize,
    /// Pixels of a phase of an image.
    each: usize,
    /// Images that are laid out at once.
    at_once: usize,
}

impl<'a> Pixels<'a> {
    pub(super) fn of(op: &'a Convolution) -> Option<Pixels<'a>> {
        let groups = op.places.groups;
        let [(from, source), (to, size)] = op.sides();
        let [from, to] = [from, to].map(|channels| channels / groups);
        if !suits(op.factors, op.precision, groups, [from, to]) {
            return None;
        }
        let source = Images { groups, channels: from, plane: source[0] * source[1], factors: op.factors };
        let (phases, taps, each) = op.phases(size);
        let columns = (source.padded() * taps).next_multiple_of(depth(op.factors));
        if source.bytes(1) > MOST_BYTES || columns >= MOST {
            return None;
        }
        let at_once = at_once(op.places.images[0], source.bytes(1));
        Some(Pixels { op, source, phases, columns, each, at_once })
    }

    /// The channels of a group of the result.
    fn channels(&self) -> usize {
        self.op.sides()[1].0 / self.op.places.groups
    }

    /// Rows of the weight of a group and phase: of whole tiles, whatever their size.
    fn rows(&self) -> usize {
        self.channels().next_multiple_of(128)
    }

    fn weight_bytes(&self) -> usize {
        let numbers = self.phases * self.op.places.groups * self.rows() * self.columns;
        (numbers * self.op.factors.size()).next_multiple_of(ALIGNMENT)
    }

    pub(super) fn workspace(&self) -> usize {
        self.weight_bytes() + self.source.bytes(self.at_once)
    }

    pub(super) fn run(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let op = self.op;
        check(args.op(), &op.places)?;
        let n = op.places.images[0];
        let [(from, source), (to, size)] = op.sides();
        let image = from * source[0] * source[1] * args.read_dtype(0).size();
        let plane = size[0] * size[1];
        let result = to * plane * args.write_dtype(0).size();
        for first in (0..n).step_by(self.at_once) {
            let images = self.at_once.min(n - first);
            self.lay_out(args, images, args.read(0).plus(first * image), first == 0)?;
            self.multiply(args, images, args.write(0).plus(first * result))?;
        }
        Ok(())
    }

    fn lay_out(&self, args: &mut CudaArgs<'_>, images: usize, x: Pointer, with_weight: bool) -> Result<()> {
        let op = self.op;
        let spec = spec(
            &LAY_OUT,
            "conv_lay_out",
            tile(1, 1, 1, op.factors, MmaKind::Warp).0,
            (op.factors, op.precision),
            Some(op.direction),
        )
        .dtype("X_TYPE", args.read_dtype(0))
        .dtype("DY_TYPE", args.read_dtype(0))
        .dtype("W_TYPE", args.read_dtype(1))
        .int("X_WIDE", self.source.wide() as i64)
        .int("DY_WIDE", self.source.wide() as i64);
        let of_weight = op.places.groups
            * self.source.channels.div_ceil(TURNED_CHANNELS)
            * self.channels().div_ceil(TURNED_ROWS)
            * op.places.window.kernel.iter().product::<usize>().div_ceil(TURNED_TAPS);
        let to = args.workspace().plus(self.weight_bytes());
        let first = self.source.told(images, x, to, args.alignment(x), args.read_dtype(0).size());
        let blocks = first.blocks as usize + if with_weight { of_weight } else { 0 };
        let told = ConvLayOut {
            images: [first, NO_IMAGES],
            weight: args.read(1),
            y: args.workspace(),
            rows: self.rows() as i64,
            columns: self.columns as i64,
            pieces: self.source.pieces() as i64,
            sizes: ConvSizes::of(&op.places, op.direction),
        };
        args.kernel(spec, Grid::line(blocks, THREADS as u32), &told)
    }

    /// Phases that a block computes: their pixels lie side by side, and are stored together.
    fn across(&self) -> usize {
        match self.op.direction {
            Direction::Transposed if self.op.places.window.stride[1] == 2 => 2,
            _ => 1,
        }
    }

    fn multiply(&self, args: &mut CudaArgs<'_>, images: usize, y: Pointer) -> Result<()> {
        let op = self.op;
        let (pixels, across) = (self.each * images, self.across());
        let times = op.places.groups * self.phases / across;
        let (tile, stages) = tile(self.channels(), pixels, times, op.factors, args.mma());
        let [m, n] = tile.size();
        let tiles = [self.channels().div_ceil(m), pixels.div_ceil(n)];
        let shared = stages * (m + n) * LINE_BYTES + n * PIXEL_BYTES;
        let how = (op.factors, op.precision);
        let spec = product(&PIXELS, "conv_pixels", (tile, stages), how, Some(op.direction), args.mma())
            .int("PHASES", across as i64)
            .int("MEMORY_BYTES", shared as i64);
        let spec = results(op, spec, y, [self.phases, across], args);
        let told = ConvPixels {
            x: args.workspace().plus(self.weight_bytes()),
            weights: args.workspace(),
            pitch: self.source.pitch() as i64,
            channels: self.source.padded() as i64,
            rows: self.rows() as i64,
            columns: self.columns as i64,
            bias: if op.bias { args.read(2) } else { Pointer::NOTHING },
            y,
            tiles_m: tiles[0] as i64,
            tiles_n: tiles[1] as i64,
            sizes: ConvSizes::of(&op.places, op.direction).of_images(images),
        };
        let blocks = tiles[0] * tiles[1] * times;
        args.kernel(spec, Grid::line(blocks, tile.threads() as u32).shared(shared), &told)
    }
}

/// The gradient of a weight from images and results laid out with their channels last.
pub(super) struct WeightPixels<'a> {
    op: &'a WeightGradient,
    images: Images,
    results: Images,
    /// Images that are laid out at once.
    at_once: usize,
    /// Parts of these, and the pixels of a part.
    splits: usize,
    depth: usize,
    tile: (Tile, usize),
    mma: MmaKind,
    tiles: [usize; 2],
}

impl<'a> WeightPixels<'a> {
    pub(super) fn of(op: &'a WeightGradient, mma: MmaKind) -> Option<WeightPixels<'a>> {
        let (places, groups, factors) = (&op.places, op.places.groups, op.factors);
        let [n, channels, height, width] = places.images;
        let [channels, out] = [channels, places.out].map(|n| n / groups);
        // Windows of one tap meet a number once, for which f32 images are not worth laying out.
        let is_read_once = factors == DType::F32 && places.window.kernel == [1, 1];
        if is_read_once || !suits(factors, op.precision, groups, [channels, out]) {
            return None;
        }
        let images = Images { groups, channels, plane: height * width, factors };
        let results = Images { groups, channels: out, plane: places.count[0] * places.count[1], factors };
        let at_once = at_once(n, images.bytes(1) + results.bytes(1));
        let numbers = images.padded() * places.window.kernel[0] * places.window.kernel[1];
        if numbers >= MOST {
            return None;
        }
        let pixels = at_once * results.plane;
        let most_splits = (pixels / LEAST_PIXELS).max(1);
        // Groups can't multiply TF32 numbers across k.
        let mma = if factors == DType::F32 { MmaKind::Warp } else { mma };
        let (tile, stages) = tile(out, numbers, groups * most_splits, factors, mma);
        let [rows, columns] = tile.size();
        let tiles = [out.div_ceil(rows), numbers.div_ceil(columns).max(1)];
        let blocks = (tiles[0] * tiles[1] * groups).max(1);
        // As many as there are at once.
        let wanted = (2 * ENOUGH_BLOCKS / blocks).clamp(1, most_splits);
        let depth = pixels.div_ceil(wanted).max(1).next_multiple_of(tile.depth);
        let splits = pixels.div_ceil(depth).max(1);
        Some(WeightPixels { op, images, results, at_once, splits, depth, tile: (tile, stages), mma, tiles })
    }

    fn parts(&self) -> usize {
        self.splits * self.op.places.images[0].div_ceil(self.at_once).max(1)
    }

    fn weights(&self) -> usize {
        self.op.places.weight().iter().product()
    }

    fn biases(&self) -> usize {
        if self.op.bias.is_some() { self.op.places.out } else { 0 }
    }

    /// Where the images, the results and the parts begin, and where they end.
    fn places(&self) -> [usize; 4] {
        let results = self.images.bytes(self.at_once);
        let parts = results + self.results.bytes(self.at_once);
        let numbers = self.parts() * (self.weights() + self.biases());
        [0, results, parts, parts + numbers * DType::F32.size()]
    }

    pub(super) fn workspace(&self) -> usize {
        self.places()[3]
    }

    pub(super) fn run(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let op = self.op;
        check(args.op(), &op.places)?;
        if self.weights() == 0 && self.biases() == 0 {
            return Ok(());
        }
        let n = op.places.images[0];
        let bytes = |images: &Images, of| images.groups * images.channels * images.plane * DType::size(of);
        let image = bytes(&self.images, args.read_dtype(1));
        let result = bytes(&self.results, args.read_dtype(0));
        let [images_at, results_at, parts_at, _] = self.places().map(|at| args.workspace().plus(at));
        // Without images, there are sums of nothing.
        for (part, first) in (0..n.max(1)).step_by(self.at_once).enumerate() {
            let images = self.at_once.min(n - first);
            let (x, dy) = (args.read(1).plus(first * image), args.read(0).plus(first * result));
            let of = [
                self.images.told(images, x, images_at, args.alignment(x), args.read_dtype(1).size()),
                self.results.told(images, dy, results_at, args.alignment(dy), args.read_dtype(0).size()),
            ];
            self.lay_out(args, of)?;
            self.multiply(args, images, part * self.splits)?;
        }
        self.sum(args, parts_at)
    }

    fn lay_out(&self, args: &mut CudaArgs<'_>, images: [ConvImages; 2]) -> Result<()> {
        let op = self.op;
        let how = (op.factors, op.precision);
        let tile = tile(1, 1, 1, op.factors, MmaKind::Warp).0;
        let spec = spec(&LAY_OUT, "conv_lay_out", tile, how, Some(Direction::Forward))
            .dtype("X_TYPE", args.read_dtype(1))
            .dtype("DY_TYPE", args.read_dtype(0))
            .dtype("W_TYPE", DType::F32)
            .int("X_WIDE", self.images.wide() as i64)
            .int("DY_WIDE", self.results.wide() as i64);
        let blocks: usize = images.iter().map(|images| images.blocks as usize).sum();
        if blocks == 0 {
            return Ok(());
        }
        let told = ConvLayOut {
            images,
            weight: Pointer::NOTHING,
            y: Pointer::NOTHING,
            rows: 1,
            columns: 0,
            pieces: 1,
            sizes: ConvSizes::of(&op.places, Direction::Forward),
        };
        args.kernel(spec, Grid::line(blocks, THREADS as u32), &told)
    }

    fn multiply(&self, args: &mut CudaArgs<'_>, images: usize, first_split: usize) -> Result<()> {
        let op = self.op;
        let (tile, stages) = self.tile;
        let [m, n] = tile.size();
        let shared = stages * ((m + n) * LINE_BYTES + tile.depth * ORIGIN_BYTES);
        let how = (op.factors, op.precision);
        let spec = product(&GRADIENT, "conv_weight_pixels", self.tile, how, None, self.mma)
            .flag("IN_ORDER", true)
            .int("MEMORY_BYTES", shared as i64)
            .flag("BIAS", op.bias.is_some());
        let [images_at, results_at, parts_at, _] = self.places().map(|at| args.workspace().plus(at));
        let told = ConvWeightPixels {
            x: images_at,
            dy: results_at,
            partial: parts_at,
            x_pitch: self.images.pitch() as i64,
            channels: self.images.padded() as i64,
            dy_pitch: self.results.pitch() as i64,
            dy_channels: self.results.padded() as i64,
            tiles_m: self.tiles[0] as i64,
            tiles_n: self.tiles[1] as i64,
            splits: self.parts() as i64,
            first_split: first_split as i64,
            depth: self.depth as i64,
            sizes: ConvSizes::of(&op.places, Direction::Forward).of_images(images),
        };
        let blocks = self.tiles[0] * self.tiles[1] * op.places.groups * self.splits;
        args.kernel(spec, Grid::line(blocks, tile.threads() as u32).shared(shared), &told)
    }

    fn sum(&self, args: &mut CudaArgs<'_>, parts_at: Pointer) -> Result<()> {
        let (op, weights, biases) = (self.op, self.weights(), self.biases());
        sum_parts(op, args, parts_at, self.parts(), [weights, biases])
    }
}
