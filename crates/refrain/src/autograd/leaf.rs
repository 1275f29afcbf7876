//! Tensors that gradients are asked for.

use std::sync::Arc;

use super::watched::history_changed;
use crate::error::{Error, Result};
use crate::tensor::{History, Tensor, check_devices};

impl Tensor {
    /// Turns the gradient of this tensor on or off. If it is on, `backward` adds to [`Tensor::grad`].
    ///
    /// # Errors
    /// If the tensor is not floating-point, or is the result of an operation on the tape.
    pub fn set_requires_grad(&self, on: bool) -> Result<()> {
        const OP: &str = "set_requires_grad";
        self.require_float(OP)?;
        let mut history = self.history();
        match (&*history, on) {
            (History::Output(..), _) => {
                return Err(Error::Autograd {
                    op: OP,
                    message: "this tensor is the result of an operation on the tape, not a leaf; use detach() first".to_string(),
                });
            }
            (History::Constant, true) => *history = History::Leaf(Arc::default()),
            (History::Leaf(_), false) => *history = History::Constant,
            _ => return Ok(()),
        }
        history_changed();
        Ok(())
    }

    /// Whether the backward pass reaches this tensor.
    pub fn requires_grad(&self) -> bool {
        !matches!(&*self.history(), History::Constant)
    }

    /// Whether gradients are accumulated in this tensor's own `grad`.
    pub(crate) fn is_leaf(&self) -> bool {
        matches!(&*self.history(), History::Leaf(_))
    }

    /// The accumulated gradient of a leaf, as a handle without history (as from [`Tensor::detach`]). Its storage does
    /// not change between backward passes; new gradients are added in place.
    pub fn grad(&self) -> Option<Tensor> {
        match &*self.history() {
            // Not the leaf's own handle: if a history were attached to that, it would be attached to the leaf, to any
            // depth.
            History::Leaf(leaf) => leaf.grad().as_ref().map(Tensor::detach),
            _ => None,
        }
    }

    /// Sets the memory in which the gradient of a leaf accumulates, for example a view of a flat buffer. Its current
    /// values stay and are added to. The layout may be any; the gradient has the same numbers as in its own memory.
    ///
    /// # Errors
    /// If the tensor is not a leaf, or shape, dtype or device differ, or the buffer repeats memory.
    pub fn set_grad(&self, buffer: &Tensor) -> Result<()> {
        const OP: &str = "set_grad";
        if buffer.shape() != self.shape() {
            return Err(Error::shapes(
                OP,
                self.shape(),
                buffer.shape(),
                "a gradient must have the shape of its tensor",
            ));
        }
        buffer.require_dtype(OP, "buffer", self.dtype())?;
        check_devices(OP, &[self, buffer])?;
        if buffer.layout().repeats_memory() {
            return Err(Error::invalid(
                OP,
                "the buffer repeats memory by broadcasting; pass one with an element for each value",
            ));
        }
        match &*self.history() {
            History::Leaf(leaf) => *leaf.grad() = Some(buffer.detach()),
            _ => return Err(no_leaf(OP)),
        }
        history_changed();
        Ok(())
    }

    /// Names a leaf in messages. The parameters of layers have their full names.
    ///
    /// ```
    /// # use refrain::{DType, Device, Tensor};
    /// let weight = Tensor::zeros([2, 3], DType::F32, &Device::cpu())?;
    /// weight.set_requires_grad(true)?;
    /// weight.set_leaf_name("head.weight")?;
    /// let error = weight.fill(1.0).unwrap_err(); // outside of `no_grad`
    /// assert!(error.to_string().contains("head.weight"));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor is not a leaf that requires a gradient.
    pub fn set_leaf_name(&self, name: &str) -> Result<()> {
        match &*self.history() {
            History::Leaf(leaf) => leaf.set_name(name),
            _ => return Err(no_leaf("set_leaf_name")),
        }
        Ok(())
    }
}

fn no_leaf(op: &'static str) -> Error {
    let message = "this tensor is not a leaf that requires a gradient; call set_requires_grad(true) first";
    Error::Autograd { op, message: message.to_string() }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Tensor, no_grad};

    #[test]
    fn a_leaf_written_inside_no_grad_stays_a_leaf_with_its_gradient() {
        let device = Device::cpu();
        let [x, y, grad] = [1.0f32, 3.0, 0.0].map(|v| Tensor::from_slice(&[v], 1, &device).unwrap());
        x.set_requires_grad(true).unwrap();
        x.set_grad(&grad).unwrap();
        no_grad(|| {
            x.copy_from(&y)?;
            x.mul_scalar_assign(2.0)?;
            x.add_into(&y, &x)
        })
        .unwrap();
        x.square().unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(grad.to_vec::<f32>().unwrap(), [18.0]);
    }
}
