//! The windows of a cross-validation, trained side by side: each in a process of its own.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::console::Console;
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;

/// The folder of the model of a window, inside that of the cross-validation. Windows are counted from 0.
pub fn window_folder(window: usize) -> String {
    format!("window-{}", window + 1)
}

/// How long a process may take to end by itself after it was asked to.
const GRACE: Duration = Duration::from_secs(20);

/// A process that trains.
struct Trainer {
    window: usize,
    child: Child,
}

/// Trains all windows, at most so many at a time, by starting this command again for each. Returns what went wrong with each, if
/// something did; what they print is in a log beside their folders.
pub fn train(
    console: Console,
    windows: usize,
    most: usize,
    folder: &Path,
    interrupt: &Interrupt,
) -> Result<Vec<Option<String>>> {
    let begun = Instant::now();
    let threads = (thread::available_parallelism().map_or(1, usize::from) / most.min(windows)).max(1);
    let (mut waiting, mut running) = ((0..windows).collect::<Vec<_>>(), Vec::<Trainer>::new());
    waiting.reverse();
    let mut problems = vec![None; windows];
    while !(waiting.is_empty() && running.is_empty()) {
        if let Some(signal) = interrupt.asked() {
            end(&mut running);
            return Err(Error::Stopped { signal });
        }
        if running.len() < most
            && let Some(window) = waiting.pop()
        {
            running.push(Trainer { window, child: start(window, threads, folder)? });
            continue;
        }
        thread::sleep(Duration::from_millis(20));
        let mut still = Vec::with_capacity(running.len());
        for mut trainer in running {
            match trainer.child.try_wait() {
                Ok(None) => still.push(trainer),
                Ok(Some(status)) if status.success() => {
                    let seconds = crate::console::duration(begun.elapsed());
                    console.line(format!(
                        "trained     window {} of {windows} after {seconds}",
                        trainer.window + 1
                    ))?;
                }
                Ok(Some(status)) => {
                    problems[trainer.window] = Some(problem(&trainer, &status.to_string(), folder))
                }
                Err(error) => problems[trainer.window] = Some(problem(&trainer, &error.to_string(), folder)),
            }
        }
        running = still;
    }
    Ok(problems)
}

/// Starts this command again, with the same options, for one window.
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
    command.stdin(Stdio::null()).stdout(log).stderr(both).spawn().map_err(cannot)
}

fn log(folder: &Path, window: usize) -> std::path::PathBuf {
    folder.join(format!("{}.log", window_folder(window)))
}

/// What a process ended with, and the last line that it printed.
fn problem(trainer: &Trainer, status: &str, folder: &Path) -> String {
    let path = log(folder, trainer.window);
    let said = std::fs::read_to_string(&path).unwrap_or_default();
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let last = last.trim_start_matches("error: ");
    format!("the process for window {} ended with {status}: {last} ({})", trainer.window + 1, path.display())
}

/// Asks processes to end, which save what they have, and ends those that do not.
fn end(running: &mut Vec<Trainer>) {
    for trainer in running.iter() {
        // A signal from a terminal goes to all of them, one from elsewhere does not.
        let _ = Command::new("kill")
            .args(["-TERM", &trainer.child.id().to_string()])
            .stderr(Stdio::null())
            .status();
    }
    let asked = Instant::now();
    while !running.is_empty() && asked.elapsed() < GRACE {
        running.retain_mut(|trainer| matches!(trainer.child.try_wait(), Ok(None)));
        thread::sleep(Duration::from_millis(20));
    }
    for trainer in running.iter_mut() {
        let _ = trainer.child.kill().and_then(|()| trainer.child.wait().map(drop));
    }
}
