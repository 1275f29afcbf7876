//! `t.i((.., 0, 2..5))`: several views in one call.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use smallvec::{SmallVec, smallvec};

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::types::from_tuples;

const OP: &str = "i";

/// What [`Tensor::i`] takes of one axis: an index, or a range of them. They are `usize`, `isize`, `i64` or numbers without a type
/// of their own; a negative one counts from the end.
#[derive(Clone, Copy, Debug)]
pub struct AxisIndex(Taken);

#[derive(Clone, Copy, Debug)]
enum Taken {
    One(isize),
    Range(Bound<isize>, Bound<isize>),
}

/// No axis is that long, so an index beyond `isize` is out of range as it should be.
fn signed(index: usize) -> isize {
    index.try_into().unwrap_or(isize::MAX)
}

macro_rules! indices {
    ($($number:ty, $signed:expr;)*) => {$(
        impl From<$number> for AxisIndex {
            fn from(index: $number) -> AxisIndex {
                AxisIndex(Taken::One($signed(index)))
            }
        }
        indices!(
            $signed; Range<$number>, RangeFrom<$number>, RangeTo<$number>, RangeInclusive<$number>, RangeToInclusive<$number>
        );
    )*};
    ($signed:expr; $($range:ty),*) => {$(
        impl From<$range> for AxisIndex {
            fn from(range: $range) -> AxisIndex {
                let bound = |bound: Bound<&_>| bound.map(|&index| $signed(index));
                AxisIndex(Taken::Range(bound(range.start_bound()), bound(range.end_bound())))
            }
        }
    )*};
}
// Numbers without a type of their own, as in `2..-1`, are i32.
indices! {
    usize, signed;
    isize, isize::from;
    i32, |index: i32| index as isize;
    i64, |index: i64| isize::try_from(index).unwrap_or(if index < 0 { isize::MIN } else { isize::MAX });
}

impl From<RangeFull> for AxisIndex {
    fn from(_: RangeFull) -> AxisIndex {
        AxisIndex(Taken::Range(Bound::Unbounded, Bound::Unbounded))
    }
}

/// What [`Tensor::i`] takes of the first axes: one [`AxisIndex`], or a tuple of them.
#[derive(Clone, Debug)]
pub struct Index(SmallVec<[AxisIndex; 6]>);

impl<A: Into<AxisIndex>> From<A> for Index {
    fn from(index: A) -> Index {
        Index(smallvec![index.into()])
    }
}

from_tuples!(Index, AxisIndex, Index);

impl Tensor {
    /// A part of the tensor, without moving data. The index says for each of the first axes which index
    /// ([`Tensor::select`], which removes the axis) or range ([`Tensor::narrow`]) to take; other axes stay whole. A negative index
    /// counts from the end, also as an end of a range. (Clippy takes a range such as `1..-1` for an empty one; write `1..size - 1`.)
    ///
    /// ```
    /// use refrain::{Device, DType, Tensor};
    /// let x = Tensor::arange(0.0, 24.0, 1.0, DType::F32, &Device::cpu())?.reshape([2, 3, 4])?;
    /// assert_eq!(x.i((.., 0, 2..4))?.to_vec::<f32>()?, [2.0, 3.0, 14.0, 15.0]);
    /// assert_eq!(x.i(1)?.dims(), [3, 4]);
    /// assert_eq!(x.i((.., 1.., ..=0))?.dims(), [2, 2, 1]);
    /// assert_eq!(x.i((-1, -1, -3..-1))?.to_vec::<f32>()?, [21.0, 22.0]); // as x[-1, -1, -3:-1]
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the index has more entries than the tensor has axes, or reaches beyond an axis, or a range ends before it begins.
    pub fn i(&self, index: impl Into<Index>) -> Result<Tensor> {
        let Index(index) = index.into();
        if index.len() > self.rank() {
            let message = format!("{} entries for a tensor of shape {}", index.len(), self.shape());
            return Err(Error::invalid(OP, message));
        }
        let mut part = self.clone();
        // The axis of the part that the next entry is about.
        let mut axis = 0;
        for (at, AxisIndex(taken)) in index.into_iter().enumerate() {
            let size = self.dims()[at];
            let beyond = |what: String| {
                let message =
                    format!("{what} for axis {at} of size {size}, of a tensor of shape {}", self.shape());
                Error::invalid(OP, message)
            };
            match taken {
                Taken::One(index) => {
                    let inside = from_start(index, size).filter(|&index| index < size);
                    let index = inside.ok_or_else(|| beyond(format!("index {index} is out of range")))?;
                    part = part.select(axis, index)?;
                }
                Taken::Range(Bound::Unbounded, Bound::Unbounded) => axis += 1,
                Taken::Range(from, to) => {
                    let start = match from {
                        Bound::Included(start) => from_start(start, size),
                        Bound::Excluded(before) => from_start(before, size).map(|before| before + 1),
                        Bound::Unbounded => Some(0),
                    };
                    let end = match to {
                        Bound::Included(last) => from_start(last, size).map(|last| last + 1),
                        Bound::Excluded(end) => from_start(end, size),
                        Bound::Unbounded => Some(size),
                    };
                    let range = start.zip(end).filter(|(start, end)| start <= end && *end <= size);
                    let (start, end) = range.ok_or_else(|| beyond(described(from, to)))?;
                    part = part.narrow(axis, start, end - start)?;
                    axis += 1;
                }
            }
        }
        Ok(part)
    }
}

/// The index counted from the start of an axis, if it is not before it.
fn from_start(index: isize, size: usize) -> Option<usize> {
    if index < 0 { size.checked_add_signed(index) } else { Some(index as usize) }
}

fn described(from: Bound<isize>, to: Bound<isize>) -> String {
    let start = match from {
        Bound::Included(n) | Bound::Excluded(n) => n.to_string(),
        Bound::Unbounded => String::new(),
    };
    let end = match to {
        Bound::Included(n) => format!("={n}"),
        Bound::Excluded(n) => n.to_string(),
        Bound::Unbounded => String::new(),
    };
    format!("the range {start}..{end} is out of range")
}
