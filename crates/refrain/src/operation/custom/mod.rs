//! Operations of your own, with kernels of their own.
//!
//! An operation is a struct that implements [`CustomOp`]: what it checks ([`infer`](CustomOp::infer)), its kernel in Rust for the
//! CPU ([`host`](CustomOp::host)), its kernel in CUDA C++ ([`cuda`](CustomOp::cuda)), and its gradient
//! ([`backward`](CustomOp::backward)). [`apply`](CustomOp::apply) runs it. There is no `unsafe` code in it. If existing
//! operations already compute what you need and only the gradient differs, [`custom_op`](crate::custom_op) is shorter.
//!
//! ```
//! use refrain::custom::{CudaKernel, CustomOp, HostOperands, Save, Spec};
//! use refrain::{DType, Device, Error, Result, Tensor};
//!
//! /// Moves each element towards 0 by `limit`, and to 0 if it is nearer.
//! #[derive(Clone, Debug)]
//! struct SoftShrink {
//!     limit: f32,
//! }
//!
//! impl CustomOp for SoftShrink {
//!     const NAME: &'static str = "soft_shrink";
//!
//!     fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
//!         match operands {
//!             [x] if x.dtype == DType::F32 => Ok(vec![x.clone()]),
//!             _ => Err(Error::InvalidArgument { op: Self::NAME, message: "it takes one f32 tensor".into() }),
//!         }
//!     }
//!
//!     fn host(&self, operands: &HostOperands<'_>) -> Result<()> {
//!         let x = operands.operand::<f32>(0)?;
//!         let y = operands.result::<f32>(0)?;
//!         for (y, x) in y.iter_mut().zip(x) {
//!             *y = x - x.clamp(-self.limit, self.limit);
//!         }
//!         Ok(())
//!     }
//!
//!     fn cuda(&self, _operands: &[Spec], _results: &[Spec]) -> Option<CudaKernel> {
//!         let text = r#"
//!             __device__ void soft_shrink(View<const float> x, View<float> y, float limit) {
//!                 i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
//!                 if (i < y.numel) y[i] = x[i] - fminf(fmaxf(x[i], -limit), limit);
//!             }
//!         "#;
//!         Some(CudaKernel::new("soft_shrink", text).param(self.limit))
//!     }
//!
//!     fn saves(&self) -> &'static [Save] {
//!         &[Save::Operand(0)]
//!     }
//!
//!     fn backward(&self, gradients: &[Tensor], saved: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
//!         let moved = saved[0].abs()?.gt_scalar(self.limit.into())?;
//!         Ok(vec![Some(moved.where_cond(&gradients[0], &gradients[0].zeros_like()?)?)])
//!     }
//! }
//!
//! let x = Tensor::from_slice(&[-3.0f32, 0.5, 2.0], [3], &Device::cpu())?;
//! x.set_requires_grad(true)?;
//! let y = SoftShrink { limit: 1.0 }.apply(&[&x])?.remove(0);
//! assert_eq!(y.to_vec::<f32>()?, [-2.0, 0.0, 1.0]);
//! y.sum(())?.backward()?;
//! assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [1.0, 0.0, 1.0]);
//! # Ok::<(), Error>(())
//! ```
//!
//! # Guarantees
//!
//! They are those of built-in operations, because it takes the same way through the engine. A destination that overlaps an
//! operand is [`Error::Aliased`]. A saved value that is overwritten before the backward pass is
//! [`Error::SavedValueOverwritten`]. A [`Step`](crate::Step) records and replays it, bit for bit. It appears in
//! `REFRAIN_TRACE`, [`Program`](crate::Program) and profiles. A simulated GPU runs it as a GPU would. It stays a launch of its
//! own: recorded steps fuse built-in elementwise operations only.
//!
//! # Parameters
//!
//! The fields of the struct are the parameters. The host kernel reads them from `self`; the CUDA kernel gets those that
//! [`CudaKernel::param`] names. Recordings are compared by the `Debug` text of the struct, so derive `Debug`: a parameter
//! that has changed is [`Error::RecordingChanged`]. Parameters are plain values; pass a tensor as an operand.
//!
//! # The CUDA kernel
//!
//! The text defines a function with the name that [`CudaKernel::new`] gets. Its arguments are a `View` for each operand, then a
//! `View` for each result, then the parameters, then `Faults` if the kernel declares [faults](CudaKernel::fault):
//!
//! ```c++
//! template <typename T>
//! __device__ void scale(View<const T> x, View<T> y, float factor) {
//!     i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
//!     if (i < y.numel) y[i] = from<T>(to<float>(x[i]) * factor);
//! }
//! ```
//!
//! The function runs in each thread of the grid. A template serves several dtypes. The text may define further functions
//! and types. It is compiled by NVRTC without CUDA's headers, with these names:
//!
//! | name | meaning |
//! | --- | --- |
//! | `View<T>` | `data`, `numel`, `rank`, `sizes[]`, `strides[]` (in elements); `x[i]` is element `i` of contiguous memory, `x.at(i)` that in row-major order for any strides |
//! | `f64_t`, `f32_t`, `f16_t`, `bf16_t`, `i64_t`, `i32_t`, `u8_t`, `bool_t` | the elements: `double`, `float`, two structs, `long long`, `int`, and `unsigned char` twice |
//! | `to<C>(x)`, `from<T>(c)` | convert an element to `float`, `double` or `i64`, and back, rounded to nearest even |
//! | `arithmetic<T>::type` | the type to compute in: `double` for `f64_t`, `float` for other floats, `i64` for the rest |
//! | `i64`, `u64`, `u32` | integers |
//! | `Faults` | `faults.report(k, a, b)` reports fault `k` |
//!
//! A bool result may get any byte: what is not 0 becomes 1.
//!
//! What is wrong with the values of operands only the kernel knows. On the CPU it returns an error; on CUDA it reports a fault,
//! which becomes the error of a later call, and goes on:
//!
//! ```c++
//! __device__ void pick(View<const float> table, View<const i64> ids, View<float> y, Faults faults) {
//!     i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
//!     if (i >= y.numel) return;
//!     bool there = ids[i] >= 0 && ids[i] < table.numel;
//!     if (!there) faults.report(0, ids[i], table.numel);
//!     y[i] = there ? table[ids[i]] : 0.0f;
//! }
//! ```
//!
//! It belongs to `CudaKernel::new("pick", text).fault("index {0} is out of range; there are {1} rows")`.
//!
//! The kernel is compiled for the GPU at hand when it is first used, and cached in memory and on disk by its text and the
//! architecture, as built-in kernels are. So keep the text the same for all shapes and parameters. A text that does not
//! compile is [`Error::Device`] with the compiler's messages. Without a GPU, set `REFRAIN_KERNELS=DIR`: a program that
//! runs on the CPU then writes the text of each CUDA kernel that it would use to that folder, and
//! [`compile_kernel`](crate::compile_kernel) compiles such a file.

