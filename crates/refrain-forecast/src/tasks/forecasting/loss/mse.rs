//! The mean squared error.

use super::ErrorLoss;
use crate::Result;
use crate::settings::settings;
use refrain::Tensor;

settings! {
    /// The mean of `e^2` over all errors `e`.
    pub struct Mse {}
}

impl ErrorLoss for Mse {
    fn title(&self) -> &'static str {
        "MSE"
    }

    fn mean(&self, forecast: &Tensor, truth: &Tensor) -> Result<Tensor> {
        Ok(forecast.mse_loss(truth)?)
    }

    fn of_errors(&self, errors: &Tensor) -> Result<Tensor> {
        Ok(errors.square()?)
    }
}
