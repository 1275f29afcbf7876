//! The operands of a launch as kernels on CUDA see them: addresses.

use super::faults::Bounds;
use super::kernel::{Grid, Params, Spec};
use super::product::{MmaKind, Product};
use crate::device::launch::{Launch, Mode};
use crate::error::Result;
use crate::types::{DType, Layout, Shape};

/// What an operation's choice of kernels, and of the memory that they work in, depends on.
pub(crate) trait Gpu {
    /// How the GPU's tensor cores multiply.
    fn mma(&self) -> MmaKind;

    /// Bytes of memory that the vendor's library computes a product in; `None` if the product is not for it.
    fn library_workspace(&self, op: &'static str, product: &Product) -> Result<Option<usize>>;
}

/// What happens to the kernels that an operation asks for.
pub(crate) trait Sink {
    /// Launches a kernel.
    fn kernel(&mut self, op: &'static str, spec: Spec, grid: Grid, params: &Params) -> Result<()>;

    /// Runs a matrix product by the vendor's library; `false` if it is not for that.
    fn library_product(&mut self, op: &'static str, product: &Product) -> Result<bool>;

    /// How the GPU's tensor cores multiply.
    fn mma(&self) -> MmaKind;

    /// Whether kernels run, so that they need the memory to work in.
    fn runs(&self) -> bool {
        true
    }

    /// How many multiprocessors the device has, for grids that fill it.
    fn multiprocessors(&self) -> usize;

    /// What a kernel of `op` reports indices out of range with: the two words of the prelude's `Faults`.
    fn faults(&self, op: &'static str, bounds: Bounds) -> [u64; 2];
}

/// The operands of a launch, and the way to the device.
pub(crate) struct CudaArgs<'a> {
    launch: &'a Launch<'a>,
    sink: &'a mut dyn Sink,
}

impl<'a> CudaArgs<'a> {
    pub(crate) fn new(launch: &'a Launch<'a>, sink: &'a mut dyn Sink) -> CudaArgs<'a> {
        CudaArgs { launch, sink }
    }

    pub(crate) fn launch(&self) -> &'a Launch<'a> {
        self.launch
    }

    pub(crate) fn op(&self) -> &'static str {
        self.launch.op
    }

    pub(crate) fn reads(&self) -> usize {
        self.launch.reads.len()
    }

    pub(crate) fn read_layout(&self, i: usize) -> &'a Layout {
        self.launch.reads[i].layout
    }

    pub(crate) fn read_shape(&self, i: usize) -> &'a Shape {
        self.launch.reads[i].layout.shape()
    }

    pub(crate) fn read_dtype(&self, i: usize) -> DType {
        self.launch.reads[i].dtype
    }

    pub(crate) fn writes(&self) -> usize {
        self.launch.writes.len()
    }

    pub(crate) fn write_layout(&self, o: usize) -> &'a Layout {
        self.launch.writes[o].0.layout
    }

    pub(crate) fn write_shape(&self, o: usize) -> &'a Shape {
        self.launch.writes[o].0.layout.shape()
    }

    pub(crate) fn write_dtype(&self, o: usize) -> DType {
        self.launch.writes[o].0.dtype
    }

    /// Whether the kernel adds to output `o` instead of replacing it.
    pub(crate) fn accumulate(&self, o: usize) -> bool {
        self.launch.writes[o].1 == Mode::Accumulate
    }

    /// The address of the first element of read operand `i`.
    pub(crate) fn read(&self, i: usize) -> u64 {
        self.launch.reads[i].address()
    }

    /// The address of the first element of output `o`.
    pub(crate) fn write(&self, o: usize) -> u64 {
        self.launch.writes[o].0.address()
    }

    /// The address of the working memory that the operation asked for; 0 if it asked for none.
    pub(crate) fn workspace(&self) -> u64 {
        self.launch.workspace.as_ref().map_or(0, |w| w.address())
    }

    /// Bytes of the working memory; where kernels are only looked at, as many as anybody asks for.
    pub(crate) fn workspace_bytes(&self) -> usize {
        match self.sink.runs() {
            true => self.launch.workspace.as_ref().map_or(0, |w| w.byte_range().len()),
            false => usize::MAX,
        }
    }

    /// How many multiprocessors the device has, for grids that fill it.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.sink.multiprocessors()
    }

    /// What a kernel reports indices out of range with, as the two words of a parameter `Faults`. The host meets the
    /// error when it next waits for the device.
    pub(crate) fn faults(&self, bounds: Bounds) -> [u64; 2] {
        debug_assert!(
            self.launch.kernel.can_fail(),
            "{} reports indices; its can_fail must say so",
            self.launch.op
        );
        self.sink.faults(self.launch.op, bounds)
    }

    /// Launches a kernel. Kernels of one launch run one after the other.
    pub(crate) fn kernel(&mut self, spec: Spec, grid: Grid, params: &Params) -> Result<()> {
        self.sink.kernel(self.launch.op, spec, grid, params)
    }

    /// How the GPU's tensor cores multiply.
    pub(crate) fn mma(&self) -> MmaKind {
        self.sink.mma()
    }

    /// Runs a matrix product by the vendor's library; `false` if it is not for that.
    pub(crate) fn library_product(&mut self, product: &Product) -> Result<bool> {
        self.sink.library_product(self.launch.op, product)
    }
}
