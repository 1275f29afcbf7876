//! Positions along an axis, as indexing operations take them: i64 or i32, counted from 0.

use smallvec::SmallVec;

use crate::device::cpu::numeric::Stored;
use crate::error::{Error, Result};
use crate::tensor::{DType, Dims, Shape, Tensor};

/// A position as it is stored.
pub(crate) trait Position: Stored + Into<i64> {
    /// Where it is; only of a position that [`check_range`] has let pass.
    #[inline(always)]
    fn place(self) -> usize {
        self.into() as usize
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

/// Every position lies in `0..count`; `what` says of what, such as `axis 1 of size 5`.
pub(crate) fn check_range<I: Position>(
    op: &'static str,
    index: &[I],
    shape: &Shape,
    count: usize,
    what: impl Fn() -> String,
) -> Result<()> {
    // A negative one is larger than any count.
    match index.iter().position(|&i| i.into() as u64 >= count as u64) {
        None => Ok(()),
        Some(at) => Err(Error::invalid(
            op,
            format!(
                "index {} at {:?} is out of range for {}; indices must lie in 0..{count}",
                index[at].into(),
                unravel(at, shape).as_slice(),
                what()
            ),
        )),
    }
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
pub(crate) fn unravel(n: usize, dims: &[usize]) -> Dims {
    let mut at: Dims = SmallVec::from_elem(0, dims.len());
    let mut rest = n;
    for (at, &d) in at.iter_mut().zip(dims).rev() {
        *at = rest % d;
        rest /= d;
    }
    at
}
