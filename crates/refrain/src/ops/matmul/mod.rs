//! Batched matrix products.

use rayon::prelude::*;

use super::{Needs, Op, Spec, Specs, apply, apply_into, apply_into_on, apply_on};
use crate::autograd::{Gradients, Saves};
use crate::device::cpu::bf16_pairs::Bf16Pairs;
use crate::device::cpu::numeric::{Real, Stored};
use crate::device::cpu::parallel;
use crate::device::cpu::widen::{Bf16Operand, Widened, output};
use crate::device::cuda::{Gpu, Product, View};
use crate::device::{CudaArgs, DeviceKind, HostArgs, Launch, Mode};
use crate::error::{Error, Result};
use crate::kernels::positions::unravel;
use crate::kernels::products;
use crate::kernels::products::host::{self as gemm, Accumulate, Epilogue, Matrix, MatrixMut, Single, Terms};
use crate::ops::copy::Copy;
use crate::precision::{LEAST_WORK_ROUNDED, precision, rounded_operand};
use crate::tensor::{DType, Dims, Layout, Shape, Tensor};
use crate::types::Precision;

/// `[.., m, k] x [.., k, n] -> [.., m, n]`, with any strides.
#[derive(Clone, Copy, Debug)]
struct Matmul {
    precision: Precision,
    /// Dtype of the result: the dtype of the product, or in the backward pass that of the operand.
    dtype: DType,
}

impl Matmul {
    /// With the precision of this thread.
    fn new(a: &Tensor) -> Matmul {
        let precision = precision();
        Matmul { precision, dtype: precision.result(a.dtype()) }
    }

    /// The factors of a large product on a GPU in bf16, if the precision asks for it and one is f32: the library takes no factors of two
    /// dtypes. They have the batch of the result, as `a` has, which is the first of `factors` in it. `None` if they are not rounded.
    fn rounded(&self, factors: [&Tensor; 2], a: &Tensor) -> Result<Option<(Tensor, Tensor)>> {
        let is_bf16 = |t: &&Tensor| self.precision.result(t.dtype()) == DType::BF16;
        let rounds = factors.iter().all(is_bf16) && factors.iter().any(|t| t.dtype() == DType::F32);
        let columns = factors[1].dims().last().copied().unwrap_or(0);
        let is_large = a.numel().saturating_mul(columns) >= LEAST_WORK_ROUNDED;
        if !rounds || !is_large || a.device().kind() == DeviceKind::Cpu {
            return Ok(None);
        }
        let round = |t: &Tensor| if t.dtype() == DType::F32 { rounded_operand(t) } else { Ok(t.clone()) };
        prepare(&round(factors[0])?, &round(factors[1])?).map(Some)
    }

    fn product(&self, launch: &Launch<'_>) -> Product {
        let (a, b, c) = (View::read(launch, 0), View::read(launch, 1), View::write(launch, 0));
        let add = launch.writes[0].1 == Mode::Accumulate;
        Product { add, ..Product::batched(self.precision, &a, &b, &c) }
    }
}

/// The index of the first element of matrix `i` of a batch.
fn matrix_offset(layout: &Layout, i: usize) -> usize {
    let at = unravel(i, &layout.shape()[..layout.rank() - 2]);
    at.iter().zip(layout.strides()).map(|(i, stride)| i * stride).sum()
}

fn matrix<'a, R>(data: &'a [R], layout: &Layout) -> Matrix<'a, R> {
    let (r, shape, strides) = (layout.rank(), layout.shape(), layout.strides());
    Matrix {
        data,
        rows: shape[r - 2],
        cols: shape[r - 1],
        row_stride: strides[r - 2],
        col_stride: strides[r - 1],
    }
}

fn run<R: Real>(dtype: DType, args: &HostArgs<'_>) -> Result<()> {
    let [_, columns] = result_sizes(args);
    if columns == 1 && args.read_shape(0).numel() > 0 && args.read_layout(0).is_inner_contiguous() {
        match dtype {
            DType::F16 if args.read_dtype(0) == dtype => return run_vector::<half::f16, R>(dtype, args),
            DType::BF16 if args.read_dtype(0) == dtype => return run_vector::<half::bf16, R>(dtype, args),
            _ => {}
        }
    }
    let (a, b) = (Widened::<R>::rounded(args, 0, dtype)?, Widened::<R>::rounded(args, 1, dtype)?);
    let (mode, epilogue) = (Accumulate::of(args, 0), Epilogue::default);
    batched(args, (a.get(), b.get()), |a, b, c| gemm::gemm(Single, a, b, c, mode, epilogue()))
}

