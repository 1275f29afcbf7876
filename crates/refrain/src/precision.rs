//! How products of f32 are computed.

use std::cell::Cell;

/// How [`Tensor::matmul`](crate::Tensor::matmul), [`Tensor::linear`](crate::Tensor::linear) and their gradients
/// multiply f32 on a GPU. Sums are f32 in any case.
///
/// Only f32 on a GPU is concerned: f64 is always multiplied in f64, f16 and bf16 exactly, and the CPU multiplies
/// f32 in f32 whatever the setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// As exact as f32: on a GPU's tensor cores, each operand as the sum of two TF32 numbers (Ootomo and Yokota,
    /// "Recovering single precision accuracy from Tensor Cores", 2022). There, sums that an infinite operand is
    /// in are NaN.
    #[default]
    F32,
    /// Operands are rounded to TF32 (10 bits behind the point, as f16, with the range of f32) on tensor cores.
    Tf32,
    /// Operands are rounded to bf16 (7 bits behind the point) on tensor cores.
    Bf16,
}

thread_local! {
    static PRECISION: Cell<Precision> = const { Cell::new(Precision::F32) };
}

/// The setting of this thread.
pub fn precision() -> Precision {
    PRECISION.get()
}

/// Runs `f` with a setting for products of f32, on this thread. An operation's gradient is computed as the
/// operation was, wherever the backward pass runs.
///
/// ```
/// use refrain::{Device, Precision, Tensor, with_precision};
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::best())?;
/// let y = with_precision(Precision::Tf32, || x.matmul(&x))?;
/// assert_eq!(y.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
/// # Ok::<(), refrain::Error>(())
/// ```
pub fn with_precision<R>(precision: Precision, f: impl FnOnce() -> R) -> R {
    struct Restore(Precision);
    impl Drop for Restore {
        fn drop(&mut self) {
            PRECISION.set(self.0);
        }
    }
    let _restore = Restore(PRECISION.replace(precision));
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
