//! The kernel of a user's operation on CUDA: its text, its parameters and its grid.

use std::borrow::Cow;
use std::fmt::Write;

use smallvec::SmallVec;

use crate::device::CudaArgs;
use crate::device::cuda::{Bounds, Grid, KernelSpec, Member, Pointer, Reporter, Source, View, params};
use crate::error::{Error, Result};
use crate::kernels::units;
use crate::operation::Spec;
use crate::tensor::DType;

/// How many axes an operand or a result may have.
pub(super) const MAX_AXES: usize = 8;
/// How many operands and results an operation may have together.
pub(super) const MAX_OPERANDS: usize = 16;
/// How many parameters a kernel may have.
const MAX_PARAMS: usize = 16;
/// How many faults a kernel may report.
const MAX_FAULTS: usize = 4;
/// What a fault is that the kernel reports by another number.
const UNDECLARED: &str =
    "the kernel reports a fault that CudaKernel::fault does not declare, with {0} and {1}";
/// The kernel's name on the GPU. The user's function has its own name in a namespace of its own, so that it may be any.
const ENTRY: &str = "custom_kernel";
/// Threads of a block, unless the kernel says otherwise.
const THREADS: usize = 256;
/// The largest numbers of blocks and threads that CUDA takes.
const MAX_BLOCKS: [usize; 3] = [i32::MAX as usize, 65_535, 65_535];
const MAX_THREADS: usize = 1024;

static SOURCE: Source = Source { name: "custom", parts: &[include_str!("kernel.cu")] };
static BOOLS: Source = Source { name: "custom_bools", parts: &[include_str!("bools.cu")] };

params! {
    /// An operand or a result.
    struct OperandArgs {
        data: Pointer,
        numel: i64,
        rank: i64,
        sizes: [i64; MAX_AXES],
        strides: [i64; MAX_AXES],
    }

    /// The operands, then the results, then nothing up to N.
    struct CustomArgs<const N: usize> {
        operands: [OperandArgs; N],
        params: [u64; MAX_PARAMS],
        /// The faults by number, then the one that is not declared.
        faults: [Reporter; MAX_FAULTS + 1],
    }

    struct BoolsArgs {
        y: Pointer = "bool_t*",
        n: i64,
    }
}

impl OperandArgs {
    const NOTHING: OperandArgs = OperandArgs {
        data: Pointer::NOTHING,
        numel: 0,
        rank: 0,
        sizes: [0; MAX_AXES],
        strides: [0; MAX_AXES],
    };

    fn of(view: &View<'_>) -> OperandArgs {
        let shape = view.layout.shape();
        let numbers = |all: &[usize]| std::array::from_fn(|axis| all.get(axis).map_or(0, |&n| n as i64));
        OperandArgs {
            data: view.pointer,
            numel: shape.numel() as i64,
            rank: shape.rank() as i64,
            sizes: numbers(shape.dims()),
            strides: numbers(view.layout.strides()),
        }
    }
}

/// A number that a CUDA kernel gets by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param {
    /// `float`
    F32(f32),
    /// `double`
    F64(f64),
    /// `int`
    I32(i32),
    /// `i64`, which is `long long`
    I64(i64),
    /// `bool`
    Bool(bool),
}

macro_rules! from_numbers {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for Param {
            fn from(value: $type) -> Param {
                Param::$variant(value)
            }
        }
    )*};
}
from_numbers!(f32 => F32, f64 => F64, i32 => I32, i64 => I64, bool => Bool);

impl Param {
    fn word(self) -> u64 {
        match self {
            Param::F32(value) => value.to_bits().into(),
            Param::F64(value) => value.to_bits(),
            Param::I32(value) => value as u64,
            Param::I64(value) => value as u64,
            Param::Bool(value) => value.into(),
        }
    }

    /// Its value in the kernel's text, from `word`.
    fn value(self, word: &str) -> String {
        match self {
            Param::F32(_) => format!("__uint_as_float((u32){word})"),
            Param::F64(_) => format!("__longlong_as_double((i64){word})"),
            Param::I32(_) => format!("(int){word}"),
            Param::I64(_) => format!("(i64){word}"),
            Param::Bool(_) => format!("({word} != 0)"),
        }
    }
}

