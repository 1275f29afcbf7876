//! Linear layers on the CPU. In f16 or bf16, the operands of a product are rounded to that dtype and multiplied in
//! f32.

use super::{Linear, rows};
use crate::device::HostArgs;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::widen::{Widened, output};
use crate::error::Result;
use crate::kernels::products::host::{self as gemm, Accumulate, Epilogue, Matrix, MatrixMut};
use crate::tensor::DType;

pub(super) fn forward(op: &Linear, args: &HostArgs<'_>) -> Result<()> {
    match args.write_dtype(0) {
        DType::F64 => forward_in::<f64>(op, args),
        _ => forward_in::<f32>(op, args),
    }
}

fn forward_in<R: Real>(op: &Linear, args: &HostArgs<'_>) -> Result<()> {
    let (m, k, n) = (rows(args.read_shape(0)), args.read_shape(1)[1], args.read_shape(1)[0]);
    let dtype = args.write_dtype(0);
    let (x, w) = (Widened::<R>::rounded(args, 0, dtype)?, Widened::<R>::rounded(args, 1, dtype)?);
    let mut next = 2;
    let mut optional = |there: bool| -> Result<Option<Widened<'_, R>>> {
        if !there {
            return Ok(None);
        }
        next += 1;
        Ok(Some(Widened::operand(args, next - 1)?))
    };
    let (bias, residual) = (optional(op.bias)?, optional(op.residual)?);
    let run = |y: &mut [R], z: Option<&mut [R]>| {
        let epilogue = Epilogue {
            bias: bias.as_ref().map(|b| b.get()),
            pre_activation: z.map(|z| MatrixMut::row_major(z, m, n)),
            activation: op.activation,
            gradient: None,
            residual: residual.as_ref().map(|r| Matrix::row_major(r.get(), m, n)),
        };
        let (x, w) = (Matrix::row_major(x.get(), m, k), Matrix::row_major(w.get(), n, k));
        gemm::gemm(x, w.t(), MatrixMut::row_major(y, m, n), Accumulate::Replace, epilogue);
    };
    match op.keep {
        false => output(args, 0, |y| run(y, None)),
        true => output(args, 0, |y| output(args, 1, |z| run(y, Some(z))))?,
    }
}

pub(super) fn input_gradient(args: &HostArgs<'_>) -> Result<()> {
    match args.read_dtype(0) {
        DType::F64 => input_gradient_in::<f64>(args),
        _ => input_gradient_in::<f32>(args),
    }
}

fn input_gradient_in<R: Real>(args: &HostArgs<'_>) -> Result<()> {
    let (m, n, k) = (rows(args.read_shape(0)), args.read_shape(1)[0], args.read_shape(1)[1]);
    let dy = Widened::<R>::operand(args, 0)?;
    let w = Widened::<R>::rounded(args, 1, args.read_dtype(0))?;
    let (dy, w) = (Matrix::row_major(dy.get(), m, n), Matrix::row_major(w.get(), n, k));
    output(args, 0, |dx| {
        gemm::gemm(dy, w, MatrixMut::row_major(dx, m, k), Accumulate::of(args, 0), Epilogue::default());
    })
}

pub(super) fn weight_gradient(bias: bool, args: &HostArgs<'_>) -> Result<()> {
    match args.read_dtype(0) {
        DType::F64 => weight_gradient_in::<f64>(bias, args),
        _ => weight_gradient_in::<f32>(bias, args),
    }
}

fn weight_gradient_in<R: Real>(bias: bool, args: &HostArgs<'_>) -> Result<()> {
    let (n, k) = (args.write_shape(0)[0], args.write_shape(0)[1]);
    let m = rows(args.read_shape(0));
    let dy = Widened::<R>::operand(args, 0)?;
    let x = Widened::<R>::rounded(args, 1, args.read_dtype(0))?;
    let (dy, x) = (Matrix::row_major(dy.get(), m, n), Matrix::row_major(x.get(), m, k));
    // If one result is added and the other replaced, the replaced one starts at zero.
    let add = args.accumulate(0) || (bias && args.accumulate(1));
    let mode = if add { Accumulate::Add } else { Accumulate::Replace };
    let from_zero = |to: &mut [R], o: usize| {
        if add && !args.accumulate(o) {
            to.fill(R::ZERO);
        }
    };
    output(args, 0, |dw| {
        from_zero(dw, 0);
        let dw = MatrixMut::row_major(dw, n, k);
        match bias {
            false => {
                gemm::weight_gradient(dy, x, dw, None, mode);
                Ok(())
            }
            true => output(args, 1, |db| {
                from_zero(db, 1);
                gemm::weight_gradient(dy, x, dw, Some(db), mode);
            }),
        }
    })?
}
