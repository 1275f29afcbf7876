//! Communicators: ranks that exchange values. The collectives themselves are operations (`ops/collective/`).
//!
//! On CUDA the work is NCCL's (`device/cuda/nccl/`). On the CPU and on simulated GPUs, bytes go from host to host through a
//! [`HostTransport`].

mod call;
mod id;
mod in_process;

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

pub(crate) use call::CollectiveCall;
pub use call::ReduceOp;
pub use id::CommunicatorId;
use in_process::{Broken, RankHandle};

use super::cuda::Nccl;
use super::recording;
use super::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

const OP: &str = "communicator";

/// Moves bytes between the ranks of a communicator of CPUs or simulated GPUs: between threads, or between processes.
///
/// ```
/// use refrain::{Communicator, Device, HostTransport, ReduceOp, Tensor};
///
/// /// One rank alone.
/// struct Alone;
///
/// impl HostTransport for Alone {
///     fn exchange(&self, _what: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
///         Ok(vec![bytes.to_vec()])
///     }
/// }
///
/// let device = Device::cpu();
/// let communicator = Communicator::over(&device, Alone, 0, 1)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &device)?;
/// assert_eq!(communicator.all_reduce(&x, ReduceOp::Sum)?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), refrain::Error>(())
/// ```
pub trait HostTransport: Send + Sync {
    /// Gives `bytes` of this rank to all ranks, and returns those of all ranks, by rank. It waits until all ranks have called
    /// it. The lengths may differ.
    ///
    /// `what` describes the collective, with its number. All ranks must have the same; if one has another, the transport
    /// returns an error on every rank, which says what each rank has called. The text of an error is part of the message
    /// that the user reads.
    fn exchange(&self, what: &str, bytes: &[u8]) -> std::result::Result<Vec<Vec<u8>>, String>;
}

impl<T: HostTransport + ?Sized> HostTransport for Arc<T> {
    fn exchange(&self, what: &str, bytes: &[u8]) -> std::result::Result<Vec<Vec<u8>>, String> {
        (**self).exchange(what, bytes)
    }
}

/// The options of a [`Communicator`].
#[derive(Clone, Copy, Debug)]
pub struct CommunicatorOptions {
    limit: Duration,
}

impl CommunicatorOptions {
    /// A time limit of 5 minutes.
    pub fn new() -> CommunicatorOptions {
        CommunicatorOptions { limit: Duration::from_secs(300) }
    }

    /// How long to wait for other ranks: on GPUs while the communicator is made (afterwards NCCL waits without limit; see
    /// [`Communicator::abort`]), between threads of one process at each collective.
    pub fn time_limit(mut self, limit: Duration) -> CommunicatorOptions {
        self.limit = limit;
        self
    }
}

impl Default for CommunicatorOptions {
    fn default() -> CommunicatorOptions {
        CommunicatorOptions::new()
    }
}

