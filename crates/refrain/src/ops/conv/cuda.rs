//! Windows of images as rows of a matrix, and back, on CUDA.

use super::patches::Places;
use super::rows::WindowRows;
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, params};
use crate::error::{Error, Result};
use crate::kernels::units;
use crate::kernels::window::{WINDOW, WindowsAt};

static PATCHES: Source = Source { name: "patches", parts: &[WINDOW, include_str!("patches.cu")] };
static ROWS: Source = Source { name: "window_rows", parts: &[include_str!("window_rows.cu")] };
static ADD: Source = Source { name: "add_patches", parts: &[WINDOW, include_str!("add_patches.cu")] };

params! {
    struct PatchesArgs {
        x: Pointer = "const UNIT*",
        y: Pointer = "UNIT*",
        n: i64,
        channels: i64,
        windows: WindowsAt,
        /// Of the images: from one to the next, and along the axes of one.
        strides: [i64; 4],
    }

    struct WindowRowsArgs {
        x: Pointer = "const UNIT*",
        y: Pointer = "UNIT*",
        /// Rows of windows: of all images, and of one.
        rows: i64,
        count: i64,
        /// Columns of the result, and those behind the last image.
        width: i64,
        tail: i64,
        channels: i64,
        height: i64,
        columns: i64,
        /// Of the windows along the height, and the padding of both axes.
        kernel: i64,
        stride: i64,
        dilation: i64,
        above: i64,
        left: i64,
        tiles_w: i64,
        tiles_c: i64,
        /// Of the images.
        strides: [i64; 4],
    }

    struct AddPatchesArgs {
        x: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        n: i64,
        channels: i64,
        windows: WindowsAt,
    }
}

fn windows(places: &Places) -> WindowsAt {
    let [.., height, width] = places.images;
    WindowsAt::new(&places.window, [height, width], places.count)
}

pub(super) fn patches(places: &Places, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let mut strides = [0; 4];
    strides.iter_mut().zip(args.read_layout(0).strides()).for_each(|(to, &stride)| *to = stride as i64);
    let kernel_args = PatchesArgs {
        x: args.read(0),
        y: args.write(0),
        n: n as i64,
        channels: places.images[1] as i64,
        windows: windows(places),
        strides,
    };
    let spec = units::constants(KernelSpec::new(&PATCHES, "patches"), dtype.size(), n);
    args.kernel(spec, units::grid(args, n), &kernel_args)
}

pub(super) fn window_rows(op: &WindowRows, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let mut strides = [0; 4];
    strides.iter_mut().zip(args.read_layout(0).strides()).for_each(|(to, &stride)| *to = stride as i64);
    let WindowRows { window, images: [images, channels, height, _], rows, width, tail, .. } = *op;
    let [tiles_w, tiles_c] = [width, channels].map(|size| size.div_ceil(32));
    let kernel_args = WindowRowsArgs {
        x: args.read(0),
        y: args.write(0),
        rows: (images * rows) as i64,
        count: rows as i64,
        width: width as i64,
        tail: tail as i64,
        channels: channels as i64,
        height: height as i64,
        columns: op.copied() as i64,
        kernel: window.kernel[0] as i64,
        stride: window.stride[0] as i64,
        dilation: window.dilation[0] as i64,
        above: window.padding[0] as i64,
        left: window.padding[1] as i64,
        tiles_w: tiles_w as i64,
        tiles_c: tiles_c as i64,
        strides,
    };
    let blocks = images * rows * tiles_w * tiles_c + 1;
    if blocks > i32::MAX as usize {
        return Err(Error::invalid(args.op(), "the images are too many for one launch; split the batch"));
    }
    let spec = units::constants(KernelSpec::new(&ROWS, "window_rows"), dtype.size(), n);
    let turned = strides[3].abs() <= strides[1].abs();
    args.kernel(spec.flag("TURNED", turned), Grid::line(blocks, 256), &kernel_args)
}

pub(super) fn add_patches(places: &Places, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let kernel_args = AddPatchesArgs {
        x: args.read(0),
        y: args.write(0),
        n: n as i64,
        channels: places.images[1] as i64,
        windows: windows(places),
    };
    let spec = KernelSpec::new(&ADD, "add_patches")
        .dtype("ELEMENT", dtype)
        .word("INDEX", units::index_type(n))
        .flag("ADD", args.accumulate(0));
    args.kernel(spec, units::grid(args, n), &kernel_args)
}
