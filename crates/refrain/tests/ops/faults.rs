//! Errors that kernels find. A GPU reports each of them once, to whoever waits for it next.

use crate::stream;
use crate::testing::devices;
use refrain::{Device, DeviceKind, Error, Result, Simulator};

/// The devices of the tests, with handles that no other test uses, so that an error is the caller's own.
pub(crate) fn own_devices() -> impl Iterator<Item = Device> {
    devices().map(|device| match device.kind() {
        DeviceKind::Cuda => stream::lent(&device).1,
        DeviceKind::Sim => device.name().parse::<Simulator>().unwrap().device(),
        _ => device,
    })
}

/// The error of an operation on such a device. On the CPU the call returns it, on a GPU the next wait.
#[track_caller]
pub(crate) fn error_of<T>(device: &Device, result: Result<T>) -> Error {
    let error = match device.kind() {
        DeviceKind::Cpu => result.map(drop).expect_err("an error of the call"),
        _ => result.and_then(|_| device.synchronize()).expect_err("an error of the call or the wait"),
    };
    device.synchronize().expect("an error is told once");
    error
}
