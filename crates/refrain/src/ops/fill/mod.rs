//! Operations that fill memory: with one value, or with an arithmetic progression.

mod cuda;

use smallvec::SmallVec;

use super::{Needs, Op, Spec, Specs, execute};
use crate::autograd::check_in_place;
use crate::device::cpu::numeric::{Stored, nearest, with_stored};
use crate::device::{CudaArgs, HostArgs, Mode};
use crate::error::Result;
use crate::kernels::elementwise;
use crate::ops::Dest;
use crate::tensor::{DType, Shape, Tensor};

/// The same value everywhere.
#[derive(Clone, Debug)]
struct Fill {
    value: f64,
    spec: Spec,
}

impl Op for Fill {
    const NAME: &'static str = "fill";

    fn infer(&self, _: &[&Tensor]) -> Result<Specs> {
        Ok(self.spec.clone().one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_stored!(args.write_dtype(0), T => elementwise::fill(args, T::from_number(self.value)))
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::fill(self.value, args)
    }

    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
    }
}

/// `start + i * step`.
#[derive(Clone, Debug)]
pub(crate) struct Arange {
    pub(crate) start: f64,
    pub(crate) step: f64,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
}

impl Op for Arange {
    const NAME: &'static str = "arange";

    fn infer(&self, _: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::new(&self.shape, self.dtype).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_stored!(self.dtype, T => {
            for (i, y) in args.write::<T>(0)?.iter_mut().enumerate() {
                *y = T::from_number(self.start + i as f64 * self.step);
            }
        });
        Ok(())
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::arange(self, args)
    }
}

impl Tensor {
    /// Sets every element to one value in place. The value is first rounded to the dtype.
    ///
    /// # Errors
    /// If the dtype is an integer and the value is out of its range.
    pub fn fill(&self, value: f64) -> Result<()> {
        check_in_place("fill", self)?;
        self.fill_with("fill", value)
    }

    /// [`Tensor::fill`] under the name `op`, without looking at the tape.
    pub(crate) fn fill_with(&self, op: &'static str, value: f64) -> Result<()> {
        self.dtype().require_in_range(op, value)?;
        let value = match self.dtype() {
            DType::Bool => (value != 0.0) as u8 as f64,
            dtype => nearest(dtype, value),
        };
        let dests: SmallVec<[Dest; 1]> = SmallVec::from_buf([Dest::Into(self.untracked(), Mode::Replace)]);
        execute(&Fill { value, spec: Spec::like(self) }, &[], &dests)?;
        Ok(())
    }
}
