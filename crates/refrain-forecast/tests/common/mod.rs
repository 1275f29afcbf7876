//! Shared by the test programs.
#![allow(dead_code)] // Each program uses a part of it.

use refrain::{Communicator, Device, Profile, Simulator};

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

/// The device of the tests: `REFRAIN_TEST_DEVICE`, or the CPU.
pub fn device() -> Device {
    std::env::var("REFRAIN_TEST_DEVICE").map_or_else(|_| Device::cpu(), |name| name.parse().unwrap())
}

/// The devices of this machine, and both simulated ones, for properties that must hold on each of them.
/// `REFRAIN_TEST_DEVICE` restricts the tests to one device. With `REFRAIN_REQUIRE_CUDA=1` a missing GPU is a failure.
pub fn devices() -> Vec<Device> {
    if std::env::var_os("REFRAIN_TEST_DEVICE").is_some() {
        return vec![device()];
    }
    let cuda = Device::cuda(0);
    if std::env::var("REFRAIN_REQUIRE_CUDA").is_ok_and(|v| v == "1")
        && let Err(e) = &cuda
    {
        panic!("REFRAIN_REQUIRE_CUDA=1, but {e}");
    }
    let simulated = ["sim", "sim:unified"].map(|name| name.parse().unwrap());
    std::iter::once(Device::cpu()).chain(simulated).chain(cuda).collect()
}
