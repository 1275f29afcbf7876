//! The operands of a launch as kernels on CUDA are given them: by number.

use super::faults::{Bounds, Reporter};
use super::head::Summing;
use super::kernel::{Grid, KernelSpec};
use super::norm::RowNorm;
use super::params::{Declared, Member, Pointer, Put};
use super::piece::{Description, Pick, Piece, Work};
use super::product::{MmaKind, Product};
use super::tail::Elements;
use crate::device::communicator::{CollectiveCall, Communicator};
use crate::device::launch::{Launch, Mode};
use crate::error::Result;
use crate::types::{DType, Layout, Shape};

/// What the choice of kernels and workspaces of an operation depends on.
pub(crate) trait Gpu {
    /// The matrix instruction of the GPU's tensor cores.
    fn mma(&self) -> MmaKind;

    /// Workspace bytes that cuBLASLt needs for a product. `None` if the product does not suit it.
    fn library_workspace(&self, op: &'static str, product: &Product) -> Result<Option<usize>>;
}

/// What happens to the kernels that an operation asks for.
pub(crate) trait Sink {
    /// Launches a kernel, which is told `params`.
    fn kernel(&mut self, op: &'static str, spec: KernelSpec, grid: Grid, params: &dyn Put) -> Result<()>;

    /// Runs a matrix product with cuBLASLt. Returns `false` if the product does not suit it.
    fn library_product(&mut self, op: &'static str, product: &Product) -> Result<bool>;

    /// Whether cuBLASLt would run a product. Where kernels are only looked at, it might.
    fn library_takes(&self, product: &Product) -> bool;

    /// Runs a collective.
    fn collective(&mut self, communicator: &Communicator, call: CollectiveCall) -> Result<()>;

    /// The matrix instruction of the GPU's tensor cores.
    fn mma(&self) -> MmaKind;

    /// Whether kernels run, so that they need their workspace.
    fn runs(&self) -> bool {
        true
    }

    /// The number of multiprocessors of the device, for grids that fill it.
    fn multiprocessors(&self) -> usize;

    /// Where work is described instead of launched, if it is.
    fn description(&mut self) -> Option<&mut Description> {
        None
    }
}

/// Memory starts at multiples of this many bytes.
const BLOCK_ALIGNMENT: usize = 256;

/// Which power of two, 256 at most, an address so many bytes behind the beginning of memory is a multiple of: known
/// before the memory has a place.
fn alignment(offset: usize) -> usize {
    1 << offset.trailing_zeros().min(BLOCK_ALIGNMENT.trailing_zeros())
}

/// An operand of a launch.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    /// The first element.
    pub(crate) pointer: Pointer,
    pub(crate) layout: &'a Layout,
    pub(crate) dtype: DType,
}

impl<'a> View<'a> {
    pub(crate) fn read(launch: &Launch<'a>, i: usize) -> View<'a> {
        View { pointer: Pointer::read(i), layout: launch.reads[i].layout, dtype: launch.reads[i].dtype }
    }

    pub(crate) fn write(launch: &Launch<'a>, o: usize) -> View<'a> {
        let operand = &launch.writes[o].0;
        View { pointer: Pointer::write(o), layout: operand.layout, dtype: operand.dtype }
    }

    /// Other elements of the same operand, none before its first one. The pointer moves with the layout.
    pub(crate) fn with_layout(self, layout: &'a Layout) -> View<'a> {
        // An element before the first one becomes a place beyond the end, which is an error when it is launched.
        let ahead = layout.offset().checked_sub(self.layout.offset());
        let bytes = ahead.map_or(usize::MAX, |elements| elements * self.dtype.size());
        View { pointer: self.pointer.plus(bytes), layout, ..self }
    }

    /// Which power of two, 256 at most, the first element's address is a multiple of.
    pub(crate) fn alignment(&self) -> usize {
        // The layout counts from the beginning of the memory, so it has what the pointer is ahead of its operand.
        alignment(self.layout.offset() * self.dtype.size())
    }
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

    /// The first element of read operand `i`.
    pub(crate) fn read(&self, i: usize) -> Pointer {
        Pointer::read(i)
    }

    /// The first element of output `o`.
    pub(crate) fn write(&self, o: usize) -> Pointer {
        Pointer::write(o)
    }

    /// The working memory that the operation asked for.
    pub(crate) fn workspace(&self) -> Pointer {
        Pointer::WORKSPACE
    }

    /// Read operand `i`.
    pub(crate) fn input(&self, i: usize) -> View<'a> {
        View::read(self.launch, i)
    }

    /// Output `o`.
    pub(crate) fn output(&self, o: usize) -> View<'a> {
        View::write(self.launch, o)
    }

    /// Which power of two, 256 at most, an address is a multiple of.
    pub(crate) fn alignment(&self, pointer: Pointer) -> usize {
        let first = pointer.operand(self.launch).map_or(0, |x| x.layout.offset() * x.dtype.size());
        alignment(first + pointer.offset())
    }

    /// Whether two operands begin at one place.
    pub(crate) fn same_place(&self, a: Pointer, b: Pointer) -> bool {
        let place =
            |p: Pointer| p.operand(self.launch).map(|x| (x.storage.id(), x.byte_range().start + p.offset()));
        place(a) == place(b)
    }

    /// The size of the workspace in bytes. If kernels are only listed, it is unlimited.
    pub(crate) fn workspace_bytes(&self) -> usize {
        match self.sink.runs() {
            true => self.launch.workspace.as_ref().map_or(0, |w| w.byte_range().len()),
            false => usize::MAX,
        }
    }

    /// The number of multiprocessors of the device, for grids that fill it.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.sink.multiprocessors()
    }

