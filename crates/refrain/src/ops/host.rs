//! Between a tensor and the host: reading waits for the work that writes what it reads; writing goes
//! into the memory that the tensor has.

use super::apply_into;
use super::copy::Copy;
use crate::autograd::check_in_place;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{Element, Tensor};

impl Tensor {
    /// The values, row-major.
    ///
    /// # Errors
    /// If `T` is not the host type of the tensor's dtype; an error of work before (see
    /// [`Device::synchronize`]).
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        const OP: &str = "to_vec";
        self.check_host::<T>(OP, self.numel())?;
        // First, because a tensor too large for memory is an error on the device and the end of the process here.
        let whole = self.untracked().contiguous()?;
        let mut out = vec![T::default(); self.numel()];
        whole.read(OP, &mut out)?;
        Ok(out)
    }

    /// The value of a tensor with one element.
    ///
    /// # Errors
    /// If the tensor has another number of elements, or `T` is not the host type of its dtype; an error of
    /// work before (see [`Device::synchronize`]).
    pub fn to_scalar<T: Element>(&self) -> Result<T> {
        if self.numel() != 1 {
            return Err(Error::invalid(
                "to_scalar",
                format!(
                    "a tensor of shape {} has {} elements, not one; use to_vec",
                    self.shape(),
                    self.numel()
                ),
            ));
        }
        let mut out = [T::default()];
        self.read("to_scalar", &mut out)?;
        Ok(out[0])
    }

    /// Reads the values, row-major, into host memory that is there already.
    ///
    /// # Errors
    /// If `out` has another length than the tensor has elements, or `T` is not the host type of the dtype; an
    /// error of work before (see [`Device::synchronize`]).
    pub fn read_into<T: Element>(&self, out: &mut [T]) -> Result<()> {
        self.read("read_into", out)
    }

    fn read<T: Element>(&self, op: &'static str, out: &mut [T]) -> Result<()> {
        self.check_host::<T>(op, out.len())?;
        let whole = self.untracked().contiguous()?;
        let offset = whole.layout().offset() * size_of::<T>();
        T::fill_from(out, |bytes| self.device().download(op, whole.storage(), offset, bytes))
    }

    /// Writes values, row-major, into the memory that the tensor has; its storage stays the same.
    ///
    /// Happens in order: later operations see the new values, earlier ones saw the old ones. The tensor
    /// may be a view; a view that repeats memory (by broadcasting) is refused.
    ///
    /// ```
    /// use refrain::{Device, DType, Tensor};
    /// let x = Tensor::zeros([2, 3], DType::F32, &Device::cpu())?;
    /// x.narrow(1, 1, 1)?.write_from(&[7.0f32, 8.0])?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 7.0, 0.0, 0.0, 8.0, 0.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn write_from<T: Element>(&self, values: &[T]) -> Result<()> {
        const OP: &str = "write_from";
        self.check_host::<T>(OP, values.len())?;
        check_in_place(OP, self)?;
        if !self.is_contiguous() {
            let staged = Tensor::from_slice(values, self.shape(), self.device())?;
            return apply_into(Copy(OP), &[&staged], self);
        }
        let offset = self.layout().offset() * size_of::<T>();
        self.device().upload(OP, T::as_bytes(values), self.storage(), offset)
    }

    fn check_host<T: Element>(&self, op: &'static str, len: usize) -> Result<()> {
        if self.dtype() != T::DTYPE {
            return Err(Error::DTypeMismatch { op, lhs: self.dtype(), rhs: T::DTYPE });
        }
        if len != self.numel() {
            return Err(Error::invalid(
                op,
                format!("{len} values for a tensor of shape {} ({} elements)", self.shape(), self.numel()),
            ));
        }
        Ok(())
    }

    /// The tensor on another device (itself if it is there already). Not part of the tape.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        const OP: &str = "to_device";
        let whole = self.untracked().contiguous()?;
        let mut bytes = vec![0u8; self.numel() * self.dtype().size()];
        self.device().download(
            OP,
            whole.storage(),
            whole.layout().offset() * self.dtype().size(),
            &mut bytes,
        )?;
        let out = Tensor::empty(OP, self.shape(), self.dtype(), device)?;
        device.upload(OP, &bytes, out.storage(), 0)?;
        Ok(out)
    }
}
