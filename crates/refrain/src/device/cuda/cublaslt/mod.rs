//! cuBLASLt, NVIDIA's library for matrix products.
//!
//! It computes large products whose operands have one dtype and one dense dimension (and 16-byte alignment for tensor
//! cores), if it computes everything after the product in the same way as the engine. Our own kernels compute the
//! others: small or skinny products, sums together with the product, activations other than tanh-GELU (whose
//! rounding in the library suits only f16 and bf16), and layers whose rows pass to what follows (`Product::passes_rows`).
//!
//! The algorithm is the first one that the library's heuristic names for the sizes, layouts, dtypes, alignments,
//! device and library version. It is stored on disk (see `choices`), and in memory for the life of the process.
#![allow(unsafe_code)] // Calls cuBLASLt.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{self, cublasLtMatmulDescAttributes_t as Attribute};
use cudarc::driver::sys::CUstream;

use crate::activation::Activation;
use crate::device::cuda::cache::Cache;
use crate::device::cuda::context::CudaDevice;
use crate::device::cuda::library::{find, listed, probe};
use crate::device::cuda::params::Addresses;
use crate::device::cuda::{FlatOperand, Pointer, Product};
use crate::types::DType;
use crate::types::Precision;
use choices::{Choice, Choices};
use descriptors::{Descriptor, LayoutDescriptor, Preference, Side, data_type};

mod choices;
mod descriptors;

type Result<T> = std::result::Result<T, String>;

/// Every function of the library that the engine calls.
const SYMBOLS: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetVersion",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoCheck",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
];

/// Products on tensor cores with fewer multiplications use our own kernels, so that small models don't need the library, which takes an
/// eighth of a second to load and to open.
const LEAST_WORK: usize = 1 << 26;
/// The same for f64.
const LEAST_WORK_F64: usize = 1 << 24;
/// Products with fewer rows or columns use our own kernels.
const LEAST_SIDE: usize = 16;
/// Products on tensor cores with shorter sums use our own kernels: they take as long as it takes to write their results, and a
/// tail can save reading them again.
const LEAST_DEPTH: usize = 65;
/// The same for results of few columns, of which our own kernel reads its rows once: of up to 32 columns, and of up to 64 in 16 bits. In
/// TF32, these take 5 % longer.
const LEAST_DEPTH_OF_32: usize = 129;
const LEAST_DEPTH_OF_64: usize = 257;
/// f32 products with a residual and shorter sums use our own kernels.
const LEAST_DEPTH_RESIDUAL: usize = 256;
/// The maximum workspace of an algorithm.
const MOST_WORKSPACE: usize = 32 << 20;
/// How many algorithms the library is asked for.
const ANSWERS: usize = 8;
/// A workspace of so few bytes is a counter, from which the blocks of a kernel take their tiles. In a graph, a node of its own
/// clears it before the kernel, which then waits for the end of the node, and that for the end of all work before: 8 us on an H200.
const COUNTER: usize = 16;
/// The alignment that tensor cores need for addresses and leading dimensions, in bytes.
const TENSOR_ALIGNMENT: usize = 16;

/// Checks whether the library is installed.
fn present() -> Result<()> {
    // SAFETY: opens the library, whose initialisers NVIDIA means to run in any process.
    find("libcublasLt.so", || unsafe { sys::is_culib_present() }).map_err(|places| {
        format!(
            "cuBLASLt is missing: libcublasLt.so is not in the places where the system looks for libraries, nor in \
             {}; matrix products use the engine's own kernels; install it with `pip install nvidia-cublas` or with \
             the CUDA toolkit",
            listed(&places)
        )
    })?;
    // SAFETY: the library is there, so this does not panic; it stays loaded.
    probe(unsafe { sys::culib() }, "cuBLASLt", SYMBOLS, "install version 12 or later")
}

/// The library's version, as it counts it.
fn version() -> Result<usize> {
    present()?;
    // SAFETY: the symbol was probed; takes nothing.
    Ok(unsafe { sys::cublasLtGetVersion() })
}

/// The library's version.
pub(super) fn library_version() -> Result<String> {
    let version = version()?;
    Ok(format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100))
}

/// The library, open.
pub(super) struct Library {
    handle: sys::cublasLtHandle_t,
    choices: Choices<'static>,
    /// The plans of products that were asked for. `None` for those that the library has no algorithm for.
    plans: Mutex<HashMap<Key, Option<Arc<LibraryPlan>>>>,
}

// SAFETY: the library's handle may be used from any thread, by several at once; the rest is behind a lock.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: from `open`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// What follows the product in the same kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Epilogue {
    Nothing,
    Bias,
    Gelu { bias: bool, kept: bool },
}

