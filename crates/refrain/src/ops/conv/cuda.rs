//! Windows of images as rows of a matrix, and back, on CUDA.

use super::patches::Places;
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::units;
use crate::kernels::window::{WINDOW, WindowsAt};

static PATCHES: Source = Source { name: "patches", parts: &[WINDOW, include_str!("patches.cu")] };
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
