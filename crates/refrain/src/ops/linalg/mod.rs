//! Linear algebra: Cholesky factors and systems of linear equations, of batches of matrices.

mod cuda;
mod host;

use super::{Op, Spec, Specs, apply, apply_into, check_devices, check_dtypes};
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::tensor::{DType, Shape, Tensor};

/// The lower factor `l` of `x = l l^T`, of which the lower triangle is read.
#[derive(Clone, Copy, Debug)]
struct Cholesky;

/// The solution `y` of `a y = b`, or of `a^T y = b` if `transposed`. Of `a`, one triangle is read.
#[derive(Clone, Copy, Debug)]
struct SolveTriangular {
    upper: bool,
    transposed: bool,
}

/// The solution `y` of `a y = b`, by elimination with the largest number of a column first.
#[derive(Clone, Copy, Debug)]
struct Solve {
    /// Whether the right sides are the columns of the identity.
    inverse: bool,
}

/// What a batch of square matrices is.
#[derive(Clone, Copy, Debug)]
struct Square {
    /// Matrices.
    count: usize,
    /// Rows and columns.
    n: usize,
}

impl Square {
    fn of(shape: &Shape) -> Square {
        let n = shape[shape.rank() - 1];
        Square { count: shape[..shape.rank() - 2].iter().product(), n }
    }
}

/// Checks that these are square matrices of a dtype that is precise enough for them.
fn check_square(op: &'static str, x: &Tensor) -> Result<()> {
    if !matches!(x.dtype(), DType::F32 | DType::F64) {
        return Err(x.unsupported(op));
    }
    match x.dims() {
        [.., rows, columns] if rows == columns => Ok(()),
        _ => Err(Error::invalid(
            op,
            format!(
                "a tensor of shape {}; the last two sizes must be equal, those of square matrices",
                x.shape()
            ),
        )),
    }
}

impl Op for Cholesky {
    const NAME: &'static str = "cholesky";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        check_square(Self::NAME, x[0])?;
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::cholesky(args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::cholesky(args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        let Square { count, n } = Square::of(reads[0]);
        (count * n * n * n / 3) as u64
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().output(0)
    }

    /// With `s = l^-T p l^-1`, where `p` is the lower triangle of `l^T dl` with half of the diagonal, the gradient is `(s + s^T) / 2`
    /// (Murray, Differentiation of the Cholesky decomposition, 2016).
    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (l, dl) = (g.output(0)?, g.grad()?.clone());
        let product = l.transpose(-2, -1)?.matmul(&dl)?;
        let p = product.tril(0)?.add(&product.tril(-1)?)?.mul_scalar(0.5)?;
        let divide = SolveTriangular { upper: false, transposed: true };
        let left = apply(divide, &[&l, &p])?;
        let s = apply(divide, &[&l, &left.transpose(-2, -1)?])?;
        g.add(0, s.add(&s.transpose(-2, -1)?)?.mul_scalar(0.5)?)
    }
}

impl Op for SolveTriangular {
    const NAME: &'static str = "solve_triangular";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::like(x[1]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::solve_triangular(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::solve_triangular(self, args)
    }

    fn in_place(&self, _: usize, input: usize) -> bool {
        input == 1
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        let Square { n, .. } = Square::of(reads[0]);
        (reads[1].numel() * n) as u64
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        let saves = Saves::default().input(0);
        if needs[0] { saves.output(0) } else { saves }
    }

    /// `db = a^-T dy`, and `da` is the triangle of `-db y^T`.
    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (a, dy) = (g.input(0)?, g.grad()?.clone());
        let db = apply(SolveTriangular { transposed: !self.transposed, ..*self }, &[&a, &dy])?;
        if g.needs(0) {
            let y = g.output(0)?;
            let [left, right] = if self.transposed { [&y, &db] } else { [&db, &y] };
            let product = left.matmul(&right.transpose(-2, -1)?)?.neg()?;
            g.add(0, if self.upper { product.triu(0)? } else { product.tril(0)? })?;
        }
        if g.needs(1) {
            g.add(1, db)?;
        }
        Ok(())
    }
}

impl Op for Solve {
    const NAME: &'static str = "solve";

