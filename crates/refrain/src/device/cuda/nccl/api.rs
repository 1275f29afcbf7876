//! NCCL's library: where it is, and the functions that are called.
//!
//! Declarations follow `nccl.h` of version 2.18; later versions accept them.
#![allow(unsafe_code)] // Loads a shared library and sets variables of the environment.

use std::ffi::{CStr, OsString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::Library;

use crate::device::cuda::library::{Missing, listed, places};

pub(super) type Comm = *mut c_void;
pub(super) type Stream = *mut c_void;
pub(super) type Status = c_int;

pub(super) const SUCCESS: Status = 0;
pub(super) const IN_PROGRESS: Status = 7;

/// The oldest version that is used, as NCCL counts: 2.18.
const OLDEST: c_int = 21800;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// `ncclConfig_t`, with the fields of version 2.18. A later NCCL sees by `size` and `version` that those behind are not there.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// Where later versions have a field. They read it only in a configuration of their version.
    _padding: c_int,
}

impl Config {
    /// Calls return when their work is queued.
    pub(super) fn blocking() -> Config {
        let undefined = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST as c_uint,
            blocking: 1,
            cga_cluster_size: undefined,
            min_ctas: undefined,
            max_ctas: undefined,
            net_name: std::ptr::null(),
            split_share: undefined,
            _padding: undefined,
        }
    }
}

macro_rules! functions {
    ($($field:ident = $symbol:literal, ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of the library, which stays loaded.
        pub(super) struct Api {
            pub(super) version: c_int,
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Api {
            fn of(library: &Library, version: c_int) -> Result<Api, String> {
                // SAFETY: the types are those of NCCL's header.
                Ok(Api { version, $($field: *unsafe { library.get($symbol) }.map_err(|_| missing($symbol))?,)* })
            }
        }
    };
}

functions! {
    get_unique_id = b"ncclGetUniqueId", (*mut UniqueId) -> Status;
    comm_init_rank_config = b"ncclCommInitRankConfig", (*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Status;
    comm_destroy = b"ncclCommDestroy", (Comm) -> Status;
    comm_abort = b"ncclCommAbort", (Comm) -> Status;
    comm_get_async_error = b"ncclCommGetAsyncError", (Comm, *mut Status) -> Status;
    get_error_string = b"ncclGetErrorString", (Status) -> *const c_char;
    get_last_error = b"ncclGetLastError", (Comm) -> *const c_char;
    all_reduce = b"ncclAllReduce", (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Status;
    broadcast = b"ncclBroadcast", (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Status;
    all_gather = b"ncclAllGather", (*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> Status;
    reduce_scatter = b"ncclReduceScatter", (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Status;
}

fn missing(symbol: &[u8]) -> String {
    format!("it has no {}", String::from_utf8_lossy(symbol))
}

impl Api {
    /// What a status means. `comm` may be null.
    pub(super) fn describe(&self, comm: Comm, status: Status) -> String {
        let text = |text: *const c_char| {
            // SAFETY: a text of the library that stays, or null.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        // SAFETY: any status is allowed.
        let what =
            text(unsafe { (self.get_error_string)(status) }).unwrap_or_else(|| "unknown error".to_owned());
        // SAFETY: NCCL does not look at the communicator here; null is allowed.
        let detail = text(unsafe { (self.get_last_error)(comm) }).unwrap_or_default();
        let detail = detail.trim();
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        format!(
            "NCCL {}: {what} (status {status}){detail}; NCCL_DEBUG=WARN prints more",
            text_of(self.version)
        )
    }
}

/// 2.28.9 from 22809.
pub(super) fn text_of(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

const INSTALL: &str = "install it with `pip install nvidia-nccl-cu13` (nvidia-nccl-cu12 for a driver of CUDA 12) or with \
                       libnccl2 of NVIDIA's packages, or set NCCL_HOME to its folder";

/// The library, loaded once.
pub(super) fn api() -> Result<&'static Api, Missing> {
    static FOUND: OnceLock<Result<Api, Missing>> = OnceLock::new();
    FOUND.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// Sets what NCCL reads when a communicator is made.
fn prepare_environment() -> Result<(), Missing> {
    const NVLS: &str = "NCCL_NVLS_ENABLE";
    if let Some(value) = std::env::var_os(NVLS).filter(|value| value != "0") {
        return Err(format!(
            "{NVLS} is {value:?}, but refrain uses NCCL without sums in the switch (NVLS): they do not repeat bit for bit, and \
             need NVLink multicast; unset {NVLS} or set it to 0"
        ));
    }
    let set = |name: &str, value: &str| {
        if std::env::var_os(name).is_none() {
            // SAFETY: on Unix this is a race only with C code that reads the environment on another thread at this moment; all
            // of Rust's standard library takes a lock. It happens once, before the library that reads it is loaded, which has
            // no other way to be told.
            unsafe { std::env::set_var(name, value) };
        }
    };
    set(NVLS, "0");
    // Which of these two NCCL takes follows from the number of elements and the machine.
    set("NCCL_ALGO", "Ring,Tree");
    // Connects them all at once: not at a first use, which may be in a capture.
    set("NCCL_RUNTIME_CONNECT", "0");
    Ok(())
}

/// The files to try, the user's choice first.
fn candidates(places: &[PathBuf]) -> Vec<OsString> {
    let names = ["libnccl.so.2", "libnccl.so"];
    let home = std::env::var_os("NCCL_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let own = home.iter().flat_map(|home| [home.join("lib"), home.join("lib64"), home.clone()]);
    let within =
        |folder: PathBuf| names.map(|name| folder.join(name)).into_iter().filter(|file| file.is_file());
    let own = own.flat_map(within).map(OsString::from);
    let listed = places.iter().cloned().flat_map(within).map(OsString::from);
    own.chain(names.map(OsString::from)).chain(listed).collect()
}

fn load() -> Result<Api, Missing> {
    prepare_environment()?;
    let places = places();
    let mut refused = None;
    for file in candidates(&places) {
        // SAFETY: NCCL by its name and place, whose initialisers NVIDIA means to run in any process.
        let Ok(library) = (unsafe { Library::new(&file) }) else { continue };
        match open(&library) {
            Ok(api) => {
                // Stays loaded for as long as the process runs.
                std::mem::forget(library);
                return Ok(api);
            }
            Err(why) => _ = refused.get_or_insert(format!("{}: {why}", file.display())),
        }
    }
    Err(match refused {
        Some(why) => format!("NCCL can't be used ({why}); version 2.18 or later is needed: {INSTALL}"),
        None => format!(
            "NCCL, which moves values between GPUs, is missing: libnccl.so.2 is not in NCCL_HOME, in the places where the system \
             looks for libraries, nor in {}; {INSTALL}",
            listed(&places)
        ),
    })
}

/// The functions of a library that was loaded, if it is new enough.
fn open(library: &Library) -> Result<Api, String> {
    // SAFETY: the type is that of NCCL's header.
    let get_version = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> Status>(b"ncclGetVersion") };
    let get_version = get_version.map_err(|_| missing(b"ncclGetVersion"))?;
    let mut version = 0;
    // SAFETY: writes one integer.
    let status = unsafe { get_version(&mut version) };
    if status != SUCCESS || version < OLDEST {
        return Err(format!("its version is {}", text_of(version)));
    }
    Api::of(library, version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_lies_in_memory_as_in_the_header() {
        assert_eq!(size_of::<Config>(), 48);
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(std::mem::offset_of!(Config, net_name), 32);
        assert_eq!(std::mem::offset_of!(Config, split_share), 40);
        assert_eq!(text_of(22809), "2.28.9");
    }
}
