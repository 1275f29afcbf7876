//! The workloads that `refrain bench` times. The tests of `refrain-forecast` include this folder, so it uses public items
//! alone.

mod cross_asset;
mod shared_step;
mod step;
mod training;
pub mod walks;

pub use cross_asset::{CrossBench, CrossBenchOptions};
pub use shared_step::{Repeats, SharedStep};
pub use step::{CrossSizes, ForecasterSizes, StepBench, StepSizes, Workload};
pub use training::{Nothing, TrainingBench};
pub use walks::{WalkBench, WalkOptions};
