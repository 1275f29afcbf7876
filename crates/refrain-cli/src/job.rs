//! The processes of a job, one for each GPU. Most often there is only this one.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use refrain::{Communicator, CommunicatorId, Device, DeviceKind, HostTransport};
use refrain_rendezvous::{Failure, Group, Phase, RANK_FAILED, Rendezvous, Token, World};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::{DeviceArg, RankArgs};
use crate::console::{self, Console, note};
use crate::error::{Error, Result};
use crate::folder::{self, RunFolder};
use crate::interrupt::{Interrupt, Signal};
use crate::run;

/// How long a process may take to end by itself after another one has failed. A call to a GPU may never return.
const GRACE: Duration = Duration::from_secs(3);

/// How often a process reports which collective it has reached.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// What to do after a rank has failed, for a job that saves checkpoints, and for any other.
pub const RESUME: &str =
    "start the job again with --resume-if-possible, and it goes on from the last checkpoint";
pub const RESTART: &str = "start the job again";

/// The processes that work together, as one of them sees them.
pub struct Job {
    device: Device,
    together: Option<Together>,
    /// What to do after a rank has failed.
    fix: &'static str,
}

/// Which process of how many this is. What it prints on standard error begins with its rank, unless it is the first.
pub fn world(ranks: &RankArgs) -> Result<World> {
    let world = ranks.world()?;
    if world.rank > 0 {
        console::call_this_process(format!("rank {} on {}", world.rank, folder::host()));
    }
    Ok(world)
}

/// This process among several.
struct Together {
    group: Arc<Group>,
    communicator: Shared,
    launcher: &'static str,
    /// Whether this process has left the group in peace.
    has_left: Cell<bool>,
    /// Whether it has given up by itself.
    gave_up: Arc<AtomicBool>,
}

/// What the threads that watch need of the communicator. `None` before it is made, and at the end.
type Shared = Arc<Mutex<Option<Communicator>>>;

fn locked(shared: &Shared) -> MutexGuard<'_, Option<Communicator>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Carries what ranks on CPUs and simulated GPUs exchange.
struct Sockets(Arc<Group>);

impl HostTransport for Sockets {
    fn exchange(&self, what: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        self.0.exchange(what, bytes)
    }
}

impl Job {
    /// A process that works alone.
    pub fn alone(device: Device) -> Job {
        Job { device, together: None, fix: RESTART }
    }

    /// Waits for the other processes of this world, if there are any. All of them must be about to do the same `work`. `fix`
    /// says what to do after a rank has failed.
    pub fn join(
        world: World,
        ranks: &RankArgs,
        device: DeviceArg,
        work: &str,
        fix: &'static str,
    ) -> Result<Job> {
        if world.size == 1 {
            return Ok(Job::alone(device.open()?));
        }
        let device = device.open_for(world.local_rank)?;
        let is_gpu = device.kind() == DeviceKind::Cuda;
        let (is_first, launcher) = (world.rank == 0, world.launcher);
        let id = match is_gpu && is_first {
            true => CommunicatorId::new()?.as_bytes().to_vec(),
            false => Vec::new(),
        };
        let group = Rendezvous::new(world)
            .token(Token::from_environment()?)
            .allow_public_without_token(ranks.rendezvous_without_token)
            .assemble_within(ranks.rendezvous_timeout)
            .notice_failures_within(ranks.failure_timeout)
            .must_agree("version", env!("CARGO_PKG_VERSION"))
            .must_agree("kind of device", &format!("{:?}", device.kind()))
            .must_agree("run", work)
            .payload(id)
            .on_wait(move |line| {
                if is_first {
                    note(line);
                }
            })
            .join()?;
        let together = Together {
            group: Arc::new(group),
            communicator: Shared::default(),
            launcher,
            has_left: Cell::new(false),
            gave_up: Arc::default(),
        };
        let job = Job { device, together: Some(together), fix };
        match job.connect() {
            Ok(()) => Ok(job),
            Err(error) => Err(job.end(error)),
        }
    }

