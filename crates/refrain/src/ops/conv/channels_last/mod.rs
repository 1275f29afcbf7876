//! Convolutions of 16-bit and TF32 numbers on CUDA: tensor cores find the channels of a pixel side by side, and gather them tap by tap while
//! they multiply. For that, images are laid out with their channels last in the working memory. Images of 16-bit numbers may have their
//! channels last already; then they are read where they lie, and the result has its channels last, too.

mod convolution;
mod images;
mod weight_gradient;

pub(super) use convolution::Pixels;
pub(super) use weight_gradient::WeightPixels;

use super::cuda::{TAPS, Tile, spec_along};
use super::unfolded::PIECE_BYTES;
use super::{Convolution, Direction, direct};
use crate::device::cuda::{KernelSpec, MMA, MmaKind, Source, WGMMA};
use crate::kernels::products::cuda::{FORMS, FRAGMENTS, SWIZZLE};
use crate::tensor::DType;
use crate::types::Precision;
use images::Images;

/// What both products begin with.
const PRODUCTS: [&str; 8] =
    [MMA, WGMMA, FORMS, SWIZZLE, TAPS, include_str!("tiles.cu"), FRAGMENTS, include_str!("products.cu")];

/// Groups of fewer channels would be mostly zeros.
const LEAST_CHANNELS_OF_GROUP: usize = 16;
/// The most bytes of images, with those of the result for the gradient of a weight, that are laid out at once, but at least one image. In
/// unit tests few images are laid out in several parts.
const IMAGE_BYTES: usize = if cfg!(test) { 1 << 17 } else { 256 << 20 };
/// Kernels count the bytes of images that are laid out in 32 bits.
const MOST_BYTES: usize = 1 << 31;
/// Bytes of a line of a tile.
const LINE_BYTES: usize = 128;
/// Blocks that keep a GPU busy.
const ENOUGH_BLOCKS: usize = 132;
const ALIGNMENT: usize = 256;

/// Numbers of a piece, to which the channels of a group are filled up with zeros.
fn piece(factors: DType) -> usize {
    PIECE_BYTES / factors.size()
}

/// Numbers of a tile along k.
fn depth(factors: DType) -> usize {
    LINE_BYTES / factors.size()
}

/// Whether convolutions with these factors and channels of each group are laid out.
fn suits(factors: DType, precision: Precision, groups: usize, channels: [usize; 2]) -> bool {
    let least = if groups == 1 { 1 } else { LEAST_CHANNELS_OF_GROUP };
    let is_narrow = match factors {
        DType::F32 => precision == Precision::Tf32,
        factors => matches!(factors, DType::BF16 | DType::F16),
    };
    is_narrow && channels.iter().all(|&n| n >= least)
}

/// Whether a convolution and its gradients take images, and results, with their channels last.
pub(super) fn takes(op: &Convolution) -> bool {
    let is_narrow = matches!(op.factors, DType::BF16 | DType::F16);
    let bytes = op.sides().map(|side| Images::of(&op.places, side, op.factors).bytes(1));
    is_narrow
        && !op.places.series
        && bytes.iter().sum::<usize>() <= MOST_BYTES
        && Pixels::suits(op)
        && Pixels::suits(&op.adjoint(op.dtype))
        && !direct::cuda::suits(&op.places, Direction::Forward)
}

/// How many images are laid out at once.
fn at_once(images: usize, bytes_of_image: usize) -> usize {
    let most = (IMAGE_BYTES / bytes_of_image.max(1)).max(1);
    images.div_ceil(images.div_ceil(most).max(1)).max(1)
}

/// The first of these tiles, each with the tiles in shared memory, that suffices for a product of so many rows and columns, `times` times;
/// or the last one.
fn tile(tiles: &[(Tile, usize)], rows: usize, columns: usize, times: usize) -> (Tile, usize) {
    let enough = |(tile, _): &&(Tile, usize)| {
        let [m, n] = tile.size();
        rows.div_ceil(m) * columns.div_ceil(n) * times >= ENOUGH_BLOCKS
    };
    *tiles.iter().find(enough).unwrap_or(&tiles[tiles.len() - 1])
}

/// A tile of numbers of 128 bytes along k.
fn tile_of(factors: DType, warps: [usize; 2], fragments: [usize; 2]) -> Tile {
    Tile { warps, fragments, depth: depth(factors) }
}

/// The constants of both products. Lines of the tiles of A and B run along k or across it.
fn product(
    source: &'static Source,
    entry: &'static str,
    (tile, stages): (Tile, usize),
    how: (DType, Precision),
    (along_k, direction): ([bool; 2], Direction),
    mma: MmaKind,
) -> KernelSpec {
    // Groups see eight TF32 numbers at a time in their order, and so do warps.
    spec_along(source, entry, tile, how, along_k)
        .flag("TRANSPOSED", direction == Direction::Transposed)
        .flag("ADJACENT", false)
        .flag("GROUPS", mma == MmaKind::WarpGroup)
        .int("STAGES", stages as i64)
}
