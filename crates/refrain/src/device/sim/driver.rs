//! The engine's driver for the simulated GPU. It does the same as the CUDA driver, in the same order.

use std::sync::{Arc, PoisonError};

use super::graph::Graph;
use super::machine::{Machine, Stream};
use crate::device::capture::{self, Capture};
use crate::device::cuda::{Gpu, MmaKind, Product};
use crate::device::driver::{Block, CaptureStatus, Driver};
use crate::device::launch::Launch;
use crate::device::program::{Bound, Executable};
use crate::error::{Error, Result};
use crate::sync::Mutex;

const OP: &str = "step";

/// The stream of a simulated GPU, as a device of the engine.
pub(in crate::device) struct Sim {
    pub(super) machine: Arc<Machine>,
    /// Memory whose owner was dropped during a capture. It is freed when the capture ends.
    deferred: Mutex<Vec<Block>>,
}

impl Sim {
    pub(super) fn new(machine: Arc<Machine>) -> Sim {
        Sim { machine, deferred: Mutex::default() }
    }

    /// Returns an error, before the machine is called, if a capture is active.
    fn outside_capture(&self, op: &'static str, need: &str) -> Result<()> {
        match self.capture_status() {
            CaptureStatus::None => {
                let deferred =
                    std::mem::take(&mut *self.deferred.lock().unwrap_or_else(PoisonError::into_inner));
                deferred.into_iter().for_each(|block| self.machine.free(block));
                Ok(())
            }
            _ => Err(Error::CaptureIncompatible { operation: format!("{op} ({need})"), device: self.name() }),
        }
    }

    /// Captures a program on a private stream.
    fn graph(&self, program: &Bound<'_>) -> Result<Arc<Graph>> {
        let stream = PrivateStream::begin(&self.machine)?;
        capture::program(&stream, program)?;
        stream.end()
    }
}

/// Launches have the same workspaces as on a GPU without cuBLASLt.
impl Gpu for Sim {
    fn mma(&self) -> MmaKind {
        MmaKind::Warp
    }

    fn library_workspace(&self, _: &'static str, _: &Product) -> Result<Option<usize>> {
        Ok(None)
    }
}

impl Driver for Sim {
    fn fuses(&self) -> Option<MmaKind> {
        Some(self.mma())
    }

    fn overlaps_launches(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.machine.name().to_string()
    }

    fn alloc(&self, op: &'static str, bytes: usize) -> Result<Block> {
        self.outside_capture(op, "which allocates memory")?;
        self.machine.alloc(op, bytes)
    }

    fn free(&self, block: Block) {
        match self.capture_status() {
            CaptureStatus::None => self.machine.free(block),
            _ => self.deferred.lock().unwrap_or_else(PoisonError::into_inner).push(block),
        }
    }

    fn trim(&self) -> usize {
        match self.outside_capture("trim", "which waits for the device") {
            Ok(()) => self.machine.trim(),
            Err(_) => 0,
        }
    }

    fn free_bytes(&self) -> Option<usize> {
        self.machine.free_bytes()
    }

    fn pooled_bytes(&self) -> usize {
        self.machine.pooled_bytes()
    }

    fn system_allocations(&self) -> u64 {
        self.machine.system_allocations()
    }

    fn upload(&self, op: &'static str, from: &[u8], to: &Block, offset: usize) -> Result<()> {
        self.outside_capture(op, "which copies from the host")?;
        self.machine.upload(op, from, to.address + offset)
    }

    fn download(&self, op: &'static str, from: &Block, offset: usize, to: &mut [u8]) -> Result<()> {
        self.outside_capture(op, "which reads on the host")?;
        if to.is_empty() {
            return Ok(());
        }
        self.machine.wait(op)?;
        self.machine.read(op, from.address + offset, to)?;
        self.machine.reported()
    }

    fn synchronize(&self) -> Result<()> {
        self.outside_capture("synchronize", "which waits for the device")?;
        self.machine.wait("synchronize")?;
        self.machine.reported()
    }

    fn fault(&self) -> Result<()> {
        match self.capture_status() {
            CaptureStatus::None => self.machine.reported(),
            _ => Ok(()),
        }
    }

    fn capture_status(&self) -> CaptureStatus {
        self.machine.capture_status(Stream::DEVICE)
    }

    fn workspace(&self, launch: &Launch<'_>) -> Result<usize> {
        launch.kernel.cuda_workspace(launch, self)
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        self.machine.launch(Stream::DEVICE, launch)
    }

    fn compile(&self, program: &Bound<'_>) -> Result<Box<dyn Executable>> {
        self.outside_capture(OP, "which is captured itself")?;
        Ok(Box::new(Replay { machine: self.machine.clone(), graph: self.graph(program)? }))
    }
}

/// A private stream that captures until this is dropped.
pub(super) struct PrivateStream<'a> {
    machine: &'a Machine,
    stream: Stream,
}

impl PrivateStream<'_> {
    pub(super) fn begin(machine: &Machine) -> Result<PrivateStream<'_>> {
        let stream = machine.new_stream();
        machine.begin_capture(OP, stream)?;
        Ok(PrivateStream { machine, stream })
    }

    pub(super) fn end(self) -> Result<Arc<Graph>> {
        self.machine.end_capture(OP, self.stream)
    }
}

impl Capture for PrivateStream<'_> {
    type Node = usize;

    fn depend(&self, nodes: &mut [usize]) -> Result<()> {
        self.machine.set_dependencies(OP, self.stream, nodes)
    }

    fn dependencies(&self) -> Result<Vec<usize>> {
        self.machine.dependencies(OP, self.stream)
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        self.machine.launch(self.stream, launch)
    }
}

impl Drop for PrivateStream<'_> {
    fn drop(&mut self) {
        self.machine.abandon_capture(self.stream);
    }
}

/// A program as a graph.
pub(super) struct Replay {
    pub(super) machine: Arc<Machine>,
    pub(super) graph: Arc<Graph>,
}

impl Executable for Replay {
    fn run(&self, _: &Bound<'_>, _: &dyn Driver) -> Result<()> {
        self.machine.launch_graph(OP, &self.graph)
    }
}
