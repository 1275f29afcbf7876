//! A step: recorded at its first call, replayed from then on.

use std::fmt;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::options::{Fallback, StepOptions};
use super::outputs::Outputs;
use super::profile::StepProfile;
use super::program::Program;
use super::recorded::{Place, Recorded};
use super::recorder::{self, not_recordable};
use super::replay::Ready;
use crate::autograd::{is_grad_enabled, no_grad, with_grad_mode};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::random::Generator;
use crate::precision::{Precision, precision, with_precision};
use crate::tensor::Tensor;

const OP: &str = "step";

/// How many replays a GPU may have ahead of it.
const AHEAD: usize = 64;

/// The part of the run, as one in so many, that checking may take.
const CHECKING: u32 = 100;

/// An error of a step's closure, whatever its type.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A training step that is recorded once and replayed from then on.
///
/// The closure is ordinary eager code. At the first [`Step::call`] with inputs of given shapes it is recorded:
/// operations are noted instead of run, and the tensors that it makes have no memory. The list of launches becomes a
/// [`Program`] with all temporaries in one block, and each call replays it: the closure is not called, nothing is
/// allocated, and the results are bit for bit those of the eager code.
///
/// ```
/// use refrain::{DType, Device, Step, Tensor, no_grad};
///
/// let device = Device::cpu();
/// let weight = Tensor::zeros([1, 2], DType::F32, &device)?;
/// let gradient = weight.zeros_like()?;
/// weight.set_requires_grad(true)?;
/// weight.set_grad(&gradient)?;
///
/// let mut step = Step::new(&device, |batch| {
///     let y = batch[0].matmul(&weight.transpose(0, 1)?)?;
///     let loss = y.mse_loss(&batch[1])?;
///     loss.backward()?;
///     no_grad(|| {
///         weight.sub_into(&gradient.mul_scalar(0.1)?, &weight)?;
///         gradient.fill(0.0)
///     })?;
///     Ok(vec![loss])
/// });
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, -1.0], [2, 2], &device)?;
/// let y = Tensor::from_slice(&[5.0f32, 1.0], [2, 1], &device)?;
/// let mut last = f32::INFINITY;
/// for _ in 0..20 {
///     let outputs = step.call(&[x.clone(), y.clone()])?;
///     let loss = outputs.to_scalar::<f32>(0)?;
///     assert!(loss < last);
///     last = loss;
/// }
/// step.finish()?;
/// # Ok::<(), refrain::Error>(())
/// ```
///
/// # What the closure may do
///
/// All that runs on the device: forward, backward, clipping, optimisers, schedules over a step counter on the device,
/// dropout and other random numbers (new ones in every replay, the same as eager code draws), running statistics.
/// What can't be part of a replay is refused by name when the closure is recorded ([`Error::NotRecordable`]): reading
/// values on the host, copying values from the host, waiting for the device, work on another device, another step.
///
/// A step works on copies of its inputs, so the closure must not write to them. Tensors from outside are used where
/// they are: what is written to them between two calls, by a checkpoint being loaded for instance, is what the next
/// call reads. The step keeps alive what it uses.
///
/// The closure's host code does not run in a replay. What it takes from the host, such as a learning rate computed there,
/// a counter, or a branch on one, would stay as it was. So the closure is recorded again from time to time, which runs
/// nothing, and compared: twice at first, later whenever all such checking took less than 1 % of the time, in
/// [`Step::check`] (to be called before a checkpoint is written) and in [`Step::finish`]. A difference is
/// [`Error::RecordingChanged`]. The closure's own side effects on the host happen each time that it is recorded.
///
/// A tensor that the closure makes must not outlive it, except as an output ([`Error::Escaped`]): gradients, optimiser
/// state and caches are made before the step.
pub struct Step<'f> {
    device: Device,
    closure: Box<dyn Fn(&[Tensor]) -> std::result::Result<Vec<Tensor>, BoxError> + 'f>,
    entries: Vec<Entry>,
    options: StepOptions,
    /// Counts calls, to tell which entry was used last.
    clock: u64,
    current: usize,
    recordings: u64,
    replays: u64,
    evictions: u64,
    /// When the first program was ready, and how long checking took since.
    started: Option<Instant>,
    checking: Duration,
}

/// What of the calling thread a recording depends on.
#[derive(Clone, Copy, PartialEq)]
struct Settings {
    grad_enabled: bool,
    precision: Precision,
}

impl Settings {
    fn now() -> Settings {
        Settings { grad_enabled: is_grad_enabled(), precision: precision() }
    }

    fn with<R>(self, f: impl FnOnce() -> R) -> R {
        with_precision(self.precision, || with_grad_mode(self.grad_enabled, f))
    }
}