    fn name(&self) -> &'static str {
        if self.inverse { "inverse" } else { Self::NAME }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::like(x[1]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::solve(args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::solve(args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(launch))
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn in_place(&self, _: usize, input: usize) -> bool {
        input == 1
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        let Square { count, n } = Square::of(reads[0]);
        (count * n * n * n * 2 / 3 + 2 * reads[1].numel() * n) as u64
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        let saves = Saves::default().input(0);
        if needs[0] { saves.output(0) } else { saves }
    }

    /// `db = a^-T dy` and `da = -db y^T`.
    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (a, dy) = (g.input(0)?, g.grad()?.clone());
        let db = apply(Solve { inverse: false }, &[&a.transpose(-2, -1)?, &dy])?;
        if g.needs(0) {
            let y = g.output(0)?;
            g.add(0, db.matmul(&y.transpose(-2, -1)?)?.neg()?)?;
        }
        if g.needs(1) {
            g.add(1, db)?;
        }
        Ok(())
    }
}

/// The operation, and the operands in one batch. A matrix that is a transposed view is read as it lies in memory.
fn triangular(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    upper: bool,
) -> Result<(SolveTriangular, [Tensor; 2])> {
    let [a, b] = in_one_batch(op, a, b)?;
    let turned = a.transpose(-2, -1)?;
    let transposed = !a.is_contiguous() && turned.is_contiguous();
    let op = SolveTriangular { upper: upper != transposed, transposed };
    Ok((op, [if transposed { turned } else { a }, b]))
}

/// Square matrices and their right sides, with the batch dimensions of the result.
fn in_one_batch(op: &'static str, a: &Tensor, b: &Tensor) -> Result<[Tensor; 2]> {
    check_square(op, a)?;
    check_dtypes(op, a, b)?;
    check_devices(op, &[a, b])?;
    let n = a.dims()[a.rank() - 1];
    if b.rank() < 2 || b.dims()[b.rank() - 2] != n {
        let hint = "the right sides are the columns of matrices [.., n, k]; add a dimension to a vector with unsqueeze(-1)";
        return Err(Error::shapes(op, a.shape(), b.shape(), hint));
    }
    let [of_a, of_b] = [a, b].map(|x| x.dims().split_at(x.rank() - 2));
    let batch = Shape::broadcast(op, &of_a.0.into(), &of_b.0.into())?;
    let full = |x: &Tensor, matrix: &[usize]| -> Result<Tensor> {
        x.broadcast_to(batch.iter().chain(matrix).copied().collect::<Shape>())
    };
    Ok([full(a, of_a.1)?, full(b, of_b.1)?])
}

impl Tensor {
    /// The Cholesky factor of each matrix (the last two axes): the lower triangular `l` with `l l^T = x`, of a symmetric positive
    /// definite `x`, whose lower triangle is read. For f32 and f64; the result has the shape and dtype of this tensor.
    ///
    /// With [`cholesky_solve`](Tensor::cholesky_solve) it solves linear systems: ridge regression, Gaussian processes, Kalman filters. The
    /// logarithm of the determinant of `x` is twice the sum of the logarithms of the diagonal of `l`. The gradient is symmetric.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[4.0f64, 2.0, 2.0, 10.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.cholesky()?.to_vec::<f64>()?, [2.0, 0.0, 1.0, 3.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the last two sizes differ, the dtype is another one, or a matrix is not positive definite: a small multiple of the identity
    /// makes one that is nearly. On a GPU, a later call on the device returns that error
    /// ([`Device::synchronize`](crate::Device::synchronize)). Numbers of its result may be NaN.
    pub fn cholesky(&self) -> Result<Tensor> {
        apply(Cholesky, &[self])
    }

    /// [`Tensor::cholesky`] into the memory of `dst`.
    ///
    /// # Errors
    /// The same, and if `dst` does not match the result. Where a matrix is not positive definite, `dst` is written all the same.
    pub fn cholesky_into(&self, dst: &Tensor) -> Result<()> {
        apply_into(Cholesky, &[self], dst)
    }

    /// The solutions `y` of `self y = b`, where each matrix of this tensor, `[.., n, n]`, is triangular: its upper triangle is read, or
    /// its lower one. `b` is `[.., n, k]`: a column for each right side. Batch dimensions broadcast. For f32 and f64.
    ///
    /// For `y a = b`, transpose all: `a.transpose(-2, -1)?.solve_triangular(&b.transpose(-2, -1)?, !upper)?.transpose(-2, -1)`.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let a = Tensor::from_slice(&[2.0f32, 0.0, 1.0, 4.0], [2, 2], &device)?;
    /// let b = Tensor::from_slice(&[2.0f32, 9.0], [2, 1], &device)?;
    /// assert_eq!(a.solve_triangular(&b, false)?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the matrices are not square, shapes or dtypes do not match, or the dtype is another one. A zero on the diagonal is no error:
    /// the solution is infinite or NaN.
    pub fn solve_triangular(&self, b: &Tensor, upper: bool) -> Result<Tensor> {
        let (op, [a, b]) = triangular(SolveTriangular::NAME, self, b, upper)?;
        apply(op, &[&a, &b])
    }

