//! Linear layers on the CPU. In f16 or bf16, the operands of a product are rounded to that dtype and multiplied in
//! f32, pairs of bf16 by the instruction for them, if the processor has it.

use super::{Linear, rows};
use crate::device::HostArgs;
use crate::device::cpu::bf16_pairs::Bf16Pairs;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::widen::{Bf16Operand, Widened, output};
use crate::error::Result;
use crate::kernels::products::host::{self as gemm, Accumulate, Epilogue, Matrix, MatrixMut, Paired, Single};
use crate::tensor::DType;

pub(super) fn forward(op: &Linear, args: &HostArgs<'_>) -> Result<()> {
    let (m, k, n) = (rows(args.read_shape(0)), args.read_shape(1)[1], args.read_shape(1)[0]);
    let dtype = args.write_dtype(0);
    match dtype {
        DType::F64 => forward_in::<f64>(op, args, [m, k, n]),
        _ => match Bf16Pairs::for_product(dtype, m, n) {
            None => forward_in::<f32>(op, args, [m, k, n]),
            Some(pairs) => {
                let (x, w) = (Bf16Operand::of(args, 0)?, Bf16Operand::of(args, 1)?);
                let x = Paired::of(Matrix::row_major(x.get(), m, k));
                let w = Paired::of(Matrix::row_major(w.get(), n, k));
                finish(op, args, [m, n], |y, epilogue| {
                    gemm::gemm(pairs, x.matrix(), w.matrix().t(), y, Accumulate::Replace, epilogue);
                })
            }
        },
    }
}

fn forward_in<R: Real>(op: &Linear, args: &HostArgs<'_>, [m, k, n]: [usize; 3]) -> Result<()> {
    let dtype = args.write_dtype(0);
    let (x, w) = (Widened::<R>::rounded(args, 0, dtype)?, Widened::<R>::rounded(args, 1, dtype)?);
    let (x, w) = (Matrix::row_major(x.get(), m, k), Matrix::row_major(w.get(), n, k));
    finish(op, args, [m, n], |y, epilogue| {
        gemm::gemm(Single, x, w.t(), y, Accumulate::Replace, epilogue);
    })
}

/// Lets `product` compute the result with what follows the product.
fn finish<R: Real>(
    op: &Linear,
    args: &HostArgs<'_>,
    [m, n]: [usize; 2],
    product: impl FnOnce(MatrixMut<'_, R>, Epilogue<'_, R>),
) -> Result<()> {
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
        product(MatrixMut::row_major(y, m, n), epilogue);
    };
    match op.keep {
        false => output(args, 0, |y| run(y, None)),
        true => output(args, 0, |y| output(args, 1, |z| run(y, Some(z))))?,
    }
}

pub(super) fn input_gradient(args: &HostArgs<'_>) -> Result<()> {
    let (m, n, k) = (rows(args.read_shape(0)), args.read_shape(1)[0], args.read_shape(1)[1]);
    match args.read_dtype(0) {
        DType::F64 => input_gradient_in::<f64>(args, [m, n, k]),
        dtype => match Bf16Pairs::for_product(dtype, m, k) {
            None => input_gradient_in::<f32>(args, [m, n, k]),
            Some(pairs) => {
                let (dy, w) = (Bf16Operand::of(args, 0)?, Bf16Operand::of(args, 1)?);
                let dy = Paired::of(Matrix::row_major(dy.get(), m, n));
                let w = Paired::of(Matrix::row_major(w.get(), n, k).t());
                output(args, 0, |dx| {
                    let dx = MatrixMut::row_major(dx, m, k);
                    gemm::gemm(
                        pairs,
                        dy.matrix(),
                        w.matrix().t(),
                        dx,
                        Accumulate::of(args, 0),
                        Epilogue::default(),
                    );
                })
            }
        },
    }
}

fn input_gradient_in<R: Real>(args: &HostArgs<'_>, [m, n, k]: [usize; 3]) -> Result<()> {
    let dy = Widened::<R>::operand(args, 0)?;
    let w = Widened::<R>::rounded(args, 1, args.read_dtype(0))?;
    let (dy, w) = (Matrix::row_major(dy.get(), m, n), Matrix::row_major(w.get(), n, k));
    output(args, 0, |dx| {
        gemm::gemm(
            Single,
            dy,
            w,
            MatrixMut::row_major(dx, m, k),
            Accumulate::of(args, 0),
            Epilogue::default(),
        );
    })
}

pub(super) fn weight_gradient(bias: bool, args: &HostArgs<'_>) -> Result<()> {
    let (n, k) = (args.write_shape(0)[0], args.write_shape(0)[1]);
    let m = rows(args.read_shape(0));
    match args.read_dtype(0) {
        DType::F64 => weight_gradient_in::<f64>(bias, args, [m, n, k]),
        dtype => match Bf16Pairs::for_product(dtype, n, k) {
            None => weight_gradient_in::<f32>(bias, args, [m, n, k]),
            Some(pairs) => {
                let (dy, x) = (Bf16Operand::of(args, 0)?, Bf16Operand::of(args, 1)?);
                let dy = Paired::of(Matrix::row_major(dy.get(), m, n).t());
                let x = Paired::of(Matrix::row_major(x.get(), m, k).t());
                parameter_gradients(bias, args, [n, k], |dw, db, mode| {
                    gemm::weight_gradient(pairs, dy.matrix().t(), x.matrix().t(), dw, db, mode);
                })
            }
        },
    }
}

fn weight_gradient_in<R: Real>(bias: bool, args: &HostArgs<'_>, [m, n, k]: [usize; 3]) -> Result<()> {
    let dy = Widened::<R>::operand(args, 0)?;
    let x = Widened::<R>::rounded(args, 1, args.read_dtype(0))?;
    let (dy, x) = (Matrix::row_major(dy.get(), m, n), Matrix::row_major(x.get(), m, k));
    parameter_gradients(bias, args, [n, k], |dw, db, mode| {
        gemm::weight_gradient(Single, dy, x, dw, db, mode);
    })
}

/// Lets `product` compute the gradients of the weight and, if there is one, the bias.
fn parameter_gradients<R: Real>(
    bias: bool,
    args: &HostArgs<'_>,
    [n, k]: [usize; 2],
    product: impl FnOnce(MatrixMut<'_, R>, Option<&mut [R]>, Accumulate),
) -> Result<()> {
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
                product(dw, None, mode);
                Ok(())
            }
            true => output(args, 1, |db| {
                from_zero(db, 1);
                product(dw, Some(db), mode);
            }),
        }
    })?
}
