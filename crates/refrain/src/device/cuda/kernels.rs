//! Compiled kernels of a context, by specialisation.
#![allow(unsafe_code)] // Loads machine code through NVIDIA's driver.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUfunction_attribute};

use super::cache::Cache;
use super::compile;
use super::context::Context;
use super::kernel::{Grid, KernelSpec};
use super::workers::Workers;
use crate::error::{Error, Result};

/// The kind of these entries in the cache.
const CUBIN: &str = "cubin";
/// The dynamic shared memory that a kernel may use without asking.
const SHARED_FOR_ALL: u32 = 48 << 10;
/// How many kernels are compiled at a time, at most. NVRTC 13 reads source text in one thread at a time, which takes a seventh of
/// a compilation, so more would wait for one another. Each takes about 15 MB of the host.
const COMPILERS: usize = 16;

/// The kernels that were used so far. A new one is compiled (or read from the cache) by the first thread that needs
/// it; others wait for it.
#[derive(Default)]
pub(super) struct Kernels {
    loaded: RwLock<HashMap<KernelSpec, Arc<Slot>>>,
}

/// The place of a kernel.
#[derive(Default)]
struct Slot {
    /// Whether a worker compiles it or has done so, so that another one takes the next kernel instead of waiting.
    begun: AtomicBool,
    function: OnceLock<Result<Function>>,
}

impl Slot {
    fn is_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed) || self.function.get().is_some()
    }
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
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) op: &'static str,
    pub(super) spec: KernelSpec,
    pub(super) shared: u32,
}

/// Threads that compile kernels, of one context.
pub(super) fn compilers() -> Arc<Workers> {
    Workers::new(thread::available_parallelism().map_or(1, usize::from).min(COMPILERS))
}

/// Sorts kernels by how long their compilation takes, the longest first, so that no long one is begun when the others are done. A
/// longer text takes longer.
pub(super) fn longest_first(wanted: &mut [Wanted]) {
    wanted.sort_by_cached_key(|w| Reverse(w.spec.text().len()));
}

impl Kernels {
    /// The handles of the loaded kernels.
    pub(super) fn handles(&self) -> HashSet<sys::CUfunction> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.values().filter_map(|slot| Some(slot.function.get()?.as_ref().ok()?.handle)).collect()
    }

    /// Those of these kernels that nobody has begun to compile, each once.
    pub(super) fn new_of(&self, wanted: &[Wanted]) -> Vec<Wanted> {
        let once: HashMap<&KernelSpec, &Wanted> = wanted.iter().map(|w| (&w.spec, w)).collect();
        once.into_values().filter(|w| !self.slot(w.spec.clone()).is_begun()).cloned().collect()
    }

    /// Compiles and loads a kernel, unless somebody has begun to. An error is kept for whoever needs the kernel.
    pub(super) fn compile(&self, context: &Context, wanted: Wanted) {
        let slot = self.slot(wanted.spec.clone());
        if !slot.begun.swap(true, Ordering::Relaxed)
            && let Ok(_entered) = context.enter("compile")
        {
            slot.function.get_or_init(|| load(context, wanted.op, &wanted.spec));
        }
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
        grant(context, op, slot.function.get_or_init(|| load(context, op, &spec)), shared)
    }

    /// The same, if the kernel is compiled already.
    pub(super) fn loaded(
        &self,
        context: &Context,
        op: &'static str,
        spec: &KernelSpec,
        shared: u32,
    ) -> Option<Result<sys::CUfunction>> {
        let slot = self.loaded.read().unwrap_or_else(PoisonError::into_inner).get(spec)?.clone();
        Some(grant(context, op, slot.function.get()?, shared))
    }

    fn slot(&self, spec: KernelSpec) -> Arc<Slot> {
        if let Some(slot) = self.loaded.read().unwrap_or_else(PoisonError::into_inner).get(&spec) {
            return slot.clone();
        }
        self.loaded.write().unwrap_or_else(PoisonError::into_inner).entry(spec).or_default().clone()
    }
}

/// Lets a kernel use this much dynamic shared memory.
fn grant(
    context: &Context,
    op: &'static str,
    function: &Result<Function>,
    shared: u32,
) -> Result<sys::CUfunction> {
    let function = function.as_ref().map_err(Clone::clone)?;
    if shared > SHARED_FOR_ALL {
        // Checked and set under one lock, since launches of one kernel may need different sizes.
        let mut granted = function.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared > *granted {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded and stays so.
            unsafe { result::function::set_function_attribute(function.handle, attribute, shared as i32) }
                .map_err(|e| context.error(op, e))?;
            *granted = shared;
        }
    }
    Ok(function.handle)
}

/// Launches a kernel on a stream of the context, which is current, with the words of the struct that it is told.
pub(super) fn launch(
    context: &Context,
    stream: sys::CUstream,
    op: &'static str,
    function: sys::CUfunction,
    grid: Grid,
    words: &[u64],
) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::Source;

    static SHORT: Source = Source { name: "short", parts: &["a"] };
    static LONG: Source = Source { name: "long", parts: &["a", "bc"] };

    fn wanted(source: &'static Source, entry: &'static str) -> Wanted {
        Wanted { op: "test", spec: KernelSpec::new(source, entry), shared: 0 }
    }

    fn entries(wanted: &[Wanted]) -> Vec<&'static str> {
        wanted.iter().map(|w| w.spec.entry).collect()
    }

    #[test]
    fn the_kernel_with_the_longest_text_is_compiled_first() {
        let long = wanted(&LONG, "long");
        let longer = Wanted { spec: long.spec.clone().int("WIDTH", 64), ..wanted(&LONG, "") };
        let mut all = [wanted(&SHORT, "short"), longer, long];
        all[1].spec.entry = "longer";
        longest_first(&mut all);
        assert_eq!(entries(&all), ["longer", "long", "short"]);
    }

    #[test]
    fn a_kernel_is_compiled_once_however_many_launches_want_it() {
        let kernels = Kernels::default();
        let all = ["a", "b", "a"].map(|entry| wanted(&SHORT, entry));
        let mut new = kernels.new_of(&all);
        new.sort_by_key(|w| w.spec.entry);
        assert_eq!(entries(&new), ["a", "b"]);
        kernels.slot(wanted(&SHORT, "a").spec).begun.store(true, Ordering::Relaxed);
        assert_eq!(entries(&kernels.new_of(&all)), ["b"], "a worker has begun with the other one");
    }
}
