//! Where a tensor's values came from, as the tensor keeps it. `autograd/` fills it and follows it back.

use std::sync::{Arc, PoisonError};

use super::Tensor;
use super::node::Node;
use crate::recycled::Recycled;
use crate::sync::{Mutex, MutexGuard};
use crate::types::{DType, Shape};

/// Where a tensor's values came from.
#[derive(Default)]
pub(crate) enum History {
    /// Nothing that needs a gradient.
    #[default]
    Constant,
    /// The user asked for a gradient here.
    Leaf(Arc<Leaf>),
    /// The output of a recorded operation.
    Output(Recycled<Node>, usize),
}

/// Where the gradient of a leaf gathers.
#[derive(Default)]
pub(crate) struct Leaf {
    grad: Mutex<Option<Tensor>>,
}

impl Leaf {
    /// The gradient so far. One that was made while a step was recorded, and so has no memory, is as good as none.
    pub(crate) fn grad(&self) -> MutexGuard<'_, Option<Tensor>> {
        let mut grad = self.grad.lock().unwrap_or_else(PoisonError::into_inner);
        if grad.as_ref().is_some_and(|g| g.storage().birth().is_some_and(|b| b.is_over())) {
            *grad = None;
        }
        grad
    }
}

/// Where the gradient of an input goes.
pub(crate) enum Edge {
    Leaf(Arc<Leaf>),
    Output(Recycled<Node>, usize),
}

/// An input of a recorded operation.
pub(crate) struct Input {
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    pub(crate) edge: Option<Edge>,
}
