//! The tape while a step is recorded.
//!
//! A recording runs nothing, so tensors from outside keep their histories. What the closure changes in them is undone
//! when the recording ends. Each replay does it again, with the checks of eager code. What was made in the recording
//! ends with it: if a node of the tape is still reachable then, that is an escape, and a backward pass through it is
//! an error.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::lineage::check_current;
use super::tape::{check_destination, check_in_place};
use super::watched::history_changed;
use crate::device::program::Effects;
use crate::device::recording;
use crate::error::{Error, Result};
use crate::recycled::Recycled;
#[cfg(shuttle)]
use crate::sync::keys::*;
use crate::sync::thread_local;
use crate::tensor::{BornNode, DType, Edge, History, Leaf, Node, NodeBirth, RecordedNodes, Shape, Tensor};

thread_local! {
    /// The tape of the step that this thread records.
    static RECORDED: RefCell<Option<RecordedTape>> = const { RefCell::new(None) };
}

/// What a recording does to the tape. Dropping it restores the histories of tensors from outside.
pub(crate) struct RecordedTape {
    /// The name of the device of the step.
    device: String,
    nodes: Arc<RecordedNodes>,
    writes: Vec<Write>,
    /// For each tensor (by its handle), its index in `writes`.
    known: HashMap<usize, usize>,
    /// The tensors from outside that operations use while gradients are enabled, and their handles.
    used: Vec<Tensor>,
    used_handles: HashSet<usize>,
    /// Whether a backward pass has begun.
    backward: bool,
    /// Nodes from outside that backward passes went through, by number.
    passed: BTreeMap<u64, Recycled<Node>>,
    /// The first backward pass that can't be recorded. It counts even if the closure ignores the error.
    refused: Option<Error>,
}

/// A write of the recording, with gradients enabled, into a tensor from outside.
struct Write {
    tensor: Tensor,
    /// The operation of the first write.
    op: &'static str,
    /// Whether that was an operation on the tape with the tensor itself as its destination. It ends the tensor's
    /// history; other writes are refused for a tensor with a history.
    replaces: bool,
    /// History and change number of the tensor before an operation on the tape first had it as its destination.
    before: Option<(History, u64)>,
    /// The number of changes of its lineage, the operation of the last one, and that of the one before.
    changes: u64,
    by: &'static str,
    by_before: Option<&'static str>,
    /// Whether the recording gave the tensor a history.
    gains_history: bool,
}

/// The state of a destination before an operation on the tape writes into it.
pub(super) struct Before {
    history: History,
    change: u64,
    by: &'static str,
}

impl Before {
    /// Takes the history away.
    pub(super) fn take(dst: &Tensor) -> Before {
        let history = std::mem::take(&mut *dst.history());
        Before { history, change: dst.change(), by: dst.lineage().by() }
    }

    pub(super) fn has_history(&self) -> bool {
        !matches!(self.history, History::Constant)
    }
}

/// What the recording means for tensors from outside: what each replay must check and do.
#[derive(Default)]
pub(crate) struct Outside {
    writes: Vec<Replayed>,
    passed: Vec<Recycled<Node>>,
    /// What operations use while gradients are enabled. A replay does what a backward pass did at them when the step was
    /// recorded.
    pub(super) used: Vec<Tensor>,
    /// Whether the recording has a backward pass.
    pub(super) backward: bool,
}

impl Outside {
    /// The leaves to which backward passes go through nodes from outside, with the dtypes and shapes of their tensors.
    pub(super) fn leaves(&self) -> impl Iterator<Item = (&Arc<Leaf>, DType, &Shape)> {
        self.passed.iter().flat_map(|node| &node.inputs).filter_map(|input| match &input.edge {
            Some(Edge::Leaf(leaf)) => Some((leaf, input.dtype, &input.shape)),
            _ => None,
        })
    }
}

/// What each replay writes into a tensor from outside.
struct Replayed {
    tensor: Tensor,
    op: &'static str,
    replaces: bool,
    /// Whether an operation on the tape has the tensor itself as its destination.
    ends_history: bool,
    /// Whether the tensor has a history in between. Then its lineage changes even if it had no history before.
    gains_history: bool,
    by: &'static str,
    /// Whether the tensor's history describes its values afterwards.
    is_current: bool,
}

fn with<R>(f: impl FnOnce(&mut RecordedTape) -> R) -> Option<R> {
    recording::current()?;
    RECORDED.with_borrow_mut(|tape| tape.as_mut().map(f))
}

