//! Which launches may share a loop.

use crate::device::Mode;
use crate::device::cuda::Piece;
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::kernels::elementwise::chain::{MAX_AXES, MAX_DRAWS, MAX_SCALARS, MAX_VALUES};
use crate::tensor::{DType, Layout, Shape};

/// Kernels in one chain at most.
const MAX_PIECES: usize = 16;

/// What launches that share a loop touch.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The shape of the loop, without axes of one element.
    pub(super) shape: Shape,
    touched: Vec<Touched>,
    /// The states of generators, with what is added to their counters.
    words: Vec<(Access, u64)>,
    pieces: usize,
    scalars: usize,
}

/// A view of a tensor, with an element for each element of the loop.
#[derive(Clone, Debug)]
struct Touched {
    access: ElementAccess,
    writes: bool,
}

/// Where an element of the loop lies.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ElementAccess {
    pub(super) place: StorageRef,
    pub(super) layout: Layout,
    pub(super) dtype: DType,
}

impl ElementAccess {
    /// An operand in the shape of a loop. `None` if its strides do not allow that.
    pub(super) fn of(access: &Access, shape: &Shape) -> Option<ElementAccess> {
        let layout = access.layout.reshape(shape)?;
        Some(ElementAccess { place: access.place, layout, dtype: access.dtype })
    }

    /// Whether the ranges from the first byte to the last overlap.
    fn meets(&self, place: StorageRef, other: &Layout, dtype: DType) -> bool {
        let bytes = |layout: &Layout, dtype: DType| {
            let span = layout.span();
            span.start * dtype.size()..span.end * dtype.size()
        };
        let (a, b) = (bytes(&self.layout, self.dtype), bytes(other, dtype));
        self.place == place && a.start < b.end && b.start < a.end
    }
}

/// A shape without axes of one element.
fn squeezed(shape: &Shape) -> Shape {
    shape.iter().copied().filter(|&d| d != 1).collect()
}

impl Group {
    /// A group of one launch, which consists of `pieces`.
    pub(super) fn of(launch: &RecordedLaunch, pieces: &[Piece]) -> Option<Group> {
        let whole = launch.writes.first()?.0.layout.shape();
        let shape = squeezed(whole);
        let mut group = Group {
            shape,
            touched: Vec::new(),
            words: Vec::new(),
            pieces: pieces.len(),
            scalars: pieces.iter().map(|piece| piece.scalars.len()).sum(),
        };
        for piece in pieces {
            for &x in &piece.x {
                group.touch(&launch.reads[x], whole, false)?;
            }
            group.touch(&launch.writes[piece.y].0, whole, true)?;
            if let Some(words) = piece.words {
                let used = (launch.reads[words.state].clone(), words.offset);
                if !group.words.contains(&used) {
                    group.words.push(used);
                }
            }
        }
        group.is_small().then_some(group)
    }

    fn touch(&mut self, access: &Access, whole: &Shape, writes: bool) -> Option<()> {
        if access.layout.shape() != whole {
            return None;
        }
        let access = ElementAccess::of(access, &self.shape)?;
        self.add(Touched { access, writes })
    }

    /// Adds a view. Where one is written, no other may have a byte of it: an element must not read what another element
    /// of the loop writes.
    fn add(&mut self, touched: Touched) -> Option<()> {
        if let Some(known) = self.touched.iter_mut().find(|known| known.access == touched.access) {
            known.writes |= touched.writes;
        } else {
            self.touched.push(touched.clone());
        }
        let writes = self.touched.iter().any(|known| known.writes && known.access == touched.access);
        let access = &touched.access;
        let apart = self.touched.iter().all(|known| {
            known.access == *access
                || !(known.writes || writes)
                || !known.access.meets(access.place, &access.layout, access.dtype)
        });
        apart.then_some(())
    }

    /// Whether it fits into one kernel.
    fn is_small(&self) -> bool {
        // A state is read as a whole, so nothing in the loop may write to it.
        let is_read_only = |(state, _): &(Access, u64)| {
            self.touched
                .iter()
                .all(|known| !known.writes || !known.access.meets(state.place, &state.layout, state.dtype))
        };
        self.shape.rank() <= MAX_AXES
            && self.touched.len() <= MAX_VALUES
            && self.pieces <= MAX_PIECES
            && self.scalars <= MAX_SCALARS
            && self.words.len() <= MAX_DRAWS
            && self.words.iter().all(is_read_only)
    }

    /// The same launches with a loop of another shape. `None` if strides do not allow that.
    fn reshaped(&self, shape: &Shape) -> Option<Group> {
        if &self.shape == shape {
            return Some(self.clone());
        }
        let touched = self.touched.iter().map(|touched| {
            let layout = touched.access.layout.reshape(shape)?;
            Some(Touched { access: ElementAccess { layout, ..touched.access.clone() }, ..*touched })
        });
        Some(Group { shape: shape.clone(), touched: touched.collect::<Option<_>>()?, ..self.clone() })
    }

    /// Both in one loop, if that computes the same.
    pub(super) fn join(&self, other: &Group) -> Option<Group> {
        if self.shape.numel() != other.shape.numel() {
            return None;
        }
        let (mut whole, other) = match other.reshaped(&self.shape) {
            Some(other) => (self.clone(), other),
            None => (self.reshaped(&other.shape)?, other.clone()),
        };
        whole.pieces += other.pieces;
        whole.scalars += other.scalars;
        other.touched.into_iter().try_for_each(|touched| whole.add(touched))?;
        for words in other.words {
            if !whole.words.contains(&words) {
                whole.words.push(words);
            }
        }
        whole.is_small().then_some(whole)
    }
}

/// Whether a write reads what it writes to.
pub(super) fn adds(mode: Mode) -> bool {
    mode == Mode::Accumulate
}
