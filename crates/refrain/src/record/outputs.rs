//! The result of a call of a step.

use std::fmt;

use crate::autograd::no_grad;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{DType, Element, Shape, Tensor};

const OP: &str = "outputs";

/// The tensors that the closure of a step returned, with the values of the last call.
///
/// They are in memory that the next call overwrites. So you can read them and copy them, but you can't keep a tensor
/// of that memory, and you can't call the step while you borrow them:
///
/// ```compile_fail,E0499
/// use refrain::{DType, Device, Step, Tensor};
/// let device = Device::cpu();
/// let mut step = Step::new(&device, |x| Ok(vec![x[0].sum(())?]));
/// let x = Tensor::ones([2], DType::F32, &device)?;
/// let first = step.call(&[x.clone()])?;
/// let second = step.call(&[x])?; // Would change the values of `first`.
/// assert_eq!(first.to_scalar::<f32>(0)?, second.to_scalar::<f32>(0)?);
/// # Ok::<(), refrain::Error>(())
/// ```
///
/// ```
/// # use refrain::{DType, Device, Step, Tensor};
/// # let device = Device::cpu();
/// # let mut step = Step::new(&device, |x| Ok(vec![x[0].sum(())?]));
/// # let x = Tensor::ones([2], DType::F32, &device)?;
/// let first = step.call(&[x.clone()])?.copy(0)?; // Has its own memory.
/// let second = step.call(&[x])?;
/// assert_eq!(first.to_scalar::<f32>()?, second.to_scalar::<f32>(0)?);
/// # Ok::<(), refrain::Error>(())
/// ```
pub struct Outputs<'a> {
    tensors: &'a [Tensor],
}

/// Their dtypes and shapes.
impl fmt::Debug for Outputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.tensors.iter().map(|t| format!("{} {}", t.dtype(), t.shape()));
        write!(f, "Outputs({})", all.collect::<Vec<_>>().join(", "))
    }
}

impl<'a> Outputs<'a> {
    pub(super) fn new(tensors: &'a [Tensor]) -> Outputs<'a> {
        Outputs { tensors }
    }

    fn get(&self, i: usize) -> Result<&Tensor> {
        self.tensors.get(i).ok_or_else(|| {
            let n = self.tensors.len();
            Error::invalid(OP, format!("there is no output {i}; the closure returned {n}, counted from 0"))
        })
    }

    /// The number of outputs.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether the closure returned no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The shape of output `i`.
    ///
    /// # Errors
    /// If there is no output `i`. The same holds for all methods.
    pub fn shape(&self, i: usize) -> Result<&Shape> {
        Ok(self.get(i)?.shape())
    }

    /// The dtype of output `i`.
    ///
    /// # Errors
    /// If there is no output `i`.
    pub fn dtype(&self, i: usize) -> Result<DType> {
        Ok(self.get(i)?.dtype())
    }

    /// Reads the values of output `i`, like [`Tensor::to_vec`].
    ///
    /// # Errors
    /// If there is no output `i`, or `T` is not the host type of its dtype.
    pub fn to_vec<T: Element>(&self, i: usize) -> Result<Vec<T>> {
        self.get(i)?.to_vec()
    }

    /// Reads the value of output `i`, which must have one element, like [`Tensor::to_scalar`].
    ///
    /// # Errors
    /// If there is no output `i`, it has another number of elements, or `T` is not the host type of its dtype.
    pub fn to_scalar<T: Element>(&self, i: usize) -> Result<T> {
        self.get(i)?.to_scalar()
    }

    /// Reads the values of output `i` into existing host memory, like [`Tensor::read_into`].
    ///
    /// # Errors
    /// If there is no output `i`, `out` does not have as many elements, or `T` is not the host type of its dtype.
    pub fn read_into<T: Element>(&self, i: usize, out: &mut [T]) -> Result<()> {
        self.get(i)?.read_into(out)
    }

    /// Copies output `i` to new memory on the same device.
    ///
    /// # Errors
    /// If there is no output `i`, or the device has not enough memory.
    pub fn copy(&self, i: usize) -> Result<Tensor> {
        no_grad(|| self.get(i)?.copy())
    }

    /// Copies output `i` into the memory of `dst`, which must have the same shape and dtype and be on the same
    /// device.
    ///
    /// # Errors
    /// If there is no output `i`, or `dst` does not match.
    pub fn copy_into(&self, i: usize, dst: &Tensor) -> Result<()> {
        no_grad(|| dst.copy_from(self.get(i)?))
    }

    /// Copies output `i` to another device, always to new memory.
    ///
    /// # Errors
    /// If there is no output `i`, or the device has not enough memory.
    pub fn to_device(&self, i: usize, device: &Device) -> Result<Tensor> {
        match self.get(i)?.device() == device {
            true => self.copy(i),
            false => self.get(i)?.to_device(device),
        }
    }
}
