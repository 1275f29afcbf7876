//! Layers, optimisers, schedules and checkpoints.
//!
//! Layers declare their parameters under dotted names with a [`ParameterBuilder`]; [`ParameterBuilder::build`]
//! then puts all of them into one flat buffer and their gradients into a second, so that an optimiser's step
//! is one launch.
//!
//! ```
//! use refrain::optim::{AdamWOptions, Schedule};
//! use refrain::{DType, Device, Generator, Tensor};
//! use refrain_nn::{AdamW, Linear, Optimizer, ParameterBuilder};
//!
//! let device = Device::cpu();
//! let generator = Generator::new(&device, 42)?;
//! let builder = ParameterBuilder::new(&device, DType::F32);
//! let layer = Linear::new(&builder.scope("head"), 3, 1)?;
//! let parameters = builder.build(&generator)?;
//! assert_eq!(parameters.names().collect::<Vec<_>>(), ["head.weight", "head.bias"]);
//!
//! let optimizer = AdamW::new(&parameters, AdamWOptions::default(), Schedule::Constant { lr: 0.1 })?
//!     .clip_grad_norm(1.0)?;
//! let (x, y) = (generator.normal([8, 3], DType::F32)?, Tensor::zeros([8, 1], DType::F32, &device)?);
//! let mut losses = Vec::new();
//! for _ in 0..20 {
//!     let loss = layer.forward(&x)?.sub(&y)?.square()?.mean(())?;
//!     loss.backward()?;
//!     optimizer.step()?;
//!     losses.push(loss.to_scalar::<f32>()?);
//! }
//! assert!(losses[19] < losses[0]);
//! # Ok::<(), refrain_nn::Error>(())
//! ```

pub mod checkpoint;
mod error;
mod init;
mod layers;
mod optim;
mod parameters;

pub use checkpoint::{Checkpoint, Snapshot};
pub use error::{Error, Result};
pub use init::Init;
pub use layers::{
    AttentionOptions, BatchNorm, Dropout, EncoderDropout, LayerNorm, Linear, Mode, MultiHeadAttention,
    NormKind, RmsNorm, TransformerEncoderLayer, TransformerEncoderOptions,
};
pub use optim::{AdamW, Optimizer, Sgd, StepState};
pub use parameters::{Declared, Group, ModelSize, ParameterBuilder, Parameters};
