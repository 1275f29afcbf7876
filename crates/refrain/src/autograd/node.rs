//! Nodes of the tape.

use std::cell::Cell;
use std::sync::{Arc, PoisonError};

use smallbox::{SmallBox, smallbox};
use smallvec::SmallVec;

use super::backward::Gradients;
use super::grad_mode::is_grad_enabled;
use super::lineage::{check_current, check_operands, supersede};
use super::outside::{self, Before};
use crate::device::RESULTS;
use crate::device::Watch;
use crate::error::{Error, Result};
use crate::recycled::{Recycled, recycle};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::tensor::{DType, Shape, Tensor};

/// Something with a gradient: an operation or a view.
pub(crate) trait Differentiable: Send + Sync {
    /// The operation's name.
    fn name(&self) -> &'static str;

    /// Which values the backward pass reads, given which inputs need a gradient.
    fn saves(&self, _needs: &[bool]) -> Saves {
        Saves::default()
    }

    /// Whether the output is the input's memory under another layout.
    fn is_view(&self) -> bool {
        false
    }

    /// Turns the gradients of the outputs into gradients of the inputs.
    fn backward(&self, g: &mut Gradients<'_>) -> Result<()>;
}

/// A set of inputs and a set of outputs, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Saves {
    inputs: u32,
    outputs: u32,
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

    /// Whether bit `i` is set. An operation on more operands than there are bits saves none of those.
    fn has(bits: u32, i: usize) -> bool {
        i < u32::BITS as usize && bits >> i & 1 == 1
    }
}

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

/// A value that the backward pass will read, watched until then.
pub(super) struct Saved {
    tensor: Tensor,
    watch: Watch,
}

impl Saved {
    fn new(tensor: &Tensor) -> Saved {
        Saved {
            tensor: tensor.untracked(),
            watch: Watch::new(tensor.storage(), tensor.operand().byte_range()),
        }
    }

