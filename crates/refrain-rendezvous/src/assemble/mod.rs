//! How ranks come together. Rank 0 listens, all others connect:
//!
//! ```text
//! member                                     rank 0
//!   magic, version, a random number  ->
//!                                     <-  magic, version, session, a random number, "a secret is needed"
//!   who it is, its facts, proof      ->
//!                                     <-  "taken in" or "refused", proof
//!                       (until all ranks are there)
//!                                     <-  hosts and payload, or why nothing is started; proof
//! ```
//!
//! A proof is an HMAC over both random numbers and the message, so both sides show that they know the secret and no message
//! can be used again. The member proves itself first: whoever only connects to the port learns nothing to guess the secret by.

mod dial;
mod door;
mod file;
mod member;
mod message;
mod root;

use std::time::{Duration, Instant};

pub use door::Door;
pub use member::Admission;
pub use root::JoinedRank;

use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::Rendezvous;

/// How long one side waits for the other in the first messages. A stranger that says nothing is cut off after it.
const TALK: Duration = Duration::from_secs(5);

/// How often a rank that waits says so.
const NOTICE: Duration = Duration::from_secs(10);

/// The ranks are there.
pub enum Assembled {
    Alone,
    Root(Door, Vec<JoinedRank>),
    Member(Admission),
}

/// Waits until all ranks are there.
pub fn assemble(rendezvous: &Rendezvous) -> Result<Assembled> {
    let world = &rendezvous.world;
    if world.size == 0 || world.rank >= world.size {
        let message =
            format!("rank {} does not exist in a world of {}: ranks count from 0", world.rank, world.size);
        return Err(Error::new(ErrorKind::World, message));
    }
    if world.size == 1 {
        return Ok(Assembled::Alone);
    }
    let Some(address) = &world.rendezvous else {
        let message =
            format!("{} ranks have no address to meet at: pass --rendezvous tcp://HOST:PORT", world.size);
        return Err(Error::new(ErrorKind::World, message));
    };
    let deadline = Instant::now() + rendezvous.assemble;
    match world.rank {
        0 => {
            root::assemble(rendezvous, address, deadline).map(|(door, joined)| Assembled::Root(door, joined))
        }
        _ => member::assemble(rendezvous, address, deadline).map(Assembled::Member),
    }
}

/// "job 4711, attempt 2", for messages.
fn name_of(job: &str, attempt: u64) -> String {
    match job {
        "" => format!("attempt {attempt} of a job without a name"),
        job => format!("attempt {attempt} of job {job}"),
    }
}

/// Calls the user's function every ten seconds.
struct Waiting {
    next: Instant,
}

impl Waiting {
    fn new() -> Self {
        Self { next: Instant::now() + NOTICE }
    }

    fn say(&mut self, rendezvous: &Rendezvous, line: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            self.next = Instant::now() + NOTICE;
            (rendezvous.notice)(&line());
        }
    }
}
