//! Ranks that are together: they exchange bytes, watch over each other, and stop at the same step.

mod frame;
mod hub;
#[cfg(test)]
mod hub_tests;
mod link;
mod member;
mod threads;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use frame::{Down, Up};
pub use frame::{Failure, Phase};
use hub::{Hub, Limits};
use link::{Heard, outbox};
use member::{Member, Uplink};
use threads::Threads;

use crate::assemble::{Admission, Door, JoinedRank};
use crate::error::Result;
use crate::rendezvous::Rendezvous;
use crate::world::World;

/// The exit status of a process that ends because another rank failed (`EX_TEMPFAIL`: "try again"). A launcher can tell by
/// it that the process itself is not at fault and the job is to be started again.
pub const RANK_FAILED: u8 = 75;

/// The shortest time within which failures can be noticed.
const SHORTEST: Duration = Duration::from_millis(100);

/// The ranks of a job, together.
///
/// Each rank tells rank 0 every tenth of [`notice_failures_within`](Rendezvous::notice_failures_within) how far it is, from a
/// thread of its own. A rank that dies, falls silent, gives up, or stays behind while others wait for it is a [`Failure`] on
/// every rank. After a failure the group is of no use any more; end the process with [`RANK_FAILED`].
///
/// Take your leave with [`leave`](Group::leave). A group that is dropped without it tells the others that this rank gave up.
pub struct Group {
    world: World,
    payload: Vec<u8>,
    within: Duration,
    member: Arc<Member>,
    hub: Option<Arc<Mutex<Hub>>>,
    threads: Threads,
}

/// The lock of what several threads use. One that panicked has left it whole: nothing panics half-way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn limits(within: Duration) -> Limits {
    // With the time until it is looked at again, each is less than the whole.
    Limits { silence: within * 6 / 10, stall: within * 7 / 10 }
}

impl Group {
    pub(crate) fn alone(rendezvous: Rendezvous) -> Result<Self> {
        let Rendezvous { world, payload, within, host, .. } = rendezvous;
        let member = Arc::new(Member::new(0, vec![host], Uplink::Alone));
        Ok(Self { world, payload, within, member, hub: None, threads: Threads::default() })
    }

    pub(crate) fn root(rendezvous: Rendezvous, door: Door, joined: Vec<JoinedRank>) -> Result<Self> {
        let Rendezvous { world, payload, within, host, .. } = rendezvous;
        let within = within.max(SHORTEST);
        let now = Instant::now();
        let (out, inbox) = outbox();
        let mut hosts = vec![host.clone()];
        let mut ranks = vec![(host, out, Heard::new(now))];
        let mut links = Vec::new();
        for JoinedRank { stream, host, .. } in joined {
            let (out, inbox) = outbox();
            let heard = Heard::new(now);
            hosts.push(host.clone());
            ranks.push((host, out, heard.clone()));
            links.push((stream, inbox, heard));
        }
        let hub = Arc::new(Mutex::new(Hub::new(ranks, limits(within), now)));
        let member = Arc::new(Member::new(0, hosts, Uplink::Here(hub.clone())));
        let threads = Threads::root(&member, &hub, inbox, links, within)?;
        let watched = hub.clone();
        let takes_part = move |rank| locked(&watched).takes_part(rank);
        door.together(Arc::new(takes_part));
        Ok(Self { world, payload, within, member, hub: Some(hub), threads: threads.with(door) })
    }

    pub(crate) fn member(rendezvous: Rendezvous, admission: Admission) -> Result<Self> {
        let Rendezvous { world, within, .. } = rendezvous;
        let within = within.max(SHORTEST);
        let Admission { stream, hosts, payload } = admission;
        let (out, inbox) = outbox();
        let member = Arc::new(Member::new(world.rank, hosts, Uplink::There(out.clone())));
        let threads = Threads::member(&member, out, inbox, stream, within)?;
        Ok(Self { world, payload, within, member, hub: None, threads })
    }

