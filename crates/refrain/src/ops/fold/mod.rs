//! The adjoint of `unfold`: adds windows back to where they were cut.

mod cuda;

use super::{Op, Spec, Specs};
use crate::device::cpu::numeric::{Number, Stored, with_float};
use crate::device::cpu::scratch::Scratch;
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::tensor::{Shape, Tensor};

/// Adds windows `[..., count, ..., size]` into a tensor of `shape`.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    pub(crate) shape: Shape,
    pub(crate) axis: usize,
    pub(crate) size: usize,
    pub(crate) step: usize,
}

impl Op for Fold {
    const NAME: &'static str = "fold";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        Ok(Spec::new(&self.shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let windows = args.read_shape(0);
        let count = windows[self.axis];
        let length = self.shape[self.axis];
        let outer: usize = self.shape[..self.axis].iter().product();
        let inner: usize = self.shape[self.axis + 1..].iter().product();
        let size = self.size;
        with_float!(args, args.write_dtype(0), T, R => {
            let x = args.read::<T>(0)?;
            let y = args.write::<T>(0)?;
            let mut sum = Scratch::filled(length, <R as Number>::ZERO);
            for o in 0..outer {
                for i in 0..inner {
                    sum.fill(R::ZERO);
                    for w in 0..count {
                        let window = &x[((o * count + w) * inner + i) * size..][..size];
                        for (s, &v) in sum[w * self.step..].iter_mut().zip(window) {
                            *s = s.plus(v.to());
                        }
                    }
                    for (l, &s) in sum.iter().enumerate() {
                        y[(o * length + l) * inner + i] = T::from_number(s);
                    }
                }
            }
            Ok(())
        })
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::fold(self, args)
    }
}
