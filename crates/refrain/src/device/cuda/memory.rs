//! Device memory in stream order, and copies between host and device.
#![allow(unsafe_code)] // Calls NVIDIA's driver.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUmemPool_attribute};

use super::context::Context;
use crate::device::pieces::PIECE;
use crate::error::{Error, Result};

/// The number of pieces of pinned host memory that one copy goes through. While the device copies one, the next one is
/// filled.
const PIECES: usize = 4;

/// A private pool of device memory. It keeps what is freed, so that after the first steps a step asks the system for
/// nothing.
pub(super) struct Pool {
    handle: sys::CUmemoryPool,
    /// Bytes that the pool has reserved from the system, as last seen.
    reserved: AtomicUsize,
    /// How often that number grew.
    grown: AtomicU64,
}

// SAFETY: a pool handle may be used from any thread; the rest is atomics.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    pub(super) fn new(context: &Context) -> std::result::Result<Pool, DriverError> {
        // SAFETY: the struct is plain data for which all zeros mean defaults.
        let mut props: sys::CUmemPoolProps = unsafe { MaybeUninit::zeroed().assume_init() };
        props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        props.location.id = context.device;
        // SAFETY: the properties are valid.
        let handle = unsafe { result::mem_pool::create(&props) }?;
        let mut threshold = u64::MAX;
        // SAFETY: this attribute is a u64.
        unsafe {
            result::mem_pool::set_attribute(
                handle,
                CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut threshold).cast(),
            )
        }?;
        Ok(Pool { handle, reserved: AtomicUsize::new(0), grown: AtomicU64::new(0) })
    }

    fn attribute(&self, attribute: CUmemPool_attribute) -> usize {
        let mut value = 0u64;
        // SAFETY: the attributes asked for below are u64.
        let read =
            unsafe { result::mem_pool::get_attribute(self.handle, attribute, (&raw mut value).cast()) };
        read.map_or(0, |()| value as usize)
    }

    fn reserved(&self) -> usize {
        self.attribute(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    /// Memory for work that is queued on the stream from now on.
    pub(super) fn alloc(&self, bytes: usize, stream: sys::CUstream) -> std::result::Result<u64, DriverError> {
        // SAFETY: pool and stream are valid.
        let address = unsafe { result::mem_pool::alloc_async(self.handle, bytes, stream) }?;
        let reserved = self.reserved();
        if reserved > self.reserved.swap(reserved, Ordering::Relaxed) {
            self.grown.fetch_add(1, Ordering::Relaxed);
        }
        Ok(address)
    }

    /// Frees memory after the work queued so far.
    ///
    /// # Safety
    /// The address came from `alloc` and is not used by work queued later.
    pub(super) unsafe fn free(
        &self,
        address: u64,
        stream: sys::CUstream,
    ) -> std::result::Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe { result::free_async(address, stream) }
    }

    /// Returns unused memory to the system. Returns the number of bytes. The stream must have been waited for.
    pub(super) fn trim(&self) -> usize {
        let before = self.reserved();
        // SAFETY: the pool is valid.
        let _ = unsafe { result::mem_pool::trim_to(self.handle, 0) };
        let after = self.reserved();
        self.reserved.store(after, Ordering::Relaxed);
        before.saturating_sub(after)
    }

    pub(super) fn pooled(&self) -> usize {
        self.reserved().saturating_sub(self.attribute(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
    }

    pub(super) fn grown(&self) -> u64 {
        self.grown.load(Ordering::Relaxed)
    }
}

/// Pinned host memory for copies. The device reads and writes it while the host continues.
#[derive(Default)]
pub(super) struct Staging {
    pieces: Mutex<Vec<Piece>>,
}

/// [`PIECE`] bytes of pinned host memory.
pub(super) struct Piece {
    memory: *mut c_void,
    /// Recorded after the copy that uses the piece.
    done: sys::CUevent,
    busy: bool,
}

// SAFETY: the memory belongs to the piece alone, and event handles may be used from any thread.
unsafe impl Send for Piece {}

impl Piece {
    fn new() -> std::result::Result<Piece, DriverError> {
        // SAFETY: a context is current; the memory is kept until the process ends.
        let memory = unsafe { result::malloc_host(PIECE, 0) }?;
        // SAFETY: allocated above, with this size.
        unsafe { std::ptr::write_bytes(memory.cast::<u8>(), 0, PIECE) };
        let done = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Piece { memory, done, busy: false })
    }

    /// Waits until the copy that used the piece is done.
    fn wait(&mut self) -> std::result::Result<(), DriverError> {
        if std::mem::take(&mut self.busy) {
            // SAFETY: the event is valid and was recorded.
            unsafe { result::event::synchronize(self.done) }?;
        }
        Ok(())
    }

    fn record(&mut self, stream: sys::CUstream) -> std::result::Result<(), DriverError> {
        // SAFETY: event and stream are valid.
        unsafe { result::event::record(self.done, stream) }?;
        self.busy = true;
        Ok(())
    }

    /// The first bytes of the piece. No copy uses them: see [`Pair::next`].
    pub(super) fn bytes(&mut self, length: usize) -> &mut [u8] {
        debug_assert!(length <= PIECE && !self.busy);
        // SAFETY: the piece has PIECE bytes, which were initialised when it was made, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.memory.cast::<u8>(), length.min(PIECE)) }
    }

    /// Copies the first bytes of the piece to the device in stream order.
    ///
    /// # Safety
    /// `length` bytes at `to` are device memory that may be written.
    pub(super) unsafe fn upload(
        &mut self,
        length: usize,
        to: u64,
        stream: sys::CUstream,
    ) -> std::result::Result<(), DriverError> {
        // SAFETY: the caller's promise for `to`. The copy is waited for before the piece is written again.
        unsafe { result::memcpy_htod_async(to, self.bytes(length), stream) }?;
        self.record(stream).inspect_err(|_| {
            // No event tells when the copy is done.
            // SAFETY: the stream is valid.
            let _ = unsafe { result::stream::synchronize(stream) };
        })
    }
}

/// Two pieces that one thread has for itself. The device copies one while the thread fills the other.
pub(super) struct Pair<'a> {
    staging: &'a Staging,
    pieces: Vec<Piece>,
}