/// Called before a backward pass from a tensor.
pub(crate) fn begins_backward(root: &Tensor) {
    uses(&[root]);
    with(|tape| tape.backward = true);
}

/// Called before an operation that may belong on the tape runs on these inputs, and before a backward pass from them.
pub(super) fn uses(inputs: &[&Tensor]) {
    let Some(step) = recording::current() else { return };
    with(|tape| {
        for input in inputs {
            let is_outside = input.before_recording(step).is_some_and(|before| before.is_same(input));
            if is_outside && tape.used_handles.insert(input.handle()) {
                tape.used.push((*input).clone());
            }
        }
    });
}

/// Called before an operation outside the tape writes into `dst`.
pub(super) fn writes_in_place(op: &'static str, dst: &Tensor) {
    if let Some(tensor) = recording::current().and_then(|step| dst.before_recording(step)) {
        with(|tape| {
            tape.write(op, tensor, false);
        });
    }
}

/// Called after an operation on the tape has written into `dst`. `changed` says whether that changed its lineage.
pub(super) fn wrote(op: &'static str, dst: &Tensor, before: Before, changed: bool) {
    let Some(tensor) = recording::current().and_then(|step| dst.before_recording(step)) else { return };
    let gains_history = dst.requires_grad();
    with(|tape| {
        let itself = tensor.is_same(dst);
        let write = tape.write(op, tensor, itself);
        write.changes += u64::from(changed);
        write.by = op;
        write.by_before.get_or_insert(before.by);
        write.gains_history |= gains_history;
        if itself {
            write.before.get_or_insert((before.history, before.change));
        }
    });
}

/// The birth record of a node with these outputs. `None` if this thread does not record a step.
pub(super) fn birth(seq: u64, op: &'static str, outputs: &[Tensor]) -> Option<NodeBirth> {
    let output = outputs.first()?;
    with(|tape| {
        let outside = output.storage().birth().is_none();
        let outside = outside.then(|| Box::new((output.dtype(), output.shape().clone())));
        tape.nodes.alive().insert(seq, BornNode { op, outside });
        NodeBirth { nodes: tape.nodes.clone(), seq }
    })
}

/// Checks that a backward pass may go through a node.
///
/// # Errors
/// [`Error::Escaped`] for a node of a recording that has ended. While a step is recorded, [`Error::NotRecordable`]
/// for a node from outside whose saved values the pass would release.
pub(super) fn passes(node: &Recycled<Node>, gradient: &Tensor, retain: bool) -> Result<()> {
    if let Some(birth) = &node.birth {
        return match with(|tape| Arc::ptr_eq(&tape.nodes, &birth.nodes)) {
            Some(true) => Ok(()),
            _ => Err(Error::Escaped {
                op: node.function.name(),
                tensor: format!("{} {}", gradient.dtype(), gradient.shape()),
                message: "the backward pass can't go through it here, because no replay computes the values that were saved for it; run the forward pass again".to_string(),
            }),
        };
    }
    let passed = with(|tape| {
        if !retain {
            let error = Error::NotRecordable {
                op: node.function.name(),
                device: tape.device.clone(),
                message: "it ran before the step, and the backward pass would release its saved values, which the next call needs; run the forward pass in the closure, or use backward_retain".to_string(),
            };
            return Err(tape.refused.get_or_insert(error).clone());
        }
        tape.passed.entry(node.seq).or_insert_with(|| node.clone());
        Ok(())
    });
    passed.unwrap_or(Ok(()))
}

/// The error for a tensor from outside whose history was made in a recording, by `op`.
fn held(op: &'static str, dtype: DType, shape: &Shape) -> Error {
    Error::Escaped {
        op,
        tensor: format!("{dtype} {shape}"),
        message: "its memory is from outside the step, but it still has its history on the tape after the closure has returned, and no replay would make that history; run the operation inside no_grad, write into detach() of the tensor and continue with that, or make a new tensor in the closure".to_string(),
    }
}

impl RecordedTape {
    /// Starts the tape's part of a recording on this thread.
    pub(crate) fn begin(device: String) {
        RECORDED.set(Some(RecordedTape {
            device,
            nodes: Arc::default(),
            writes: Vec::new(),
            known: HashMap::new(),
            used: Vec::new(),
            used_handles: HashSet::new(),
            backward: false,
            passed: BTreeMap::new(),
            refused: None,
        }));
    }

    /// Ends it.
    pub(crate) fn end() -> Option<RecordedTape> {
        RECORDED.take()
    }

