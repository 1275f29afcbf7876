//! Gradients are added up, by operations.

use smallvec::SmallVec;

use super::execute::{Dest, execute};
use super::{DynOp, Op};
use crate::autograd::{begins_backward, check_current, no_grad, pass_from};
use crate::device::{Mode, RESULTS};
use crate::error::{Error, Result};
use crate::tensor::{Edge, Gradients, History, Input, Leaf, Tensor, check_devices};

impl Tensor {
    /// Runs the backward pass from this scalar: adds its derivative by each leaf to the gradient of that leaf.
    ///
    /// The pass releases the values that were saved for it. A second pass needs a new forward pass, or
    /// [`Tensor::backward_retain`].
    ///
    /// # Errors
    /// If the tensor has more than one element or does not require a gradient, or if a saved value was overwritten.
    pub fn backward(&self) -> Result<()> {
        backward(self, None, false)
    }

    /// Runs the backward pass from a tensor of any shape, given the gradient of the result by this tensor.
    pub fn backward_with(&self, gradient: &Tensor) -> Result<()> {
        backward(self, Some(gradient), false)
    }

    /// Like [`Tensor::backward`], but keeps the saved values for another pass.
    pub fn backward_retain(&self) -> Result<()> {
        backward(self, None, true)
    }

    /// Sets the accumulated gradient to zero, in place.
    pub fn zero_grad(&self) -> Result<()> {
        match self.grad() {
            Some(grad) => grad.fill(0.0),
            None => Ok(()),
        }
    }
}

fn backward(root: &Tensor, gradient: Option<&Tensor>, retain: bool) -> Result<()> {
    const OP: &str = "backward";
    check_current(OP, root, || "this tensor".to_string())?;
    let seed = match gradient {
        Some(g) => {
            if g.shape() != root.shape() {
                return Err(Error::shapes(
                    OP,
                    root.shape(),
                    g.shape(),
                    "the gradient must have the shape of the tensor",
                ));
            }
            g.require_dtype(OP, "gradient", root.dtype())?;
            check_devices(OP, &[root, g])?;
            g.detach()
        }
        None if root.numel() == 1 => no_grad(|| root.ones_like())?,
        None => {
            return Err(Error::Autograd {
                op: OP,
                message: format!(
                    "a tensor of shape {} is not a scalar; reduce it (sum, mean) first, or use backward_with",
                    root.shape()
                ),
            });
        }
    };
    begins_backward(root);
    let (node, output) = match &*root.history() {
        History::Constant => {
            return Err(Error::Autograd {
                op: OP,
                message: "this tensor does not depend on anything that requires a gradient; call set_requires_grad(true) on the leaves before the forward pass, outside no_grad".to_string(),
            });
        }
        History::Leaf(leaf) => return no_grad(|| add_to_leaf(leaf, seed)),
        History::Output(node, output) => (node.clone(), *output),
    };
    pass_from(&node, output, seed, retain)
}

fn add_to_leaf(leaf: &Leaf, gradient: Tensor) -> Result<()> {
    let mut slot = leaf.grad();
    match &*slot {
        Some(grad) => grad.add_assign(&gradient)?,
        None => *slot = Some(owned(gradient)?),
    }
    Ok(())
}

/// A tensor with the same values whose memory nobody else writes or reads.
fn owned(t: Tensor) -> Result<Tensor> {
    if t.is_sole_owner() && t.is_contiguous() && t.covers_storage() { Ok(t) } else { t.copy() }
}

