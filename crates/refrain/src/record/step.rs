//! Steps: recorded at the first call, then replayed.

use std::fmt;
use std::io::Write;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::{ProgramEntry, RunMode, ThreadSettings, settled};
use super::fuse;
use super::options::{Fallback, StepOptions};
use super::outputs::Outputs;
use super::profile::StepProfile;
use super::program::Program;
use super::recorded::Recorded;
use super::recorder::{self, BoxError};
use super::replay::Ahead;
use super::rules::{OP, because_of, check_apart, forbid_here, forbid_nesting, is_due, strict_by_environment};
use crate::autograd::{WatchedHistories, check_input, no_grad};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::copy::copy_values;
use crate::ops::random::Generator;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::tensor::Tensor;

/// How many replays may be queued on a GPU.
const AHEAD: usize = 64;

/// Before these calls of a program, the closure is always recorded again. Afterwards it is recorded before twice as
/// many calls each time, if the time budget allows it.
const CHECKED: [u64; 2] = [2, 10];

/// A training step that is recorded once and then replayed.
///
/// The closure is ordinary eager code. The first [`Step::call`] with inputs of given shapes records it: operations
/// are collected instead of run, and the tensors that the closure makes have no memory. The collected launches become
/// a [`Program`] with all temporaries in one block, and each call replays the program. A replay does not call the
/// closure and allocates nothing, and its results are bit for bit those of the eager code.
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
/// Anything that runs on the device: forward and backward pass, clipping, optimisers, schedules over a step counter
/// on the device, dropout and other random numbers (new ones in every replay, the same as eager code draws), running
/// statistics. Anything that can't be part of a replay is refused at recording, by name ([`Error::NotRecordable`]):
/// reading values on the host, copying values from the host, waiting for the device, work on another device, another
/// step.
///
/// **Inputs.** A step works on copies of its inputs. So the closure must not write to them or keep them. A call
/// refuses an input that requires a gradient ([`Error::Autograd`]), or that is in memory which the closure writes to
/// ([`Error::Aliased`]).
///
/// **Tensors from outside** are used in place. If you write to them between two calls, for example by loading a
/// checkpoint, the next call reads the new values. The step keeps everything alive that it uses.
///
/// **State of the host.** A replay does not run the host code of the closure. A value that it takes from the host,
/// such as a learning rate computed there, a counter, or a branch on one, never changes after the recording. So the
/// closure is recorded again from time to time, which runs nothing, and compared:
///
/// - twice at the first call with inputs of new shapes;
/// - before the second and the tenth such call;
/// - then at doubling intervals (before call 20, 40, 80 and so on), or later if all these checks would take more than
///   1 % of the run;
/// - before a call, if a tensor from outside was frozen, unfrozen or given other memory for its gradient
///   ([`Tensor::set_requires_grad`], [`Tensor::set_grad`]). Make a new step after such a change;
/// - in [`Step::check`], which you should call before you write a checkpoint, and in [`Step::finish`].
///
/// A step that is dropped with calls after its last check says so on standard error, once per process.
///
/// A difference is [`Error::RecordingChanged`]; then every call fails until a check finds no difference. Calls
/// between the last successful check and this one have used the old value. **A change between two checks that is
/// undone before the next one is not found.** [`StepOptions::strict`] (or `REFRAIN_STRICT=1` for any program,
/// unchanged) records before every call and finds it. Side effects of the closure on the host happen each time it is
/// recorded, not once per call.
///
/// **Threads.** The recording belongs to the calling thread. Work that the closure gives to other threads is refused
/// if it can be distinguished from unrelated work, see [`unrelated_to_recordings`](crate::unrelated_to_recordings).
///
/// **Escapes.** A tensor that the closure makes must not outlive it, except as an output ([`Error::Escaped`]): make
/// gradients, optimiser state and caches before the step. The same holds for the tape history of a tensor from
/// outside that an operation wrote into. A replay ends the histories of what it writes to. It is refused if a
/// history, or an overwritten saved value, would refuse the eager code. Recording the closure changes neither.
///
/// `F` is the type of the closure. You need it only for a step that moves to another thread, a [`SendStep`](crate::SendStep).
pub struct Step<'f, F: ?Sized = dyn Fn(&[Tensor]) -> Returned + 'f> {
    device: Device,
    closure: Box<F>,
    entries: Vec<ProgramEntry>,
    options: StepOptions,
    /// Counts calls, to find the least recently used entry.
    clock: u64,
    current: usize,
    recordings: u64,
    first_calls: u64,
    replays: u64,
    evictions: u64,
    /// When the first program was ready, and how long checks have taken since then.
    started: Option<Instant>,
    checking: Duration,
    /// How long the closure lives.
    lifetime: PhantomData<&'f ()>,
}