/// The blocks of a launch.
#[derive(Clone, Copy, Debug)]
enum Blocks {
    /// A thread for each element of the largest result.
    OfResults,
    /// So many threads.
    OfThreads(usize),
    Grid([usize; 3]),
}

/// A kernel in CUDA C++: its text, its parameters and its launch geometry. [The module](crate::custom#the-cuda-kernel) says what
/// the text must define.
#[derive(Clone, Debug)]
pub struct CudaKernel {
    function: &'static str,
    text: Cow<'static, str>,
    params: SmallVec<[Param; 4]>,
    faults: SmallVec<[&'static str; MAX_FAULTS]>,
    blocks: Blocks,
    threads: usize,
    shared: usize,
}

impl CudaKernel {
    /// A kernel that calls `function` of `text`. It has a thread for each element of the largest result, in blocks of 256
    /// threads.
    pub fn new(function: &'static str, text: impl Into<Cow<'static, str>>) -> CudaKernel {
        CudaKernel {
            function,
            text: text.into(),
            params: SmallVec::new(),
            faults: SmallVec::new(),
            blocks: Blocks::OfResults,
            threads: THREADS,
            shared: 0,
        }
    }

    /// Adds a parameter: an `f32`, `f64`, `i32`, `i64` or `bool`. The function gets parameters in this order, after the
    /// operands and results. 16 at most.
    pub fn param(mut self, value: impl Into<Param>) -> CudaKernel {
        self.params.push(value.into());
        self
    }

    /// Declares a fault that the kernel can find in the values of its operands, such as an index out of range. The function then
    /// gets one more argument, the last: `Faults faults`. `faults.report(k, a, b)` reports fault `k`, in the order of
    /// declaration, from 0; in its message, `{0}` and `{1}` stand for the integers `a` and `b`. 4 at most.
    ///
    /// A kernel does not stop at a fault: it goes on with the next element. The first report becomes
    /// [`Error::InvalidArgument`], which a later call on the device returns, as for built-in operations (see
    /// [`Device::synchronize`](crate::Device::synchronize)).
    pub fn fault(mut self, message: &'static str) -> CudaKernel {
        self.faults.push(message);
        self
    }

    /// Launches at least `count` threads, in a line of blocks of `per_block` threads (1024 at most). The last block may have
    /// threads beyond `count`.
    pub fn threads(self, count: usize, per_block: usize) -> CudaKernel {
        CudaKernel { blocks: Blocks::OfThreads(count), threads: per_block, ..self }
    }

    /// Launches a grid of blocks (`gridDim` x, y and z) of `per_block` threads (1024 at most).
    pub fn blocks(self, blocks: [usize; 3], per_block: usize) -> CudaKernel {
        CudaKernel { blocks: Blocks::Grid(blocks), threads: per_block, ..self }
    }

    /// Gives each block so many bytes of dynamic shared memory (`extern __shared__`).
    pub fn shared_bytes(self, bytes: usize) -> CudaKernel {
        CudaKernel { shared: bytes, ..self }
    }

