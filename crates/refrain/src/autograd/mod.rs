//! The tape: a define-by-run record of operations, and the way of a backward pass over it.
//!
//! What a tensor keeps of it lies in `tensor/`; the operations that add gradients up, in `operation/`.

mod backward;
mod grad_mode;
mod leaf;
mod lineage;
mod outside;
mod tape;
mod watched;

pub(crate) use grad_mode::with_grad_mode;
pub use grad_mode::{is_grad_enabled, no_grad};

pub(crate) use crate::tensor::{Differentiable, Gradients, Saves};
pub(crate) use backward::pass_from;
pub(crate) use lineage::{check_current, check_operands};
pub(crate) use outside::{Outside, RecordedTape, begins_backward, check_input};
pub(crate) use tape::{TapeEntry, check_destination, check_in_place, check_untaped, wrote_into};
pub(crate) use watched::{HistoriesDiffer, WatchedHistories};
