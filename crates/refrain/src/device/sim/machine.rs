//! The simulated GPU itself: memory, a stream that runs late, captures, and the rules for all three.
#![allow(unsafe_code)] // Touches the device's memory, which is the host's.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use super::graph::{Graph, GraphNode};
use super::memory::MemoryMap;
use super::work::{MemoryAccess, Work};
use super::{Profile, Simulator};
use crate::device::args::{copy_in, copy_out, set};
use crate::device::cpu::free_bytes as host_free_bytes;
use crate::device::cpu::pool::Pool;
use crate::device::driver::{Block, CaptureStatus, FOUND_LATE};
use crate::device::launch::Launch;
use crate::error::{Error, Result};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Mutex, MutexGuard};

/// The maximum number of waiting commands. Beyond it, the oldest one runs.
const LATEST: usize = 128;

/// The value of every byte that nobody has written: NaN in each float dtype, -1 in the others.
const POISON: u8 = 0xff;

/// Pseudorandom numbers from a seed (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014).
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// A number below `n`, which must not be 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// A stream by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream(u64);

impl Stream {
    /// The stream of the device's work. Other streams are for captures.
    pub(super) const DEVICE: Stream = Stream(0);
}

/// A queued command. Commands run in order.
enum Command {
    Poison(Block),
    Upload(Vec<u8>, Block),
    Launch(Box<Work>),
    Graph(Arc<Graph>),
}

impl Command {
    /// Whether it waits for other ranks.
    fn is_collective(&self) -> bool {
        match self {
            Command::Poison(_) | Command::Upload(..) => false,
            Command::Launch(work) => work.is_collective(),
            Command::Graph(graph) => graph.has_collectives(),
        }
    }
}

/// An active capture.
struct ActiveCapture {
    stream: Stream,
    thread: ThreadId,
    nodes: Vec<GraphNode>,
    /// The nodes that the next work depends on.
    next: Vec<usize>,
    /// What has invalidated the capture, if anything.
    broken: Option<String>,
}

pub(super) struct Machine {
    name: String,
    simulator: Simulator,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    pool: Pool,
    memory: MemoryMap,
    queue: VecDeque<Command>,
    /// Ranges that queued work writes and that the host has not waited for, each with the operation.
    unseen: HashMap<(usize, usize), &'static str>,
    captures: Vec<ActiveCapture>,
    streams: u64,
    /// The first error that kernels found, until it is reported.
    reported: Option<Error>,
    lost: Option<String>,
    allocations: u64,
    /// How many allocations to refuse: one, and the second try after unused memory was freed.
    refusals: u32,
    launches: u64,
    captured: u64,
}

