//! Linear layers on the CPU. In f16 or bf16, the operands of a product are rounded to that dtype and multiplied in
//! f32, pairs of bf16 by the instructions for them, if the processor has some.

use half::{bf16, f16};
use rayon::prelude::*;

use super::{Linear, rows};
use crate::device::HostArgs;
use crate::device::cpu::bf16_pairs::Bf16Pairs;
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::parallel;
use crate::device::cpu::widen::{Bf16Operand, Widened, narrow, output};
use crate::error::Result;
use crate::kernels::products::host::{
    self as gemm, Accumulate, BLOCK_M, Epilogue, Matrix, MatrixMut, Packed, Single, Terms,
};
use crate::tensor::DType;

/// Elements in f32 that stay in the L2 cache, beside a packed weight.
const PIECE: usize = 1 << 16;
/// Elements of the largest weight that is packed whole.
const LARGEST: usize = 1 << 18;
/// Sums of more terms may be split, in a way that depends on the number of rows (`reduction` splits those of about 1,000).
const LONGEST: usize = 1 << 9;

/// The rows to compute at a time, if operand 0 and the `results` results have the same dtype of 16 bits: their f32 numbers then stay
/// in cache. `None` if all rows together are better. The bits are the same, because a row of a product of several rows does not depend
/// on how many there are.
fn rows_at_a_time(args: &HostArgs<'_>, results: usize, [m, k, n]: [usize; 3]) -> Option<usize> {
    let count = (PIECE / (k + results * n).max(1) / BLOCK_M).max(1) * BLOCK_M;
    // A product divides its rows further than that.
    let too_few = parallel::threads() > 1 && m.div_ceil(count) < 2 * parallel::threads();
    let is_narrow = matches!(args.write_dtype(0), DType::F16 | DType::BF16);
    // A product of one column is one with a vector, which sums in another order.
    let suits = is_narrow && args.read_dtype(0) == args.write_dtype(0) && n > 1;
    (suits && m > count && k <= LONGEST && k * n <= LARGEST && !too_few).then_some(count)
}

/// Calls `body` with the first row and the results of `count` rows at a time, each with `n` elements, on all threads.
fn by_rows<T: Send>(
    y: &mut [T],
    z: Option<&mut [T]>,
    [count, n]: [usize; 2],
    body: impl Fn(usize, &mut [T], Option<&mut [T]>) + Sync,
) {
    let pieces = y.par_chunks_mut(count * n).enumerate();
    match z {
        None => parallel::for_each(true, pieces, |(i, y)| body(i * count, y, None)),
        Some(z) => parallel::for_each(true, pieces.zip(z.par_chunks_mut(count * n)), |((i, y), z)| {
            body(i * count, y, Some(z));
        }),
    }
}

/// The second factor of a product of 16 bits, packed.
enum Factor {
    Pairs(Bf16Pairs, Packed<f32>),
    Wide(Packed<f32>),
}

impl Factor {
    /// Operand 1, a weight, or its transpose, with a bias. Its rows meet the `m` rows of the first factor.
    fn of(args: &HostArgs<'_>, m: usize, is_transposed: bool, bias: Option<&[f32]>) -> Result<Factor> {
        fn oriented<'a, T>(w: &'a [T], args: &HostArgs<'_>, is_transposed: bool) -> Matrix<'a, T> {
            let shape = args.read_shape(1);
            let w = Matrix::row_major(w, shape[0], shape[1]);
            if is_transposed { w.t() } else { w }
        }
        let (shape, dtype) = (args.read_shape(1), args.read_dtype(0));
        Ok(match Bf16Pairs::for_product(dtype, m, shape[usize::from(is_transposed)]) {
            None => {
                let w = Widened::<f32>::rounded(args, 1, dtype)?;
                Factor::Wide(Packed::of(Single, oriented(w.get(), args, is_transposed).t(), bias))
            }
            Some(pairs) => {
                let w = Bf16Operand::of(args, 1)?;
                let w = pairs.elements(oriented(w.get(), args, is_transposed));
                Factor::Pairs(pairs, Packed::of(pairs, w.matrix().t(), bias))
            }
        })
    }

