//! A step: recorded at its first call, replayed from then on.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::options::{Fallback, StepOptions};
use super::outputs::Outputs;
use super::profile::StepProfile;
use super::program::Program;
use super::recorded::Recorded;
use super::recorder;
use super::replay::Ready;
use crate::autograd::{check_input, is_grad_enabled, no_grad, with_grad_mode};
use crate::device::Device;
use crate::device::recording::{self, not_recordable};
use crate::error::{Error, Result};
use crate::ops::copy::copy_values;
use crate::ops::random::Generator;
use crate::precision::{precision, with_precision};
use crate::recycled::emptied;
use crate::sync::MutexGuard;
use crate::tensor::Tensor;
use crate::types::Precision;

const OP: &str = "step";

/// How many replays a GPU may have ahead of it.
const AHEAD: usize = 64;

/// The calls of a program before which the closure is recorded again, whatever that takes. From then on, it is before
/// twice as many calls each time, where the budget allows.
const CHECKED: [u64; 2] = [2, 10];

/// The part of the run, as one in so many, that later checking may take.
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
/// A step works on copies of its inputs, so the closure must not write to them or keep them, and a call refuses an
/// input that requires a gradient ([`Error::Autograd`]) or lies in memory that the closure writes to
/// ([`Error::Aliased`]). Tensors from outside are used where they are: what is written to them between two calls, by a
/// checkpoint being loaded for instance, is what the next call reads. The step keeps alive what it uses.
///
/// The closure's host code does not run in a replay. What it takes from the host, such as a learning rate computed there,
/// a counter, or a branch on one, stays as it was when the closure was recorded. So the closure is recorded again from
/// time to time, which runs nothing, and compared: twice at the first call with inputs of new shapes, before the second
/// and the tenth such call, then before twice as many calls each time (20, 40, 80 and so on, later where all such
/// checks would take more than 1 % of the run), in [`Step::check`] (to be called before a checkpoint is written) and in
/// [`Step::finish`]. A difference is [`Error::RecordingChanged`], and no call goes through until a check finds none. The calls before it, back to the last check, have used
/// the old value. **What changes and changes back between two checks is found by none of them**; [`StepOptions::strict`]
/// (or `REFRAIN_STRICT=1` for any program as it is) records before every call and finds it. The closure's own side
/// effects on the host happen each time that it is recorded, not once a call.
///
/// The recording is of the calling thread. Work that the closure has other threads do is refused where it can be told
/// from work that has nothing to do with the step, see [`unrelated_to_recordings`](crate::unrelated_to_recordings).
///
/// A tensor that the closure makes must not outlive it, except as an output ([`Error::Escaped`]): gradients, optimiser
/// state and caches are made before the step. Nor must a history on the tape, of a tensor from outside that an operation
/// wrote into. A replay ends the histories of what it writes to, and is refused where a history, or a saved value that was
/// overwritten, would refuse the eager code; recording the closure changes neither.
pub struct Step<'f> {
    device: Device,
    closure: Box<dyn Fn(&[Tensor]) -> std::result::Result<Vec<Tensor>, BoxError> + 'f>,
    entries: Vec<ProgramEntry>,
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
struct ThreadSettings {
    grad_enabled: bool,
    precision: Precision,
}

impl ThreadSettings {
    fn now() -> ThreadSettings {
        ThreadSettings { grad_enabled: is_grad_enabled(), precision: precision() }
    }

    fn with<R>(self, f: impl FnOnce() -> R) -> R {
        with_precision(self.precision, || with_grad_mode(self.grad_enabled, f))
    }
}

/// How a program is run.
enum RunMode {
    Replay(Box<Ready>),
    /// By the closure, since the driver refused this way.
    Eager(Error),
}