mod composed;
mod cuda;
mod gradient;
mod host;

use std::fmt;

use super::{Needs, Op, Specs, apply_all, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::{CudaArgs, DeviceKind, HostArgs};
use crate::error::{Error, Result};
use crate::tensor::{Shape, Tensor};
use cuda::{MAX_AXES, MAX_OPERANDS};
use gradient::run_backward;

pub use super::Spec;
pub use composed::custom_op;
pub use cuda::{CudaKernel, Param};
pub use host::{HostOperands, KernelElement};

/// A value that the backward pass needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Save {
    /// The operand with this number, from 0.
    Operand(usize),
    /// The result with this number, from 0.
    Result(usize),
}

/// An operation of your own. [The module](crate::custom) has an example.
///
/// Implement [`NAME`](CustomOp::NAME), [`infer`](CustomOp::infer) and [`host`](CustomOp::host), and what you need of the rest.
/// `Debug` must show all parameters; derive it.
pub trait CustomOp: Clone + fmt::Debug + Send + Sync + 'static {
    /// The name for errors, traces and profiles.
    const NAME: &'static str;

    /// Checks the shapes and dtypes of the operands, and returns those of the results: at least one. Operands and results are
    /// 16 at most, of 8 axes at most. What it refuses never reaches a kernel.
    ///
    /// # Errors
    /// For operands that the kernels can't take.
    fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>>;

    /// The kernel on the CPU, which a simulated GPU runs, too. It writes all elements of all results. It may use `rayon`: it
    /// runs on the engine's threads. It is not called if all results are empty.
    ///
    /// # Errors
    /// For values that it can't take. Results then have undefined values. On a simulated GPU, a later call on the device
    /// returns the error. A panic is [`Error::Kernel`].
    fn host(&self, operands: &HostOperands<'_>) -> Result<()>;

    /// The kernel on CUDA, for operands and results of these shapes and dtypes. Without one, the operation is
    /// [`Error::Kernel`] on GPUs, also on simulated ones. It is not launched if all results are empty.
    fn cuda(&self, _operands: &[Spec], _results: &[Spec]) -> Option<CudaKernel> {
        None
    }

    /// Whether the kernels take any strides of an operand (transposed, sliced and broadcast views). Otherwise they get it
    /// contiguous: the engine first copies an operand that is not.
    fn takes_strides(&self, _operand: usize) -> bool {
        false
    }

    /// The values that [`CustomOp::backward`] gets, in this order.
    fn saves(&self) -> &'static [Save] {
        &[]
    }

    /// Computes the gradients of the operands from the gradient of each result (zeros where nothing depends on it) and the
    /// saved values: one for each operand, in its shape and dtype, or `None` for an operand that has none. It is made of
    /// operations, which may be custom ones.
    ///
    /// # Errors
    /// Those of its operations. Without an implementation, the operation has no gradient, which is [`Error::Autograd`].
    fn backward(&self, _gradients: &[Tensor], _saved: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Err(Error::Autograd {
            op: Self::NAME,
            message: "this operation has no gradient; implement CustomOp::backward, detach its operands, or run it inside no_grad".to_owned(),
        })
    }

    /// The multiplications and additions, for profiles. Bytes are counted without your help.
    fn flops(&self, _operands: &[&Shape], _results: &[&Shape]) -> u64 {
        0
    }

    /// Runs the operation and returns its results, which are new tensors.
    ///
    /// # Errors
    /// Those of `infer` and of the kernels; [`Error::Kernel`]; [`Error::DeviceMismatch`]; [`Error::InvalidArgument`] without
    /// an operand or for too many.
    fn apply(self, operands: &[&Tensor]) -> Result<Vec<Tensor>> {
        require_operands(Self::NAME, operands)?;
        Ok(apply_all(OfUser(self), operands)?.into_vec())
    }

    /// Runs the operation and writes the first result into the memory of `dst`. Other results are dropped.
    ///
    /// # Errors
    /// As [`CustomOp::apply`]. [`Error::Aliased`] if `dst` overlaps an operand or repeats memory;
    /// [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`] if it does not fit.
    fn apply_into(self, operands: &[&Tensor], dst: &Tensor) -> Result<()> {
        require_operands(Self::NAME, operands)?;
        apply_into(OfUser(self), operands, dst)
    }
}