/// Ranks that exchange values: one process for each GPU (or, on the CPU and on simulated GPUs, also one thread for each), all
/// of which run the same program. A communicator is the handle of one rank, on its device. A clone is the same rank.
///
/// A collective (a method that takes tensors) is an operation like any other. It is in order with the other work of the
/// device, runs eagerly or as part of a recorded [`Step`](crate::Step), and there, on a GPU, beside work that does not touch
/// its tensors. The collectives of a step keep their order. All ranks must call the same collectives in the same order, with
/// the same numbers of elements and dtypes: f32, f64, f16, bf16 or i64.
///
/// ```
/// use refrain::{Communicator, Device, ReduceOp, Tensor};
///
/// // Two ranks, a thread each. On GPUs: two processes, each with `Communicator::new`.
/// let ranks = Communicator::in_process(&[Device::cpu(), Device::cpu()])?;
/// std::thread::scope(|scope| {
///     for rank in ranks {
///         scope.spawn(move || -> refrain::Result<()> {
///             let mine = Tensor::full([3], rank.rank() as f64, refrain::DType::F32, rank.device())?;
///             let sum = rank.all_reduce(&mine, ReduceOp::Sum)?;
///             assert_eq!(sum.to_vec::<f32>()?, [1.0; 3]);
///             Ok(())
///         });
///     }
/// });
/// # Ok::<(), refrain::Error>(())
/// ```
///
/// # Sums repeat bit for bit
/// On the CPU and on simulated GPUs values are added in the order of the ranks, in f32 for f16 and bf16, and rounded once.
/// On GPUs, NCCL's order follows from the number of elements, the machine and NCCL's version, and f16 and bf16 are rounded at
/// each addition. All ranks get the same bits, and so do two runs, eager and recorded ones. For that, refrain sets
/// `NCCL_NVLS_ENABLE=0` (no sums in the switch, no multicast) and, unless you have set them, `NCCL_ALGO=Ring,Tree` and
/// `NCCL_RUNTIME_CONNECT=0` (no connection is made in a capture), before NCCL is
/// loaded. It does not work with another value of `NCCL_NVLS_ENABLE`.
///
/// # Steps
/// Before a step with collectives runs for the first time, all ranks compare what they have recorded
/// ([`Program::digest`](crate::Program::digest)). A difference is [`Error::RanksDiffer`]. So a number that differs between
/// ranks, such as the place of a rank's samples, must be in a tensor and not a parameter of an operation (random numbers for a rank's
/// samples come from [`Generator::for_batch_rows`](crate::Generator::for_batch_rows)). All ranks must call a
/// step with inputs of new shapes at the same call.
///
/// # Failures
/// A rank that calls something else, or ends while others wait for it, is an error on all ranks between threads of one
/// process: [`Error::Hazard`] on simulated GPUs, [`Error::Collective`] on the CPU. The error says what each rank did. NCCL
/// notices neither. A process needs a watchdog that calls [`Communicator::abort`]. After a failure a communicator can't be
/// used any more.
#[derive(Clone)]
pub struct Communicator(Arc<Inner>);

struct Inner {
    device: Device,
    rank: usize,
    size: usize,
    /// Tells communicators apart. The same on all ranks.
    number: u64,
    /// Held during an exchange between hosts: threads that share this rank take turns.
    turn: Mutex<()>,
    /// How many collectives have begun.
    begun: AtomicU64,
    /// Why it can't be used any more.
    failed: OnceLock<Error>,
    backend: Backend,
}

/// Who moves the values.
enum Backend {
    InProcess(RankHandle),
    Transport(Box<dyn HostTransport>),
    Nccl(Arc<Nccl>),
}

/// Checks a rank and the number of ranks.
fn check_rank(rank: usize, size: usize) -> Result<()> {
    if rank < size && size <= i32::MAX as usize {
        return Ok(());
    }
    Err(Error::invalid(
        OP,
        format!("there is no rank {rank} of {size}; ranks are counted from 0 to the size minus 1"),
    ))
}

/// While a step is recorded, nothing can wait for other ranks.
fn forbid_in_recording(device: &Device) -> Result<()> {
    recording::forbid(OP, device, None, "it waits for other ranks; make the communicator before the step")
}

impl Communicator {
    /// One rank of `size`, on a GPU of its own. All ranks must call this with the id that rank 0 made; it waits for them, up to
    /// 5 minutes.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if NCCL is missing or too old. [`Error::Collective`] if the other ranks do not come, or NCCL
    /// can't connect them. [`Error::InvalidArgument`] for a rank that is not below the size, and on the CPU and simulated
    /// GPUs ([`Communicator::over`] and [`Communicator::in_process`] are for them).
    pub fn new(device: &Device, id: &CommunicatorId, rank: usize, size: usize) -> Result<Communicator> {
        Communicator::with_options(device, id, rank, size, CommunicatorOptions::new())
    }

    /// [`Communicator::new`] with options.
    pub fn with_options(
        device: &Device,
        id: &CommunicatorId,
        rank: usize,
        size: usize,
        options: CommunicatorOptions,
    ) -> Result<Communicator> {
        check_rank(rank, size)?;
        forbid_in_recording(device)?;
        let nccl = device.0.driver.connect(id, rank, size, options.limit)?;
        Ok(Communicator::of(device, rank, size, id.number(), Backend::Nccl(nccl)))
    }

