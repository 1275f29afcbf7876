//! Functions of two numbers on CUDA.

use super::Binary;
use crate::device::cuda::{CudaArgs, Source};
use crate::error::Result;
use crate::kernels::elementwise::cuda::{LOOP, arithmetic, run};
use crate::tensor::DType;

static SOURCE: Source = Source { name: "binary", parts: &[include_str!("kernel.cu"), LOOP] };

fn function(op: Binary) -> &'static str {
    match op {
        Binary::Add => "ADD_",
        Binary::Sub => "SUB",
        Binary::Mul => "MUL",
        Binary::Div => "DIV",
        Binary::Pow => "POW",
        Binary::Maximum => "MAXIMUM",
        Binary::Minimum => "MINIMUM",
        Binary::Eq => "EQ",
        Binary::Ne => "NE",
        Binary::Lt => "LT",
        Binary::Le => "LE",
        Binary::Gt => "GT",
        Binary::Ge => "GE",
        Binary::And => "AND",
        Binary::Or => "OR",
        Binary::Xor => "XOR",
    }
}

fn launch(
    op: Binary,
    form: &'static str,
    dtype: DType,
    scalars: &[f64],
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    run(args, &SOURCE, arithmetic(dtype), scalars, |spec| {
        spec.word("FUNCTION", function(op)).word("FORM", form)
    })
}

pub(super) fn forward(op: Binary, args: &mut CudaArgs<'_>) -> Result<()> {
    launch(op, "BOTH", args.read_dtype(0), &[], args)
}

pub(super) fn backward(op: Binary, by: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let form = if by == 0 { "LEFT_DERIVATIVE" } else { "RIGHT_DERIVATIVE" };
    launch(op, form, args.write_dtype(0), &[], args)
}

pub(super) fn with_scalar(op: Binary, scalar: f64, reverse: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let form = if reverse { "SCALAR_LEFT" } else { "SCALAR_RIGHT" };
    launch(op, form, args.read_dtype(0), &[scalar], args)
}
