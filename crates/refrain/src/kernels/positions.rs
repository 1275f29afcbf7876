//! Positions along an axis, as indexing operations take them: i64 or i32, counted from 0.

use super::numbers::Numbers;
use crate::device::HostArgs;
use crate::device::cpu::numeric::Stored;
use crate::error::{Error, Result};
use crate::tensor::{DType, Shape, Tensor};

/// A position as it is stored.
pub(crate) trait Position: Stored + Into<i64> {
    /// Where it is; `None` if it does not lie in `0..count`, which [`check_range`] has told.
    #[inline(always)]
    fn within(self, count: usize) -> Option<usize> {
        // A negative one is larger than any count.
        let place = self.into() as u64;
        (place < count as u64).then_some(place as usize)
    }
}
impl Position for i64 {}
impl Position for i32 {}

/// Runs an expression with `$index` standing for the positions of operand `$i`, as they are stored.
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

/// Positions are i64 or i32.
pub(crate) fn require_positions(op: &'static str, index: &Tensor) -> Result<()> {
    match index.dtype() {
        DType::I32 => Ok(()),
        _ => index.require_dtype(op, DType::I64),
    }
}

/// Every position of operand `i`, `index`, lies in `0..count`; `what` says of what, such as `axis 1 of size 5`. Where
/// one does not, the kernel ends here on the CPU. On a simulated GPU it goes on, as it does on CUDA, with [`missing`]
/// or without those positions.
pub(crate) fn check_range<I: Position>(
    args: &HostArgs<'_>,
    i: usize,
    index: &[I],
    count: usize,
    what: impl Fn() -> String,
) -> Result<()> {
    match index.iter().position(|i| i.within(count).is_none()) {
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

/// What stands where a position out of range was to be read: NaN, or 0 where there is none.
pub(crate) fn missing<T: Stored>() -> T {
    T::from_number(f64::NAN)
}

/// No position lies in an empty range, whatever its value: what of [`check_range`] can be told on any device.
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

/// The coordinates of element `n` of a row-major tensor with sizes `dims`, none of which is 0.
pub(crate) fn unravel(n: usize, dims: &[usize]) -> Numbers {
    let mut at = Numbers::zeros(dims.len());
    let mut rest = n;
    for (at, &d) in at.iter_mut().zip(dims).rev() {
        *at = rest % d;
        rest /= d;
    }
    at
}