    /// One rank of `size` on the CPU or a simulated GPU, whose values go through a transport of yours. It waits until all ranks
    /// have called this.
    ///
    /// # Errors
    /// [`Error::Collective`] if the transport fails or does not connect `size` ranks; [`Error::InvalidArgument`] on a GPU and
    /// for a rank that is not below the size.
    pub fn over(
        device: &Device,
        transport: impl HostTransport + 'static,
        rank: usize,
        size: usize,
    ) -> Result<Communicator> {
        check_rank(rank, size)?;
        forbid_in_recording(device)?;
        require_host(device)?;
        // Any number does that rank 0 has not used before.
        static MADE: AtomicU64 = AtomicU64::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let mine = format!("{rank} {} {made}", std::process::id());
        let failed = |message: String| Error::Collective { op: OP, rank, message };
        let all =
            transport.exchange(&format!("communicator of {size} ranks"), mine.as_bytes()).map_err(failed)?;
        let is_rank = |(n, bytes): (usize, &Vec<u8>)| bytes.starts_with(format!("{n} ").as_bytes());
        if all.len() != size || !all.iter().enumerate().all(is_rank) {
            let message = format!(
                "the transport did not return one answer of each of {size} ranks, by rank ({} answers); check that it connects these ranks and no other ones",
                all.len()
            );
            return Err(failed(message));
        }
        let backend = Backend::Transport(Box::new(transport));
        Ok(Communicator::of(device, rank, size, id::number_of(&all[0]), backend))
    }

    /// All ranks of a communicator within this process, rank `i` on `devices[i]`: for tests, and to check on a laptop what
    /// will run on many GPUs. Give each rank to a thread of its own, which also makes the tensors of the rank. A simulated GPU
    /// can be one rank only; the CPU can be any number of ranks.
    ///
    /// If the ranks call different collectives, if one ends (its communicator, with all clones, is dropped) while others wait
    /// for it, or if they wait for one another in several communicators, all ranks get an error that says what each did.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without a device, for a GPU, and for a simulated GPU that is there twice.
    pub fn in_process(devices: &[Device]) -> Result<Vec<Communicator>> {
        Communicator::in_process_with(devices, CommunicatorOptions::new())
    }

    /// [`Communicator::in_process`] with options.
    pub fn in_process_with(devices: &[Device], options: CommunicatorOptions) -> Result<Vec<Communicator>> {
        if devices.is_empty() {
            return Err(Error::invalid(OP, "there is no device; pass one for each rank"));
        }
        for (rank, device) in devices.iter().enumerate() {
            forbid_in_recording(device)?;
            require_host(device)?;
            let other = devices[..rank].iter().position(|d| d == device);
            if let Some(other) = other.filter(|_| device.kind() == DeviceKind::Sim) {
                let message = format!(
                    "ranks {other} and {rank} are on one simulated GPU, {}, which would wait for itself; make one for each rank (Simulator::device)",
                    device.name()
                );
                return Err(Error::invalid(OP, message));
            }
        }
        let size = devices.len();
        let handles = in_process::open(devices, options.limit);
        let rank = |(rank, (device, handle)): (usize, (&Device, RankHandle))| {
            let number = handle.group();
            Communicator::of(device, rank, size, number, Backend::InProcess(handle))
        };
        Ok(devices.iter().zip(handles).enumerate().map(rank).collect())
    }