impl Gradients<'_> {
    fn check(&self, input: &Input, gradient: &Tensor) -> Result<()> {
        let (shape, dtype) = (gradient.shape(), gradient.dtype());
        if &input.shape != shape || input.dtype != dtype {
            let message = format!(
                "the gradient has shape {shape} and dtype {dtype}, but its operand has shape {} and dtype {}",
                input.shape, input.dtype
            );
            return Err(Error::internal(self.node.function.name(), message));
        }
        Ok(())
    }

    /// Adds to the gradient of input `i`.
    pub(crate) fn add(&mut self, i: usize, gradient: Tensor) -> Result<()> {
        let input = &self.node.inputs[i];
        self.check(input, &gradient)?;
        match &input.edge {
            None => Ok(()),
            Some(Edge::Leaf(leaf)) => add_to_leaf(leaf, gradient),
            Some(Edge::Output(node, output)) => {
                let slot = self.pending.slot(node, *output);
                *slot = Some(match slot.take() {
                    None => gradient,
                    Some(sum) if sum.is_sole_owner() && !sum.layout().repeats_memory() => {
                        sum.add_assign(&gradient)?;
                        sum
                    }
                    Some(sum) => sum.add(&gradient)?,
                });
                Ok(())
            }
        }
    }

    /// Adds to a part of the gradient of input `i`, the part that `cut` selects.
    pub(crate) fn add_window(
        &mut self,
        i: usize,
        cut: impl Fn(&Tensor) -> Result<Tensor>,
        gradient: &Tensor,
    ) -> Result<()> {
        let input = &self.node.inputs[i];
        let zeros = || Tensor::zeros(&input.shape, input.dtype, gradient.device());
        match &input.edge {
            None => Ok(()),
            Some(Edge::Leaf(leaf)) => {
                let mut slot = leaf.grad();
                if slot.is_none() {
                    *slot = Some(zeros()?);
                }
                slot.as_ref().map_or(Ok(()), |grad| cut(grad)?.add_assign(gradient))
            }
            Some(Edge::Output(node, output)) => {
                let slot = self.pending.slot(node, *output);
                let sum = match slot.take() {
                    None => zeros()?,
                    Some(sum) if sum.is_sole_owner() && !sum.layout().repeats_memory() => sum,
                    Some(sum) => sum.copy()?,
                };
                cut(&sum)?.add_assign(gradient)?;
                *slot = Some(sum);
                Ok(())
            }
        }
    }

    /// Runs an operation whose output `o` is the gradient of input `targets[o]`. If that gradient has memory already,
    /// the operation adds to it directly. Outputs that nobody needs are dropped.
    pub(crate) fn emit<O: Op>(&mut self, targets: &[usize], op: O, inputs: &[&Tensor]) -> Result<()> {
        self.emit_all(targets, &op, inputs).map(drop)
    }

    /// Like [`Gradients::emit`], for an operation with more results than `targets`. Returns the other results.
    pub(crate) fn emit_with_rest<O: Op>(
        &mut self,
        targets: &[usize],
        op: O,
        inputs: &[&Tensor],
    ) -> Result<SmallVec<[Tensor; RESULTS]>> {
        self.emit_all(targets, &op, inputs)
    }

    fn emit_all(
        &mut self,
        targets: &[usize],
        op: &dyn DynOp,
        inputs: &[&Tensor],
    ) -> Result<SmallVec<[Tensor; RESULTS]>> {
        let mut dests: SmallVec<[Dest; RESULTS]> = SmallVec::new();
        for (o, &i) in targets.iter().enumerate() {
            let place = match self.node.inputs.get(i).and_then(|input| input.edge.as_ref()) {
                None => None,
                Some(Edge::Leaf(leaf)) => leaf.grad().clone(),
                Some(Edge::Output(node, output)) => {
                    // Memory that is added to must have no other handle than this slot.
                    let slot = self.pending.slot(node, *output);
                    slot.as_ref().filter(|t| t.is_sole_owner() && !t.layout().repeats_memory()).cloned()
                }
            };
            let fresh = targets[..o].contains(&i)
                || place.as_ref().is_none_or(|p| {
                    dests.iter().any(|d| matches!(d, Dest::Into(t, _) if t.storage_id() == p.storage_id() && !t.layout().is_disjoint(p.layout())))
                });
            dests.push(match place {
                Some(place) if !fresh => Dest::Into(place, Mode::Accumulate),
                _ => Dest::New,
            });
        }
        let mut outputs = execute(op, inputs, &dests)?;
        let rest = outputs.drain(targets.len().min(outputs.len())..).collect();
        for ((output, dest), &i) in outputs.into_iter().zip(dests).zip(targets) {
            if matches!(dest, Dest::New) && self.needs(i) {
                self.add(i, output)?;
            }
        }
        Ok(rest)
    }
}
