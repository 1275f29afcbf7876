//! The recurrence on CUDA: one kernel runs through all time steps.

use super::CELL;
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::recurrent::Sizes;
use crate::kernels::recurrent::cuda::{Pass, plan, run, sources};

static FORWARD: [Source; 3] = sources!("lstm", "forward.cu", FORWARD);
static BACKWARD: [Source; 3] = sources!("lstm", "backward.cu", BACKWARD);

params! {
    struct LstmArgs {
        x: Pointer = "const IN*",
        w: Pointer = "const W*",
        b: Pointer = "const B*",
        first: Pointer = "const IN*",
        first_cell: Pointer = "const IN*",
        y: Pointer = "IN*",
        cells: Pointer = "IN*",
        gates: Pointer = "IN*",
        workspace: Pointer = "COMPUTE*",
        batch: i64,
        steps: i64,
    }

    struct LstmBackwardArgs {
        cells: Pointer = "const IN*",
        gates: Pointer = "const IN*",
        w: Pointer = "const W*",
        first_cell: Pointer = "const IN*",
        dy: Pointer = "const IN*",
        dcells: Pointer = "const IN*",
        dfirst: Pointer = "IN*",
        dfirst_cell: Pointer = "IN*",
        dx: Pointer = "IN*",
        workspace: Pointer = "COMPUTE*",
        batch: i64,
        steps: i64,
    }
}

pub(super) fn forward(keep: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let sizes = Sizes::of(args.write_shape(0));
    let (plan, workspace) = plan(Pass::Forward, CELL, sizes, args);
    let kernel_args = LstmArgs {
        x: args.read(0),
        w: args.read(1),
        b: args.read(2),
        first: args.read(3),
        first_cell: args.read(4),
        y: args.write(0),
        cells: args.write(1),
        gates: if keep { args.write(2) } else { Pointer::NOTHING },
        workspace,
        batch: sizes.batch as i64,
        steps: sizes.steps as i64,
    };
    let spec = KernelSpec::new(&FORWARD[plan.index()], "lstm_forward").dtype("B", args.read_dtype(2));
    run(plan, CELL, sizes, spec.flag("KEEP", keep), 1, &kernel_args, args)
}

/// `of_cells`: whether the cell states have a gradient of their own.
pub(super) fn backward(of_cells: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let sizes = Sizes::of(args.read_shape(0));
    let (plan, workspace) = plan(Pass::Backward, CELL, sizes, args);
    let kernel_args = LstmBackwardArgs {
        cells: args.read(0),
        gates: args.read(1),
        w: args.read(2),
        first_cell: args.read(3),
        dy: args.read(4),
        dcells: if of_cells { args.read(5) } else { Pointer::NOTHING },
        dfirst: args.write(0),
        dfirst_cell: args.write(1),
        dx: args.write(2),
        workspace,
        batch: sizes.batch as i64,
        steps: sizes.steps as i64,
    };
    let spec = KernelSpec::new(&BACKWARD[plan.index()], "lstm_backward").flag("OF_CELLS", of_cells);
    run(plan, CELL, sizes, spec, 2, &kernel_args, args)
}
