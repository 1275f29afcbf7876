//! One-hot vectors of class ids.

mod cuda;

use super::{Op, Spec, Specs, apply, apply_into};
use crate::device::cpu::numeric::{Number, Stored, with_stored};
use crate::device::cpu::parallel;
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::kernels::positions::{Position, check_places, check_range, require_positions, with_positions};
use crate::tensor::{DType, Tensor};

/// The result `[.., classes]` of ids `[..]`.
#[derive(Clone, Debug)]
struct OneHot {
    classes: usize,
    dtype: DType,
}

impl Op for OneHot {
    const NAME: &'static str = "one_hot";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        require_positions(Self::NAME, "ids", x[0])?;
        check_places(Self::NAME, x[0].shape(), self.classes, || "0 classes".to_string())?;
        let mut shape = x[0].shape().clone();
        shape.dims_mut().push(self.classes);
        Ok(Spec::new(shape, self.dtype).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 0, ids => self.write(ids, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::one_hot(self.classes, args)
    }

    fn can_fail(&self) -> bool {
        true
    }
}

impl OneHot {
    fn write<I: Position>(&self, ids: &[I], args: &HostArgs<'_>) -> Result<()> {
        check_range(args, 0, ids, self.classes, || format!("{} classes", self.classes))?;
        with_stored!(self.dtype, T => {
            let (zero, one) = (T::from_number(<i64 as Number>::ZERO), T::from_number(<i64 as Number>::ONE));
            parallel::pieces(args.write::<T>(0)?, self.classes, |i, row| {
                row.fill(zero);
                if let Some(id) = ids[i].within(row.len()) {
                    row[id] = one;
                }
            });
        });
        Ok(())
    }
}

impl Tensor {
    /// The one-hot vectors of ids (i64 or i32). For ids of shape `[..]` the result is `[.., classes]`, of any dtype:
    /// 1 where the last coordinate equals the id, otherwise 0.
    ///
    /// # Errors
    /// If the ids are not i64 or i32, or one is not in `0..classes`. On the CPU the error names the first such id,
    /// and nothing is written. On a GPU a later call on the device returns the error
    /// ([`Device::synchronize`](crate::Device::synchronize)); such an id gives a vector of zeros.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let ids = Tensor::from_slice(&[2i64, 0], [2], &Device::cpu())?;
    /// assert_eq!(ids.one_hot(3, DType::F32)?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Result<Tensor> {
        apply(OneHot { classes, dtype }, &[self])
    }

    /// [`Tensor::one_hot`] with the dtype of `dst`, into its memory.
    pub fn one_hot_into(&self, classes: usize, dst: &Tensor) -> Result<()> {
        apply_into(OneHot { classes, dtype: dst.dtype() }, &[self], dst)
    }
}
