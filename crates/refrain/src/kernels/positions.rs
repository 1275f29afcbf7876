//! Indices along an axis: i64 or i32, counted from 0.

use super::numbers::Numbers;
use crate::device::HostArgs;
use crate::device::cpu::numeric::Stored;
use crate::device::cpu::simd::simd;
use crate::error::{Error, Result};
use crate::tensor::{DType, Shape, Tensor};

/// A stored index.
pub(crate) trait Position: Stored + Into<i64> {
    /// The index as a number. `None` if it is not in `0..count`, which [`check_range`] has reported.
    #[inline(always)]
    fn within(self, count: usize) -> Option<usize> {
        // A negative index becomes larger than any count.
        let place = self.into() as u64;
        (place < count as u64).then_some(place as usize)
    }
}
impl Position for i64 {}
impl Position for i32 {}

/// Runs an expression with `$index` as the indices of operand `$i` in their stored type.
macro_rules! with_positions {
    ($args:expr, $i:expr, $index:ident => $body:expr) => {
        match $args.read_dtype($i) {
            $crate::tensor::DType::I32 => {
                let $index = $args.read::<i32>($i)?;
                $body
            }
            _ => {
                let $index = $args.read::<i64>($i)?;
                $body
            }
        }
    };
}
pub(crate) use with_positions;

/// Checks that indices are i64 or i32. `role` says in an error what they are.
pub(crate) fn require_positions(op: &'static str, role: &str, index: &Tensor) -> Result<()> {
    let lhs = index.dtype();
    if matches!(lhs, DType::I64 | DType::I32) {
        return Ok(());
    }
    let hint = format!("the {role} must be i64 or i32; convert with to_dtype(DType::I64) first");
    Err(Error::DTypeMismatch { op, lhs, rhs: DType::I64, hint })
}

/// Checks that every index of operand `i` is in `0..count`. `what` describes the range, for example `axis 1 of size
/// 5`. On the CPU, the kernel ends here if one is not. On a simulated GPU it continues, as on CUDA, with [`missing`]
/// or without those indices.
pub(crate) fn check_range<I: Position>(
    args: &HostArgs<'_>,
    i: usize,
    index: &[I],
    count: usize,
    what: impl Fn() -> String,
) -> Result<()> {
    match first_outside(index, count) {
        None => Ok(()),
        Some(at) => args.fault(Error::invalid(
            args.op(),
            format!(
                "index {} at {:?} is out of range for {}; indices must lie in 0..{count}",
                index[at].into(),
                &*unravel(at, args.read_shape(i)),
                what()
            ),
        )),
    }
}

/// Where the first index is that is not in `0..count`.
fn first_outside<I: Position>(index: &[I], count: usize) -> Option<usize> {
    /// Indices that are checked at a time, without branches.
    const CHECKED: usize = 256;
    let is_outside = |i: I| i.into() as u64 >= count as u64;
    let chunk = simd(
        #[inline(always)]
        || {
            index.chunks(CHECKED).position(
                #[inline(always)]
                |chunk| chunk.iter().fold(false, |found, &i| found | is_outside(i)),
            )
        },
    )?;
    let within = index[chunk * CHECKED..].iter().position(|&i| is_outside(i))?;
    Some(chunk * CHECKED + within)
}

/// `y[i] = x[index[i]]`, [`missing`] for an index out of range. `y` is not longer than the index.
pub(crate) fn pick<T: Stored, I: Position>(x: &[T], index: &[I], y: &mut [T]) {
    /// Some at a time: a loop over one costs as much as the one.
    const AT_ONCE: usize = 8;
    let one = |i: I| i.within(x.len()).map_or_else(missing, |i| x[i]);
    let ((index, last), (y, last_y)) =
        (index[..y.len()].as_chunks::<AT_ONCE>(), y.as_chunks_mut::<AT_ONCE>());
    for (y, index) in y.iter_mut().zip(index) {
        for l in 0..AT_ONCE {
            y[l] = one(index[l]);
        }
    }
    last_y.iter_mut().zip(last).for_each(|(y, &i)| *y = one(i));
}

/// The value for an index out of range: NaN, or 0 for dtypes without NaN.
#[cold]
#[inline(never)]
pub(crate) fn missing<T: Stored>() -> T {
    T::from_number(f64::NAN)
}

/// Checks that the range is not empty. This part of [`check_range`] does not depend on the values of indices, so every
/// device can report it.
pub(crate) fn check_places(
    op: &'static str,
    index: &Shape,
    count: usize,
    what: impl Fn() -> String,
) -> Result<()> {
    match count == 0 && index.numel() > 0 {
        false => Ok(()),
        true => Err(Error::invalid(
            op,
            format!("an index of shape {index} is out of range for {}, which has no places", what()),
        )),
    }
}

/// Goes on to the coordinates of the next element of a row-major tensor with sizes `dims`; after the last one, to the first.
pub(crate) fn advance(at: &mut [usize], dims: &[usize]) {
    for (at, &d) in at.iter_mut().zip(dims).rev() {
        *at += 1;
        if *at < d {
            return;
        }
        *at = 0;
    }
}

/// The coordinates of element `n` of a row-major tensor with sizes `dims`. None of the sizes is 0.
pub(crate) fn unravel(n: usize, dims: &[usize]) -> Numbers {
    let mut at = Numbers::zeros(dims.len());
    let mut rest = n;
    for (at, &d) in at.iter_mut().zip(dims).skip(1).rev() {
        *at = rest % d;
        rest /= d;
    }
    // What is left, without a division.
    at.iter_mut().take(1).for_each(|at| *at = rest);
    at
}
