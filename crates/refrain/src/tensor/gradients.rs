//! Gradients while a backward pass carries them from node to node.

use std::collections::{BinaryHeap, HashMap};

use smallvec::{SmallVec, smallvec};

use super::Tensor;
use super::node::{Node, Saved, SavedValues};
use crate::device::RESULTS;
use crate::error::{Error, Result};
use crate::recycled::Recycled;
use crate::types::{DType, Shape};

/// The gradients of a node's outputs that have arrived so far.
pub(crate) type Arrived = SmallVec<[Option<Tensor>; RESULTS]>;

/// Gradients on their way to nodes that have not run yet.
#[derive(Default)]
pub(crate) struct Pending {
    nodes: HashMap<u64, (Recycled<Node>, Arrived)>,
    /// The numbers of the nodes in `nodes`. The node with the highest number runs next, because all its consumers
    /// have run.
    order: BinaryHeap<u64>,
}

impl Pending {
    pub(crate) fn slot(&mut self, node: &Recycled<Node>, output: usize) -> &mut Option<Tensor> {
        let order = &mut self.order;
        let (_, grads) = self.nodes.entry(node.seq).or_insert_with(|| {
            order.push(node.seq);
            (node.clone(), smallvec![None; node.outputs])
        });
        &mut grads[output]
    }

    pub(crate) fn next(&mut self) -> Option<(Recycled<Node>, Arrived)> {
        self.nodes.remove(&self.order.pop()?)
    }
}

/// What the backward pass of an operation can use: the gradients of its outputs, the values that it saved, and the
/// destinations of the gradients of its inputs.
pub(crate) struct Gradients<'a> {
    pub(crate) node: &'a Node,
    pub(crate) saved: &'a SavedValues,
    pub(crate) grads: Arrived,
    pub(crate) pending: &'a mut Pending,
}

impl Gradients<'_> {
    /// The gradient of the first output.
    pub(crate) fn grad(&self) -> Result<&Tensor> {
        self.grad_of(0).ok_or_else(|| Error::internal(self.node.function.name(), "no gradient has arrived"))
    }

    /// The gradient of output `o`, if anything depends on it.
    pub(crate) fn grad_of(&self, o: usize) -> Option<&Tensor> {
        self.grads[o].as_ref()
    }

    fn saved(&self, saved: Option<&Saved>, role: impl Fn() -> String) -> Result<Tensor> {
        let op = self.node.function.name();
        saved.ok_or_else(|| Error::internal(op, format!("{} was not saved", role())))?.get(op, role)
    }

    /// Input `i` at the forward pass, if the operation saved it.
    pub(crate) fn input(&self, i: usize) -> Result<Tensor> {
        self.saved(self.saved.inputs[i].as_ref(), || format!("operand {i}"))
    }

    /// Input `i` at the forward pass; `None` if the operation did not save it.
    pub(crate) fn input_if_saved(&self, i: usize) -> Result<Option<Tensor>> {
        match &self.saved.inputs[i] {
            None => Ok(None),
            some => self.saved(some.as_ref(), || format!("operand {i}")).map(Some),
        }
    }

    /// Output `o` at the forward pass, if the operation saved it.
    pub(crate) fn output(&self, o: usize) -> Result<Tensor> {
        self.saved(self.saved.outputs[o].as_ref(), || format!("result {o}"))
    }

    /// Input `i` at the forward pass, which an error calls `role`.
    pub(crate) fn saved_value(&self, i: usize, role: impl Fn() -> String) -> Result<Tensor> {
        self.saved(self.saved.inputs[i].as_ref(), role)
    }

    pub(crate) fn input_shape(&self, i: usize) -> &Shape {
        &self.node.inputs[i].shape
    }

    pub(crate) fn input_dtype(&self, i: usize) -> DType {
        self.node.inputs[i].dtype
    }

    /// Whether the gradient of input `i` is needed.
    pub(crate) fn needs(&self, i: usize) -> bool {
        self.node.inputs.get(i).is_some_and(|input| input.edge.is_some())
    }
}
