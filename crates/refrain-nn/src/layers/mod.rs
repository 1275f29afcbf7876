//! Layers. Each declares its parameters when it is made and computes in `forward`.

mod attention;
mod dropout;
mod encoder;
mod linear;
mod norm;

pub use attention::{AttentionOptions, MultiHeadAttention};
pub use dropout::Dropout;
pub use encoder::{EncoderDropout, TransformerEncoderLayer, TransformerEncoderOptions};
pub use linear::Linear;
pub use norm::{BatchNorm, LayerNorm, NormKind, RmsNorm};

use refrain::Generator;

/// Whether a model trains or is used.
#[derive(Clone, Copy)]
pub enum Mode<'a> {
    /// Dropout drops, its masks drawn from the generator; batch norm uses and gathers the batch's statistics.
    Train(&'a Generator),
    /// Dropout does nothing, and batch norm uses the statistics gathered.
    Eval,
}

impl Mode<'_> {
    /// Whether this is training.
    pub fn is_training(&self) -> bool {
        matches!(self, Mode::Train(_))
    }
}
