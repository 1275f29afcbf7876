//! The one place where kernels see raw memory.
//!
//! A kernel on the CPU asks for its operands by number and gets slices. Three things together make this sound:
//! `Launch::verify` (ranges are inside their storages, and written ranges overlap no other range), `Device::launch`
//! (it holds the locks of the storages while the kernel runs) and the flags below (each written operand is given out
//! once).
#![allow(unsafe_code)] // Slices of a storage's memory are made here and nowhere else.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use bytemuck::Pod;
use smallvec::SmallVec;

use super::launch::RESULTS;
use super::launch::{Launch, Mode, Operand};
use super::storage::Storage;
use super::{DeviceKind, cpu};
use crate::error::{Error, Result};
use crate::recycled::Recycled;
use crate::types::{DType, Layout, Shape};

/// What a kernel does with an operand's value that it can't use, such as an index out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::device) enum OnFault {
    /// The launch returns an error, and nothing was written.
    Stop,
    /// What the kernel of a GPU does: it continues, with NaN, 0 or nothing in that place. The error is reported
    /// afterwards.
    Continue,
}

/// The operands of a launch as slices of host memory.
pub(crate) struct HostArgs<'a> {
    launch: &'a Launch<'a>,
    /// For each written operand, whether it was given out already.
    taken: SmallVec<[Cell<bool>; RESULTS]>,
    on_fault: OnFault,
    /// The first value that the kernel could not use, if it continued.
    fault: RefCell<Option<Error>>,
    /// The slices are of host memory, so this must not move to another thread as a whole.
    _memory: PhantomData<*mut u8>,
}

