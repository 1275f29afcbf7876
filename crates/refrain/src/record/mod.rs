//! Recording a step once and replaying it.
//!
//! While a closure is recorded, the door puts its launches on a list instead of running them, and tensors that it
//! makes have no memory. The list becomes a [`Program`]: launches that nobody needs go, each temporary gets a place
//! in one block, and launches wait for one another only where the bytes that they touch demand it. A replay runs
//! the program over its block; the closure is not called.

mod dead;
mod edges;
mod options;
mod outputs;
mod plan;
mod profile;
mod program;
mod recorded;
mod recorder;
mod replay;
#[cfg(test)]
pub(crate) mod simulated;
mod step;
#[cfg(test)]
mod tests;
mod verify;
mod view;

pub use options::{Fallback, StepOptions};
pub use outputs::Outputs;
pub use profile::{ProfileLine, StepProfile};
pub use program::Program;
pub use step::Step;
