//! What a call of a step returns.

use crate::autograd::no_grad;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{DType, Element, Shape, Tensor};

const OP: &str = "outputs";

/// The tensors that a step's closure returned, as the last call left them.
///
/// They lie in memory that the next call writes to. So they can be read and copied out, but there is no way to keep a
/// tensor of that memory, and none to call the step while they are borrowed:
///
/// ```compile_fail,E0499
/// use refrain::{DType, Device, Step, Tensor};
/// let device = Device::cpu();
/// let mut step = Step::new(&device, |x| Ok(vec![x[0].sum(())?]));
/// let x = Tensor::ones([2], DType::F32, &device)?;
/// let first = step.call(&[x.clone()])?;
/// let second = step.call(&[x])?; // Would change what `first` shows.
/// assert_eq!(first.to_scalar::<f32>(0)?, second.to_scalar::<f32>(0)?);
/// # Ok::<(), refrain::Error>(())
/// ```
///
/// ```
/// # use refrain::{DType, Device, Step, Tensor};
/// # let device = Device::cpu();
/// # let mut step = Step::new(&device, |x| Ok(vec![x[0].sum(())?]));
/// # let x = Tensor::ones([2], DType::F32, &device)?;
/// let first = step.call(&[x.clone()])?.copy(0)?; // Memory of its own.
/// let second = step.call(&[x])?;
/// assert_eq!(first.to_scalar::<f32>()?, second.to_scalar::<f32>(0)?);
/// # Ok::<(), refrain::Error>(())
/// ```
pub struct Outputs<'a> {
    tensors: &'a [Tensor],
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether the closure returned none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The shape of output `i`.
    ///
    /// # Errors
    /// If there is no output `i`, as for all methods.
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

    /// The values of output `i`, as [`Tensor::to_vec`].
    ///
    /// # Errors
    /// If there is no output `i`, or `T` is not the host type of its dtype.
    pub fn to_vec<T: Element>(&self, i: usize) -> Result<Vec<T>> {
        self.get(i)?.to_vec()
    }

    /// The value of output `i`, which has one element, as [`Tensor::to_scalar`].
    ///
    /// # Errors
    /// If there is no output `i`, it has another number of elements, or `T` is not the host type of its dtype.
    pub fn to_scalar<T: Element>(&self, i: usize) -> Result<T> {
        self.get(i)?.to_scalar()
    }

    /// Reads the values of output `i` into host memory that is there already, as [`Tensor::read_into`].
    ///
    /// # Errors
    /// If there is no output `i`, `out` has another length than it has elements, or `T` is not the host type of its
    /// dtype.
    pub fn read_into<T: Element>(&self, i: usize, out: &mut [T]) -> Result<()> {
        self.get(i)?.read_into(out)
    }

    /// Output `i` in new memory on the same device.
    ///
    /// # Errors
    /// If there is no output `i`, or the device has no memory for it.
    pub fn copy(&self, i: usize) -> Result<Tensor> {
        no_grad(|| self.get(i)?.copy())
    }

    /// Copies output `i` into the memory of `dst`, of the same shape and dtype, on the same device.
    ///
    /// # Errors
    /// If there is no output `i`, or `dst` does not fit.
    pub fn copy_into(&self, i: usize, dst: &Tensor) -> Result<()> {
        no_grad(|| dst.copy_from(self.get(i)?))
    }

    /// Output `i` on another device, always in new memory.
    ///
    /// # Errors
    /// If there is no output `i`, or the device has no memory for it.
    pub fn to_device(&self, i: usize, device: &Device) -> Result<Tensor> {
        match self.get(i)?.device() == device {
            true => self.copy(i),
            false => self.get(i)?.to_device(device),
        }
    }
}