impl<'a> HostArgs<'a> {
    /// # Safety
    /// `launch.verify()` passed, the blocks lie in host memory, are initialised, and for `'a` nobody
    /// else writes what the launch reads or touches what it writes.
    pub(in crate::device) unsafe fn new(launch: &'a Launch<'a>, on_fault: OnFault) -> HostArgs<'a> {
        HostArgs {
            launch,
            taken: launch.writes.iter().map(|_| Cell::new(false)).collect(),
            on_fault,
            fault: RefCell::default(),
            _memory: PhantomData,
        }
    }

    pub(crate) fn op(&self) -> &'static str {
        self.launch.op
    }

    pub(crate) fn launch(&self) -> &'a Launch<'a> {
        self.launch
    }

    /// Runs a part of this launch now. Its operands lie in those of this launch, or in memory of the host that only the
    /// caller has, `own`.
    ///
    /// # Errors
    /// For a part that touches anything else, and the error of its kernel.
    pub(crate) fn run_part(&self, part: &Launch<'_>, own: &[Recycled<Storage>]) -> Result<()> {
        part.verify()?;
        let is_own = |o: &Operand<'_>| {
            let mut storages = own.iter().filter(|s| s.ptr_eq(o.storage));
            storages.any(|s| s.is_unique() && s.device().kind() == DeviceKind::Cpu)
        };
        let within = |outer: &Operand<'_>, o: &Operand<'_>| {
            let (outer_range, range) = (outer.byte_range(), o.byte_range());
            outer.storage.ptr_eq(o.storage)
                && outer_range.start <= range.start
                && range.end <= outer_range.end
        };
        let writes = |o: &Operand<'_>| self.launch.writes.iter().any(|(outer, _)| within(outer, o));
        let reads = |o: &Operand<'_>| self.launch.reads.iter().any(|outer| within(outer, o));
        let sound = part.reads.iter().all(|o| is_own(o) || reads(o) || writes(o))
            && part.written().all(|o| is_own(o) || writes(o))
            && !self.taken.iter().any(Cell::get);
        if !sound {
            return Err(Error::internal(part.op, "a part touches memory that is not its launch's"));
        }
        // SAFETY: the part was verified. Its operands lie in those of this launch, whose memory is there and which nobody
        // else touches, or in memory of the host that has no other owner than the caller, who only lends it to this. No
        // slice of a written operand was given out.
        unsafe { cpu::run(part, self.on_fault) }
    }

    /// Reports an operand's value that the kernel can't use. Call it before anything is written, unless the operation says that an error
    /// does not keep its results from being written. If it returns `Ok`,
    /// the kernel continues and must not use the value.
    pub(crate) fn fault(&self, error: Error) -> Result<()> {
        if !self.launch.kernel.can_fail() {
            // A recorded step might remove the launch and lose the error.
            return Err(Error::internal(self.op(), format!("its can_fail denies that it can fail: {error}")));
        }
        match self.on_fault {
            OnFault::Stop => Err(error),
            OnFault::Continue => {
                self.fault.borrow_mut().get_or_insert(error);
                Ok(())
            }
        }
    }

    /// The error that the kernel reported while it continued, if any.
    pub(in crate::device) fn reported(self) -> Result<()> {
        self.fault.into_inner().map_or(Ok(()), Err)
    }

    pub(crate) fn reads(&self) -> usize {
        self.launch.reads.len()
    }

    pub(crate) fn read_layout(&self, i: usize) -> &'a Layout {
        self.launch.reads[i].layout
    }

    pub(crate) fn read_shape(&self, i: usize) -> &'a Shape {
        self.launch.reads[i].layout.shape()
    }

    pub(crate) fn read_dtype(&self, i: usize) -> DType {
        self.launch.reads[i].dtype
    }

    pub(crate) fn write_layout(&self, o: usize) -> &'a Layout {
        self.launch.writes[o].0.layout
    }

    pub(crate) fn write_shape(&self, o: usize) -> &'a Shape {
        self.launch.writes[o].0.layout.shape()
    }

    pub(crate) fn write_dtype(&self, o: usize) -> DType {
        self.launch.writes[o].0.dtype
    }

    /// Whether the kernel adds to output `o` instead of replacing it.
    pub(crate) fn accumulate(&self, o: usize) -> bool {
        self.launch.writes[o].1 == Mode::Accumulate
    }

    /// The output that has the same memory as operand `i`, element for element.
    pub(crate) fn in_place(&self, i: usize) -> Option<usize> {
        let read = &self.launch.reads[i];
        self.launch.writes.iter().position(|(w, _)| w.same_view(read) && w.layout.numel() > 0)
    }

    /// The elements of read operand `i` from the first to the last, in memory order. For a contiguous layout these
    /// are exactly its elements. Returns an error if the operand is also written: an in-place kernel uses the one
    /// slice that `write` returns.
    pub(crate) fn read<T: Pod>(&self, i: usize) -> Result<&'a [T]> {
        let operand = &self.launch.reads[i];
        self.check_type::<T>(operand)?;
        if self.in_place(i).is_some() {
            return Err(Error::internal(
                self.op(),
                "an operand that is written in place was requested for reading",
            ));
        }
        let range = operand.byte_range();
        if range.is_empty() {
            return Ok(&[]);
        }
        let address = operand.storage.block().address + range.start;
        // SAFETY: `verify` saw the range inside the block, which holds initialised bytes at 64-byte
        // alignment and begins at a multiple of T's size; T is plain data. The storage's lock is held
        // for 'a, and no slice made by `write` meets this range (`verify`, and the test above).
        Ok(unsafe {
            std::slice::from_raw_parts(
                std::ptr::with_exposed_provenance(address),
                range.len() / size_of::<T>(),
            )
        })
    }

    /// The elements of output `o` from the first to the last. Each output is given out once. In a layout with gaps,
    /// the memory between the elements belongs to others and must not change.
    pub(crate) fn write<T: Pod>(&self, o: usize) -> Result<&'a mut [T]> {
        let (operand, _) = &self.launch.writes[o];
        self.check_type::<T>(operand)?;
        if self.taken[o].replace(true) {
            return Err(Error::internal(self.op(), "an output was requested twice"));
        }
        let range = operand.byte_range();
        if range.is_empty() {
            return Ok(&mut []);
        }
        let address = operand.storage.block().address + range.start;
        // SAFETY: as for `read`; the lock is held exclusively, `taken` makes this the only slice of
        // the output, and `verify` saw that no other operand's range meets it (an operand that is
        // the same view is refused by `read`).
        Ok(unsafe {
            std::slice::from_raw_parts_mut(
                std::ptr::with_exposed_provenance_mut(address),
                range.len() / size_of::<T>(),
            )
        })
    }

    fn check_type<T>(&self, operand: &Operand<'_>) -> Result<()> {
        // The door refuses storages without memory; this is the last check.
        if operand.byte_range().end > operand.storage.block().bytes {
            return Err(Error::internal(self.op(), "an operand reaches beyond its memory"));
        }
        if size_of::<T>() == operand.dtype.size() && align_of::<T>() <= 64 {
            return Ok(());
        }
        Err(Error::internal(self.op(), format!("a {} operand was requested as another type", operand.dtype)))
    }
}

/// Copies host bytes into a block.
///
/// # Safety
/// The block lies in host memory and nobody else touches it meanwhile.
pub(in crate::device) unsafe fn copy_in(from: &[u8], block: &super::driver::Block, offset: usize) {
    assert!(offset + from.len() <= block.bytes);
    // SAFETY: the range lies in the block (asserted), which the caller has to itself; `from` is a
    // live slice and thus not part of a block that anybody may write.
    unsafe {
        std::ptr::copy_nonoverlapping(
            from.as_ptr(),
            std::ptr::with_exposed_provenance_mut(block.address + offset),
            from.len(),
        );
    }
}

/// Sets all bytes of a block.
///
/// # Safety
/// The block lies in host memory and nobody else touches it meanwhile.
pub(in crate::device) unsafe fn set(block: &super::driver::Block, byte: u8) {
    // SAFETY: the block is the caller's alone.
    unsafe {
        std::ptr::write_bytes(std::ptr::with_exposed_provenance_mut::<u8>(block.address), byte, block.bytes);
    }
}

/// Copies bytes of a block to the host.
///
/// # Safety
/// The block lies in host memory and nobody writes it meanwhile.
pub(in crate::device) unsafe fn copy_out(block: &super::driver::Block, offset: usize, to: &mut [u8]) {
    assert!(offset + to.len() <= block.bytes);
    // SAFETY: as for `copy_in`, the other way round.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::with_exposed_provenance(block.address + offset),
            to.as_mut_ptr(),
            to.len(),
        );
    }
}
