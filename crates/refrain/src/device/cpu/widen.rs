//! Operands of kernels that compute in f32 or f64 only: f16 and bf16 pass through f32 copies.

use super::numeric::{Real, Stored};
use super::scratch::Scratch;

/// Elements in the arithmetic's type: the operand itself, or a copy of a narrower one.
pub(crate) enum Widened<'a, R> {
    Same(&'a [R]),
    Copy(Scratch<R>),
}

impl<'a, R: Real> Widened<'a, R> {
    pub(crate) fn of<T: Stored>(x: &'a [T]) -> Widened<'a, R> {
        match R::same(x) {
            Some(same) => Widened::Same(same),
            None => Widened::Copy(Scratch::collect(x.len(), x.iter().map(|v| v.to()))),
        }
    }

    pub(crate) fn get(&self) -> &[R] {
        match self {
            Widened::Same(same) => same,
            Widened::Copy(copy) => copy,
        }
    }
}

/// Lets `f` write (or with `keep` add to) a result in the arithmetic's type and rounds it once to the
/// stored type.
pub(crate) fn narrow<T: Stored, R: Real, O>(y: &mut [T], keep: bool, f: impl FnOnce(&mut [R]) -> O) -> O {
    if let Some(same) = R::same_mut(y) {
        return f(same);
    }
    let mut wide = Scratch::filled(y.len(), R::ZERO);
    if keep {
        wide.iter_mut().zip(&*y).for_each(|(w, v)| *w = v.to());
    }
    let out = f(&mut wide);
    y.iter_mut().zip(&*wide).for_each(|(y, &w)| *y = T::from_number(w));
    out
}
