//! The mean absolute error.

use super::ErrorLoss;
use crate::Result;
use crate::settings::settings;
use refrain::Tensor;

settings! {
    /// The mean of `|e|` over all errors `e`; its derivative at 0 is 0.
    pub struct Mae {}
}

impl ErrorLoss for Mae {
    fn title(&self) -> &'static str {
        "MAE"
    }

    fn mean(&self, forecast: &Tensor, truth: &Tensor) -> Result<Tensor> {
        Ok(forecast.l1_loss(truth)?)
    }

    fn of_errors(&self, errors: &Tensor) -> Result<Tensor> {
        Ok(errors.abs()?)
    }
}
