//! Pooling on CUDA: a thread for each window, and in the backward pass for each element of the images.

use super::{Kind, Pool};
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::units;
use crate::kernels::window::{WINDOW, WindowsAt};

static POOL: Source = Source { name: "pool", parts: &[WINDOW, include_str!("kernel.cu")] };
static BACKWARD: Source = Source { name: "pool_backward", parts: &[WINDOW, include_str!("backward.cu")] };

params! {
    struct PoolArgs {
        x: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        places: Pointer = "i64*",
        n: i64,
        windows: WindowsAt,
    }

    struct PoolBackwardArgs {
        d: Pointer = "const ELEMENT*",
        places: Pointer = "const i64*",
        y: Pointer = "ELEMENT*",
        n: i64,
        windows: WindowsAt,
    }
}

fn windows(pool: &Pool) -> WindowsAt {
    let [.., height, width] = pool.images;
    WindowsAt::new(&pool.window, [height, width], pool.count)
}

fn constants(spec: KernelSpec, pool: &Pool, args: &CudaArgs<'_>) -> KernelSpec {
    let kind = match pool.kind {
        Kind::Max => "MAX",
        Kind::Mean { all: true } => "MEAN_OF_ALL",
        Kind::Mean { all: false } => "MEAN",
    };
    let n: usize = pool.images.iter().product::<usize>().max(args.write_shape(0).numel());
    spec.word("KIND", kind).dtype("ELEMENT", args.write_dtype(0)).word("INDEX", units::index_type(n))
}

pub(super) fn forward(pool: &Pool, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    if n == 0 {
        return Ok(());
    }
    let kernel_args = PoolArgs {
        x: args.read(0),
        y: args.write(0),
        places: if pool.kind == Kind::Max { args.write(1) } else { Pointer::NOTHING },
        n: n as i64,
        windows: windows(pool),
    };
    let spec = constants(KernelSpec::new(&POOL, "pool"), pool, args);
    args.kernel(spec, units::grid(args, n), &kernel_args)
}

pub(super) fn backward(pool: &Pool, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    if n == 0 {
        return Ok(());
    }
    let kernel_args = PoolBackwardArgs {
        d: args.read(0),
        places: if pool.kind == Kind::Max { args.read(1) } else { Pointer::NOTHING },
        y: args.write(0),
        n: n as i64,
        windows: windows(pool),
    };
    let spec = constants(KernelSpec::new(&BACKWARD, "pool_backward"), pool, args);
    args.kernel(spec.flag("ADD", args.accumulate(0)), units::grid(args, n), &kernel_args)
}
