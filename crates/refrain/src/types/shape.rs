//! Shapes and axes.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::error::{Error, Result};

/// Dimensions and strides up to this rank need no heap memory.
pub(crate) const INLINE_RANK: usize = 6;

/// One number per dimension.
pub(crate) type Dims = SmallVec<[usize; INLINE_RANK]>;

/// The size of each dimension, outermost first. The shape of a scalar is empty.
///
/// Arrays, slices, vectors and single numbers convert to shapes:
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

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements of a tensor of this shape (1 for a scalar; at most `usize::MAX`).
    pub fn numel(&self) -> usize {
        self.0.iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    pub(crate) fn dims_mut(&mut self) -> &mut Dims {
        &mut self.0
    }

    /// Refuses the shape of a view (which may repeat memory) if its sizes, counts or strides overflow for some dtype.
    /// Every tensor has passed this or [`Shape::checked_numel`], so products of its sizes, also times the size of an
    /// element, do not overflow.
    pub(crate) fn check_view(&self, op: &'static str) -> Result<()> {
        const WIDEST: usize = 8;
        self.checked_numel(op, WIDEST).map(drop)
    }

    /// The number of elements, or an error if they do not fit into the address space.
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

    /// The shape that both broadcast to, as in NumPy.
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

/// The axis that `axis` names in a tensor of `rank` dimensions. A negative one counts from the end.
pub(crate) fn resolve_axis(op: &'static str, axis: isize, rank: usize) -> Result<usize> {
    let resolved = if axis < 0 { axis + rank as isize } else { axis };
    if rank == 0 {
        return Err(Error::invalid(op, format!("there is no axis {axis}, because a scalar has no axes")));
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

/// The axes of a reduction: `()` for all of them, one number, or several.
///
/// A negative number counts from the last axis.
#[derive(Clone, Debug)]
pub struct Axes(Option<SmallVec<[isize; INLINE_RANK]>>);

impl Axes {
    /// For each axis of a tensor of `rank` dimensions, whether the reduction runs over it.
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
