//! Copies between a tensor and the host. Reading first waits for the work that writes the values. Writing goes into
//! the memory of the tensor.

use std::sync::{Mutex, PoisonError};

use super::apply_into;
use super::copy::Copy;
use crate::autograd::check_in_place;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{DType, Element, Tensor};

impl Tensor {
    /// Reads the values, row-major.
    ///
    /// # Errors
    /// If `T` is not the host type of the tensor's dtype. Errors of earlier work may also be returned here (see
    /// [`Device::synchronize`]).
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        const OP: &str = "to_vec";
        self.check_reading::<T>(OP, self.numel())?;
        // First on the device: there, a tensor that is too large is an error; on the host it would end the process.
        let whole = self.untracked().contiguous()?;
        let mut out = vec![T::default(); self.numel()];
        whole.read(OP, &mut out)?;
        Ok(out)
    }

    /// Reads the value of a tensor with one element.
    ///
    /// # Errors
    /// If the tensor does not have exactly one element, or `T` is not the host type of its dtype. Errors of earlier
    /// work may also be returned here (see [`Device::synchronize`]).
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

    /// Reads the values, row-major, into existing host memory.
    ///
    /// # Errors
    /// If `out` does not have as many elements as the tensor, or `T` is not the host type of the dtype. Errors of
    /// earlier work may also be returned here (see [`Device::synchronize`]).
    pub fn read_into<T: Element>(&self, out: &mut [T]) -> Result<()> {
        self.read("read_into", out)
    }

    fn read<T: Element>(&self, op: &'static str, out: &mut [T]) -> Result<()> {
        self.check_reading::<T>(op, out.len())?;
        let whole = self.untracked().contiguous()?;
        let offset = whole.layout().offset() * size_of::<T>();
        T::fill_from(out, |bytes| self.device().download(op, whole.storage(), offset, bytes))
    }

    /// Writes values, row-major, into the memory of the tensor. Its storage does not change.
    ///
    /// The write happens in order: later operations see the new values, earlier ones the old values. The tensor may
    /// be a view, but not one that repeats memory (by broadcasting).
    ///
    /// ```
    /// use refrain::{Device, DType, Tensor};
    /// let x = Tensor::zeros([2, 3], DType::F32, &Device::cpu())?;
    /// x.narrow(1, 1, 1)?.write_from(&[7.0f32, 8.0])?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 7.0, 0.0, 0.0, 8.0, 0.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn write_from<T: Element>(&self, values: &[T]) -> Result<()> {
        self.put("write_from", values)
    }

    /// Writes all elements from a source that gives their bytes in pieces, such as a file that is larger than the memory
    /// of the host. `fill` gets the position of a piece's first byte, row-major, and the piece, and must write all of it.
    /// A piece has whole elements, at most 4 MiB. Several threads call `fill` at the same time, in any order; it must not
    /// use the tensor.
    ///
    /// On a GPU the pieces lie in pinned host memory: nothing is copied on the host, and while one piece is filled, others
    /// are on their way. Otherwise it is as [`Tensor::write_from`].
    ///
    /// ```
    /// use refrain::{Device, DType, Error, Tensor};
    /// let x = Tensor::zeros([2, 3], DType::U8, &Device::cpu())?;
    /// x.write_pieces(|first, piece| {
    ///     piece.iter_mut().zip(first..).for_each(|(byte, at)| *byte = at as u8);
    ///     Ok::<(), Error>(())
    /// })?;
    /// assert_eq!(x.to_vec::<u8>()?, [0, 1, 2, 3, 4, 5]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first error of `fill`, and the errors of [`Tensor::write_from`]. Some elements may have new values then.
    pub fn write_pieces<E: From<Error> + Send>(
        &self,
        fill: impl Fn(usize, &mut [u8]) -> std::result::Result<(), E> + Sync,
    ) -> std::result::Result<(), E> {
        const OP: &str = "write_pieces";
        check_in_place(OP, self)?;
        if !self.is_contiguous() {
            let staged = Tensor::empty(OP, self.shape(), self.dtype(), self.device())?;
            staged.write_pieces(fill)?;
            return Ok(apply_into(Copy(OP), &[&staged], self)?);
        }
        let failed = Mutex::new(None);
        let filled = |at: usize, piece: &mut [u8]| {
            fill(at, piece).map_err(|e| {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                Error::internal(OP, "the source failed")
            })?;
            if self.dtype() == DType::Bool {
                piece.iter_mut().for_each(|byte| *byte = (*byte != 0).into());
            }
            Ok(())
        };
        let (bytes, offset) =
            (self.numel() * self.dtype().size(), self.layout().offset() * self.dtype().size());
        let done = self.device().upload_pieces(OP, bytes, &filled, self.storage(), offset);
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(e) => Err(e),
            None => Ok(done?),
        }
    }

    /// [`Tensor::write_from`] on behalf of the operation `op`.
    pub(super) fn put<T: Element>(&self, op: &'static str, values: &[T]) -> Result<()> {
        self.check_host::<T>(op, values.len(), || {
            format!("pass values of {}, or make the tensor with dtype DType::{:?}", self.dtype(), T::DTYPE)
        })?;
        check_in_place(op, self)?;
        if !self.is_contiguous() {
            let staged = Tensor::empty(op, self.shape(), self.dtype(), self.device())?;
            staged.put(op, values)?;
            return apply_into(Copy(op), &[&staged], self);
        }
        let offset = self.layout().offset() * size_of::<T>();
        self.device().upload(op, T::as_bytes(values), self.storage(), offset)
    }

    fn check_reading<T: Element>(&self, op: &'static str, len: usize) -> Result<()> {
        let own = self.dtype();
        self.check_host::<T>(op, len, || {
            let read = match op {
                "read_into" => format!("read it into a slice of {own}"),
                _ => format!("use {op}::<{own}>"),
            };
            format!("{read}, or to_dtype(DType::{:?}) first", T::DTYPE)
        })
    }

    fn check_host<T: Element>(&self, op: &'static str, len: usize, hint: impl Fn() -> String) -> Result<()> {
        if self.dtype() != T::DTYPE {
            return Err(Error::DTypeMismatch { op, lhs: self.dtype(), rhs: T::DTYPE, hint: hint() });
        }
        if len != self.numel() {
            return Err(Error::invalid(
                op,
                format!("{len} values for a tensor of shape {} ({} elements)", self.shape(), self.numel()),
            ));
        }
        Ok(())
    }

    /// The tensor on another device; this tensor if it is there already. Not part of the tape.
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
