//! ln(1 + e^x), a smooth form of relu.

use super::{Needs, Op, Spec, Specs, apply, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::cpu::{numeric::Real, simd::simd};
use crate::device::cuda::Source;
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::kernels::elementwise::{self, FloatTile, cuda};
use crate::tensor::Tensor;

#[derive(Clone, Debug)]
struct Softplus;

static SOURCE: Source = Source { name: "softplus", parts: &[include_str!("kernel.cu"), cuda::LOOP] };

impl FloatTile for Softplus {
    // One loop for each arithmetic type; f16 and bf16 arrive as f32, strided operands as slices.
    fn tile<R: Real>(&self, x: &[&[R]], y: &mut [R]) {
        simd(
            #[inline(always)]
            || {
                y.iter_mut().zip(x[0]).for_each(|(y, &x)| {
                    // ln(1 + e), corrected for the rounding of the sum: without it a small e is lost.
                    let e = (-x.abs()).exp();
                    let sum = R::ONE + e;
                    *y = x.relu() + sum.ln() + (e - (sum - R::ONE)) / sum;
                })
            },
        );
    }
}

impl Op for Softplus {
    const NAME: &'static str = "softplus";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?; // every check, so that the kernel can't fail
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        elementwise::float(args, args.read_dtype(0), self)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::run(args, &SOURCE, cuda::arithmetic(args.read_dtype(0)), &[], |spec| spec)
    }

    // Any strides, without a copy.
    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    // Also a narrowed destination.
    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    // The destination may be the operand.
    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }

    // Gradients can be added to the destination.
    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0) // watched: overwriting it before the backward pass is an error
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let slope = g.input(0)?.sigmoid()?;
        let grad = g.grad()?.mul(&slope)?;
        g.add(0, grad)
    }
}

impl Tensor {
    /// `ln(1 + e^x)`. For floats.
    pub fn softplus(&self) -> Result<Tensor> {
        apply(Softplus, &[self])
    }

    /// [`Tensor::softplus`] into the memory of `dst` (which may be this tensor).
    pub fn softplus_into(&self, dst: &Tensor) -> Result<()> {
        apply_into(Softplus, &[self], dst)
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::device;
    use crate::{Tensor, gradcheck};

    /// The page and this folder say the same.
    #[test]
    fn the_example_of_contributing_computes_softplus_and_its_gradient() {
        let page = include_str!("../../../../../CONTRIBUTING.md");
        let (example, _) = include_str!("mod.rs").split_once("\n#[cfg(test)]\nmod tests").unwrap();
        assert!(
            page.contains(&format!("```rust\n{example}```")),
            "CONTRIBUTING.md has another example than this file"
        );
        assert!(page.contains(&format!("```c++\n{}```", include_str!("kernel.cu"))), "and another kernel");

        let x = Tensor::from_slice(&[-800.0f64, -1.0, 0.0, 2.0, 800.0], [5], &device()).unwrap();
        let found = x.softplus().unwrap().to_vec::<f64>().unwrap();
        let expected = [0.0, (-1f64).exp().ln_1p(), 2f64.ln(), 2.0 + (-2f64).exp().ln_1p(), 800.0];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-15 * expected.max(1.0), "{found} for {expected}");
        }
        let x = Tensor::from_slice(&[-1.5f64, 0.25, 3.0], [3], &device()).unwrap();
        x.set_requires_grad(true).unwrap();
        gradcheck(|t| t[0].softplus(), std::slice::from_ref(&x), 1e-6).unwrap();
    }
}