impl Machine {
    pub(super) fn new(simulator: Simulator) -> Machine {
        let state = State {
            rng: Rng::new(simulator.seed),
            pool: Pool::default(),
            memory: MemoryMap::default(),
            queue: VecDeque::new(),
            unseen: HashMap::new(),
            captures: Vec::new(),
            streams: 0,
            reported: None,
            lost: None,
            allocations: 0,
            refusals: 0,
            launches: 0,
            captured: 0,
        };
        Machine { name: simulator.name(), simulator, state: Mutex::new(state) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state. Returns an error if the device is lost.
    fn enter(&self, op: &'static str) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        self.present(op, &state).map(|()| state)
    }

    fn present(&self, op: &'static str, state: &State) -> Result<()> {
        match &state.lost {
            None => Ok(()),
            Some(cause) => Err(Error::DeviceLost { op, device: self.name.clone(), cause: cause.clone() }),
        }
    }

    fn refused(&self, op: &'static str, message: impl Into<String>) -> Error {
        Error::Device { op, device: self.name.clone(), message: message.into() }
    }

    fn hazard(&self, op: &'static str, message: impl Into<String>) -> Error {
        Error::Hazard { op, device: self.name.clone(), message: message.into() }
    }

    /// Applies the rule against `what` if this thread captures, or if anybody captures on the device's stream: it
    /// breaks the capture.
    fn forbid_in_capture(&self, state: &mut State, op: &'static str, what: &str) -> Result<()> {
        let me = thread::current().id();
        let capture = state.captures.iter_mut().find(|c| c.stream == Stream::DEVICE || c.thread == me);
        let Some(capture) = capture else { return Ok(()) };
        capture.broken.get_or_insert_with(|| format!("{op} {what}"));
        Err(match self.simulator.profile {
            Profile::Discrete => self.refused(
                op,
                format!("{op} {what} while a graph is being captured: the driver refuses it and invalidates the capture"),
            ),
            Profile::Unified => self.hazard(
                op,
                format!("{op} {what} while a graph is being captured: on a unified-memory machine the call never returns, a hang"),
            ),
        })
    }

    pub(super) fn alloc(&self, op: &'static str, bytes: usize) -> Result<Block> {
        let mut state = self.enter(op)?;
        self.forbid_in_capture(&mut state, op, "allocates memory")?;
        if state.refusals == 0 {
            state.allocations += 1;
            if self.simulator.out_of_memory_at == Some(state.allocations) {
                state.refusals = 2;
            }
        }
        let over = self.simulator.memory.is_some_and(|m| bytes > m.saturating_sub(state.memory.live()));
        if state.refusals > 0 || over {
            state.refusals = state.refusals.saturating_sub(1);
            let (device, free) = (self.name.clone(), self.free_of(&state));
            return Err(Error::OutOfMemory { device, requested: bytes, live: 0, pooled: 0, free });
        }
        let block = state.pool.alloc(bytes)?;
        state.memory.add(block.address..block.address + bytes, op);
        state.push(Command::Poison(Block { ..block }));
        Ok(block)
    }

    pub(super) fn free(&self, block: Block) {
        let mut state = self.state();
        if !state.memory.remove(block.address) {
            let error =
                self.hazard("free", "memory is freed that was not allocated, or that was freed before");
            state.reported.get_or_insert(error);
            return;
        }
        // In stream order: the next owner uses the memory after all earlier work.
        state.push(Command::Poison(Block { ..block }));
        state.pool.free(block);
    }

    pub(super) fn trim(&self) -> usize {
        let mut state = self.state();
        state.drain();
        state.memory.trim();
        state.pool.trim()
    }

    pub(super) fn free_bytes(&self) -> Option<usize> {
        self.free_of(&self.state())
    }

    fn free_of(&self, state: &State) -> Option<usize> {
        match self.simulator.memory {
            Some(memory) => Some(memory.saturating_sub(state.memory.live())),
            None => host_free_bytes(),
        }
    }

    pub(super) fn pooled_bytes(&self) -> usize {
        self.state().pool.pooled_bytes()
    }

    pub(super) fn system_allocations(&self) -> u64 {
        self.state().pool.system_allocations()
    }

    /// A copy from the host, in stream order. The bytes are copied now.
    pub(super) fn upload(&self, op: &'static str, from: &[u8], address: usize) -> Result<()> {
        let mut state = self.enter(op)?;
        self.forbid_in_capture(&mut state, op, "copies from the host")?;
        if from.is_empty() {
            return Ok(());
        }
        let range = address..address + from.len();
        state.memory.write(&range).map_err(|what| self.hazard(op, what))?;
        state.unseen.insert((range.start, range.end), op);
        state.push(Command::Upload(from.to_vec(), Block { address, bytes: from.len() }));
        Ok(())
    }

    /// What the host finds at an address now.
    pub(super) fn read(&self, op: &'static str, address: usize, to: &mut [u8]) -> Result<()> {
        let mut state = self.enter(op)?;
        if to.is_empty() {
            return Ok(());
        }
        let range = address..address + to.len();
        if let Some(writer) = state.unseen(&range) {
            let found = match self.simulator.profile {
                Profile::Discrete => "the copy to the host may not have arrived: stale values",
                Profile::Unified => "the host may find what the memory held before: stale values",
            };
            let message = format!(
                "the host reads bytes that {writer} writes, and has not waited for it: {found}; the edge {writer} -> {op}, a wait, is missing"
            );
            return Err(self.hazard(op, message));
        }
        state.memory.read(&range).map_err(|what| self.hazard(op, what))?;
        // SAFETY: the range lies in memory that is handed out, and the state's lock is held.
        unsafe { copy_out(&Block { address, bytes: to.len() }, 0, to) };
        Ok(())
    }

    /// Waits for all work on the device's stream.
    pub(super) fn wait(&self, op: &'static str) -> Result<()> {
        let mut state = self.enter(op)?;
        if let Some(capture) = state.capture(Stream::DEVICE) {
            capture.broken.get_or_insert_with(|| format!("{op} waits for the stream"));
            return Err(self.refused(op, "it waits for a stream that captures: the capture is invalidated"));
        }
        state.drain();
        self.present(op, &state)
    }

    /// The first error that kernels have reported, returned once.
    pub(super) fn reported(&self) -> Result<()> {
        self.state().reported.take().map_or(Ok(()), Err)
    }

    /// A launch. If the stream captures, it becomes part of the graph.
    pub(super) fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<()> {
        let work = Work::of(launch)?;
        let mut state = self.enter(launch.op)?;
        if let Some(at) = state.captures.iter().position(|c| c.stream == stream) {
            return self.capture_launch(&mut state, at, work);
        }
        self.count_launch(&mut state, launch.op)?;
        state.touch(launch.op, &work.touches).map_err(|what| self.hazard(launch.op, what))?;
        self.submit(&mut state, launch.op, Command::Launch(Box::new(work)))
    }

    /// A launch of a whole graph on the device's stream.
    pub(super) fn launch_graph(&self, op: &'static str, graph: &Arc<Graph>) -> Result<()> {
        let mut state = self.enter(op)?;
        self.forbid_in_capture(&mut state, op, "launches a graph")?;
        self.count_launch(&mut state, op)?;
        for node in &graph.nodes {
            let op = node.work.op();
            state.touch(op, &node.work.touches).map_err(|what| self.hazard(op, what))?;
        }
        self.submit(&mut state, op, Command::Graph(graph.clone()))
    }

    fn count_launch(&self, state: &mut State, op: &'static str) -> Result<()> {
        state.launches += 1;
        match self.simulator.fail_launch == Some(state.launches) {
            true => {
                Err(self
                    .refused(op, format!("launch {} fails, as the simulator was configured", state.launches)))
            }
            false => Ok(()),
        }
    }

    fn submit(&self, state: &mut State, op: &'static str, command: Command) -> Result<()> {
        let n = state.launches;
        if self.simulator.lose_at_launch == Some(n) {
            // The next call notices it, as on a GPU.
            state.lost = Some(format!("lost at launch {n}, as the simulator was configured; it was {op}"));
            state.queue.clear();
        }
        if command.is_collective() && state.lost.is_none() {
            return state.run_collective(command);
        }
        state.push(command);
        Ok(())
    }
}

/// Captures.
impl Machine {
    pub(super) fn new_stream(&self) -> Stream {
        let mut state = self.state();
        state.streams += 1;
        Stream(state.streams)
    }

    pub(super) fn capture_status(&self, stream: Stream) -> CaptureStatus {
        match self.state().capture(stream) {
            None => CaptureStatus::None,
            Some(ActiveCapture { broken: Some(_), .. }) => CaptureStatus::Invalidated,
            Some(_) => CaptureStatus::Active,
        }
    }

    pub(super) fn begin_capture(&self, op: &'static str, stream: Stream) -> Result<()> {
        let mut state = self.enter(op)?;
        if state.capture(stream).is_some() {
            return Err(self.refused(op, "the stream is capturing already; end that capture first"));
        }
        let thread = thread::current().id();
        state.captures.push(ActiveCapture {
            stream,
            thread,
            nodes: Vec::new(),
            next: Vec::new(),
            broken: None,
        });
        Ok(())
    }

    fn capturing<'a>(
        &self,
        op: &'static str,
        state: &'a mut State,
        stream: Stream,
    ) -> Result<&'a mut ActiveCapture> {
        let none = self.refused(op, "the stream does not capture");
        match state.capture(stream) {
            None => Err(none),
            Some(ActiveCapture { broken: Some(what), .. }) => {
                Err(self.refused(op, format!("the capture was invalidated: {what}")))
            }
            Some(capture) => Ok(capture),
        }
    }