/// What a closure returns: tensors, or any error.
pub(super) type Returned = std::result::Result<Vec<Tensor>, BoxError>;

impl<'f> Step<'f> {
    /// A step on a device. Nothing is recorded before the first call.
    ///
    /// The closure may return any error, with `?`. [`Step::call`] returns it as [`Error::Closure`]; an error of this
    /// crate is returned unchanged.
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
        Step::of(device, options, Box::new(closure))
    }
}

impl<'f, F: ?Sized + Fn(&[Tensor]) -> Returned> Step<'f, F> {
    pub(super) fn of(device: &Device, options: StepOptions, closure: Box<F>) -> Step<'f, F> {
        // If this happens in a closure that is being recorded, the call that records it returns the error.
        let _ = forbid_nesting(device);
        let options = StepOptions { strict: options.strict || strict_by_environment(), ..options };
        Step {
            device: device.clone(),
            closure,
            entries: Vec::new(),
            options,
            clock: 0,
            current: 0,
            recordings: 0,
            first_calls: 0,
            replays: 0,
            evictions: 0,
            started: None,
            checking: Duration::ZERO,
            lifetime: PhantomData,
        }
    }

    /// Runs the step on `inputs`. If inputs of these shapes and dtypes are new, the step is recorded first; then it
    /// is replayed.
    ///
    /// # Errors
    /// [`Error::NotRecordable`] if the closure does something that can't be part of a replay, or if this is called in
    /// a worker of a thread pool or within another step. [`Error::Autograd`] and [`Error::Aliased`] for inputs that a
    /// copy can't replace. [`Error::RanksDiffer`] if the step has collectives and the ranks have recorded different steps.
    /// [`Error::Escaped`], [`Error::RecordingChanged`], [`Error::Closure`], and the errors of the
    /// operations. After an error the device works as before. Nothing of a step that could not be recorded has run.
    pub fn call(&mut self, inputs: &[Tensor]) -> Result<Outputs<'_>> {
        self.repeat(inputs, 1)
    }

    /// Runs the step `n` times on the same inputs. It waits only now and then, so that a GPU never has more than 64
    /// queued replays. Use it for steps that read their data from the device with a cursor that they advance. The
    /// outputs are those of the last run.
    ///
    /// # Errors
    /// As [`Step::call`]. The runs before an error have happened.
    pub fn repeat(&mut self, inputs: &[Tensor], n: usize) -> Result<Outputs<'_>> {
        if n == 0 {
            return Err(Error::invalid(
                OP,
                "a step that is repeated 0 times has no outputs; repeat it at least once",
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

    /// Runs the step `runs` times on the same inputs and measures the time of each launch. On a GPU the kernels run
    /// one after the other and are measured with events in a graph; on the CPU the calls are measured. In a real
    /// call, independent launches may run in parallel, so it takes less than the sum of these times.
    ///
    /// The collectives of the step wait for the other ranks: call this on all of them, with the same `runs`.
    /// [`Communicator::collectives`](crate::Communicator::collectives) counts them as those of replays.
    ///
    /// # Errors
    /// As [`Step::call`], and errors of the device.
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
            return Err(Error::invalid(OP, "the number of runs is 0; use at least one"));
        }
        self.prepare(inputs)?;
        let entry = &self.entries[self.current];
        let ready = match &entry.run {
            RunMode::Replay(ready) => ready,
            RunMode::Ahead(_) => return Err(unfinished()),
            RunMode::Eager(refusal) => return Err(refusal.clone()),
        };
        let times = settled(&entry.generators, || ready.time(&self.device, runs))?;
        Ok(StepProfile::new(ready.program(), &times))
    }

    /// Records the program for inputs of these shapes and dtypes, if there is none, and runs nothing. A GPU's kernels are
    /// compiled in the background from then on, and the first [`Step::call`] waits for the rest. So call this for every shape
    /// (and every step) that a program is going to need, in that order, before the first call of any: their kernels are
    /// compiled while the first ones already run. A step keeps as many programs as [`StepOptions::keep`] says.
    ///
    /// The state that the closure reads must be what it is at the first call; what differs is [`Error::RecordingChanged`] there. The
    /// first call also takes the memory that the program needs.
    ///
    /// # Errors
    /// As [`Step::call`] when it records.
    ///
    /// ```
    /// # use refrain::{DType, Device, Step, Tensor};
    /// # let device = Device::cpu();
    /// let mut step = Step::new(&device, |x| Ok(vec![x[0].square()?]));
    /// let (full, last) = (Tensor::ones([64], DType::F32, &device)?, Tensor::ones([10], DType::F32, &device)?);
    /// step.record_ahead(&[full.clone()])?;
    /// step.record_ahead(&[last])?;
    /// assert_eq!((step.programs(), step.first_calls()), (2, 0));
    /// step.call(&[full])?;
    /// assert_eq!((step.programs(), step.first_calls()), (2, 1));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn record_ahead(&mut self, inputs: &[Tensor]) -> Result<()> {
        let settings = self.check_inputs(inputs)?;
        if !self.entries.iter().any(|e| e.fits(inputs, settings)) {
            self.add(inputs, settings)?;
        }
        Ok(())
    }

    /// Returns an error if a step can't be called here with these inputs.
    fn check_inputs(&self, inputs: &[Tensor]) -> Result<ThreadSettings> {
        forbid_here(&self.device)?;
        if let Some(other) = inputs.iter().find(|t| t.device() != &self.device) {
            let (lhs, rhs) = (self.device.name(), other.device().name());
            return Err(Error::DeviceMismatch { op: OP, lhs, rhs });
        }
        inputs.iter().enumerate().try_for_each(|(i, input)| check_input(OP, i, input))?;
        Ok(ThreadSettings::now())
    }

    /// Makes the program for these inputs the current one and copies the inputs.
    fn prepare(&mut self, inputs: &[Tensor]) -> Result<()> {
        let settings = self.check_inputs(inputs)?;
        let recordings = self.recordings;
        match self.entries.iter().position(|e| e.fits(inputs, settings)) {
            Some(at) => {
                self.current = at;
                self.check_where_due()?;
            }
            None => self.current = self.add(inputs, settings)?,
        }
        self.finish_recording()?;
        self.clock += 1;
        let entry = &mut self.entries[self.current];
        entry.last_used = self.clock;
        if self.recordings == recordings && matches!(entry.run, RunMode::Replay(_)) {
            entry.unchecked += 1;
        }
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
            RunMode::Ahead(_) => Err(unfinished()),
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

    /// Records the closure again for every program and compares, for example before you write a checkpoint. It finds
    /// whether a replay still does what the closure would do now. It can't find a change of the host state that was
    /// undone since the last check ([`StepOptions::strict`] can).
    ///
    /// # Errors
    /// [`Error::RecordingChanged`] if a replay no longer does what the closure would do. [`Error::NotRecordable`] in
    /// a worker of a thread pool, and within another step.
    pub fn check(&mut self) -> Result<()> {
        forbid_here(&self.device)?;
        let checked = (0..self.entries.len()).try_for_each(|at| self.check_entry(at));
        self.entries.iter_mut().for_each(|entry| entry.unchecked = 0);
        checked
    }

    /// Ends the step with a last [`Step::check`]. No error means: at every check, the host state that the closure
    /// depends on was the same as at recording. So every call did what the closure would have done, unless state
    /// changed between two checks and was changed back; only [`StepOptions::strict`] finds that.
    ///
    /// # Errors
    /// As [`Step::check`].
    pub fn finish(mut self) -> Result<()> {
        self.check()
    }

    /// The program of the last call. `None` if that call ran eagerly ([`Fallback::Eager`](crate::Fallback)).
    pub fn program(&self) -> Option<&Program> {
        self.entries.get(self.current)?.run.program()
    }

    /// Why the last call ran eagerly instead of as a replay, if it did.
    pub fn refusal(&self) -> Option<&Error> {
        match &self.entries.get(self.current)?.run {
            RunMode::Ahead(_) | RunMode::Replay(_) => None,
            RunMode::Eager(refusal) => Some(refusal),
        }
    }

    /// How many programs the step keeps at the moment.
    pub fn programs(&self) -> usize {
        self.entries.len()
    }

    /// How many programs were dropped for others so far. If this grows from call to call, the inputs have more shapes
    /// than [`StepOptions::keep`] allows.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// How often the closure was recorded so far: twice for each program and once for each check; with
    /// [`StepOptions::strict`] also once for each call.
    pub fn recordings(&self) -> u64 {
        self.recordings
    }

    /// How many programs were called for the first time so far. Such a call takes the memory of its program.
    pub fn first_calls(&self) -> u64 {
        self.first_calls
    }

    /// How often programs were replayed so far. Runs of [`Step::profile`] and eager runs
    /// ([`Fallback::Eager`](crate::Fallback)) do not count.
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

    /// How long all recordings for checks took.
    pub fn checking_time(&self) -> Duration {
        self.checking
    }

    /// How long it took to record the program of the last call.
    pub fn recording_time(&self) -> Option<Duration> {
        self.entries.get(self.current).map(|e| e.cost)
    }

    /// Records the closure twice and prepares a program.
    fn add(&mut self, inputs: &[Tensor], settings: ThreadSettings) -> Result<usize> {
        let inputs: Vec<Tensor> = inputs
            .iter()
            .map(|t| Tensor::empty(OP, t.shape(), t.dtype(), &self.device))
            .collect::<Result<_>>()?;
        let begin = Instant::now();
        let recorded = Arc::new(self.record(&inputs, settings)?);
        let cost = begin.elapsed();
        self.record_again(&inputs, settings, &recorded)?;
        self.checking += begin.elapsed() - cost;
        let mut generators: Vec<Generator> = recorded.generators.iter().map(|(g, _)| g.clone()).collect();
        generators.sort_by_key(|g| g.state_tensor().storage_id());
        let histories = WatchedHistories::new(&recorded.outside);
        let program = Program::new(
            recorded,
            self.device.fuses().filter(|_| fuse::is_wanted()),
            self.device.overlaps_launches(),
        )?;
        program.check_ranks()?;
        let run = match Ahead::new(program, &self.device) {
            Ok(ahead) => RunMode::Ahead(Box::new(ahead)),
            Err(error) => self.refused(error)?,
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
            outputs: Vec::new(),
            histories,
            last_used: self.clock,
            calls: 0,
            unchecked: 0,
            check_at: CHECKED[0],
            cost,
        });
        self.started.get_or_insert_with(Instant::now);
        Ok(self.entries.len() - 1)
    }

    /// Waits until the current program can be replayed. If it fails, the program is gone.
    fn finish_recording(&mut self) -> Result<()> {
        if !matches!(self.entries[self.current].run, RunMode::Ahead(_)) {
            return Ok(());
        }
        let mut entry = self.entries.remove(self.current);
        if let RunMode::Ahead(ahead) = entry.run {
            entry.run = match ahead.finish(&self.device) {
                Ok(ready) => {
                    entry.outputs = ready.outputs();
                    RunMode::Replay(Box::new(ready))
                }
                Err(error) => self.refused(error)?,
            };
        }
        self.entries.insert(self.current, entry);
        self.first_calls += 1;
        Ok(())
    }

    /// How a program runs that the driver has refused.
    fn refused(&self, error: Error) -> Result<RunMode> {
        match error {
            refusal @ Error::Device { .. } if self.options.fallback == Fallback::Eager => {
                let _ = writeln!(
                    std::io::stderr(),
                    "refrain: warning: a step runs eagerly instead of as a graph: {refusal}"
                );
                Ok(RunMode::Eager(refusal))
            }
            error => Err(error),
        }
    }

    fn record(&mut self, inputs: &[Tensor], settings: ThreadSettings) -> Result<Recorded> {
        self.recordings += 1;
        recorder::record(&self.device, inputs, |handles| settings.with(|| (self.closure)(handles)))
    }

    /// Records the closure again and compares.
    fn record_again(
        &mut self,
        inputs: &[Tensor],
        settings: ThreadSettings,
        first: &Arc<Recorded>,
    ) -> Result<()> {
        self.recordings += 1;
        let closure = |handles: &[Tensor]| settings.with(|| (self.closure)(handles));
        recorder::record_again(&self.device, inputs, closure, first)
    }

    /// Checks the current program if a check is due before its next call.
    fn check_where_due(&mut self) -> Result<()> {
        let run = self.started.map_or(Duration::ZERO, |t| t.elapsed());
        let entry = &mut self.entries[self.current];
        let call = entry.calls + 1;
        let affordable = entry.check_at <= CHECKED[1] || is_due(self.checking, entry.cost, run);
        let due = call >= entry.check_at && affordable;
        if due || self.options.strict || entry.histories.difference().is_some() {
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
        let ProgramEntry { inputs, settings, run, histories, .. } = &mut self.entries[at];
        // If there is none, the closure itself runs.
        let Some(program) = run.program() else { return Ok(()) };
        let first = program.recorded.clone();
        let (inputs, settings, histories_differ) = (inputs.clone(), *settings, histories.difference());
        let checked = self.record_again(&inputs, settings, &first);
        self.checking += begin.elapsed();
        let entry = &mut self.entries[at];
        entry.unchecked = 0;
        match (checked, histories_differ) {
            (Ok(()), _) => {
                entry.histories.accept();
                Ok(())
            }
            (Err(error), differ) => {
                // Every call fails until a check finds no difference.
                entry.check_at = 0;
                Err(match differ {
                    Some(differ) => because_of(differ, error),
                    None => error,
                })
            }
        }
    }
}

impl<F: ?Sized> Drop for Step<'_, F> {
    /// Warns of calls that no check followed. Once per process: a program that forgets [`Step::finish`] does so for
    /// every step. A test shows it only if it fails, because the harness captures what a test prints.
    fn drop(&mut self) {
        static WARNED: AtomicBool = AtomicBool::new(false);
        let calls: u64 = self.entries.iter().map(|entry| entry.unchecked).sum();
        if calls == 0 || std::thread::panicking() || WARNED.swap(true, Ordering::Relaxed) {
            return;
        }
        // Not `eprintln!`, which panics if nobody reads standard error.
        let _ = writeln!(
            std::io::stderr(),
            "refrain: warning: a step was dropped {calls} calls after its last check, so a change of host state since then was not looked for; end a step with finish(), or call check() before you use its results"
        );
    }
}

impl<F: ?Sized> fmt::Debug for Step<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Step({}, {} programs)", self.device, self.entries.len())
    }
}

/// A program that nobody has finished, which no public function leads to.
fn unfinished() -> Error {
    Error::internal(OP, "a step runs before its recording is finished")
}
