//! Ctrl-C: the first asks for an orderly end, the second ends at once; so does the first when nobody asks any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user wants to stop.
#[derive(Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for Ctrl-C (and a request to terminate) from now on. Where the system refuses that, Ctrl-C ends the
    /// process as ever.
    pub fn listen() -> Interrupt {
        let asked = Arc::new(AtomicBool::new(false));
        let interrupt = Interrupt(asked.clone());
        let _ = ctrlc::set_handler(move || {
            if asked.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        });
        interrupt
    }

    pub fn asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
