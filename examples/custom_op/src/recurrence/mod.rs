//! A linear recurrence over time, the core of gated recurrent and state space models.

mod host;

use refrain::custom::{CudaKernel, CustomOp, HostOperands, Save, Spec};
use refrain::{DType, Error, Result, Shape, Tensor};

/// `y[t] = gate[t] * y[t - 1] + x[t]` over the middle axis of `[batch, time, channels]`, with `y[-1] = start`. `gate` and
/// `x` are floats of one dtype and shape, with any strides. f16 and bf16 are computed in f32.
///
/// # Errors
/// If dtypes or shapes differ, the dtype is not a float, or there are not three axes.
pub fn linear_recurrence(gate: &Tensor, x: &Tensor, start: f32) -> Result<Tensor> {
    Ok(LinearRecurrence { start }.apply(&[gate, x])?.swap_remove(0))
}

/// [`linear_recurrence`] into the memory of `dst`.
///
/// # Errors
/// As [`linear_recurrence`], and if `dst` does not fit or overlaps an operand.
pub fn linear_recurrence_into(gate: &Tensor, x: &Tensor, start: f32, dst: &Tensor) -> Result<()> {
    LinearRecurrence { start }.apply_into(&[gate, x], dst)
}

/// Checks that all operands are floats of one shape `[batch, time, channels]` and one dtype, and returns what they have in
/// common.
fn common(op: &'static str, operands: &[Spec]) -> Result<Spec> {
    let first = &operands[0];
    for other in operands {
        if other.shape != first.shape {
            let (lhs, rhs) = (first.shape.dims().to_vec(), other.shape.dims().to_vec());
            return Err(Error::ShapeMismatch { op, lhs, rhs, hint: "all must have one shape".to_owned() });
        }
        if other.dtype != first.dtype {
            let hint = "all must have one dtype; convert with to_dtype first".to_owned();
            return Err(Error::DTypeMismatch { op, lhs: first.dtype, rhs: other.dtype, hint });
        }
    }
    if !first.dtype.is_float() {
        let message = format!("{} is not a float; convert with to_dtype first", first.dtype);
        return Err(Error::InvalidArgument { op, message });
    }
    if first.shape.rank() != 3 {
        let message = format!("shape {} is not [batch, time, channels]", first.shape);
        return Err(Error::InvalidArgument { op, message });
    }
    Ok(first.clone())
}

/// How many threads the CUDA kernels have: one for each sequence of numbers.
fn sequences(results: &[Spec]) -> usize {
    let shape = &results[0].shape;
    shape[0] * shape[2]
}

/// Calls a function for the element type of a dtype, which is a float.
macro_rules! for_dtype {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F64 => host::$function::<f64>($($argument),*),
            DType::F32 => host::$function::<f32>($($argument),*),
            DType::F16 => host::$function::<refrain::f16>($($argument),*),
            _ => host::$function::<refrain::bf16>($($argument),*),
        }
    };
}

#[derive(Clone, Debug)]
struct LinearRecurrence {
    start: f32,
}

impl CustomOp for LinearRecurrence {
    const NAME: &'static str = "linear_recurrence";

    fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![common(Self::NAME, operands)?])
    }

    fn host(&self, operands: &HostOperands<'_>) -> Result<()> {
        for_dtype!(operands.result_dtype(0)?, forward(operands, self.start))
    }

    fn cuda(&self, _operands: &[Spec], results: &[Spec]) -> Option<CudaKernel> {
        let kernel = CudaKernel::new("linear_recurrence", include_str!("forward.cu"));
        Some(kernel.threads(sequences(results), 128).param(self.start))
    }

    fn takes_strides(&self, _operand: usize) -> bool {
        true
    }

    fn saves(&self) -> &'static [Save] {
        &[Save::Operand(0), Save::Result(0)]
    }

    fn backward(&self, gradients: &[Tensor], saved: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let [gate, y] = saved else { unreachable!("two values are saved") };
        let backward = LinearRecurrenceBackward { start: self.start };
        Ok(backward.apply(&[gate, y, &gradients[0]])?.into_iter().map(Some).collect())
    }

    fn flops(&self, _operands: &[&Shape], results: &[&Shape]) -> u64 {
        2 * results[0].numel() as u64
    }
}

/// The gradients of `gate` and `x`, from `gate`, the result `y` and its gradient. They are a recurrence, too, backwards in
/// time: `dx[t] = dy[t] + gate[t + 1] * dx[t + 1]` and `dgate[t] = dx[t] * y[t - 1]`.
#[derive(Clone, Debug)]
struct LinearRecurrenceBackward {
    start: f32,
}

impl CustomOp for LinearRecurrenceBackward {
    const NAME: &'static str = "linear_recurrence_backward";

    fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
        let common = common(Self::NAME, operands)?;
        Ok(vec![common.clone(), common])
    }

    fn host(&self, operands: &HostOperands<'_>) -> Result<()> {
        for_dtype!(operands.result_dtype(0)?, backward(operands, self.start))
    }

    fn cuda(&self, _operands: &[Spec], results: &[Spec]) -> Option<CudaKernel> {
        let kernel = CudaKernel::new("linear_recurrence_backward", include_str!("backward.cu"));
        Some(kernel.threads(sequences(results), 128).param(self.start))
    }

    fn flops(&self, _operands: &[&Shape], results: &[&Shape]) -> u64 {
        3 * results[0].numel() as u64
    }
}
