//! The quantile loss, or pinball loss (Koenker and Bassett, "Regression Quantiles", 1978), of several quantiles at once.

use super::ErrorLoss;
use crate::settings::settings;
use crate::tasks::forecasting::Levels;
use crate::{Error, Result};
use refrain::Tensor;

settings! {
    /// The mean of `max((1 - q) e, -q e)` over all errors `e = forecast - truth` and all quantiles `q` of the levels, which
    /// include the median. It is least where a share `q` of the true values lies below the forecast.
    pub struct Quantile {
        /// The levels of the intervals. There is at least one.
        pub levels: Levels;
    }
}

impl ErrorLoss for Quantile {
    fn title(&self) -> &'static str {
        "quantile loss"
    }

    fn levels(&self) -> &Levels {
        &self.levels
    }

    fn mean(&self, forecast: &Tensor, truth: &Tensor) -> Result<Tensor> {
        Ok(self.of_errors(&forecast.sub(truth)?)?.mean(())?)
    }

    /// `[.., quantiles, horizon]`. With `max(e, 0) - q e`, one form serves both signs.
    fn of_errors(&self, errors: &Tensor) -> Result<Tensor> {
        // They are filled on the device, since a recorded step uploads nothing.
        let quantiles = self.levels.quantiles();
        let scalar = |q: &f64| Tensor::full([1, 1], *q, errors.dtype(), errors.device());
        let quantiles = quantiles.iter().map(scalar).collect::<refrain::Result<Vec<_>>>()?;
        let q = Tensor::concat(&quantiles, 0)?; // [quantiles, 1]
        Ok(errors.relu()?.sub(&errors.mul(&q)?)?)
    }

    fn validate(&self) -> Result<()> {
        if !self.levels.is_empty() {
            return Ok(());
        }
        let problem = "the quantile loss has no levels".to_owned();
        Err(Error::Training { problem, fix: "choose the intervals in percent, such as --levels 80,90" })
    }
}
