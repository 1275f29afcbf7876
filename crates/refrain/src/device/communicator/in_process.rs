//! Ranks that are threads of this process. All of them meet under one lock, so that the ranks that wait for one another, also
//! in several groups, are found at once and not by a time limit.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::device::{Device, DeviceKind};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Why a group can't go on.
#[derive(Clone, Debug)]
pub(super) enum Broken {
    /// The ranks broke a rule: what each did.
    Rule(String),
    /// A rank has aborted.
    Aborted(String),
}

/// All groups of this process.
static REGISTRY: Mutex<Registry> = Mutex::new(Registry { groups: BTreeMap::new(), opened: 0 });

struct Registry {
    groups: BTreeMap<u64, Group>,
    opened: u64,
}

/// The ranks of a communicator.
struct Group {
    ranks: Vec<Rank>,
    /// How many collectives are done.
    done: u64,
    /// What the ranks gave in the last one that is done, by rank.
    given: Arc<Vec<Vec<u8>>>,
    broken: Option<Broken>,
    limit: Duration,
    changed: Arc<Condvar>,
}

#[derive(Default)]
struct Rank {
    /// The simulated GPU that waits for it, by the address of its handle. It does only one thing at a time. Not known for the
    /// CPU: any thread may call.
    gpu: Option<usize>,
    /// What it waits in, and what it gave.
    waits: Option<(String, Vec<u8>)>,
    /// The last collective that it has done.
    last: Option<String>,
    has_ended: bool,
}

/// The place of a rank. When it is dropped, the rank has ended.
pub(super) struct RankHandle {
    group: u64,
    rank: usize,
}

fn lock_registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a group with a rank on each device.
pub(super) fn open(devices: &[Device], limit: Duration) -> Vec<RankHandle> {
    let mut registry = lock_registry();
    registry.opened += 1;
    let number = registry.opened;
    let rank = |device: &Device| {
        let gpu = (device.kind() == DeviceKind::Sim).then(|| Arc::as_ptr(&device.0).addr());
        Rank { gpu, ..Rank::default() }
    };
    let group = Group {
        ranks: devices.iter().map(rank).collect(),
        done: 0,
        given: Arc::default(),
        broken: None,
        limit,
        changed: Arc::new(Condvar::new()),
    };
    registry.groups.insert(number, group);
    (0..devices.len()).map(|rank| RankHandle { group: number, rank }).collect()
}

impl RankHandle {
    pub(super) fn group(&self) -> u64 {
        self.group
    }

    /// Gives bytes of this rank to all ranks; those of all ranks, by rank.
    pub(super) fn exchange(&self, what: String, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, Broken> {
        let mut registry = lock_registry();
        let group = registry.group(self.group)?;
        let (round, changed, limit) = (group.done, group.changed.clone(), group.limit);
        group.ranks[self.rank].waits = Some((what, bytes));
        group.meet();
        registry.find_circles();
        let begin = Instant::now();
        loop {
            // Also after another rank has broken a later one.
            if let Some(group) = registry.groups.get(&self.group).filter(|group| group.done > round) {
                let given = group.given.clone();
                drop(registry);
                return Ok(given.to_vec());
            }
            let group = registry.group(self.group)?;
            let waited = begin.elapsed();
            if waited >= limit {
                group.fail(&format!("the other ranks did not come within {limit:?}"));
                continue;
            }
            let woken =
                changed.wait_timeout(registry, limit - waited).unwrap_or_else(PoisonError::into_inner);
            registry = woken.0;
        }
    }

    /// Ends the group, because this rank says so.
    pub(super) fn abort(&self, reason: &str) {
        if let Ok(group) = lock_registry().group(self.group) {
            group.broken =
                Some(Broken::Aborted(format!("rank {} aborted the communicator: {reason}", self.rank)));
            group.changed.notify_all();
        }
    }
}

impl Drop for RankHandle {
    fn drop(&mut self) {
        let mut registry = lock_registry();
        let Some(group) = registry.groups.get_mut(&self.group) else { return };
        group.ranks[self.rank].has_ended = true;
        if group.ranks.iter().all(|rank| rank.has_ended) {
            registry.groups.remove(&self.group);
            return;
        }
        group.meet();
    }
}

impl Registry {
    /// A group that can go on.
    fn group(&mut self, number: u64) -> Result<&mut Group, Broken> {
        let gone = || Broken::Rule("all ranks have ended".to_owned());
        let group = self.groups.get_mut(&number).ok_or_else(gone)?;
        group.broken.clone().map_or(Ok(group), Err)
    }

