//! Which tensors from outside a recorded step takes gradients for. A change of that is known at the next call, without a
//! recording.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::outside::Outside;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tensor::{DType, History, Leaf, Shape, Tensor};

/// Counts changes of histories that steps watch.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Called after the user, or an operation with a destination, has changed the history of a tensor.
pub(super) fn history_changed() {
    CHANGES.fetch_add(1, Ordering::Release);
}

/// What a backward pass does at a tensor.
enum Reach {
    /// It does not reach it.
    No,
    /// It adds to this memory, or makes it.
    Gradient(Option<Tensor>),
    /// It goes on to the operation with this number.
    Operation(u64),
}

impl Reach {
    fn of(tensor: &Tensor) -> (Reach, Option<Arc<str>>) {
        match &*tensor.history() {
            History::Constant => (Reach::No, None),
            History::Leaf(leaf) => Reach::of_leaf(leaf),
            History::Output(node, _) => (Reach::Operation(node.seq), None),
        }
    }

    fn of_leaf(leaf: &Leaf) -> (Reach, Option<Arc<str>>) {
        (Reach::Gradient(leaf.grad().clone()), leaf.name())
    }

    /// How a backward pass differs now.
    fn difference(&self, now: &Reach) -> Option<&'static str> {
        match (self, now) {
            (Reach::No, Reach::No) => None,
            (Reach::Operation(a), Reach::Operation(b)) if a == b => None,
            (Reach::Gradient(a), Reach::Gradient(b)) => {
                let is_same = match (a, b) {
                    (Some(a), Some(b)) => a.storage_id() == b.storage_id() && a.layout() == b.layout(),
                    (None, None) => true,
                    (Some(_), None) => {
                        return Some("has lost the memory of its gradient (set_requires_grad)");
                    }
                    (None, Some(_)) => false,
                };
                (!is_same).then_some("has its gradient in other memory now (set_grad)")
            }
            (_, Reach::No) => Some("no longer requires a gradient"),
            (_, Reach::Gradient(_)) => Some("requires a gradient now"),
            (_, Reach::Operation(_)) => Some("is now the result of another operation on the tape"),
        }
    }
}

/// Where a backward pass of the step may arrive.
enum Place {
    /// A tensor from outside.
    Tensor(Tensor),
    /// A leaf behind the tape outside, with the dtype and shape of its tensor. What happens to the tensor itself changes nothing
    /// for the operations that were on the tape before.
    Leaf(Arc<Leaf>, DType, Shape),
}

impl Place {
    fn reach(&self) -> (Reach, Option<Arc<str>>) {
        match self {
            Place::Tensor(tensor) => Reach::of(tensor),
            Place::Leaf(leaf, ..) => Reach::of_leaf(leaf),
        }
    }

    fn dtype_and_shape(&self) -> (DType, &Shape) {
        match self {
            Place::Tensor(tensor) => (tensor.dtype(), tensor.shape()),
            Place::Leaf(_, dtype, shape) => (*dtype, shape),
        }
    }
}

/// A place, as it was when the step was recorded.
struct Watched {
    place: Place,
    reach: Reach,
    name: Option<Arc<str>>,
}

impl Watched {
    fn new(place: Place) -> Watched {
        let (reach, name) = place.reach();
        Watched { place, reach, name }
    }

    fn difference(&self) -> Option<String> {
        let (now, name) = self.place.reach();
        let what = self.reach.difference(&now)?;
        let (dtype, shape) = self.place.dtype_and_shape();
        let tensor = format_args!("{dtype} {shape}");
        Some(match name.as_ref().or(self.name.as_ref()) {
            Some(name) => format!("{name} ({tensor}) {what}"),
            None => format!("a tensor from outside the step ({tensor}) {what}"),
        })
    }
}

/// The tensors from outside that a recorded step uses while gradients are enabled, and the leaves behind them.
pub(crate) struct WatchedHistories {
    all: Vec<Watched>,
    /// Whether the step has a backward pass.
    backward: bool,
    /// The number of changes when `all` was last right.
    seen: u64,
}

impl WatchedHistories {
    /// All as they are now.
    pub(crate) fn new(outside: &Outside) -> WatchedHistories {
        let seen = CHANGES.load(Ordering::Acquire);
        let mut known = HashSet::new();
        for tensor in &outside.used {
            if let History::Leaf(leaf) = &*tensor.history() {
                known.insert(Arc::as_ptr(leaf));
            }
        }
        let tensors = outside.used.iter().cloned().map(Place::Tensor);
        let leaves = outside.leaves().filter(|(leaf, ..)| known.insert(Arc::as_ptr(leaf)));
        let leaves = leaves.map(|(leaf, dtype, shape)| Place::Leaf(leaf.clone(), dtype, shape.clone()));
        let all = tensors.chain(leaves).map(Watched::new).collect();
        WatchedHistories { all, backward: outside.backward, seen }
    }

    /// What has changed since then, if anything has.
    pub(crate) fn difference(&mut self) -> Option<HistoriesDiffer> {
        let changes = CHANGES.load(Ordering::Acquire);
        if changes == self.seen {
            return None;
        }
        let mut differences = self.all.iter().filter_map(Watched::difference);
        let Some(first) = differences.next() else {
            self.seen = changes;
            return None;
        };
        Some(HistoriesDiffer { first, others: differences.count(), backward: self.backward })
    }

    /// From now on, the tensors as they are now count as unchanged.
    pub(crate) fn accept(&mut self) {
        self.seen = CHANGES.load(Ordering::Acquire);
        for watched in &mut self.all {
            let (reach, name) = watched.place.reach();
            watched.reach = reach;
            watched.name = name.or(watched.name.take());
        }
    }
}

/// What a backward pass does at tensors from outside, and did not do when the step was recorded.
pub(crate) struct HistoriesDiffer {
    first: String,
    others: usize,
    backward: bool,
}

impl HistoriesDiffer {
    /// Whether the step has a backward pass.
    pub(crate) fn in_backward_pass(&self) -> bool {
        self.backward
    }
}

impl fmt::Display for HistoriesDiffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first)?;
        match self.others {
            0 => Ok(()),
            n => write!(f, " (and {n} more changed so)"),
        }
    }
}
