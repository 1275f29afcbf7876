//! Operands of kernels that compute only in f32 or f64. f16 and bf16 are converted to f32 copies.

use half::{bf16, f16};

use super::numeric::{Number, Real, Stored, convert, store, with_stored};
use super::parallel;
use super::scratch::Scratch;
use super::simd::simd;
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
            None => {
                let mut copy = Scratch::new(x.len());
                convert_all(x, &mut copy);
                Widened::Copy(copy)
            }
        }
    }

    /// Operand `i` of a launch, of any stored dtype.
    pub(crate) fn operand(args: &HostArgs<'a>, i: usize) -> Result<Widened<'a, R>> {
        with_stored!(args.read_dtype(i), T => Ok(Widened::of::<T>(args.read(i)?)))
    }

    /// Operand `i` for a product in `dtype`: a wider one is rounded.
    pub(crate) fn rounded(args: &HostArgs<'a>, i: usize, dtype: DType) -> Result<Widened<'a, R>> {
        let x = Widened::operand(args, i)?;
        match dtype {
            _ if args.read_dtype(i) == dtype => Ok(x),
            DType::F16 => Ok(Widened::Copy(rounded_to::<f16, R>(x.get()))),
            DType::BF16 => Ok(Widened::Copy(rounded_to::<bf16, R>(x.get()))),
            _ => Ok(x),
        }
    }

    pub(crate) fn get(&self) -> &[R] {
        match self {
            Widened::Same(same) => same,
            Widened::Copy(copy) => copy,
        }
    }
}

/// Operand `i` of a product of bf16: itself, or a rounded copy of one in f32.
pub(crate) enum Bf16Operand<'a> {
    Same(&'a [bf16]),
    Copy(Scratch<bf16>),
}

impl<'a> Bf16Operand<'a> {
    pub(crate) fn of(args: &HostArgs<'a>, i: usize) -> Result<Bf16Operand<'a>> {
        if args.read_dtype(i) == DType::BF16 {
            return Ok(Bf16Operand::Same(args.read(i)?));
        }
        let x = args.read::<f32>(i)?;
        let mut copy = Scratch::new(x.len());
        convert_all(x, &mut copy);
        Ok(Bf16Operand::Copy(copy))
    }

    pub(crate) fn get(&self) -> &[bf16] {
        match self {
            Bf16Operand::Same(same) => same,
            Bf16Operand::Copy(copy) => copy,
        }
    }
}

/// A copy with the values that `T` can hold.
fn rounded_to<T: Stored, R: Real>(x: &[R]) -> Scratch<R> {
    let mut copy = Scratch::new(x.len());
    parallel::pieces(&mut copy, PIECE, |at, to| {
        simd(
            #[inline(always)]
            || to.iter_mut().zip(&x[at * PIECE..]).for_each(|(to, &v)| *to = T::from_number(v).to()),
        );
    });
    copy
}

/// Elements that a thread converts at a time.
const PIECE: usize = 1 << 12;

/// [`convert`] on all threads.
pub(crate) fn convert_all<T: Stored, N: Number>(from: &[T], to: &mut [N]) {
    parallel::pieces(to, PIECE, |at, to| convert(&from[at * PIECE..][..to.len()], to));
}

/// Lets `f` write a result in the arithmetic type (or, with `keep`, add to it), and rounds it once to the stored
/// type. Without `keep`, `f` gets unspecified elements and writes all of them.
pub(crate) fn narrow<T: Stored, R: Real, O>(y: &mut [T], keep: bool, f: impl FnOnce(&mut [R]) -> O) -> O {
    if let Some(same) = R::same_mut(y) {
        return f(same);
    }
    let mut wide = Scratch::new(y.len());
    if keep {
        convert_all(y, &mut wide);
    }
    let out = f(&mut wide);
    parallel::pieces(y, PIECE, |at, y| store(&wide[at * PIECE..][..y.len()], y, false));
    out
}

/// Like [`narrow`], for output `o` of a launch, of any stored dtype. If the launch accumulates, the old values are
/// kept.
pub(crate) fn output<R: Real, O>(args: &HostArgs<'_>, o: usize, f: impl FnOnce(&mut [R]) -> O) -> Result<O> {
    with_stored!(args.write_dtype(o), T => Ok(narrow(args.write::<T>(o)?, args.accumulate(o), f)))
}
