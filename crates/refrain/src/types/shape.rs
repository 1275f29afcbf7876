//! Shapes and axes.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::error::{Error, Result};

/// Dimensions and strides up to this rank need no heap memory.
pub(crate) const INLINE_RANK: usize = 6;

/// Numbers, one a dimension.
pub(crate) type Dims = SmallVec<[usize; INLINE_RANK]>;

/// The size of each dimension, outermost first. The shape of a scalar is empty.
///
/// Made from arrays, slices, vectors and single numbers:
///
/// ```
/// use refrain::Shape;
/// let s: Shape = [2, 3, 4].into();
/// assert_eq!((s.rank(), s.numel(), s[1]), (3, 24, 3));
/// assert_eq!(s.to_string(), "[2, 3, 4]");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Shape {
    /// The sizes.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// How many dimensions there are.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// How many elements a tensor of this shape has (1 for a scalar; at most `usize::MAX`).
    pub fn numel(&self) -> usize {
        self.0.iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    pub(crate) fn dims_mut(&mut self) -> &mut Dims {
        &mut self.0
    }

    /// Refuses a shape of which sizes, counts and strides would not fit in a number, whatever the dtype: that of a view,
    /// which repeats memory. Every tensor has passed this or [`Shape::checked_numel`], so that products of its
    /// sizes, and those times the size of an element, don't overflow.
    pub(crate) fn check_view(&self, op: &'static str) -> Result<()> {
        const WIDEST: usize = 8;
        self.checked_numel(op, WIDEST).map(drop)
    }

    /// The element count, or an error where it does not fit in memory's address range.
    pub(crate) fn checked_numel(&self, op: &'static str, size: usize) -> Result<usize> {
        let mut bytes = size;
        for &d in self.0.iter().filter(|&&d| d != 0) {
            bytes = bytes.checked_mul(d).filter(|&b| b <= isize::MAX as usize).ok_or_else(|| {
                Error::invalid(
                    op,
                    format!("a tensor of shape {self} is larger than the address space; use a smaller shape"),
                )
            })?;
        }
        Ok(self.numel())
    }

    /// The shape that both broadcast to by NumPy's rules.
    pub(crate) fn broadcast(op: &'static str, a: &Shape, b: &Shape) -> Result<Shape> {
        let rank = a.rank().max(b.rank());
        let mut out = Dims::with_capacity(rank);
        for i in 0..rank {
            let pick = |s: &Shape| (i + s.rank()).checked_sub(rank).map_or(1, |j| s.0[j]);
            out.push(match (pick(a), pick(b)) {
                (x, y) if x == y => x,
                (1, y) => y,
                (x, 1) => x,
                _ => {
                    return Err(Error::shapes(
                        op,
                        a,
                        b,
                        "these shapes do not broadcast: each pair of trailing sizes must be equal or 1",
                    ));
                }
            });
        }
        Ok(Shape(out))
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.as_slice())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<usize> for Shape {
    fn from(n: usize) -> Shape {
        Shape(Dims::from_slice(&[n]))
    }
}
impl From<()> for Shape {
    fn from(_: ()) -> Shape {
        Shape::default()
    }
}
impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape(Dims::from_slice(&dims))
    }
}
impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape(Dims::from_slice(dims))
    }
}
impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        Shape(Dims::from_vec(dims))
    }
}
impl From<&Shape> for Shape {
    fn from(s: &Shape) -> Shape {
        s.clone()
    }
}
impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Shape {
        Shape(iter.into_iter().collect())
    }
}

/// The axis that `axis` names in a tensor of `rank` dimensions; negative ones count from the end.
pub(crate) fn resolve_axis(op: &'static str, axis: isize, rank: usize) -> Result<usize> {
    let resolved = if axis < 0 { axis + rank as isize } else { axis };
    if rank == 0 {
        return Err(Error::invalid(op, format!("axis {axis} of a scalar, which has no axes")));
    }
    if resolved < 0 || resolved >= rank as isize {
        return Err(Error::invalid(
            op,
            format!(
                "axis {axis} is out of range for a tensor of {rank} dimensions; use one from {} to {}",
                -(rank as isize),
                rank as isize - 1
            ),
        ));
    }
    Ok(resolved as usize)
}

/// Which axes a reduction runs over: `()` for all of them, one number, or several.
///
/// Negative numbers count from the last axis.
#[derive(Clone, Debug)]
pub struct Axes(Option<SmallVec<[isize; INLINE_RANK]>>);

impl Axes {
    /// A flag for each axis of a tensor of `rank` dimensions: does the reduction run over it?
    pub(crate) fn resolve(&self, op: &'static str, rank: usize) -> Result<SmallVec<[bool; INLINE_RANK]>> {
        let Some(axes) = &self.0 else {
            return Ok(SmallVec::from_elem(true, rank));
        };
        let mut reduced = SmallVec::from_elem(false, rank);
        for &axis in axes {
            let axis = resolve_axis(op, axis, rank)?;
            if std::mem::replace(&mut reduced[axis], true) {
                return Err(Error::invalid(
                    op,
                    format!("axis {axis} is named twice in {axes:?}; name each axis once"),
                ));
            }
        }
        Ok(reduced)
    }
}

impl From<()> for Axes {
    fn from(_: ()) -> Axes {
        Axes(None)
    }
}
impl From<isize> for Axes {
    fn from(axis: isize) -> Axes {
        Axes(Some(SmallVec::from_slice(&[axis])))
    }
}
impl<const N: usize> From<[isize; N]> for Axes {
    fn from(axes: [isize; N]) -> Axes {
        Axes(Some(SmallVec::from_slice(&axes)))
    }
}
impl From<&[isize]> for Axes {
    fn from(axes: &[isize]) -> Axes {
        Axes(Some(SmallVec::from_slice(axes)))
    }
}
