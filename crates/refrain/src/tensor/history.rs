//! Where a tensor's values came from, as the tensor keeps it. `autograd/` fills it and follows it back.

use std::sync::{Arc, PoisonError};

use super::Tensor;
use super::node::Node;
use crate::recycled::Recycled;
use crate::sync::{Mutex, MutexGuard};
use crate::types::{DType, Shape};

/// The origin of a tensor's values.
#[derive(Default)]
pub(crate) enum History {
    /// No operation that needs a gradient.
    #[default]
    Constant,
    /// A leaf: the user called `set_requires_grad`.
    Leaf(Arc<Leaf>),
    /// The output of an operation on the tape.
    Output(Recycled<Node>, usize),
}

/// The destination of the gradient of a leaf.
#[derive(Default)]
pub(crate) struct Leaf {
    grad: Mutex<Option<Tensor>>,
    /// What messages call it.
    name: Mutex<Option<Arc<str>>>,
}

impl Leaf {
    /// The gradient so far. A gradient that was made while a step was recorded has no memory, so it counts as none.
    pub(crate) fn grad(&self) -> MutexGuard<'_, Option<Tensor>> {
        let mut grad = self.grad.lock().unwrap_or_else(PoisonError::into_inner);
        if grad.as_ref().is_some_and(|g| g.storage().birth().is_some_and(|b| b.is_over())) {
            *grad = None;
        }
        grad
    }

    pub(crate) fn name(&self) -> Option<Arc<str>> {
        self.name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_name(&self, name: &str) {
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.into());
    }
}

/// The destination of the gradient of an input.
pub(crate) enum Edge {
    Leaf(Arc<Leaf>),
    Output(Recycled<Node>, usize),
}

/// An input of an operation on the tape.
pub(crate) struct Input {
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    pub(crate) edge: Option<Edge>,
}
