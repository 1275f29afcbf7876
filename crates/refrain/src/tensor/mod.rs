//! Tensors: a shared storage, a layout, a dtype, and where the values came from.

mod checks;
mod gradients;
mod history;
mod node;

use std::sync::PoisonError;

pub(crate) use checks::{check_devices, check_dtypes};
pub(crate) use gradients::{Arrived, Gradients, Pending};
pub(crate) use history::{Edge, History, Input, Leaf};
pub(crate) use node::{
    BornNode, Differentiable, Function, INPUTS, Node, NodeBirth, RecordedNodes, Saved, SavedValues, Saves,
};

use crate::device::cpu::parallel;
use crate::device::{Device, Lineage, Operand, Storage, recording};
use crate::error::{Error, Result};
use crate::recycled::{Recycled, recycle};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
pub(crate) use crate::types::{
    Axes, CHANNELS_FIRST, DType, Dims, Element, Layout, NewShape, PIXELS_FIRST, Shape, resolve_axis,
    row_major,
};

/// An array of numbers on a device. It is a cheap handle to memory that never moves.
///
/// A clone is another handle to the same memory. Views (`reshape`, `transpose`, `narrow`, ...) share the memory, too.
/// An operation makes a new tensor; its `_into` form writes into the memory of the destination.
///
/// # Operators
/// `+`, `-`, `*` and `/` take two tensors, or a tensor and an `f64` on either side, by value or by reference; `-` negates.
/// They mean [`Tensor::add`](crate::Tensor::add) and so on, and like these methods **they return a `Result`**: operands may
/// not match, and bad input never panics here. So each operator takes a `?`, except that the result of one can be the
/// second operand of the next.
///
/// ```
/// use refrain::{Device, Tensor};
/// let device = Device::cpu();
/// let a = Tensor::from_slice(&[1.0f32, 2.0], [2], &device)?;
/// let b = Tensor::from_slice(&[3.0f32, 4.0], [2], &device)?;
/// let y = (&a + &b * 2.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [7.0, 10.0]);
/// assert_eq!((1.0 - &a)?.to_vec::<f32>()?, [0.0, -1.0]);
/// assert_eq!((-&a)?.to_vec::<f32>()?, [-1.0, -2.0]);
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor(Recycled<Inner>);

struct Inner {
    storage: Recycled<Storage>,
    layout: Layout,
    dtype: DType,
    /// Which operations made the values, for the backward pass.
    history: Mutex<History>,
    /// If `None`, the lineage of the storage.
    lineage: Option<Recycled<Lineage>>,
    /// The number of the change in the lineage that the history belongs to.
    change: AtomicU64,
    origin: Origin,
}
recycle!(Inner);

/// Where a handle comes from. It tells which tensors a recorded step writes into.
enum Origin {
    /// Made outside recordings.
    Outside,
    /// Made by `detach` in the recording with this number; it has its own lineage.
    Detached(u64),
    /// Made in the recording with this number, as a view of a tensor that existed before.
    ViewOf(u64, Tensor),
}

impl Origin {
    fn detached() -> Origin {
        recording::current().map_or(Origin::Outside, Origin::Detached)
    }

    fn view_of(t: &Tensor) -> Origin {
        match recording::current() {
            None => Origin::Outside,
            Some(step) => match t.before_recording(step) {
                Some(before) => Origin::ViewOf(step, before.clone()),
                None => Origin::Detached(step),
            },
        }
    }
}

impl Tensor {
    /// A handle to elements of a storage, without history.
    pub(crate) fn from_parts(storage: Recycled<Storage>, layout: Layout, dtype: DType) -> Tensor {
        let change = AtomicU64::new(storage.lineage().changes());
        Tensor(Recycled::new(Inner {
            storage,
            layout,
            dtype,
            history: Mutex::default(),
            lineage: None,
            change,
            origin: Origin::detached(),
        }))
    }

    /// New memory of the given shape with undefined values. It must be written before it is read.
    pub(crate) fn empty(op: &'static str, shape: &Shape, dtype: DType, device: &Device) -> Result<Tensor> {
        // Before the strides are computed, which would overflow.
        shape.checked_numel(op, dtype.size())?;
        Tensor::empty_in(op, Layout::contiguous(shape.clone()), dtype, device)
    }

    /// As [`Tensor::empty`], in a layout without gaps.
    pub(crate) fn empty_in(
        op: &'static str,
        layout: Layout,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let numel = layout.shape().checked_numel(op, dtype.size())?;
        parallel::refuse_engine(op)?;
        let storage = Storage::new(op, device, numel * dtype.size())?;
        Ok(Tensor::from_parts(storage, layout, dtype))
    }

    /// The size of each dimension.
    pub fn shape(&self) -> &Shape {
        self.0.layout.shape()
    }

    /// The size of each dimension, as a slice.
    pub fn dims(&self) -> &[usize] {
        self.shape().dims()
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.layout.rank()
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.0.layout.numel()
    }