    fn of(device: &Device, rank: usize, size: usize, number: u64, backend: Backend) -> Communicator {
        Communicator(Arc::new(Inner {
            device: device.clone(),
            rank,
            size,
            number,
            turn: Mutex::new(()),
            begun: AtomicU64::new(0),
            failed: OnceLock::new(),
            backend,
        }))
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// How many collectives this rank has begun, those of replays included. If it stands still on one rank while others wait,
    /// that rank is the one that they wait for.
    pub fn collectives(&self) -> u64 {
        self.0.begun.load(Ordering::Relaxed)
    }

    /// Ends the communicator on this rank, from any thread: for a watchdog that knows that another rank is gone. It returns at
    /// once. A call of this rank that waits for other ranks, and every later collective, returns [`Error::Collective`] with
    /// the reason. On a GPU, the next call that waits (a read, [`Device::synchronize`]) returns that error once; what
    /// collectives in flight wrote is undefined.
    ///
    /// Abort it on every rank that is still there: a rank whose partner has aborted would wait without end. Drop steps that
    /// use the communicator before you make another one.
    ///
    /// With [`Communicator::over`], a call that waits in the transport returns when the transport does.
    pub fn abort(&self, reason: &str) {
        let inner = &*self.0;
        let message = format!("the communicator was aborted: {reason}");
        let _ = inner.failed.set(Error::Collective { op: OP, rank: inner.rank, message });
        match &inner.backend {
            Backend::InProcess(handle) => handle.abort(reason),
            Backend::Transport(_) => {}
            Backend::Nccl(nccl) => nccl.abort(&format!("the communicator was aborted: {reason}")),
        }
    }

    /// Why it can't be used any more, as the error of `op`.
    fn failure(&self, op: &'static str) -> Option<Error> {
        self.0.failed.get().map(|error| match error.clone() {
            Error::Collective { rank, message, .. } => Error::Collective { op, rank, message },
            Error::Hazard { device, message, .. } => Error::Hazard { op, device, message },
            other => other,
        })
    }

    /// Gives bytes of this rank to all ranks; those of all ranks, by rank. For hosts.
    pub(crate) fn exchange(&self, op: &'static str, what: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let inner = &*self.0;
        let _turn = inner.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = self.failure(op) {
            return Err(failure);
        }
        let number = inner.begun.fetch_add(1, Ordering::Relaxed);
        let what = format!("{what}, collective {number} of communicator {:x}", inner.number);
        let collective = |message| Error::Collective { op, rank: inner.rank, message };
        let all = match &inner.backend {
            Backend::InProcess(handle) => {
                handle.exchange(what, bytes.to_vec()).map_err(|broken| match broken {
                    Broken::Rule(message) if inner.device.kind() == DeviceKind::Sim => {
                        Error::Hazard { op, device: inner.device.name(), message }
                    }
                    Broken::Rule(message) | Broken::Aborted(message) => collective(message),
                })
            }
            Backend::Transport(transport) => {
                transport.exchange(&what, bytes).map_err(collective).and_then(|all| {
                    match all.len() == inner.size {
                        true => Ok(all),
                        false => {
                            let message = format!(
                                "the transport returned {} answers of {} ranks",
                                all.len(),
                                inner.size
                            );
                            Err(collective(message))
                        }
                    }
                })
            }
            Backend::Nccl(_) => {
                return Err(Error::internal(op, "values of a GPU do not go through the host"));
            }
        };
        match all {
            // Somebody may have aborted it while this waited.
            Ok(all) => self.failure(op).map_or(Ok(all), Err),
            Err(error) => {
                let _ = inner.failed.set(error);
                Err(self.failure(op).unwrap_or_else(|| Error::internal(op, "the failure is gone")))
            }
        }
    }

    /// NCCL's communicator, for collectives of a GPU.
    pub(in crate::device) fn nccl(&self, op: &'static str) -> Result<&Arc<Nccl>> {
        match (&self.0.backend, self.failure(op)) {
            (_, Some(failure)) => Err(failure),
            (Backend::Nccl(nccl), None) => Ok(nccl),
            _ => Err(Error::internal(op, "a communicator of hosts is used on a GPU")),
        }
    }

    /// Whether values go from host to host.
    pub(crate) fn is_of_hosts(&self) -> bool {
        !matches!(self.0.backend, Backend::Nccl(_))
    }

    /// Notes that collectives have begun.
    pub(in crate::device) fn begin(&self, collectives: u64) {
        self.0.begun.fetch_add(collectives, Ordering::Relaxed);
    }

    /// The number that tells communicators apart. The same on all ranks.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }
}

/// Checks that a device has its memory on the host.
fn require_host(device: &Device) -> Result<()> {
    match device.kind() {
        DeviceKind::Cpu | DeviceKind::Sim => Ok(()),
        DeviceKind::Cuda => Err(Error::invalid(
            OP,
            format!(
                "{} is a GPU, which exchanges values through NCCL; use Communicator::new in a process for each GPU",
                device.name()
            ),
        )),
    }
}

/// Recordings are compared by this text, also those of different ranks. So it does not say which rank this is.
impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").field("number", &self.0.number).field("size", &self.0.size).finish()
    }
}
