//! Slices picked along an axis, and added back, on CUDA.

use super::IndexAdd;
use crate::device::Launch;
use crate::device::cuda::{Bounds, CudaArgs, Grid, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::units::{self, UNITS};
use crate::ops::sort::Sort;
use crate::tensor::{DType, Shape};

static SELECT: Source = Source { name: "index_select", parts: &[UNITS, include_str!("kernel.cu")] };
static ADD: Source = Source { name: "index_add", parts: &[include_str!("add.cu")] };

const THREADS: usize = 256;
/// Entries of an index at most that a block looks through by itself.
const MOST: usize = 4096;
/// Entries that all blocks look at, at most, before the index is sorted.
const LOOKS: usize = 1 << 26;
/// Blocks of the second dimension at most.
const MAX_Y: usize = 65_535;

pub(super) fn select(axis: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    let (from, dtype) = (args.read_shape(0), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let count = args.read_shape(1).numel();
    let outer: usize = from[..axis].iter().product();
    let width = from[axis + 1..].iter().product::<usize>() * dtype.size();
    let unit = units::largest([width as u64, args.read(0), args.write(0)]);
    let all = n * dtype.size() / unit;
    let params = Params::new()
        .pointer(args.read(0))
        .pointer(args.read(1))
        .pointer(args.write(0))
        .size(outer)
        .size(from[axis])
        .size(count)
        .size(width / unit)
        .i64(units::missing(dtype) as i64)
        .words(&args.faults(Bounds::Axis));
    let spec = units::constants(Spec::new(&SELECT, "select").dtype("ID", args.read_dtype(1)), unit, all);
    args.kernel(spec, units::grid(args, all), &params)
}

/// The sort of an index of `count` entries that names `size` places, if it is worth one.
fn sort(size: usize, count: usize) -> Result<Option<Sort>> {
    if count <= MOST && count.saturating_mul(size) <= LOOKS {
        return Ok(None);
    }
    Sort::new(<IndexAdd as crate::ops::Op>::NAME, count, size).map(Some)
}

pub(super) fn workspace(axis: usize, shape: &Shape, launch: &Launch<'_>) -> Result<usize> {
    let count = launch.reads[1].layout.numel();
    Ok(sort(shape[axis], count)?.map_or(0, |sort| sort.workspace()))
}

pub(super) fn add(axis: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let to = args.write_shape(0);
    if to.numel() == 0 {
        return Ok(());
    }
    let (size, count) = (to[axis], args.read_shape(1).numel());
    let outer: usize = to[..axis].iter().product();
    let width: usize = to[axis + 1..].iter().product();
    let ids = args.read_dtype(1);
    let spec = |entry, dtype, accumulate, sorted| {
        Spec::new(&ADD, entry)
            .dtype("ID", ids)
            .dtype("ELEMENT", dtype)
            .flag("ADD", accumulate)
            .flag("SORTED", sorted)
    };
    let sort = sort(size, count)?;
    let add = spec("add", args.write_dtype(0), args.accumulate(0), sort.is_some());
    let faults = args.faults(Bounds::Axis);
    let (mut sorted_keys, mut entries) = (0, 0);
    if let Some(sort) = sort {
        let memory = args.workspace();
        let params = Params::new().pointer(args.read(1)).pointer(sort.keys(memory)).size(count).size(size);
        let params = params.words(&faults);
        args.kernel(spec("keys", DType::F32, false, true), units::grid(args, count), &params)?;
        let sorted = sort.run(args, memory)?;
        (sorted_keys, entries) = (sorted.keys, sorted.entries);
    }
    let params = Params::new()
        .pointer(args.read(0))
        .pointer(args.read(1))
        .pointer(sorted_keys)
        .pointer(entries)
        .pointer(args.write(0))
        .size(outer)
        .size(size)
        .size(count)
        .size(width)
        .words(&faults);
    let wanted = (args.multiprocessors() * 16).div_ceil(size);
    let columns = (outer * width).div_ceil(THREADS).min(wanted).clamp(1, MAX_Y);
    let grid = Grid { blocks: [size as u32, columns as u32, 1], ..Grid::line(size, THREADS as u32) };
    args.kernel(add, grid, &params)
}
