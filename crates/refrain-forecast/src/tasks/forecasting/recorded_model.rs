//! Copies of a model with recorded forward passes, which threads take in turn.

use crate::Result;
use crate::data::series::CovariateCounts;
use crate::data::windows::WindowCovariates;
use crate::models::{Mode, ModelConfig, WindowShape};
use refrain::{
    DType, Device, Precision, SendStep, Step, Tensor, no_grad, on_one_thread, unrelated_to_recordings,
    with_precision,
};
use refrain_nn::Checkpoint;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What a copy of a model is made of.
pub(super) struct Blueprint {
    pub(super) model: ModelConfig,
    pub(super) checkpoint: Checkpoint,
    pub(super) precision: Precision,
    pub(super) device: Device,
    /// Of a forecast, whatever values the model has in each row.
    pub(super) window: WindowShape,
    pub(super) covariates: CovariateCounts,
}

/// Copies of one model. Each is used by one thread at a time.
pub(super) struct RecordedModels {
    forward_passes: Vec<Mutex<SendStep<'static>>>,
    /// The copies that nobody uses, by their index.
    free: Mutex<Vec<usize>>,
    /// Told when a copy is free again.
    returned: Condvar,
    /// The shapes of the inputs: a context, and the covariates that there are.
    shapes: Vec<Vec<usize>>,
    device: Device,
    precision: Precision,
    /// Whether several callers share the cores.
    is_shared: bool,
}

impl RecordedModels {
    /// # Errors
    /// Those of [`ModelConfig::load`].
    pub(super) fn load(blueprint: &Blueprint, copies: usize) -> Result<RecordedModels> {
        let Blueprint { precision, device, window, covariates, .. } = blueprint;
        let load = || (0..copies).map(|_| forward_pass(blueprint).map(Mutex::new)).collect::<Result<_>>();
        Ok(RecordedModels {
            forward_passes: unrelated_to_recordings(load)?,
            free: Mutex::new((0..copies).collect()),
            returned: Condvar::new(),
            shapes: shapes(*window, *covariates),
            device: device.clone(),
            precision: *precision,
            is_shared: copies > 1,
        })
    }

    /// What the model makes of the values of its inputs.
    pub(super) fn forecast(&self, inputs: &[Vec<f32>]) -> Result<Vec<f32>> {
        let taken = self.take();
        let mut guard = lock(&self.forward_passes[taken.copy]);
        let step = &mut *guard;
        self.compute(|| {
            let tensor = |(values, shape): (&Vec<f32>, &Vec<usize>)| {
                Tensor::from_slice(values, &shape[..], &self.device)
            };
            let inputs =
                inputs.iter().zip(&self.shapes).map(tensor).collect::<refrain::Result<Vec<Tensor>>>()?;
            Ok(step.call(&inputs)?.to_vec::<f32>(0)?)
        })
    }

    /// Runs `f` as each forecast runs: with the same settings of the thread, and not in a worker of a thread pool, where a step
    /// can't be called.
    fn compute<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        // Nothing of this belongs to a step that another thread records.
        let f = || unrelated_to_recordings(|| with_precision(self.precision, || no_grad(f)));
        let f = || if self.is_shared { on_one_thread(f) } else { f() };
        match rayon::current_thread_index() {
            None => f(),
            Some(_) => std::thread::scope(|scope| {
                scope.spawn(f).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        }
    }

    /// Waits for a copy.
    fn take(&self) -> Taken<'_> {
        let mut free = lock(&self.free);
        loop {
            match free.pop() {
                Some(copy) => return Taken { models: self, copy },
                None => free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy that a thread uses. It is free again when this is dropped, also by a panic.
struct Taken<'m> {
    models: &'m RecordedModels,
    copy: usize,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        lock(&self.models.free).push(self.copy);
        self.models.returned.notify_one();
    }
}

impl Drop for RecordedModels {
    fn drop(&mut self) {
        let steps = std::mem::take(&mut self.forward_passes);
        let finish =
            |step: Mutex<SendStep<'_>>| step.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
        // The last check of each. It finds nothing: a forward pass reads nothing of the host that changes.
        self.compute(|| steps.into_iter().for_each(|step| _ = finish(step)));
    }
}

impl fmt::Debug for RecordedModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedModels").field("shapes", &self.shapes).finish_non_exhaustive()
    }
}

/// A copy of the model, as a step that forecasts.
fn forward_pass(blueprint: &Blueprint) -> Result<SendStep<'static>> {
    let Blueprint { model, checkpoint, device, covariates, .. } = blueprint;
    let model = model.load(checkpoint, DType::F32, device)?;
    let [past, future, statics] = [covariates.past, covariates.future, covariates.statics].map(|of| of > 0);
    Ok(Step::new_send(device, move |inputs: &[Tensor]| {
        let mut rest = inputs[1..].iter().cloned();
        let mut next = |is_taken: bool| if is_taken { rest.next() } else { None };
        let covariates = WindowCovariates { past: next(past), future: next(future), statics: next(statics) };
        Ok(vec![model.forward_with(&inputs[0], &covariates, Mode::Eval)?])
    }))
}

/// The shapes of the inputs.
fn shapes(window: WindowShape, covariates: CovariateCounts) -> Vec<Vec<usize>> {
    let WindowShape { channels, context, horizon } = window;
    let CovariateCounts { past, future, statics } = covariates;
    let all = [
        vec![1, channels, context],
        vec![1, past, context],
        vec![1, future, context + horizon],
        vec![1, statics],
    ];
    all.into_iter().filter(|shape| shape[1] > 0).collect()
}