    /// The size of one dimension. A negative axis counts from the last one.
    pub fn size(&self, axis: isize) -> Result<usize> {
        Ok(self.shape()[resolve_axis("size", axis, self.rank())?])
    }

    /// The distance between neighbours along each dimension, in elements.
    ///
    /// The result of an operation is row-major. Two exceptions: on the CPU, the result of an elementwise operation has the strides of
    /// its operands if these all have the same strides and no gaps (a transposed tensor, for example); and on a GPU, operations keep
    /// [channels last](Tensor::channels_last).
    pub fn strides(&self) -> &[usize] {
        self.0.layout.strides()
    }

    /// The dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The device of the tensor.
    pub fn device(&self) -> &Device {
        self.0.storage.device()
    }

    /// Whether the elements are in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.0.layout.is_contiguous()
    }

    /// Whether both tensors are in the same storage (one is a view of the other, or both are views of a third).
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        self.0.storage.ptr_eq(&other.0.storage)
    }

    /// A number that identifies the tensor's storage while the process runs. It never changes.
    pub fn storage_id(&self) -> u64 {
        self.0.storage.id()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    pub(crate) fn storage(&self) -> &Recycled<Storage> {
        &self.0.storage
    }

    pub(crate) fn operand(&self) -> Operand<'_> {
        Operand { storage: &self.0.storage, layout: &self.0.layout, dtype: self.0.dtype }
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lineage(&self) -> &Lineage {
        self.0.lineage.as_deref().unwrap_or_else(|| self.0.storage.lineage())
    }

    /// The number of the change in the lineage that the history belongs to.
    pub(crate) fn change(&self) -> u64 {
        self.0.change.load(Ordering::Acquire)
    }

    pub(crate) fn belongs_to_change(&self, change: u64) {
        self.0.change.store(change, Ordering::Release);
    }

    /// Identifies the handle and its clones, while one of them lives.
    pub(crate) fn handle(&self) -> usize {
        std::ptr::from_ref(&*self.0).addr()
    }

    /// Whether both are clones of the same handle.
    pub(crate) fn is_same(&self, other: &Tensor) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// The tensor whose history changes if this one is written to, if that tensor existed before the recording
    /// `step`, which is running on this thread.
    pub(crate) fn before_recording(&self, step: u64) -> Option<&Tensor> {
        match &self.0.origin {
            _ if self.0.storage.birth().is_some() => None,
            Origin::Detached(made) if *made == step => None,
            Origin::ViewOf(made, whole) if *made == step => Some(whole),
            _ => Some(self),
        }
    }

    /// Whether no other handle refers to the memory, so that it may be reused.
    pub(crate) fn is_sole_owner(&self) -> bool {
        self.0.is_unique() && self.0.storage.is_unique()
    }

    /// Whether the tensor covers its whole storage, in whatever order.
    pub(crate) fn covers_storage(&self) -> bool {
        self.layout().packed().is_some() && self.numel() * self.dtype().size() == self.0.storage.bytes()
    }

    /// The same memory under another layout, of the same lineage, without a history yet.
    pub(crate) fn same_memory(&self, layout: Layout) -> Tensor {
        Tensor(Recycled::new(Inner {
            storage: self.0.storage.clone(),
            layout,
            dtype: self.0.dtype,
            history: Mutex::default(),
            lineage: self.0.lineage.clone(),
            change: AtomicU64::new(self.change()),
            origin: Origin::view_of(self),
        }))
    }

    /// The same values without history: the backward pass stops here.
    ///
    /// The memory is shared, not copied.
    pub fn detach(&self) -> Tensor {
        Tensor(Recycled::new(Inner {
            storage: self.0.storage.clone(),
            layout: self.0.layout.clone(),
            dtype: self.0.dtype,
            history: Mutex::default(),
            lineage: Some(Recycled::new(Lineage::default())),
            change: AtomicU64::new(0),
            origin: Origin::detached(),
        }))
    }

    /// Like [`Tensor::detach`], for internal use: a handle to the same memory that the tape ignores.
    pub(crate) fn untracked(&self) -> Tensor {
        Tensor::from_parts(self.0.storage.clone(), self.0.layout.clone(), self.0.dtype)
    }

    /// `role` says in an error which operand this is.
    pub(crate) fn require_dtype(&self, op: &'static str, role: &str, expected: DType) -> Result<()> {
        if self.dtype() == expected {
            return Ok(());
        }
        let hint = format!("the {role} must be {expected}; convert with to_dtype(DType::{expected:?}) first");
        Err(Error::DTypeMismatch { op, lhs: self.dtype(), rhs: expected, hint })
    }

    pub(crate) fn require_float(&self, op: &'static str) -> Result<()> {
        if !self.dtype().is_float() {
            return Err(self.unsupported(op));
        }
        Ok(())
    }

    pub(crate) fn unsupported(&self, op: &'static str) -> Error {
        Error::Unsupported { op, dtype: self.dtype(), device: self.device().name() }
    }
}
