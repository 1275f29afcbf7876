//! Keeps the input at work on disk, and ends a process whose input does not end.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use crate::target::{Input, folder};

/// How many times its time an input may take before the process is ended: until then it is made smaller, if it ends.
const PATIENCE: u32 = 10;

/// Watches inputs from a thread of its own.
pub struct Watchdog {
    name: &'static str,
    /// When the process is to be ended, and which file tells why.
    deadline: Arc<Mutex<Option<(Instant, PathBuf)>>>,
    current: RefCell<Option<PathBuf>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watchdog {
    /// A watchdog for the inputs of the target of this name.
    pub fn new(name: &'static str) -> Watchdog {
        let deadline: Arc<Mutex<Option<(Instant, PathBuf)>>> = Arc::default();
        let of_thread = deadline.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(Duration::from_millis(100));
                if let Some((_, file)) = lock(&of_thread).as_ref().filter(|(at, _)| Instant::now() > *at) {
                    eprintln!("{name}: {} does not end", file.display());
                    process::exit(1);
                }
            }
        });
        Watchdog { name, deadline, current: RefCell::default() }
    }

    /// An input begins, which should take so much time.
    pub fn begin(&self, input: &Input, time: Duration) -> Result<(), String> {
        let file = folder().join("failures").join(format!("{}-current.{}", self.name, input.kind));
        fs::write(&file, &input.bytes).map_err(|e| format!("{}: {e}", file.display()))?;
        let before = self.current.replace(Some(file.clone()));
        if let Some(before) = before.filter(|before| *before != file) {
            let _ = fs::remove_file(before);
        }
        *lock(&self.deadline) = Some((Instant::now() + time * PATIENCE, file));
        Ok(())
    }

    /// It has ended.
    pub fn end(&self) {
        *lock(&self.deadline) = None;
    }
}

/// The process ends in order, so no input has ended it.
impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(file) = self.current.take() {
            let _ = fs::remove_file(file);
        }
    }
}
