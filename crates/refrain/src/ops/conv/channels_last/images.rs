//! Images and results as they are laid out in the working memory.

use super::super::cuda::{FACTOR, spec};
use super::super::places::Places;
use super::{ALIGNMENT, PIECE_BYTES, depth, piece, tile_of};
use crate::device::cuda::{CudaArgs, Grid, MMA, Pointer, Source, View, params};
use crate::error::Result;
use crate::kernels::products::cuda::FORMS;
use crate::tensor::DType;
use crate::types::Precision;

static LAY_OUT: Source =
    Source { name: "conv_lay_out", parts: &[MMA, FORMS, FACTOR, include_str!("lay_out.cu")] };

/// The most pieces of a pixel that a block lays out.
const MOST_WIDE: usize = 8;
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
    }
}

/// Images `[n, groups, channels, plane]`, or `[n, plane, groups, channels]` if their channels come last already; and how they are laid out:
/// their channels last.
#[derive(Clone, Copy)]
pub(super) struct Images {
    pub(super) groups: usize,
    pub(super) channels: usize,
    pub(super) plane: usize,
    pub(super) factors: DType,
    pub(super) last: bool,
}

impl Images {
    /// Those of a side of a convolution, with so many channels and pixels.
    pub(super) fn of(
        places: &Places,
        (channels, [height, width]): (usize, [usize; 2]),
        factors: DType,
    ) -> Images {
        let &Places { groups, channels_last: last, .. } = places;
        Images { groups, channels: channels / groups, plane: height * width, factors, last }
    }

    /// The numbers of a group's pixel.
    pub(super) fn padded(&self) -> usize {
        self.channels.next_multiple_of(piece(self.factors))
    }

    pub(super) fn pitch(&self) -> usize {
        self.groups * self.padded()
    }

    /// Whether they can be read where they lie.
    pub(super) fn are_in_place(&self, x: &View<'_>) -> bool {
        self.last
            && x.dtype == self.factors
            && self.channels == self.padded()
            && x.alignment().is_multiple_of(PIECE_BYTES)
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

    /// Numbers that lie side by side.
    fn line(&self) -> usize {
        if self.last { self.channels } else { self.plane }
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
    /// Whether as many numbers as a piece has can be loaded at once, of `line` that lie side by side.
    fn is_aligned(&self, args: &CudaArgs<'_>, line: usize, factors: DType) -> bool {
        let piece = piece(factors);
        line.is_multiple_of(piece) && args.alignment(self.x).is_multiple_of(piece * self.dtype.size())
    }
}

/// What is laid out beside images.
pub(super) enum Beside {
    Nothing,
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

/// Lays out so many images, if they do not lie so already, and what is beside them, by one launch.
pub(super) fn lay_out(
    args: &mut CudaArgs<'_>,
    how: (DType, Precision),
    (images, of, laid): (usize, Images, Option<Laid>),
    beside: Beside,
) -> Result<()> {
    let factors = how.0;
    let mut told = ConvLayOut {
        images: [laid.map_or(NO_IMAGES, |laid| of.told(images, laid)), NO_IMAGES],
        rows: NO_ROWS,
    };
    let x = laid.map_or(factors, |laid| laid.dtype);
    let is_aligned = laid.is_none_or(|laid| laid.is_aligned(args, of.line(), factors));
    let (mut dy, mut dy_wide, mut dy_aligned) = (x, of.wide(), is_aligned);
    match beside {
        Beside::Nothing => {}
        Beside::Pixels(results, laid) => {
            (dy, dy_wide) = (laid.dtype, results.wide());
            dy_aligned = laid.is_aligned(args, results.line(), factors);
            told.images[1] = results.told(images, laid);
        }
        Beside::Rows { of, laid, runs, sums } => {
            (dy, dy_aligned) = (laid.dtype, laid.is_aligned(args, of.plane, factors));
            told.rows = of.told(images, laid, (runs, sums));
        }
    }
    let blocks = told.images.iter().map(|images| images.blocks).sum::<i64>() + told.rows.blocks;
    if blocks == 0 {
        return Ok(());
    }
    // Its own tile has no meaning here.
    let tile = tile_of(factors, [2, 2], [2, 4]);
    let spec = spec(&LAY_OUT, "conv_lay_out", tile, how, None)
        .dtype("X_TYPE", x)
        .flag("LAST", of.last)
        .dtype("DY_TYPE", dy)
        .int("X_WIDE", of.wide() as i64)
        .int("DY_WIDE", dy_wide as i64)
        .flag("X_ALIGNED", is_aligned)
        .flag("DY_ALIGNED", dy_aligned);
    args.kernel(spec, Grid::line(blocks as usize, THREADS as u32), &told)
}
