//! What elements are and where they lie: dtypes, shapes, layouts, and the precision of products.

mod dtype;
mod layout;
mod new_shape;
mod precision;
mod range;
mod shape;

pub use dtype::{DType, Element, bf16, f16};
pub(crate) use layout::{CHANNELS_FIRST, Layout, PIXELS_FIRST, row_major};
pub(crate) use new_shape::from_tuples;
pub use new_shape::{NewShape, Size};
pub use precision::Precision;
pub use shape::{Axes, Shape};
pub(crate) use shape::{Dims, resolve_axis};