impl Pair<'_> {
    /// The piece that was used longest ago, after its copy is done.
    pub(super) fn next(&mut self) -> std::result::Result<&mut Piece, DriverError> {
        self.pieces.rotate_left(1);
        let piece = &mut self.pieces[0];
        piece.wait()?;
        Ok(piece)
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        self.staging.pieces.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.pieces);
    }
}

impl Staging {
    /// Two pieces for the calling thread. They are kept for the next copies when it gives them back.
    pub(super) fn lend(&self) -> std::result::Result<Pair<'_>, DriverError> {
        let mut pair = Pair { staging: self, pieces: Vec::with_capacity(2) };
        let mut kept = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        while pair.pieces.len() < 2 {
            pair.pieces.push(match kept.pop() {
                Some(piece) => piece,
                None => Piece::new()?,
            });
        }
        Ok(pair)
    }

    fn pieces(&self) -> std::result::Result<MutexGuard<'_, Vec<Piece>>, DriverError> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        while pieces.len() < PIECES {
            pieces.push(Piece::new()?);
        }
        Ok(pieces)
    }

    /// Copies to the device in stream order. After this returns, the host may change `from`.
    ///
    /// # Safety
    /// `from.len()` bytes at `to` are device memory that may be written.
    pub(super) unsafe fn upload(
        &self,
        from: &[u8],
        to: u64,
        stream: sys::CUstream,
    ) -> std::result::Result<(), DriverError> {
        let mut pieces = self.pieces()?;
        for (i, chunk) in from.chunks(PIECE).enumerate() {
            // The least recently used piece comes first.
            let piece = &mut pieces[0];
            piece.wait()?;
            piece.bytes(chunk.len()).copy_from_slice(chunk);
            // SAFETY: the caller's promise for `to`.
            unsafe { piece.upload(chunk.len(), to + (i * PIECE) as u64, stream) }?;
            pieces.rotate_left(1);
        }
        Ok(())
    }

    /// Copies to the host, after all work queued so far.
    ///
    /// # Safety
    /// `to.len()` bytes at `from` are device memory.
    pub(super) unsafe fn download(
        &self,
        from: u64,
        to: &mut [u8],
        stream: sys::CUstream,
    ) -> std::result::Result<(), DriverError> {
        let mut pieces = self.pieces()?;
        let mut chunks = to.chunks_mut(PIECE).enumerate();
        let mut waiting: Option<(usize, &mut [u8])> = None;
        loop {
            let next = chunks.next();
            let queued = match next {
                None => None,
                Some((i, chunk)) => {
                    let piece = &mut pieces[i % PIECES];
                    piece.wait()?;
                    // SAFETY: no copy uses the piece now, and it has PIECE bytes, initialised or not: the device
                    // writes them, and they are read after that was waited for.
                    let staged = unsafe {
                        std::slice::from_raw_parts_mut(piece.memory.cast::<MaybeUninit<u8>>(), chunk.len())
                    };
                    // SAFETY: the caller's promise for `from`.
                    unsafe { result::memcpy_dtoh_async(staged, from + (i * PIECE) as u64, stream) }?;
                    piece.record(stream)?;
                    Some((i, chunk))
                }
            };
            if let Some((i, chunk)) = waiting.take() {
                let piece = &mut pieces[i % PIECES];
                piece.wait()?;
                // SAFETY: the device has written these bytes of the piece.
                unsafe {
                    std::ptr::copy_nonoverlapping(piece.memory.cast(), chunk.as_mut_ptr(), chunk.len());
                }
            }
            match queued {
                Some(queued) => waiting = Some(queued),
                None => return Ok(()),
            }
        }
    }
}

/// Converts the error of a failed allocation.
pub(super) fn allocation_error(context: &Context, op: &'static str, bytes: usize, e: DriverError) -> Error {
    match e.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory {
            device: context.name().to_string(),
            requested: bytes,
            live: 0,
            pooled: 0,
            free: free_bytes(),
        },
        _ => context.error(op, e),
    }
}

/// Free bytes of the current context's device.
pub(super) fn free_bytes() -> Option<usize> {
    result::mem_get_info().ok().map(|(free, _)| free)
}

/// Converts an error to a `Result` of the engine.
pub(super) fn checked<T>(
    context: &Context,
    op: &'static str,
    done: std::result::Result<T, DriverError>,
) -> Result<T> {
    done.map_err(|e| context.error(op, e))
}