    /// Makes the communicator, and watches over the others from now on.
    fn connect(&self) -> Result<()> {
        let Some(Together { group, communicator, gave_up, .. }) = &self.together else { return Ok(()) };
        let (shared, gave_up, fix) = (communicator.clone(), gave_up.clone(), self.fix);
        group.on_failure(move |failure| {
            if !gave_up.load(Ordering::SeqCst) {
                end_after(failure, fix, &shared);
            }
        });
        let (rank, size) = (group.rank(), group.size());
        let made = match self.device.kind() {
            DeviceKind::Cuda => {
                let id = CommunicatorId::from_bytes(group.payload())?;
                Communicator::new(&self.device, &id, rank, size)?
            }
            _ => Communicator::over(&self.device, Sockets(group.clone()), rank, size)?,
        };
        *locked(communicator) = Some(made);
        let (group, shared) = (group.clone(), communicator.clone());
        let report = move || {
            loop {
                // In a statement of its own, so that the lock is free while this thread sleeps.
                let collectives = locked(&shared).as_ref().map(Communicator::collectives);
                let Some(collectives) = collectives else { break };
                group.set_collective(collectives);
                thread::sleep(REPORT_EVERY);
            }
        };
        let started = thread::Builder::new().name("collectives".to_owned()).spawn(report);
        started
            .map(drop)
            .map_err(|error| Error::Exchange(format!("cannot start a thread: {error}; end other processes")))
    }

    /// Does the work of this process, and reports to the others how it ended.
    pub fn run<T>(self, work: impl FnOnce(&Job) -> Result<T>) -> Result<T> {
        match work(&self) {
            Ok(done) => self.leave().map(|()| done),
            Err(error) => Err(self.end(error)),
        }
    }

    /// The device of this process.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether this process prints and writes for all.
    pub fn is_first(&self) -> bool {
        self.together.as_ref().is_none_or(|together| together.group.rank() == 0)
    }

    /// Where the lines of this process go.
    pub fn console(&self, json: bool) -> Console {
        if self.is_first() { Console::of_files(json) } else { Console::silent() }
    }

    /// The same for a command whose result is what it prints.
    pub fn console_of_result(&self, json: bool) -> Console {
        if self.is_first() { Console::new(json) } else { Console::silent() }
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.together.as_ref().map_or(1, |together| together.group.size())
    }

    /// The communicator, if there are several processes.
    pub fn communicator(&self) -> Option<Communicator> {
        locked(&self.together.as_ref()?.communicator).clone()
    }

    /// The folder of a run that is to be resumed.
    pub fn open_folder(&self, path: &Path) -> Result<RunFolder> {
        match self.is_first() {
            true => RunFolder::open(path),
            false if run::is_begun(path) => Ok(RunFolder::of_another(path)),
            false => Err(run::no_run(path)),
        }
    }

    /// Prints which processes work together.
    pub fn describe(&self, console: Console) -> Result<()> {
        let Some(Together { group, launcher, .. }) = &self.together else { return Ok(()) };
        let mut hosts = group.hosts().to_vec();
        hosts.dedup();
        console.line(format!("ranks       {}, started by {launcher}, on {}", group.size(), hosts.join(", ")))
    }

    /// Refuses settings that differ from those of the first process.
    pub fn agree(&self, settings: &Value) -> Result<()> {
        let Some(together) = &self.together else { return Ok(()) };
        let all = self.gather("settings", settings)?;
        for (rank, theirs) in all.iter().enumerate().skip(1) {
            let differences = run::differences(&all[0], theirs, &format!("on rank {rank}"));
            if !differences.is_empty() {
                // All ranks see the same, so none waits for another.
                self.leave()?;
                let host = &together.group.hosts()[rank];
                let problem = format!("rank {rank} on {host} differs from rank 0: {}", run::few(differences));
                return Err(Error::usage(problem, "give all ranks the same options and data"));
            }
        }
        Ok(())
    }

