//! The gradients of a convolution's weight and bias.

use super::places::Places;
use super::{cuda, flops, host};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::Result;
use crate::operation::{Op, Spec, Specs};
use crate::tensor::{DType, Shape, Tensor};
use crate::types::Precision;

/// `dw[o, c, i, j]`, the sum over the windows of `dy[o]` times the element of each window; and `db`, the sums of `dy`. The
/// operands are `dy` and the images.
#[derive(Clone, Debug)]
pub(super) struct WeightGradient {
    pub(super) places: Places,
    pub(super) precision: Precision,
    /// Dtype of the factors.
    pub(super) factors: DType,
    /// Dtype of `dw`.
    pub(super) weight: DType,
    /// Dtype of `db`, if it is wanted.
    pub(super) bias: Option<DType>,
}

impl Op for WeightGradient {
    const NAME: &'static str = "conv_weight_gradient";

    fn infer(&self, _: &[&Tensor]) -> Result<Specs> {
        let mut specs = Spec::new(self.places.weight_shape(), self.weight).one();
        specs.extend(self.bias.map(|dtype| Spec::new([self.places.out], dtype)));
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::weight_gradient(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::weight_gradient(self, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        cuda::gradient_workspace(self, launch, gpu)
    }

    fn flops(&self, _: &[&Shape], _: &[&Shape]) -> u64 {
        flops(&self.places)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}
