//! Operands of kernels that compute in f32 or f64 only: f16 and bf16 pass through f32 copies.

use std::borrow::Cow;

use super::numeric::{Real, Stored};

/// Elements in the arithmetic's type: the operand itself, or a copy of a narrower one.
pub(crate) struct Widened<'a, R: Clone>(Cow<'a, [R]>);

impl<'a, R: Real> Widened<'a, R> {
    pub(crate) fn of<T: Stored>(x: &'a [T]) -> Widened<'a, R> {
        Widened(match R::same(x) {
            Some(same) => Cow::Borrowed(same),
            None => Cow::Owned(x.iter().map(|v| v.to()).collect()),
        })
    }

    pub(crate) fn get(&self) -> &[R] {
        &self.0
    }
}

/// Lets `f` write (or with `keep` add to) a result in the arithmetic's type and rounds it once to the
/// stored type.
pub(crate) fn narrow<T: Stored, R: Real, O>(y: &mut [T], keep: bool, f: impl FnOnce(&mut [R]) -> O) -> O {
    if let Some(same) = R::same_mut(y) {
        return f(same);
    }
    let mut wide: Vec<R> = if keep { y.iter().map(|v| v.to()).collect() } else { vec![R::ZERO; y.len()] };
    let out = f(&mut wide);
    y.iter_mut().zip(wide).for_each(|(y, w)| *y = T::from_number(w));
    out
}
