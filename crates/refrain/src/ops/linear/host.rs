//! Linear layers on the CPU. Products of f16 and bf16 are computed in f32.

use super::{Linear, rows};
use crate::device::HostArgs;
use crate::device::cpu::gemm::{self, Accumulate, Epilogue, Matrix, MatrixMut};
use crate::device::cpu::numeric::{Number, with_float};
use crate::device::cpu::widen::{Widened, narrow};
use crate::error::Result;

pub(crate) fn mode(args: &HostArgs<'_>, o: usize) -> Accumulate {
    if args.accumulate(o) { Accumulate::Add } else { Accumulate::Replace }
}

pub(super) fn forward(op: &Linear, args: &HostArgs<'_>) -> Result<()> {
    let (m, k, n) = (rows(args.read_shape(0)), args.read_shape(1)[1], args.read_shape(1)[0]);
    with_float!(args, args.read_dtype(0), T, R => {
        let (x, w) = (Widened::<R>::of::<T>(args.read(0)?), Widened::<R>::of::<T>(args.read(1)?));
        let mut next = 2;
        let mut optional = |there: bool| -> Result<Option<Widened<'_, R>>> {
            if !there {
                return Ok(None);
            }
            next += 1;
            Ok(Some(Widened::of::<T>(args.read(next - 1)?)))
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
        let y = args.write::<T>(0)?;
        let z = if op.keep { Some(args.write::<T>(1)?) } else { None };
        narrow(y, false, |y| match z {
            None => run(y, None),
            Some(z) => narrow(z, false, |z| run(y, Some(z))),
        });
        Ok(())
    })
}

pub(super) fn input_gradient(args: &HostArgs<'_>) -> Result<()> {
    let (m, n, k) = (rows(args.read_shape(0)), args.read_shape(1)[0], args.read_shape(1)[1]);
    with_float!(args, args.read_dtype(0), T, R => {
        let (dy, w) = (Widened::<R>::of::<T>(args.read(0)?), Widened::<R>::of::<T>(args.read(1)?));
        let (dy, w) = (Matrix::row_major(dy.get(), m, n), Matrix::row_major(w.get(), n, k));
        narrow(args.write::<T>(0)?, args.accumulate(0), |dx| {
            gemm::gemm(dy, w, MatrixMut::row_major(dx, m, k), mode(args, 0), Epilogue::default());
        });
        Ok(())
    })
}

pub(super) fn weight_gradient(bias: bool, args: &HostArgs<'_>) -> Result<()> {
    let (n, k) = (args.write_shape(0)[0], args.write_shape(0)[1]);
    let m = rows(args.read_shape(0));
    with_float!(args, args.read_dtype(0), T, R => {
        let (dy, x) = (Widened::<R>::of::<T>(args.read(0)?), Widened::<R>::of::<T>(args.read(1)?));
        let (dy, x) = (Matrix::row_major(dy.get(), m, n), Matrix::row_major(x.get(), m, k));
        let db = if bias { Some(args.write::<T>(1)?) } else { None };
        // Where one is added and the other replaced, what is replaced starts from zero.
        let add = args.accumulate(0) || (bias && args.accumulate(1));
        let mode = if add { Accumulate::Add } else { Accumulate::Replace };
        narrow(args.write::<T>(0)?, args.accumulate(0), |dw| {
            if add && !args.accumulate(0) {
                dw.fill(R::ZERO);
            }
            let dw = MatrixMut::row_major(dw, n, k);
            match db {
                None => gemm::weight_gradient(dy, x, dw, None, mode),
                Some(db) => narrow(db, args.accumulate(1), |db| {
                    if add && !args.accumulate(1) {
                        db.fill(R::ZERO);
                    }
                    gemm::weight_gradient(dy, x, dw, Some(db), mode);
                }),
            }
        });
        Ok(())
    })
}
