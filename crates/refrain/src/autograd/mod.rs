//! The tape: a define-by-run record of operations, and the backward pass over it.

mod backward;
mod check;
mod grad_mode;
mod lineage;
mod node;
mod outside;

pub use check::gradcheck;
pub(crate) use grad_mode::with_grad_mode;
pub use grad_mode::{is_grad_enabled, no_grad};

pub(crate) use backward::Gradients;
pub(crate) use lineage::check_operands;
pub(crate) use node::{
    Differentiable, History, Recording, Saves, check_destination, check_in_place, check_untaped, wrote_into,
};
pub(crate) use outside::{Outside, RecordedTape, check_input};
