//! Collectives: operations in which all ranks of a communicator take part.

mod gathered;
mod host;
mod methods;

pub(crate) use gathered::gather_bytes;

use super::{Needs, Op, Spec, Specs, apply};
use crate::autograd::{Gradients, check_in_place};
use crate::device::recording;
use crate::device::{CollectiveCall, Communicator, CudaArgs, HostArgs, Mode, ReduceOp};
use crate::error::{Error, Result};
use crate::ops::{Dest, apply_into, execute};
use crate::tensor::{DType, Shape, Tensor};

/// A collective of all ranks of a communicator. Operand: this rank's values; a barrier has none.
#[derive(Clone, Debug)]
struct Collective {
    call: CollectiveCall,
    communicator: Communicator,
}

impl Collective {
    /// The shape of the result. Along the first axis, the parts of the ranks follow one another.
    fn shape(&self, x: &Shape) -> Result<Shape> {
        let (op, size) = (self.call.name(), self.communicator.size());
        let parts = matches!(self.call, CollectiveCall::AllGather | CollectiveCall::ReduceScatter(_));
        let Some(&rows) = x.first().filter(|_| parts) else {
            return match parts {
                true => {
                    let message = "a scalar has no first axis, along which the parts of the ranks follow one another; reshape it to [1]";
                    Err(Error::invalid(op, message))
                }
                false => Ok(x.clone()),
            };
        };
        let rows = match self.call {
            CollectiveCall::AllGather => rows.checked_mul(size).ok_or_else(|| {
                Error::invalid(
                    op,
                    format!("{rows} rows of each of {size} ranks do not fit into any address space"),
                )
            })?,
            _ if rows % size == 0 => rows / size,
            _ => {
                let message = format!(
                    "the first axis of {x} has {rows} rows, which {size} ranks can't share equally; use a multiple of {size}"
                );
                return Err(Error::invalid(op, message));
            }
        };
        Ok(std::iter::once(rows).chain(x[1..].iter().copied()).collect())
    }

    /// Checks the dtype, which all devices have in common.
    fn check_dtype(&self, x: &Tensor) -> Result<()> {
        let float = x.dtype().is_float();
        let fits = match self.call {
            CollectiveCall::AllReduce(ReduceOp::Mean) | CollectiveCall::ReduceScatter(ReduceOp::Mean) => {
                float
            }
            _ => float || x.dtype() == DType::I64,
        };
        if fits { Ok(()) } else { Err(x.unsupported(self.call.name())) }
    }
}

impl Op for Collective {
    const NAME: &'static str = "collective";

    fn name(&self) -> &'static str {
        self.call.name()
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let (op, device) = (self.call.name(), self.communicator.device());
        let Some(x) = x.first() else { return Ok(Spec::new([1], DType::I64).one()) };
        if x.device() != device {
            return Err(Error::DeviceMismatch { op, lhs: x.device().name(), rhs: device.name() });
        }
        if let CollectiveCall::Broadcast { root } = self.call
            && root >= self.communicator.size()
        {
            let message =
                format!("there is no rank {root}; the communicator has {} ranks", self.communicator.size());
            return Err(Error::invalid(op, message));
        }
        self.check_dtype(x)?;
        Ok(Spec::new(self.shape(x.shape())?, x.dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::run(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        args.collective(&self.communicator, self.call)
    }

    fn communicator(&self) -> Option<&Communicator> {
        Some(&self.communicator)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Contiguous
    }

    fn in_place(&self, _: usize, _: usize) -> bool {
        matches!(self.call, CollectiveCall::AllReduce(_) | CollectiveCall::Broadcast { .. })
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        let with = |call| Collective { call, communicator: self.communicator.clone() };
        match self.call {
            // Each rank's result depends on each rank's operand, so the gradients of all ranks add up, too.
            CollectiveCall::AllReduce(_) => g.emit(&[0], self.clone(), &[&grad]),
            CollectiveCall::AllGather => {
                g.emit(&[0], with(CollectiveCall::ReduceScatter(ReduceOp::Sum)), &[&grad])
            }
            CollectiveCall::ReduceScatter(ReduceOp::Sum) => {
                g.emit(&[0], with(CollectiveCall::AllGather), &[&grad])
            }
            CollectiveCall::ReduceScatter(ReduceOp::Mean) => {
                let all = apply(with(CollectiveCall::AllGather), &[&grad])?;
                g.add(0, all.mul_scalar(1.0 / self.communicator.size() as f64)?)
            }
            CollectiveCall::Broadcast { .. } | CollectiveCall::Barrier => Err(Error::Autograd {
                op: self.call.name(),
                message: "it has no gradient; detach its operand or run it inside no_grad".to_owned(),
            }),
        }
    }
}
