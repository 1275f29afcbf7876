//! Layers, optimisers, learning rate schedules and checkpoints for models on [`refrain`].
//!
//! A model is a struct of layers. Each layer declares its parameters with a [`ParameterBuilder`], under dotted names such
//! as `head.weight`. [`ParameterBuilder::build`] then puts all parameters into one flat buffer and all gradients into a
//! second one. So an optimiser updates the whole model in one launch, and gradients never move.
//!
//! # Map
//!
//! | you want to | use |
//! | --- | --- |
//! | declare and hold parameters | [`ParameterBuilder`], [`Parameter`], [`Parameters`], [`Init`] |
//! | build a model | [`Linear`], [`Embedding`], [`Mlp`], [`Conv1d`], [`Conv2d`], [`ConvTranspose1d`], [`ConvTranspose2d`], [`MaxPool1d`], [`MaxPool2d`], [`AvgPool1d`], [`AvgPool2d`], [`AdaptiveAvgPool1d`], [`AdaptiveAvgPool2d`], [`Upsample`], [`Gru`], [`Lstm`], [`Rotary`], [`MultiHeadAttention`], [`CrossAttention`], [`KeyValueCache`], [`TransformerEncoderLayer`], [`LayerNorm`], [`RmsNorm`], [`BatchNorm`], [`GroupNorm`], [`Dropout`], [`Flatten`]; [`Lambda`] (any function), [`Sequential`] and the trait [`Module`] |
//! | look at a model | derive [`Layers`](trait@Layers) for it: it prints as a tree of layers; [`Parameters`] prints as a table of layers, shapes and counts |
//! | find out in which layer an error happened | [`Error`] says it; your own layers do so with [`in_layer`] |
//! | say whether the model trains or predicts | [`Mode`] |
//! | update the parameters | [`AdamW`], [`Adam`], [`Sgd`], [`RmsProp`], [`Lion`], the trait [`Optimizer`]; [`LearningRate`], [`Plateau`]; schedules are [`refrain::optim::Schedule`] |
//! | take shuffled batches | [`Batches`]; [`Prefetch`] reads ahead what does not fit on the device |
//! | count what a classifier gets right | [`ConfusionMatrix`] |
//! | treat some parameters differently | [`Parameters::set_group`] with a [`Group`] (no weight decay, another learning rate, frozen); [`Parameters::named`], [`part_of`] and [`norms_and_biases`] pick them |
//! | average the weights over training | [`Ema`] |
//! | save and load | [`Snapshot`] writes, [`Checkpoint`] reads; the files are safetensors |
//! | exchange weights with other programs | [`Parameters::load_safetensors`], [`Parameters::save_safetensors`], [`Weights`] |
//!
//! Losses are methods of [`refrain::Tensor`], for example [`mse_loss`](refrain::Tensor::mse_loss). To run the whole training
//! step as one recorded program, put it into a [`refrain::Step`].
//!
//! # Example
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
//!
//! # Several ranks
//!
//! The ranks of a [`refrain::Communicator`] train one model together: each takes its part of every batch, and the gradients are
//! averaged before the step of the optimiser. Dropout draws for the rank's part of the batch, so that the masks are those of one
//! process. Here the ranks are two threads on the CPU; on GPUs, each is a process.
//!
//! ```
//! use refrain::optim::{AdamWOptions, Schedule};
//! use refrain::{Communicator, DType, Device, Generator, ReduceOp, Step, Tensor};
//! use refrain_nn::{AdamW, Batches, Dropout, Linear, Mode, Optimizer, ParameterBuilder, Result};
//!
//! /// Trains as one of several ranks. Returns the losses.
//! fn train(rank: Communicator) -> Result<Vec<f32>> {
//!     let device = rank.device();
//!     let generator = Generator::new(device, 42)?; // the same on all ranks
//!     let builder = ParameterBuilder::new(device, DType::F32);
//!     let layer = Linear::new(&builder, 3, 1)?;
//!     let parameters = builder.build(&generator)?;
//!     let optimizer = AdamW::new(&parameters, AdamWOptions::default(), Schedule::Constant { lr: 0.05 })?;
//!     let x = generator.normal([64, 3], DType::F32)?;
//!     let y = x.mean_keepdim(1)?;
//!
//!     // All ranks have the same order of samples. The positions of this rank in a batch are in a tensor, because all ranks must
//!     // record the same step.
//!     let batches = Batches::new(0..64, 16, 7, device)?;
//!     let each = 16 / rank.size();
//!     let rows = each * rank.rank()..each * (rank.rank() + 1);
//!     let own = Tensor::arange(rows.start as f64, rows.end as f64, 1.0, DType::I64, device)?;
//!     let (dropout, random) = (Dropout::new(0.1)?, generator.for_batch_rows(rows, 16)?);
//!     let mut step = Step::new(device, |positions| {
//!         let samples = batches.next(&positions[0])?.index_select(0, &own)?;
//!         let (x, y) = (x.index_select(0, &samples)?, y.index_select(0, &samples)?);
//!         let x = dropout.forward(&x, Mode::Train(&random))?;
//!         let loss = layer.forward(&x)?.mse_loss(&y)?;
//!         loss.backward()?;
//!         rank.all_reduce_assign(parameters.gradients(), ReduceOp::Mean)?;
//!         optimizer.step()?;
//!         Ok(vec![rank.all_reduce(&loss.detach(), ReduceOp::Mean)?])
//!     });
//!
//!     let mut losses = Vec::new();
//!     for epoch in 0..20 {
//!         batches.begin(epoch, 0)?;
//!         for at in 0..batches.steps() {
//!             losses.push(step.call(&[batches.positions(at).clone()])?.to_scalar::<f32>(0)?);
//!         }
//!     }
//!     step.finish()?;
//!     Ok(losses)
//! }
//!
//! let ranks = Communicator::in_process(&[Device::cpu(), Device::cpu()])?;
//! let losses: Vec<Vec<f32>> = std::thread::scope(|scope| {
//!     let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| train(rank))).collect();
//!     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<_>>()
//! })?;
//! assert_eq!(losses[0], losses[1]); // the same bits
//! assert!(losses[0][79] < 0.5 * losses[0][0]);
//! # Ok::<(), refrain_nn::Error>(())
//! ```