/// Everything that an algorithm depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    dtype: DType,
    /// Dtype of the result and of what is added.
    result: DType,
    precision: Precision,
    sizes: [usize; 3],
    batches: usize,
    a: Side,
    b: Side,
    /// Alignments of what is added and of the result.
    results: [usize; 2],
    epilogue: Epilogue,
    /// Whether something with the shape of the result is added.
    adds: bool,
}

impl Key {
    /// `None` if the product does not suit the library.
    pub(super) fn of(p: &Product) -> Option<Key> {
        let batches = p.batches();
        let work = [p.n, p.k, batches].iter().try_fold(p.m, |work, &x| work.checked_mul(x))?;
        let added = match (p.add, p.residual) {
            (true, Some(_)) => return None,
            (true, None) => Some(p.c),
            (false, residual) => residual,
        };
        let tensor_cores = match (p.dtype, p.precision) {
            // Our own kernel uses tensor cores here; the library does not.
            (DType::F32, Precision::F32) => return None,
            (dtype, _) => dtype != DType::F64,
        };
        // For f16 and bf16, the library can also give an f32 result, but then nothing else with it.
        let alone = p.bias.is_none() && p.kept.is_none() && p.activation == Activation::None;
        let beside = [p.bias, added].into_iter().flatten().all(|x| x.dtype == p.c.dtype);
        if [p.a.dtype, p.b.dtype] != [p.dtype; 2] || !beside || (p.c.dtype != p.dtype && !alone) {
            return None;
        }
        let epilogue = match (p.activation, p.bias.is_some(), p.kept.is_some()) {
            (Activation::None, false, false) => Epilogue::Nothing,
            (Activation::None, true, false) => Epilogue::Bias,
            (Activation::GeluTanh, bias, kept) if p.dtype.size() == 2 && added.is_none() => {
                Epilogue::Gelu { bias, kept }
            }
            _ => return None,
        };
        let least_work = if tensor_cores { LEAST_WORK } else { LEAST_WORK_F64 };
        if work < least_work || p.m.min(p.n) < LEAST_SIDE || p.sums.is_some() || p.batch.len() > 1 {
            return None;
        }
        let least = match p.n {
            0..=32 => LEAST_DEPTH_OF_32,
            33..=64 if p.dtype.size() == 2 => LEAST_DEPTH_OF_64,
            _ => LEAST_DEPTH,
        };
        if tensor_cores && p.k < least {
            return None;
        }
        if p.residual.is_some() && p.dtype == DType::F32 && p.k < LEAST_DEPTH_RESIDUAL {
            return None;
        }
        if [p.m, p.n, p.k, batches].iter().any(|&x| x > i32::MAX as usize) {
            return None;
        }
        // In column-major terms, a row-major matrix is its transpose.
        let a = Side::of(&p.a, [p.k, p.m], [p.a.dense[1], p.a.dense[0]], [p.a.col, p.a.row])?;
        let b = Side::of(&p.b, [p.n, p.k], [p.b.dense[1], p.b.dense[0]], [p.b.col, p.b.row])?;
        let results = [added.unwrap_or(p.c).alignment, p.c.alignment];
        if tensor_cores {
            let bytes = p.dtype.size();
            let even = |side: &Side| {
                (side.leading * bytes).is_multiple_of(TENSOR_ALIGNMENT)
                    && (side.batch * bytes).is_multiple_of(TENSOR_ALIGNMENT)
                    && side.alignment >= TENSOR_ALIGNMENT
            };
            let rest = [p.bias, p.kept].into_iter().flatten().map(|x| x.alignment).chain(results);
            let fits = even(&a)
                && even(&b)
                && (p.n * p.c.dtype.size()).is_multiple_of(TENSOR_ALIGNMENT)
                && rest.min().is_none_or(|x| x >= TENSOR_ALIGNMENT);
            if !fits {
                return None;
            }
        }
        Some(Key {
            dtype: p.dtype,
            result: p.c.dtype,
            precision: p.precision,
            sizes: [p.m, p.n, p.k],
            batches,
            a,
            b,
            results,
            epilogue,
            adds: added.is_some(),
        })
    }
}

/// Whether the library computes a product, if it is installed.
pub(crate) fn suits(p: &Product) -> bool {
    Key::of(p).is_some()
}

