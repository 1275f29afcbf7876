//! A tensor engine: tensors on a device, operations that take one way to the hardware, and a
//! define-by-run tape for gradients.
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
//! # How it is built
//!
//! A public method such as [`Tensor::softmax`] makes a small struct that describes the operation
//! (`ops/`), which checks its operands and says what the result looks like (`operation/` says what an operation
//! is). What is to be computed then goes through one door, `Device::launch`, as a kernel together with the byte ranges that it
//! reads and writes. Everything that depends on that fact stands at the door: the locks that keep
//! safe code free of data races, the marks that find a saved value overwritten, the trace
//! (`REFRAIN_TRACE=1`). On a thread that records a [`Step`], the door notes launches instead of
//! running them (`record/`); a replay takes them through it again, all at once.
//!
//! A tensor's storage is set when the tensor is created and never replaced. An operation writes
//! into a new tensor or, in its `_into` form, into the memory that the destination already has.
//!
//! # Numbers
//!
//! f16 and bf16 compute in f32. What becomes one of them is rounded once, to nearest, ties to even,
//! whatever it comes from. A number of the host beside a tensor, as in [`Tensor::add_scalar`],
//! [`Tensor::eq_scalar`] or [`Tensor::clamp`], is rounded to the tensor's dtype before anything else: it is
//! what [`Tensor::full`] of that dtype holds, forward and backward, on every device. Settings of an
//! operation, such as an `eps` or the `delta` of [`Tensor::huber_loss`], are numbers of its arithmetic.

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

/// The page's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/simulator.md")]
struct SimulatorPage;

pub use activation::Activation;
pub use autograd::{is_grad_enabled, no_grad};
pub use device::{
    CaptureStatus, CudaDevice, CudaReport, Device, DeviceKind, Profile, SimGraph, SimStream, Simulator,
    Stats, compile_kernel, unrelated_to_recordings,
};
pub use error::{Error, Result};
pub use gradcheck::gradcheck;

pub use ops::optim;
pub use ops::random::Generator;
pub use precision::{precision, with_precision};
pub use record::{Fallback, Outputs, ProfileLine, Program, Step, StepOptions, StepProfile};
pub use tensor::Tensor;
pub use types::{Axes, DType, Element, Precision, Shape, bf16, f16};
