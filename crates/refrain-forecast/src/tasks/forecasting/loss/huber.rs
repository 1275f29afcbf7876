//! The Huber loss (Huber, 1964): squares for small errors, straight lines for large ones.

use super::ErrorLoss;
use crate::settings::settings;
use crate::{Error, Result};
use refrain::Tensor;

settings! {
    /// The mean of `e^2 / 2` where `|e| < delta`, and of `delta (|e| - delta / 2)` elsewhere, over all errors `e`.
    pub struct Huber {
        /// The Huber loss is linear above this error, in standard deviations of the channel.
        pub delta: f64 = 1.0, "ERROR";
    }
}

impl ErrorLoss for Huber {
    fn title(&self) -> &'static str {
        "Huber loss"
    }

    fn mean(&self, forecast: &Tensor, truth: &Tensor) -> Result<Tensor> {
        Ok(forecast.huber_loss(truth, self.delta)?)
    }

    fn of_errors(&self, errors: &Tensor) -> Result<Tensor> {
        let size = errors.abs()?;
        let small = size.clamp(0.0, self.delta)?;
        // s (|e| - s / 2) with s = min(|e|, delta) is both branches.
        Ok(size.sub(&small.mul_scalar(0.5)?)?.mul(&small)?)
    }

    fn validate(&self) -> Result<()> {
        if self.delta > 0.0 && self.delta.is_finite() {
            return Ok(());
        }
        let problem = format!("the delta of the Huber loss is {}", self.delta);
        Err(Error::Training { problem, fix: "choose a positive number such as 1" })
    }
}
