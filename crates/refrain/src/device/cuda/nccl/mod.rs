//! NCCL, NVIDIA's library for collectives between GPUs.
//!
//! A communicator is blocking: its calls return when their work is queued on the stream (or is part of a capture). So a
//! capture gets the work of a call at once, and from the calling thread. What a blocking communicator can't do is to give up
//! while it is made; so that happens on a thread of its own, which is left behind if the other ranks do not come.
#![allow(unsafe_code)] // Calls NCCL.

mod api;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use cudarc::driver::result;
use cudarc::driver::sys::CUstream;

use super::context::describe;
use super::driver::Resources;
use crate::device::communicator::{CollectiveCall, CommunicatorId, ReduceOp};
use crate::error::{Error, Result};
use crate::types::DType;
use api::{Api, Comm, Config, IN_PROGRESS, SUCCESS, Status, UniqueId, api};

const OP: &str = "communicator";

/// The version of the library.
pub(super) fn version() -> std::result::Result<String, String> {
    api().map(|api| api::text_of(api.version))
}

fn unavailable(message: String) -> Error {
    Error::Unavailable { device: "NCCL".to_owned(), message }
}

/// What rank 0 makes for a new communicator.
pub(crate) fn unique_id() -> Result<[u8; CommunicatorId::BYTES]> {
    let api = api().map_err(unavailable)?;
    let mut id = UniqueId([0; CommunicatorId::BYTES]);
    // SAFETY: writes the bytes of the id.
    match unsafe { (api.get_unique_id)(&mut id) } {
        SUCCESS => Ok(id.0),
        status => Err(unavailable(api.describe(std::ptr::null_mut(), status))),
    }
}

/// NCCL's number for a dtype, which the operation has checked.
fn data_type(dtype: DType) -> Option<i32> {
    Some(match dtype {
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        DType::I32 | DType::U8 | DType::Bool => return None,
    })
}

fn reduction(op: ReduceOp) -> i32 {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Mean => 4,
    }
}

/// NCCL's handle.
#[derive(Clone, Copy)]
struct Handle(Comm);

// SAFETY: NCCL's communicators may be used from any thread, one call at a time; a lock is around this.
unsafe impl Send for Handle {}

/// The stream of a device, for another thread.
struct Stream(CUstream);

// SAFETY: a stream handle may be used from any thread.
unsafe impl Send for Stream {}

/// The memory of a collective.
pub(super) struct Buffers {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The elements that each rank gives.
    pub(super) given: usize,
    /// The elements that each rank gets.
    pub(super) got: usize,
    pub(super) dtype: DType,
}

/// One rank of a communicator of GPUs.
pub(crate) struct Nccl {
    api: &'static Api,
    shared: Arc<Resources>,
    rank: usize,
    /// `None` after it was aborted.
    handle: Mutex<Option<Handle>>,
    /// Why it can't be used any more.
    failed: OnceLock<String>,
    /// Whether a call that waits has told so.
    told: AtomicBool,
    /// Whether it is being ended.
    aborted: AtomicBool,
}

/// Makes the communicator of a rank. `scratch` is 8 bytes of the device. A thread that is left behind may go on using them:
/// they must stay if the error is [`Error::Collective`].
pub(super) fn connect(
    shared: &Arc<Resources>,
    stream: CUstream,
    scratch: u64,
    id: &CommunicatorId,
    [rank, size]: [usize; 2],
    limit: Duration,
) -> Result<Arc<Nccl>> {
    let api = api().map_err(unavailable)?;
    let failed = move |message: String| Error::Collective { op: OP, rank, message };
    let mut bytes = [0; CommunicatorId::BYTES];
    bytes.copy_from_slice(id.as_bytes());
    let (done, outcome) = mpsc::channel();
    let (shared, stream) = (shared.clone(), Stream(stream));
    let open = move || {
        let stream = stream;
        let made = Nccl::open(api, shared, UniqueId(bytes), [rank, size]).and_then(|nccl| {
            nccl.warm_up(scratch, stream.0)?;
            Ok(Arc::new(nccl))
        });
        // If nobody waits for it any more, it is dropped here.
        let _ = done.send(made);
    };
    let thread = thread::Builder::new().name("refrain-nccl".to_owned()).spawn(open);
    thread.map_err(|e| failed(format!("the system gives no thread: {e}")))?;
    outcome.recv_timeout(limit).unwrap_or_else(|_| {
        Err(failed(format!(
            "not all of {size} ranks came within {limit:?}; check that {size} processes run, each with its own rank and GPU and with the id of this run of rank 0, and that they reach one another (NCCL_SOCKET_IFNAME chooses the network interface, NCCL_DEBUG=INFO prints what NCCL does)"
        )))
    })
}