    /// Sets the nodes that the next work on a capturing stream depends on.
    pub(super) fn set_dependencies(&self, op: &'static str, stream: Stream, nodes: &[usize]) -> Result<()> {
        let mut state = self.enter(op)?;
        let capture = self.capturing(op, &mut state, stream)?;
        if nodes.iter().any(|&n| n >= capture.nodes.len()) {
            return Err(self.refused(op, "work is to wait for a node that the graph does not have"));
        }
        capture.next = nodes.to_vec();
        Ok(())
    }

    pub(super) fn dependencies(&self, op: &'static str, stream: Stream) -> Result<Vec<usize>> {
        let mut state = self.enter(op)?;
        self.capturing(op, &mut state, stream).map(|c| c.next.clone())
    }

    fn capture_launch(&self, state: &mut State, at: usize, work: Work) -> Result<()> {
        let op = work.op();
        state.captured += 1;
        let capture = &mut state.captures[at];
        if self.simulator.invalidate_capture_at == Some(state.captured) {
            let what = format!(
                "at captured launch {}, as the simulator was configured; it was {op}",
                state.captured
            );
            capture.broken.get_or_insert(what);
        }
        if let Some(what) = &capture.broken {
            return Err(self.refused(op, format!("the capture was invalidated: {what}")));
        }
        let waits = std::mem::replace(&mut capture.next, vec![capture.nodes.len()]);
        capture.nodes.push(GraphNode { work, waits });
        Ok(())
    }

