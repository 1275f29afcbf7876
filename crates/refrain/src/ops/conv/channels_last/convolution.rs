//! Convolutions of images laid out with their channels last.

use super::super::cuda::{ConvSizes, MOST, RESULTS, Tile, check, results};
use super::super::{Convolution, Direction};
use super::images::{Beside, Images, Laid, lay_out};
use super::{LINE_BYTES, MOST_BYTES, PRODUCTS, at_once, depth, product, suits, tile, tile_of};
use crate::device::Launch;
use crate::device::cuda::{CudaArgs, Grid, MmaKind, Pointer, Source, View, params};
use crate::error::Result;
use crate::tensor::DType;

static PIXELS: Source = Source {
    name: "conv_pixels",
    parts: &{
        let [mma, wgmma, forms, swizzle, taps, tiles, fragments, products] = PRODUCTS;
        let (pixels, convolve) = (include_str!("pixels.cu"), include_str!("convolve.cu"));
        [mma, wgmma, forms, swizzle, taps, tiles, fragments, products, RESULTS, pixels, convolve]
    },
};

/// What a block knows of a pixel.
const PIXEL_BYTES: usize = 24;

params! {
    struct ConvPixels {
        x: Pointer = "const IN*",
        weights: Pointer = "const IN*",
        /// Numbers of a pixel, and those of a group.
        pitch: i64,
        channels: i64,
        /// Numbers of a row of the weight.
        columns: i64,
        bias: Pointer,
        y: Pointer = "Y_TYPE*",
        tiles_m: i64,
        tiles_n: i64,
        sizes: ConvSizes,
    }
}

/// The tile of a block for so many channels and pixels, `times` times; and the tiles in shared memory.
fn tile_for(channels: usize, pixels: usize, times: usize, factors: DType, mma: MmaKind) -> (Tile, usize) {
    let of = |warps, fragments| tile_of(factors, warps, fragments);
    let tiles = match mma {
        MmaKind::WarpGroup => [(of([8, 1], [1, 16]), 3), (of([4, 1], [1, 16]), 4), (of([4, 1], [1, 8]), 4)],
        _ => [(of([2, 4], [4, 4]), 3), (of([1, 4], [4, 4]), 3), (of([2, 2], [2, 4]), 4)],
    };
    // The first one has 128 channels, too many for 64.
    tile(&tiles[usize::from(channels <= 64)..], channels, pixels, times)
}

/// A convolution of images laid out with their channels last.
pub(in super::super) struct Pixels<'a> {
    op: &'a Convolution,
    source: Images,
    /// Kinds of pixels that have other taps.
    phases: usize,
    /// The most taps of a phase.
    taps: usize,
    /// Pixels of a phase of an image.
    each: usize,
    /// Images that are laid out at once.
    at_once: usize,
    /// Whether they are read where they lie instead.
    in_place: bool,
}

impl<'a> Pixels<'a> {
    fn images(op: &Convolution) -> Images {
        Images::of(&op.places, op.sides()[0], op.factors)
    }

    /// Whether a convolution is one of such images.
    pub(in super::super) fn suits(op: &Convolution) -> bool {
        let groups = op.places.groups;
        let source = Pixels::images(op);
        suits(op.factors, op.precision, groups, op.sides().map(|(channels, _)| channels / groups))
            && source.bytes(1) <= MOST_BYTES
            && Pixels::numbers(op) < MOST - depth(op.factors)
    }

    /// Numbers of a row of the weight.
    fn numbers(op: &Convolution) -> usize {
        Pixels::images(op).padded() * op.places.window.kernel.iter().product::<usize>()
    }

    pub(in super::super) fn of(op: &'a Convolution, launch: &Launch<'_>) -> Pixels<'a> {
        let source = Pixels::images(op);
        let (phases, taps, each) = op.phases(op.sides()[1].1);
        let at_once = at_once(op.places.images[0], source.bytes(1));
        let in_place = source.are_in_place(&View::read(launch, 0));
        Pixels { op, source, phases, taps, each, at_once, in_place }
    }

    /// The channels of a group of the result.
    fn channels(&self) -> usize {
        self.op.sides()[1].0 / self.op.places.groups
    }

    pub(in super::super) fn workspace(&self) -> usize {
        if self.in_place { 0 } else { self.source.bytes(self.at_once) }
    }

    pub(in super::super) fn run(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let op = self.op;
        check(args.op(), &op.places)?;
        let n = op.places.images[0];
        let [(from, source), (to, size)] = op.sides();
        let image = from * source[0] * source[1] * args.read_dtype(0).size();
        let plane = size[0] * size[1];
        let result = to * plane * args.write_dtype(0).size();
        for first in (0..n).step_by(self.at_once) {
            let images = self.at_once.min(n - first);
            let x = args.read(0).plus(first * image);
            let laid_out = self.lay_out(args, images, x)?;
            self.multiply(args, images, laid_out, args.write(0).plus(first * result))?;
        }
        Ok(())
    }

    /// Lays images out, and says where they are then.
    fn lay_out(&self, args: &mut CudaArgs<'_>, images: usize, x: Pointer) -> Result<Pointer> {
        if self.in_place {
            return Ok(x);
        }
        let y = args.workspace();
        let laid = Laid { x, y, dtype: args.read_dtype(0) };
        let how = (self.op.factors, self.op.precision);
        lay_out(args, how, (images, self.source, Some(laid)), Beside::Nothing)?;
        Ok(y)
    }

    /// Phases that a block computes: their pixels lie side by side, and are stored together.
    fn across(&self) -> usize {
        match self.op.direction {
            Direction::Transposed if self.op.places.window.stride[1] == 2 => 2,
            _ => 1,
        }
    }

    fn multiply(&self, args: &mut CudaArgs<'_>, images: usize, x: Pointer, y: Pointer) -> Result<()> {
        let op = self.op;
        let (pixels, across) = (self.each * images, self.across());
        let times = op.places.groups * self.phases / across;
        let (tile, stages) = tile_for(self.channels(), pixels, times, op.factors, args.mma());
        let [m, n] = tile.size();
        let tiles = [self.channels().div_ceil(m), pixels.div_ceil(n)];
        let shared = stages * (m + n) * LINE_BYTES + n * PIXEL_BYTES;
        let how = (op.factors, op.precision);
        let spec =
            product(&PIXELS, "conv_pixels", (tile, stages), how, ([true; 2], op.direction), args.mma())
                .int("PHASES", across as i64)
                .flag("LAST", op.places.channels_last)
                .flag("FEW_TAPS", self.taps <= 32)
                .flag("ONE_TAP", self.source.padded().is_multiple_of(depth(op.factors)))
                .int("MEMORY_BYTES", shared as i64);
        let spec = results(op, spec, y, [self.phases, across], args);
        let told = ConvPixels {
            x,
            weights: args.read(op.operands() - 1),
            pitch: self.source.pitch() as i64,
            channels: self.source.padded() as i64,
            columns: Pixels::numbers(op) as i64,
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
