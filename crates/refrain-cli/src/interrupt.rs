//! Signals that ask the process to end (Ctrl-C, SIGTERM, SIGHUP). The first asks for an orderly end; the second ends
//! the process at once. The first also ends it at once if nobody checks for signals any more.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Its number on every Unix. Windows has no such signal and refuses it.
const SIGHUP: i32 = 1;

/// Tells whether the process should end.
#[derive(Debug)]
pub struct Interrupt {
    /// The number of the last signal, 0 before the first.
    signal: Arc<AtomicUsize>,
    /// Whether the next signal ends the process at once.
    at_once: Arc<AtomicBool>,
}

/// A signal that asks the process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(usize);

impl Interrupt {
    /// Listens for signals from now on. A signal that can't be listened for ends the process as usual.
    pub fn listen() -> Interrupt {
        let interrupt = Interrupt { signal: Arc::default(), at_once: Arc::default() };
        let Interrupt { signal, at_once } = &interrupt;
        // `nohup` makes a process ignore SIGHUP.
        let all = [SIGINT, SIGTERM].into_iter().chain((!ignored(SIGHUP)).then_some(SIGHUP));
        for number in all {
            // Actions run in this order: what the first signal sets, the second one finds.
            let _ = flag::register_conditional_shutdown(number, 128 + number, at_once.clone())
                .and_then(|_| flag::register(number, at_once.clone()))
                .and_then(|_| flag::register_usize(number, signal.clone(), number as usize));
        }
        interrupt
    }

    /// Takes the end of standard input for SIGTERM. A process that another one started with a pipe so ends with that one, also if
    /// that one is killed.
    pub fn end_with_input(&self) {
        let signal = self.signal.clone();
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = signal.compare_exchange(0, SIGTERM as usize, Ordering::SeqCst, Ordering::SeqCst);
        });
    }

    /// The signal that has asked the process to end, if any.
    pub fn asked(&self) -> Option<Signal> {
        match self.signal.load(Ordering::SeqCst) {
            0 => None,
            number => Some(Signal(number)),
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.at_once.store(true, Ordering::SeqCst);
    }
}

impl Signal {
    /// The signal of this number; there is none with number 0.
    pub fn of_number(number: u8) -> Option<Signal> {
        (number > 0).then_some(Signal(number.into()))
    }

    pub fn number(self) -> u8 {
        self.0 as u8
    }

    /// The exit status that shells report for a process that a signal ended.
    pub fn status(self) -> u8 {
        128 + self.number()
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 as i32 {
            SIGINT => "Ctrl-C",
            SIGTERM => "SIGTERM",
            _ => "SIGHUP",
        })
    }
}

/// Whether the process was started with a signal ignored, as far as Linux reports it.
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}
