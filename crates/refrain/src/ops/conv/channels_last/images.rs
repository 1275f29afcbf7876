//! Images, results and weights as they are laid out in the working memory.

use super::super::Direction;
use super::super::cuda::{ConvSizes, TAPS, spec};
use super::super::places::Places;
use super::{ALIGNMENT, depth, piece, tile_of};
use crate::device::cuda::{CudaArgs, Grid, MMA, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::products::cuda::FORMS;
use crate::tensor::DType;
use crate::types::Precision;

static LAY_OUT: Source =
    Source { name: "conv_lay_out", parts: &[MMA, FORMS, TAPS, include_str!("lay_out.cu")] };

/// The most pieces of a pixel that a block lays out.
const MOST_WIDE: usize = 8;
/// What a block lays out of a weight.
const TURNED_ROWS: usize = 8;
const TURNED_CHANNELS: usize = 64;
const TURNED_TAPS: usize = 16;
/// Pixels of a channel that a block lays out.
const RUN: usize = 4096;
const THREADS: usize = 256;

params! {
    pub(super) struct ConvImages {
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
    }

    pub(super) struct ConvRows {
        x: Pointer,
        y: Pointer,
        /// The sums of each run of pixels, of all channels; or nothing.
        sums: Pointer,
        blocks: i64,
        /// Of a row.
        runs: i64,
        /// Of all images, and numbers of a row.
        pixels: i64,
        pitch: i64,
        plane: i64,
        channels: i64,
    }

    pub(super) struct ConvLayOut {
        images: [ConvImages; 2],
        rows: ConvRows,
        weight: Pointer,
        y: Pointer,
        /// Rows of a group's and phase's matrix, numbers of a row, and pieces of a tap.
        weight_rows: i64,
        columns: i64,
        pieces: i64,
        sizes: ConvSizes,
    }
}

/// Images `[n, groups, channels, plane]` and how they are laid out: their channels last.
#[derive(Clone, Copy)]
pub(super) struct Images {
    pub(super) groups: usize,
    pub(super) channels: usize,
    pub(super) plane: usize,
    pub(super) factors: DType,
}

impl Images {
    /// The numbers of a group's pixel.
    pub(super) fn padded(&self) -> usize {
        self.channels.next_multiple_of(piece(self.factors))
    }

    pub(super) fn pitch(&self) -> usize {
        self.groups * self.padded()
    }

    /// Pieces of a group's pixel.
    pub(super) fn pieces(&self) -> usize {
        self.padded() / piece(self.factors)
    }

    /// Pieces of a pixel that a block turns.
    fn wide(&self) -> usize {
        (self.groups * self.pieces()).next_power_of_two().min(MOST_WIDE)
    }

    pub(super) fn bytes(&self, images: usize) -> usize {
        (images * self.plane * self.pitch() * self.factors.size()).next_multiple_of(ALIGNMENT)
    }

    /// The images at `x`, which are laid out at `y`.
    fn told(&self, images: usize, Laid { x, y, .. }: Laid) -> ConvImages {
        let (pixels, pieces) = (images * self.plane, self.groups * self.pieces());
        let wide = self.wide();
        let piece = piece(self.factors);
        ConvImages {
            x,
            y,
            blocks: (pixels.div_ceil(THREADS / wide * piece) * pieces.div_ceil(wide)) as i64,
            pixels: pixels as i64,
            plane: self.plane as i64,
            groups: self.groups as i64,
            channels: self.channels as i64,
            pieces: self.pieces() as i64,
        }
    }
}

/// Images `[n, channels, plane]` and how they are laid out: a row for each channel, of the pixels of all images, with zeros up to the end
/// of a tile.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) channels: usize,
    pub(super) plane: usize,
    pub(super) factors: DType,
}

impl Rows {
    /// The numbers of a row.
    pub(super) fn pitch(&self, images: usize) -> usize {
        (images * self.plane).next_multiple_of(depth(self.factors))
    }

    pub(super) fn bytes(&self, images: usize) -> usize {
        (self.channels * self.pitch(images) * self.factors.size()).next_multiple_of(ALIGNMENT)
    }

    /// The runs of a row, each of which has its sum.
    pub(super) fn runs(&self, images: usize) -> usize {
        self.pitch(images).div_ceil(RUN)
    }

    /// The images at `x`, which are laid out at `y` in so many runs, and where the sums of what is not rounded are stored.
    fn told(&self, images: usize, Laid { x, y, .. }: Laid, (runs, sums): (usize, Pointer)) -> ConvRows {
        ConvRows {
            x,
            y,
            sums,
            blocks: (runs * self.channels) as i64,
            runs: runs as i64,
            pixels: (images * self.plane) as i64,
            pitch: self.pitch(images) as i64,
            plane: self.plane as i64,
            channels: self.channels as i64,
        }
    }
}

