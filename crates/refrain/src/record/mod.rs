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
mod threads;
mod verify;
mod view;

pub use options::{Fallback, StepOptions};
pub use outputs::Outputs;
pub use profile::{ProfileLine, StepProfile};
pub use program::Program;
pub use step::Step;
pub use threads::unrelated_to_recordings;

pub(crate) use recorder::{Birth, birth, current, drawn, drew, forbid, launch, overwritten_by};
pub(crate) use replay::{Bound, Executable, LaunchByLaunch, Ready};
pub(crate) use threads::{Touched, enter};
