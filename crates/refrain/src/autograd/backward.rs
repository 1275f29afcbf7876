//! The way of a backward pass: from consumers to producers, each node once.

use std::cell::Cell;

use super::grad_mode::no_grad;
use super::outside::passes;
use crate::error::Result;
use crate::recycled::Recycled;
use crate::tensor::{Arrived, Gradients, Node, Pending, Tensor};

thread_local! {
    /// The empty lists of the last backward pass, kept for their memory.
    static KEPT: Cell<Pending> = Cell::default();
}

/// Carries `seed`, the gradient of output `output` of a node, to the leaves.
pub(crate) fn pass_from(node: &Recycled<Node>, output: usize, seed: Tensor, retain: bool) -> Result<()> {
    let mut pending = KEPT.try_with(Cell::take).unwrap_or_default();
    *pending.slot(node, output) = Some(seed);
    no_grad(|| {
        while let Some((node, grads)) = pending.next() {
            if grads.iter().all(Option::is_none) {
                continue;
            }
            run(&node, grads, &mut pending, retain)?;
        }
        Ok(())
    })?;
    let _ = KEPT.try_with(|kept| kept.set(pending));
    Ok(())
}

fn run(node: &Recycled<Node>, grads: Arrived, pending: &mut Pending, retain: bool) -> Result<()> {
    if let Some(gradient) = grads.iter().flatten().next() {
        passes(node, gradient, retain)?;
    }
    let mut held = node.saved();
    let taken = if retain { None } else { Some(held.take()) };
    let saved = taken.as_ref().unwrap_or(&held).as_ref().ok_or_else(|| node.released())?;
    let mut g = Gradients { node, saved, grads, pending };
    node.function.backward(&mut g)
}