/// How a program is run.
enum Run {
    Replay(Box<Ready>),
    /// By the closure, since the driver refused this way.
    Eager(Error),
}

/// A program with what it is for.
struct Entry {
    /// What the program reads its inputs from.
    inputs: Vec<Tensor>,
    settings: Settings,
    /// In an order of their own, so that two steps never wait for each other.
    generators: Vec<Generator>,
    run: Run,
    outputs: Vec<Tensor>,
    last_used: u64,
    /// How long it took to record.
    cost: Duration,
}

impl<'f> Step<'f> {
    /// A step on a device; nothing is recorded before the first call.
    ///
    /// The closure may return any error, with `?`; [`Step::call`] gives it as [`Error::Closure`], except one of this
    /// crate, which it gives as it is.
    pub fn new<F>(device: &Device, closure: F) -> Step<'f>
    where
        F: Fn(&[Tensor]) -> std::result::Result<Vec<Tensor>, Box<dyn std::error::Error + Send + Sync>> + 'f,
    {
        Step::with_options(device, StepOptions::new(), closure)
    }

    /// [`Step::new`] with options.
    pub fn with_options<F>(device: &Device, options: StepOptions, closure: F) -> Step<'f>
    where
        F: Fn(&[Tensor]) -> std::result::Result<Vec<Tensor>, Box<dyn std::error::Error + Send + Sync>> + 'f,
    {
        // In a closure that is being recorded, the call that records it returns the error.
        let _ = forbid_nesting(device);
        Step {
            device: device.clone(),
            closure: Box::new(closure),
            entries: Vec::new(),
            options,
            clock: 0,
            current: 0,
            recordings: 0,
            replays: 0,
            evictions: 0,
            started: None,
            checking: Duration::ZERO,
        }
    }