    /// [`Tensor::solve_triangular`] into the memory of `dst`, which may be `b`.
    ///
    /// # Errors
    /// The same, and if `dst` does not match the result.
    pub fn solve_triangular_into(&self, b: &Tensor, upper: bool, dst: &Tensor) -> Result<()> {
        let (op, [a, b]) = triangular(SolveTriangular::NAME, self, b, upper)?;
        apply_into(op, &[&a, &b], dst)
    }

    /// The solutions `y` of `l l^T y = self`, where `l` is a [Cholesky factor](Tensor::cholesky), `[.., n, n]`, and this tensor has a
    /// column for each right side, `[.., n, k]`. Batch dimensions broadcast. For f32 and f64.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let a = Tensor::from_slice(&[4.0f64, 2.0, 2.0, 10.0], [2, 2], &device)?;
    /// let b = Tensor::from_slice(&[8.0f64, 22.0], [2, 1], &device)?;
    /// assert_eq!(b.cholesky_solve(&a.cholesky()?)?.to_vec::<f64>()?, [1.0, 2.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of [`solve_triangular`](Tensor::solve_triangular).
    pub fn cholesky_solve(&self, l: &Tensor) -> Result<Tensor> {
        let (op, [l, b]) = triangular("cholesky_solve", l, self, false)?;
        let half = apply(op, &[&l, &b])?;
        apply(SolveTriangular { transposed: !op.transposed, ..op }, &[&l, &half])
    }

    /// The solutions `y` of `self y = b`, where each matrix of this tensor, `[.., n, n]`, has an inverse, and `b`, `[.., n, k]`, has a
    /// column for each right side. Batch dimensions broadcast. For f32 and f64.
    ///
    /// It is Gaussian elimination with partial pivoting. For symmetric positive definite matrices, [`cholesky`](Tensor::cholesky) and
    /// [`cholesky_solve`](Tensor::cholesky_solve) take less time, and one factor serves several right sides.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let a = Tensor::from_slice(&[0.0f32, 2.0, 4.0, 1.0], [2, 2], &device)?;
    /// let b = Tensor::from_slice(&[6.0f32, 7.0], [2, 1], &device)?;
    /// assert_eq!(a.solve(&b)?.to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the matrices are not square, shapes or dtypes do not match, the dtype is another one, or a matrix is singular: on a GPU, a later
    /// call on the device returns that error ([`Device::synchronize`](crate::Device::synchronize)), and the solution is infinite or NaN.
    pub fn solve(&self, b: &Tensor) -> Result<Tensor> {
        let [a, b] = in_one_batch(Solve::NAME, self, b)?;
        apply(Solve { inverse: false }, &[&a, &b])
    }

    /// [`Tensor::solve`] into the memory of `dst`, which may be `b`.
    ///
    /// # Errors
    /// The same, and if `dst` does not match the result. Where a matrix is singular, `dst` is written all the same.
    pub fn solve_into(&self, b: &Tensor, dst: &Tensor) -> Result<()> {
        let [a, b] = in_one_batch(Solve::NAME, self, b)?;
        apply_into(Solve { inverse: false }, &[&a, &b], dst)
    }

    /// The inverse of each matrix (the last two axes). To solve equations, [`solve`](Tensor::solve) is faster and more exact. For f32
    /// and f64.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[2.0f64, 0.0, 1.0, 4.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.inverse()?.to_vec::<f64>()?, [0.5, 0.0, -0.125, 0.25]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of [`solve`](Tensor::solve).
    pub fn inverse(&self) -> Result<Tensor> {
        const OP: &str = "inverse";
        check_square(OP, self)?;
        let n = self.dims()[self.rank() - 1];
        let [a, b] = in_one_batch(OP, self, &Tensor::eye(n, self.dtype(), self.device())?)?;
        apply(Solve { inverse: true }, &[&a, &b])
    }
}
