//! A launch: a kernel with its operands.

use std::ops::Range;

use super::args::HostArgs;
use super::communicator::Communicator;
use super::cuda::{CudaArgs, Gpu};
use super::storage::Storage;
use crate::error::{Error, Result};
use crate::recycled::Recycled;
use crate::types::{DType, Layout, Shape};

/// Lists of up to this many operands and results need no heap memory: as many as AdamW and batch norm have.
pub(crate) const OPERANDS: usize = 12;
pub(crate) const RESULTS: usize = 5;

/// The kernel of an operation, for each kind of device.
pub(crate) trait Kernel: Send + Sync {
    /// Runs on the CPU, on locked memory.
    fn host(&self, args: &mut HostArgs<'_>) -> Result<()>;

    /// Asks for the kernels and matrix products that do the work on CUDA.
    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()>;

    /// Whether it can fail because of values of its operands, such as an index out of range. Such a launch stays in a
    /// recorded step even if nobody reads its results.
    fn can_fail(&self) -> bool;

    /// Whether [`Kernel::host`] always runs on threads that run nothing but kernels, however small its operands are. Code of users
    /// does, because it may use rayon: elsewhere, its tasks could wait for other tasks, which wait for the locks of this launch.
    fn needs_kernel_threads(&self) -> bool {
        false
    }

    /// Whether [`Kernel::host`] takes hardly longer than to read and to write memory.
    fn streams(&self) -> bool {
        false
    }

    /// Workspace bytes that the CUDA kernels need.
    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize>;

    /// Multiplications and additions of its matrix products, from the shapes of operands and results.
    fn flops(&self, reads: &[&Shape], writes: &[&Shape]) -> u64;

    /// The communicator that a collective works on. Launches with one are written resources: they keep their order, stay in a
    /// recorded step even if nobody reads their results, and on the CPU run on the calling thread, because they wait for
    /// other ranks.
    fn communicator(&self) -> Option<&Communicator> {
        None
    }

    /// The operation that writes result `o`, if the kernel stands for several.
    fn writer(&self, _o: usize) -> Option<&'static str> {
        None
    }

    /// The operations that the kernel stands for, each with its operands, as lines of a table.
    fn parts(&self) -> Vec<String> {
        Vec::new()
    }

    /// A copy of the kernel with its parameters, for a recorded program.
    fn boxed(&self) -> Box<dyn Kernel>;

    /// The parameters as text. The texts of two kernels are equal if and only if they do the same, up to
    /// [`Kernel::words_before`].
    fn parameters(&self) -> String;

    /// Where the part of a batch that the kernel draws random numbers for begins: the words of the rows before. Ranks differ
    /// in it, recordings of one rank don't.
    fn words_before(&self) -> u64 {
        0
    }
}

/// A tensor as kernels see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub(crate) storage: &'a Recycled<Storage>,
    pub(crate) layout: &'a Layout,
    pub(crate) dtype: DType,
}

impl Operand<'_> {
    /// The range of the storage from the first byte to the last.
    pub(crate) fn byte_range(&self) -> Range<usize> {
        let span = self.layout.span();
        span.start * self.dtype.size()..span.end * self.dtype.size()
    }

    /// The address of the first element, in the address space of the device.
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
    /// It writes every element and reads none.
    Replace,
    /// It adds the result to the values that are there.
    Accumulate,
}

/// A kernel with the byte ranges that it reads and writes.
pub(crate) struct Launch<'a> {
    pub(crate) op: &'static str,
    pub(crate) kernel: &'a dyn Kernel,
    pub(crate) reads: &'a [Operand<'a>],
    pub(crate) writes: &'a [(Operand<'a>, Mode)],
    /// A workspace for the kernel, whose content does not matter before and after.
    pub(crate) workspace: Option<Operand<'a>>,
}

impl<'a> Launch<'a> {
    /// What the kernel writes, including its workspace.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Operand<'a>> {
        self.writes.iter().map(|(o, _)| o).chain(&self.workspace)
    }

    /// Checks the rules that make it sound to give out slices of the operands' memory. Every range is inside its
    /// storage. A written range overlaps no other range, except that an operand may be read where it is written,
    /// element for element.
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