    /// Ends a capture. Returns its graph, if every order that the graph allows computes the same.
    pub(super) fn end_capture(&self, op: &'static str, stream: Stream) -> Result<Arc<Graph>> {
        let mut state = self.enter(op)?;
        let Some(at) = state.captures.iter().position(|c| c.stream == stream) else {
            return Err(self.refused(op, "the stream does not capture"));
        };
        let ActiveCapture { nodes, next, broken, .. } = state.captures.swap_remove(at);
        drop(state);
        if let Some(what) = broken {
            return Err(self.refused(op, format!("the capture was invalidated: {what}")));
        }
        let graph = Graph { nodes };
        graph.check(&self.name)?;
        if let Some(n) = graph.unjoined(&next) {
            let node = graph.nodes[n].work.op();
            return Err(self.refused(
                op,
                format!("the capture ends while launch {n} ({node}) is on a branch that nothing joins: unjoined work"),
            ));
        }
        Ok(Arc::new(graph))
    }

    /// Ends a capture that is no longer needed.
    pub(super) fn abandon_capture(&self, stream: Stream) {
        self.state().captures.retain(|c| c.stream != stream);
    }
}

impl State {
    fn capture(&mut self, stream: Stream) -> Option<&mut ActiveCapture> {
        self.captures.iter_mut().find(|c| c.stream == stream)
    }

    /// The work that writes to a range and that the host has not waited for.
    fn unseen(&self, range: &Range<usize>) -> Option<&'static str> {
        let met = |&(start, end): &(usize, usize)| start < range.end && range.start < end;
        self.unseen.iter().find(|(written, _)| met(written)).map(|(_, op)| *op)
    }

    fn touch(&mut self, op: &'static str, touches: &[MemoryAccess]) -> std::result::Result<(), String> {
        for touch in touches {
            self.memory.touch(op, touch)?;
            if touch.writes {
                self.unseen.insert((touch.range.start, touch.range.end), op);
            }
        }
        Ok(())
    }

    /// Queues a command. The device runs it at some later time.
    fn push(&mut self, command: Command) {
        if self.lost.is_some() {
            return;
        }
        self.queue.push_back(command);
        let ahead = match self.rng.below(8) {
            0 => self.rng.below(self.queue.len() + 1),
            _ => 0,
        };
        let ahead = ahead.max(self.queue.len().saturating_sub(LATEST));
        (0..ahead).for_each(|_| self.run_next());
    }

    fn drain(&mut self) {
        while !self.queue.is_empty() {
            self.run_next();
        }
        self.unseen.clear();
    }

    fn run_next(&mut self) {
        if let Some(command) = self.queue.pop_front()
            && let Err(error) = self.run(command)
        {
            self.report(error);
        }
    }

    /// Runs a command that waits for other ranks, after all commands before it. It does not run late: the device works only
    /// while the host calls it, so another rank could wait forever for work that is queued here. (Nothing is lost by that. A
    /// read that did not wait for it is found all the same.)
    ///
    /// # Errors
    /// What a collective returns. Other errors are reported later, as always.
    fn run_collective(&mut self, command: Command) -> Result<()> {
        while !self.queue.is_empty() {
            self.run_next();
        }
        match self.run(command) {
            Err(error @ (Error::Hazard { .. } | Error::Collective { .. })) => Err(error),
            Err(error) => {
                self.report(error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn run(&mut self, command: Command) -> Result<()> {
        // Valid for all of these: the memory belongs to the pool, and only queued work touches it. The queue runs one
        // command at a time, because it has the state to itself.
        match command {
            Command::Poison(block) => unsafe { set(&block, POISON) },
            Command::Upload(bytes, to) => unsafe { copy_in(&bytes, &to, 0) },
            Command::Launch(work) => return unsafe { work.run() },
            Command::Graph(graph) => return unsafe { graph.run(&mut self.rng) },
        }
        Ok(())
    }

    fn report(&mut self, error: Error) {
        self.reported.get_or_insert(match error {
            Error::InvalidArgument { op, message } => Error::invalid(op, message + FOUND_LATE),
            Error::Kernel { op, message } => Error::Kernel { op, message: message + FOUND_LATE },
            other => other,
        });
    }
}
