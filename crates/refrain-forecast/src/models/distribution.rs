//! Distributions that a model forecasts in each row, instead of one value.

use crate::Result;
use refrain::Tensor;

/// A distribution of the value in each row of the horizon. A model forecasts its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// Student's t distribution (Student, 1908) with a location, a scale and degrees of freedom above 2. The three values of
    /// a row are the location, the location plus the scale, and the location plus the scale times the degrees of freedom above
    /// 2. So if all three are shifted and scaled, as a model does to come back to the units of a window, the distribution is.
    StudentT,
}

impl Distribution {
    /// How many values a model forecasts in each row.
    pub fn values(self) -> usize {
        match self {
            Distribution::StudentT => 3,
        }
    }

    /// The values of each row, of any three numbers that a head gives for it: the location, and what the square-plus function
    /// (Barron, 2021) makes the scale and the degrees of freedom above 2, as in Hugging Face's transformers. Both are
    /// `[.., values * horizon]`, value after value.
    fn of_head(self, y: &Tensor) -> Result<Tensor> {
        let Distribution::StudentT = self;
        let horizon = y.dims().last().map_or(0, |rows| rows / self.values());
        let part = |at: usize| y.narrow(-1, at * horizon, horizon);
        let positive = |x: Tensor| x.add(&x.square()?.add_scalar(4.0)?.sqrt()?)?.mul_scalar(0.5);
        let (location, scale) = (part(0)?, positive(part(1)?)?);
        let above = positive(part(2)?)?.mul(&scale)?;
        Ok(Tensor::concat(&[&location, &location.add(&scale)?, &location.add(&above)?], -1)?)
    }
}

/// What a model forecasts, of what its head gives, both `[B, C, values * horizon]`.
pub(super) fn of_head(distribution: Option<Distribution>, y: Tensor) -> Result<Tensor> {
    match distribution {
        Some(distribution) => distribution.of_head(&y),
        None => Ok(y),
    }
}
