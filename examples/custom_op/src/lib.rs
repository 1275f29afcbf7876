//! Operations of your own, in a crate of your own, without `unsafe`. It is a library; its tests run it: `cargo test -p custom-op`.
//!
//! - [`quantize`], [`reverse_gradient`] and [`logsumexp`] are composed of operations of `refrain`, with gradients of their own
//!   ([`refrain::custom_op`]).
//! - [`linear_recurrence`] has kernels of its own, for the CPU and for CUDA ([`refrain::custom`]). Composed of operations of
//!   `refrain`, it would be two launches for each time step.
//!
//! Saved values are watched, and a step that uses the operations is recorded and replayed, as with built-in operations.

mod composed;
mod recurrence;

pub use composed::{logsumexp, quantize, reverse_gradient};
pub use recurrence::{linear_recurrence, linear_recurrence_into};
