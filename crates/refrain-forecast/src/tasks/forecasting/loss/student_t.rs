//! The negative log-likelihood of Student's t distribution (Student, 1908).

use super::ErrorLoss;
use crate::Result;
use crate::models::Distribution;
use crate::settings::settings;
use crate::tasks::forecasting::Levels;
use refrain::{DType, Tensor};

/// The smallest scale, in standard deviations of the channel.
const LEAST: f64 = 1e-6;

settings! {
    /// The mean of `-ln p(truth)` over all true values, where `p` is the density of [Student's t
    /// distribution](Distribution::StudentT) that a model forecasts for each row. Of the three values `a`, `b` and `c`, the location is
    /// `a`, the scale `|b - a|` (at least 1e-6, in standard deviations of the channel), and there are `2 + |c - a| / scale` degrees of
    /// freedom.
    pub struct StudentT {
        /// The levels of the intervals, which are quantiles of the distribution. There may be none.
        pub levels: Levels;
    }
}

impl ErrorLoss for StudentT {
    fn title(&self) -> &'static str {
        "Student-t loss"
    }

    fn levels(&self) -> &Levels {
        &self.levels
    }

    fn distribution(&self) -> Option<Distribution> {
        Some(Distribution::StudentT)
    }

    fn terms(&self) -> usize {
        1
    }

    fn mean(&self, forecast: &Tensor, truth: &Tensor) -> Result<Tensor> {
        Ok(self.of_errors(&forecast.sub(truth)?)?.mean(())?)
    }

    /// `[.., 3, horizon]` to `[.., 1, horizon]`. Computed in f64, since the logarithms of gamma functions of many degrees of
    /// freedom almost cancel.
    fn of_errors(&self, errors: &Tensor) -> Result<Tensor> {
        let wide = errors.to_dtype(DType::F64)?;
        let value = |at: usize| wide.narrow(-2, at, 1);
        let error = value(0)?;
        let (scale, freedom) = shape(&value(1)?.sub(&error)?, &value(2)?.sub(&error)?)?;
        let half = freedom.mul_scalar(0.5)?;
        let ratio = error.div(&scale)?.square()?.div(&freedom)?.log1p()?;
        let power = half.add_scalar(0.5)?;
        let normal = half.lgamma()?.sub(&power.lgamma()?)?;
        let normal = normal.add(&freedom.mul_scalar(std::f64::consts::PI)?.log()?.mul_scalar(0.5)?)?;
        Ok(normal.add(&scale.log()?)?.add(&power.mul(&ratio)?)?.to_dtype(errors.dtype())?)
    }

    /// The location, which is also the median.
    fn median(&self, forecasts: &Tensor) -> Result<Tensor> {
        Ok(forecasts.narrow(-2, 0, 1)?)
    }
}

/// The scale and the degrees of freedom, from the differences of the second and the third value to the location.
fn shape(of_scale: &Tensor, of_freedom: &Tensor) -> Result<(Tensor, Tensor)> {
    let scale = of_scale.abs()?.maximum_scalar(LEAST)?;
    let freedom = of_freedom.abs()?.div(&scale)?.add_scalar(2.0)?;
    Ok((scale, freedom))
}

/// The scale and the degrees of freedom of the three values of one row.
pub(in crate::tasks::forecasting) fn shape_of([location, of_scale, of_freedom]: [f64; 3]) -> [f64; 2] {
    let apart = (of_scale - location).abs();
    // Not `max`, which would hide a NaN.
    let scale = if apart < LEAST { LEAST } else { apart };
    [scale, (of_freedom - location).abs() / scale + 2.0]
}
