//! What kernels report about the values of operands: only the device knows whether an index is out of range. The host
//! gets the error at its next call on the device that launches, copies or waits.
#![allow(unsafe_code)] // Reads host memory that the device writes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::params::{Pointer, params};
use crate::device::driver::FOUND_LATE;
use crate::error::Error;

/// What an index refers to, for the error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bounds {
    /// Positions along an axis.
    Axis,
    /// Classes.
    Classes,
    /// Time steps at which windows of some length may start.
    Starts,
    /// The number of steps that an optimiser has done.
    Steps,
    /// What a kernel of a user's operation says, of two numbers: `{0}` and `{1}`.
    Message(&'static str),
}

params! {
    /// What a kernel reports indices out of range with.
    pub(crate) struct Reporter {
        /// Where its stream's kernels report.
        slot: Pointer = "volatile u64*",
        /// Who the operation is.
        origin: u64,
    }
}

impl Reporter {
    /// Of a kernel that reports nothing.
    pub(crate) const NONE: Reporter = Reporter { slot: Pointer::NOTHING, origin: 0 };

    pub(super) fn new(op: &'static str, bounds: Bounds) -> Reporter {
        Reporter { slot: Pointer::FAULTS, origin: origin(op, bounds) }
    }
}

/// The used words of a slot: the origin (0: nothing was reported), the index, the number of valid indices, and whether a
/// thread is writing them.
const WORDS: usize = 4;
/// Bytes per slot: a cache line, so that slots do not share one.
const SLOT: usize = 64;
/// Slots per page.
const SLOTS: usize = 64;

/// Where the kernels of a context report: pinned host memory, which the device writes and the host reads. A slot
/// belongs to one stream until the process ends, because a graph that was captured on the stream may outlive the
/// device's handle.
#[derive(Default)]
pub(super) struct Faults {
    unused: Mutex<Vec<Slot>>,
}

/// Where the kernels of one stream report.
pub(super) struct Slot {
    memory: *const AtomicU64,
    /// The same memory in the device's address space.
    address: u64,
}

// SAFETY: the memory is never freed, and the host looks at it through atomics only.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Faults {
    /// A new slot for a stream. A context must be current.
    pub(super) fn slot(&self) -> std::result::Result<Slot, DriverError> {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.is_empty() {
            let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
            // SAFETY: a context is current; the memory is kept until the process ends.
            let memory: *mut c_void = unsafe { result::malloc_host(SLOT * SLOTS, flags) }?;
            // SAFETY: the bytes were just allocated.
            unsafe { std::ptr::write_bytes(memory.cast::<u8>(), 0, SLOT * SLOTS) };
            let mut address = 0;
            // SAFETY: the memory is mapped for devices; writes one address.
            unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, memory, 0) }.result()?;
            unused.extend((0..SLOTS).map(|i| Slot {
                memory: memory.wrapping_byte_add(i * SLOT).cast_const().cast(),
                address: address + (i * SLOT) as u64,
            }));
        }
        unused.pop().ok_or(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))
    }
}

impl Slot {
    /// Where kernels report, in the device's address space.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Whether there is a report that nobody has taken.
    pub(super) fn is_reported(&self) -> bool {
        // SAFETY: the first word of the slot, which lives until the process ends.
        unsafe { &*self.memory }.load(Ordering::Acquire) != 0
    }

    /// Takes the report, if there is one. The stream must have been waited for, so that all words of a report are
    /// there.
    pub(super) fn take(&self) -> Option<Error> {
        // SAFETY: the words lie within the slot, are aligned, and live until the process ends.
        let words: [&AtomicU64; WORDS] = std::array::from_fn(|i| unsafe { &*self.memory.add(i) });
        if words[0].load(Ordering::Acquire) == 0 {
            return None;
        }
        // If several threads have waited, one of them takes it.
        let origins = ORIGINS.lock().unwrap_or_else(PoisonError::into_inner);
        let origin = match words[0].load(Ordering::Acquire) {
            0 => return None,
            origin => origin,
        };
        let (index, places) = (words[1].load(Ordering::Relaxed) as i64, words[2].load(Ordering::Relaxed));
        // The lock last: who has it may write.
        words[0].store(0, Ordering::Release);
        words[3].store(0, Ordering::Release);
        Some(error(&origins, origin, index, places))
    }
}