    /// What each process gives, by rank. All of them must call it.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, what: &str, mine: &T) -> Result<Vec<T>> {
        let mine = serde_json::to_vec(mine).map_err(Error::Json)?;
        let all = match &self.together {
            Some(together) => together.exchange(what, &mine)?,
            None => vec![mine],
        };
        all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(Error::Json)).collect()
    }

    /// Whether this step may begin: no process was asked to end. All of them get the same answer for the same step.
    pub fn goes_on(&self, interrupt: &Interrupt, step: u64) -> Result<bool> {
        let asked = interrupt.asked().is_some();
        let Some(Together { group, .. }) = &self.together else { return Ok(!asked) };
        if asked {
            group.request_stop();
        }
        group.begin_step(step).map_err(|failure| self.failed(failure))
    }

    /// The signal that asked a process of this job to end: that of the first one that got any.
    pub fn signal(&self, interrupt: &Interrupt) -> Result<Option<Signal>> {
        let own = interrupt.asked();
        let Some(together) = &self.together else { return Ok(own) };
        let all = together.exchange("signals", &[own.map_or(0, Signal::number)])?;
        Ok(all.iter().filter_map(|bytes| Signal::of_number(*bytes.first()?)).next())
    }

    /// Tells the others what this process does from now on.
    pub fn set_phase(&self, phase: Phase) {
        if let Some(together) = &self.together {
            together.group.set_phase(phase);
        }
    }

    /// Takes leave of the others: what this process does from now on, it does alone.
    pub fn leave(&self) -> Result<()> {
        let Some(together) = self.together.as_ref().filter(|together| !together.has_left.get()) else {
            return Ok(());
        };
        together.group.leave().map_err(|failure| self.failed(failure))?;
        together.has_left.set(true);
        *locked(&together.communicator) = None;
        Ok(())
    }

    /// The error with which this process ends: its own, which it reports to the others, or the failure of another one.
    fn end(self, error: Error) -> Error {
        let fix = self.fix;
        let Some(together) = self.together.filter(|together| !together.has_left.get()) else { return error };
        let failure = together.group.failure();
        if failure.is_none() {
            together.gave_up.store(true, Ordering::SeqCst);
            together.group.abandon(&error.to_string());
            if let Some(communicator) = locked(&together.communicator).take() {
                communicator.abort("this rank gave up");
            }
        }
        // A thread of the group may still wait for this process to end, and would be waited for.
        std::mem::forget(together);
        failure.map_or(error, |failure| Error::RankFailed { failure, fix })
    }

    fn failed(&self, failure: Failure) -> Error {
        Error::RankFailed { failure, fix: self.fix }
    }
}

impl Together {
    fn exchange(&self, what: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.group.exchange(what, bytes).map_err(Error::Exchange)
    }
}

/// Makes calls that wait for other processes return, and ends this process if it does not end by itself.
fn end_after(failure: &Failure, fix: &'static str, shared: &Shared) {
    // Whatever waits below, and what the system calls at the end, may wait for the GPU.
    end_in_any_case(2 * GRACE, RANK_FAILED);
    if let Some(communicator) = locked(shared).as_ref() {
        communicator.abort(&failure.to_string());
    }
    thread::sleep(GRACE);
    note(format!("error: {}", Error::RankFailed { failure: failure.clone(), fix }));
    std::process::exit(RANK_FAILED.into());
}

/// Ends this process with this status after a time, also if a call of `exit` does not return: without what the system calls at
/// the end.
fn end_in_any_case(time: Duration, status: u8) {
    let end = move || {
        thread::sleep(time);
        signal_hook::low_level::exit(status.into())
    };
    // Without a thread, there is no time to wait for anything.
    if thread::Builder::new().spawn(end).is_err() {
        signal_hook::low_level::exit(status.into());
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::process::Command;

    const CHILD: &str = "REFRAIN_TEST_EXIT_BLOCKS";

    /// What the system calls at the end waits for it.
    struct Blocks;

    impl Drop for Blocks {
        fn drop(&mut self) {
            thread::sleep(Duration::from_secs(60));
        }
    }

    thread_local!(static AT_EXIT: Blocks = const { Blocks });

    #[test]
    fn the_status_is_that_of_a_failed_rank_even_if_exit_does_not_return() {
        if std::env::var_os(CHILD).is_some() {
            AT_EXIT.with(|_| {});
            end_in_any_case(Duration::from_millis(300), RANK_FAILED);
            std::process::exit(1);
        }
        let begun = std::time::Instant::now();
        let name = "job::tests::the_status_is_that_of_a_failed_rank_even_if_exit_does_not_return";
        let program = std::env::current_exe().unwrap();
        let ended = Command::new(program).args(["--exact", name]).env(CHILD, "1").output().unwrap();
        assert_eq!(ended.status.code(), Some(RANK_FAILED.into()), "{ended:?}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
