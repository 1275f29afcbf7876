//! The workloads that `refrain bench` times.

mod field;
mod step;

pub use field::{FieldBench, FieldEpoch, FieldOptions};
pub use step::{StepBench, StepSizes};

use crate::Result;
use crate::model::PatchTst;
use refrain::optim::{AdamWOptions, Schedule};
use refrain_nn::AdamW;

/// AdamW with weight decay 0.01, the gradients' norm clipped at 1.0.
fn optimizer(model: &PatchTst, lr: f64) -> Result<AdamW> {
    let options = AdamWOptions { weight_decay: 0.01, ..AdamWOptions::default() };
    Ok(AdamW::new(model.parameters(), options, Schedule::Constant { lr })?.clip_grad_norm(1.0)?)
}