    /// What a kernel reports indices out of range with (`report` in its text). The host meets the error when it next
    /// waits for the device.
    pub(crate) fn faults(&self, bounds: Bounds) -> Reporter {
        self.faults_of(self.launch.op, bounds)
    }

    /// [`CudaArgs::faults`] of a part of the launch.
    pub(crate) fn faults_of(&self, part: &'static str, bounds: Bounds) -> Reporter {
        debug_assert!(
            self.launch.kernel.can_fail(),
            "{} reports indices; its can_fail must say so",
            self.launch.op
        );
        Reporter::new(part, bounds)
    }

    /// Whether a view is an operand of the launch as a whole.
    pub(crate) fn is_operand(&self, view: &View<'_>) -> bool {
        let operand = view.pointer.operand(self.launch);
        view.pointer.offset() == 0
            && operand.is_some_and(|o| o.layout == view.layout && o.dtype == view.dtype)
    }

    /// Whether elementwise kernels, products, norms of rows and what takes a tail are to be described instead of launched.
    pub(crate) fn describes(&mut self) -> bool {
        self.sink.description().is_some()
    }

    /// Whether kernels run. Otherwise they are looked at only.
    pub(crate) fn runs(&self) -> bool {
        self.sink.runs()
    }

    /// Describes an elementwise kernel, where [`CudaArgs::describes`].
    pub(crate) fn describe(&mut self, piece: Piece) {
        if let Some(description) = self.sink.description() {
            description.pieces.push(piece);
        }
    }

    /// Describes a launch that picks slices and does nothing else, where [`CudaArgs::describes`].
    pub(crate) fn describe_pick(&mut self, pick: Pick) {
        if let Some(description) = self.sink.description() {
            description.whole = Some(Work::Pick(pick));
        }
    }

    /// Describes a launch that takes a head and does nothing else, where [`CudaArgs::describes`].
    pub(crate) fn describe_summing(&mut self, summing: Box<dyn Summing>) {
        if let Some(description) = self.sink.description() {
            description.whole = Some(Work::Summing(summing));
        }
    }

    /// Describes a product, where [`CudaArgs::describes`].
    pub(crate) fn describe_product(&mut self, product: &Product) {
        if let Some(description) = self.sink.description() {
            description.products.push(product.clone());
        }
    }

    /// Describes a norm of rows, where [`CudaArgs::describes`].
    pub(crate) fn describe_norm(&mut self, norm: RowNorm) {
        if let Some(description) = self.sink.description() {
            description.norms.push(norm);
        }
    }

    /// Describes a launch whose last kernel takes a tail, where [`CudaArgs::describes`].
    pub(crate) fn describe_elements(&mut self, elements: Box<dyn Elements>) {
        if let Some(description) = self.sink.description() {
            description.elements.push(elements);
        }
    }

    /// Launches a kernel, which is told `params`. Kernels of one launch run one after the other.
    pub(crate) fn kernel<P: Member + 'static>(
        &mut self,
        spec: KernelSpec,
        grid: Grid,
        params: &P,
    ) -> Result<()> {
        self.sink.kernel(self.launch.op, spec.told(Declared::of::<P>()), grid, params)
    }

    /// Runs a collective on the first operand (or, in place, on the first result) and the first result.
    pub(crate) fn collective(&mut self, communicator: &Communicator, call: CollectiveCall) -> Result<()> {
        self.sink.collective(communicator, call)
    }

    /// The matrix instruction of the GPU's tensor cores.
    pub(crate) fn mma(&self) -> MmaKind {
        self.sink.mma()
    }

    /// Runs a matrix product with cuBLASLt. Returns `false` if the product does not suit it.
    pub(crate) fn library_product(&mut self, product: &Product) -> Result<bool> {
        self.sink.library_product(self.launch.op, product)
    }

    /// Whether cuBLASLt would run a product.
    pub(crate) fn library_takes(&self, product: &Product) -> bool {
        self.sink.library_takes(product)
    }
}
