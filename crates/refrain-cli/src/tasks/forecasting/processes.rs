//! The windows of a cross-validation, trained side by side: each in a process of its own.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::console::Console;
use crate::error::{Error, LEFT_OUT, Result};
use crate::interrupt::{Interrupt, Signal};

/// The folder of the model of a window, inside that of the cross-validation. Windows are counted from 0.
pub fn window_folder(window: usize) -> String {
    format!("window-{}", window + 1)
}

/// How long a process may take to end by itself after it was asked to.
const GRACE: Duration = Duration::from_secs(20);

/// What became of a window.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    Trained,
    /// It cannot be trained or judged, for this reason, which is no error.
    LeftOut(String),
    /// Its process or that of another window failed: which one, and how.
    NotTrained(String),
}

/// A process that trains.
struct Trainer {
    window: usize,
    child: Child,
}

/// Those that have not ended. They are stopped at the end, whatever it is.
struct Running(Vec<Trainer>);

/// Trains all windows, at most so many at a time, by starting this command again for each. If one of them fails, the others are
/// stopped. What they print is in a log beside their folders.
pub fn train(
    console: Console,
    windows: usize,
    most: usize,
    folder: &Path,
    interrupt: &Interrupt,
) -> Result<Vec<Ended>> {
    let threads = (thread::available_parallelism().map_or(1, usize::from) / most.min(windows)).max(1);
    let start = |window| start(window, threads, folder);
    train_by(console, windows, most, folder, || interrupt.asked(), start)
}

/// The same by these processes.
fn train_by(
    console: Console,
    windows: usize,
    most: usize,
    folder: &Path,
    asked: impl Fn() -> Option<Signal>,
    start: impl Fn(usize) -> Result<Child>,
) -> Result<Vec<Ended>> {
    let begun = Instant::now();
    let (mut running, mut next) = (Running(Vec::new()), 0);
    let mut ended: Vec<Option<Ended>> = vec![None; windows];
    let or = |ended: Vec<Option<Ended>>, problem: String| -> Vec<Ended> {
        ended.into_iter().map(|of| of.unwrap_or_else(|| Ended::NotTrained(problem.clone()))).collect()
    };
    let stopped = |others: bool| if others { "; the processes for other windows were stopped" } else { "" };
    while next < windows || !running.0.is_empty() {
        if let Some(signal) = asked() {
            return Err(Error::Stopped { signal });
        }
        if running.0.len() < most && next < windows {
            match start(next) {
                Ok(child) => running.0.push(Trainer { window: next, child }),
                Err(error) => {
                    let (number, others) = (next + 1, stopped(next > 0));
                    return Ok(or(
                        ended,
                        format!("no process was started for window {number}: {error}{others}"),
                    ));
                }
            }
            next += 1;
            continue;
        }
        thread::sleep(Duration::from_millis(20));
        while let Some((trainer, status)) = running.take_ended() {
            let (window, status) = (trainer.window, status.map_err(|error| error.to_string()));
            ended[window] = Some(match status {
                Ok(status) if status.success() => {
                    let seconds = crate::console::duration(begun.elapsed());
                    console
                        .line(format!("trained     window {} of {windows} after {seconds}", window + 1))?;
                    Ended::Trained
                }
                Ok(status) if status.code() == Some(LEFT_OUT.into()) => {
                    Ended::LeftOut(last_words(&log(folder, window)))
                }
                status => {
                    // Ctrl-C at a terminal goes to all processes at once, and one of them may end before the signal is seen above.
                    if let Some(signal) = asked() {
                        return Err(Error::Stopped { signal });
                    }
                    let status = status.map_or_else(|error| error, |status| status.to_string());
                    let (number, path) = (window + 1, log(folder, window));
                    let problem = format!(
                        "the process for window {number} ended with {status}: {} ({}){}",
                        last_words(&path),
                        path.display(),
                        stopped(next < windows || !running.0.is_empty()),
                    );
                    return Ok(or(ended, problem));
                }
            });
        }
    }
    Ok(or(ended, String::new()))
}

/// Starts this command again, with the same options, for one window. Its standard input ends when this process ends, and then it
/// ends, too ([`Interrupt::end_with_input`]).
fn start(window: usize, threads: usize, folder: &Path) -> Result<Child> {
    let cannot = |error: std::io::Error| {
        Error::usage(
            format!("cannot start a process: {error}"),
            "leave --processes out, or end other processes",
        )
    };
    let path = log(folder, window);
    let log = File::create(&path).map_err(|source| Error::write(&path, source))?;
    let both = log.try_clone().map_err(cannot)?;
    let given: Vec<_> = std::env::args_os().skip(1).collect();
    let chosen = given.iter().any(|word| word.to_string_lossy().starts_with("--threads"));
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    // Of options that are given twice, the last counts.
    command.args(given).args(["--processes", "1", "--train-window", &window.to_string(), "--out"]);
    command.arg(folder.join(window_folder(window)));
    if !chosen && std::env::var_os("RAYON_NUM_THREADS").is_none() {
        command.args(["--threads", &threads.to_string()]);
    }
    command.stdin(Stdio::piped()).stdout(log).stderr(both).spawn().map_err(cannot)
}