    /// `y = x f^T`, where `f` is this factor. A row of `x` has `k` elements.
    fn product<T: Stored>(
        &self,
        x: &[T],
        k: usize,
        y: &mut [f32],
        accumulate: Accumulate,
        epilogue: Epilogue<'_, f32>,
    ) {
        let (Factor::Pairs(_, w) | Factor::Wide(w)) = self;
        let m = y.len() / w.columns();
        let (x, y) = (Matrix::row_major(x, m, k), MatrixMut::row_major(y, m, w.columns()));
        match *self {
            Factor::Pairs(pairs, _) => w.product(pairs, pairs.elements(x).matrix(), y, accumulate, epilogue),
            Factor::Wide(_) => w.product(Single, Single.elements(x).matrix(), y, accumulate, epilogue),
        }
    }
}

pub(super) fn forward(op: &Linear, args: &HostArgs<'_>) -> Result<()> {
    let (m, k, n) = (rows(args.read_shape(0)), args.read_shape(1)[1], args.read_shape(1)[0]);
    let dtype = args.write_dtype(0);
    let residual_fits = !op.residual || args.read_dtype(2 + usize::from(op.bias)) == dtype;
    let results = 1 + usize::from(op.keep);
    match rows_at_a_time(args, results, [m, k, n]).filter(|_| residual_fits) {
        Some(count) if dtype == DType::BF16 => return forward_by_rows::<bf16>(op, args, [m, k, n], count),
        Some(count) => return forward_by_rows::<f16>(op, args, [m, k, n], count),
        None => {}
    }
    match dtype {
        DType::F64 => forward_in::<f64>(op, args, [m, k, n]),
        _ => match Bf16Pairs::for_product(dtype, m, n) {
            None => forward_in::<f32>(op, args, [m, k, n]),
            Some(pairs) => {
                let (x, w) = (Bf16Operand::of(args, 0)?, Bf16Operand::of(args, 1)?);
                let x = pairs.elements(Matrix::row_major(x.get(), m, k));
                let w = pairs.elements(Matrix::row_major(w.get(), n, k));
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

fn forward_by_rows<T: Stored>(
    op: &Linear,
    args: &HostArgs<'_>,
    [m, k, n]: [usize; 3],
    count: usize,
) -> Result<()> {
    let bias = if op.bias { Some(Widened::<f32>::operand(args, 2)?) } else { None };
    let w = Factor::of(args, m, false, bias.as_ref().map(Widened::get))?;
    let x = args.read::<T>(0)?;
    let residual = if op.residual { Some(args.read::<T>(2 + usize::from(op.bias))?) } else { None };
    let y = args.write::<T>(0)?;
    let z = if op.keep { Some(args.write::<T>(1)?) } else { None };
    by_rows(y, z, [count, n], |first, y, z| {
        let m = y.len() / n;
        let x = &x[first * k..][..m * k];
        let residual = residual.map(|r| Widened::<f32>::of(&r[first * n..][..m * n]));
        narrow(y, false, |y| {
            let mut run = |z: Option<&mut [f32]>| {
                let epilogue = epilogue(op, None, residual.as_ref(), z, [m, n]);
                w.product(x, k, y, Accumulate::Replace, epilogue);
            };
            match z {
                None => run(None),
                Some(z) => narrow(z, false, |z| run(Some(z))),
            }
        });
    });
    Ok(())
}

/// What follows the product, of `m` rows.
fn epilogue<'a, R: Real>(
    op: &Linear,
    bias: Option<&'a Widened<'_, R>>,
    residual: Option<&'a Widened<'_, R>>,
    z: Option<&'a mut [R]>,
    [m, n]: [usize; 2],
) -> Epilogue<'a, R> {
    Epilogue {
        bias: bias.map(|b| b.get()),
        pre_activation: z.map(|z| MatrixMut::row_major(z, m, n)),
        activation: op.activation,
        gradient: None,
        residual: residual.map(|r| Matrix::row_major(r.get(), m, n)),
    }
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
        let epilogue = epilogue(op, bias.as_ref(), residual.as_ref(), z, [m, n]);
        product(MatrixMut::row_major(y, m, n), epilogue);
    };
    match op.keep {
        false => output(args, 0, |y| run(y, None)),
        true => output(args, 0, |y| output(args, 1, |z| run(y, Some(z))))?,
    }
}

pub(super) fn input_gradient(args: &HostArgs<'_>) -> Result<()> {
    let (m, n, k) = (rows(args.read_shape(0)), args.read_shape(1)[0], args.read_shape(1)[1]);
    match rows_at_a_time(args, 1, [m, n, k]) {
        Some(count) if args.read_dtype(0) == DType::BF16 => {
            return input_gradient_by_rows::<bf16>(args, [m, n, k], count);
        }
        Some(count) => return input_gradient_by_rows::<f16>(args, [m, n, k], count),
        None => {}
    }
    match args.read_dtype(0) {
        DType::F64 => input_gradient_in::<f64>(args, [m, n, k]),
        dtype => match Bf16Pairs::for_product(dtype, m, k) {
            None => input_gradient_in::<f32>(args, [m, n, k]),
            Some(pairs) => {
                let (dy, w) = (Bf16Operand::of(args, 0)?, Bf16Operand::of(args, 1)?);
                let dy = pairs.elements(Matrix::row_major(dy.get(), m, n));
                let w = pairs.elements(Matrix::row_major(w.get(), n, k).t());
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

fn input_gradient_by_rows<T: Stored>(args: &HostArgs<'_>, [m, n, k]: [usize; 3], count: usize) -> Result<()> {
    let (dy, w) = (args.read::<T>(0)?, Factor::of(args, m, true, None)?);
    let (accumulates, mode) = (args.accumulate(0), Accumulate::of(args, 0));
    by_rows(args.write::<T>(0)?, None, [count, k], |first, dx, _| {
        let dy = &dy[first * n..][..dx.len() / k * n];
        narrow(dx, accumulates, |dx| w.product(dy, n, dx, mode, Epilogue::default()));
    });
    Ok(())
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
        DType::F64 => weight_gradient_of::<f64, f64>(bias, args, [m, n, k]),
        dtype => match Bf16Pairs::for_product(dtype, n, k) {
            None if args.read_dtype(1) != dtype => {
                let (dy, x) = (Widened::operand(args, 0)?, Widened::rounded(args, 1, dtype)?);
                weight_gradient_from::<f32, f32>(bias, args, [m, n, k], dy.get(), x.get())
            }
            None => with_float!(args, dtype, T, R => weight_gradient_of::<T, R>(bias, args, [m, n, k])),
            Some(pairs) => {
                let (dy, x) = (Bf16Operand::of(args, 0)?, Bf16Operand::of(args, 1)?);
                parameter_gradients(bias, args, [n, k], |dw, db, mode| {
                    let (dy, x) = (Matrix::row_major(dy.get(), m, n), Matrix::row_major(x.get(), m, k));
                    gemm::weight_gradient(pairs, dy, x, dw, db, mode);
                })
            }
        },
    }
}

fn weight_gradient_of<T: Stored, R: Real>(bias: bool, args: &HostArgs<'_>, sizes: [usize; 3]) -> Result<()> {
    weight_gradient_from::<T, R>(bias, args, sizes, args.read(0)?, args.read(1)?)
}

fn weight_gradient_from<T: Stored, R: Real>(
    bias: bool,
    args: &HostArgs<'_>,
    [m, n, k]: [usize; 3],
    dy: &[T],
    x: &[T],
) -> Result<()> {
    let (dy, x) = (Matrix::row_major(dy, m, n), Matrix::row_major(x, m, k));
    parameter_gradients::<R>(bias, args, [n, k], |dw, db, mode| {
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
