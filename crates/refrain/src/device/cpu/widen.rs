//! Operands of kernels that compute only in f32 or f64. f16 and bf16 are converted to f32 copies.

use half::{bf16, f16};

use super::numeric::{Real, Stored, with_stored};
use super::scratch::Scratch;
use crate::device::HostArgs;
use crate::error::Result;
use crate::types::DType;

/// Elements in the arithmetic type: the operand itself, or a copy of a narrower one.
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

    /// Operand `i` of a launch, of any stored dtype.
    pub(crate) fn operand(args: &HostArgs<'a>, i: usize) -> Result<Widened<'a, R>> {
        with_stored!(args.read_dtype(i), T => Ok(Widened::of::<T>(args.read(i)?)))
    }

    /// Operand `i` for a product in `dtype`: a wider one is rounded.
    pub(crate) fn rounded(args: &HostArgs<'a>, i: usize, dtype: DType) -> Result<Widened<'a, R>> {
        let x = Widened::operand(args, i)?;
        let round: fn(R) -> R = match dtype {
            _ if args.read_dtype(i) == dtype => return Ok(x),
            DType::F16 => |v| f16::from_number(v).to(),
            DType::BF16 => |v| bf16::from_number(v).to(),
            _ => return Ok(x),
        };
        let x = x.get();
        Ok(Widened::Copy(Scratch::collect(x.len(), x.iter().map(|&v| round(v)))))
    }

    pub(crate) fn get(&self) -> &[R] {
        match self {
            Widened::Same(same) => same,
            Widened::Copy(copy) => copy,
        }
    }
}

/// Lets `f` write a result in the arithmetic type (or, with `keep`, add to it), and rounds it once to the stored
/// type.
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

/// Like [`narrow`], for output `o` of a launch, of any stored dtype. If the launch accumulates, the old values are
/// kept.
pub(crate) fn output<R: Real, O>(args: &HostArgs<'_>, o: usize, f: impl FnOnce(&mut [R]) -> O) -> Result<O> {
    with_stored!(args.write_dtype(o), T => Ok(narrow(args.write::<T>(o)?, args.accumulate(o), f)))
}
