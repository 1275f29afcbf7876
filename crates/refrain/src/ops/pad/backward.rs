//! The gradient of padding that repeats elements of the tensor.

use std::ops::Range;

use super::mode::{Axis, PadMode};
use super::{Axes, cuda};
use crate::device::cpu::numeric::{Number, Stored, store, with_float};
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::Scratch;
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::kernels::numbers::Numbers;
use crate::kernels::positions::unravel;
use crate::kernels::rows::rows_a_task;
use crate::operation::{Op, Spec, Specs};
use crate::tensor::{Shape, Tensor};

/// Operand: dy. Result: each element of the tensor gets the sum of the gradients of all its copies.
#[derive(Clone, Debug)]
pub(super) struct PadBackward {
    pub(super) axes: Axes,
    pub(super) mode: PadMode,
}

impl Op for PadBackward {
    const NAME: &'static str = "pad_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        let shape: Shape = self.axes.iter().map(|axis| axis.size).collect();
        Ok(Spec::new(shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let Some((last, outer)) = self.axes.split_last() else {
            return Ok(());
        };
        let sizes = Numbers::collect(outer.len(), outer.iter().map(|axis| axis.size));
        let (width, row, accumulate) = (last.size, last.padded(), args.accumulate(0));
        with_float!(args, args.write_dtype(0), T, R => {
            let dy = args.read::<T>(0)?;
            let rows = rows_a_task(row);
            parallel::pieces(args.write::<T>(0)?, rows * width, |piece, dx| {
                let mut sums = Scratch::filled(width, <R as Number>::ZERO);
                for (i, dx) in dx.chunks_mut(width).enumerate() {
                    sums.fill(R::ZERO);
                    let at = unravel(piece * rows + i, &sizes);
                    self.each_row(outer, &at, 0, &mut |place| {
                        let dy = &dy[place * row..][..row];
                        let add_margin = |places: Range<usize>, sums: &mut [R]| {
                            for place in places {
                                if let Some(i) = last.source(self.mode, place) {
                                    sums[i] += dy[place].to::<R>();
                                }
                            }
                        };
                        add_margin(0..last.before, &mut sums);
                        let within = &dy[last.before..][..width];
                        sums.iter_mut().zip(within).for_each(|(sum, d)| *sum += d.to::<R>());
                        add_margin(row - last.after..row, &mut sums);
                    });
                    store(&sums, dx, accumulate);
                }
            });
            Ok(())
        })
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self, args)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

impl PadBackward {
    /// Calls `f` with the number of each row of dy that comes from the row of the tensor at these coordinates. `first` is the number
    /// that the coordinates of the axes before make.
    fn each_row(&self, axes: &[Axis], at: &[usize], first: usize, f: &mut dyn FnMut(usize)) {
        match (axes, at) {
            ([axis, axes @ ..], [i, at @ ..]) => {
                for place in axis.places(self.mode, *i) {
                    self.each_row(axes, at, first * axis.padded() + place, f);
                }
            }
            _ => f(first),
        }
    }
}