/// A matrix of numbers of 16 bits times a vector, without a copy of the matrix.
fn run_vector<T: Stored, R: Real>(dtype: DType, args: &HostArgs<'_>) -> Result<()> {
    let (a, b, mode) = (args.read::<T>(0)?, Widened::<R>::rounded(args, 1, dtype)?, Accumulate::of(args, 0));
    batched(args, (a, b.get()), |a, b, c| gemm::vector_product(a, b.t(), c, mode))
}

fn run_pairs(pairs: Bf16Pairs, args: &HostArgs<'_>) -> Result<()> {
    let (a, b) = (Bf16Operand::of(args, 0)?, Bf16Operand::of(args, 1)?);
    let (mode, epilogue) = (Accumulate::of(args, 0), Epilogue::default);
    batched(args, (a.get(), b.get()), |a, b, c| {
        let (a, b) = (pairs.elements(a), pairs.elements(b.t()));
        gemm::gemm(pairs, a.matrix(), b.matrix().t(), c, mode, epilogue());
    })
}

/// Calls `product` for each product of a batch, with its factors of `a` and `b`.
fn batched<A: Sync, B: Sync, R: Real>(
    args: &HostArgs<'_>,
    (a, b): (&[A], &[B]),
    product: impl Fn(Matrix<'_, A>, Matrix<'_, B>, MatrixMut<'_, R>) + Sync,
) -> Result<()> {
    let (la, lb) = (args.read_layout(0), args.read_layout(1));
    let [m, n] = result_sizes(args);
    output(args, 0, |c| {
        if m * n == 0 {
            return;
        }
        let body = |(i, c): (usize, &mut [R])| {
            // An operand of an empty sum has no first element.
            let a = matrix(&a[matrix_offset(la, i).min(a.len())..], la);
            let b = matrix(&b[matrix_offset(lb, i).min(b.len())..], lb);
            product(a, b, MatrixMut::row_major(c, m, n));
        };
        parallel::for_each(true, c.par_chunks_mut(m * n).enumerate(), body);
    })
}

/// Rows and columns of the result.
fn result_sizes(args: &HostArgs<'_>) -> [usize; 2] {
    let shape = args.write_shape(0);
    [shape[shape.len() - 2], shape[shape.len() - 1]]
}

impl Op for Matmul {
    const NAME: &'static str = "matmul";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let (a, b) = (x[0], x[1]);
        a.require_float(Self::NAME)?;
        if self.precision.result(a.dtype()) != self.precision.result(b.dtype()) {
            return Err(Error::dtypes(Self::NAME, a.dtype(), b.dtype()));
        }
        let r = a.rank();
        let fits = r >= 2 && r == b.rank() && a.dims()[r - 1] == b.dims()[r - 2];
        if !fits || a.dims()[..r - 2] != b.dims()[..r - 2] {
            return Err(Error::shapes(Self::NAME, a.shape(), b.shape(), "need [.., m, k] and [.., k, n]"));
        }
        let mut shape: Dims = a.dims().into();
        shape[r - 1] = b.dims()[r - 1];
        Ok(Spec::new(&shape[..], self.dtype).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        match self.precision.product(args.read_dtype(0), args.read_dtype(1)) {
            DType::F64 => run::<f64>(DType::F64, args),
            dtype => {
                let [m, n] = result_sizes(args);
                match Bf16Pairs::for_product(dtype, m, n) {
                    Some(pairs) => run_pairs(pairs, args),
                    None => run::<f32>(dtype, args),
                }
            }
        }
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        products::cuda::run(args, &self.product(args.launch()))
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        products::cuda::workspace(gpu, Self::NAME, &self.product(launch))
    }

    fn flops(&self, reads: &[&Shape], writes: &[&Shape]) -> u64 {
        2 * (writes[0].numel() * reads[0].last().copied().unwrap_or(1)) as u64
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        Saves::default().input_if(0, needs[1]).input_if(1, needs[0])
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let dy = g.grad()?.clone();
        if g.needs(0) {
            let b = g.input(1)?;
            let op = Matmul { dtype: g.input_dtype(0), ..*self };
            g.emit(&[0], op, &[&dy, &b.transpose(-2, -1)?])?;
        }
        if g.needs(1) {
            let a = g.input(0)?;
            let op = Matmul { dtype: g.input_dtype(1), ..*self };
            g.emit(&[1], op, &[&a.transpose(-2, -1)?, &dy])?;
        }
        Ok(())
    }
}

/// Both operands with the batch dimensions of the result.
fn prepare(a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    const OP: &str = Matmul::NAME;
    if a.rank() < 2 || b.rank() < 2 {
        let hint = "the operands must be [.., m, k] and [.., k, n]; add a dimension to a vector with unsqueeze first";
        return Err(Error::shapes(OP, a.shape(), b.shape(), hint));
    }
    let split = |t: &Tensor| -> (Shape, [usize; 2]) {
        let (batch, matrix) = t.dims().split_at(t.rank() - 2);
        (batch.into(), [matrix[0], matrix[1]])
    };
    let ((batch_a, ma), (batch_b, mb)) = (split(a), split(b));
    if ma[1] != mb[0] {
        let hint = format!(
            "the inner sizes, {} and {}, must be equal: need [.., m, k] and [.., k, n]",
            ma[1], mb[0]
        );
        return Err(Error::shapes(OP, a.shape(), b.shape(), hint));
    }
    let batch = Shape::broadcast(OP, &batch_a, &batch_b)?;
    let full = |m: [usize; 2]| batch.iter().copied().chain(m).collect::<Shape>();
    Ok((a.broadcast_to(full(ma))?, b.broadcast_to(full(mb))?))
}

/// A product in which one or both operands are vectors, computed as a product of matrices.
fn vectors(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (row, column) = (a.rank() == 1, b.rank() == 1);
    if a.dims().last() != b.dims().iter().nth_back(usize::from(!column)) {
        return Err(Error::shapes(
            Matmul::NAME,
            a.shape(),
            b.shape(),
            "a vector on the left must be as long as the matrices have rows, on the right as they have columns",
        ));
    }
    let a = if row { a.unsqueeze(0)? } else { a.clone() };
    let b = if column { b.unsqueeze(1)? } else { b.clone() };
    let product = a.matmul(&b)?;
    let product = if column { product.squeeze(-1)? } else { product };
    if row { product.squeeze(if column { -1 } else { -2 }) } else { Ok(product) }
}

impl Tensor {
    /// The matrix product `[.., m, k] x [.., k, n] -> [.., m, n]`.
    ///
    /// Leading dimensions broadcast. Operands may have any strides; a transposed one is not copied. Both must be
    /// floats of one dtype. f16 and bf16 are multiplied and summed in f32; on a CPU with AMX or AVX-512 BF16, subnormal
    /// numbers of bf16, and subnormal sums of their products, count as zero. [`Precision`] says how f32 is multiplied.
    /// Under [`Precision::Bf16`] f32 and bf16 operands may be mixed, and the result is bf16.
    ///
    /// A vector `[k]` is used as a row on the left and as a column on the right, and the result lacks that dimension.
    /// Two vectors give a scalar.
    ///
    /// # Errors
    /// If an operand is a scalar, or the inner sizes differ.
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        if self.rank() == 1 || other.rank() == 1 {
            return vectors(self, other);
        }
        let (a, b) = prepare(self, other)?;
        let op = Matmul::new(&a);
        match op.rounded([self, other], &a)? {
            None => apply(op, &[&a, &b]),
            Some((x, y)) => apply_on(op, &[&a, &b], &[&x, &y]),
        }
    }

    /// [`Tensor::matmul`] into the memory of `dst`.
    pub fn matmul_into(&self, other: &Tensor, dst: &Tensor) -> Result<()> {
        if self.rank() == 1 || other.rank() == 1 {
            return apply_into(Copy(Matmul::NAME), &[&vectors(self, other)?], dst);
        }
        let (a, b) = prepare(self, other)?;
        let op = Matmul::new(&a);
        match op.rounded([self, other], &a)? {
            None => apply_into(op, &[&a, &b], dst),
            Some((x, y)) => apply_into_on(op, &[&a, &b], &[&x, &y], dst),
        }
    }
}
