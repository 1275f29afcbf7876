//! Operations for optimisers. Each updates whole flat buffers in one launch.
//!
//! All parameters of a model are in one flat buffer, their gradients in a second one, and the moments of an optimiser
//! in others of the same length and dtype. A [`SegmentTable`] says how each range of elements is updated. What
//! changes from step to step (the number of steps done, the learning rate, the gradient scale) is on the device, too,
//! in tensors of shape `[1]`. The step counter is i64; the others are f64, whatever the dtype of the parameters.
//!
//! A gradient scale of minus infinity skips a step: gradients become zero and nothing else changes, also if gradients are not
//! finite. So the device alone decides whether to do a step.
//!
//! ```
//! use refrain::optim::{self, AdamWBuffers, AdamWOptions, Schedule, Segment, SegmentTable};
//! use refrain::{DType, Device, Tensor};
//!
//! let device = Device::cpu();
//! let parameters = Tensor::from_slice(&[1.0f32, -2.0], [2], &device)?;
//! let gradients = Tensor::from_slice(&[3.0f32, 4.0], [2], &device)?;
//! let (exp_avg, exp_avg_sq) = (parameters.zeros_like()?, parameters.zeros_like()?);
//! let step = Tensor::zeros([1], DType::I64, &device)?;
//! let segments = SegmentTable::new(&[Segment::new(0, 2)], &device)?;
//!
//! let (norm, gradient_scale) = optim::clip_coefficient(&gradients, 1.0)?;
//! assert_eq!(norm.to_vec::<f64>()?, [5.0]);
//! let learning_rate = optim::learning_rate(Schedule::Constant { lr: 0.1 }, &step)?;
//! optim::adamw(
//!     AdamWOptions::default(),
//!     AdamWBuffers {
//!         parameters: &parameters,
//!         gradients: &gradients,
//!         exp_avg: &exp_avg,
//!         exp_avg_sq: &exp_avg_sq,
//!         step: &step,
//!         learning_rate: &learning_rate,
//!         gradient_scale: &gradient_scale,
//!         segments: &segments,
//!     },
//! )?;
//! step.add_scalar_assign(1.0)?;
//! assert_eq!(gradients.to_vec::<f32>()?, [0.0, 0.0]);
//! # Ok::<(), refrain::Error>(())
//! ```

mod adam;
mod clip;
mod cuda;
mod lion;
mod rmsprop;
mod schedule;
mod segments;
mod sgd;
mod sweep;

pub use adam::{AdamOptions, AdamWBuffers, AdamWOptions, adam, adamw};
pub use clip::{clip_coefficient, clip_coefficient_into};
pub use lion::{LionBuffers, LionOptions, lion};
pub use rmsprop::{RmsPropBuffers, RmsPropOptions, rmsprop};
pub use schedule::{Schedule, learning_rate, learning_rate_into};
pub use segments::{Segment, SegmentTable};
pub use sgd::{SgdBuffers, SgdOptions, sgd};

use super::spans_apart;
use crate::error::{Error, Result};
use crate::tensor::{DType, Shape, Tensor};

/// Checks a tensor of shape `[1]` that controls a step.
fn check_control(op: &'static str, role: &str, t: &Tensor, dtype: DType) -> Result<()> {
    if t.dims() != [1] {
        return Err(Error::shapes(op, t.shape(), &Shape::from(1), format!("the {role} is one element")));
    }
    t.require_dtype(op, role, dtype)
}

/// Checks that flat buffers match: contiguous, of one length and one floating-point dtype, without common memory.
fn check_flat(op: &'static str, buffers: &[&Tensor]) -> Result<()> {
    for (i, t) in buffers.iter().enumerate() {
        t.require_float(op)?;
        if t.shape() != buffers[0].shape() || t.rank() != 1 {
            return Err(Error::shapes(
                op,
                buffers[0].shape(),
                t.shape(),
                "flat buffers have one dimension and one length",
            ));
        }
        super::check_dtypes(op, buffers[0], t)?;
        if !t.is_contiguous() {
            return Err(Error::invalid(
                op,
                format!(
                    "buffer {i} has strides {:?}; pass a contiguous buffer, because this works in place",
                    t.strides()
                ),
            ));
        }
        if let Some(j) = buffers[..i].iter().position(|other| !spans_apart(other, t)) {
            return Err(Error::Aliased {
                op,
                message: format!("buffers {j} and {i} share memory; each needs its own memory"),
            });
        }
    }
    Ok(())
}

/// Checks that a hyper-parameter is in its range.
fn check_option(op: &'static str, name: &str, value: f64, valid: bool, range: &str) -> Result<()> {
    if valid && value.is_finite() {
        return Ok(());
    }
    Err(Error::invalid(op, format!("{name} is {value}; it must be {range}")))
}