    /// Checks everything but the text, and returns the grid.
    pub(super) fn grid(&self, op: &'static str, results: &[Spec]) -> Result<Grid> {
        let failed =
            |message: String| Err(Error::Kernel { op, message: format!("the CUDA kernel: {message}") });
        let mut characters = self.function.chars();
        let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        if !characters.next().is_some_and(letter) || !characters.all(|c| letter(c) || c.is_ascii_digit()) {
            return failed(format!("`{}` is not the name of a function", self.function));
        }
        if self.params.len() > MAX_PARAMS {
            return failed(format!("{} parameters are more than {MAX_PARAMS}", self.params.len()));
        }
        if self.faults.len() > MAX_FAULTS {
            return failed(format!("{} faults are more than {MAX_FAULTS}", self.faults.len()));
        }
        if !(1..=MAX_THREADS).contains(&self.threads) {
            return failed(format!("a block has {} threads; use 1 to {MAX_THREADS}", self.threads));
        }
        let line = |count: usize| [count.div_ceil(self.threads), 1, 1];
        let blocks = match self.blocks {
            Blocks::OfResults => line(results.iter().map(|result| result.shape.numel()).max().unwrap_or(0)),
            Blocks::OfThreads(count) => line(count),
            Blocks::Grid(blocks) => blocks,
        };
        // Without elements in any result nothing is launched, so a grid may be empty then.
        let least = usize::from(results.iter().any(|result| result.shape.numel() > 0));
        let fits = |(&n, most): (&usize, usize)| (least..=most).contains(&n);
        if !blocks.iter().zip(MAX_BLOCKS).all(fits) {
            return failed(format!("its grid has {blocks:?} blocks; use 1 to {MAX_BLOCKS:?}"));
        }
        let Ok(shared) = u32::try_from(self.shared) else {
            return failed(format!("{} bytes of shared memory are more than a block can have", self.shared));
        };
        Ok(Grid { blocks: blocks.map(|n| n as u32), threads: self.threads as u32, shared })
    }

    /// The text of the user and the kernel that calls its function.
    fn text(&self, operands: impl Iterator<Item = (DType, bool)>) -> String {
        let (function, text) = (self.function, &*self.text);
        let mut all = format!(
            "namespace custom {{\n#line 1 \"{function}.cu\"\n{text}\n}}\n#line 1 \"the call of {function}\"\n\
             KERNEL({ENTRY}, CustomArgs, p, __launch_bounds__({})) {{\n    custom::{function}(",
            self.threads
        );
        let mut separator = "";
        for (i, (dtype, is_result)) in operands.enumerate() {
            let constant = if is_result { "" } else { "const " };
            let _ = write!(all, "{separator}view<{constant}{dtype}_t>(p.operands[{i}])");
            separator = ", ";
        }
        for (k, param) in self.params.iter().enumerate() {
            let _ = write!(all, "{separator}{}", param.value(&format!("p.params[{k}]")));
        }
        if !self.faults.is_empty() {
            let _ = write!(all, "{separator}faults_of(p.faults)");
        }
        all += ");\n}\n";
        all
    }

