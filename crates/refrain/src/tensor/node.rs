//! Nodes of the tape: an operation with what its backward pass needs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use smallbox::SmallBox;
use smallvec::SmallVec;

use super::Tensor;
use super::gradients::Gradients;
use super::history::{Edge, Input};
use crate::device::{RESULTS, Watch};
use crate::error::{Error, Result};
use crate::recycled::{Recycled, recycle};
use crate::sync::{Mutex, MutexGuard};
use crate::types::{DType, Shape};

/// Something with a gradient: an operation or a view.
pub(crate) trait Differentiable: Send + Sync {
    /// The operation's name.
    fn name(&self) -> &'static str;

    /// Which values the backward pass needs, given which inputs need a gradient.
    fn saves(&self, _needs: &[bool]) -> Saves {
        Saves::default()
    }

    /// Whether the output is the memory of the input in another layout.
    fn is_view(&self) -> bool {
        false
    }

    /// Computes the gradients of the inputs from the gradients of the outputs.
    fn backward(&self, g: &mut Gradients<'_>) -> Result<()>;
}

/// A set of inputs and a set of outputs, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Saves {
    pub(crate) inputs: u32,
    pub(crate) outputs: u32,
}

impl Saves {
    /// Saves input `i` if `needed`.
    pub(crate) fn input_if(mut self, i: usize, needed: bool) -> Saves {
        self.inputs |= (needed as u32) << i;
        self
    }

    pub(crate) fn input(self, i: usize) -> Saves {
        self.input_if(i, true)
    }

    pub(crate) fn output(mut self, o: usize) -> Saves {
        self.outputs |= 1 << o;
        self
    }

    /// Whether bit `i` is set. Operands beyond the number of bits are never saved.
    pub(crate) fn has(bits: u32, i: usize) -> bool {
        i < u32::BITS as usize && bits >> i & 1 == 1
    }
}

/// A value that the backward pass needs. Overwriting it before then is detected.
pub(crate) struct Saved {
    tensor: Tensor,
    watch: Watch,
}

impl Saved {
    pub(crate) fn new(tensor: &Tensor) -> Saved {
        Saved {
            tensor: tensor.untracked(),
            watch: Watch::new(tensor.storage(), tensor.operand().byte_range()),
        }
    }

    pub(crate) fn get(&self, op: &'static str, role: impl Fn() -> String) -> Result<Tensor> {
        match self.watch.overwritten_by() {
            None => Ok(self.tensor.clone()),
            Some(by) => Err(Error::SavedValueOverwritten {
                op,
                tensor: format!("{} ({} {})", role(), self.tensor.dtype(), self.tensor.shape()),
                by,
            }),
        }
    }
}

/// The saved values of a node.
#[derive(Default)]
pub(crate) struct SavedValues {
    pub(crate) inputs: SmallVec<[Option<Saved>; INPUTS]>,
    pub(crate) outputs: SmallVec<[Option<Saved>; RESULTS]>,
}

/// Space in the node for the operation's own values, so that they need no separate allocation.
type Inline = [usize; 20];

/// The operation of a node.
pub(crate) type Function = SmallBox<dyn Differentiable, Inline>;

/// How many inputs fit without a separate allocation: as many as batch norm has.
pub(crate) const INPUTS: usize = 5;

/// An entry of the tape: an operation with its inputs and saved values.
pub(crate) struct Node {
    /// Nodes are numbered in the order of creation, so consumers have higher numbers than producers.
    pub(crate) seq: u64,
    pub(crate) function: Function,
    pub(crate) inputs: SmallVec<[Input; INPUTS]>,
    pub(crate) outputs: usize,
    /// `None` after a backward pass has used them.
    pub(crate) saved: Mutex<Option<SavedValues>>,
    /// Set if the node was made while a step was recorded.
    pub(crate) birth: Option<NodeBirth>,
}

recycle!(Node);

thread_local! {
    /// The stack of [`Node::drop`], kept for its memory.
    static STACK: Cell<Vec<Recycled<Node>>> = const { Cell::new(Vec::new()) };
}

impl Node {
    pub(crate) fn saved(&self) -> MutexGuard<'_, Option<SavedValues>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a backward pass whose saved values are gone.
    pub(crate) fn released(&self) -> Error {
        Error::Autograd {
            op: self.function.name(),
            message: "a backward pass has released the values saved here; run the forward pass again, or use backward_retain for the first pass".to_string(),
        }
    }

    /// Checks that the saved values are present and unchanged.
    pub(crate) fn check_saved(&self) -> Result<()> {
        let saved = self.saved();
        let SavedValues { inputs, outputs } = saved.as_ref().ok_or_else(|| self.released())?;
        let check = |role: &'static str, all: &[Option<Saved>]| {
            let mut present = all.iter().enumerate().filter_map(|(i, saved)| Some((i, saved.as_ref()?)));
            present.try_for_each(|(i, saved)| {
                saved.get(self.function.name(), || format!("{role} {i}")).map(drop)
            })
        };
        check("operand", inputs)?;
        check("result", outputs)
    }

    /// Moves the nodes that this node refers to onto the stack.
    fn detach(&mut self, stack: &mut Vec<Recycled<Node>>) {
        for input in &mut self.inputs {
            if let Some(Edge::Output(node, _)) = input.edge.take() {
                stack.push(node);
            }
        }
    }
}

impl Drop for Node {
    /// Drops the nodes before this one in a loop. If each node dropped the one before it, a chain of 100,000
    /// operations would overflow the stack.
    fn drop(&mut self) {
        if self.inputs.iter().all(|input| !matches!(input.edge, Some(Edge::Output(..)))) {
            return;
        }
        let mut stack = STACK.try_with(Cell::take).unwrap_or_default();
        self.detach(&mut stack);
        while let Some(node) = stack.pop() {
            if let Some(mut node) = node.into_inner() {
                node.detach(&mut stack);
            }
        }
        let _ = STACK.try_with(|kept| kept.set(stack));
    }
}

/// Nodes of a recording that are still reachable, by number.
#[derive(Default)]
pub(crate) struct RecordedNodes(Mutex<BTreeMap<u64, BornNode>>);

/// A node, and its first output if the memory of that output existed before the recording.
pub(crate) struct BornNode {
    pub(crate) op: &'static str,
    pub(crate) outside: Option<Box<(DType, Shape)>>,
}

impl RecordedNodes {
    pub(crate) fn alive(&self) -> MutexGuard<'_, BTreeMap<u64, BornNode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a node knows about the recording that it was made in. When it is dropped, it tells the recording.
pub(crate) struct NodeBirth {
    pub(crate) nodes: Arc<RecordedNodes>,
    pub(crate) seq: u64,
}

impl Drop for NodeBirth {
    fn drop(&mut self) {
        self.nodes.alive().remove(&self.seq);
    }
}
