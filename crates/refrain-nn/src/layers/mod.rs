//! Layers. A layer declares its parameters in its constructor and computes in `forward`.

mod attention;
mod cache;
mod conv;
mod cross_attention;
mod dropout;
mod embedding;
mod encoder;
mod group_norm;
mod lambda;
mod linear;
mod module;
mod norm;
mod recurrent;
mod resize;
mod rotary;

/// Layers print as their trees.
macro_rules! printed {
    ($($layer:ty),*) => {$(
        impl std::fmt::Display for $layer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&crate::Layers::layers(self), f)
            }
        }

        impl std::fmt::Debug for $layer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}
printed!(
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    BatchNorm,
    Conv1d,
    Conv2d,
    ConvTranspose1d,
    ConvTranspose2d,
    CrossAttention,
    Dropout
);
printed!(
    Embedding, Flatten, Gru, GruCell, GroupNorm, Lambda, LayerNorm, Linear, Lstm, LstmCell, MaxPool1d,
    MaxPool2d, Mlp
);
printed!(MultiHeadAttention, RmsNorm, Rotary, Sequential, TransformerEncoderLayer, Upsample);

pub use attention::{AttentionContext, AttentionOptions, MultiHeadAttention};
pub use cache::KeyValueCache;
pub use conv::{
    AvgPool1d, AvgPool2d, Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d, MaxPool1d, MaxPool2d,
};
pub use cross_attention::{CrossAttention, CrossAttentionOptions};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use encoder::{EncoderDropout, TransformerEncoderLayer, TransformerEncoderOptions};
pub use group_norm::GroupNorm;
pub use lambda::{Flatten, Lambda};
pub use linear::Linear;
pub use module::{Mlp, Module, Sequential};
pub use norm::{BatchNorm, LayerNorm, NormKind, RmsNorm};
pub use recurrent::{Gru, GruCell, Lstm, LstmCell, LstmState};
pub use resize::{AdaptiveAvgPool1d, AdaptiveAvgPool2d, Upsample};
pub use rotary::{Rotary, RotaryOptions};

use refrain::Generator;

/// Whether a model trains or predicts (`train()` and `eval()` of PyTorch).
#[derive(Clone, Copy)]
pub enum Mode<'a> {
    /// Dropout is on and draws its masks from the generator. Batch norm uses the statistics of the batch and updates
    /// the running ones.
    Train(&'a Generator),
    /// Dropout is off. Batch norm uses the running statistics.
    Eval,
}

impl Mode<'_> {
    /// Whether this is training.
    pub fn is_training(&self) -> bool {
        matches!(self, Mode::Train(_))
    }

    /// The generator of random numbers, while this is training: for what a model draws itself, such as masks and noise.
    pub fn generator(&self) -> Option<&Generator> {
        match self {
            Mode::Train(generator) => Some(generator),
            Mode::Eval => None,
        }
    }
}
