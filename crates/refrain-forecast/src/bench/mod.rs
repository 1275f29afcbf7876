//! The workloads that `refrain bench` times.

mod cross_asset;
mod field;
mod step;

pub use cross_asset::{CrossBench, CrossBenchOptions, CrossEpoch};
pub use field::{FieldBench, FieldEpoch, FieldOptions};
pub use step::{CrossSizes, StepBench, StepSizes};

use crate::Result;
use refrain::optim::{AdamWOptions, Schedule};
use refrain_nn::{AdamW, Parameters};

/// AdamW with weight decay 0.01, the gradients' norm clipped at 1.0.
fn optimizer(parameters: &Parameters, lr: f64) -> Result<AdamW> {
    let options = AdamWOptions { weight_decay: 0.01, ..AdamWOptions::default() };
    Ok(AdamW::new(parameters, options, Schedule::Constant { lr })?.clip_grad_norm(1.0)?)
}
