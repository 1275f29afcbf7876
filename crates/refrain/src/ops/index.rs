//! `t.i((.., 0, 2..5))`: several views in one call.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use smallvec::{SmallVec, smallvec};

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::types::from_tuples;

const OP: &str = "i";

/// What [`Tensor::i`] takes of one axis: a place (a `usize`), or a range of places.
#[derive(Clone, Copy, Debug)]
pub struct AxisIndex(Taken);

#[derive(Clone, Copy, Debug)]
enum Taken {
    Place(usize),
    Places(Bound<usize>, Bound<usize>),
}

impl From<usize> for AxisIndex {
    fn from(place: usize) -> AxisIndex {
        AxisIndex(Taken::Place(place))
    }
}

macro_rules! ranges {
    ($($range:ty),*) => {$(
        impl From<$range> for AxisIndex {
            fn from(range: $range) -> AxisIndex {
                AxisIndex(Taken::Places(range.start_bound().cloned(), range.end_bound().cloned()))
            }
        }
    )*};
}
ranges!(
    RangeFull,
    Range<usize>,
    RangeFrom<usize>,
    RangeTo<usize>,
    RangeInclusive<usize>,
    RangeToInclusive<usize>
);

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
    /// A part of the tensor, without moving data. The index says for each of the first axes which place
    /// ([`Tensor::select`], which removes the axis) or range of places ([`Tensor::narrow`]) to take; other axes stay whole.
    ///
    /// ```
    /// use refrain::{Device, DType, Tensor};
    /// let x = Tensor::arange(0.0, 24.0, 1.0, DType::F32, &Device::cpu())?.reshape([2, 3, 4])?;
    /// assert_eq!(x.i((.., 0, 2..4))?.to_vec::<f32>()?, [2.0, 3.0, 14.0, 15.0]);
    /// assert_eq!(x.i(1)?.dims(), [3, 4]);
    /// assert_eq!(x.i((.., 1.., ..=0))?.dims(), [2, 2, 1]);
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
                Taken::Place(place) if place < size => part = part.select(axis, place)?,
                Taken::Place(place) => return Err(beyond(format!("place {place} is out of range"))),
                Taken::Places(Bound::Unbounded, Bound::Unbounded) => axis += 1,
                Taken::Places(from, to) => {
                    let start = match from {
                        Bound::Included(start) => Some(start),
                        Bound::Excluded(before) => before.checked_add(1),
                        Bound::Unbounded => Some(0),
                    };
                    let end = match to {
                        Bound::Included(last) => last.checked_add(1),
                        Bound::Excluded(end) => Some(end),
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

fn described(from: Bound<usize>, to: Bound<usize>) -> String {
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
