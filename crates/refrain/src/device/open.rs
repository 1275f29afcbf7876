//! The devices of this machine: the one place that names drivers.

use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::sim::{Profile, Simulator};
use super::{Device, DeviceKind, cpu, cuda};
use crate::error::{Error, Result};

impl Device {
    /// The CPU. All handles to it are the same device.
    ///
    /// Kernels run on the calling thread, which shares the work with threads of the engine: as many, with it, as rayon's global
    /// pool has. To set their number, set `RAYON_NUM_THREADS`, or build the global pool before the first launch.
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| {
            Device::from_driver(DeviceKind::Cpu, cuda::listing::decorate(Arc::<cpu::Cpu>::default()))
        })
        .clone()
    }

    /// The CPU under counters of its own: for memory of the host that a kernel needs only while it runs, and that
    /// [`Device::stats`] of the CPU does not count.
    pub(crate) fn cpu_scratch() -> Device {
        static SCRATCH: OnceLock<Device> = OnceLock::new();
        SCRATCH.get_or_init(|| Device::from_driver(DeviceKind::Cpu, Device::cpu().0.driver.clone())).clone()
    }

    /// An NVIDIA GPU, counted from 0. All handles to it are the same device.
    ///
    /// Its work runs in order on its own stream. Kernels are compiled when they are first used. They are kept in the
    /// user's cache folder, together with the algorithms that were chosen for matrix products; `REFRAIN_CACHE` names
    /// another folder.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no such GPU, or if the driver or NVRTC is missing or too old. The message
    /// says which, and what to install.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        static DEVICES: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = devices.iter().find(|(o, _)| *o == ordinal) {
            return Ok(device.clone());
        }
        let device = Device::from_driver(DeviceKind::Cuda, Arc::new(cuda::Cuda::open(ordinal)?));
        devices.push((ordinal, device.clone()));
        Ok(device)
    }

    /// A GPU with a stream of yours. The work of the engine goes to that stream, in order with your own work. You may
    /// capture a graph on the stream. Operations that can't be part of a graph then return
    /// [`Error::CaptureIncompatible`] without calling CUDA. The memory of tensors that are dropped during the capture
    /// is freed after it.
    ///
    /// Each call makes a different device. Tensors of two such devices can't be operands of one operation.
    ///
    /// # Safety
    /// `stream` must be a valid `CUstream`, and stay valid while the device or a tensor on it lives. If you use the
    /// memory of tensors on other streams, you must order that work with this stream.
    ///
    /// # Errors
    /// [`Error::Unavailable`], as in [`Device::cuda`].
    #[allow(unsafe_code)] // Takes a raw handle.
    pub unsafe fn cuda_on_stream(stream: *mut std::ffi::c_void) -> Result<Device> {
        // SAFETY: the caller's promise.
        let cuda = unsafe { cuda::Cuda::lent(stream) }?;
        Ok(Device::from_driver(DeviceKind::Cuda, Arc::new(cuda)))
    }

    /// A simulated GPU: the kernels of the CPU with the rules of a GPU. It checks whether a training step can be
    /// recorded and replayed on a machine that you don't have. All handles with the same profile and seed are the
    /// same device. [`Simulator`] makes separate ones, and injects faults.
    ///
    /// Memory is filled with NaN when it is allocated and when it is freed. Work runs late. The seed chooses the
    /// order in which the parallel branches of a recorded step run. Two accesses that nothing orders, or a read of
    /// memory that was freed or never written, are [`Error::Hazard`].
    ///
    /// ```
    /// use refrain::{DType, Device, Profile, Tensor};
    /// let device = Device::sim(Profile::Unified, 7);
    /// assert_eq!(Tensor::ones([3], DType::F32, &device)?.exp()?.dims(), [3]);
    /// assert_eq!("sim:unified:7".parse::<Device>()?, device);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn sim(profile: Profile, seed: u64) -> Device {
        Device::simulated(Simulator::new(profile).seed(seed))
    }

    fn simulated(simulator: Simulator) -> Device {
        static DEVICES: Mutex<Vec<((Profile, u64), Device)>> = Mutex::new(Vec::new());
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let key = simulator.key();
        if let Some((_, device)) = devices.iter().find(|(k, _)| *k == key) {
            return device.clone();
        }
        let device = simulator.device();
        devices.push((key, device.clone()));
        device
    }

    /// The fastest device of this machine: the first usable GPU, or else the CPU.
    pub fn best() -> Device {
        Device::cuda(0).unwrap_or_else(|_| Device::cpu())
    }
}

impl FromStr for Device {
    type Err = Error;

    /// A device by its name: `cpu`, `cuda` (the first GPU), `cuda:1`, `sim` and `sim:unified` (simulated GPUs; the
    /// seed is `REFRAIN_SIM_SEED` or 0), `sim:discrete:7` (with a seed).
    ///
    /// ```
    /// use refrain::Device;
    /// assert_eq!("cpu".parse::<Device>()?, Device::cpu());
    /// assert!("gpu".parse::<Device>().is_err());
    /// # Ok::<(), refrain::Error>(())
    /// ```
    fn from_str(name: &str) -> Result<Device> {
        if name.starts_with("sim") {
            return name.parse().map(Device::simulated);
        }
        match (name, name.strip_prefix("cuda:").and_then(|n| n.parse().ok())) {
            ("cpu", _) => Ok(Device::cpu()),
            ("cuda", _) => Device::cuda(0),
            (_, Some(ordinal)) => Device::cuda(ordinal),
            _ => Err(Error::invalid(
                "device",
                format!(
                    "there is no device {name:?}; use cpu, cuda, cuda:N, sim, sim:unified, or sim:discrete:SEED and sim:unified:SEED"
                ),
            )),
        }
    }
}