    /// Asks the device for the kernel, on the operands of a launch.
    pub(super) fn launch(&self, args: &mut CudaArgs<'_>, results: &[Spec]) -> Result<()> {
        let grid = self.grid(args.op(), results)?;
        let reads = (0..args.reads()).map(|i| args.input(i));
        let views: SmallVec<[View<'_>; 4]> =
            reads.chain((0..args.writes()).map(|o| args.output(o))).collect();
        let first_result = args.reads();
        let types = views.iter().enumerate().map(|(i, view)| (view.dtype, i >= first_result));
        let spec = KernelSpec::new(&SOURCE, ENTRY).generated(self.text(types).into());
        match views.len() {
            ..=2 => self.launch_with::<2>(args, spec, grid, &views),
            3..=4 => self.launch_with::<4>(args, spec, grid, &views),
            5..=8 => self.launch_with::<8>(args, spec, grid, &views),
            _ => self.launch_with::<MAX_OPERANDS>(args, spec, grid, &views),
        }?;
        // The kernel may have stored any byte as true.
        for (o, result) in results.iter().enumerate().filter(|(_, result)| result.dtype == DType::Bool) {
            let n = result.shape.numel();
            if n > 0 {
                let bools = BoolsArgs { y: args.write(o), n: n as i64 };
                args.kernel(KernelSpec::new(&BOOLS, "custom_bools"), units::grid(args, n), &bools)?;
            }
        }
        Ok(())
    }

    fn launch_with<const N: usize>(
        &self,
        args: &mut CudaArgs<'_>,
        spec: KernelSpec,
        grid: Grid,
        views: &[View<'_>],
    ) -> Result<()> {
        const { assert!(CustomArgs::<N>::WORDS * 8 <= 4096, "CUDA takes 4 KiB of parameters") };
        let operand = |i| views.get(i).map_or(OperandArgs::NOTHING, OperandArgs::of);
        let param = |k| self.params.get(k).map_or(0, |param: &Param| param.word());
        let fault = |k| args.faults(Bounds::Message(self.faults.get(k).copied().unwrap_or(UNDECLARED)));
        let custom_args = CustomArgs::<N> {
            operands: std::array::from_fn(operand),
            params: std::array::from_fn(param),
            faults: std::array::from_fn(fault),
        };
        args.kernel(spec, grid, &custom_args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_passes_operands_results_and_parameters_in_order() {
        let kernel = CudaKernel::new("mix", "text of the user").param(0.5f32).param(2i64).param(true);
        let text = kernel.text([(DType::F16, false), (DType::Bool, false), (DType::F32, true)].into_iter());
        let call = "KERNEL(custom_kernel, CustomArgs, p, __launch_bounds__(256)) {\n    custom::mix(\
                    view<const f16_t>(p.operands[0]), view<const bool_t>(p.operands[1]), view<f32_t>(p.operands[2]), \
                    __uint_as_float((u32)p.params[0]), (i64)p.params[1], (p.params[2] != 0));\n}\n";
        assert!(text.ends_with(call), "{text}");
        let types = || [(DType::F32, true)].into_iter();
        let reports = CudaKernel::new("f", "").param(1i32).fault("{0} is wrong").text(types());
        assert!(
            reports.ends_with("(view<f32_t>(p.operands[0]), (int)p.params[0], faults_of(p.faults));\n}\n"),
            "{reports}"
        );
        assert!(text.starts_with("namespace custom {\n#line 1 \"mix.cu\"\ntext of the user\n}\n"), "{text}");
    }

    #[test]
    fn a_parameter_keeps_its_bits() {
        let words = [(-0.0f32).into(), (-1.5f64).into(), (-2i32).into(), i64::MIN.into(), Param::Bool(true)];
        let expected = [0x8000_0000, (-1.5f64).to_bits(), u64::MAX - 1, 1 << 63, 1];
        assert_eq!(words.map(Param::word), expected);
    }

    #[test]
    fn grids_have_the_threads_that_were_asked_for_and_no_other_sizes() {
        let results = [Spec::new([3, 100], DType::F32)];
        let grid = |kernel: CudaKernel| kernel.grid("op", &results).map(|grid| (grid.blocks, grid.threads));
        let kernel = || CudaKernel::new("f", "");
        assert_eq!(grid(kernel()).unwrap(), ([2, 1, 1], 256));
        assert_eq!(grid(kernel().threads(65, 64)).unwrap(), ([2, 1, 1], 64));
        assert_eq!(grid(kernel().blocks([1, 2, 3], 32)).unwrap(), ([1, 2, 3], 32));
        let refused = [
            kernel().threads(1, 0),
            kernel().threads(1, 1025),
            kernel().threads(0, 32),
            kernel().threads(usize::MAX, 32),
            kernel().blocks([1, 65_536, 1], 32),
            kernel().shared_bytes(1 << 40),
            CudaKernel::new("1f", ""),
            CudaKernel::new("", ""),
            (0..17).fold(kernel(), |kernel, i: i32| kernel.param(i)),
            (0..5).fold(kernel(), |kernel, _| kernel.fault("it is wrong")),
        ];
        for kernel in refused {
            let error = grid(kernel.clone());
            assert!(matches!(error, Err(Error::Kernel { op: "op", .. })), "{kernel:?}: {error:?}");
        }
        let results = [[0, 3], [2, 300]].map(|shape| Spec::new(shape, DType::F32));
        assert_eq!(kernel().grid("op", &results).unwrap().blocks, [3, 1, 1]);
        let empty = kernel().grid("op", &[Spec::new([0], DType::F32)]);
        assert!(empty.is_ok(), "{empty:?}");
    }
}