fn require_operands(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    match operands.is_empty() {
        true => Err(Error::invalid(op, "there is no operand; pass the tensors that the operation reads")),
        false => Ok(()),
    }
}

/// A user's operation as one of the engine.
#[derive(Clone)]
struct OfUser<C>(C);

impl<C: CustomOp> fmt::Debug for OfUser<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Recordings are compared by this text, and two operations may have the same names of types and fields.
        let operation = std::any::type_name::<C>().replace("::", ".").replace(", ", " ");
        write!(f, "{operation}({:?})", self.0)
    }
}

impl<C: CustomOp> OfUser<C> {
    /// What the user's `infer` says, checked.
    fn results(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
        let results = self.0.infer(operands)?;
        if results.is_empty() {
            return Err(Error::invalid(C::NAME, "its infer returned no result; return at least one"));
        }
        let count = operands.len() + results.len();
        if count > MAX_OPERANDS {
            let message = format!(
                "{count} operands and results are more than {MAX_OPERANDS}; pass fewer, for example one concatenated tensor"
            );
            return Err(Error::invalid(C::NAME, message));
        }
        if let Some(spec) = operands.iter().chain(&results).find(|spec| spec.shape.rank() > MAX_AXES) {
            let message =
                format!("a tensor of shape {} has more than {MAX_AXES} axes; reshape it first", spec.shape);
            return Err(Error::invalid(C::NAME, message));
        }
        let missing = |save: &&Save| match **save {
            Save::Operand(i) => i >= operands.len(),
            Save::Result(o) => o >= results.len(),
        };
        match self.0.saves().iter().find(missing) {
            None => Ok(results),
            Some(save) => Err(Error::invalid(C::NAME, format!("it saves {save:?}, which it does not have"))),
        }
    }
}

