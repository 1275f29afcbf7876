//! The linear layer, fused with its activation and residual.

mod cuda;
pub(crate) mod host;

use smallvec::{SmallVec, smallvec};

use super::reduce;
use super::unary::{Unary, UnaryBackward};
use super::{Op, Spec, Specs, apply, apply_into, apply_into_on, apply_on};
use crate::activation::Activation;
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, DeviceKind, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::products;
use crate::kernels::reduction::Extent;
use crate::precision::{LEAST_WORK_ROUNDED, precision, rounded, rounded_operand};
use crate::tensor::{DType, Shape, Tensor};
use crate::types::Precision;

/// From this many multiplications on, an activation apart from its product was measured to be as fast or faster: on an H200, a
/// product of 86,016 x 512 by 512 x 2,048 numbers of bf16 with GELU took 603 us, the product alone 265.
const LEAST_WORK_APART: usize = 1 << 32;
/// The same in TF32, for sums of at least so many products: of 5,950 x 512 by 512 x 1,024 numbers with GELU, our own kernel took 80 us on an
/// H200, and the library's product 27.
const LEAST_WORK_APART_IN_TF32: usize = 1 << 29;
const LONG_SUM_IN_TF32: usize = 256;

impl Activation {
    /// The activation as an operation of its own.
    fn unary(self) -> Option<Unary> {
        match self {
            Activation::None => None,
            Activation::Relu => Some(Unary::Relu),
            Activation::Gelu => Some(Unary::Gelu),
            Activation::GeluTanh => Some(Unary::GeluTanh),
            Activation::Silu => Some(Unary::Silu),
        }
    }

    /// Applies the activation to a tensor.
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        match self.unary() {
            None => Ok(x.clone()),
            Some(function) => apply(function, &[x]),
        }
    }
}

/// `y = activation(x w^T + b) + r`. After `x` and `w`, the operands are `b` and `r`, if present.
#[derive(Clone, Debug)]
struct Linear {
    activation: Activation,
    bias: bool,
    residual: bool,
    /// Whether a second result keeps the input of the activation for the backward pass.
    keep: bool,
    precision: Precision,
}

impl Linear {
    /// The operands of the kernel: the inputs, with an f32 weight and bias, and the f32 input of a wide layer on a GPU, rounded if the
    /// precision asks for it.
    fn operands(&self, inputs: &[&Tensor]) -> Result<SmallVec<[Tensor; 4]>> {
        let (x, w) = (inputs[0], inputs[1]);
        let dtype = self.precision.result(x.dtype());
        let rounds = self.precision == Precision::Bf16 && dtype == DType::BF16;
        let columns = w.dims().first().copied().unwrap_or(0);
        let is_wide = x.numel().saturating_mul(columns) >= LEAST_WORK_ROUNDED;
        let rounds_input =
            w.dtype().is_parameter_of(dtype) && is_wide && x.device().kind() != DeviceKind::Cpu;
        let parameters = 1..2 + self.bias as usize;
        let operand = |(i, &t): (usize, &&Tensor)| match t.dtype() {
            DType::F32 if rounds && parameters.contains(&i) => rounded(t),
            DType::F32 if rounds && rounds_input && i == 0 => rounded_operand(t),
            _ => Ok(t.clone()),
        };
        inputs.iter().enumerate().map(operand).collect()
    }
}

/// The number of rows of a tensor whose last dimension is the feature dimension.
fn rows(shape: &Shape) -> usize {
    shape.dims()[..shape.rank() - 1].iter().product()
}

/// For each number of `y`, the multiplications and additions with a row of `x` (or the reverse).
fn flops(y: &Shape, x: &Shape) -> u64 {
    2 * (y.numel() * x.last().copied().unwrap_or(1)) as u64
}

fn with_last(shape: &Shape, last: usize) -> Shape {
    shape.dims()[..shape.rank() - 1].iter().copied().chain([last]).collect()
}