/// The descriptors and the algorithm of a product.
pub(super) struct LibraryPlan {
    /// The addresses of bias and kept values are set for each call, under the lock.
    descriptor: Mutex<Descriptor>,
    /// The layouts of the library's A (our B), B (our A), C and D (our C).
    layouts: [LayoutDescriptor; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    /// The workspace bytes that the library needs.
    pub(super) workspace: usize,
}

// SAFETY: descriptors are data that the library reads; what changes is behind a lock.
unsafe impl Send for LibraryPlan {}
// SAFETY: as above.
unsafe impl Sync for LibraryPlan {}

impl LibraryPlan {
    fn new(
        handle: sys::cublasLtHandle_t,
        choices: &Choices<'_>,
        key: &Key,
    ) -> std::result::Result<LibraryPlan, CublasError> {
        use sys::cublasComputeType_t::*;
        use sys::cublasLtEpilogue_t::*;
        use sys::cublasLtMatmulPreferenceAttributes_t::*;
        let [m, n, k] = key.sizes;
        let (compute, scale) = match (key.dtype, key.precision) {
            (DType::F64, _) => (CUBLAS_COMPUTE_64F, DType::F64),
            (DType::F32, Precision::Tf32) => (CUBLAS_COMPUTE_32F_FAST_TF32, DType::F32),
            _ => (CUBLAS_COMPUTE_32F, DType::F32),
        };
        let mut descriptor = Descriptor(result::create_matmul_desc(compute, data_type(scale))?);
        let operation = |side: &Side| i32::from(side.transposed);
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, operation(&key.b))?;
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, operation(&key.a))?;
        let epilogue = match key.epilogue {
            Epilogue::Nothing => CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => CUBLASLT_EPILOGUE_BIAS,
            Epilogue::Gelu { bias: false, kept: false } => CUBLASLT_EPILOGUE_GELU,
            Epilogue::Gelu { bias: true, kept: false } => CUBLASLT_EPILOGUE_GELU_BIAS,
            Epilogue::Gelu { bias: false, kept: true } => CUBLASLT_EPILOGUE_GELU_AUX,
            Epilogue::Gelu { bias: true, kept: true } => CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        };
        descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)?;
        if matches!(key.epilogue, Epilogue::Gelu { kept: true, .. }) {
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, n as i64)?;
            if key.batches > 1 {
                let attribute = Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE;
                descriptor.set(attribute, (m * n) as i64)?;
            }
        }
        // The heuristic looks at the alignment of addresses; the addresses themselves are set for each call.
        if matches!(key.epilogue, Epilogue::Bias | Epilogue::Gelu { bias: true, .. }) {
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, 16u64)?;
        }
        if matches!(key.epilogue, Epilogue::Gelu { kept: true, .. }) {
            descriptor.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 16u64)?;
        }
        let c = Side { transposed: false, leading: n, batch: m * n, alignment: key.results[1] };
        let layouts = [
            LayoutDescriptor::new(key.dtype, [n, k], &key.b, key.batches)?,
            LayoutDescriptor::new(key.dtype, [k, m], &key.a, key.batches)?,
            LayoutDescriptor::new(key.result, [n, m], &c, key.batches)?,
        ];
        let mut preference = Preference(result::create_matmul_pref()?);
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b.alignment as u32)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a.alignment as u32)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.results[0] as u32)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.results[1] as u32)?;
        // Parts of a sum are gathered in the type of the sum, never in the type of the result.
        let reductions = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions)?;
        let [a, b, c] = &layouts;
        let mut answers_within = |workspace: usize| {
            preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace)?;
            let mut answers =
                [const { MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed() }; ANSWERS];
            let mut count = 0;
            // SAFETY: the symbol was probed; all descriptors are alive; the results have room.
            unsafe {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    handle,
                    descriptor.0,
                    a.0,
                    b.0,
                    c.0,
                    c.0,
                    preference.0,
                    ANSWERS as i32,
                    answers.as_mut_ptr().cast(),
                    &raw mut count,
                )
            }
            .result()?;
            // SAFETY: plain data, zero where the library wrote nothing; zero is a status.
            let answers = answers.map(|answer| unsafe { answer.assume_init() });
            let count = usize::try_from(count).unwrap_or(0);
            Ok::<_, CublasError>(
                answers.into_iter().take(count).filter(|answer| answer.state.result().is_ok()),
            )
        };
        let ask = || {
            let counts =
                |answer: &sys::cublasLtMatmulHeuristicResult_t| (1..=COUNTER).contains(&answer.workspaceSize);
            let mut found = None;
            for workspace in [MOST_WORKSPACE, 0] {
                // Without an algorithm in so little workspace, the library has an error.
                let Ok(mut answers) = answers_within(workspace) else { continue };
                let first = answers.clone().next();
                let best = answers.find(|answer| !counts(answer));
                found = best.or(found).or(first);
                if best.is_some() {
                    break;
                }
            }
            let found = found.ok_or(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED))?;
            Ok(Choice { algorithm: found.algo.data, workspace: found.workspaceSize })
        };
        // What the library is asked, besides preferences that never differ.
        let product = format!(
            "{key:?}, at most {MOST_WORKSPACE} bytes, reductions {reductions}, the first of {ANSWERS} without counter, or without workspace"
        );
        let choice = choices.choose(&product, |kept| accepts(handle, &descriptor, &layouts, kept), ask)?;
        Ok(LibraryPlan {
            descriptor: Mutex::new(descriptor),
            layouts,
            algorithm: sys::cublasLtMatmulAlgo_t { data: choice.algorithm },
            workspace: choice.workspace,
        })
    }
}

