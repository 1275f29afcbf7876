//! Fourier transforms along an axis. Complex numbers are two tensors: their real and their imaginary parts.

mod chirp;
mod cuda;
mod host;
mod plan;

use smallvec::smallvec;

use super::{Op, Spec, Specs, apply, apply_all, two};
use crate::autograd::Gradients;
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::reduction::Extent;
use crate::tensor::{Tensor, resolve_axis};
use plan::Plan;

/// What is transformed into what. Sums are not divided by `n`: `scale`, `edge` and `middle` are the only factors.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// Complex numbers into complex numbers, which are scaled.
    Complex { inverse: bool, scale: f64 },
    /// Real numbers into the bins up to `n / 2`. Those at the edges (the first, and of an even `n` the last) have a factor of their own.
    Forward { edge: f64, middle: f64 },
    /// These bins into real numbers, as if the bins beyond `n / 2` were there: the conjugates of the others. Imaginary parts at the
    /// edges count as zero.
    Inverse { edge: f64, middle: f64 },
}

/// Operands: real parts, and except for [`Form::Forward`] imaginary parts. Results: likewise, except for [`Form::Inverse`].
#[derive(Clone, Copy, Debug)]
struct Fft {
    form: Form,
    axis: usize,
    /// The numbers along the axis: real ones, if operands or results are real.
    n: usize,
}

impl Fft {
    /// The plan whose stages have powers of two up to `most` as radices.
    fn plan(&self, most: usize) -> Result<Plan> {
        let real = !matches!(self.form, Form::Complex { .. });
        Plan::new(self.n, real, most)
            .ok_or_else(|| Error::internal(self.name(), format!("no plan for {}", self.n)))
    }

    /// How many numbers operands and results have along the axis.
    fn sizes(&self) -> (usize, usize) {
        match self.form {
            Form::Complex { .. } => (self.n, self.n),
            Form::Forward { .. } => (self.n, self.n / 2 + 1),
            Form::Inverse { .. } => (self.n / 2 + 1, self.n),
        }
    }

    /// How many slices `shape` has, and how many neighbours are transformed in each.
    fn extent(&self, shape: &[usize]) -> Extent {
        Extent::of_dims(shape, self.axis)
    }

    /// The factors of bins at the edges and of the others.
    fn factors(&self) -> (f64, f64) {
        match self.form {
            Form::Complex { scale, .. } => (scale, scale),
            Form::Forward { edge, middle } | Form::Inverse { edge, middle } => (edge, middle),
        }
    }
}

impl Op for Fft {
    const NAME: &'static str = "fft";