impl Op for Linear {
    const NAME: &'static str = "linear";

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let (x, w) = (inputs[0], inputs[1]);
        x.require_float(Self::NAME)?;
        let dtype = self.precision.result(x.dtype());
        let residual = inputs[2 + self.bias as usize..].first();
        for (i, other) in inputs.iter().enumerate().skip(1) {
            // Activations have the same dtype, except an f32 one that is rounded anyway.
            let fits = match i < 2 + self.bias as usize {
                true => other.dtype().is_parameter_of(dtype),
                false => self.precision.result(other.dtype()) == dtype,
            };
            if !fits {
                return Err(Error::dtypes(Self::NAME, x.dtype(), other.dtype()));
            }
        }
        if x.rank() == 0 || w.rank() != 2 || x.shape().last() != w.shape().last() {
            let hint = "the input must be [.., in], the weight [out, in]";
            return Err(Error::shapes(Self::NAME, x.shape(), w.shape(), hint));
        }
        let shape = with_last(x.shape(), w.dims()[0]);
        if self.bias && inputs[2].dims() != [w.dims()[0]] {
            return Err(Error::shapes(Self::NAME, w.shape(), inputs[2].shape(), "the bias must be [out]"));
        }
        if let Some(r) = residual.filter(|r| r.shape() != &shape) {
            return Err(Error::shapes(
                Self::NAME,
                &shape,
                r.shape(),
                "the residual must have the shape of the result",
            ));
        }
        let y = Spec::new(shape, dtype);
        Ok(if self.keep { smallvec![y.clone(), y] } else { y.one() })
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        products::cuda::run(args, &cuda::forward(self, args.launch()))
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        products::cuda::workspace(gpu, Self::NAME, &cuda::forward(self, launch))
    }

    fn flops(&self, reads: &[&Shape], writes: &[&Shape]) -> u64 {
        flops(writes[0], reads[1])
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        let saves = Saves::default().input_if(0, needs[1]).input_if(1, needs[0]);
        if self.keep { saves.output(1) } else { saves }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let dy = g.grad()?.clone();
        let dz = match self.activation.unary() {
            None => dy.clone(),
            Some(function) => apply(UnaryBackward(function), &[&g.output(1)?, &dy])?,
        };
        let precision = self.precision;
        if self.residual {
            let i = 2 + self.bias as usize;
            g.add(i, dy.to_dtype(g.input_dtype(i))?)?;
        }
        if g.needs(0) {
            let w = g.input(1)?;
            g.emit(&[0], InputGradient { precision, dtype: g.input_dtype(0) }, &[&dz, &w])?;
        }
        parameter_gradients(g, precision, 1, self.bias.then_some(2), &dz, |g| g.input(0))
    }
}

