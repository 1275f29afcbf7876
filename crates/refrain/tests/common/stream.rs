//! Streams of NVIDIA's driver that tests lend to the engine.
#![allow(unsafe_code)] // Makes streams with NVIDIA's driver.

use cudarc::driver::{result, sys};
use refrain::Device;

/// A new stream of this GPU, and a device on it.
pub fn lent(gpu: &Device) -> (sys::CUstream, Device) {
    let ordinal = gpu.name().strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()).unwrap();
    // SAFETY: the driver was started by the device; the primary context exists and is kept.
    unsafe {
        let device = result::device::get(ordinal).unwrap();
        result::ctx::set_current(result::primary_ctx::retain(device).unwrap()).unwrap();
    }
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
    // SAFETY: the stream was just made and is never destroyed.
    let device = unsafe { Device::cuda_on_stream(stream.cast()) }.unwrap();
    (stream, device)
}