impl<C: CustomOp> Op for OfUser<C> {
    const NAME: &'static str = C::NAME;

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let operands: Vec<Spec> = inputs.iter().copied().map(Spec::like).collect();
        let results = self.results(&operands)?;
        let device = inputs.first().map(|x| x.device());
        match self.0.cuda(&operands, &results) {
            Some(kernel) => drop(kernel.grid(C::NAME, &results)?),
            None => {
                if let Some(device) = device.filter(|device| device.kind() != DeviceKind::Cpu) {
                    let message = format!(
                        "it has no CUDA kernel, which it needs on {device}; return one from CustomOp::cuda, or move its operands to the CPU with to_device first"
                    );
                    return Err(Error::Kernel { op: C::NAME, message });
                }
            }
        }
        Ok(results.into())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        match args.launch().writes.iter().any(|(result, _)| result.layout.numel() > 0) {
            true => host::run(args, |operands| self.0.host(operands)),
            false => Ok(()),
        }
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let launch = args.launch();
        let spec = |layout: &crate::tensor::Layout, dtype| Spec::new(layout.shape(), dtype);
        let operands: Vec<Spec> = launch.reads.iter().map(|x| spec(x.layout, x.dtype)).collect();
        let results: Vec<Spec> = launch.writes.iter().map(|(y, _)| spec(y.layout, y.dtype)).collect();
        match self.0.cuda(&operands, &results) {
            _ if results.iter().all(|result| result.shape.numel() == 0) => Ok(()),
            Some(kernel) => kernel.launch(args, &results),
            // `infer` has refused it on every device that runs it.
            None if args.runs() => Err(Error::internal(C::NAME, "it has no CUDA kernel")),
            None => Ok(()),
        }
    }

    // A user's kernel may return an error, and panic.
    fn can_fail(&self) -> bool {
        true
    }

    fn needs_kernel_threads(&self) -> bool {
        true
    }

    fn flops(&self, operands: &[&Shape], results: &[&Shape]) -> u64 {
        self.0.flops(operands, results)
    }

    fn input_needs(&self, i: usize) -> Needs {
        if self.0.takes_strides(i) { Needs::Any } else { Needs::Contiguous }
    }

    fn saves(&self, _: &[bool]) -> Saves {
        let mut saves = Saves::default();
        for save in self.0.saves() {
            // `infer` refuses numbers that there are not.
            match *save {
                Save::Operand(i) if i < MAX_OPERANDS => saves = saves.input(i),
                Save::Result(o) if o < MAX_OPERANDS => saves = saves.output(o),
                _ => {}
            }
        }
        saves
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let count = g.node.inputs.len();
        let operands: Vec<Spec> = (0..count).map(|i| Spec::new(g.input_shape(i), g.input_dtype(i))).collect();
        let results = self.results(&operands)?;
        let saved = self.0.saves().iter().map(|save| match *save {
            Save::Operand(i) => g.input(i),
            Save::Result(o) => g.output(o),
        });
        let saved = saved.collect::<Result<Vec<_>>>()?;
        run_backward(g, C::NAME, count, &results, &saved, |gradients, saved| {
            self.0.backward(gradients, saved)
        })
    }
}