/// Whether the library accepts an algorithm from the disk for a product, and needs no more memory than before.
fn accepts(
    handle: sys::cublasLtHandle_t,
    descriptor: &Descriptor,
    [a, b, c]: &[LayoutDescriptor; 3],
    choice: &Choice,
) -> bool {
    let algorithm = sys::cublasLtMatmulAlgo_t { data: choice.algorithm };
    let mut found = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
    // SAFETY: the symbol was probed; all descriptors are alive; the result has room.
    let status = unsafe {
        sys::cublasLtMatmulAlgoCheck(
            handle,
            descriptor.0,
            a.0,
            b.0,
            c.0,
            c.0,
            &raw const algorithm,
            found.as_mut_ptr(),
        )
    };
    // SAFETY: plain data, zero where the library wrote nothing; zero is a status.
    let found = unsafe { found.assume_init() };
    status.result().is_ok()
        && found.state.result().is_ok()
        && found.workspaceSize <= choice.workspace
        && choice.workspace <= MOST_WORKSPACE
}

fn described(e: CublasError) -> String {
    format!("cuBLASLt refuses a matrix product: {e}")
}

impl Library {
    /// Opens the library for a device, whose context must be current. `None` if it is not installed.
    pub(super) fn open(device: &CudaDevice) -> Option<Library> {
        let choices = Choices::new(Cache::open(), device, version().ok()?);
        let handle = result::create_handle().ok()?;
        Some(Library { handle, choices, plans: Mutex::default() })
    }

    /// The plan of a product. `None` if the library has no algorithm for it.
    pub(super) fn plan(&self, key: Key) -> Option<Arc<LibraryPlan>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        // If the library refuses a product once, it always refuses it.
        let plan = || LibraryPlan::new(self.handle, &self.choices, &key).ok().map(Arc::new);
        plans.entry(key).or_insert_with(plan).clone()
    }

    /// Runs a product, by its plan, of operands at `addresses` on a stream of the current context, in `workspace` (address and
    /// bytes).
    pub(super) fn run(
        &self,
        plan: &LibraryPlan,
        stream: CUstream,
        product: &Product,
        addresses: &Addresses<'_>,
        workspace: (u64, usize),
    ) -> Result<()> {
        if plan.workspace > workspace.1 {
            return Err(format!(
                "cuBLASLt needs a workspace of {} bytes, but there are {}",
                plan.workspace, workspace.1
            ));
        }
        let address = |pointer: Pointer| addresses.of(pointer).map_err(|e| e.to_string());
        let address_of = |x: Option<FlatOperand>| x.map_or(Ok(0), |x| address(x.pointer));
        let added = if product.add { Some(product.c) } else { product.residual };
        let beta = if added.is_some() { 1.0 } else { 0.0 };
        let singles = [1.0f32, beta as f32];
        let doubles = [1.0f64, beta];
        let [alpha, beta]: [*const c_void; 2] = match product.dtype {
            DType::F64 => [ptr::from_ref(&doubles[0]).cast(), ptr::from_ref(&doubles[1]).cast()],
            _ => [ptr::from_ref(&singles[0]).cast(), ptr::from_ref(&singles[1]).cast()],
        };
        let mut descriptor = plan.descriptor.lock().unwrap_or_else(PoisonError::into_inner);
        if product.bias.is_some() {
            let attribute = Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            descriptor.set(attribute, address_of(product.bias)?).map_err(described)?;
        }
        if product.kept.is_some() {
            let attribute = Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
            descriptor.set(attribute, address_of(product.kept)?).map_err(described)?;
        }
        let [a, b, c] = &plan.layouts;
        let [a_address, b_address, c_address] =
            [product.a.pointer, product.b.pointer, product.c.pointer].map(address);
        let (a_address, b_address, c_address) = (a_address?, b_address?, c_address?);
        let added_address = address(added.unwrap_or(product.c).pointer)?;
        // SAFETY: the descriptors are alive, those of the operands say what lies at the addresses, by the operation
        // that made the product from their layouts; memory lives until work queued before its release is done. The
        // library copies the descriptor before it returns.
        unsafe {
            result::matmul(
                self.handle,
                descriptor.0,
                alpha,
                beta,
                b_address as *const c_void,
                a.0,
                a_address as *const c_void,
                b.0,
                added_address as *const c_void,
                c.0,
                c_address as *mut c_void,
                c.0,
                &raw const plan.algorithm,
                workspace.0 as *mut c_void,
                plan.workspace,
                stream.cast(),
            )
        }
        .map_err(described)
    }
}