/// Emits the gradients of the operands `weight` and `bias` of `z = x w^T + b` from the gradient of `z`.
pub(crate) fn parameter_gradients(
    g: &mut Gradients<'_>,
    precision: Precision,
    weight: usize,
    bias: Option<usize>,
    dz: &Tensor,
    x: impl FnOnce(&Gradients<'_>) -> Result<Tensor>,
) -> Result<()> {
    let bias = bias.filter(|&b| g.needs(b));
    if !g.needs(weight) {
        return bias.map_or(Ok(()), |b| g.emit(&[b], BiasGradient { dtype: g.input_dtype(b) }, &[dz]));
    }
    let op =
        WeightGradient { precision, weight: g.input_dtype(weight), bias: bias.map(|b| g.input_dtype(b)) };
    let targets: SmallVec<[usize; 2]> = [Some(weight), bias].into_iter().flatten().collect();
    let x = x(g)?;
    g.emit(&targets, op, &[dz, &x])
}

/// `dx = dy w`.
#[derive(Clone, Debug)]
struct InputGradient {
    precision: Precision,
    /// Dtype of the result.
    dtype: DType,
}

impl Op for InputGradient {
    const NAME: &'static str = "linear_input_gradient";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::new(with_last(x[0].shape(), x[1].dims()[1]), self.dtype).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::input_gradient(args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        products::cuda::run(args, &cuda::input_gradient(self.precision, args.launch()))
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        products::cuda::workspace(gpu, Self::NAME, &cuda::input_gradient(self.precision, launch))
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        flops(reads[0], reads[1])
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

/// `dw = dy^T x`, and `db`, the sum of `dy` over its rows.
#[derive(Clone, Debug)]
struct WeightGradient {
    precision: Precision,
    /// Dtype of `dw`.
    weight: DType,
    /// Dtype of `db`, if there is a bias.
    bias: Option<DType>,
}

impl Op for WeightGradient {
    const NAME: &'static str = "linear_weight_gradient";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let last = |t: &Tensor| t.dims()[t.rank() - 1];
        let mut specs = Spec::new([last(x[0]), last(x[1])], self.weight).one();
        specs.extend(self.bias.map(|dtype| Spec::new([last(x[0])], dtype)));
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::weight_gradient(self.bias.is_some(), args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::run_weight_gradient(self, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        cuda::weight_gradient_workspace(self, launch, gpu)
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        flops(reads[0], reads[1])
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

/// `db` alone: the sum of `dy` over its rows.
#[derive(Clone, Debug)]
struct BiasGradient {
    /// Dtype of the result.
    dtype: DType,
}

impl BiasGradient {
    fn extent(dy: &Shape) -> Extent {
        Extent { outer: 1, n: rows(dy), inner: dy.last().copied().unwrap_or(1) }
    }
}

impl Op for BiasGradient {
    const NAME: &'static str = "linear_bias_gradient";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::new([x[0].dims()[x[0].rank() - 1]], self.dtype).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        reduce::host::sum(args, BiasGradient::extent(args.read_shape(0)), 1.0)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        reduce::cuda::sum(args, 0, BiasGradient::extent(args.read_shape(0)), 1.0)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(reduce::cuda::workspace(BiasGradient::extent(launch.reads[0].layout.shape()), launch))
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

impl Tensor {
    /// A linear layer: `activation(x w^T + b) + residual`, in one launch.
    ///
    /// `self` is `[.., in]`, the weight `[out, in]` (as in PyTorch), the bias `[out]`. The residual and the result
    /// are `[.., out]`. For floats. f16 and bf16 are multiplied and summed in f32; on a CPU with AMX or AVX-512 BF16,
    /// subnormal numbers of bf16, and subnormal sums of their products, count as zero. [`Precision`] says how f32 is multiplied and
    /// which dtype results.
    ///
    /// On a GPU, from 2^32 multiplications on, the activation of a layer in bf16 or TF32 without residual is an operation and a launch
    /// of its own, which gets the result rounded to its dtype; f32 in TF32 from 2^29 on, if `in` is at least 256.
    ///
    /// All operands have one dtype, with one exception: beside an f16 or bf16 input, weight and bias may be f32. The
    /// weight is then rounded to the dtype of the input before the product; the bias is added in f32. Under
    /// [`Precision::Bf16`] weight and bias are rounded only once while they do not change, and the residual may be
    /// f32, too. Gradients have the dtypes of their operands.
    ///
    /// ```
    /// use refrain::{Activation, Device, Tensor};
    /// let d = Device::cpu();
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2], &d)?;
    /// let w = Tensor::from_slice(&[1.0f32, 1.0, 0.0, -1.0], [2, 2], &d)?;
    /// let b = Tensor::from_slice(&[0.5f32, 0.5], [2], &d)?;
    /// let y = x.linear(&w, Some(&b), Activation::Relu, Some(&x))?;
    /// assert_eq!(y.to_vec::<f32>()?, [4.5, 2.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn linear(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        activation: Activation,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        if let Some(function) = separate_activation(self, weight, activation, residual) {
            return apply(function, &[&self.linear(weight, bias, Activation::None, None)?]);
        }
        let (op, inputs) = linear(self, weight, bias, activation, residual);
        let operands = op.operands(&inputs)?;
        let operands: SmallVec<[&Tensor; 4]> = operands.iter().collect();
        apply_on(op, &inputs, &operands)
    }

    /// [`Tensor::linear`] into the memory of `dst`.
    pub fn linear_into(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        activation: Activation,
        residual: Option<&Tensor>,
        dst: &Tensor,
    ) -> Result<()> {
        if let Some(function) = separate_activation(self, weight, activation, residual) {
            return apply_into(function, &[&self.linear(weight, bias, Activation::None, None)?], dst);
        }
        let (op, inputs) = linear(self, weight, bias, activation, residual);
        let operands = op.operands(&inputs)?;
        let operands: SmallVec<[&Tensor; 4]> = operands.iter().collect();
        apply_into_on(op, &inputs, &operands, dst)
    }
}

/// The activation of a wide layer on a GPU, where it is an operation of its own: the library computes such a product so much faster
/// than our own kernel computes both that reading the result once more pays off, and the activation shares its kernel with the
/// elementwise operations that follow it. The library's own tanh-GELU of bf16 is as fast, but shares nothing. It has no f32 products
/// that are not rounded to TF32; and f16 would become infinite between the product and the activation.
fn separate_activation(
    x: &Tensor,
    weight: &Tensor,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Option<Unary> {
    let (sum, columns) = (x.dims().last().copied().unwrap_or(0), weight.dims().first().copied().unwrap_or(0));
    let least = match precision().result(x.dtype()) {
        DType::BF16 => LEAST_WORK_APART,
        DType::F32 if precision() == Precision::Tf32 => {
            // The library takes rows of whole pieces of 16 bytes.
            let is_long = sum >= LONG_SUM_IN_TF32 && sum.is_multiple_of(4) && columns.is_multiple_of(4);
            if is_long { LEAST_WORK_APART_IN_TF32 } else { LEAST_WORK_APART }
        }
        _ => return None,
    };
    let is_wide = x.numel().saturating_mul(columns) >= least;
    let is_apart = is_wide && residual.is_none() && x.device().kind() != DeviceKind::Cpu;
    activation.unary().filter(|_| is_apart)
}

fn linear<'a>(
    x: &'a Tensor,
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
    activation: Activation,
    residual: Option<&'a Tensor>,
) -> (Linear, SmallVec<[&'a Tensor; 4]>) {
    let inputs: SmallVec<[&Tensor; 4]> =
        [Some(x), Some(weight), bias, residual].into_iter().flatten().collect();
    let keep = activation != Activation::None
        && crate::autograd::is_grad_enabled()
        && inputs.iter().any(|t| t.requires_grad());
    let (bias, residual) = (bias.is_some(), residual.is_some());
    (Linear { activation, bias, residual, keep, precision: precision() }, inputs)
}
