//! The precision of a thread, and what products read in its place.

use std::cell::{Cell, RefCell};

use crate::autograd::no_grad;
use crate::device::Watch;
use crate::error::Result;
use crate::tensor::{DType, Layout, Shape, Tensor};
use crate::types::Precision;

/// A bf16 copy of an f32 storage. It is valid while nobody writes to the storage.
struct Rounded {
    watch: Watch,
    copy: Tensor,
}

thread_local! {
    static PRECISION: Cell<Precision> = const { Cell::new(Precision::F32) };
    /// The copies made under the current precision.
    static ROUNDED: RefCell<Vec<Rounded>> = const { RefCell::new(Vec::new()) };
}

/// An f32 tensor in bf16, without history: a view of a copy of its whole storage.
///
/// The copy is kept for other tensors of the storage and for later calls until the precision ends. A step is recorded
/// under its own precision scope, so it makes the copies that it reads.
pub(crate) fn rounded(t: &Tensor) -> Result<Tensor> {
    let current = |rounded: &Rounded| rounded.watch.overwritten_by().is_none();
    let kept = ROUNDED.with_borrow(|all| {
        all.iter().find(|r| r.watch.is_of(t.storage()) && current(r)).map(|r| r.copy.clone())
    });
    let copy = match kept {
        Some(copy) => copy,
        None => {
            let bytes = t.storage().bytes();
            let shape = Shape::from([bytes / t.dtype().size()]);
            let whole = Tensor::from_parts(t.storage().clone(), Layout::contiguous(shape), t.dtype());
            let watch = Watch::new(t.storage(), 0..bytes);
            let copy = no_grad(|| whole.to_dtype(DType::BF16))?;
            ROUNDED.with_borrow_mut(|all| {
                all.retain(|r| current(r) && !r.watch.is_last());
                all.push(Rounded { watch, copy: copy.clone() });
            });
            copy
        }
    };
    Ok(Tensor::from_parts(copy.storage().clone(), t.layout().clone(), DType::BF16))
}

/// The precision of this thread.
pub fn precision() -> Precision {
    PRECISION.get()
}

/// Runs `f` on this thread with a precision. The gradient of an operation is computed in the precision of the
/// operation, wherever the backward pass runs.
///
/// ```
/// use refrain::{DType, Device, Precision, Tensor, with_precision};
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::best())?;
/// let y = with_precision(Precision::Tf32, || x.matmul(&x))?;
/// assert_eq!(y.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
/// let y = with_precision(Precision::Bf16, || x.matmul(&x))?;
/// assert_eq!(y.dtype(), DType::BF16);
/// # Ok::<(), refrain::Error>(())
/// ```
pub fn with_precision<R>(precision: Precision, f: impl FnOnce() -> R) -> R {
    struct Restore(Precision, Vec<Rounded>);
    impl Drop for Restore {
        fn drop(&mut self) {
            PRECISION.set(self.0);
            // Tensors must be dropped while nothing is borrowed.
            let _ended = ROUNDED.replace(std::mem::take(&mut self.1));
        }
    }
    let _restore = Restore(PRECISION.replace(precision), ROUNDED.take());
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_ends_with_the_closure_and_is_of_one_thread() {
        assert_eq!(precision(), Precision::F32);
        with_precision(Precision::Bf16, || {
            with_precision(Precision::Tf32, || assert_eq!(precision(), Precision::Tf32));
            assert_eq!(precision(), Precision::Bf16);
            let elsewhere = std::thread::spawn(precision).join();
            assert_eq!(elsewhere.ok(), Some(Precision::F32));
        });
        let unwound = std::panic::catch_unwind(|| with_precision(Precision::Tf32, || panic!("on purpose")));
        assert!(unwound.is_err());
        assert_eq!(precision(), Precision::F32);
    }
}
