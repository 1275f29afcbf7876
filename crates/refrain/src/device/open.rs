//! The devices of this machine: the one place that names drivers.

use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::sim::{Profile, Simulator};
use super::{Device, DeviceKind, cpu, cuda};
use crate::error::{Error, Result};

impl Device {
    /// The host's processor. All handles to it are the same device.
    ///
    /// Kernels run on threads of their own, as many as rayon's global pool has: `RAYON_NUM_THREADS` sets their
    /// number, or the program by building the global pool before the first launch.
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| {
            Device::from_driver(DeviceKind::Cpu, cuda::listing::decorate(Arc::<cpu::Cpu>::default()))
        })
        .clone()
    }

    /// An NVIDIA GPU, counted from 0. All handles to it are the same device.
    ///
    /// Its work runs on one stream of its own, in order; kernels are compiled when they are first used and kept,
    /// with the algorithms that were chosen for matrix products, in the user's cache folder (`REFRAIN_CACHE`
    /// names another).
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no such GPU, or the driver or NVRTC is missing or too old; the message
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

    /// A GPU by a stream that the caller lends: the engine's work goes to it, in order with the caller's own. The
    /// caller may capture a graph on the stream; what can't be part of one is then
    /// [`Error::CaptureIncompatible`], without any call of CUDA, and memory of tensors dropped meanwhile is freed
    /// when the capture has ended.
    ///
    /// Each call gives a device of its own; tensors of two such devices can't be operands of one operation.
    ///
    /// # Safety
    /// `stream` is a valid `CUstream`, and stays valid for as long as the device or a tensor on it lives. What the
    /// caller's work on other streams does with the tensors' memory is ordered with this stream by the caller.
    ///
    /// # Errors
    /// [`Error::Unavailable`], as for [`Device::cuda`].
    #[allow(unsafe_code)] // Takes a raw handle.
    pub unsafe fn cuda_on_stream(stream: *mut std::ffi::c_void) -> Result<Device> {
        // SAFETY: the caller's promise.
        let cuda = unsafe { cuda::Cuda::lent(stream) }?;
        Ok(Device::from_driver(DeviceKind::Cuda, Arc::new(cuda)))
    }

    /// A simulated GPU: the CPU's kernels under a GPU's rules. It tells whether a training step records and replays on
    /// a machine that is not at hand. All handles to it with the same profile and seed are the same device;
    /// [`Simulator`] makes others, and plants faults.
    ///
    /// Memory is filled with NaN when it is allocated and when it is given back; work runs late, and the parallel
    /// branches of a recorded step in an order that the seed chooses. An access that nothing orders with another, or
    /// to memory that was given back or never written, is [`Error::Hazard`].
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

    /// The fastest device that this machine has: the first GPU that can be used, or the host's processor.
    pub fn best() -> Device {
        Device::cuda(0).unwrap_or_else(|_| Device::cpu())
    }

    /// A device on the same hardware that nobody else works on, so that an error of work before is the caller's.
    #[cfg(test)]
    pub(crate) fn apart(&self) -> Device {
        let name = self.name();
        match (name.strip_prefix("cuda:").map(|ordinal| ordinal.parse()), name.parse()) {
            (Some(Ok(ordinal)), _) => {
                Device::from_driver(DeviceKind::Cuda, Arc::new(cuda::Cuda::open(ordinal).unwrap()))
            }
            (_, Ok(simulator)) => Simulator::device(simulator),
            _ => self.clone(),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    /// A device by its name: `cpu`, `cuda` (the first GPU), `cuda:1`; `sim`, `sim:unified` (simulated GPUs, of the seed
    /// `REFRAIN_SIM_SEED` or 0), `sim:discrete:7` (with a seed).
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