/// The possible origins: operations, and what their indices refer to. A report has the position in this list, counted
/// from 1.
static ORIGINS: Mutex<Vec<(&'static str, Bounds)>> = Mutex::new(Vec::new());

fn origin(op: &'static str, bounds: Bounds) -> u64 {
    let mut origins = ORIGINS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = origins.iter().position(|&o| o == (op, bounds));
    let at = known.unwrap_or_else(|| {
        origins.push((op, bounds));
        origins.len() - 1
    });
    at as u64 + 1
}

fn error(origins: &[(&'static str, Bounds)], origin: u64, index: i64, places: u64) -> Error {
    let Some(&(op, bounds)) = usize::try_from(origin).ok().and_then(|o| origins.get(o.checked_sub(1)?))
    else {
        return Error::internal(
            "synchronize",
            format!("a kernel reported an index as of operation {origin}"),
        );
    };
    let out_of =
        |what: String| format!("index {index} is out of range for {what}; indices must lie in 0..{places}");
    let message = match bounds {
        Bounds::Axis => out_of(format!("an axis of size {places}")),
        Bounds::Classes => out_of(format!("{places} classes")),
        Bounds::Starts => out_of(format!("the {places} time steps at which a window may start")),
        Bounds::Steps => format!(
            "the step counter is {index}; set it to the number of steps done, from 0 to {}",
            places.saturating_sub(1)
        ),
        Bounds::Message(text) => {
            text.replace("{0}", &index.to_string()).replace("{1}", &(places as i64).to_string())
        }
    };
    Error::invalid(op, message + FOUND_LATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_operation_the_index_and_the_places_once() {
        let words: [AtomicU64; WORDS] = Default::default();
        let slot = Slot { memory: words.as_ptr(), address: 64 };
        assert!(slot.take().is_none());
        let gather = Reporter::new("gather", Bounds::Axis).origin;
        let one_hot = Reporter::new("one_hot", Bounds::Classes).origin;
        let adamw = Reporter::new("adamw", Bounds::Steps).origin;
        let own = Reporter::new("own", Bounds::Message("row {0} of {1} is {0}")).origin;
        assert_eq!(Reporter::new("gather", Bounds::Axis).origin, gather);
        assert_ne!(gather, one_hot);
        for (origin, index, starts) in [
            (gather, 7, "gather: index 7 is out of range for an axis of size 5; indices must lie in 0..5"),
            (one_hot, -1, "one_hot: index -1 is out of range for 5 classes"),
            (own, -3, "own: row -3 of 5 is -3 (the GPU found it"),
            (adamw, -2, "adamw: the step counter is -2; set it to the number of steps done, from 0 to 4"),
        ] {
            words[1].store(index as u64, Ordering::Relaxed);
            words[2].store(5, Ordering::Relaxed);
            words[3].store(1, Ordering::Relaxed);
            words[0].store(origin, Ordering::Relaxed);
            let error = slot.take().expect("a report");
            assert!(matches!(error, Error::InvalidArgument { .. }));
            assert!(error.to_string().starts_with(starts), "{error}");
            assert!(slot.take().is_none());
            assert_eq!(words[3].load(Ordering::Relaxed), 0, "no other thread could report");
        }
    }

    #[test]
    fn a_report_of_nobody_is_an_internal_error() {
        assert!(matches!(error(&[], 0, 0, 0), Error::Internal { .. }));
        assert!(matches!(error(&[], u64::MAX, 0, 0), Error::Internal { .. }));
    }
}
