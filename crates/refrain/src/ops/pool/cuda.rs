//! Pooling on CUDA: a thread for each window, and in the backward pass for each element of the images.

use super::{Kind, Pool};
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::units;
use crate::kernels::window::Window;

const WINDOW: &str = include_str!("window.cu");

static POOL: Source = Source { name: "pool", parts: &[WINDOW, include_str!("kernel.cu")] };
static BACKWARD: Source = Source { name: "pool_backward", parts: &[WINDOW, include_str!("backward.cu")] };

params! {
    struct PoolArgs {
        x: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        places: Pointer = "i64*",
        n: i64,
        /// Of an image, and of the windows over it.
        size: [i64; 2],
        count: [i64; 2],
    }

    struct PoolBackwardArgs {
        d: Pointer = "const ELEMENT*",
        places: Pointer = "const i64*",
        y: Pointer = "ELEMENT*",
        n: i64,
        /// Of an image, and of the windows over it.
        size: [i64; 2],
        count: [i64; 2],
    }
}

/// Places below this, and sums of two of them, fit in 32 bits.
const NEAR: usize = 1 << 30;

/// The sizes of an image, and of the windows over it.
fn sizes(pool: &Pool) -> [[i64; 2]; 2] {
    let [.., height, width] = pool.images;
    [[height, width], pool.count].map(|sizes| sizes.map(|n| n as i64))
}

/// Windows are constants: their loops are written out, and divisions by a stride are products.
fn constants(spec: KernelSpec, pool: &Pool, args: &CudaArgs<'_>) -> KernelSpec {
    let Window { kernel, stride, padding, .. } = pool.window;
    // Without padding, all windows are whole.
    let kind = match pool.kind {
        Kind::Max => "MAX",
        Kind::Mean { all } if all || padding == [0, 0] => "MEAN_OF_ALL",
        Kind::Mean { .. } => "MEAN",
    };
    let n: usize = pool.images.iter().product::<usize>().max(args.write_shape(0).numel());
    let is_near = [kernel, stride, padding].iter().flatten().chain(&[n]).all(|&n| n < NEAR);
    let spec = spec.word("KIND", kind).dtype("ELEMENT", args.write_dtype(0));
    let spec = spec.word("INDEX", units::index_type(n)).word("PLACE", if is_near { "int" } else { "i64" });
    let each = [
        ("KERNEL_0", kernel[0]),
        ("KERNEL_1", kernel[1]),
        ("STRIDE_0", stride[0]),
        ("STRIDE_1", stride[1]),
        ("PADDING_0", padding[0]),
        ("PADDING_1", padding[1]),
    ];
    each.into_iter().fold(spec, |spec, (name, n)| spec.int(name, n as i64))
}

pub(super) fn forward(pool: &Pool, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    if n == 0 {
        return Ok(());
    }
    let [size, count] = sizes(pool);
    let kernel_args = PoolArgs {
        x: args.read(0),
        y: args.write(0),
        places: if pool.kind == Kind::Max { args.write(1) } else { Pointer::NOTHING },
        n: n as i64,
        size,
        count,
    };
    let spec = constants(KernelSpec::new(&POOL, "pool"), pool, args);
    args.kernel(spec, units::grid(args, n), &kernel_args)
}

pub(super) fn backward(pool: &Pool, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    if n == 0 {
        return Ok(());
    }
    let [size, count] = sizes(pool);
    let kernel_args = PoolBackwardArgs {
        d: args.read(0),
        places: if pool.kind == Kind::Max { args.read(1) } else { Pointer::NOTHING },
        y: args.write(0),
        n: n as i64,
        size,
        count,
    };
    let spec = constants(KernelSpec::new(&BACKWARD, "pool_backward"), pool, args);
    args.kernel(spec.flag("ADD", args.accumulate(0)), units::grid(args, n), &kernel_args)
}