    /// The first backward pass that can't be part of a step.
    pub(crate) fn refused(&self) -> Option<Error> {
        self.refused.clone()
    }

    fn write(&mut self, op: &'static str, tensor: &Tensor, replaces: bool) -> &mut Write {
        let at = *self.known.entry(tensor.handle()).or_insert_with(|| {
            self.writes.push(Write {
                tensor: tensor.clone(),
                op,
                replaces,
                before: None,
                changes: 0,
                by: op,
                by_before: None,
                gains_history: false,
            });
            self.writes.len() - 1
        });
        &mut self.writes[at]
    }

    /// Restores the histories of tensors from outside. Call it after everything that the closure made and returned
    /// has been dropped. Returns what replays have to do.
    ///
    /// # Errors
    /// [`Error::Escaped`] if one of these tensors has a history that was made in the recording.
    pub(crate) fn close(&mut self) -> Result<Outside> {
        for write in &self.writes {
            let tensor = &write.tensor;
            if let History::Output(node, _) = &*tensor.history()
                && node.birth.as_ref().is_some_and(|birth| Arc::ptr_eq(&birth.nodes, &self.nodes))
            {
                return Err(held(node.function.name(), tensor.dtype(), tensor.shape()));
            }
        }
        let writes = self.writes.iter().map(|write| {
            let tensor = &write.tensor;
            Replayed {
                tensor: tensor.clone(),
                op: write.op,
                replaces: write.replaces,
                ends_history: write.before.is_some(),
                gains_history: write.gains_history,
                by: write.by,
                is_current: tensor.change() == tensor.lineage().changes(),
            }
        });
        let writes = writes.collect();
        let passed = std::mem::take(&mut self.passed).into_values().collect();
        self.restore();
        Ok(Outside { writes, passed, used: std::mem::take(&mut self.used), backward: self.backward })
    }

    /// After `close`: checks that no other tensor in memory from outside has a history that was made in the
    /// recording.
    ///
    /// # Errors
    /// [`Error::Escaped`].
    pub(crate) fn check_ended(&self) -> Result<()> {
        // A tensor holds the last node, and that node holds the ones before it.
        match self.nodes.alive().last_key_value() {
            Some((_, BornNode { op, outside: Some(outside) })) => Err(held(op, outside.0, &outside.1)),
            _ => Ok(()),
        }
    }

    fn restore(&mut self) {
        for write in self.writes.drain(..).rev() {
            if let Some(by) = write.by_before {
                write.tensor.lineage().undo(write.changes, by);
            }
            let Some((history, change)) = write.before else { continue };
            write.tensor.belongs_to_change(change);
            let recorded = std::mem::replace(&mut *write.tensor.history(), history);
            if let History::Leaf(leaf) = recorded {
                // The closure has marked the tensor since then, which stays.
                *write.tensor.history() = History::Leaf(leaf);
            }
        }
    }
}

impl Drop for RecordedTape {
    fn drop(&mut self) {
        self.restore();
    }
}

impl Effects for Outside {
    /// Checks that eager code would run: no write would destroy a needed history, and the values that backward passes
    /// read are unchanged.
    fn check(&self) -> Result<()> {
        for Replayed { tensor, op, replaces, .. } in &self.writes {
            match replaces {
                true => check_destination(op, &[], tensor)?,
                false => check_in_place(op, tensor)?,
            }
        }
        self.passed.iter().try_for_each(|node| node.check_saved())
    }

    /// Ends the histories of what a replay wrote.
    fn done(&self) {
        for Replayed { tensor, ends_history, gains_history, by, is_current, .. } in &self.writes {
            let before =
                if *ends_history { std::mem::take(&mut *tensor.history()) } else { History::Constant };
            if *gains_history || !matches!(before, History::Constant) {
                history_changed();
                let change = tensor.lineage().change(by);
                if *is_current {
                    tensor.belongs_to_change(change);
                }
            }
        }
    }
}

/// Checks that an input of a step needs no gradient. The step works on copies, which pass no gradient on.
pub(crate) fn check_input(op: &'static str, i: usize, input: &Tensor) -> Result<()> {
    if !super::is_grad_enabled() {
        return Ok(());
    }
    check_current(op, input, || format!("input {i}"))?;
    if input.requires_grad() {
        return Err(Error::Autograd {
            op,
            message: format!(
                "input {i} ({} {}) requires a gradient, but a step works on copies of its inputs, which pass no gradient on; pass its detach(), or use the tensor in the closure directly instead of as an input",
                input.dtype(),
                input.shape()
            ),
        });
    }
    Ok(())
}
