//! A launch: a kernel with what it reads and what it writes.

use std::ops::Range;

use super::args::HostArgs;
use super::cuda::{CudaArgs, Gpu};
use super::storage::Storage;
use crate::error::{Error, Result};
use crate::recycled::Recycled;
use crate::types::{DType, Layout, Shape};

/// Operands and results of which lists need no heap memory: as many as AdamW and batch norm have.
pub(crate) const OPERANDS: usize = 12;
pub(crate) const RESULTS: usize = 5;

/// The work of an operation on each kind of device.
pub(crate) trait Kernel: Send + Sync {
    /// Runs on the CPU over locked memory.
    fn host(&self, args: &mut HostArgs<'_>) -> Result<()>;

    /// Asks for the kernels and matrix products that do it on CUDA.
    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()>;

    /// Whether it can fail for the values of its operands, such as an index out of range. A launch that can is part of a
    /// recorded step even if nobody reads what it writes.
    fn can_fail(&self) -> bool;

    /// Bytes of memory that the kernels on CUDA work in.
    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize>;

    /// Multiplications and additions of the products of matrices in it, by the shapes of operands and results.
    fn flops(&self, reads: &[&Shape], writes: &[&Shape]) -> u64;

    /// The kernel with its parameters, for a recorded program to keep.
    fn boxed(&self) -> Box<dyn Kernel>;

    /// The parameters as text: equal for two kernels exactly if they do the same.
    fn parameters(&self) -> String;
}

/// A tensor as a kernel sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub(crate) storage: &'a Recycled<Storage>,
    pub(crate) layout: &'a Layout,
    pub(crate) dtype: DType,
}

impl Operand<'_> {
    /// The bytes of the storage from the first to the last element.
    pub(crate) fn byte_range(&self) -> Range<usize> {
        let span = self.layout.span();
        span.start * self.dtype.size()..span.end * self.dtype.size()
    }

    /// The address of the first element, in the device's address space.
    pub(crate) fn address(&self) -> u64 {
        (self.storage.block().address + self.layout.offset() * self.dtype.size()) as u64
    }

    pub(super) fn same_view(&self, other: &Operand<'_>) -> bool {
        self.storage.id() == other.storage.id() && self.layout == other.layout && self.dtype == other.dtype
    }

    fn overlaps(&self, other: &Operand<'_>) -> bool {
        let (a, b) = (self.byte_range(), other.byte_range());
        self.storage.id() == other.storage.id()
            && !a.is_empty()
            && !b.is_empty()
            && a.start < b.end
            && b.start < a.end
    }
}

/// What a kernel does to an operand that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Every element is written, none is read.
    Replace,
    /// The result is added to what is there.
    Accumulate,
}

/// A kernel with the byte ranges that it reads and writes.
pub(crate) struct Launch<'a> {
    pub(crate) op: &'static str,
    pub(crate) kernel: &'a dyn Kernel,
    pub(crate) reads: &'a [Operand<'a>],
    pub(crate) writes: &'a [(Operand<'a>, Mode)],
    /// Memory for the kernel to work in, of no meaning before and after.
    pub(crate) workspace: Option<Operand<'a>>,
}

impl<'a> Launch<'a> {
    /// What the kernel writes, its workspace included.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Operand<'a>> {
        self.writes.iter().map(|(o, _)| o).chain(&self.workspace)
    }

    /// The rules that make it sound to hand out slices of the operands' memory: every range lies in
    /// its storage, and a range that is written meets no other, except that an operand may be
    /// read where it is written, element for element.
    pub(crate) fn verify(&self) -> Result<()> {
        let all = self.reads.iter().chain(self.written());
        for operand in all {
            if operand.byte_range().end > operand.storage.bytes() {
                return Err(Error::internal(self.op, "an operand reaches beyond its storage"));
            }
        }
        for (i, (write, _)) in self.writes.iter().enumerate() {
            if write.layout.repeats_memory() {
                return Err(Error::internal(self.op, "a written operand repeats memory"));
            }
            let others = self.writes[i + 1..].iter().map(|(o, _)| o);
            if others.into_iter().any(|o| write.overlaps(o))
                || self.reads.iter().any(|r| write.overlaps(r) && !write.same_view(r))
            {
                return Err(Error::internal(self.op, "a written range overlaps another operand"));
            }
        }
        Ok(())
    }
}
