//! Measures the launches of a program on the GPU.
#![allow(unsafe_code)] // Calls NVIDIA's driver.

use std::time::Duration;

use cudarc::driver::sys::{self, CUevent_flags, CUevent_record_flags};

use super::context::Context;
use super::driver::Cuda;
use super::graph::Graph;
use super::library;
use super::memory::checked;
use crate::device::program::Bound;
use crate::error::{Error, Result};

const OP: &str = "profile";

struct Event(sys::CUevent);

impl Event {
    fn new(context: &Context) -> Result<Event> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a context is current.
        let made = unsafe { sys::cuEventCreate(&mut event, CUevent_flags::CU_EVENT_DEFAULT as u32) };
        checked(context, OP, made.result()).map(|()| Event(event))
    }

    /// Becomes a node of the graph that the stream captures. The node takes the time when it is reached.
    fn record(&self, context: &Context, stream: sys::CUstream) -> Result<()> {
        let external = CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: both are valid.
        checked(context, OP, unsafe { sys::cuEventRecordWithFlags(self.0, stream, external) }.result())
    }

    /// The time from this event to a later one. Both must have been reached.
    fn until(&self, later: &Event, context: &Context) -> Result<Duration> {
        let mut ms = 0.0;
        // SAFETY: both are valid and take times.
        let status = unsafe { sys::cuEventElapsedTime_v2(&mut ms, self.0, later.0) };
        checked(context, OP, status.result()).map(|()| Duration::from_secs_f64(f64::from(ms).max(0.0) * 1e-3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; the graph that records it is gone or idle.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// Runs a program whose kernels are loaded, one launch after the other in one graph, and measures the time of each
/// launch in each run. The context must be entered.
pub(super) fn time(cuda: &Cuda, program: &Bound<'_>, runs: usize) -> Result<Vec<Vec<Duration>>> {
    let context = cuda.context();
    library::timing().map_err(|message| Error::Device {
        op: OP,
        device: context.name().to_string(),
        message,
    })?;
    // Two before the first launch: the time between them is the cost of measuring.
    let events = (0..program.len() + 2).map(|_| Event::new(context)).collect::<Result<Vec<_>>>()?;
    let graph = Graph::capture(cuda, None, |stream| {
        events[0].record(context, stream)?;
        events[1].record(context, stream)?;
        (0..program.len()).try_for_each(|at| {
            program.with_launch(at, |launch| cuda.run_on(stream, launch))?;
            events[at + 2].record(context, stream)
        })
    })?
    .with_collectives_of(program);
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        graph.launch()?;
        cuda.wait(OP)?;
        let between = events.windows(2).map(|e| e[0].until(&e[1], context));
        let between = between.collect::<Result<Vec<Duration>>>()?;
        times.push(between[1..].iter().map(|t| t.saturating_sub(between[0])).collect());
    }
    Ok(times)
}
