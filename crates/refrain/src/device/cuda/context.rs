//! A GPU and its context: what the driver reports about it, and readable errors.
#![allow(unsafe_code)] // Calls NVIDIA's driver.

use std::ffi::CStr;
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult, CUstreamCaptureMode};

use super::library;
use crate::error::{Error, Result};

/// What NVIDIA's driver reports about a GPU.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CudaDevice {
    /// Counted from 0, as in `Device::cuda(ordinal)`.
    pub ordinal: usize,
    /// The product's name.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// Bytes of device memory.
    pub memory: usize,
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Whether it shares the memory of the host (integrated) or has its own (discrete).
    pub integrated: bool,
    /// Whether host and device share one address space.
    pub unified_addressing: bool,
    /// Whether kernels can read any host memory.
    pub pageable_memory_access: bool,
    /// Whether memory can be allocated in stream order from pools. The engine needs this.
    pub memory_pools: bool,
}

/// A GPU's primary context (which this process shares with other libraries in it), or the context of a stream.
pub(super) struct Context {
    pub(super) info: CudaDevice,
    pub(super) handle: sys::CUcontext,
    pub(super) device: sys::CUdevice,
    /// The first error that the context can't recover from.
    lost: OnceLock<String>,
    name: String,
}

// SAFETY: a context handle may be used from any thread (CUDA's driver API is thread-safe); the rest is data.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Initialises the driver. Every call that opens a device goes through here.
pub(super) fn initialise() -> std::result::Result<(), String> {
    library::driver()?;
    result::init().map_err(|e| match e.0 {
        CUresult::CUDA_ERROR_NO_DEVICE => {
            "NVIDIA's driver is installed but sees no GPU; in a container pass the GPU through, otherwise check nvidia-smi \
             and CUDA_VISIBLE_DEVICES"
                .to_string()
        }
        _ => format!("NVIDIA's driver does not start: {}; check nvidia-smi", describe(e)),
    })
}

/// A readable error of the driver.
pub(super) fn describe(e: DriverError) -> String {
    let text = |s: std::result::Result<&CStr, DriverError>| {
        s.map_or_else(|_| "unknown error".to_string(), |s| s.to_string_lossy().into_owned())
    };
    format!("{} ({}, {})", text(e.error_string()), text(e.error_name()), e.0 as u32)
}

/// How many GPUs the driver sees.
pub(super) fn count() -> std::result::Result<usize, String> {
    initialise()?;
    result::device::get_count().map(|n| n.max(0) as usize).map_err(describe)
}

/// The driver's version: 13000 is 13.0.
pub(super) fn driver_version() -> std::result::Result<(i32, i32), String> {
    initialise()?;
    let mut version = 0;
    // SAFETY: the symbol was probed; writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(describe)?;
    Ok((version / 1000, version % 1000 / 10))
}

/// What the driver reports about a GPU.
pub(super) fn info(ordinal: usize) -> std::result::Result<CudaDevice, String> {
    initialise()?;
    let device = result::device::get(ordinal as i32).map_err(describe)?;
    use CUdevice_attribute::*;
    // SAFETY: the device handle comes from the driver.
    let attribute = |a| unsafe { result::device::get_attribute(device, a) }.map_err(describe);
    Ok(CudaDevice {
        ordinal,
        name: result::device::get_name(device).map_err(describe)?,
        compute_capability: (
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }.map_err(describe)?,
        multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as usize,
        integrated: attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
        unified_addressing: attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)? != 0,
        pageable_memory_access: attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)? != 0,
        memory_pools: attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0,
    })
}

impl Context {
    /// The primary context of a GPU.
    pub(super) fn primary(ordinal: usize) -> std::result::Result<Context, String> {
        let found = count()?;
        if ordinal >= found {
            return Err(match found {
                0 => "NVIDIA's driver is installed but sees no GPU".to_string(),
                n => format!("there are {n} GPUs, cuda:0 to cuda:{}", n - 1),
            });
        }
        let device = result::device::get(ordinal as i32).map_err(describe)?;
        // SAFETY: the device handle comes from the driver. The context is kept until the process ends, as
        // device handles are.
        let handle = unsafe { result::primary_ctx::retain(device) }.map_err(describe)?;
        Context::new(ordinal, device, handle)
    }

