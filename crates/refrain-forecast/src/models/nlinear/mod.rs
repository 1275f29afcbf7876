//! NLinear: Zeng, Chen, Zhang and Xu, "Are Transformers Effective for Time Series Forecasting?", AAAI 2023.

#[cfg(test)]
mod tests;

use crate::Result;
use crate::models::channel_linear::ChannelLinear;
use crate::models::checks::check_sizes;
use crate::models::distribution::{Distribution, of_head};
use crate::models::{About, ChannelUse, CovariateKinds, Forecaster, ForecasterConfig, WindowShape};
use crate::settings::{Values, settings};
use refrain::{DType, Device, Generator, Tensor};
use refrain_nn::{Mode, ModelSize, ParameterBuilder, Parameters};
use serde_json::json;

settings! {
    /// The settings of an [`NLinear`].
    pub struct NLinearConfig {
        /// Number of channels. Each is forecast from its own past.
        pub channels: usize;
        /// Rows that the model sees before a forecast.
        pub context: usize;
        /// Rows of a forecast.
        pub horizon: usize;
        /// Give each channel its own linear layer.
        pub individual: bool = false, "BOOL";
    }
}

/// A linear layer from the context to the horizon. The last value of the context is subtracted before the layer and added
/// again after it, so the level of the series does not matter.
///
/// ```
/// use refrain::{Device, DType, Tensor};
/// use refrain_forecast::models::nlinear::{NLinear, NLinearConfig};
/// use refrain_forecast::models::{Forecaster, Mode};
///
/// let config = NLinearConfig { channels: 3, context: 24, horizon: 6, individual: false };
/// let model = NLinear::new(config, DType::F32, &Device::cpu(), 42)?;
/// let x = Tensor::zeros([2, 3, 24], DType::F32, &Device::cpu())?;
/// assert_eq!(model.forward(&x, Mode::Eval)?.dims(), [2, 3, 6]);
/// assert_eq!(model.parameter_count(), 24 * 6 + 6);
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
pub struct NLinear {
    config: NLinearConfig,
    parameters: Parameters,
    linear: ChannelLinear,
    distribution: Option<Distribution>,
}

impl NLinearConfig {
    fn linear(&self, builder: &ParameterBuilder) -> Result<ChannelLinear> {
        let sizes = [self.channels, self.context, self.horizon];
        ChannelLinear::new(&builder.scope("linear"), sizes, self.individual)
    }
}

impl NLinear {
    /// A model with random weights, which depend only on the seed. The layer starts as in PyTorch.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for invalid settings, [`crate::Error::Engine`] if the device has not enough memory.
    pub fn new(config: NLinearConfig, dtype: DType, device: &Device, seed: u64) -> Result<NLinear> {
        config.validate()?;
        let builder = ParameterBuilder::new(device, dtype);
        let linear = config.linear(&builder)?;
        let parameters = builder.build(&Generator::new(device, seed)?)?;
        Ok(NLinear { config, parameters, linear, distribution: None })
    }
}

impl Forecaster for NLinear {
    fn name(&self) -> &str {
        NLinearConfig::about().title
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
        let last = x.narrow(-1, self.config.context - 1, 1)?.detach(); // [B, C, 1]
        let change = self.linear.forward(&x.sub(&last)?, batch)?; // [B, C, H]
        Ok(of_head(self.distribution, change.to_dtype(x.dtype())?)?.add(&last)?)
    }
}

impl ForecasterConfig for NLinearConfig {
    fn about() -> About {
        let training: Values = [("lr".to_owned(), json!(5e-3))].into_iter().collect();
        About {
            title: "NLinear",
            does: "forecasts series by one linear layer, relative to the last value",
            presets: &[],
            training,
            covariates: CovariateKinds::NONE,
        }
    }

    fn window(&self) -> WindowShape {
        WindowShape { channels: self.channels, context: self.context, horizon: self.horizon }
    }

    fn validate(&self) -> Result<()> {
        check_sizes(&[("channels", self.channels), ("context", self.context), ("horizon", self.horizon)])
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
        self.linear(&builder)?;
        Ok(builder.size())
    }

    fn activations(&self, windows: usize) -> f64 {
        let of = |size: usize| size as f64;
        of(windows) * of(self.channels) * (2.0 * of(self.context) + 4.0 * of(self.horizon))
    }

    fn summary(&self) -> String {
        format!("a linear layer {}", if self.individual { "a channel" } else { "for all channels" })
    }

    fn build(&self, dtype: DType, device: &Device, seed: u64) -> Result<Box<dyn Forecaster>> {
        Ok(Box::new(NLinear::new(self.clone(), dtype, device, seed)?))
    }
}
