//! Recorded forward passes of one model, which threads take in turn.

use crate::Result;
use refrain::{
    Device, Fallback, Outputs, Precision, SendStep, Step, StepOptions, Tensor, no_grad, on_one_thread,
    unrelated_to_recordings, with_precision,
};
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Programs that each pass keeps: that of full batches, and that of the last, smaller one.
const SHAPES: usize = 2;

/// After so many calls in a row that found no other one at work, a caller is alone.
const ALONE: u32 = 16;

/// A forward pass, recorded so many times as it may run at the same time. Each recording is used by one thread at a time.
pub(super) struct RecordedPasses {
    passes: Vec<Mutex<SendStep<'static>>>,
    free: Mutex<Free>,
    /// Told when a pass is free again.
    returned: Condvar,
    device: Device,
    precision: Precision,
}

/// Who uses the passes.
struct Free {
    /// The passes that nobody uses, by their index.
    passes: Vec<usize>,
    /// How many calls in a row have found no other one at work.
    alone: u32,
}

impl RecordedPasses {
    /// Nothing is recorded before the first call with inputs of new shapes. If the driver refuses to make a graph, the forward pass
    /// runs eagerly.
    pub(super) fn new<F>(device: &Device, precision: Precision, at_once: usize, forward: F) -> RecordedPasses
    where
        F: Fn(&[Tensor]) -> Result<Tensor> + Send + Clone + 'static,
    {
        let at_once = at_once.max(1);
        let options = StepOptions::new().keep(SHAPES).fallback(Fallback::Eager);
        let pass = |_| {
            let forward = forward.clone();
            Mutex::new(Step::new_send_with_options(device, options, move |inputs| Ok(vec![forward(inputs)?])))
        };
        RecordedPasses {
            passes: unrelated_to_recordings(|| (0..at_once).map(pass).collect()),
            free: Mutex::new(Free { passes: (0..at_once).collect(), alone: 0 }),
            returned: Condvar::new(),
            device: device.clone(),
            precision,
        }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn precision(&self) -> Precision {
        self.precision
    }

    /// How many calls may run at the same time.
    pub(super) fn at_once(&self) -> usize {
        self.passes.len()
    }

    /// Runs the forward pass on the inputs that `inputs` makes on the device, and reads its output.
    pub(super) fn call<R: Send>(
        &self,
        inputs: impl FnOnce(&Device) -> Result<Vec<Tensor>> + Send,
        read: impl FnOnce(&Outputs<'_>) -> refrain::Result<R> + Send,
    ) -> Result<R> {
        let taken = self.take();
        let mut guard = lock(&self.passes[taken.pass]);
        let step = &mut *guard;
        let work = || Ok(read(&step.call(&inputs(&self.device)?)?)?);
        // Callers that share the cores don't share out their work, too: to hand it over takes longer than it saves.
        self.compute(|| if taken.is_alone { work() } else { on_one_thread(work) })
    }

    /// Runs `f` as each pass runs: with the same settings of the thread, and not in a worker of a thread pool, where a step
    /// can't be called.
    fn compute<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        // Nothing of this belongs to a step that another thread records.
        let f = || unrelated_to_recordings(|| with_precision(self.precision, || no_grad(f)));
        match rayon::current_thread_index() {
            None => f(),
            Some(_) => std::thread::scope(|scope| {
                scope.spawn(f).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        }
    }

    /// Waits for a pass.
    fn take(&self) -> Taken<'_> {
        let mut free = lock(&self.free);
        let is_first = free.passes.len() == self.passes.len();
        free.alone = if is_first { free.alone.saturating_add(1) } else { 0 };
        loop {
            if let Some(pass) = free.passes.pop() {
                // Of a single pass, callers always wait for one another.
                let is_alone = self.passes.len() == 1 || free.alone > ALONE;
                return Taken { passes: self, pass, is_alone };
            }
            free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pass that a thread uses. It is free again when this is dropped, also by a panic.
struct Taken<'p> {
    passes: &'p RecordedPasses,
    pass: usize,
    /// Whether no other thread has used a pass for a while.
    is_alone: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        lock(&self.passes.free).passes.push(self.pass);
        self.passes.returned.notify_one();
    }
}

impl Drop for RecordedPasses {
    fn drop(&mut self) {
        let steps = std::mem::take(&mut self.passes);
        let finish =
            |step: Mutex<SendStep<'_>>| step.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
        // The last check of each. It finds nothing: a forward pass reads nothing of the host that changes.
        self.compute(|| steps.into_iter().for_each(|step| _ = finish(step)));
    }
}

impl fmt::Debug for RecordedPasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, at_once) = (self.device.name(), self.passes.len());
        f.debug_struct("RecordedPasses").field("device", &device).field("at_once", &at_once).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_alone_after_a_while_without_others() {
        let of = |at_once| RecordedPasses::new(&Device::cpu(), Precision::F32, at_once, |x| Ok(x[0].clone()));
        let passes = of(2);
        let next = || passes.take().is_alone;
        let calls = || (0..ALONE + 3).map(|_| next()).collect::<Vec<bool>>();
        let expected: Vec<bool> = (1..ALONE + 4).map(|call| call > ALONE).collect();
        assert_eq!(calls(), expected);
        // From the first one on that begins while another is at work, and then for a while, it is not.
        let other = passes.take();
        assert!(other.is_alone && !next());
        drop(other);
        assert_eq!(calls(), expected);
        let single = of(1);
        assert!(single.take().is_alone);
    }
}