/// Where numbers of a dtype are, and where they are laid out.
#[derive(Clone, Copy)]
pub(super) struct Laid {
    pub(super) x: Pointer,
    pub(super) y: Pointer,
    pub(super) dtype: DType,
}

impl Laid {
    /// Whether as many pixels as a piece has channels can be loaded at once.
    fn is_aligned(&self, args: &CudaArgs<'_>, plane: usize, factors: DType) -> bool {
        let piece = piece(factors);
        plane.is_multiple_of(piece) && args.alignment(self.x).is_multiple_of(piece * self.dtype.size())
    }
}

/// What is laid out beside images.
pub(super) enum Beside {
    Nothing,
    /// A weight, to a matrix of so many rows and columns for each group and phase.
    Weight {
        laid: Laid,
        rows: usize,
        columns: usize,
    },
    Pixels(Images, Laid),
    /// In so many runs, with the sums of these.
    Rows {
        of: Rows,
        laid: Laid,
        runs: usize,
        sums: Pointer,
    },
}

const NO_IMAGES: ConvImages = ConvImages {
    x: Pointer::NOTHING,
    y: Pointer::NOTHING,
    blocks: 0,
    pixels: 1,
    plane: 1,
    groups: 1,
    channels: 0,
    pieces: 1,
};

const NO_ROWS: ConvRows = ConvRows {
    x: Pointer::NOTHING,
    y: Pointer::NOTHING,
    sums: Pointer::NOTHING,
    blocks: 0,
    runs: 1,
    pixels: 0,
    pitch: 0,
    plane: 1,
    channels: 1,
};

/// Lays out so many images, and what is beside them, by one launch. `direction` is that of a weight's taps.
pub(super) fn lay_out(
    args: &mut CudaArgs<'_>,
    (factors, precision): (DType, Precision),
    (places, direction): (&Places, Direction),
    (images, of, laid): (usize, Images, Laid),
    beside: Beside,
) -> Result<()> {
    let mut told = ConvLayOut {
        images: [of.told(images, laid), NO_IMAGES],
        rows: NO_ROWS,
        weight: Pointer::NOTHING,
        y: Pointer::NOTHING,
        weight_rows: 1,
        columns: 0,
        pieces: of.pieces() as i64,
        sizes: ConvSizes::of(places, direction),
    };
    let is_aligned = laid.is_aligned(args, of.plane, factors);
    let (mut dy, mut dy_wide, mut dy_aligned) = (laid.dtype, of.wide(), is_aligned);
    let (mut w, mut of_weight) = (laid.dtype, 0);
    match beside {
        Beside::Nothing => {}
        Beside::Weight { laid: Laid { x, y, dtype }, rows, columns } => {
            w = dtype;
            (told.weight, told.y) = (x, y);
            (told.weight_rows, told.columns) = (rows as i64, columns as i64);
            of_weight = of.groups
                * of.channels.div_ceil(TURNED_CHANNELS)
                * (told.sizes.to_channels as usize).div_ceil(TURNED_ROWS)
                * places.window.kernel.iter().product::<usize>().div_ceil(TURNED_TAPS);
        }
        Beside::Pixels(results, laid) => {
            (dy, dy_wide) = (laid.dtype, results.wide());
            dy_aligned = laid.is_aligned(args, results.plane, factors);
            told.images[1] = results.told(images, laid);
        }
        Beside::Rows { of, laid, runs, sums } => {
            (dy, dy_aligned) = (laid.dtype, laid.is_aligned(args, of.plane, factors));
            told.rows = of.told(images, laid, (runs, sums));
        }
    }
    let blocks = told.images.iter().map(|images| images.blocks).sum::<i64>() + told.rows.blocks;
    let blocks = blocks as usize + of_weight;
    if blocks == 0 {
        return Ok(());
    }
    // Its own tile has no meaning here.
    let tile = tile_of(factors, [2, 2], [2, 4]);
    let spec = spec(&LAY_OUT, "conv_lay_out", tile, (factors, precision), Some(direction))
        .dtype("X_TYPE", laid.dtype)
        .dtype("DY_TYPE", dy)
        .dtype("W_TYPE", w)
        .int("X_WIDE", of.wide() as i64)
        .int("DY_WIDE", dy_wide as i64)
        .flag("X_ALIGNED", is_aligned)
        .flag("DY_ALIGNED", dy_aligned);
    args.kernel(spec, Grid::line(blocks, THREADS as u32), &told)
}
