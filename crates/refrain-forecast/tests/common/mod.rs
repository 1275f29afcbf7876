//! What the test programs share.

use refrain::Device;

/// The device that the tests run on: `REFRAIN_TEST_DEVICE` names it, else the CPU.
pub fn device() -> Device {
    std::env::var("REFRAIN_TEST_DEVICE").map_or_else(|_| Device::cpu(), |name| name.parse().unwrap())
}
