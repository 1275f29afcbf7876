//! The precision of a thread, and what products read in its place.

use std::cell::{Cell, RefCell};

use smallvec::SmallVec;

use crate::autograd::no_grad;
use crate::device::Watch;
use crate::error::Result;
use crate::tensor::{DType, Layout, Shape, Tensor};
use crate::types::Precision;

/// From this many multiplications on, an f32 operand of a product in bf16 is rounded by a launch of its own on a GPU: the product of
/// 4,096 x 512 by 512 x 1,376 numbers took 36 us on an H200 when it rounded them itself, and 8 us by the library when they were rounded,
/// which takes 3 us and serves gradients, too.
pub(crate) const LEAST_WORK_ROUNDED: usize = 1 << 29;

/// A bf16 copy of an f32 storage. It is valid while nobody writes to the storage.
struct Rounded {
    watch: Watch,
    copy: Tensor,
}

impl Rounded {
    fn is_current(&self) -> bool {
        self.watch.overwritten_by().is_none()
    }
}

thread_local! {
    static PRECISION: Cell<Precision> = const { Cell::new(Precision::F32) };
    /// The copies made under the current precision.
    static ROUNDED: RefCell<Vec<Rounded>> = const { RefCell::new(Vec::new()) };
}

/// The bf16 copy of the storage of a tensor, if there is one that is valid.
fn kept(t: &Tensor) -> Option<Tensor> {
    ROUNDED.with_borrow(|all| {
        let copy = all.iter().find(|r| r.watch.is_of(t.storage()) && r.is_current())?;
        Some(copy.copy.clone())
    })
}

/// An f32 tensor in bf16, without history: a view of a copy of its whole storage.
///
/// The copy is kept for other tensors of the storage and for later calls until the precision ends. A step is recorded
/// under its own precision scope, so it makes the copies that it reads.
pub(crate) fn rounded(t: &Tensor) -> Result<Tensor> {
    let copy = match kept(t) {
        Some(copy) => copy,
        None => {
            let bytes = t.storage().bytes();
            let shape = Shape::from([bytes / t.dtype().size()]);
            let whole = Tensor::from_parts(t.storage().clone(), Layout::contiguous(shape), t.dtype());
            let watch = Watch::new(t.storage(), 0..bytes);
            // Before the copy is made, so that it may take their memory, and while nothing is borrowed.
            drop::<Vec<Rounded>>(ROUNDED.with_borrow_mut(|all| {
                all.extract_if(.., |r| !r.is_current() || r.watch.is_last()).collect()
            }));
            let copy = no_grad(|| whole.to_dtype(DType::BF16))?;
            ROUNDED.with_borrow_mut(|all| all.push(Rounded { watch, copy: copy.clone() }));
            copy
        }
    };
    Ok(Tensor::from_parts(copy.storage().clone(), t.layout().clone(), DType::BF16))
}

/// An f32 operand of a product in bf16, without history. A copy of its whole storage serves other products, too: it is made if the
/// storage is no larger than the operand, and of a parameter, which lies beside others. A view of a part is copied each time, unless there is
/// a copy of the whole.
pub(crate) fn rounded_operand(t: &Tensor) -> Result<Tensor> {
    let is_whole = t.storage().bytes() <= t.numel() * t.dtype().size();
    match is_whole || t.is_leaf() || kept(t).is_some() {
        true => rounded(t),
        false => no_grad(|| t.to_dtype(DType::BF16)),
    }
}

/// What an elementwise operation computes with, if its operands are bf16 and f32 under [`Precision::Bf16`]: f32, as in PyTorch. Else `None`.
pub(crate) fn promoted(operands: &[&Tensor]) -> Result<Option<SmallVec<[Tensor; 8]>>> {
    let has = |dtype| operands.iter().any(|t| t.dtype() == dtype);
    let is_mixed = || has(DType::BF16) && has(DType::F32);
    if operands.iter().all(|t| t.dtype() == operands[0].dtype())
        || precision() != Precision::Bf16
        || !is_mixed()
    {
        return Ok(None);
    }
    // What an axis repeats is converted once.
    let once = |t: &Tensor| {
        let repeats = (0..t.rank()).filter(|&i| t.strides()[i] == 0 && t.dims()[i] > 1);
        repeats.into_iter().try_fold(t.clone(), |t, i| t.narrow(i as isize, 0, 1))
    };
    let wide = |t: &&Tensor| match t.dtype() {
        DType::BF16 => once(t)?.to_dtype(DType::F32)?.broadcast_to(t.shape()),
        _ => Ok((*t).clone()),
    };
    operands.iter().map(wide).collect::<Result<_>>().map(Some)
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
