//! Masked pretraining: an encoder that learns to fill in patches that are hidden from it.

use super::{Encoder, Mode, PatchTstConfig};
use crate::Result;
use crate::models::ForecasterConfig;
use crate::models::checks::refuse;
use crate::models::revin::RevIn;
use crate::models::weights;
use refrain::{DType, Device, Generator, Tensor};
use refrain_nn::{Dropout, Linear, ModelSize, ParameterBuilder, Parameters};

/// A PatchTST that forecasts nothing: a linear head, which all patches share, maps each output of the encoder to the values of its
/// patch. Encoder and RevIN have the parameters of a [`PatchTst`](super::PatchTst) with the same settings, under the same names, so
/// it can begin with them ([`initialise`](crate::models::initialise)); only the head is another.
///
/// ```
/// use refrain::{Device, DType, Tensor};
/// use refrain_forecast::models::patchtst::{MaskedPatchTst, Mode, PatchTstConfig};
///
/// let config = PatchTstConfig { channels: 3, ..PatchTstConfig::small(24, 8, 8, 16, 2, 1, 32, 6) };
/// let model = MaskedPatchTst::new(config, DType::F32, &Device::cpu(), 42)?;
/// let x = Tensor::zeros([2, 3, 24], DType::F32, &Device::cpu())?;
/// let hidden = Tensor::from_slice(&[0.0f32, 1.0, 0.0], [1, 3], &Device::cpu())?; // the second of three patches
/// assert_eq!(model.errors(&x, &hidden, Mode::Eval)?.dims(), [2, 3, 3, 8]);
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
pub struct MaskedPatchTst {
    config: PatchTstConfig,
    parameters: Parameters,
    layers: Layers,
}

struct Layers {
    revin: Option<RevIn>,
    encoder: Encoder,
    dropout: Dropout,
    head: Linear,
}

impl Layers {
    fn declare(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Layers> {
        Ok(Layers {
            revin: config.revin(builder)?,
            encoder: Encoder::declare(builder, config)?,
            dropout: Dropout::new(config.head_dropout)?,
            head: Linear::new(&builder.scope("head"), config.d_model, config.patch)?,
        })
    }
}

impl MaskedPatchTst {
    /// A model with random weights, which depend only on the seed.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for invalid settings, past covariates, fewer than two patches, and patches that overlap: then what is
    /// hidden could be read from a neighbour. [`crate::Error::Engine`] if the device has not enough memory.
    pub fn new(config: PatchTstConfig, dtype: DType, device: &Device, seed: u64) -> Result<MaskedPatchTst> {
        MaskedPatchTst::check(&config)?;
        let builder = ParameterBuilder::new(device, dtype);
        let layers = Layers::declare(&builder, &config)?;
        let parameters = builder.build(&Generator::new(device, seed)?)?;
        layers.encoder.build(&config, dtype, device)?;
        Ok(MaskedPatchTst { config, parameters, layers })
    }

    /// Its size, computed without allocating it.
    ///
    /// # Errors
    /// [`crate::Error::Model`] as for [`MaskedPatchTst::new`].
    pub fn size(config: &PatchTstConfig) -> Result<ModelSize> {
        MaskedPatchTst::check(config)?;
        let of = |layers| -> Result<ModelSize> {
            let builder = ParameterBuilder::new(&Device::cpu(), DType::F32);
            Layers::declare(&builder, &PatchTstConfig { layers, ..config.clone() })?;
            Ok(builder.size())
        };
        Ok(ModelSize::with_layers(config.layers, of(1)?, of(2)?))
    }

    fn check(config: &PatchTstConfig) -> Result<()> {
        config.validate()?;
        let PatchTstConfig { patch, stride, .. } = *config;
        if stride < patch {
            let problem = format!(
                "patches of {patch} rows every {stride} overlap, so a hidden one could be read from another"
            );
            return refuse(problem, "choose a --stride that is as long as a --patch");
        }
        if config.past > 0 {
            return refuse("masked pretraining takes no covariates".to_owned(), "leave --past out");
        }
        match config.patches() {
            1 => refuse(
                "there is only one patch, and nothing to fill it in from".to_owned(),
                "choose a shorter --patch",
            ),
            _ => Ok(()),
        }
    }

    /// The parameters and running statistics.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The same, to change their groups.
    pub fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    /// SHA-256 over the names and f32 values of all parameters and running statistics.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the device cannot be read.
    pub fn weights_sha256(&self) -> Result<String> {
        weights::sha256(&self.parameters)
    }

    /// The settings.
    pub fn config(&self) -> &PatchTstConfig {
        &self.config
    }

    /// The values `[B, C, L]` of contexts in the patches `[B C, N, P]` that they are in.
    pub(crate) fn patches_of(&self, x: &Tensor) -> Result<Tensor> {
        self.layers.encoder.patches(x)
    }

    /// Hides the patches of contexts `[B, C, L]` where `hidden` (`[B C, N]` or `[1, N]`, in the dtype of the contexts) is 1, and
    /// fills in all: the squared errors `[B, C, N, P]` of every value, in units of the window's deviation if there is RevIN. A hidden
    /// patch is 0 for the encoder. The statistics of RevIN are those of the whole context.
    ///
    /// # Errors
    /// [`crate::Error::Model`] if the contexts have another shape than the model's windows; [`crate::Error::Engine`] if the mask has
    /// another shape, or the dtypes differ.
    pub fn errors(&self, x: &Tensor, hidden: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let batch = self.config.window().batch(x)?;
        let PatchTstConfig { channels, patch, .. } = self.config;
        let Layers { revin, encoder, dropout, head } = &self.layers;
        let x = match revin {
            Some(revin) => revin.normalise(x, None)?.0,
            None => x.clone(),
        };
        let patches = encoder.patches(&x)?; // [R, N, P]
        let shown = hidden.neg()?.add_scalar(1.0)?.unsqueeze(2)?;
        let h = encoder.forward(&patches.mul(&shown)?, channels, mode)?; // [R, T, D]
        // The token of `Pooling::Cls` has no patch.
        let count = patches.dims()[1];
        let h = h.narrow(1, h.dims()[1] - count, count)?;
        let filled = head.forward(&dropout.forward(&h, mode)?)?.to_dtype(x.dtype())?;
        Ok(filled.sub(&patches)?.square()?.reshape([batch, channels, count, patch])?)
    }
}