    fn name(&self) -> &'static str {
        match self.form {
            Form::Complex { inverse: false, .. } => "fft",
            Form::Complex { inverse: true, .. } => "ifft",
            Form::Forward { .. } => "rfft",
            Form::Inverse { .. } => "irfft",
        }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let mut shape = x[0].dims().to_vec();
        shape[self.axis] = self.sizes().1;
        let spec = Spec::new(shape, x[0].dtype());
        Ok(match self.form {
            Form::Inverse { .. } => spec.one(),
            _ => smallvec![spec.clone(), spec],
        })
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::transform(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::transform(self, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        cuda::workspace(self, launch)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        if let Form::Inverse { edge, middle } = self.form {
            let dy = g.grad()?.clone();
            let form = Form::Forward { edge, middle: 2.0 * middle };
            return g.emit(&[0, 1], Fft { form, ..*self }, &[&dy]);
        }
        let (re, im) = match (g.grad_of(0).cloned(), g.grad_of(1).cloned()) {
            (Some(re), Some(im)) => (re, im),
            (Some(re), None) => (re.clone(), re.zeros_like()?),
            (None, Some(im)) => (im.zeros_like()?, im),
            (None, None) => return Ok(()),
        };
        match self.form {
            Form::Complex { inverse, scale } => {
                let form = Form::Complex { inverse: !inverse, scale };
                g.emit(&[0, 1], Fft { form, ..*self }, &[&re, &im])
            }
            // Of a bin and its conjugate, the inverse adds both; a gradient comes from one of them.
            Form::Forward { edge, middle } | Form::Inverse { edge, middle } => {
                let form = Form::Inverse { edge, middle: middle / 2.0 };
                g.emit(&[0], Fft { form, ..*self }, &[&re, &im])
            }
        }
    }
}

/// The axis, and the size along it. The parts must have one shape, dtype and device, and at least one number along the axis.
fn check(op: &'static str, parts: &[&Tensor], axis: isize) -> Result<(usize, usize)> {
    super::check_devices(op, parts)?;
    if let [re, im] = parts {
        super::check_dtypes(op, re, im)?;
        if re.shape() != im.shape() {
            return Err(Error::shapes(op, re.dims(), im.dims(), "real and imaginary parts have one shape"));
        }
    }
    parts[0].require_float(op)?;
    let axis = resolve_axis(op, axis, parts[0].rank())?;
    match parts[0].dims()[axis] {
        0 => Err(Error::invalid(
            op,
            format!("a tensor of shape {} has no numbers along axis {axis}", parts[0].shape()),
        )),
        n => Ok((axis, n)),
    }
}

/// A complex transform of any size.
fn complex(re: &Tensor, im: &Tensor, axis: usize, inverse: bool, scale: f64) -> Result<(Tensor, Tensor)> {
    let n = re.dims()[axis];
    if !Plan::exists(n, false) {
        return chirp::complex(re, im, axis, inverse, scale);
    }
    let op = Fft { form: Form::Complex { inverse, scale }, axis, n };
    two(op.name(), apply_all(op, &[re, im])?)
}

impl Tensor {
    /// The Fourier transform of real numbers along an axis, as `torch.fft.rfft`: the real and the imaginary parts of the bins `0` to
    /// `n / 2`, both with `n / 2 + 1` numbers along the axis. Bin `k` is
    ///
    /// ```text
    /// X[k] = sum over j of x[j] exp(-2 pi i j k / n)
    /// ```
    ///
    /// and the bins beyond are the conjugates of these: `X[n - k] = conj X[k]`. Nothing is divided by `n`;
    /// [`Tensor::irfft`] does so. For a transform of another length, [`Tensor::pad`] or [`Tensor::narrow`] the axis first. A negative
    /// axis counts from the last one.
    ///
    /// For floats; f16 and bf16 are computed in f32 and rounded once, and [`Precision`](crate::Precision) changes nothing. Products of
    /// small primes are the fastest sizes. A prime factor `p` takes about `p / 2` steps for each number; if `n` (or its half, of an even
    /// one) has one above 127, the transform is made of three longer ones of a power of two (Bluestein, "A linear filtering approach to
    /// the computation of discrete Fourier transform", 1970).
    ///
    /// # Errors
    /// If the axis is out of range, or there are no numbers along it.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// // Two periods in eight steps.
    /// let x = Tensor::from_slice(&[1.0f32, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0], [8], &Device::cpu())?;
    /// let (re, im) = x.rfft(0)?;
    /// let amplitudes = (re.square()? + im.square()?)?.sqrt()?;
    /// assert_eq!(amplitudes.to_vec::<f32>()?, [0.0, 0.0, 4.0, 0.0, 0.0]);
    /// assert_eq!(re.irfft(&im, 8, 0)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn rfft(&self, axis: isize) -> Result<(Tensor, Tensor)> {
        const OP: &str = "rfft";
        let (axis, n) = check(OP, &[self], axis)?;
        if !Plan::exists(n, true) {
            return chirp::forward(self, axis);
        }
        let form = Form::Forward { edge: 1.0, middle: 1.0 };
        two(OP, apply_all(Fft { form, axis, n }, &[self])?)
    }

