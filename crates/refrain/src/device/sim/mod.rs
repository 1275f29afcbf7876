//! The simulated GPU: the kernels of the CPU with the rules of a GPU.

mod driver;
mod graph;
mod machine;
mod memory;
#[cfg(test)]
mod tests;
mod work;

use std::str::FromStr;
use std::sync::Arc;

use super::{Device, DeviceKind};
use crate::error::{Error, Result};
use driver::Sim;
use graph::Graph;
use machine::{Machine, Stream};

/// The kind of machine that a simulated GPU is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// A GPU with memory of its own.
    #[default]
    Discrete,
    /// A GPU that shares coherent memory with the processor: the host can read device memory at any time, so nothing
    /// but a wait orders it after kernels; and an allocation while a graph is captured hangs.
    Unified,
}

/// The settings of a simulated GPU: its kind of machine, the seed of its adversarial timing, and the faults to inject.
///
/// ```
/// use refrain::{DType, Error, Profile, Simulator, Tensor};
///
/// let device = Simulator::new(Profile::Discrete).memory(1 << 20).device();
/// let fits = Tensor::zeros([1000], DType::F32, &device)?;
/// let error = Tensor::zeros([1 << 20], DType::F32, &device).unwrap_err();
/// assert!(matches!(error, Error::OutOfMemory { free: Some(_), .. }));
/// assert_eq!(fits.to_vec::<f32>()?, [0.0; 1000]);
/// # Ok::<(), Error>(())
/// ```
///
/// Allocations and launches are counted from 1. A replay of a [`Step`](crate::Step) is one launch. Launches that are
/// captured into a graph are counted separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Simulator {
    profile: Profile,
    seed: u64,
    memory: Option<usize>,
    out_of_memory_at: Option<u64>,
    fail_launch: Option<u64>,
    lose_at_launch: Option<u64>,
    invalidate_capture_at: Option<u64>,
}

impl Simulator {
    /// A GPU without faults, with seed 0.
    pub fn new(profile: Profile) -> Simulator {
        Simulator { profile, ..Simulator::default() }
    }

    /// The seed of the order in which parallel branches run, and of how late work runs.
    pub fn seed(mut self, seed: u64) -> Simulator {
        self.seed = seed;
        self
    }

    /// Limits its memory to this many bytes. Without this call there is no limit.
    pub fn memory(mut self, bytes: usize) -> Simulator {
        self.memory = Some(bytes);
        self
    }

    /// Makes the `n`-th allocation fail with [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn out_of_memory_at(mut self, n: u64) -> Simulator {
        self.out_of_memory_at = Some(n);
        self
    }

    /// Makes the `n`-th launch fail with [`Error::Device`](crate::Error::Device); the device stays usable.
    pub fn fail_launch(mut self, n: u64) -> Simulator {
        self.fail_launch = Some(n);
        self
    }

    /// Loses the device at the `n`-th launch: from the next call on, every call returns
    /// [`Error::DeviceLost`](crate::Error::DeviceLost).
    pub fn lose_at_launch(mut self, n: u64) -> Simulator {
        self.lose_at_launch = Some(n);
        self
    }

    /// Invalidates the active capture at the `n`-th captured launch.
    pub fn invalidate_capture_at(mut self, n: u64) -> Simulator {
        self.invalidate_capture_at = Some(n);
        self
    }

    /// Makes the device. Each call makes a new one.
    pub fn device(self) -> Device {
        self.device_and_stream().0
    }

    /// Makes the device, and returns its stream, too. With it you can capture graphs by hand, as with the stream of
    /// `Device::cuda_on_stream`.
    pub fn device_and_stream(self) -> (Device, SimStream) {
        let machine = Arc::new(Machine::new(self));
        let device = Device::from_driver(DeviceKind::Sim, Arc::new(Sim::new(machine.clone())));
        (device, SimStream { machine })
    }

    /// The name that `from_str` accepts. It does not include faults.
    fn name(&self) -> String {
        let seed = if self.seed == 0 { String::new() } else { format!(":{}", self.seed) };
        match self.profile {
            Profile::Discrete if seed.is_empty() => "sim".to_string(),
            Profile::Discrete => format!("sim:discrete{seed}"),
            Profile::Unified => format!("sim:unified{seed}"),
        }
    }

    pub(super) fn key(&self) -> (Profile, u64) {
        (self.profile, self.seed)
    }
}

impl FromStr for Simulator {
    type Err = Error;

    /// A simulated GPU by its name: `sim`, `sim:unified`, `sim:discrete:7` (with a seed). If the name
    /// has no seed, the seed is `REFRAIN_SIM_SEED`, or 0.
    ///
    /// ```
    /// use refrain::{Profile, Simulator};
    /// assert_eq!("sim:unified:7".parse::<Simulator>()?, Simulator::new(Profile::Unified).seed(7));
    /// assert!("sim:7".parse::<Simulator>().is_err());
    /// # Ok::<(), refrain::Error>(())
    /// ```
    fn from_str(name: &str) -> Result<Simulator> {
        let unknown = |what: &str| {
            let names = "sim, sim:unified, or sim:discrete:SEED and sim:unified:SEED";
            Error::invalid("device", format!("there is no simulated device {what:?}; use {names}"))
        };
        let mut parts = name.split(':');
        let (kind, profile, seed, rest) = (parts.next(), parts.next(), parts.next(), parts.next());
        let profile = match (kind, profile) {
            (Some("sim"), None | Some("discrete")) => Profile::Discrete,
            (Some("sim"), Some("unified")) => Profile::Unified,
            _ => return Err(unknown(name)),
        };
        let seed = match (seed, std::env::var("REFRAIN_SIM_SEED")) {
            (Some(seed), _) => seed.parse().map_err(|_| unknown(name))?,
            (None, Ok(seed)) => seed.parse().map_err(|_| {
                Error::invalid("device", format!("REFRAIN_SIM_SEED is {seed:?}; it must be a whole number"))
            })?,
            (None, Err(_)) => 0,
        };
        match rest {
            None => Ok(Simulator::new(profile).seed(seed)),
            Some(_) => Err(unknown(name)),
        }
    }
}

/// The stream of a simulated GPU, to capture graphs by hand. It corresponds to a `CUstream`.
pub struct SimStream {
    machine: Arc<Machine>,
}

/// A graph that was captured by hand. It does not keep its memory alive.
pub struct SimGraph(Arc<Graph>);

impl SimStream {
    /// Begins a capture: from now on, work becomes part of a graph instead of running.
    ///
    /// # Errors
    /// If the stream is capturing already.
    pub fn begin_capture(&self) -> Result<()> {
        self.machine.begin_capture("begin_capture", Stream::DEVICE)
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// If the stream does not capture, or the capture was invalidated. The capture ends in any case.
    pub fn end_capture(&self) -> Result<SimGraph> {
        self.machine.end_capture("end_capture", Stream::DEVICE).map(SimGraph)
    }

    /// Runs a graph, in order with the device's work.
    ///
    /// # Errors
    /// [`Error::Hazard`](crate::Error::Hazard) if memory that it touches was freed.
    pub fn launch(&self, graph: &SimGraph) -> Result<()> {
        self.machine.launch_graph("launch", &graph.0)
    }

    /// Waits like the driver does, without the engine's guard: during a capture, this fails and invalidates the capture.
    ///
    /// # Errors
    /// During a capture.
    pub fn synchronize(&self) -> Result<()> {
        self.machine.wait("synchronize")
    }
}
