//! A tensor engine for training small and medium models, on a CPU or an NVIDIA GPU.
//!
//! You write eager code as in PyTorch: tensors, operations, `backward()`. Then a [`Step`] records a whole training step once
//! and replays it, on a GPU as one CUDA graph. A replay allocates nothing, and its results are bit for bit those of the eager
//! code.
//!
//! ```
//! use refrain::{Device, Tensor};
//!
//! let device = Device::cpu();
//! let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &device)?;
//! x.set_requires_grad(true)?;
//! let loss = x.square()?.sum(())?;
//! loss.backward()?;
//! assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [2.0, 4.0, 6.0]);
//! # Ok::<(), refrain::Error>(())
//! ```
//!
//! # Map
//!
//! | you want to | use |
//! | --- | --- |
//! | choose where to compute | [`Device`]: [`Device::cpu`], [`Device::cuda`], [`Device::best`]; [`Simulator`] for a simulated GPU |
//! | hold values and compute | [`Tensor`]: nearly every operation is one of its methods; [`DType`], [`Shape`] |
//! | compute gradients | [`Tensor::set_requires_grad`], [`Tensor::backward`], [`Tensor::grad`], [`no_grad`], [`gradcheck`] |
//! | write an operation of your own | [`custom_op`], made of other operations with a gradient of its own; [`custom`], with kernels in Rust and CUDA |
//! | record a training step | [`Step`], [`StepOptions`], [`Outputs`], [`Program`]; a [`SendStep`] moves between threads |
//! | draw random numbers | [`Generator`] |
//! | train on several GPUs | [`Communicator`]: `all_reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `barrier` |
//! | update parameters | [`optim`]: AdamW, SGD, clipping and schedules as operations; `refrain-nn` wraps them |
//! | choose the precision | [`with_precision`], [`Precision`] |
//! | compute on many threads at once | [`on_one_thread`] |
//! | handle errors | [`Error`]: each variant names the operation and says what to do |
//!
//! Layers, optimisers and checkpoints are in the crate `refrain-nn`.
//!
//! # Rules you can rely on
//!
//! - **Tensors stay where they are.** The memory of a tensor is set when it is created and never replaced. An operation writes
//!   into a new tensor. Its `_into` form writes into the memory that the destination already has.
//! - **No hidden work.** An operation runs on the device and in the dtype of its tensors, or returns an error. Nothing is
//!   converted or copied to another device without your asking.
//! - **Saved values are watched.** If a value that the backward pass needs is overwritten, `backward` returns
//!   [`Error::SavedValueOverwritten`].
//!
//! # How it is built
//!
//! A public method such as [`Tensor::softmax`] makes a small struct that describes the operation (`ops/`). The struct checks
//! its operands and knows the shape and dtype of the result. Then one function, `Device::launch` ("the door"), gets a kernel
//! and the byte ranges that the kernel reads and writes. Every operation on every device goes through it. So the door can lock
//! the memory of the operands (safe code has no data races), notice that a saved value is overwritten, and print a trace
//! (`REFRAIN_TRACE=1`).
//!
//! On a thread that records a [`Step`], the door collects launches instead of running them (`record/`). A replay runs the
//! collected launches.
//!
//! # Numbers
//!
//! f16 and bf16 tensors are computed in f32. A value that becomes f16 or bf16 is rounded once, to nearest, ties to even,
//! wherever it comes from. A host number beside a tensor, as in [`Tensor::add_scalar`], [`Tensor::eq_scalar`] or
//! [`Tensor::clamp`], is first rounded to the dtype of the tensor. So it is the same number that [`Tensor::full`] of that dtype
//! holds, forward and backward, on every device. Settings of an operation, such as an `eps` or the `delta` of
//! [`Tensor::huber_loss`], are used in the precision of its arithmetic.

#[cfg(test)]
extern crate self as refrain; // For files that tests of other crates have, too.

mod activation;
mod autograd;
mod device;
mod display;
mod error;
mod gradcheck;
mod kernels;
mod operation;
mod ops;
mod precision;
mod record;
mod recycled;
mod sync;
mod tensor;
mod types;

pub use activation::Activation;
pub use autograd::{is_grad_enabled, no_grad};
pub use device::{
    CaptureStatus, Communicator, CommunicatorId, CommunicatorOptions, CudaDevice, CudaReport, Device,
    DeviceKind, HostTransport, Profile, ReduceOp, SimGraph, SimStream, Simulator, Stats, compile_kernel,
    cpu_instructions, on_one_thread, unrelated_to_recordings,
};
pub use error::{Error, Result};
pub use gradcheck::gradcheck;
pub use operation::{custom, custom_op};

pub use ops::attention::SdpaOptions;
pub use ops::conv::{Conv1dOptions, Conv2dOptions, ConvTranspose1dOptions, ConvTranspose2dOptions};
pub use ops::index::{AxisIndex, Index};
pub use ops::index_select::IndexReduction;
pub use ops::interpolate::Interpolation;
pub use ops::loss::{CrossEntropyOptions, Reduction};
pub use ops::optim;
pub use ops::pad::PadMode;
pub use ops::pool::{Pool1dOptions, Pool2dOptions};
pub use ops::random::Generator;
pub use precision::{precision, with_precision};
pub use record::{Fallback, Outputs, ProfileLine, Program, SendStep, Step, StepOptions, StepProfile};
pub use tensor::Tensor;
pub use types::{Axes, DType, Element, NewShape, Precision, Shape, Size, bf16, f16};
