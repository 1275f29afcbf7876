//! TSMixer with covariates, the paper's TSMixer-Ext.

use super::TsMixerConfig;
use super::block::Norm;
use crate::Result;
use crate::data::windows::WindowCovariates;
use refrain::{Activation, Tensor};
use refrain_nn::{Dropout, Linear, Mode, ParameterBuilder};

/// Brings the past to the rows of the horizon, mixes covariates in, and maps the features of each row to the channels.
pub(super) struct Extended {
    /// From the rows of the context to those of the horizon, for each feature.
    align: Linear,
    past: FeatureMixing,
    future: Option<FeatureMixing>,
    blocks: Vec<(TimeMixing, FeatureMixing)>,
    head: Linear,
    context: usize,
}

impl Extended {
    pub(super) fn new(builder: &ParameterBuilder, config: &TsMixerConfig) -> Result<Extended> {
        let TsMixerConfig { channels, context, horizon, past, future, d_model, .. } = *config;
        let mixing = |scope: &ParameterBuilder, inputs| FeatureMixing::new(scope, config, inputs);
        let mut width = d_model;
        let of_future = match future {
            0 => None,
            _ => {
                width += d_model;
                Some(mixing(&builder.scope("future"), future)?)
            }
        };
        let block = |layer: usize| -> Result<(TimeMixing, FeatureMixing)> {
            let scope = builder.scope("layers").scope(layer);
            let inputs = if layer == 0 { width } else { d_model };
            Ok((
                TimeMixing::new(&scope.scope("time"), config, inputs)?,
                mixing(&scope.scope("features"), inputs)?,
            ))
        };
        Ok(Extended {
            align: Linear::new(&builder.scope("align"), context, horizon)?,
            past: mixing(&builder.scope("past"), channels + past + future)?,
            future: of_future,
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
            head: Linear::new(&builder.scope("head"), d_model, channels)?,
            context,
        })
    }

    /// `[B, C, L]` to `[B, C, H]`.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        covariates: &WindowCovariates,
        mode: Mode<'_>,
    ) -> Result<Tensor> {
        let statics = covariates.statics.as_ref();
        let known = covariates.future.as_ref().map(|of| of.narrow(-1, 0, self.context)).transpose()?;
        let all: Vec<&Tensor> =
            [Some(x), covariates.past.as_ref(), known.as_ref()].into_iter().flatten().collect();
        let aligned = self.align.forward(&Tensor::concat(&all, 1)?)?; // [B, C + P + F, H]
        let mut h = self.past.forward(&aligned.transpose(1, 2)?, statics, mode)?; // [B, H, D]
        if let (Some(mixing), Some(future)) = (&self.future, &covariates.future) {
            let rows = future.dims()[2] - self.context;
            let ahead = future.narrow(-1, self.context, rows)?;
            // A loss with several values forecasts the rows of each, one after another.
            let values = aligned.dims()[2] / rows;
            let ahead = Tensor::concat(&vec![&ahead; values], 2)?.transpose(1, 2)?; // [B, H, F]
            h = Tensor::concat(&[&h, &mixing.forward(&ahead, statics, mode)?], 2)?;
        }
        for (time, features) in &self.blocks {
            h = features.forward(&time.forward(&h, mode)?, statics, mode)?;
        }
        Ok(self.head.forward(&h)?.transpose(1, 2)?.to_dtype(x.dtype())?)
    }
}

/// A residual linear layer along the rows, which the features share.
struct TimeMixing {
    linear: Linear,
    norm: Norm,
    activation: Activation,
    dropout: Dropout,
}

impl TimeMixing {
    fn new(builder: &ParameterBuilder, config: &TsMixerConfig, features: usize) -> Result<TimeMixing> {
        let rows = config.horizon;
        Ok(TimeMixing {
            linear: Linear::new(&builder.scope("linear"), rows, rows)?,
            norm: Norm::new(&builder.scope("norm"), config.norm, rows * features)?,
            activation: config.activation.into(),
            dropout: Dropout::new(config.dropout)?,
        })
    }

    /// `[B, T, F]` to the same shape.
    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let mixed = self.linear.forward_with(&x.transpose(1, 2)?, self.activation, None)?;
        let mixed = self.dropout.forward(&mixed, mode)?.transpose(1, 2)?;
        self.norm.forward(&mixed.add(&x.to_dtype(mixed.dtype())?)?, mode)
    }
}

/// A residual feed-forward network along the features of each row and the static covariates, which the rows share.
struct FeatureMixing {
    statics: Option<Linear>,
    up: Linear,
    down: Linear,
    /// Of the input, where it has another width than the output.
    skip: Option<Linear>,
    norm: Norm,
    activation: Activation,
    dropout: Dropout,
}

impl FeatureMixing {
    fn new(builder: &ParameterBuilder, config: &TsMixerConfig, inputs: usize) -> Result<FeatureMixing> {
        let TsMixerConfig { horizon, statics, d_model, ffn, .. } = *config;
        let linear = |name, inputs, outputs| Linear::new(&builder.scope(name), inputs, outputs);
        let of_statics = (statics > 0).then(|| linear("statics", statics, d_model)).transpose()?;
        let inputs = inputs + if statics > 0 { d_model } else { 0 };
        Ok(FeatureMixing {
            statics: of_statics,
            up: linear("up", inputs, ffn)?,
            down: linear("down", ffn, d_model)?,
            skip: (inputs != d_model).then(|| linear("skip", inputs, d_model)).transpose()?,
            norm: Norm::new(&builder.scope("norm"), config.norm, horizon * d_model)?,
            activation: config.activation.into(),
            dropout: Dropout::new(config.dropout)?,
        })
    }

    /// `[B, T, F]` and the static covariates `[B, S]` to `[B, T, D]`.
    fn forward(&self, x: &Tensor, statics: Option<&Tensor>, mode: Mode<'_>) -> Result<Tensor> {
        let mut x = x.clone();
        if let (Some(linear), Some(statics), &[batch, rows, _]) = (&self.statics, statics, x.dims()) {
            let of_series = linear.forward_with(statics, self.activation, None)?.unsqueeze(1)?; // [B, 1, D]
            let width = of_series.dims()[2];
            let repeated = of_series.broadcast_to([batch, rows, width])?;
            x = Tensor::concat(&[&x.to_dtype(repeated.dtype())?, &repeated], 2)?;
        }
        let hidden = self.up.forward_with(&x, self.activation, None)?;
        let mixed = self.down.forward(&self.dropout.forward(&hidden, mode)?)?;
        let mixed = self.dropout.forward(&mixed, mode)?;
        let skip = match &self.skip {
            Some(linear) => linear.forward(&x)?,
            None => x.to_dtype(mixed.dtype())?,
        };
        self.norm.forward(&mixed.add(&skip)?, mode)
    }
}
