//! The gradient of a convolution's weight, from images laid out with their channels last.

use super::super::Direction;
use super::super::cuda::{ConvSizes, MOST, Tile, check, sum_parts};
use super::super::weight_gradient::WeightGradient;
use super::images::{Beside, Images, Laid, Rows, lay_out};
use super::{LINE_BYTES, MOST_BYTES, PIECE_BYTES, PRODUCTS, at_once, piece, product, suits, tile, tile_of};
use crate::device::Launch;
use crate::device::cuda::{CudaArgs, Grid, MmaKind, Pointer, Source, View, params};
use crate::error::Result;
use crate::tensor::DType;

static GRADIENT: Source = Source {
    name: "conv_weight_pixels",
    parts: &{
        let [mma, wgmma, forms, swizzle, taps, tiles, fragments, products] = PRODUCTS;
        [mma, wgmma, forms, swizzle, taps, tiles, fragments, products, include_str!("weight_gradient.cu")]
    },
};

/// A part of the pixels has at least so many.
const LEAST_PIXELS: usize = 256;
/// Blocks that run at once.
const BLOCKS: usize = 264;

params! {
    struct ConvWeightPixels {
        x: Pointer = "const IN*",
        dy: Pointer = "const IN*",
        partial: Pointer = "COMPUTE*",
        /// Those of the bias's gradient.
        sums: Pointer = "COMPUTE*",
        /// Numbers of a pixel, and those of a group.
        x_pitch: i64,
        channels: i64,
        /// Those of the results; or, where these are rows, the numbers of a row, and rows of a group.
        dy_pitch: i64,
        dy_channels: i64,
        tiles_m: i64,
        tiles_n: i64,
        /// Parts of the images before.
        first_split: i64,
        /// Pixels of a part.
        depth: i64,
        sizes: ConvSizes,
    }
}

/// How the results are read: with their channels last, laid out or as they lie; laid out in rows of the pixels of all images; or with their
/// channels first, as they lie.
#[derive(Clone, Copy)]
enum Results {
    Pixels { of: Images, in_place: bool },
    Rows(Rows),
    InPlace { channels: usize, plane: usize },
}

impl Results {
    /// TF32 numbers are rounded, and groups of warps multiply them along k only. Others are read where they lie if a channel's pixels are
    /// whole pieces.
    fn of(op: &WeightGradient, launch: &Launch<'_>) -> Results {
        let (places, factors) = (&op.places, op.factors);
        let (channels, plane) = (places.out, places.count[0] * places.count[1]);
        let dy = View::read(launch, 0);
        let are_pieces = plane.is_multiple_of(piece(factors)) && dy.alignment().is_multiple_of(PIECE_BYTES);
        match factors {
            DType::F32 => Results::Rows(Rows { channels, plane, factors }),
            _ if dy.dtype == factors && are_pieces && !places.channels_last => {
                Results::InPlace { channels, plane }
            }
            _ => {
                let of = Images::of(places, (places.out, places.count), factors);
                Results::Pixels { of, in_place: of.are_in_place(&dy) }
            }
        }
    }

    /// Those that are laid out.
    fn bytes(&self, images: usize) -> usize {
        match self {
            Results::Pixels { of, in_place: false } => of.bytes(images),
            Results::Rows(of) => of.bytes(images),
            Results::Pixels { in_place: true, .. } | Results::InPlace { .. } => 0,
        }
    }

    fn plane(&self) -> usize {
        match self {
            Results::Pixels { of: Images { plane, .. }, .. }
            | Results::Rows(Rows { plane, .. })
            | Results::InPlace { plane, .. } => *plane,
        }
    }
}

/// The tile of a block for so many numbers of a window and channels of the result, `times` times; and the tiles in shared memory.
fn tile_for(numbers: usize, channels: usize, times: usize, factors: DType, mma: MmaKind) -> (Tile, usize) {
    let of = |warps, fragments| tile_of(factors, warps, fragments);
    // Both kinds have as many threads for a tile, so that the sums of the bias's gradient have the same order.
    let tiles = match mma {
        MmaKind::WarpGroup => [(of([8, 1], [1, 16]), 3), (of([8, 1], [1, 8]), 4), (of([4, 1], [1, 8]), 4)],
        _ => [(of([2, 4], [4, 4]), 3), (of([4, 2], [2, 4]), 4), (of([2, 2], [2, 4]), 4)],
    };
    // The first one has 128 channels, too many for 64.
    tile(&tiles[usize::from(channels <= 64)..], numbers, channels, times)
}