    /// Runs the step on `inputs`: a replay, after a recording if inputs of these shapes and dtypes are new.
    ///
    /// # Errors
    /// [`Error::NotRecordable`] if the closure does what can't be part of a replay, or this is called in a worker of a
    /// thread pool or within another step; [`Error::Escaped`], [`Error::RecordingChanged`], [`Error::Closure`]; those of
    /// the operations. After an error the device works as before, and nothing of a step that could not be recorded has
    /// run.
    pub fn call(&mut self, inputs: &[Tensor]) -> Result<Outputs<'_>> {
        self.repeat(inputs, 1)
    }

    /// Runs the step `n` times on the same inputs, with nothing in between but a wait now and then, so that a GPU
    /// never has more than 64 replays ahead of it: for steps that take their data from the device by a cursor that
    /// they advance. The outputs are those of the last time.
    ///
    /// # Errors
    /// As [`Step::call`]; the runs before an error are done.
    pub fn repeat(&mut self, inputs: &[Tensor], n: usize) -> Result<Outputs<'_>> {
        if n == 0 {
            return Err(Error::invalid(
                OP,
                "a step repeated 0 times has no outputs; repeat it at least once",
            ));
        }
        self.prepare(inputs)?;
        for i in 0..n {
            if i > 0 && i % AHEAD == 0 {
                self.device.synchronize()?;
                self.check_within_budget()?;
            }
            self.replay()?;
        }
        Ok(Outputs::new(&self.entries[self.current].outputs))
    }

    /// Runs the step `runs` times on the same inputs and takes the time of each launch: of kernels one after the
    /// other on a GPU, by events in a graph; of calls on the CPU. Where independent launches run side by side, a call
    /// takes less than their sum.
    ///
    /// # Errors
    /// As [`Step::call`]; the device's own.
    ///
    /// ```
    /// # use refrain::{DType, Device, Step, Tensor};
    /// # let device = Device::cpu();
    /// let mut step = Step::new(&device, |x| Ok(vec![x[0].matmul(&x[0])?.sum(())?]));
    /// let profile = step.profile(&[Tensor::ones([64, 64], DType::F32, &device)?], 5)?;
    /// assert!(profile.lines().iter().any(|line| line.operation == "matmul" && line.flops == 2 * 64 * 64 * 64));
    /// println!("{profile}");
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn profile(&mut self, inputs: &[Tensor], runs: usize) -> Result<StepProfile> {
        if runs == 0 {
            return Err(Error::invalid(OP, "a profile of 0 runs; ask for at least one"));
        }
        self.prepare(inputs)?;
        let entry = &self.entries[self.current];
        let ready = match &entry.run {
            Run::Replay(ready) => ready,
            Run::Eager(refusal) => return Err(refusal.clone()),
        };
        let settled = entry.generators.iter().map(Generator::settle);
        let _settled: SmallVec<[_; 4]> = settled.collect::<Result<_>>()?;
        let times = self.device.time(ready, runs)?;
        Ok(StepProfile::new(ready.bound().program(), &times))
    }

    /// Makes the program for these inputs the current one and gives it their values.
    fn prepare(&mut self, inputs: &[Tensor]) -> Result<()> {
        forbid_nesting(&self.device)?;
        if rayon::current_thread_index().is_some() {
            return Err(not_recordable(
                OP,
                &self.device,
                "it is called in a worker of a thread pool, which may take up other work while it waits; call it on a thread of its own",
            ));
        }
        if let Some(other) = inputs.iter().find(|t| t.device() != &self.device) {
            let (lhs, rhs) = (self.device.name(), other.device().name());
            return Err(Error::DeviceMismatch { op: OP, lhs, rhs });
        }
        let settings = Settings::now();
        match self.entries.iter().position(|e| e.fits(inputs, settings)) {
            Some(at) => {
                self.current = at;
                self.check_within_budget()?;
            }
            None => self.current = self.add(inputs, settings)?,
        }
        self.clock += 1;
        let entry = &mut self.entries[self.current];
        entry.last_used = self.clock;
        no_grad(|| {
            entry.inputs.iter().zip(inputs).try_for_each(|(own, input)| own.copy_from(&input.detach()))
        })
    }

    fn replay(&mut self) -> Result<()> {
        let entry = &mut self.entries[self.current];
        match &entry.run {
            Run::Replay(ready) => {
                let settled = entry.generators.iter().map(Generator::settle);
                let _settled: SmallVec<[_; 4]> = settled.collect::<Result<_>>()?;
                self.device.replay(ready)?;
                self.replays += 1;
                Ok(())
            }
            Run::Eager(_) => {
                let handles: Vec<Tensor> = entry.inputs.iter().map(Tensor::detach).collect();
                let returned = entry.settings.with(|| (self.closure)(&handles));
                let returned = returned.map_err(recorder::of_closure)?;
                entry.outputs = returned.iter().map(Tensor::detach).collect();
                Ok(())
            }
        }
    }

    /// Records the closure again for every program and compares, as before a checkpoint.
    ///
    /// # Errors
    /// [`Error::RecordingChanged`] if a replay no longer does what the closure would.
    pub fn check(&mut self) -> Result<()> {
        (0..self.entries.len()).try_for_each(|at| self.check_entry(at))
    }

    /// Ends the step with a last check. What was trained is right if this returns without an error.
    ///
    /// # Errors
    /// As [`Step::check`].
    pub fn finish(mut self) -> Result<()> {
        self.check()
    }

    /// The program of the last call; none if that ran operation by operation ([`Fallback::Eager`](crate::Fallback)).
    pub fn program(&self) -> Option<&Program> {
        match &self.entries.get(self.current)?.run {
            Run::Replay(ready) => Some(ready.bound().program()),
            Run::Eager(_) => None,
        }
    }

    /// Why the last call ran operation by operation instead of being a replay, if it did.
    pub fn refusal(&self) -> Option<&Error> {
        match &self.entries.get(self.current)?.run {
            Run::Replay(_) => None,
            Run::Eager(refusal) => Some(refusal),
        }
    }

    /// How many programs are kept at the moment.
    pub fn programs(&self) -> usize {
        self.entries.len()
    }

    /// How many programs had to go for others so far. If it grows from call to call, the inputs have more shapes than
    /// [`StepOptions::keep`] allows for.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// How often the closure was recorded so far: twice for a program, and once for each check.
    pub fn recordings(&self) -> u64 {
        self.recordings
    }

    /// How often a program was replayed so far, whichever of them; runs of [`Step::profile`] do not count, nor what ran
    /// operation by operation ([`Fallback::Eager`](crate::Fallback)).
    ///
    /// ```
    /// # use refrain::{DType, Device, Step, Tensor};
    /// # let device = Device::cpu();
    /// let mut step = Step::new(&device, |x| Ok(vec![x[0].sum(())?]));
    /// let ones = |n: usize| Tensor::ones([n], DType::F32, &device);
    /// step.repeat(&[ones(2)?], 3)?;
    /// step.call(&[ones(5)?])?;
    /// assert_eq!((step.programs(), step.replays()), (2, 4));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn replays(&self) -> u64 {
        self.replays
    }

    /// How long all recordings took that were made for comparing.
    pub fn checking_time(&self) -> Duration {
        self.checking
    }

    /// How long recording the closure took for the program of the last call.
    pub fn recording_time(&self) -> Option<Duration> {
        self.entries.get(self.current).map(|e| e.cost)
    }

    /// Records the closure twice and makes a program ready.
    fn add(&mut self, inputs: &[Tensor], settings: Settings) -> Result<usize> {
        let inputs: Vec<Tensor> = inputs
            .iter()
            .map(|t| Tensor::empty(OP, t.shape(), t.dtype(), &self.device))
            .collect::<Result<_>>()?;
        let begin = Instant::now();
        let recorded = self.record(&inputs, settings)?;
        let cost = begin.elapsed();
        recorded.check_same(&self.record(&inputs, settings)?)?;
        self.checking += begin.elapsed() - cost;
        let mut generators: Vec<Generator> = recorded.generators.iter().map(|(g, _)| g.clone()).collect();
        generators.sort_by_key(|g| g.state_tensor().storage_id());
        let (run, outputs) = match Ready::new(Program::new(recorded)?, &self.device) {
            Ok(ready) => {
                let outputs = ready.outputs();
                (Run::Replay(Box::new(ready)), outputs)
            }
            Err(refusal @ Error::Device { .. }) if self.options.fallback == Fallback::Eager => {
                eprintln!(
                    "refrain: warning: a step runs operation by operation instead of as a graph: {refusal}"
                );
                (Run::Eager(refusal), Vec::new())
            }
            Err(e) => return Err(e),
        };
        if self.entries.len() >= self.options.keep
            && let Some(oldest) = (0..self.entries.len()).min_by_key(|&i| self.entries[i].last_used)
        {
            self.entries.swap_remove(oldest);
            self.evictions += 1;
        }
        self.entries.push(Entry { inputs, settings, generators, run, outputs, last_used: 0, cost });
        self.started.get_or_insert_with(Instant::now);
        Ok(self.entries.len() - 1)
    }

    fn record(&mut self, inputs: &[Tensor], settings: Settings) -> Result<Recorded> {
        self.recordings += 1;
        // Handles of this recording alone: what the closure hangs on them is gone afterwards.
        let handles: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
        let closure = || (self.closure)(&handles);
        let recorded = recorder::record(&self.device, || settings.with(closure))?;
        for launch in &recorded.launches {
            for write in launch.written() {
                let Place::External(e) = write.place else { continue };
                let id = recorded.externals[e].id();
                if let Some(i) = inputs.iter().position(|t| t.storage_id() == id) {
                    let message = format!(
                        "it writes to input {i}, of which the step has a copy, so that the caller's tensor would not change; write to a tensor that the closure takes from outside"
                    );
                    return Err(not_recordable(launch.op, &self.device, &message));
                }
            }
        }
        Ok(recorded)
    }

    fn check_within_budget(&mut self) -> Result<()> {
        let run = self.started.map_or(Duration::ZERO, |t| t.elapsed());
        match is_due(self.checking, self.entries[self.current].cost, run) {
            true => self.check_entry(self.current),
            false => Ok(()),
        }
    }

    fn check_entry(&mut self, at: usize) -> Result<()> {
        let begin = Instant::now();
        let Entry { inputs, settings, run, .. } = &self.entries[at];
        if matches!(run, Run::Eager(_)) {
            // The closure itself runs.
            return Ok(());
        }
        let (inputs, settings) = (inputs.clone(), *settings);
        let now = self.record(&inputs, settings)?;
        let same = match &self.entries[at].run {
            Run::Replay(ready) => ready.bound().program().recorded.check_same(&now),
            Run::Eager(_) => Ok(()),
        };
        self.checking += begin.elapsed();
        same
    }
}

impl Entry {
    fn fits(&self, inputs: &[Tensor], settings: Settings) -> bool {
        let same = |(a, b): (&Tensor, &Tensor)| a.shape() == b.shape() && a.dtype() == b.dtype();
        self.settings == settings
            && self.inputs.len() == inputs.len()
            && self.inputs.iter().zip(inputs).all(same)
    }
}

/// Whether one more check, at a cost, leaves all of them within their part of the run.
fn is_due(checking: Duration, cost: Duration, run: Duration) -> bool {
    (checking + cost) * CHECKING < run
}

/// An error if this thread records a step.
fn forbid_nesting(device: &Device) -> Result<()> {
    recorder::forbid(
        OP,
        device,
        None,
        "a step can't be made or called within another; run the inner closure's operations directly, or one step after the other",
    )
}

impl fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Step({}, {} programs)", self.device, self.entries.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_take_a_hundredth_of_the_run() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        assert!(!is_due(ms(1), ms(1), ms(200)));
        assert!(is_due(ms(1), ms(1), ms(201)));
        assert!(!is_due(ms(11), ms(0), s(1)));
    }
}
