//! Finds NVIDIA's libraries, and checks that they have the functions that are called.
//!
//! cudarc panics if a library or a symbol is missing, so each is probed before its first use.
#![allow(unsafe_code)] // Loads shared libraries.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::driver::sys as cuda;
use cudarc::nvrtc::sys as nvrtc;

/// Every function of the driver that the engine calls.
const DRIVER_SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemPoolCreate",
    "cuMemPoolTrimTo",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD8_v2",
    "cuStreamCreate",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamDestroy_v2",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamUpdateCaptureDependencies_v2",
    "cuGraphGetEdges_v2",
    "cuGraphAddDependencies_v2",
    "cuGraphRemoveDependencies_v2",
    "cuGraphNodeGetType",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphUpload",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuEventDestroy_v2",
    "cuEventSynchronize",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuFuncGetAttribute",
    "cuLaunchKernel",
];

const NVRTC_SYMBOLS: &[&str] = &[
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetErrorString",
];

/// Why a library can't be used, and what to do.
pub(super) type Missing = String;

/// NVIDIA's driver, version 12.3 or later.
pub(super) fn driver() -> Result<(), Missing> {
    static FOUND: OnceLock<Result<(), Missing>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            hold("libcuda.so");
            // SAFETY: opens the driver's library, whose initialisers NVIDIA means to run in any process.
            if !unsafe { cuda::is_culib_present() } {
                return Err("NVIDIA's driver is missing: libcuda.so (libcuda.so.1) is not in the places \
                    where the system looks for libraries; install the driver of your GPU, in a container \
                    run it with NVIDIA's container toolkit, or use --device cpu"
                    .to_string());
            }
            // SAFETY: the library is there, so this does not panic; it stays loaded.
            let library = unsafe { cuda::culib() };
            probe(
                library,
                "NVIDIA's driver",
                DRIVER_SYMBOLS,
                "update the driver to one for CUDA 12.3 or later",
            )
        })
        .clone()
}

/// The functions that measure kernels. The driver has them since version 12.8.
pub(super) fn timing() -> Result<(), Missing> {
    driver()?;
    // SAFETY: the library is there, so this does not panic; it stays loaded.
    let library = unsafe { cuda::culib() };
    probe(
        library,
        "NVIDIA's driver",
        &["cuEventElapsedTime_v2"],
        "update the driver to one for CUDA 12.8 or later",
    )
}

/// NVIDIA's compiler for kernels.
pub(super) fn nvrtc() -> Result<(), Missing> {
    static FOUND: OnceLock<Result<(), Missing>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            // SAFETY: opens the library, whose initialisers NVIDIA means to run in any process.
            find("libnvrtc.so", || unsafe { nvrtc::is_culib_present() }).map_err(|places| {
                format!(
                    "NVRTC, which compiles the kernels, is missing: libnvrtc.so is not in the places \
                     where the system looks for libraries, nor in {}; install it with `pip install \
                     nvidia-cuda-nvrtc` or with the CUDA toolkit, or set CUDA_HOME to the toolkit's folder",
                    listed(&places)
                )
            })?;
            // SAFETY: the library is there, so this does not panic; it stays loaded.
            probe(unsafe { nvrtc::culib() }, "NVRTC", NVRTC_SYMBOLS, "install version 12 or later")
        })
        .clone()
}

/// Loads a library from where the system looks for it, or from its own folder, so that cudarc then finds it by name. If it is nowhere,
/// the error is the folders beside the system's.
pub(super) fn find(name: &str, is_present: impl Fn() -> bool) -> Result<(), Vec<PathBuf>> {
    hold(name);
    if is_present() {
        return Ok(());
    }
    let places = places();
    preload(&places, name);
    if is_present() { Ok(()) } else { Err(places) }
}

/// Loads a library where the system looks for it, and keeps it. cudarc loads a library to see whether it is there, unloads it and
/// loads it once more, and cuBLASLt takes 60 ms each time.
fn hold(name: &str) {
    let versions = ["", ".13", ".12", ".1"].map(|version| format!("{name}{version}"));
    let _ = versions.iter().any(|file| keeps(file.as_ref()));
}

