//! `where_cond` on CUDA.

use crate::device::cuda::{CudaArgs, Source};
use crate::error::Result;
use crate::kernels::elementwise::cuda::{LOOP, run};

static SOURCE: Source = Source { name: "where_cond", parts: &[include_str!("kernel.cu"), LOOP] };

fn launch(form: &'static str, scalars: &[f64], args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = args.write_dtype(0).accumulator();
    run(args, &SOURCE, compute, scalars, |spec| spec.word("FORM", form))
}

pub(super) fn forward(args: &mut CudaArgs<'_>) -> Result<()> {
    launch("CHOICE", &[], args)
}

pub(super) fn backward(chosen: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    launch(if chosen { "CHOSEN" } else { "REFUSED" }, &[], args)
}

pub(super) fn masked_fill(value: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    launch("FILLED", &[value], args)
}
