//! Shared by the test programs.
#![allow(dead_code, unused_imports)] // Each program uses a part of it.

pub mod pull;

use refrain::{Communicator, Device, Profile, Simulator};
pub use refrain_test::{device, devices, sanitized, shortened, turn};

/// Runs `f` on each rank, in a thread of its own, and returns what it returns, by rank.
pub fn on_ranks<R: Send>(devices: &[Device], f: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let ranks = Communicator::in_process(devices).unwrap();
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| f(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn cpus(size: usize) -> Vec<Device> {
    vec![Device::cpu(); size]
}

/// So many simulated GPUs, with seeds of their own.
pub fn simulated(size: usize, profile: Profile, seed: u64) -> Vec<Device> {
    (0..size as u64).map(|rank| Simulator::new(profile).seed(10 * seed + rank).device()).collect()
}
