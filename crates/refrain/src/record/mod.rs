//! Recording a step once and replaying it.
//!
//! While a closure is recorded, the door collects its launches instead of running them, and the tensors that it makes
//! have no memory. The launches become a [`Program`]: unneeded launches are dropped, chains of elementwise launches are
//! fused, each temporary gets an offset in one block, and a launch waits only for launches with which it shares bytes. A replay runs the program over its
//! block; it does not call the closure.

mod changed;
mod dead;
mod digest;
mod edges;
mod entry;
mod false_dependencies;
mod fuse;
mod options;
mod outputs;
mod plan;
mod profile;
mod program;
mod recorded;
mod recorder;
mod replay;
mod rules;
mod send_step;
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
pub use send_step::SendStep;
pub use step::Step;
