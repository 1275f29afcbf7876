//! The devices that tests run on. The unit tests of `refrain` include this file, too.

use refrain::Device;

/// The device of the tests: `REFRAIN_TEST_DEVICE`, or the CPU.
pub fn device() -> Device {
    std::env::var("REFRAIN_TEST_DEVICE").map_or_else(|_| Device::cpu(), |name| name.parse().unwrap())
}

/// The devices of this machine, and both simulated ones (`REFRAIN_SIM_SEED` is their seed): every test runs on each
/// of them. `REFRAIN_TEST_DEVICE` restricts the tests to one device. With `REFRAIN_REQUIRE_CUDA=1` a missing GPU is a
/// failure.
pub fn devices() -> Devices {
    let all = if std::env::var_os("REFRAIN_TEST_DEVICE").is_some() {
        vec![device()]
    } else {
        let cuda = Device::cuda(0);
        if std::env::var("REFRAIN_REQUIRE_CUDA").is_ok_and(|v| v == "1")
            && let Err(e) = &cuda
        {
            panic!("REFRAIN_REQUIRE_CUDA=1, but {e}");
        }
        let simulated = ["sim", "sim:unified"].map(|name| name.parse().unwrap());
        std::iter::once(Device::cpu()).chain(simulated).chain(cuda).collect()
    };
    Devices { left: all.into_iter(), current: None }
}

/// What [`devices`] returns. If a test fails on one of them, it prints which.
pub struct Devices {
    left: std::vec::IntoIter<Device>,
    current: Option<Device>,
}

impl Iterator for Devices {
    type Item = Device;

    fn next(&mut self) -> Option<Device> {
        self.current = self.left.next();
        self.current.clone()
    }
}

impl DoubleEndedIterator for Devices {
    fn next_back(&mut self) -> Option<Device> {
        self.current = self.left.next_back();
        self.current.clone()
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        if let Some(device) = self.current.as_ref().filter(|_| std::thread::panicking()) {
            eprintln!("the test failed on {device}");
        }
    }
}
