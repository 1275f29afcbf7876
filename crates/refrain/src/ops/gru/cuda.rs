//! The recurrence on CUDA: one kernel runs through all time steps.

use super::CELL;
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::recurrent::Sizes;
use crate::kernels::recurrent::cuda::{Pass, plan, run, sources};

static FORWARD: [Source; 3] = sources!("gru", "forward.cu", FORWARD);
static BACKWARD: [Source; 3] = sources!("gru", "backward.cu", BACKWARD);

params! {
    struct GruArgs {
        x: Pointer = "const IN*",
        w: Pointer = "const W*",
        b: Pointer = "const B*",
        first: Pointer = "const IN*",
        y: Pointer = "IN*",
        gates: Pointer = "IN*",
        workspace: Pointer = "COMPUTE*",
        batch: i64,
        steps: i64,
    }

    struct GruBackwardArgs {
        y: Pointer = "const IN*",
        gates: Pointer = "const IN*",
        w: Pointer = "const W*",
        first: Pointer = "const IN*",
        dy: Pointer = "const IN*",
        dx: Pointer = "IN*",
        dfirst: Pointer = "IN*",
        dh: Pointer = "IN*",
        workspace: Pointer = "COMPUTE*",
        batch: i64,
        steps: i64,
    }
}

pub(super) fn forward(keep: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let sizes = Sizes::of(args.write_shape(0));
    let (plan, workspace) = plan(Pass::Forward, CELL, sizes, args);
    let kernel_args = GruArgs {
        x: args.read(0),
        w: args.read(1),
        b: args.read(2),
        first: args.read(3),
        y: args.write(0),
        gates: if keep { args.write(1) } else { Pointer::NOTHING },
        workspace,
        batch: sizes.batch as i64,
        steps: sizes.steps as i64,
    };
    let spec = KernelSpec::new(&FORWARD[plan.index()], "gru_forward").dtype("B", args.read_dtype(2));
    run(plan, CELL, sizes, spec.flag("KEEP", keep), 1, &kernel_args, args)
}

pub(super) fn backward(args: &mut CudaArgs<'_>) -> Result<()> {
    let sizes = Sizes::of(args.read_shape(0));
    let (plan, workspace) = plan(Pass::Backward, CELL, sizes, args);
    let kernel_args = GruBackwardArgs {
        y: args.read(0),
        gates: args.read(1),
        w: args.read(2),
        first: args.read(3),
        dy: args.read(4),
        dx: args.write(0),
        dfirst: args.write(1),
        dh: args.write(2),
        workspace,
        batch: sizes.batch as i64,
        steps: sizes.steps as i64,
    };
    let spec = KernelSpec::new(&BACKWARD[plan.index()], "gru_backward");
    run(plan, CELL, sizes, spec, 2, &kernel_args, args)
}