    pub(super) fn get(&self, op: &'static str, role: impl Fn() -> String) -> Result<Tensor> {
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
pub(super) struct SavedValues {
    pub(super) inputs: SmallVec<[Option<Saved>; INPUTS]>,
    pub(super) outputs: SmallVec<[Option<Saved>; RESULTS]>,
}

/// Where the gradient of an input goes.
pub(super) enum Edge {
    Leaf(Arc<Leaf>),
    Output(Recycled<Node>, usize),
}

/// An input of a recorded operation.
pub(super) struct Input {
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    pub(super) edge: Option<Edge>,
}

/// Room for an operation's own values beside its node, so that they need no memory of their own.
type Inline = [usize; 20];

/// Inputs of which lists need no memory of their own: as many as batch norm has.
const INPUTS: usize = 5;

/// A recorded operation.
pub(crate) struct Node {
    /// Nodes are numbered as they are made: consumers have higher numbers than producers.
    pub(super) seq: u64,
    pub(super) function: SmallBox<dyn Differentiable, Inline>,
    pub(super) inputs: SmallVec<[Input; INPUTS]>,
    pub(super) outputs: usize,
    /// `None` once a backward pass has used them.
    saved: Mutex<Option<SavedValues>>,
    /// Of a node that was made while a step was recorded.
    pub(super) birth: Option<outside::Birth>,
}

recycle!(Node);

thread_local! {
    /// The stack of [`Node::drop`], kept for its memory.
    static STACK: Cell<Vec<Recycled<Node>>> = const { Cell::new(Vec::new()) };
}

impl Node {
    pub(super) fn saved(&self) -> MutexGuard<'_, Option<SavedValues>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a backward pass that finds no saved values.
    pub(super) fn released(&self) -> Error {
        Error::Autograd {
            op: self.function.name(),
            message: "a backward pass has released the values saved here; run the forward pass again, or use backward_retain for the first pass".to_string(),
        }
    }

    /// Whether the saved values are there, and as they were.
    pub(super) fn check_saved(&self) -> Result<()> {
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

    /// Moves the nodes behind this one to the stack.
    fn detach(&mut self, stack: &mut Vec<Recycled<Node>>) {
        for input in &mut self.inputs {
            if let Some(Edge::Output(node, _)) = input.edge.take() {
                stack.push(node);
            }
        }
    }
}

impl Drop for Node {
    /// Takes the tape behind this node apart in a loop: a chain of 100,000 operations would overflow
    /// the stack if each node dropped the one before it.
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

fn edge_of(tensor: &Tensor) -> Option<Edge> {
    match &*tensor.history() {
        History::Constant => None,
        History::Leaf(leaf) => Some(Edge::Leaf(leaf.clone())),
        History::Output(node, output) => Some(Edge::Output(node.clone(), *output)),
    }
}

/// Whether an operation on these inputs belongs on the tape.
fn is_recorded(inputs: &[&Tensor]) -> bool {
    is_grad_enabled() && inputs.iter().any(|t| t.requires_grad())
}

/// An operation about to run that belongs on the tape, with its operands as they are before it runs:
/// it may write over one of them, or over a value that it saves, which the watch then sees.
pub(crate) struct Recording {
    inputs: SmallVec<[Input; INPUTS]>,
    saves: Saves,
    saved: SmallVec<[Option<Saved>; INPUTS]>,
}

impl Recording {
    /// Before the operation runs on `operands`, which stand for `inputs`: gradients are the inputs', of their dtypes, what
    /// is saved are operands. `None` if none of the inputs needs a gradient.
    pub(crate) fn begin(
        function: &impl Differentiable,
        inputs: &[&Tensor],
        operands: &[&Tensor],
    ) -> Option<Recording> {
        if !is_recorded(inputs) {
            return None;
        }
        let inputs: SmallVec<[Input; INPUTS]> = inputs
            .iter()
            .map(|t| Input { shape: t.shape().clone(), dtype: t.dtype(), edge: edge_of(t) })
            .collect();
        let needs: SmallVec<[bool; INPUTS]> = inputs.iter().map(|i| i.edge.is_some()).collect();
        let saves = function.saves(&needs);
        let saved =
            operands.iter().enumerate().map(|(i, t)| Saves::has(saves.inputs, i).then(|| Saved::new(t)));
        let saved = saved.collect();
        Some(Recording { inputs, saves, saved })
    }

    /// After it ran: puts it on the tape. Outputs that are not floating-point are constants.
    pub(crate) fn finish(self, function: impl Differentiable + 'static, outputs: &[Tensor]) {
        let Recording { inputs, saves, saved } = self;
        if !outputs.iter().any(|t| t.dtype().is_float()) {
            return;
        }
        let keep = |(o, t): (usize, &Tensor)| Saves::has(saves.outputs, o).then(|| Saved::new(t));
        let saved = SavedValues { inputs: saved, outputs: outputs.iter().enumerate().map(keep).collect() };
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let seq = NEXT.fetch_add(1, Ordering::Relaxed);
        let birth = outside::birth(seq, function.name(), outputs);
        let node = Recycled::new(Node {
            seq,
            function: smallbox!(function),
            inputs,
            outputs: outputs.len(),
            saved: Mutex::new(Some(saved)),
            birth,
        });
        for (o, output) in outputs.iter().enumerate() {
            *output.history() = match output.dtype().is_float() {
                true => History::Output(node.clone(), o),
                false => History::Constant,
            };
        }
    }
}

/// After an operation that wrote into `dst`: puts it on the tape, with `dst` as the first of its outputs, if it
/// was recorded. If not, `dst` needs no gradient any more; but inside `no_grad` it stays what it is, so that a leaf
/// that is updated in place remains one.
pub(crate) fn wrote_into(
    function: impl Differentiable + 'static,
    recording: Option<Recording>,
    dst: &Tensor,
    outputs: &[Tensor],
) {
    if !is_grad_enabled() {
        return;
    }
    let op = function.name();
    let before = Before::take(dst);
    if let Some(recording) = recording {
        recording.finish(function, outputs);
    }
    let changed = dst.requires_grad() || before.has_history();
    if changed {
        supersede(op, dst);
    }
    outside::wrote(op, dst, before, changed);
}

/// Whether `dst` may be written by an operation outside the tape.
pub(crate) fn check_in_place(op: &'static str, dst: &Tensor) -> Result<()> {
    if !is_grad_enabled() {
        return Ok(());
    }
    if dst.requires_grad() {
        return Err(Error::Autograd {
            op,
            message: "the destination requires a gradient and would be overwritten; run this inside no_grad, or write into another tensor".to_string(),
        });
    }
    check_current(op, dst, || "the destination".to_string())?;
    outside::writes_in_place(op, dst);
    Ok(())
}

/// Whether an operation outside the tape may take `operand` as its second, whose gradient would be lost.
pub(crate) fn check_untaped(op: &'static str, operand: &Tensor) -> Result<()> {
    if is_grad_enabled() && operand.requires_grad() {
        return Err(Error::Autograd {
            op,
            message: format!(
                "the second operand ({} {}) requires a gradient, which an assignment in place does not pass on; detach() it or run this inside no_grad if it needs none here, or use the _into form, which is on the tape",
                operand.dtype(),
                operand.shape()
            ),
        });
    }
    check_operands(op, &[operand])
}

/// Whether an operation may write into `dst`, after which `dst` is its result on the tape.
pub(crate) fn check_destination(op: &'static str, inputs: &[&Tensor], dst: &Tensor) -> Result<()> {
    if !is_grad_enabled() {
        return Ok(());
    }
    let (leaf, view) = match &*dst.history() {
        History::Leaf(_) => (true, false),
        History::Output(node, _) => (false, node.function.is_view()),
        History::Constant => (false, false),
    };
    if leaf {
        return check_in_place(op, dst);
    }
    check_operands(op, inputs)?;
    check_current(op, dst, || "the destination".to_string())?;
    // Other views of the memory would not know where their values came from.
    if view || is_recorded(inputs) && !dst.covers_storage() {
        let what = if view { "the destination" } else { "an operand" };
        return Err(Error::Autograd {
            op,
            message: format!(
                "{what} requires a gradient, but the destination is a view of another tensor, which can't take part in the backward pass; write into a whole tensor, or run this inside no_grad"
            ),
        });
    }
    Ok(())
}

impl Tensor {
    /// Asks for a gradient of this tensor (or no longer): `backward` will add to [`Tensor::grad`].
    ///
    /// # Errors
    /// If the tensor is not floating-point, or is the result of a recorded operation.
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
            _ => {}
        }
        Ok(())
    }

    /// Whether the backward pass reaches this tensor.
    pub fn requires_grad(&self) -> bool {
        !matches!(&*self.history(), History::Constant)
    }

    /// The gradient gathered so far in a leaf: a handle without history, as [`Tensor::detach`] gives. Its storage stays the
    /// same from one backward pass to the next; new gradients are added in place.
    pub fn grad(&self) -> Option<Tensor> {
        match &*self.history() {
            // Not the leaf's own handle: what is hung on that would hang on the leaf, and so on to any depth.
            History::Leaf(leaf) => leaf.grad().as_ref().map(Tensor::detach),
            _ => None,
        }
    }

    /// Lets the gradient of a leaf gather in memory of the caller's choice, such as a view of a flat
    /// buffer. What stands there stays and is added to. The layout is free: the gradient is the same numbers as in memory of
    /// the leaf's own.
    ///
    /// # Errors
    /// If the tensor is no leaf, or shape, dtype or device differ, or the buffer repeats memory.
    pub fn set_grad(&self, buffer: &Tensor) -> Result<()> {
        const OP: &str = "set_grad";
        if buffer.shape() != self.shape() {
            return Err(Error::shapes(
                OP,
                self.shape(),
                buffer.shape(),
                "a gradient has the shape of its tensor",
            ));
        }
        buffer.require_dtype(OP, self.dtype())?;
        crate::ops::check_devices(OP, &[self, buffer])?;
        if buffer.layout().repeats_memory() {
            return Err(Error::invalid(
                OP,
                "the buffer repeats memory by broadcasting; pass one with an element for each value",
            ));
        }
        match &*self.history() {
            History::Leaf(leaf) => *leaf.grad() = Some(buffer.detach()),
            _ => {
                return Err(Error::Autograd {
                    op: OP,
                    message: "this tensor is not a leaf that requires a gradient; call set_requires_grad(true) first".to_string(),
                });
            }
        }
        Ok(())
    }

    /// Sets the gradient gathered so far to zero, in place.
    pub fn zero_grad(&self) -> Result<()> {
        match self.grad() {
            Some(grad) => grad.fill(0.0),
            None => Ok(()),
        }
    }
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
