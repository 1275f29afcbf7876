//! The lower and the upper triangle of matrices.

use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::Gradients;
use crate::device::cpu::numeric::{Number, Stored, with_stored};
use crate::device::cpu::parallel;
use crate::device::cuda::{KernelSpec, Pointer, Source, params};
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::units;
use crate::tensor::Tensor;

static SOURCE: Source = Source { name: "triangle", parts: &[include_str!("kernel.cu")] };

params! {
    struct TriangleArgs {
        x: Pointer = "const UNIT*",
        y: Pointer = "UNIT*",
        n: i64,
        rows: i64,
        columns: i64,
        diagonal: i64,
    }
}

/// The elements on one side of a diagonal, and zeros on the other.
#[derive(Clone, Copy, Debug)]
struct Triangle {
    lower: bool,
    diagonal: i64,
}

impl Op for Triangle {
    const NAME: &'static str = "triangle";

    fn name(&self) -> &'static str {
        if self.lower { "tril" } else { "triu" }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        if x[0].rank() < 2 {
            let message = format!("a tensor of shape {} has no matrices; it needs two axes", x[0].shape());
            return Err(Error::invalid(self.name(), message));
        }
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let shape = args.read_shape(0);
        let (rows, columns) = (shape[shape.rank() - 2], shape[shape.rank() - 1]);
        with_stored!(args.write_dtype(0), T => {
            let x = args.read::<T>(0)?;
            let zero = T::from_number(<i64 as Number>::ZERO);
            parallel::pieces(args.write::<T>(0)?, columns, |i, y| {
                let x = &x[i * columns..][..columns];
                let diagonal = ((i % rows) as i64).saturating_add(self.diagonal);
                if self.lower {
                    let kept = diagonal.saturating_add(1).clamp(0, columns as i64) as usize;
                    y[..kept].copy_from_slice(&x[..kept]);
                    y[kept..].fill(zero);
                } else {
                    let dropped = diagonal.clamp(0, columns as i64) as usize;
                    y[..dropped].fill(zero);
                    y[dropped..].copy_from_slice(&x[dropped..]);
                }
            });
        });
        Ok(())
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let (shape, size) = (args.read_shape(0), args.write_dtype(0).size());
        let n = shape.numel();
        if n == 0 {
            return Ok(());
        }
        let (rows, columns) = (shape[shape.rank() - 2], shape[shape.rank() - 1]);
        let kernel_args = TriangleArgs {
            x: args.read(0),
            y: args.write(0),
            n: n as i64,
            rows: rows as i64,
            columns: columns as i64,
            // Beyond the corners, every diagonal is the same.
            diagonal: self.diagonal.clamp(-(rows as i64) - 1, columns as i64 + 1),
        };
        let spec = units::constants(KernelSpec::new(&SOURCE, "triangle"), size, n).flag("LOWER", self.lower);
        args.kernel(spec, units::grid(args, n), &kernel_args)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let dy = g.grad()?.clone();
        g.emit(&[0], *self, &[&dy])
    }
}

impl Tensor {
    /// The lower triangle of each matrix (the last two axes): the elements on and below a diagonal, and zeros above it.
    /// `diagonal` 0 is the main one, 1 the one above it, -1 the one below it. For every dtype.
    ///
    /// # Errors
    /// If the tensor has fewer than two axes.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let x = Tensor::ones([2, 3], DType::I32, &Device::cpu())?;
    /// assert_eq!(x.tril(0)?.to_vec::<i32>()?, [1, 0, 0, 1, 1, 0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn tril(&self, diagonal: i64) -> Result<Tensor> {
        apply(Triangle { lower: true, diagonal }, &[self])
    }

    /// [`Tensor::tril`] into the memory of `dst`.
    pub fn tril_into(&self, diagonal: i64, dst: &Tensor) -> Result<()> {
        apply_into(Triangle { lower: true, diagonal }, &[self], dst)
    }

    /// The upper triangle of each matrix: the elements on and above a diagonal, and zeros below it. As [`Tensor::tril`].
    ///
    /// # Errors
    /// If the tensor has fewer than two axes.
    pub fn triu(&self, diagonal: i64) -> Result<Tensor> {
        apply(Triangle { lower: false, diagonal }, &[self])
    }

    /// [`Tensor::triu`] into the memory of `dst`.
    pub fn triu_into(&self, diagonal: i64, dst: &Tensor) -> Result<()> {
        apply_into(Triangle { lower: false, diagonal }, &[self], dst)
    }
}
