//! Dropout.

mod cuda;
mod host;

use super::random::{DrawPlace, Generator};
use super::{Needs, Op, Spec, Specs, apply, apply_into, check_dtypes};
use crate::autograd::{Gradients, Saves, is_grad_enabled};
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor};

/// `x * mask / (1 - p)`, plus the residual if there is one, and, if a backward pass needs it, the mask. Operands: `x`,
/// the residual, and the state of the generator. Element `i` (row-major) is kept if word `i`, counted from the place of the
/// launch, is at least `p * 2^32`.
#[derive(Clone, Debug)]
struct Dropout {
    p: f64,
    /// Whether a residual is added.
    adds: bool,
    place: DrawPlace,
    keeps_mask: bool,
}

impl Op for Dropout {
    const NAME: &'static str = "dropout";

    fn name(&self) -> &'static str {
        if self.adds { "dropout_add" } else { Self::NAME }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(self.name())?;
        let mut specs = Spec::like(x[0]).one();
        if self.keeps_mask {
            specs.push(Spec::new(x[0].shape(), DType::Bool));
        }
        Ok(specs)
    }

    fn words_before(&self) -> u64 {
        self.place.words_before()
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self, args)
    }

    fn in_place(&self, _: usize, input: usize) -> bool {
        input == 0
    }

    fn saves(&self, _: &[bool]) -> Saves {
        // Saves the mask itself. It can't be recomputed, because the base of the generator may have moved by then.
        Saves::default().output(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        if g.needs(0) {
            let mask = g.output(1)?;
            g.emit(&[0], Masked { scale: scale(self.p) }, &[&grad, &mask])?;
        }
        if self.adds { g.add(1, grad) } else { Ok(()) }
    }
}

/// `dy * mask * scale`.
#[derive(Clone, Debug)]
struct Masked {
    scale: f64,
}

impl Op for Masked {
    const NAME: &'static str = "dropout_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        x[1].require_dtype(Self::NAME, "mask", DType::Bool)?;
        if x[0].shape() != x[1].shape() {
            return Err(Error::shapes(Self::NAME, x[0].shape(), x[1].shape(), "both must be equal"));
        }
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self.scale, args)
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.scale, args)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

/// The factor of elements that are kept.
pub(crate) fn scale(p: f64) -> f64 {
    1.0 / (1.0 - p)
}

/// The smallest word that keeps its element.
pub(crate) fn threshold(p: f64) -> u64 {
    // p * 2^32 is at most 2^32 - 2^-21. This rounds to a number that no word reaches.
    (p * 4_294_967_296.0).round() as u64
}

/// Checks the probability that an element is dropped.
pub(crate) fn check_probability(op: &'static str, p: f64) -> Result<()> {
    if (0.0..1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::invalid(
        op,
        format!("the probability is {p}; it must be at least 0 and less than 1 (0.1 drops a tenth)"),
    ))
}

/// The operation, before its part of the generator's sequence is reserved. `None` if nothing is dropped.
fn prepare(x: &Tensor, p: f64, dst: Option<&Tensor>) -> Result<Option<Dropout>> {
    const OP: &str = Dropout::NAME;
    check_probability(OP, p)?;
    x.require_float(OP)?;
    if let Some(dst) = dst {
        check_dtypes(OP, x, dst)?;
    }
    if p == 0.0 {
        return Ok(None);
    }
    let keeps_mask = is_grad_enabled() && x.requires_grad();
    Ok(Some(Dropout { p, adds: false, place: DrawPlace::default(), keeps_mask }))
}

impl Tensor {
    /// Sets each element to 0 with probability `p`, independently, and multiplies the others by `1 / (1 - p)`, so
    /// that the expected value does not change (Srivastava et al., "Dropout: a simple way to prevent neural networks
    /// from overfitting", 2014). For floats; the result has the shape and dtype of this tensor. If `p` is 0, returns
    /// this tensor and does not use the generator.
    ///
    /// For `n` elements the generator advances by `n / 4` blocks, rounded up. If the operation fails, the generator
    /// does not advance.
    ///
    /// # Errors
    /// If `p` is not in `[0, 1)`, or the generator is on another device.
    ///
    /// ```
    /// use refrain::{DType, Device, Generator, Tensor};
    /// let device = Device::cpu();
    /// let generator = Generator::new(&device, 0)?;
    /// let y = Tensor::ones([1000], DType::F32, &device)?.dropout(0.5, &generator)?;
    /// assert!(y.to_vec::<f32>()?.iter().all(|&v| v == 0.0 || v == 2.0));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn dropout(&self, p: f64, generator: &Generator) -> Result<Tensor> {
        let Some(op) = prepare(self, p, None)? else { return Ok(self.clone()) };
        generator
            .draw(self.dims(), 1, |place| apply(Dropout { place, ..op }, &[self, generator.state_tensor()]))
    }

    /// `residual + dropout(x)`, with this tensor as `x`, in one launch: the end of a residual branch. The mask is that of
    /// [`Tensor::dropout`], and the generator advances alike. Both operands have one shape and dtype; the sum is rounded
    /// once. If `p` is 0, this is [`Tensor::add`].
    ///
    /// ```
    /// use refrain::{DType, Device, Generator, Tensor};
    /// let device = Device::cpu();
    /// let generator = Generator::new(&device, 0)?;
    /// let (x, residual) = (Tensor::ones([1000], DType::F32, &device)?, Tensor::full([1000], 3.0, DType::F32, &device)?);
    /// let y = x.dropout_add(0.5, &generator, &residual)?;
    /// assert!(y.to_vec::<f32>()?.iter().all(|&v| v == 3.0 || v == 5.0));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Tensor::dropout`], and if the residual has another shape or dtype.
    pub fn dropout_add(&self, p: f64, generator: &Generator, residual: &Tensor) -> Result<Tensor> {
        const OP: &str = "dropout_add";
        check_probability(OP, p)?;
        self.require_float(OP)?;
        check_dtypes(OP, self, residual)?;
        if self.shape() != residual.shape() {
            let hint = "the residual must have the shape of the tensor";
            return Err(Error::shapes(OP, self.shape(), residual.shape(), hint));
        }
        if p == 0.0 {
            return residual.add(self);
        }
        let keeps_mask = is_grad_enabled() && self.requires_grad();
        generator.draw(self.dims(), 1, |place| {
            let op = Dropout { p, adds: true, place, keeps_mask };
            apply(op, &[self, residual, generator.state_tensor()])
        })
    }

    /// [`Tensor::dropout`] into the memory of `dst` (which may be this tensor).
    pub fn dropout_into(&self, p: f64, generator: &Generator, dst: &Tensor) -> Result<()> {
        let Some(op) = prepare(self, p, Some(dst))? else { return dst.copy_from(self) };
        generator.draw(self.dims(), 1, |place| {
            apply_into(Dropout { place, ..op }, &[self, generator.state_tensor()], dst)
        })
    }
}
