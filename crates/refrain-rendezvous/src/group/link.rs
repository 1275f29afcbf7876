//! A connection's outgoing frames: whoever sends never waits for the other side.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::frame::Frame;

/// Frames on their way to one rank.
#[derive(Clone)]
pub struct Outbox {
    sender: Sender<Option<Arc<Frame>>>,
    pending: Arc<AtomicUsize>,
}

/// The other end of an [`Outbox`].
pub struct Inbox {
    receiver: Receiver<Option<Arc<Frame>>>,
    pending: Arc<AtomicUsize>,
}

/// An outbox and its other end.
pub fn outbox() -> (Outbox, Inbox) {
    let (sender, receiver) = channel();
    let pending = Arc::new(AtomicUsize::new(0));
    (Outbox { sender, pending: pending.clone() }, Inbox { receiver, pending })
}

impl Outbox {
    pub fn send(&self, frame: Arc<Frame>) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        if self.sender.send(Some(frame)).is_err() {
            self.pending.fetch_sub(1, Ordering::AcqRel); // the connection has ended
        }
    }

    /// Ends the thread at the other end, after what was sent.
    pub fn close(&self) {
        // It may have ended already.
        let _ = self.sender.send(None);
    }

    /// Waits until everything has been handed to the system, but not for long: the other side may not read.
    pub fn flush(&self, until: Instant) {
        while self.pending.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Inbox {
    /// Hands out each frame until the outbox is closed.
    pub fn each(self, mut take: impl FnMut(&Frame)) {
        while let Ok(Some(frame)) = self.receiver.recv() {
            take(&frame);
            self.pending.fetch_sub(1, Ordering::AcqRel);
        }
        // What comes after the end is not delivered, and nobody should wait for it.
        drop(self.receiver);
        self.pending.store(0, Ordering::Release);
    }

    /// Writes each frame to a connection.
    pub fn write_to(self, mut stream: &TcpStream) {
        let mut open = true;
        self.each(|frame| {
            // Whoever reads from the connection reports that it ended.
            open = open && frame.0.iter().all(|piece| stream.write_all(piece).is_ok());
        });
    }
}

/// When the other side was last heard.
#[derive(Clone)]
pub struct Heard(Arc<Mutex<Times>>);

#[derive(Clone, Copy)]
struct Times {
    heard: Instant,
    /// When bytes of an exchange came.
    exchanged: Instant,
}

impl Heard {
    pub fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(Times { heard: now, exchanged: now })))
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn at(&self, now: Instant) {
        self.times().heard = now;
    }

    /// Some of what it gives to an exchange has come.
    pub fn exchanged_at(&self, now: Instant) {
        *self.times() = Times { heard: now, exchanged: now };
    }

    pub fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.times().heard)
    }

    /// When bytes of an exchange last came.
    pub fn exchanged(&self) -> Instant {
        self.times().exchanged
    }
}
