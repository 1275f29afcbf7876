//! The threads of a group: one that reads and one that writes a connection, and one that tells how far this rank is.

use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::frame::{self, Down, Up};
use super::hub::Hub;
use super::link::{Heard, Inbox, Outbox};
use super::{Member, limits, locked};
use crate::assemble::Door;
use crate::error::{Error, ErrorKind, Result};
use crate::wire::close;

/// How long rank 0 waits for the others to learn of a failure before it acts on it.
const TELL: Duration = Duration::from_secs(1);

/// The threads of a group. They end when this is dropped.
#[derive(Default)]
pub struct Threads {
    handles: Vec<JoinHandle<()>>,
    streams: Vec<Arc<TcpStream>>,
    outboxes: Vec<Outbox>,
    end: Arc<(Mutex<bool>, Condvar)>,
    door: Option<Door>,
}

impl Threads {
    /// The threads of rank 0, with a connection to each other rank in order.
    pub fn root(
        member: &Arc<Member>,
        hub: &Arc<Mutex<Hub>>,
        inbox: Inbox,
        links: Vec<(TcpStream, Inbox, Heard)>,
        within: Duration,
    ) -> Result<Self> {
        let outboxes: Vec<_> = locked(hub).outboxes().cloned().collect();
        let others = outboxes[1..].to_vec();
        let mut threads = Self::default();
        threads.outboxes.extend(outboxes);
        let size = links.len() + 1;
        for (i, (stream, inbox, heard)) in links.into_iter().enumerate() {
            let (rank, hub) = (i + 1, hub.clone());
            let stream = threads.connect(stream, inbox, within)?;
            threads.spawn("rendezvous-read", move || {
                loop {
                    let arrived = |kind, _| match frame::is_of_exchange(kind) {
                        true => heard.exchanged_at(Instant::now()),
                        false => heard.at(Instant::now()),
                    };
                    let read = frame::read(&stream, |kind| Up::limit(kind, size), arrived);
                    match read.map(|(kind, body)| Up::decode(kind, &body)) {
                        Ok(Ok(up)) => locked(&hub).receive(rank, up),
                        Err(error) if error.kind() != io::ErrorKind::InvalidData => {
                            return locked(&hub).closed(rank);
                        }
                        _ => return locked(&hub).malformed(rank),
                    }
                }
            })?;
        }
        let (own, all) = (member.clone(), hub.clone());
        threads.spawn("rendezvous-own", move || {
            inbox.each(|frame| {
                // The frames are this process's own.
                let Ok(down) = frame.decode() else { return };
                if matches!(down, Down::Failure(_)) {
                    // The process may end now, and the others must not take that for the cause.
                    let until = Instant::now() + TELL.min(within);
                    while !locked(&all).all_have_learned() && Instant::now() < until {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                own.receive(down);
            });
        })?;
        let (member, hub) = (member.clone(), hub.clone());
        threads.every(within / 10, move || {
            let progress = member.progress();
            let beat = Arc::new(Down::Beat(progress).encode());
            others.iter().for_each(|out| out.send(beat.clone()));
            member.send(Up::Beat(progress));
            locked(&hub).tick(Instant::now());
        })?;
        Ok(threads)
    }

    /// The threads of another rank, with its connection to rank 0.
    pub fn member(
        member: &Arc<Member>,
        out: Outbox,
        inbox: Inbox,
        stream: TcpStream,
        within: Duration,
    ) -> Result<Self> {
        let mut threads = Self::default();
        threads.outboxes.push(out);
        let stream = threads.connect(stream, inbox, within)?;
        let heard = Heard::new(Instant::now());
        let (reader, reading) = (member.clone(), heard.clone());
        threads.spawn("rendezvous-read", move || {
            let size = reader.hosts().len();
            loop {
                let arrived = |kind, bytes| {
                    reading.at(Instant::now());
                    if frame::is_of_exchange(kind) {
                        reader.has_received(bytes);
                    }
                };
                let read = frame::read(&stream, |kind| Down::limit(kind, size), arrived);
                match read.map(|(kind, body)| Down::decode(kind, &body)) {
                    Ok(Ok(down)) => reader.receive(down),
                    Err(error) if error.kind() != io::ErrorKind::InvalidData => return reader.root_closed(),
                    _ => return reader.root_failed("it sent a malformed message".to_owned()),
                }
            }
        })?;
        let (member, silence) = (member.clone(), limits(within).silence);
        let mut last = Instant::now();
        threads.every(within / 10, move || {
            member.send(Up::Beat(member.progress()));
            let now = Instant::now();
            if now.saturating_duration_since(last) > silence / 2 {
                heard.at(now); // this process was stopped for a while, and deaf
            }
            last = now;
            if heard.silence(now) > silence && member.failure().is_none() {
                member.send(Up::Abandon(format!("it heard nothing of rank 0 for {silence:?}")));
                member.root_failed(format!(
                    "nothing was heard of it for {silence:?}: its process is stopped, or its host can't be reached"
                ));
            }
        })?;
        Ok(threads)
    }

    /// Keeps the port of rank 0 open as long as the threads live.
    pub fn with(mut self, door: Door) -> Self {
        self.door = Some(door);
        self
    }

    /// Starts the thread that writes to a connection.
    fn connect(&mut self, stream: TcpStream, inbox: Inbox, within: Duration) -> Result<Arc<TcpStream>> {
        let set = stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(Some(within)));
        set.map_err(|e| {
            Error::new(ErrorKind::System, format!("a connection between ranks can't be set up: {e}"))
        })?;
        let stream = Arc::new(stream);
        self.streams.push(stream.clone());
        let writing = stream.clone();
        self.spawn("rendezvous-write", move || inbox.write_to(&writing))?;
        Ok(stream)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(body);
        let thread = thread
            .map_err(|e| Error::new(ErrorKind::System, format!("no thread for the rendezvous: {e}")))?;
        self.handles.push(thread);
        Ok(())
    }

    /// Starts a thread that does something again and again.
    fn every(&mut self, time: Duration, mut act: impl FnMut() + Send + 'static) -> Result<()> {
        let end = self.end.clone();
        self.spawn("rendezvous-beat", move || {
            let mut ended = locked(&end.0);
            while !*ended {
                drop(ended);
                act();
                ended = locked(&end.0);
                if !*ended {
                    ended = end.1.wait_timeout(ended, time).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        })
    }

    pub fn flush(&self, until: Instant) {
        self.outboxes.iter().for_each(|out| out.flush(until));
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.door = None;
        *locked(&self.end.0) = true;
        self.end.1.notify_all();
        self.outboxes.iter().for_each(Outbox::close);
        self.streams.iter().for_each(|stream| close(stream));
        let here = std::thread::current().id();
        for handle in self.handles.drain(..) {
            // A function that is called upon a failure may drop the group on one of these threads.
            if handle.thread().id() != here {
                // A thread that panicked has printed why.
                let _ = handle.join();
            }
        }
    }
}
