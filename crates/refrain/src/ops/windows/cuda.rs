//! Windows on CUDA.

use crate::device::cuda::{Bounds, CudaArgs, Grid, KernelSpec, Pointer, Reporter, Source, params};
use crate::error::Result;
use crate::kernels::units;

static WINDOWS: Source = Source { name: "windows", parts: &[include_str!("kernel.cu")] };
static ADD: Source = Source { name: "add_windows", parts: &[include_str!("add.cu")] };

const THREADS: u32 = 256;
/// Elements of a tile, including the gaps that avoid bank conflicts.
const ROOM: usize = 4096;
/// The maximum number of channels of a tile, for a series with more channels.
const CHANNELS: usize = 32;
/// The maximum number of time steps of a tile.
const STEPS: usize = 256;
/// The minimum number of time steps that fill a memory line.
const LINE: usize = 32;
/// Time steps and channels per block of the backward pass.
const BACKWARD: [usize; 2] = [64, 4];

params! {
    struct WindowsArgs {
        x: Pointer = "const UNIT*",
        starts: Pointer = "const ID*",
        y: Pointer = "UNIT*",
        time: i64,
        channels: i64,
        length: i64,
        /// From a time step of x to the next, and from a channel to the next.
        step: i64,
        side: i64,
        /// Time steps and channels of a tile.
        tile_l: i64,
        tile_c: i64,
        missing: u64,
        faults: Reporter,
    }

    struct AddWindowsArgs {
        x: Pointer = "const ELEMENT*",
        starts: Pointer = "const ID*",
        y: Pointer = "ELEMENT*",
        time: i64,
        channels: i64,
        count: i64,
        length: i64,
        faults: Reporter,
    }
}

pub(super) fn forward(length: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let (series, dtype) = (args.read_layout(0), args.write_dtype(0));
    if args.write_shape(0).numel() == 0 {
        return Ok(());
    }
    let (time, channels) = (series.shape()[0], series.shape()[1]);
    let (step, side) = (series.strides()[0], series.strides()[1]);
    let count = args.read_shape(1).numel();
    let size = dtype.size();
    let skew = if size < 4 { 4 / size } else { 1 };
    let tile_c = channels.min(CHANNELS);
    let room = (ROOM / tile_c - skew).min(STEPS);
    // Whole lines, unless it is the whole length.
    let tile_l = if length <= room { length } else { room / LINE * LINE };
    let kernel_args = WindowsArgs {
        x: args.read(0),
        starts: args.read(1),
        y: args.write(0),
        time: time as i64,
        channels: channels as i64,
        length: length as i64,
        step: step as i64,
        side: side as i64,
        tile_l: tile_l as i64,
        tile_c: tile_c as i64,
        missing: units::missing(dtype),
        faults: args.faults(Bounds::Starts),
    };
    let spec = units::constants(KernelSpec::new(&WINDOWS, "windows"), size, 0)
        .dtype("ID", args.read_dtype(1))
        .int("UNIT_SIZE", size as i64)
        .flag("ALONG_TIME", step < side || channels == 1);
    let blocks = length.div_ceil(tile_l) * channels.div_ceil(tile_c) * count;
    args.kernel(spec, Grid::line(blocks, THREADS), &kernel_args)
}

pub(super) fn backward(time: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    if args.write_shape(0).numel() == 0 {
        return Ok(());
    }
    let x = args.read_shape(0);
    let (count, channels, length) = (x[0], x[1], x[2]);
    let spec = KernelSpec::new(&ADD, "add_windows")
        .dtype("ID", args.read_dtype(1))
        .dtype("ELEMENT", args.write_dtype(0))
        .flag("ADD", args.accumulate(0));
    let kernel_args = AddWindowsArgs {
        x: args.read(0),
        starts: args.read(1),
        y: args.write(0),
        time: time as i64,
        channels: channels as i64,
        count: count as i64,
        length: length as i64,
        faults: args.faults(Bounds::Starts),
    };
    let blocks = time.div_ceil(BACKWARD[0]) * channels.div_ceil(BACKWARD[1]);
    args.kernel(spec, Grid::line(blocks, THREADS), &kernel_args)
}