    /// Finds simulated GPUs that wait for one another in several groups, and breaks those groups.
    fn find_circles(&mut self) {
        let waits = |group: &Group| group.broken.is_none() && group.waiting().next().is_some();
        let mut stuck: Vec<u64> = self.groups.iter().filter(|(_, g)| waits(g)).map(|(&n, _)| n).collect();
        // A group is not stuck if those whom it waits for are free, or wait in a group that is not stuck.
        loop {
            let before = stuck.len();
            let busy: Vec<usize> =
                stuck.iter().flat_map(|n| self.groups[n].waiting()).filter_map(|r| r.gpu).collect();
            stuck.retain(|n| self.groups[n].missing().filter_map(|r| r.gpu).any(|gpu| busy.contains(&gpu)));
            if stuck.len() == before {
                break;
            }
        }
        let stories: Vec<String> = stuck.iter().map(|n| self.groups[n].story()).collect();
        let message = format!("the ranks wait for one another: {}", stories.join("; "));
        for number in stuck {
            if let Some(group) = self.groups.get_mut(&number) {
                group.end(&message);
            }
        }
    }
}

impl Group {
    fn waiting(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(|rank| rank.waits.is_some())
    }

    fn missing(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(|rank| rank.waits.is_none())
    }

    /// After a rank has come or ended: completes the collective if all are here, breaks the group if they can't meet.
    fn meet(&mut self) {
        let mut waits = self.ranks.iter().filter_map(|rank| rank.waits.as_ref().map(|(what, _)| what));
        let Some(first) = waits.next().filter(|_| self.broken.is_none()) else { return };
        if waits.any(|what| what != first) {
            return self.fail("the ranks call different collectives, or the same ones in another order");
        }
        if self.ranks.iter().any(|rank| rank.has_ended) {
            return self.fail("a rank has ended while others wait for it");
        }
        if self.missing().next().is_some() {
            return;
        }
        let take = |rank: &mut Rank| {
            let (what, bytes) = rank.waits.take().unwrap_or_default();
            rank.last = Some(what);
            bytes
        };
        self.given = Arc::new(self.ranks.iter_mut().map(take).collect());
        self.done += 1;
        self.changed.notify_all();
    }

    /// Breaks the group, with what each rank does.
    fn fail(&mut self, what: &str) {
        let message = format!("{what}: {}", self.story());
        self.end(&message);
    }

    fn end(&mut self, message: &str) {
        let advice = "all ranks must call the same collectives in the same order, with the same numbers of elements and dtypes";
        self.broken.get_or_insert_with(|| Broken::Rule(format!("{message}; {advice}")));
        self.changed.notify_all();
    }

    /// What each rank does.
    fn story(&self) -> String {
        let of = |(n, rank): (usize, &Rank)| {
            let last = || match &rank.last {
                Some(last) => format!("after {last}"),
                None => "before its first collective".to_owned(),
            };
            match &rank.waits {
                Some((what, _)) => format!("rank {n} waits in {what}"),
                None if rank.has_ended => format!("rank {n} has ended {}", last()),
                None => format!("rank {n} has not come ({})", last()),
            }
        };
        self.ranks.iter().enumerate().map(of).collect::<Vec<_>>().join(", ")
    }
}
