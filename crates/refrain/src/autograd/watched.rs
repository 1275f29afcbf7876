//! Which tensors from outside a recorded step takes gradients for. A change of that is known at the next call, without a
//! recording.

use std::fmt;
use std::sync::Arc;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tensor::{History, Tensor};

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
            History::Leaf(leaf) => (Reach::Gradient(leaf.grad().clone()), leaf.name()),
            History::Output(node, _) => (Reach::Operation(node.seq), None),
        }
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
                    _ => false,
                };
                (!is_same).then_some("has its gradient in other memory now (set_grad)")
            }
            (_, Reach::No) => Some("no longer requires a gradient"),
            (_, Reach::Gradient(_)) => Some("requires a gradient now"),
            (_, Reach::Operation(_)) => Some("is now the result of another operation on the tape"),
        }
    }
}

/// A tensor from outside, as it was when the step was recorded.
struct Watched {
    tensor: Tensor,
    reach: Reach,
    name: Option<Arc<str>>,
}

impl Watched {
    fn new(tensor: Tensor) -> Watched {
        let (reach, name) = Reach::of(&tensor);
        Watched { tensor, reach, name }
    }

    fn difference(&self) -> Option<String> {
        let (now, name) = Reach::of(&self.tensor);
        let what = self.reach.difference(&now)?;
        let tensor = format_args!("{} {}", self.tensor.dtype(), self.tensor.shape());
        Some(match name.as_ref().or(self.name.as_ref()) {
            Some(name) => format!("{name} ({tensor}) {what}"),
            None => format!("a tensor from outside the step ({tensor}) {what}"),
        })
    }
}

/// The tensors from outside that a recorded step uses while gradients are enabled.
pub(crate) struct WatchedHistories {
    all: Vec<Watched>,
    /// The number of changes when `all` was last right.
    seen: u64,
}

impl WatchedHistories {
    /// The tensors as they are now.
    pub(crate) fn new(tensors: &[Tensor]) -> WatchedHistories {
        let seen = CHANGES.load(Ordering::Acquire);
        WatchedHistories { all: tensors.iter().cloned().map(Watched::new).collect(), seen }
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
        Some(HistoriesDiffer { first, others: differences.count() })
    }

    /// From now on, the tensors as they are now count as unchanged.
    pub(crate) fn accept(&mut self) {
        self.seen = CHANGES.load(Ordering::Acquire);
        for watched in &mut self.all {
            (watched.reach, watched.name) = Reach::of(&watched.tensor);
        }
    }
}

/// What a backward pass does at tensors from outside, and did not do when the step was recorded.
pub(crate) struct HistoriesDiffer {
    first: String,
    others: usize,
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