/// A program with what it is for.
struct ProgramEntry {
    /// What the program reads its inputs from.
    inputs: Vec<Tensor>,
    settings: ThreadSettings,
    /// In an order of their own, so that two steps never wait for each other.
    generators: Vec<Generator>,
    run: RunMode,
    outputs: Vec<Tensor>,
    last_used: u64,
    /// How often it was run, and at which call the closure is to be recorded again.
    calls: u64,
    check_at: u64,
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
        let options = StepOptions { strict: options.strict || strict_by_environment(), ..options };
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
    /// thread pool or within another step; [`Error::Autograd`] and [`Error::Aliased`] for inputs that a copy can't stand
    /// for; [`Error::Escaped`], [`Error::RecordingChanged`], [`Error::Closure`]; those of the operations. After an error the device works as before, and nothing of a step that could not be recorded has
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
            }
            if i > 0 && (i % AHEAD == 0 || self.options.strict) {
                self.check_where_due()?;
            }
            self.replay(inputs)?;
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
            RunMode::Replay(ready) => ready,
            RunMode::Eager(refusal) => return Err(refusal.clone()),
        };
        let times = settled(&entry.generators, || ready.time(&self.device, runs))?;
        Ok(StepProfile::new(ready.program(), &times))
    }

    /// Makes the program for these inputs the current one and gives it their values.
    fn prepare(&mut self, inputs: &[Tensor]) -> Result<()> {
        forbid_here(&self.device)?;
        if let Some(other) = inputs.iter().find(|t| t.device() != &self.device) {
            let (lhs, rhs) = (self.device.name(), other.device().name());
            return Err(Error::DeviceMismatch { op: OP, lhs, rhs });
        }
        inputs.iter().enumerate().try_for_each(|(i, input)| check_input(OP, i, input))?;
        let settings = ThreadSettings::now();
        match self.entries.iter().position(|e| e.fits(inputs, settings)) {
            Some(at) => {
                self.current = at;
                self.check_where_due()?;
            }
            None => self.current = self.add(inputs, settings)?,
        }
        self.clock += 1;
        let entry = &mut self.entries[self.current];
        entry.last_used = self.clock;
        if let RunMode::Replay(ready) = &entry.run {
            check_apart(ready, inputs)?;
            entry.inputs.iter().zip(inputs).try_for_each(|(own, input)| copy_values(input, own))?;
        }
        Ok(())
    }

    fn replay(&mut self, inputs: &[Tensor]) -> Result<()> {
        let entry = &mut self.entries[self.current];
        entry.calls += 1;
        match &entry.run {
            RunMode::Replay(ready) => {
                settled(&entry.generators, || ready.replay(&self.device))?;
                self.replays += 1;
                Ok(())
            }
            RunMode::Eager(_) => {
                let handles: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
                let returned = entry.settings.with(|| (self.closure)(&handles));
                let returned = returned.map_err(recorder::of_closure)?;
                let apart = |t: &Tensor| match inputs.iter().any(|input| input.shares_storage(t)) {
                    true => no_grad(|| t.copy()),
                    false => Ok(t.detach()),
                };
                entry.outputs = returned.iter().map(apart).collect::<Result<_>>()?;
                Ok(())
            }
        }
    }

    /// Records the closure again for every program and compares, as before a checkpoint: whether a replay does now what
    /// the closure would do now. State of the host that has changed since the last check and changed back is not seen
    /// ([`StepOptions::strict`] sees it).
    ///
    /// # Errors
    /// [`Error::RecordingChanged`] if a replay no longer does what the closure would. [`Error::NotRecordable`] in a
    /// worker of a thread pool, and within another step.
    pub fn check(&mut self) -> Result<()> {
        forbid_here(&self.device)?;
        (0..self.entries.len()).try_for_each(|at| self.check_entry(at))
    }

    /// Ends the step with a last [`Step::check`]. Without an error, the state of the host that the closure depends on is
    /// what it was when the step was recorded, and was so at every check: every call did what the closure would have
    /// done, but for state that changed and changed back between two checks, which [`StepOptions::strict`] alone finds.
    ///
    /// # Errors
    /// As [`Step::check`].
    pub fn finish(mut self) -> Result<()> {
        self.check()
    }

    /// The program of the last call; none if that ran operation by operation ([`Fallback::Eager`](crate::Fallback)).
    pub fn program(&self) -> Option<&Program> {
        match &self.entries.get(self.current)?.run {
            RunMode::Replay(ready) => Some(ready.program()),
            RunMode::Eager(_) => None,
        }
    }

    /// Why the last call ran operation by operation instead of being a replay, if it did.
    pub fn refusal(&self) -> Option<&Error> {
        match &self.entries.get(self.current)?.run {
            RunMode::Replay(_) => None,
            RunMode::Eager(refusal) => Some(refusal),
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

    /// How often the closure was recorded so far: twice for a program, and once for each check; with
    /// [`StepOptions::strict`], once for each call as well.
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
    fn add(&mut self, inputs: &[Tensor], settings: ThreadSettings) -> Result<usize> {
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
                (RunMode::Replay(Box::new(ready)), outputs)
            }
            Err(refusal @ Error::Device { .. }) if self.options.fallback == Fallback::Eager => {
                eprintln!(
                    "refrain: warning: a step runs operation by operation instead of as a graph: {refusal}"
                );
                (RunMode::Eager(refusal), Vec::new())
            }
            Err(e) => return Err(e),
        };
        if self.entries.len() >= self.options.keep
            && let Some(oldest) = (0..self.entries.len()).min_by_key(|&i| self.entries[i].last_used)
        {
            self.entries.swap_remove(oldest);
            self.evictions += 1;
        }
        self.entries.push(ProgramEntry {
            inputs,
            settings,
            generators,
            run,
            outputs,
            last_used: 0,
            calls: 0,
            check_at: CHECKED[0],
            cost,
        });
        self.started.get_or_insert_with(Instant::now);
        Ok(self.entries.len() - 1)
    }

    fn record(&mut self, inputs: &[Tensor], settings: ThreadSettings) -> Result<Recorded> {
        self.recordings += 1;
        recorder::record(&self.device, inputs, |handles| settings.with(|| (self.closure)(handles)))
    }

    /// Checks the current program, if its next call is one to do so before.
    fn check_where_due(&mut self) -> Result<()> {
        let run = self.started.map_or(Duration::ZERO, |t| t.elapsed());
        let entry = &self.entries[self.current];
        let call = entry.calls + 1;
        let affordable = entry.check_at <= CHECKED[1] || is_due(self.checking, entry.cost, run);
        let due = call >= entry.check_at && affordable;
        if due || self.options.strict {
            self.check_entry(self.current)?;
        }
        if due {
            let next = CHECKED.into_iter().find(|&at| at > call).unwrap_or(2 * call);
            self.entries[self.current].check_at = next;
        }
        Ok(())
    }

    fn check_entry(&mut self, at: usize) -> Result<()> {
        let begin = Instant::now();
        let ProgramEntry { inputs, settings, run, .. } = &self.entries[at];
        if matches!(run, RunMode::Eager(_)) {
            // The closure itself runs.
            return Ok(());
        }
        let (inputs, settings) = (inputs.clone(), *settings);
        let now = self.record(&inputs, settings);
        let checked = now.and_then(|now| match &self.entries[at].run {
            RunMode::Replay(ready) => ready.program().recorded.check_same(&now),
            RunMode::Eager(_) => Ok(()),
        });
        self.checking += begin.elapsed();
        if checked.is_err() {
            // So that no call goes through until a check finds the closure as it was.
            self.entries[at].check_at = 0;
        }
        checked
    }
}