impl Nccl {
    fn open(
        api: &'static Api,
        shared: Arc<Resources>,
        id: UniqueId,
        [rank, size]: [usize; 2],
    ) -> Result<Nccl> {
        // NCCL takes the GPU of the thread's current context.
        let entered = shared.context().enter(OP)?;
        let mut handle = std::ptr::null_mut();
        let mut config = Config::blocking();
        // SAFETY: a context is current; the configuration is complete; writes one handle.
        let status =
            unsafe { (api.comm_init_rank_config)(&mut handle, size as i32, id, rank as i32, &mut config) };
        if status != SUCCESS {
            let message =
                format!("the ranks can't be connected: {}", api.describe(std::ptr::null_mut(), status));
            return Err(Error::Collective { op: OP, rank, message });
        }
        drop(entered);
        let (handle, failed, told) =
            (Mutex::new(Some(Handle(handle))), OnceLock::new(), AtomicBool::new(false));
        let aborted = AtomicBool::new(false);
        Ok(Nccl { api, shared, rank, handle, failed, told, aborted })
    }

    /// Runs a first collective to its end: NCCL makes its connections then, which must not happen in a capture.
    fn warm_up(&self, scratch: u64, stream: CUstream) -> Result<()> {
        let buffers = Buffers { from: scratch, to: scratch, given: 1, got: 1, dtype: DType::I64 };
        self.run(OP, CollectiveCall::Barrier, &buffers, stream)?;
        let _entered = self.shared.context().enter(OP)?;
        // SAFETY: the stream is valid.
        unsafe { result::stream::synchronize(stream) }.map_err(|e| self.collective(OP, describe(e)))
    }

    fn collective(&self, op: &'static str, message: String) -> Error {
        Error::Collective { op, rank: self.rank, message }
    }

    /// An error if it can't be used any more.
    pub(super) fn usable(&self, op: &'static str) -> Result<()> {
        self.failed.get().map_or(Ok(()), |message| Err(self.collective(op, message.clone())))
    }

    /// Sends a collective to a stream, or into the graph that the stream captures.
    pub(super) fn run(
        &self,
        op: &'static str,
        call: CollectiveCall,
        buffers: &Buffers,
        stream: CUstream,
    ) -> Result<()> {
        let _entered = self.shared.context().enter(op)?;
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        self.usable(op)?;
        let (Some(Handle(comm)), Some(dtype)) = (*handle, data_type(buffers.dtype)) else {
            return Err(Error::internal(op, "NCCL has no communicator or dtype for it"));
        };
        let (api, stream) = (self.api, stream.cast());
        let (from, to) = (buffers.from as *const _, buffers.to as *mut _);
        let (given, got) = (buffers.given, buffers.got);
        // SAFETY: the communicator lives while its lock is held and it was not aborted. The memory is that of the launch's
        // operands, whose ranges the door has checked and whose sizes the operation derived from those of the ranks; it lives
        // until work queued before its release is done.
        let status = unsafe {
            match call {
                CollectiveCall::AllReduce(by) => {
                    (api.all_reduce)(from, to, got, dtype, reduction(by), comm, stream)
                }
                CollectiveCall::Barrier => {
                    (api.all_reduce)(from, to, got, dtype, reduction(ReduceOp::Sum), comm, stream)
                }
                CollectiveCall::Broadcast { root } => {
                    (api.broadcast)(from, to, got, dtype, root as i32, comm, stream)
                }
                CollectiveCall::AllGather => (api.all_gather)(from, to, given, dtype, comm, stream),
                CollectiveCall::ReduceScatter(by) => {
                    (api.reduce_scatter)(from, to, got, dtype, reduction(by), comm, stream)
                }
            }
        };
        self.outcome(comm, status).map_err(|message| {
            // What it has queued by then is unknown, so the communicator is not used again, and it is aborted, not destroyed.
            let _ = self.failed.set(format!("NCCL refused an earlier collective: {message}"));
            self.told.store(true, Ordering::Relaxed);
            self.collective(op, message)
        })
    }

