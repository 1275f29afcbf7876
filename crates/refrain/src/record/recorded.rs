//! What a recording brought: launches in order, as they would have run.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::autograd::Outside;
use crate::device::{Kernel, Launch, Mode, Operand, RESULTS, Storage};
use crate::error::{Error, Result};
use crate::ops::random::Generator;
use crate::recycled::{Recycled, emptied};
use crate::tensor::{DType, Layout};

/// Operands of a launch of which a list lies on the stack in a replay.
const INLINE: usize = 48;

thread_local! {
    /// Memory for longer lists, kept for the next replay.
    static LISTS: RefCell<Vec<Vec<Operand<'static>>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with a list of operands.
fn listed<'a, R>(
    operands: impl ExactSizeIterator<Item = Operand<'a>>,
    f: impl FnOnce(&[Operand<'a>]) -> R,
) -> R {
    if operands.len() <= INLINE {
        return f(&operands.collect::<SmallVec<[_; INLINE]>>());
    }
    let mut list = emptied(LISTS.with_borrow_mut(Vec::pop).unwrap_or_default());
    list.extend(operands);
    let done = f(&list);
    LISTS.with_borrow_mut(|lists| lists.push(emptied(list)));
    done
}

/// A storage of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// One that was there before, by its number among `Recorded::externals`.
    External(usize),
    /// One that was born in the recording, by its number among `Recorded::temporaries`.
    Temporary(usize),
}

/// A storage that was born in a recording.
#[derive(Debug)]
pub(crate) struct Temporary {
    /// The operation that made it.
    pub(crate) op: &'static str,
    pub(crate) bytes: usize,
}

/// An operand of a recorded launch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Access {
    pub(crate) place: Place,
    /// Shared by all operands that have it: there are many more launches than ways to lie in memory.
    pub(crate) layout: Arc<Layout>,
    pub(crate) dtype: DType,
}

impl Access {
    /// The bytes of the storage from the first to the last element.
    pub(crate) fn byte_range(&self) -> Range<usize> {
        let span = self.layout.span();
        span.start * self.dtype.size()..span.end * self.dtype.size()
    }

    /// Bytes of the elements.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.numel() * self.dtype.size()
    }

    /// Whether both may touch a common byte.
    pub(crate) fn overlaps(&self, other: &Access) -> bool {
        let (a, b) = (self.byte_range(), other.byte_range());
        self.place == other.place
            && !a.is_empty()
            && !b.is_empty()
            && a.start < b.end
            && b.start < a.end
            && !(self.dtype == other.dtype && self.layout.is_disjoint(&other.layout))
    }
}

/// A launch that was recorded.
pub(crate) struct RecordedLaunch {
    pub(crate) op: &'static str,
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) reads: Box<[Access]>,
    pub(crate) writes: Box<[(Access, Mode)]>,
    pub(crate) workspace: Option<Access>,
}

