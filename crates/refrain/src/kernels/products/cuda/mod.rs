//! Matrix products on CUDA: by cuBLASLt if it is installed and the product suits it, otherwise by our own kernels.
//!
//! The choice of kernel and tiles is a function of the product's sizes, strides, dtypes and precision, of the GPU's
//! compute capability and of the library's version. It never depends on timing, so results are bitwise repeatable.

mod choice;
mod plan;
mod shared;
mod stages;
mod tail;
mod whole_rows;

/// Forms of numbers on tensor cores, for kernels that have tiles of their own.
pub(crate) const FORMS: &str = include_str!("forms.cu");
/// Products of tiles in shared memory. It follows [`FORMS`] and the types of the tiles.
pub(crate) const FRAGMENTS: &str = include_str!("fragments.cu");
/// Tiles in the order that groups of warps expect. It follows [`FORMS`] and the instructions of groups.
pub(crate) const SWIZZLE: &str = include_str!("swizzle.cu");

pub(crate) use plan::{Followers, own_workspace, run, run_own, sums_beside, workspace};
pub(crate) use stages::{Stage, feeds, run_stages};
pub(crate) use tail::{Tail, reads, takes_norm, takes_tail};
