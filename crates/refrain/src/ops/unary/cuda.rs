//! Functions of one number on CUDA.

use super::Unary;
use crate::device::cuda::{CudaArgs, Source};
use crate::error::Result;
use crate::kernels::activations::ACTIVATIONS;
use crate::kernels::elementwise::cuda::{LOOP, arithmetic, run};

static SOURCE: Source = Source { name: "unary", parts: &[ACTIVATIONS, include_str!("kernel.cu"), LOOP] };

fn function(op: Unary) -> &'static str {
    match op {
        Unary::Neg => "NEG",
        Unary::Abs => "ABS",
        Unary::Sign => "SIGN",
        Unary::Exp => "EXP",
        Unary::Log => "LOG",
        Unary::Sqrt => "SQRT",
        Unary::Rsqrt => "RSQRT",
        Unary::Reciprocal => "RECIPROCAL",
        Unary::Square => "SQUARE",
        Unary::Sin => "SIN",
        Unary::Cos => "COS",
        Unary::Tanh => "TANH",
        Unary::Sigmoid => "SIGMOID",
        Unary::Relu => "RELU",
        Unary::Gelu => "GELU",
        Unary::GeluTanh => "GELU_TANH",
        Unary::Silu => "SILU",
        Unary::Erf => "ERF",
        Unary::Floor => "FLOOR",
        Unary::Ceil => "CEIL",
        Unary::Round => "ROUND",
        Unary::Clamp { .. } => "CLAMP",
    }
}

fn launch(op: Unary, backward: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let bounds;
    let scalars: &[f64] = match op {
        Unary::Clamp { min, max } => {
            bounds = [min, max];
            &bounds
        }
        _ => &[],
    };
    let compute = arithmetic(args.write_dtype(0));
    run(args, &SOURCE, compute, scalars, |spec| {
        spec.word("FUNCTION", function(op)).flag("BACKWARD", backward)
    })
}

pub(super) fn forward(op: Unary, args: &mut CudaArgs<'_>) -> Result<()> {
    launch(op, false, args)
}

pub(super) fn backward(op: Unary, args: &mut CudaArgs<'_>) -> Result<()> {
    launch(op, true, args)
}