impl ProgramEntry {
    fn fits(&self, inputs: &[Tensor], settings: ThreadSettings) -> bool {
        let same = |(a, b): (&Tensor, &Tensor)| a.shape() == b.shape() && a.dtype() == b.dtype();
        self.settings == settings
            && self.inputs.len() == inputs.len()
            && self.inputs.iter().zip(inputs).all(same)
    }
}

/// Whether `REFRAIN_STRICT` asks for checks before every call.
fn strict_by_environment() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var("REFRAIN_STRICT").is_ok_and(|v| !v.is_empty() && v != "0"))
}

/// Whether one more check, at a cost, leaves all of them within their part of the run.
fn is_due(checking: Duration, cost: Duration, run: Duration) -> bool {
    (checking + cost) * CHECKING < run
}

thread_local! {
    /// The memory of the last list of settled generators, so that a replay asks for none.
    static SETTLED: Cell<Vec<MutexGuard<'static, u64>>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with the generators at their places, and nobody else drawing from them.
fn settled<R>(generators: &[Generator], f: impl FnOnce() -> Result<R>) -> Result<R> {
    let mut settled = emptied(SETTLED.try_with(Cell::take).unwrap_or_default());
    generators.iter().try_for_each(|generator| generator.settle().map(|guard| settled.push(guard)))?;
    let result = f();
    let _ = SETTLED.try_with(|kept| kept.set(emptied(settled)));
    result
}

/// An error if a step can't be called on this thread.
fn forbid_here(device: &Device) -> Result<()> {
    forbid_nesting(device)?;
    match rayon::current_thread_index() {
        None => Ok(()),
        Some(_) => Err(not_recordable(
            OP,
            device,
            "it is called in a worker of a thread pool, which may take up other work while it waits; call it on a thread of its own",
        )),
    }
}

/// No input lies in memory that a replay writes to, which the copy of the input would not see.
fn check_apart(ready: &Ready, inputs: &[Tensor]) -> Result<()> {
    for (i, input) in inputs.iter().enumerate() {
        if let Some(by) = ready.writes_to(input) {
            return Err(Error::Aliased {
                op: OP,
                message: format!(
                    "input {i} ({} {}) shares memory with a tensor from outside that {by} writes to in the step, which works on copies of its inputs and would not see that; pass a copy() of the values before, or let the closure use the tensor from outside alone",
                    input.dtype(),
                    input.shape()
                ),
            });
        }
    }
    Ok(())
}

/// An error if this thread records a step.
fn forbid_nesting(device: &Device) -> Result<()> {
    recording::forbid(
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