mod batches;
pub mod checkpoint;
mod ema;
mod error;
mod init;
mod layer_tree;
mod layers;
mod metrics;
mod optim;
mod parameters;
mod prefetch;
mod select;
mod summary;

pub use batches::Batches;
pub use checkpoint::{Checkpoint, LoadOptions, Snapshot, Unmatched, Weights};
pub use ema::Ema;
pub use error::{Error, Result, in_layer};
pub use init::Init;
pub use layer_tree::{LayerTree, Layers};
pub use layers::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AttentionContext, AttentionOptions, AvgPool1d, AvgPool2d,
    BatchNorm, Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d, CrossAttention, CrossAttentionOptions,
    Dropout, Embedding, EncoderDropout, Flatten, GroupNorm, Gru, GruCell, KeyValueCache, Lambda, LayerNorm,
    Linear, Lstm, LstmCell, LstmState, MaxPool1d, MaxPool2d, Mlp, Mode, Module, MultiHeadAttention, NormKind,
    RmsNorm, Rotary, RotaryOptions, Sequential, TransformerEncoderLayer, TransformerEncoderOptions, Upsample,
};
pub use metrics::{Confusion, ConfusionMatrix};
pub use optim::{
    Adam, AdamW, LearningRate, Lion, Optimizer, Plateau, PlateauOptions, PlateauState, RmsProp, Sgd,
    StepState,
};
pub use parameters::{Group, ModelSize, Parameter, ParameterBuilder, Parameters};
pub use prefetch::Prefetch;
pub use refrain_derive::Layers;
pub use select::{norms_and_biases, part_of};