    /// Which rank of how many this is.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.world.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.world.size
    }

    /// The hosts of the ranks.
    pub fn hosts(&self) -> &[String] {
        self.member.hosts()
    }

    /// The bytes that rank 0 brought to the rendezvous.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Gives bytes to all ranks and gets those of all, by rank. Every rank must make the same exchanges in the same order;
    /// `what` names one, and ranks that name it differently learn both names. It waits until all ranks are there.
    ///
    /// The bytes may have any length, another on each rank, up to 64 MiB a rank and 1 GiB in all.
    ///
    /// # Errors
    /// A rank failed, has left, or makes another exchange; the message says which and what. After that no exchange is
    /// possible any more.
    pub fn exchange(&self, what: &str, bytes: &[u8]) -> std::result::Result<Vec<Vec<u8>>, String> {
        self.member.exchange(what, bytes)
    }

    /// Call this before each step, with its number. `false` means: do not begin it, all ranks stop here. It waits only while
    /// the ranks agree on where to stop.
    ///
    /// # Errors
    /// A rank failed.
    pub fn begin_step(&self, step: u64) -> std::result::Result<bool, Failure> {
        self.member.begin_step(step)
    }

    /// Tells the number of the collective that this rank has come to. Numbers grow; a rank whose number is below those of
    /// others and does not grow has failed, if it is in [`Phase::Training`].
    pub fn set_collective(&self, number: u64) {
        self.member.set_collective(number);
    }

    /// Tells what this rank does from now on.
    pub fn set_phase(&self, phase: Phase) {
        self.member.set_phase(phase);
    }

    /// Asks all ranks to stop, before the first step that none of them has begun. Any rank may ask, more than once.
    pub fn request_stop(&self) {
        self.member.request_stop();
    }

    /// The step that no rank begins, once the ranks have agreed to stop.
    pub fn stop_at(&self) -> Option<u64> {
        self.member.stop_at()
    }

    /// The failure that ended this group, if one did.
    pub fn failure(&self) -> Option<Failure> {
        self.member.failure()
    }

    /// Calls a function when a rank fails: once, on a thread of the group, or at once if one has failed already. On rank 0 it
    /// is called after the others know, so it may end the process.
    pub fn on_failure(&self, callback: impl FnOnce(&Failure) + Send + 'static) {
        self.member.on_failure(Box::new(callback));
    }

    /// Tells the others that this rank can't go on, and why. On all of them, and here, it is a failure of this rank.
    pub fn abandon(&self, why: &str) {
        self.member.send(Up::Abandon(why.to_owned()));
        self.flush();
    }

    /// Takes leave: this rank has done its part, and may end. Rank 0 waits for the others, so that they are watched until
    /// they end, but not longer than failures may take to be noticed.
    ///
    /// # Errors
    /// A rank failed before this one left.
    pub fn leave(&self) -> std::result::Result<(), Failure> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        if let Some(hub) = &self.hub {
            locked(hub).receive(0, Up::Goodbye);
            let until = Instant::now() + self.within;
            loop {
                if let Some(failure) = self.failure() {
                    return Err(failure);
                }
                // A failure that the hub knows is known here as soon as the others have learned of it.
                let (all_left, failed) = locked(hub).is_over();
                if !failed && (all_left || Instant::now() >= until) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            if !self.member.leave() {
                locked(hub).broadcast(Down::Goodbye);
            }
        } else if !self.member.leave() {
            self.member.send(Up::Goodbye);
        }
        self.flush();
        Ok(())
    }

    /// Waits until what was sent is on its way, so that it arrives even if the process ends now.
    fn flush(&self) {
        self.threads.flush(Instant::now() + Duration::from_secs(1));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.member.has_left() && self.failure().is_none() {
            let panicked = std::thread::panicking();
            self.abandon(if panicked {
                "it panicked"
            } else {
                "it ended before its work was done; see what it printed"
            });
        }
        self.member.leave();
        self.flush();
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("world", &self.world)
            .field("failure", &self.failure())
            .finish_non_exhaustive()
    }
}
