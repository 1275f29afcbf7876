//! DLinear: Zeng, Chen, Zhang and Xu, "Are Transformers Effective for Time Series Forecasting?", AAAI 2023.

#[cfg(test)]
mod tests;

use crate::Result;
use crate::models::channel_linear::ChannelLinear;
use crate::models::checks::{check_sizes, refuse};
use crate::models::distribution::{Distribution, of_head};
use crate::models::{About, ChannelUse, CovariateKinds, Forecaster, ForecasterConfig, WindowShape};
use crate::settings::{Values, settings};
use refrain::{DType, Device, Generator, Pool1dOptions, Tensor};
use refrain_nn::{Mode, ModelSize, ParameterBuilder, Parameters};
use serde_json::json;

settings! {
    /// The settings of a [`DLinear`].
    pub struct DLinearConfig {
        /// Number of channels. Each is forecast from its own past.
        pub channels: usize;
        /// Rows that the model sees before a forecast.
        pub context: usize;
        /// Rows of a forecast.
        pub horizon: usize;
        /// Rows of the moving average that is the trend; an odd number.
        pub moving_average: usize = 25, "ROWS";
        /// Give each channel its own linear layer.
        pub individual: bool = false, "BOOL";
    }
}

/// The context is split into a trend, its moving average, and the rest. Each has a linear layer to the horizon; the forecast is
/// their sum. Before its first and after its last row the context goes on with that row, so the trend is as long as the context.
///
/// ```
/// use refrain::{Device, DType, Tensor};
/// use refrain_forecast::models::dlinear::{DLinear, DLinearConfig};
/// use refrain_forecast::models::{Forecaster, Mode};
///
/// let config = DLinearConfig { channels: 3, context: 24, horizon: 6, moving_average: 5, individual: false };
/// let model = DLinear::new(config, DType::F32, &Device::cpu(), 42)?;
/// let x = Tensor::zeros([2, 3, 24], DType::F32, &Device::cpu())?;
/// assert_eq!(model.forward(&x, Mode::Eval)?.dims(), [2, 3, 6]);
/// assert_eq!(model.parameter_count(), 2 * (24 * 6 + 6));
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
pub struct DLinear {
    config: DLinearConfig,
    parameters: Parameters,
    layers: Layers,
    distribution: Option<Distribution>,
}

struct Layers {
    trend: ChannelLinear,
    rest: ChannelLinear,
}

impl DLinearConfig {
    fn layers(&self, builder: &ParameterBuilder) -> Result<Layers> {
        let sizes = [self.channels, self.context, self.horizon];
        let linear = |name| ChannelLinear::new(&builder.scope(name), sizes, self.individual);
        Ok(Layers { trend: linear("trend")?, rest: linear("rest")? })
    }

    /// The moving average of each row of `[B, C, context]`.
    fn trend(&self, x: &Tensor) -> Result<Tensor> {
        let (side, last) = (self.moving_average / 2, self.context - 1);
        if side == 0 {
            return Ok(x.clone());
        }
        let repeated = |row: usize| -> Result<Tensor> {
            Ok(x.narrow(-1, row, 1)?.broadcast_to([x.dims()[0], self.channels, side])?)
        };
        let padded = Tensor::concat(&[&repeated(0)?, x, &repeated(last)?], -1)?;
        let options = Pool1dOptions { stride: 1, ..Pool1dOptions::new(self.moving_average) };
        Ok(padded.avg_pool1d(&options)?)
    }
}

impl DLinear {
    /// A model with random weights, which depend only on the seed. The layers start as in PyTorch.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for invalid settings, [`crate::Error::Engine`] if the device has not enough memory.
    pub fn new(config: DLinearConfig, dtype: DType, device: &Device, seed: u64) -> Result<DLinear> {
        config.validate()?;
        let builder = ParameterBuilder::new(device, dtype);
        let layers = config.layers(&builder)?;
        let parameters = builder.build(&Generator::new(device, seed)?)?;
        Ok(DLinear { config, parameters, layers, distribution: None })
    }
}

impl Forecaster for DLinear {
    fn name(&self) -> &str {
        DLinearConfig::about().title
    }

    fn window(&self) -> WindowShape {
        self.config.window()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn set_distribution(&mut self, distribution: Option<Distribution>) -> Result<()> {
        self.distribution = distribution;
        Ok(())
    }

    fn forward(&self, x: &Tensor, _: Mode<'_>) -> Result<Tensor> {
        let batch = self.window().batch(x)?;
        let trend = self.config.trend(x)?;
        let rest = x.sub(&trend)?;
        let trend = self.layers.trend.forward(&trend, batch)?.to_dtype(x.dtype())?;
        let rest = self.layers.rest.forward(&rest, batch)?.to_dtype(x.dtype())?;
        of_head(self.distribution, trend.add(&rest)?)
    }
}

impl ForecasterConfig for DLinearConfig {
    fn about() -> About {
        let training: Values = [("lr".to_owned(), json!(5e-3))].into_iter().collect();
        About {
            title: "DLinear",
            does: "forecasts series by two linear layers, of the trend and of the rest",
            presets: &[],
            training,
            covariates: CovariateKinds::NONE,
        }
    }

    fn window(&self) -> WindowShape {
        WindowShape { channels: self.channels, context: self.context, horizon: self.horizon }
    }

    fn validate(&self) -> Result<()> {
        check_sizes(&[
            ("channels", self.channels),
            ("context", self.context),
            ("horizon", self.horizon),
            ("moving_average", self.moving_average),
        ])?;
        if self.moving_average.is_multiple_of(2) {
            let problem =
                format!("a moving average of {} rows has no row in its middle", self.moving_average);
            return refuse(problem, "choose an odd number such as 25");
        }
        Ok(())
    }

    fn channel_use(&self) -> ChannelUse {
        match self.individual {
            true => ChannelUse::Own,
            false => ChannelUse::Shared,
        }
    }

    fn size(&self) -> Result<ModelSize> {
        self.validate()?;
        let builder = ParameterBuilder::new(&Device::cpu(), DType::F32);
        DLinearConfig::layers(self, &builder)?;
        Ok(builder.size())
    }

    fn activations(&self, windows: usize) -> f64 {
        let of = |size: usize| size as f64;
        // The context with its ends, the trend and the rest.
        let context = 3.0 * of(self.context) + of(self.moving_average);
        of(windows) * of(self.channels) * (context + 4.5 * of(self.horizon))
    }

    fn summary(&self) -> String {
        let of = if self.individual { "a channel" } else { "for all channels" };
        format!("two linear layers {of}, trend over {} rows", self.moving_average)
    }

    fn build(&self, dtype: DType, device: &Device, seed: u64) -> Result<Box<dyn Forecaster>> {
        Ok(Box::new(DLinear::new(self.clone(), dtype, device, seed)?))
    }
}
