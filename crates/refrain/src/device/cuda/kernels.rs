//! Compiled kernels of a context, by specialisation.
#![allow(unsafe_code)] // Loads machine code through NVIDIA's driver.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUfunction_attribute};

use super::cache::Cache;
use super::compile;
use super::context::Context;
use super::kernel::{Grid, KernelSpec};
use crate::error::{Error, Result};

/// The kind of these entries in the cache.
const CUBIN: &str = "cubin";
/// The dynamic shared memory that a kernel may use without asking.
const SHARED_FOR_ALL: u32 = 48 << 10;
/// How many kernels are compiled at a time. Each compilation takes some hundred megabytes of the host.
const COMPILERS: usize = 8;

/// The kernels that were used so far. A new one is compiled (or read from the cache) by the first thread that needs
/// it; others wait for it.
#[derive(Default)]
pub(super) struct Kernels {
    loaded: RwLock<HashMap<KernelSpec, Arc<OnceLock<Result<Function>>>>>,
}

/// A loaded kernel. Modules stay loaded for the life of the process.
pub(super) struct Function {
    handle: sys::CUfunction,
    /// The dynamic shared memory that it may use.
    shared: Mutex<u32>,
}

// SAFETY: a function handle may be used from any thread of the process.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// A kernel that an operation is going to launch, with its dynamic shared memory.
pub(super) struct Wanted {
    pub(super) op: &'static str,
    pub(super) spec: KernelSpec,
    pub(super) shared: u32,
}

impl Kernels {
    /// The handles of the loaded kernels.
    pub(super) fn handles(&self) -> HashSet<sys::CUfunction> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.values().filter_map(|slot| Some(slot.get()?.as_ref().ok()?.handle)).collect()
    }

    /// Launches a kernel on a stream of the context, which is current, with the words of the struct that it is told.
    pub(super) fn launch(
        &self,
        context: &Context,
        stream: sys::CUstream,
        op: &'static str,
        spec: KernelSpec,
        grid: Grid,
        words: &[u64],
    ) -> Result<()> {
        let function = self.ready(context, op, spec, grid.shared)?;
        let mut parameters = [words.as_ptr().cast_mut().cast()];
        // SAFETY: the one parameter is the struct that the words are of: the kernel's text has its declaration from there,
        // and `told` keeps the two together. The memory that its operands lie in lives until work queued before its release is done (frees are in stream order), and
        // the door holds its locks while this is queued.
        unsafe {
            result::launch_kernel(
                function,
                (grid.blocks[0], grid.blocks[1], grid.blocks[2]),
                (grid.threads, 1, 1),
                grid.shared,
                stream,
                &mut parameters,
            )
        }
        .map_err(|e| context.error(op, e))
    }

    /// Compiles and loads those kernels that are new, several at a time. Without it, the first step of a program would
    /// compile one after the other.
    pub(super) fn prepare(&self, context: &Context, wanted: &[Wanted]) -> Result<()> {
        let specs: HashMap<&KernelSpec, &Wanted> = wanted.iter().map(|w| (&w.spec, w)).collect();
        let new = specs.into_values().filter(|w| self.slot(w.spec.clone()).get().is_none());
        let new: Vec<&Wanted> = new.collect();
        let next = AtomicUsize::new(0);
        let compile = || {
            // What fails here fails again below, where somebody hears of it.
            let Ok(_entered) = context.enter("compile") else { return };
            while let Some(Wanted { op, spec, .. }) = new.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.slot(spec.clone()).get_or_init(|| load(context, op, spec));
            }
        };
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let helpers = processors.min(new.len()).min(COMPILERS).saturating_sub(1);
        thread::scope(|scope| {
            let started = (0..helpers).map(|_| thread::Builder::new().spawn_scoped(scope, compile));
            // Without another thread, this one does all of the work.
            drop(started.collect::<Vec<_>>());
            if helpers > 0 {
                compile();
            }
        });
        wanted.iter().try_for_each(|w| self.ready(context, w.op, w.spec.clone(), w.shared).map(drop))
    }

    /// A kernel that can be launched with this much dynamic shared memory.
    pub(super) fn ready(
        &self,
        context: &Context,
        op: &'static str,
        spec: KernelSpec,
        shared: u32,
    ) -> Result<sys::CUfunction> {
        let slot = self.slot(spec.clone());
        let function = slot.get_or_init(|| load(context, op, &spec)).as_ref().map_err(Clone::clone)?;
        if shared > SHARED_FOR_ALL {
            // Checked and set under one lock, since launches of one kernel may need different sizes.
            let mut granted = function.shared.lock().unwrap_or_else(PoisonError::into_inner);
            if shared > *granted {
                let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: the function is loaded and stays so.
                unsafe {
                    result::function::set_function_attribute(function.handle, attribute, shared as i32)
                }
                .map_err(|e| context.error(op, e))?;
                *granted = shared;
            }
        }
        Ok(function.handle)
    }

    fn slot(&self, spec: KernelSpec) -> Arc<OnceLock<Result<Function>>> {
        if let Some(slot) = self.loaded.read().unwrap_or_else(PoisonError::into_inner).get(&spec) {
            return slot.clone();
        }
        self.loaded.write().unwrap_or_else(PoisonError::into_inner).entry(spec).or_default().clone()
    }
}

/// The machine code of a kernel, from the cache or the compiler.
fn machine_code(context: &Context, spec: &KernelSpec) -> std::result::Result<Vec<u8>, String> {
    let text = spec.text();
    let architecture = context.architecture();
    let (major, minor) = compile::version()?;
    let version = format!("{major}.{minor}");
    let options = compile::options((major, minor)).join(" ");
    let key: [&[u8]; 4] = [text.as_bytes(), options.as_bytes(), architecture.as_bytes(), version.as_bytes()];
    let cache = Cache::open();
    if let Some(code) = cache.and_then(|c| c.get(CUBIN, &key)) {
        return Ok(code);
    }
    let code = compile::cubin(spec.source.name, &text, &architecture)?;
    if let Some(cache) = cache {
        cache.put(CUBIN, &key, &code);
    }
    Ok(code)
}

fn load(context: &Context, op: &'static str, spec: &KernelSpec) -> Result<Function> {
    let failed = |message: String| Error::Device { op, device: context.name().to_string(), message };
    let code = machine_code(context, spec)
        .map_err(|e| failed(format!("kernel {} was not compiled: {e}", spec.label())))?;
    let entry =
        CString::new(spec.entry).map_err(|_| Error::internal(op, "a kernel's name holds a zero byte"))?;
    // SAFETY: the compiler's whole output for this GPU (the cache checks a checksum); the driver copies it.
    let module = unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(|e| {
        failed(format!("kernel {} was not loaded: {}", spec.label(), super::context::describe(e)))
    })?;
    // SAFETY: the module was just loaded and is never unloaded.
    let handle = unsafe { result::module::get_function(module, entry) }.map_err(|e| {
        failed(format!("kernel {} was not found: {}", spec.label(), super::context::describe(e)))
    })?;
    Ok(Function { handle, shared: Mutex::new(SHARED_FOR_ALL) })
}