impl RecordedLaunch {
    /// A launch to keep, with its operands as `access` says.
    pub(crate) fn of(
        launch: &Launch<'_>,
        mut access: impl FnMut(&Operand<'_>) -> Result<Access>,
    ) -> Result<RecordedLaunch> {
        let reads = launch.reads.iter().map(&mut access).collect::<Result<_>>()?;
        let writes = launch.writes.iter().map(|(o, mode)| Ok((access(o)?, *mode))).collect::<Result<_>>()?;
        let workspace = launch.workspace.as_ref().map(&mut access).transpose()?;
        Ok(RecordedLaunch { op: launch.op, kernel: launch.kernel.boxed(), reads, writes, workspace })
    }

    /// Calls `f` with the launch over the storages that `storage` finds.
    pub(crate) fn with<'a, R>(
        &'a self,
        storage: impl Fn(Place) -> &'a Recycled<Storage>,
        f: impl FnOnce(&Launch<'_>) -> R,
    ) -> R {
        let operand =
            |a: &'a Access| Operand { storage: storage(a.place), layout: &a.layout, dtype: a.dtype };
        let writes: SmallVec<[(Operand<'_>, Mode); RESULTS]> =
            self.writes.iter().map(|(a, mode)| (operand(a), *mode)).collect();
        listed(self.reads.iter().map(operand), |reads| {
            f(&Launch {
                op: self.op,
                kernel: &*self.kernel,
                reads,
                writes: &writes,
                workspace: self.workspace.as_ref().map(operand),
            })
        })
    }

    /// What the kernel writes, its workspace included.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Access> {
        self.writes.iter().map(|(a, _)| a).chain(&self.workspace)
    }

    /// All operands, with whether they are written.
    pub(crate) fn accesses(&self) -> impl Iterator<Item = (&Access, bool)> {
        self.reads.iter().map(|a| (a, false)).chain(self.written().map(|a| (a, true)))
    }
}

/// A recording that has ended.
pub(crate) struct Recorded {
    pub(crate) launches: Vec<RecordedLaunch>,
    pub(crate) externals: Vec<Recycled<Storage>>,
    pub(crate) temporaries: Vec<Temporary>,
    /// The generators drawn from, with the blocks that a step draws.
    pub(crate) generators: Vec<(Generator, u64)>,
    pub(crate) outputs: Vec<Access>,
    /// What it means for the tape of tensors from outside.
    pub(crate) outside: Outside,
}

/// The fix that every message about a changed recording ends with.
const FIX: &str = "the closure runs only while it is recorded, so what it takes from the host stays as it was: keep what changes from step to step in a tensor on the device (a schedule over a step counter, a generator), advance it in the step, or pass it as an input";

impl Recorded {
    /// An error that names the first launch in which `now`, the same closure recorded again, differs.
    pub(crate) fn check_same(&self, now: &Recorded) -> Result<()> {
        let changed = |launch: usize, op: &'static str, what: String| {
            Err(Error::RecordingChanged { launch, op, message: format!("{what}; {FIX}") })
        };
        for (i, (a, b)) in self.launches.iter().zip(&now.launches).enumerate() {
            if a.op != b.op {
                return changed(i, a.op, format!("the closure now runs {} in its place", b.op));
            }
            let (was, is) = (a.kernel.parameters(), b.kernel.parameters());
            if was != is {
                return changed(i, a.op, format!("its parameters were {was} and are now {is}"));
            }
            if (a.reads.len(), a.writes.len()) != (b.reads.len(), b.writes.len()) {
                return changed(i, a.op, "the number of its operands has changed".to_string());
            }
            for (n, (x, y)) in a.reads.iter().zip(&b.reads).enumerate() {
                if let Some(what) = self.difference(x, now, y) {
                    return changed(i, a.op, format!("operand {n} {what}"));
                }
            }
            for (n, ((x, mode), (y, now_mode))) in a.writes.iter().zip(&b.writes).enumerate() {
                if let Some(what) = self.difference(x, now, y) {
                    return changed(i, a.op, format!("result {n} {what}"));
                }
                if mode != now_mode {
                    return changed(i, a.op, format!("result {n} was {mode:?} and is now {now_mode:?}"));
                }
            }
        }
        let (was, is) = (self.launches.len(), now.launches.len());
        if was != is {
            let longer = if was > is { self } else { now };
            let first = was.min(is);
            let op = longer.launches[first].op;
            return changed(first, op, format!("the step had {was} launches and has now {is}"));
        }
        if self.outputs.len() != now.outputs.len() {
            let what =
                format!("the step returned {} tensors and now {}", self.outputs.len(), now.outputs.len());
            return changed(was, "outputs", what);
        }
        for (i, (x, y)) in self.outputs.iter().zip(&now.outputs).enumerate() {
            if let Some(what) = self.difference(x, now, y) {
                return changed(was, "outputs", format!("output {i} {what}"));
            }
        }
        Ok(())
    }

    /// How an operand differs from its counterpart in another recording.
    fn difference(&self, was: &Access, other: &Recorded, is: &Access) -> Option<String> {
        if (was.dtype, was.layout.shape()) != (is.dtype, is.layout.shape()) {
            let text = |a: &Access| format!("{} {}", a.dtype, a.layout.shape());
            return Some(format!("was {} and is now {}", text(was), text(is)));
        }
        if was.layout != is.layout {
            return Some(format!("is another part of its memory: {:?} and now {:?}", was.layout, is.layout));
        }
        match (was.place, is.place) {
            (Place::Temporary(a), Place::Temporary(b)) if a == b => None,
            (Place::Temporary(_), Place::Temporary(_)) => Some("is another intermediate result".to_string()),
            (Place::External(a), Place::External(b)) => {
                let (a, b) = (self.externals[a].id(), other.externals[b].id());
                (a != b).then(|| {
                    format!(
                        "({} {}) was in storage {a} and is now in storage {b}, a tensor made anew",
                        was.dtype,
                        was.layout.shape()
                    )
                })
            }
            _ => Some(
                "was a tensor from outside the step and is not any more, or the other way round".to_string(),
            ),
        }
    }
}