/// The gradient of a weight: a row for each number of a window, and a column for each channel of the result.
pub(in super::super) struct WeightPixels<'a> {
    op: &'a WeightGradient,
    images: Images,
    /// Whether these are read where they lie.
    in_place: bool,
    results: Results,
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
    pub(in super::super) fn of(
        op: &'a WeightGradient,
        launch: &Launch<'_>,
        mma: MmaKind,
    ) -> Option<WeightPixels<'a>> {
        let (places, groups, factors) = (&op.places, op.places.groups, op.factors);
        let [n, channels, height, width] = places.images;
        let [channels, out] = [channels, places.out].map(|n| n / groups);
        // Windows of one tap meet a number once, for which f32 images are not worth laying out.
        let is_read_once = factors == DType::F32 && places.window.kernel == [1, 1];
        if is_read_once || !suits(factors, op.precision, groups, [channels, out]) {
            return None;
        }
        let images = Images::of(places, (places.images[1], [height, width]), factors);
        let in_place = images.are_in_place(&View::read(launch, 1));
        let results = Results::of(op, launch);
        let bytes = images.bytes(1) + results.bytes(1);
        let at_once = at_once(n, bytes);
        let numbers = images.padded() * places.window.kernel[0] * places.window.kernel[1];
        if bytes > MOST_BYTES || numbers >= MOST {
            return None;
        }
        let pixels = at_once * results.plane();
        let most_splits = (pixels / LEAST_PIXELS).max(1);
        let (tile, stages) = tile_for(numbers, out, groups * most_splits, factors, mma);
        let [rows, columns] = tile.size();
        let tiles = [numbers.div_ceil(rows).max(1), out.div_ceil(columns)];
        let wanted = (BLOCKS / (tiles[0] * tiles[1] * groups).max(1)).clamp(1, most_splits);
        let depth = pixels.div_ceil(wanted).max(1).next_multiple_of(tile.depth);
        let splits = pixels.div_ceil(depth).max(1);
        let tile = (tile, stages);
        Some(WeightPixels { op, images, in_place, results, at_once, splits, depth, tile, mma, tiles })
    }

    /// How often images are laid out.
    fn turns(&self) -> usize {
        self.op.places.images[0].div_ceil(self.at_once).max(1)
    }

    fn parts(&self) -> usize {
        self.splits * self.turns()
    }

    /// Sums of the bias's gradient that are made at once: by those who lay the results out in rows, or with the products.
    fn sums_at_once(&self) -> usize {
        match self.results {
            Results::Pixels { .. } | Results::InPlace { .. } => self.splits,
            Results::Rows(of) => of.runs(self.at_once),
        }
    }

    fn weights(&self) -> usize {
        self.op.places.weight().iter().product()
    }

    fn biases(&self) -> usize {
        if self.op.bias.is_some() { self.op.places.out } else { 0 }
    }

    /// Where the images, the results, the parts and those of the bias begin, and where they end.
    fn places(&self) -> [usize; 5] {
        let results = if self.in_place { 0 } else { self.images.bytes(self.at_once) };
        let parts = results + self.results.bytes(self.at_once);
        let of_bias = parts + self.parts() * self.weights() * DType::F32.size();
        let end = of_bias + self.turns() * self.sums_at_once() * self.biases() * DType::F32.size();
        [0, results, parts, of_bias, end]
    }

    pub(in super::super) fn workspace(&self) -> usize {
        self.places()[4]
    }

    pub(in super::super) fn run(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let op = self.op;
        check(args.op(), &op.places)?;
        if self.weights() == 0 && self.biases() == 0 {
            return Ok(());
        }
        let [n, channels, height, width] = op.places.images;
        let image = channels * height * width * args.read_dtype(1).size();
        let result = op.places.out * self.results.plane() * args.read_dtype(0).size();
        // Without images, there are sums of nothing.
        for (turn, first) in (0..n.max(1)).step_by(self.at_once).enumerate() {
            let images = self.at_once.min(n - first);
            let (x, dy) = (args.read(1).plus(first * image), args.read(0).plus(first * result));
            self.lay_out(args, images, [x, dy], turn)?;
            self.multiply(args, images, [x, dy], turn)?;
        }
        let [.., parts_at, of_bias, _] = self.places().map(|at| args.workspace().plus(at));
        let of_bias = (of_bias, self.turns() * self.sums_at_once());
        sum_parts(op, args, [(parts_at, self.parts()), of_bias], [self.weights(), self.biases()])
    }

    fn lay_out(
        &self,
        args: &mut CudaArgs<'_>,
        images: usize,
        [x, dy]: [Pointer; 2],
        turn: usize,
    ) -> Result<()> {
        let op = self.op;
        let [images_at, results_at, _, of_bias, _] = self.places().map(|at| args.workspace().plus(at));
        let laid = (!self.in_place).then(|| Laid { x, y: images_at, dtype: args.read_dtype(1) });
        let of_results = Laid { x: dy, y: results_at, dtype: args.read_dtype(0) };
        let beside = match self.results {
            Results::InPlace { .. } | Results::Pixels { in_place: true, .. } => Beside::Nothing,
            Results::Pixels { of, in_place: false } => Beside::Pixels(of, of_results),
            Results::Rows(of) => {
                let runs = self.sums_at_once();
                let sums = of_bias.plus(turn * runs * self.biases() * DType::F32.size());
                let sums = if self.biases() > 0 { sums } else { Pointer::NOTHING };
                Beside::Rows { of, laid: of_results, runs, sums }
            }
        };
        let how = (op.factors, op.precision);
        lay_out(args, how, (images, self.images, laid), beside)
    }

    fn multiply(
        &self,
        args: &mut CudaArgs<'_>,
        images: usize,
        [x, dy]: [Pointer; 2],
        turn: usize,
    ) -> Result<()> {
        let op = self.op;
        let (tile, stages) = self.tile;
        let [m, n] = tile.size();
        let shared = stages * (m + n) * LINE_BYTES;
        let how = (op.factors, op.precision);
        let [images_at, results_at, parts_at, of_bias, _] = self.places().map(|at| args.workspace().plus(at));
        let (dy, dy_pitch, dy_channels) = match self.results {
            Results::Pixels { of, in_place } => {
                (if in_place { dy } else { results_at }, of.pitch(), of.padded())
            }
            Results::Rows(of) => (results_at, of.pitch(images), of.channels / op.places.groups),
            Results::InPlace { channels, plane } => (dy, plane, channels / op.places.groups),
        };
        let along_k = ([false, !matches!(self.results, Results::Pixels { .. })], Direction::Forward);
        let sums = op.bias.is_some() && !matches!(self.results, Results::Rows(_));
        let spec = product(&GRADIENT, "conv_weight_pixels", self.tile, how, along_k, self.mma)
            .flag("IN_ORDER", true)
            .int("MEMORY_BYTES", shared as i64)
            .flag("IN_PLACE", matches!(self.results, Results::InPlace { .. }))
            .flag("BIAS", sums);
        let mut sizes = ConvSizes::of(&op.places, Direction::Forward).of_images(images);
        // A single window has no next one, however far that would be.
        for (stride, to) in sizes.stride.iter_mut().zip(sizes.to) {
            *stride = if to == 1 { 1 } else { *stride };
        }
        let told = ConvWeightPixels {
            x: if self.in_place { x } else { images_at },
            dy,
            partial: parts_at,
            sums: of_bias,
            x_pitch: self.images.pitch() as i64,
            channels: self.images.padded() as i64,
            dy_pitch: dy_pitch as i64,
            dy_channels: dy_channels as i64,
            tiles_m: self.tiles[0] as i64,
            tiles_n: self.tiles[1] as i64,
            first_split: (turn * self.splits) as i64,
            depth: self.depth as i64,
            sizes,
        };
        let blocks = self.tiles[0] * self.tiles[1] * op.places.groups * self.splits;
        args.kernel(spec, Grid::line(blocks, tile.threads() as u32).shared(shared), &told)
    }
}