/// Loads a library for as long as the process runs. Says whether it could.
fn keeps(file: &OsStr) -> bool {
    // SAFETY: one of NVIDIA's libraries by its name; meant to be loaded by any process.
    let library = unsafe { libloading::Library::new(file) };
    library.map(std::mem::forget).is_ok()
}

/// Loads the newest library whose file name is `name` followed by a version. The loader then finds the loaded library
/// by its internal name, so cudarc's search finds it, too.
fn preload(places: &[PathBuf], name: &str) {
    let mut files: Vec<PathBuf> = Vec::new();
    for place in places {
        let Ok(entries) = std::fs::read_dir(place) else { continue };
        let named = |p: &PathBuf| {
            p.file_name().and_then(|n| n.to_str()).is_some_and(|n| {
                n.strip_prefix(name).is_some_and(|rest| {
                    rest.strip_prefix('.').is_some_and(|v| v.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
                })
            })
        };
        let mut here: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(named).collect();
        here.sort();
        files.extend(here.into_iter().rev());
    }
    let _ = files.iter().any(|file| keeps(file.as_os_str()));
}

pub(super) fn probe(
    library: &libloading::Library,
    what: &str,
    symbols: &[&str],
    fix: &str,
) -> Result<(), Missing> {
    for symbol in symbols {
        // Only looked up, never called through this type.
        if unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_err() {
            return Err(format!("{what} is too old: it has no {symbol}; {fix}"));
        }
    }
    Ok(())
}

/// Folders outside the system's, in which NVIDIA's libraries may be: CUDA toolkits, and the wheels that pip installs.
pub(super) fn places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    let mut toolkit = |root: &Path| {
        for sub in ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"] {
            places.push(root.join(sub));
        }
    };
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(root) = std::env::var_os(variable).filter(|v| !v.is_empty()) {
            toolkit(Path::new(&root));
        }
    }
    for root in children(Path::new("/usr/local"), "cuda").into_iter().rev() {
        toolkit(&root);
    }
    for packages in site_packages() {
        for sub in ["cu13", "cu12", "cuda_nvrtc", "cublas", "nccl"] {
            places.push(packages.join("nvidia").join(sub).join("lib"));
        }
    }
    places.retain(|p| p.is_dir());
    places
}

/// The folders inside a folder whose names begin with `prefix`, by name.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let named = |p: &PathBuf| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(prefix));
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(named).collect();
    found.sort();
    found
}

/// The folders that pip installs to: of the active virtual environment, of the `python3` on the path, of the user and
/// of the system.
fn site_packages() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = Vec::new();
    roots.extend(std::env::var_os("VIRTUAL_ENV").map(PathBuf::from));
    roots.extend(std::env::var_os("CONDA_PREFIX").map(PathBuf::from));
    let path = std::env::var_os("PATH").unwrap_or_default();
    for folder in std::env::split_paths(&path) {
        let python = folder.join("python3");
        if python.is_file() {
            roots.extend(folder.parent().map(Path::to_path_buf));
            // The target of a link, for the interpreters that version managers install.
            let real = python.canonicalize().ok();
            roots
                .extend(real.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_path_buf));
        }
    }
    roots.extend(std::env::var_os("HOME").map(|home| Path::new(&home).join(".local")));
    roots.extend(["/usr/local", "/usr"].map(PathBuf::from));
    let mut found: Vec<PathBuf> = Vec::new();
    for root in roots {
        for python in children(&root.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"].map(|p| python.join(p)) {
                if packages.is_dir() && !found.contains(&packages) {
                    found.push(packages);
                }
            }
        }
    }
    found
}

pub(super) fn listed(places: &[PathBuf]) -> String {
    if places.is_empty() {
        return "a CUDA toolkit or a pip wheel (none is installed in the usual places)".to_string();
    }
    places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}