    /// The context of a stream.
    ///
    /// # Safety
    /// The stream is valid.
    pub(super) unsafe fn of_stream(stream: sys::CUstream) -> std::result::Result<Context, String> {
        initialise()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the caller's stream is valid; writes one handle.
        unsafe { sys::cuStreamGetCtx(stream, &mut handle) }.result().map_err(describe)?;
        // SAFETY: the handle was just given by the driver.
        unsafe { result::ctx::set_current(handle) }.map_err(describe)?;
        let mut device = 0;
        // SAFETY: a context is current; writes one integer.
        unsafe { sys::cuCtxGetDevice(&mut device) }.result().map_err(describe)?;
        let is_it = |&i: &usize| result::device::get(i as i32).is_ok_and(|d| d == device);
        let ordinal = (0..count()?).find(is_it).ok_or("the stream's GPU is not among the driver's")?;
        Context::new(ordinal, device, handle)
    }

    fn new(
        ordinal: usize,
        device: sys::CUdevice,
        handle: sys::CUcontext,
    ) -> std::result::Result<Context, String> {
        let info = info(ordinal)?;
        if info.compute_capability.0 < 8 {
            let (major, minor) = info.compute_capability;
            return Err(format!(
                "{} has compute capability {major}.{minor}; the kernels need 8.0 (Ampere) or later",
                info.name
            ));
        }
        if !info.memory_pools {
            return Err(format!(
                "{} has no memory pools, which the engine needs; update the driver",
                info.name
            ));
        }
        Ok(Context { info, handle, device, lost: OnceLock::new(), name: format!("cuda:{ordinal}") })
    }

    /// The device's name in errors.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The architecture that kernels are compiled for. For 9.0 it includes the features of that architecture alone
    /// (warp-group products).
    pub(super) fn architecture(&self) -> String {
        let (major, minor) = self.info.compute_capability;
        let own = if (major, minor) == (9, 0) { "a" } else { "" };
        format!("sm_{major}{minor}{own}")
    }

    /// Makes this the context of the calling thread. Returns an error if the device was lost. Calls made while the
    /// guard lives do not disturb a capture on another stream.
    pub(super) fn enter(&self, op: &'static str) -> Result<Relaxed> {
        if let Some(cause) = self.lost.get() {
            return Err(self.device_lost(op, cause));
        }
        // SAFETY: the handle is valid for as long as the process runs.
        unsafe { result::ctx::set_current(self.handle) }.map_err(|e| self.error(op, e))?;
        Ok(Relaxed::enter())
    }

    fn device_lost(&self, op: &'static str, cause: &str) -> Error {
        Error::DeviceLost { op, device: self.name.clone(), cause: cause.to_string() }
    }

    /// Converts an error of the driver. An error that the context can't recover from is remembered, and every later
    /// call fails with it.
    pub(super) fn error(&self, op: &'static str, e: DriverError) -> Error {
        if !is_sticky(e.0) {
            return Error::Device { op, device: self.name.clone(), message: describe(e) };
        }
        let cause = self.lost.get_or_init(|| format!("{}, seen first at {op}", describe(e)));
        self.device_lost(op, cause)
    }
}

/// While this lives, this thread may make calls that could disturb a capture on another stream.
#[must_use]
pub(super) struct Relaxed(CUstreamCaptureMode);

impl Relaxed {
    fn enter() -> Relaxed {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: swaps this thread's mode with `mode`.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Relaxed(mode)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above; puts back what was there.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

/// Whether a context can't be used after this error.
fn is_sticky(e: CUresult) -> bool {
    use CUresult::*;
    matches!(
        e,
        CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_DEINITIALIZED
            | CUDA_ERROR_UNKNOWN
    )
}

/// A value of the process, made once for each key.
pub(super) struct ProcessTable<K, V>(Mutex<Vec<(K, V)>>);

impl<K: PartialEq, V: Clone> ProcessTable<K, V> {
    pub(super) const fn new() -> ProcessTable<K, V> {
        ProcessTable(Mutex::new(Vec::new()))
    }

    pub(super) fn get<E>(
        &self,
        key: K,
        make: impl FnOnce() -> std::result::Result<V, E>,
    ) -> std::result::Result<V, E> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, value)) = entries.iter().find(|(k, _)| *k == key) {
            return Ok(value.clone());
        }
        let value = make()?;
        entries.push((key, value.clone()));
        Ok(value)
    }
}
