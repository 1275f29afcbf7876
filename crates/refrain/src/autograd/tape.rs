//! Operations go on the tape.

use smallbox::smallbox;
use smallvec::SmallVec;

use super::grad_mode::is_grad_enabled;
use super::lineage::{check_current, check_operands, supersede};
use super::outside::{self, Before};
use super::watched::history_changed;
use crate::error::{Error, Result};
use crate::recycled::Recycled;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tensor::{
    Differentiable, Edge, Function, History, INPUTS, Input, Layout, Node, Saved, SavedValues, Saves, Tensor,
};

fn edge_of(tensor: &Tensor) -> Option<Edge> {
    match &*tensor.history() {
        History::Constant => None,
        History::Leaf(leaf) => Some(Edge::Leaf(leaf.clone())),
        History::Output(node, output) => Some(Edge::Output(node.clone(), *output)),
    }
}

/// Whether an operation on these inputs belongs on the tape.
fn is_recorded(inputs: &[&Tensor]) -> bool {
    if !is_grad_enabled() {
        return false;
    }
    outside::uses(inputs);
    inputs.iter().any(|t| t.requires_grad())
}

/// An operation that will be put on the tape, with its operands before it runs. If it overwrites one of them, or a
/// value that it saves, this is detected.
pub(crate) struct TapeEntry {
    inputs: SmallVec<[Input; INPUTS]>,
    saves: Saves,
    saved: SmallVec<[Option<Saved>; INPUTS]>,
}

impl TapeEntry {
    /// Called before the operation runs on `operands`, which replace `inputs`. Gradients go to the inputs, in their
    /// dtypes; the saved values are operands. `None` if no input needs a gradient.
    pub(crate) fn begin(
        function: &dyn Differentiable,
        inputs: &[&Tensor],
        operands: &[&Tensor],
    ) -> Option<TapeEntry> {
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
        Some(TapeEntry { inputs, saves, saved })
    }

    /// Called after the operation ran: puts it on the tape. Outputs that are not floating-point are constants.
    pub(crate) fn finish(self, function: impl Differentiable + 'static, outputs: &[Tensor]) {
        self.finish_with(smallbox!(function), outputs);
    }

    fn finish_with(self, function: Function, outputs: &[Tensor]) {
        let TapeEntry { inputs, saves, saved } = self;
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
            function,
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

/// Called after an operation wrote into `dst`. If the operation belongs on the tape, puts it there with `dst` as its
/// first output. Otherwise `dst` no longer needs a gradient, except inside `no_grad`, where it stays as it is: a leaf
/// that is updated in place stays a leaf.
pub(crate) fn wrote_into(
    function: impl Differentiable + 'static,
    recording: Option<TapeEntry>,
    dst: &Tensor,
    outputs: &[Tensor],
) {
    let op = function.name();
    let recording = recording.map(|recording| -> (TapeEntry, Function) { (recording, smallbox!(function)) });
    wrote_with(op, recording, dst, outputs);
}

fn wrote_with(op: &'static str, recording: Option<(TapeEntry, Function)>, dst: &Tensor, outputs: &[Tensor]) {
    if !is_grad_enabled() {
        return;
    }
    let before = Before::take(dst);
    if let Some((recording, function)) = recording {
        recording.finish_with(function, outputs);
    }
    let changed = dst.requires_grad() || before.has_history();
    if changed {
        supersede(op, dst);
        history_changed();
    }
    outside::wrote(op, dst, before, changed);
}

/// Checks that an operation outside the tape may write to `dst`.
pub(crate) fn check_in_place(op: &'static str, dst: &Tensor) -> Result<()> {
    if !is_grad_enabled() {
        return Ok(());
    }
    if dst.requires_grad() {
        let name = match &*dst.history() {
            History::Leaf(leaf) => leaf.name(),
            _ => None,
        };
        let name = name.map_or(String::new(), |name| format!(" ({name})"));
        return Err(Error::Autograd {
            op,
            message: format!(
                "the destination{name} requires a gradient and would be overwritten; run this inside no_grad, or write into another tensor"
            ),
        });
    }
    check_current(op, dst, || "the destination".to_string())?;
    outside::writes_in_place(op, dst);
    Ok(())
}

/// Checks that an operation outside the tape may have `operand` as its second operand. Its gradient would be lost.
pub(crate) fn check_untaped(op: &'static str, operand: &Tensor) -> Result<()> {
    if is_grad_enabled() && operand.requires_grad() {
        return Err(Error::Autograd {
            op,
            message: format!(
                "the second operand ({} {}) requires a gradient, but an in-place assignment is not on the tape; if no gradient is needed here, use detach() or run this inside no_grad, otherwise use the _into form, which is on the tape",
                operand.dtype(),
                operand.shape()
            ),
        });
    }
    check_operands(op, &[operand])
}

/// Checks that an operation may write into `dst`, which then becomes its result on the tape.
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
    // Other views of the memory would not know the origin of their values.
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
    /// The same memory in another layout, with the view as an entry of the tape.
    pub(crate) fn view_as(&self, layout: Layout, view: impl Differentiable + 'static) -> Tensor {
        let out = self.same_memory(layout);
        if let Some(recording) = TapeEntry::begin(&view, &[self], &[self]) {
            recording.finish(view, std::slice::from_ref(&out));
        }
        out
    }
}
