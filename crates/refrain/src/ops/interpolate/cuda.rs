//! Resizing on CUDA: a thread computes one place of several blocks, whose weights are the same.

use super::Interpolation;
use super::taps::Axis;
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, padded, params, with_rank};
use crate::error::Result;
use crate::kernels::units;

static SOURCE: Source =
    Source { name: "interpolate", parts: &[include_str!("taps.cu"), include_str!("kernel.cu")] };

/// Blocks whose element at one place a thread computes.
const BLOCKS: usize = 4;

params! {
    struct InterpolateArgs<const RANK: usize> {
        x: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        /// Numbers of threads, and of blocks: all axes but those that are resized.
        n: i64,
        blocks: i64,
        /// Elements of a block of x, and of y.
        size_x: i64,
        size_y: i64,
        /// Axis by axis: the sizes before and after resizing.
        from: [i64; RANK],
        to: [i64; RANK],
    }
}

/// The operand with its axes resized, or what their gradient gives back.
pub(super) fn resize(axes: &[Axis], mode: Interpolation, back: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    if n == 0 {
        return Ok(());
    }
    let from: usize = axes.iter().map(|axis| axis.from).product();
    let to: usize = axes.iter().map(|axis| axis.to).product();
    let (size_x, size_y) = if back { (to, from) } else { (from, to) };
    let blocks = n / size_y;
    let threads = blocks.div_ceil(BLOCKS) * size_y;
    let (kind, corners) = match mode {
        Interpolation::Nearest => ("NEAREST", false),
        Interpolation::NearestExact => ("NEAREST_EXACT", false),
        Interpolation::Linear { align_corners } => ("LINEAR", align_corners),
        Interpolation::Cubic { align_corners } => ("CUBIC", align_corners),
        Interpolation::Area => ("AREA", false),
    };
    let reach = axes.iter().map(|axis| axis.checked_reach().unwrap_or(i64::MAX)).max();
    let place = if reach.is_some_and(|reach| reach < 1 << 31) { "int" } else { "i64" };
    let rank = axes.len().next_power_of_two();
    let spec = KernelSpec::new(&SOURCE, "interpolate").dtype("ELEMENT", args.write_dtype(0));
    let spec = spec.word("INDEX", units::index_type(threads)).word("PLACE", place).int("RANK", rank as i64);
    let spec = spec
        .int("AXES", axes.len() as i64)
        .int("BLOCKS", BLOCKS as i64)
        .word("KIND", kind)
        .flag("CORNERS", corners);
    let spec = spec.flag("BACK", back).flag("ADD", args.accumulate(0));
    with_rank!(args.op(), rank, RANK => {
        let each = |of: fn(&Axis) -> usize| -> smallvec::SmallVec<[usize; 3]> { axes.iter().map(of).collect() };
        let job = InterpolateArgs::<RANK> {
            x: args.read(0),
            y: args.write(0),
            n: threads as i64,
            blocks: blocks as i64,
            size_x: size_x as i64,
            size_y: size_y as i64,
            from: padded(&each(|axis| axis.from), 1),
            to: padded(&each(|axis| axis.to), 1),
        };
        args.kernel(spec, units::grid(args, threads), &job)
    })
}