    fn outcome(&self, comm: Comm, status: Status) -> std::result::Result<(), String> {
        match status {
            SUCCESS | IN_PROGRESS => Ok(()),
            status => Err(self.api.describe(comm, status)),
        }
    }

    /// After a wait: whether the communicator has failed meanwhile, so that what was waited for may not be there. Told once.
    pub(super) fn check(self: &Arc<Nccl>, op: &'static str) -> Result<()> {
        if self.failed.get().is_none()
            && let Some(error) = self.asynchronous_error()
        {
            self.abort(&error);
        }
        match self.failed.get() {
            Some(_) if !self.told.swap(true, Ordering::Relaxed) => self.usable(op),
            _ => Ok(()),
        }
    }

    /// What NCCL's own threads have found, such as a connection that is gone.
    fn asynchronous_error(&self) -> Option<String> {
        // Whoever holds the lock is in a call, which returns such an error itself.
        let handle = self.handle.try_lock().ok()?;
        let Handle(comm) = (*handle)?;
        let mut found = SUCCESS;
        // SAFETY: the communicator lives while its lock is held; writes one status.
        let status = unsafe { (self.api.comm_get_async_error)(comm, &mut found) };
        self.outcome(comm, status).and_then(|()| self.outcome(comm, found)).err()
    }

    /// Ends it. Kernels that wait for other ranks stop. Returns at once: the rest happens on a thread of its own. There, NCCL
    /// waits until no graph uses the communicator. A call in progress may also wait for other ranks in NCCL; if it never
    /// returns, only the end of the process helps.
    pub(crate) fn abort(self: &Arc<Nccl>, reason: &str) {
        // After a collective that was refused, the reason stays that one; others may still be in flight.
        let _ = self.failed.set(reason.to_owned());
        if self.aborted.swap(true, Ordering::Relaxed) {
            return;
        }
        let nccl = self.clone();
        let abort = move || {
            let handle = nccl.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (api, shared) = (nccl.api, nccl.shared.clone());
            drop(nccl);
            if let Some(handle) = handle {
                end(api, &shared, handle);
            }
        };
        // Without a thread, the kernels go on waiting, and the process has to end.
        let _ = thread::Builder::new().name("refrain-nccl-abort".to_owned()).spawn(abort);
    }
}

/// Aborts a communicator that nobody else has.
fn end(api: &Api, shared: &Resources, handle: Handle) {
    if let Ok(_entered) = shared.context().enter(OP) {
        // SAFETY: nobody else has the handle any more.
        let _ = unsafe { (api.comm_abort)(handle.0) };
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(handle) = handle else { return };
        // Other ranks may never come to what is in flight.
        if self.failed.get().is_some() || thread::panicking() {
            return end(self.api, &self.shared, handle);
        }
        if let Ok(_entered) = self.shared.context().enter(OP) {
            // SAFETY: the last owner; graphs that use the communicator own it, too, so they are gone.
            let _ = unsafe { (self.api.comm_destroy)(handle.0) };
        }
    }
}
