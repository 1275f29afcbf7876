//! The argument of a reshape: a shape of which one size may be left to compute.

use smallvec::{SmallVec, smallvec};

use super::shape::{INLINE_RANK, Shape};
use crate::error::{Error, Result};

/// What [`Tensor::reshape`](crate::Tensor::reshape) and [`Tensor::view`](crate::Tensor::view) take: everything that is a
/// [`Shape`], and sizes of which one is -1, which is computed from the number of elements.
///
/// Sizes that are variables have the type `usize`, so write them with a -1 in a tuple, whose entries may be of several types:
///
/// ```
/// use refrain::{DType, Device, Tensor};
/// let x = Tensor::arange(0.0, 24.0, 1.0, DType::F32, &Device::cpu())?;
/// assert_eq!(x.reshape([2, -1, 3])?.dims(), [2, 4, 3]);
/// let batch = 4usize;
/// assert_eq!(x.reshape((batch, -1))?.dims(), [4, 6]);
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NewShape(Sizes);

#[derive(Clone, Debug)]
enum Sizes {
    Known(Shape),
    /// With some -1, or another negative size, which [`NewShape::resolve`] refuses.
    Open(SmallVec<[isize; INLINE_RANK]>),
}

impl NewShape {
    /// The shape for a tensor of shape `of`.
    pub(crate) fn resolve(self, op: &'static str, of: &Shape) -> Result<Shape> {
        let sizes = match self.0 {
            Sizes::Known(shape) => return Ok(shape),
            Sizes::Open(sizes) => sizes,
        };
        let refuse = |why: &str| {
            let text = format!("a tensor of shape {of} can't have the shape {:?}: {why}", sizes.as_slice());
            Err(Error::invalid(op, text))
        };
        let open = sizes.iter().filter(|&&size| size < 0).count();
        if open > 1 || sizes.iter().any(|&size| size < -1) {
            return refuse("only one size may be -1, and none may be another negative number");
        }
        let rest =
            sizes.iter().filter(|&&size| size >= 0).try_fold(1usize, |n, &s| n.checked_mul(s as usize));
        match rest {
            _ if open == 0 => Ok(sizes.iter().map(|&size| size as usize).collect()),
            Some(rest) if rest > 0 && of.numel().is_multiple_of(rest) => {
                let computed = of.numel() / rest;
                Ok(sizes.iter().map(|&size| usize::try_from(size).unwrap_or(computed)).collect())
            }
            Some(0) => refuse("beside a size of 0, every number would do for -1; write the number"),
            _ => refuse("the other sizes do not divide the number of elements"),
        }
    }
}

impl From<Shape> for NewShape {
    fn from(shape: Shape) -> NewShape {
        NewShape(Sizes::Known(shape))
    }
}

impl From<&Shape> for NewShape {
    fn from(shape: &Shape) -> NewShape {
        shape.clone().into()
    }
}

impl From<()> for NewShape {
    fn from(_: ()) -> NewShape {
        Shape::default().into()
    }
}

impl<const N: usize> From<[usize; N]> for NewShape {
    fn from(sizes: [usize; N]) -> NewShape {
        Shape::from(sizes).into()
    }
}

impl<const N: usize> From<[i64; N]> for NewShape {
    fn from(sizes: [i64; N]) -> NewShape {
        NewShape(Sizes::Open(sizes.iter().map(|&size| size as isize).collect()))
    }
}

impl From<&[usize]> for NewShape {
    fn from(sizes: &[usize]) -> NewShape {
        Shape::from(sizes).into()
    }
}

impl From<Vec<usize>> for NewShape {
    fn from(sizes: Vec<usize>) -> NewShape {
        Shape::from(sizes).into()
    }
}

impl From<&[isize]> for NewShape {
    fn from(sizes: &[isize]) -> NewShape {
        NewShape(Sizes::Open(sizes.into()))
    }
}

impl<const N: usize> From<[isize; N]> for NewShape {
    fn from(sizes: [isize; N]) -> NewShape {
        NewShape::from(&sizes[..])
    }
}

// Numbers without a type of their own, as in `[2, -1]`, are i32.
impl<const N: usize> From<[i32; N]> for NewShape {
    fn from(sizes: [i32; N]) -> NewShape {
        NewShape(Sizes::Open(sizes.iter().map(|&size| size as isize).collect()))
    }
}

/// A size of a [`NewShape`]: a `usize` or `i64`, or -1 for the one that is computed.
#[derive(Clone, Copy, Debug)]
pub struct Size(isize);

impl From<usize> for Size {
    fn from(size: usize) -> Size {
        // No tensor is that large, and a reshape to it is refused.
        Size(size.try_into().unwrap_or(isize::MAX))
    }
}

impl From<isize> for Size {
    fn from(size: isize) -> Size {
        Size(size)
    }
}

impl From<i32> for Size {
    fn from(size: i32) -> Size {
        Size(size as isize)
    }
}

impl From<i64> for Size {
    fn from(size: i64) -> Size {
        // Below -1 and where no tensor is that large, a reshape is refused.
        Size(size.try_into().unwrap_or(if size < 0 { isize::MIN } else { isize::MAX }))
    }
}

impl<A: Into<Size>> From<A> for NewShape {
    fn from(size: A) -> NewShape {
        NewShape(Sizes::Open(smallvec![size.into().0]))
    }
}

/// Conversions of tuples of up to six things that convert to `$item`, by a function of the items.
macro_rules! from_tuples {
    ($target:ty, $item:ty, $make:expr) => {
        $crate::types::from_tuples!($target, $item, $make; [A] [A B] [A B C] [A B C D] [A B C D E] [A B C D E F]);
    };
    ($target:ty, $item:ty, $make:expr; $([$($name:ident)+])*) => {$(
        impl<$($name: Into<$item>),+> From<($($name,)+)> for $target {
            #[allow(non_snake_case)] // The names of the types are those of the values.
            fn from(($($name,)+): ($($name,)+)) -> $target {
                let make: fn(smallvec::SmallVec<[$item; 6]>) -> $target = $make;
                make(smallvec::smallvec![$($name.into()),+])
            }
        }
    )*};
}
pub(crate) use from_tuples;

from_tuples!(NewShape, Size, |sizes| NewShape(Sizes::Open(sizes.iter().map(|size| size.0).collect())));