fn log(folder: &Path, window: usize) -> std::path::PathBuf {
    folder.join(format!("{}.log", window_folder(window)))
}

/// The last line that a process printed.
fn last_words(log: &Path) -> String {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

impl Running {
    /// One that has ended, and how.
    fn take_ended(&mut self) -> Option<(Trainer, std::io::Result<ExitStatus>)> {
        for at in 0..self.0.len() {
            if let Some(status) = self.0[at].child.try_wait().transpose() {
                return Some((self.0.swap_remove(at), status));
            }
        }
        None
    }
}

/// Asks the processes to end, which save what they have, and ends those that do not.
impl Drop for Running {
    fn drop(&mut self) {
        for trainer in &self.0 {
            // A signal from a terminal goes to all of them, one from elsewhere does not.
            let _ = Command::new("kill")
                .args(["-TERM", &trainer.child.id().to_string()])
                .stderr(Stdio::null())
                .status();
        }
        let asked = Instant::now();
        while !self.0.is_empty() && asked.elapsed() < GRACE {
            self.0.retain_mut(|trainer| matches!(trainer.child.try_wait(), Ok(None)));
            thread::sleep(Duration::from_millis(20));
        }
        for trainer in &mut self.0 {
            let _ = trainer.child.kill().and_then(|()| trainer.child.wait().map(drop));
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn shell(command: &str) -> Child {
        Command::new("sh").args(["-c", command]).spawn().unwrap()
    }

    fn is_there(process: u32) -> bool {
        let id = process.to_string();
        Command::new("kill").args(["-0", &id]).stderr(Stdio::null()).status().unwrap().success()
    }

    /// Trains three windows by these processes, two at a time. Returns what became of them, and the processes.
    fn train_three(start: impl Fn(usize) -> Result<Child>) -> (Vec<Ended>, Vec<u32>) {
        let (place, started) = (tempfile::tempdir().unwrap(), RefCell::new(Vec::new()));
        let start = |window: usize| {
            let child = start(window)?;
            started.borrow_mut().push(child.id());
            Ok(child)
        };
        let ended = train_by(Console::silent(), 3, 2, place.path(), || None, start).unwrap();
        (ended, started.into_inner())
    }

    #[test]
    fn a_process_that_ends_by_the_signal_that_came_to_all_is_no_failure() {
        let (place, started) = (tempfile::tempdir().unwrap(), RefCell::new(None));
        let start = |_| {
            let child = shell("exit 130");
            started.replace(Some(child.id()));
            Ok(child)
        };
        // The signal is seen only after the end of the process was.
        let asked = || started.borrow().filter(|&id| !is_there(id)).and_then(|_| Signal::of_number(2));
        let error = train_by(Console::silent(), 1, 1, place.path(), asked, start).unwrap_err();
        assert!(matches!(error, Error::Stopped { .. }), "{error}");
    }

    fn problem(ended: &Ended) -> &str {
        match ended {
            Ended::NotTrained(problem) => problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn when_a_process_cannot_be_started_the_others_are_stopped() {
        let (ended, started) = train_three(|window| match window {
            0 => Ok(shell("exec sleep 600")),
            _ => Err(Error::usage("too many processes", "end some")),
        });
        for ended in &ended {
            let message = problem(ended);
            for part in ["window 2", "too many processes; end some", "were stopped"] {
                assert!(message.contains(part), "no {part:?} in {message}");
            }
        }
        assert!(started.len() == 1 && !is_there(started[0]));
    }

    #[test]
    fn when_a_process_fails_the_others_are_stopped_and_what_is_finished_counts() {
        let (ended, started) = train_three(|window| {
            Ok(shell(match window {
                0 => "exit 0",
                1 => "exec sleep 600",
                _ => "exit 7",
            }))
        });
        assert_eq!(ended[0], Ended::Trained);
        for ended in &ended[1..] {
            let message = problem(ended);
            assert!(message.contains("window 3 ended with exit status: 7"), "{message}");
            assert!(message.contains("were stopped"), "{message}");
        }
        assert!(started.len() == 3 && !started.into_iter().any(is_there));
    }

    #[test]
    fn a_window_that_a_process_leaves_out_is_no_failure() {
        let (ended, _) = train_three(|window| Ok(shell(if window == 1 { "exit 3" } else { "exit 0" })));
        assert_eq!(ended, [Ended::Trained, Ended::LeftOut(String::new()), Ended::Trained]);
    }
}