    /// The inverse of [`Tensor::rfft`], as `torch.fft.irfft`: `n` real numbers along an axis, divided by `n`. This tensor has the real
    /// parts of the bins `0` to `n / 2`, and `imaginary` their imaginary parts. Imaginary parts of bin 0, and of bin `n / 2` of an even `n`, count as zero.
    ///
    /// # Errors
    /// If the parts differ in shape, dtype or device, the axis is out of range, `n` is 0, or the axis has not `n / 2 + 1` bins.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// // A running mean over three steps, as a product of bins: a circular convolution.
    /// let device = Device::cpu();
    /// let x = Tensor::from_slice(&[3.0f32, 0.0, 0.0, 6.0, 0.0, 0.0], [6], &device)?;
    /// let window = Tensor::from_slice(&[1.0f32, 1.0, 0.0, 0.0, 0.0, 1.0], [6], &device)?.div_scalar(3.0)?;
    /// let ((a, b), (c, d)) = (x.rfft(0)?, window.rfft(0)?);
    /// let (re, im) = (((&a * &c)? - (&b * &d)?)?, ((&a * &d)? + (&b * &c)?)?);
    /// let means = re.irfft(&im, 6, 0)?.to_vec::<f32>()?;
    /// assert!(means.iter().zip([1.0, 1.0, 2.0, 2.0, 2.0, 1.0]).all(|(m, e)| (m - e).abs() < 1e-6));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn irfft(&self, imaginary: &Tensor, n: usize, axis: isize) -> Result<Tensor> {
        const OP: &str = "irfft";
        let (axis, bins) = check(OP, &[self, imaginary], axis)?;
        if n == 0 || bins != n / 2 + 1 {
            let of = match bins {
                1 => format!("1 bin along axis {axis} is that of 1 number"),
                _ => format!(
                    "{bins} bins along axis {axis} are those of {} or {} numbers",
                    2 * (bins - 1),
                    2 * bins - 1
                ),
            };
            return Err(Error::invalid(OP, format!("{of}, and not of {n}; use pad or narrow")));
        }
        let scale = 1.0 / n as f64;
        if !Plan::exists(n, true) {
            return chirp::inverse(self, imaginary, n, axis, scale);
        }
        let form = Form::Inverse { edge: scale, middle: scale };
        apply(Fft { form, axis, n }, &[self, imaginary])
    }

    /// The Fourier transform of complex numbers along an axis, as `torch.fft.fft`: this tensor has their real parts. Results are the
    /// real and the imaginary parts of all `n` bins, those of [`Tensor::rfft`]. For two axes, transform
    /// one, and then the other.
    ///
    /// # Errors
    /// If the parts differ in shape, dtype or device, the axis is out of range, or there are no numbers along it.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let image = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::cpu())?;
    /// let (re, im) = image.rfft(1)?; // torch.fft.rfft2
    /// let (re, im) = re.fft(&im, 0)?;
    /// assert_eq!(re.to_vec::<f32>()?, [10.0, -2.0, -4.0, 0.0]);
    /// assert_eq!(im.to_vec::<f32>()?, [0.0; 4]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn fft(&self, imaginary: &Tensor, axis: isize) -> Result<(Tensor, Tensor)> {
        let (axis, _) = check("fft", &[self, imaginary], axis)?;
        complex(self, imaginary, axis, false, 1.0)
    }

    /// The inverse of [`Tensor::fft`], as `torch.fft.ifft`, divided by `n`.
    ///
    /// # Errors
    /// Those of [`Tensor::fft`].
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4], &Device::cpu())?;
    /// let (re, im) = x.fft(&x.zeros_like()?, 0)?;
    /// assert_eq!(re.ifft(&im, 0)?.0.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn ifft(&self, imaginary: &Tensor, axis: isize) -> Result<(Tensor, Tensor)> {
        let (axis, n) = check("ifft", &[self, imaginary], axis)?;
        complex(self, imaginary, axis, true, 1.0 / n as f64)
    }
}
