//! Ranks as threads of the test program, and a transport between them.

use std::sync::{Arc, Condvar, Mutex};

use refrain::{Communicator, DType, Device, Error, HostTransport, Profile, Result, Simulator, Tensor};

/// Runs `f` on each rank, in a thread of its own, and returns what it returns, by rank.
pub fn on_ranks<R: Send>(devices: &[Device], f: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    of_ranks(Communicator::in_process(devices).unwrap(), f)
}

pub fn of_ranks<C: Send, R: Send>(ranks: Vec<C>, f: impl Fn(C) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| f(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// So many simulated GPUs, with seeds of their own.
pub fn simulated(size: usize, profile: Profile, seed: u64) -> Vec<Device> {
    (0..size as u64).map(|rank| Simulator::new(profile).seed(100 * seed + rank).device()).collect()
}

/// Groups of 2, 3 and 8 devices: CPUs, and simulated GPUs of both kinds with several seeds.
pub fn groups() -> Vec<Vec<Device>> {
    let seeds = std::env::var("REFRAIN_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let mut groups = Vec::new();
    for size in [2, 3, 8] {
        groups.push(vec![Device::cpu(); size]);
        for seed in 0..seeds {
            groups
                .extend([Profile::Discrete, Profile::Unified].map(|profile| simulated(size, profile, seed)));
        }
    }
    groups
}

/// The message of a rule that was broken: a hazard on simulated GPUs, a failed collective on the CPU.
#[track_caller]
pub fn broken<T>(device: &Device, result: Result<T>) -> String {
    match (device.name().starts_with("sim"), result.map(drop)) {
        (true, Err(Error::Hazard { message, .. })) | (false, Err(Error::Collective { message, .. })) => {
            message
        }
        (_, other) => panic!("{device}: {other:?}"),
    }
}

pub type Rank = fn(&Communicator) -> Result<()>;

pub fn ones(rank: &Communicator, n: usize) -> Result<Tensor> {
    Tensor::ones([n], DType::F32, rank.device())
}

#[track_caller]
pub fn all_say(stories: &[String], parts: &[&str]) {
    for story in stories {
        for part in parts {
            assert!(story.contains(part), "`{part}` is missing in: {story}");
        }
    }
}

/// A transport between the threads of this program, in which a rank may lie.
pub struct Table {
    size: usize,
    given: Mutex<Vec<(String, Vec<u8>)>>,
    changed: Condvar,
    /// How many answers are missing.
    lacking: usize,
    /// How many bytes are missing in each answer from the second exchange on.
    cut: usize,
}

impl Table {
    pub fn new(size: usize, lacking: usize, cut: usize) -> Arc<Table> {
        Arc::new(Table { size, given: Mutex::default(), changed: Condvar::new(), lacking, cut })
    }
}

/// The place of a rank at the table.
pub struct Place(Arc<Table>, pub usize, Mutex<usize>);

impl HostTransport for Place {
    fn exchange(&self, what: &str, bytes: &[u8]) -> std::result::Result<Vec<Vec<u8>>, String> {
        let Place(table, rank, rounds) = self;
        let mut round = rounds.lock().unwrap();
        let first = *round * table.size;
        *round += 1;
        let mut given = table.given.lock().unwrap();
        if given.len() < first + table.size {
            given.resize_with(first + table.size, Default::default);
        }
        given[first + rank] = (what.to_owned(), bytes.to_vec());
        table.changed.notify_all();
        let all = |given: &mut Vec<(String, Vec<u8>)>| {
            given[first..first + table.size].iter().any(|(w, _)| w.is_empty())
        };
        let given = table.changed.wait_while(given, all).unwrap();
        let round = &given[first..first + table.size];
        if let Some(other) = round.iter().position(|(w, _)| w != what) {
            return Err(format!("rank {rank} calls {what}, and rank {other} calls {}", round[other].0));
        }
        let cut = if first == 0 { 0 } else { table.cut };
        Ok(round[..table.size - table.lacking]
            .iter()
            .map(|(_, b)| b[..b.len().saturating_sub(cut)].to_vec())
            .collect())
    }
}

pub fn at_table(table: &Arc<Table>) -> Vec<Place> {
    (0..table.size).map(|rank| Place(table.clone(), rank, Mutex::new(0))).collect()
}
