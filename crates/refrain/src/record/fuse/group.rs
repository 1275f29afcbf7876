//! Which launches may share a loop.

use crate::device::Mode;
use crate::device::cuda::{
    Elements, MAX_CHAIN_SCALARS, MAX_DRAWS, MAX_OPERANDS, MAX_PICKS, MAX_SCALARS as MAX_TAIL_SCALARS,
    MAX_VALUES, Pick, Piece, Product, RowNorm, Summing,
};
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::kernels::elementwise::chain::{Head, MAX_AXES};
use crate::kernels::products::cuda as products;
use crate::tensor::{DType, Layout, Shape};

/// Kernels in one chain at most.
const MAX_PIECES: usize = 16;

/// What launches that share a loop touch, or one that takes a tail and those behind it.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The shape of the loop, without axes of one element.
    pub(super) shape: Shape,
    touched: Vec<Touched>,
    /// The states of generators, with what is added to their counters.
    words: Vec<(Access, u64)>,
    /// The tables that slices are picked from, each with its index.
    picks: Vec<[Access; 2]>,
    /// What the group begins with, if it takes a tail or a norm. The loop goes over its result.
    begins: Option<Begins>,
    /// The norm of rows that the group ends with.
    ends: Option<Ends>,
    /// The launch that adds up what the loop computes.
    sums: Option<Sums>,
    pieces: usize,
    scalars: usize,
}

/// What a launch that takes a tail or a norm touches besides tensors that have an element for each element of its result.
#[derive(Clone, Debug)]
struct Begins {
    takes: Takes,
    /// Elements of a row of the result.
    n: usize,
    reads: Vec<Access>,
    writes: Vec<Access>,
}

/// What may follow a launch in its kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Takes {
    /// Elementwise kernels.
    pub(super) tail: bool,
    /// A norm of the rows of its result.
    pub(super) norm: bool,
}

/// What a norm of rows touches.
#[derive(Clone, Debug)]
struct Ends {
    width: usize,
    /// Its rows.
    x: Touched,
    reads: Vec<Access>,
    writes: Vec<Access>,
}

/// What a launch that takes a head touches.
#[derive(Clone, Debug)]
struct Sums {
    /// What it adds up.
    source: Touched,
    visits_all: bool,
    reads: Vec<Access>,
    writes: Vec<Access>,
}

/// The numbers of the operands of a launch that takes a tail or a norm that have an element for each element of its result.
#[derive(Clone, Copy)]
pub(super) struct First {
    /// The result, and what is kept of it.
    pub(super) result: usize,
    pub(super) kept: Option<usize>,
    pub(super) residual: Option<usize>,
    /// Elements of a row of the result.
    pub(super) row: usize,
}

impl First {
    pub(super) fn product(product: &Product) -> First {
        First {
            result: product.c.pointer.number(),
            kept: product.kept.map(|kept| kept.pointer.number()),
            residual: product.residual.map(|residual| residual.pointer.number()),
            row: product.n,
        }
    }

    pub(super) fn elements(elements: &dyn Elements) -> First {
        First { result: 0, kept: None, residual: None, row: elements.row() }
    }
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
        let mut group = Group {
            pieces: pieces.len(),
            scalars: pieces.iter().map(|piece| piece.scalars.len()).sum(),
            ..Group::empty(whole)
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

    /// A group without launches. Its loop has this shape.
    fn empty(whole: &Shape) -> Group {
        let (touched, words, picks) = (Vec::new(), Vec::new(), Vec::new());
        let shape = squeezed(whole);
        Group { shape, touched, words, picks, begins: None, ends: None, sums: None, pieces: 0, scalars: 0 }
    }

    /// A group of one launch, which picks slices.
    pub(super) fn of_pick(launch: &RecordedLaunch, pick: &Pick) -> Option<Group> {
        let (result, mode) = launch.writes.first()?;
        let whole = result.layout.shape();
        let mut group = Group::empty(whole);
        group.touch(result, whole, true)?;
        group.picks.push([pick.table, pick.index].map(|i| launch.reads[i].clone()));
        (!adds(*mode) && group.is_small()).then_some(group)
    }

    /// A group of one launch, which takes a tail or a norm.
    pub(super) fn of_first(launch: &RecordedLaunch, first: First, takes: Takes) -> Option<Group> {
        let First { result, kept, residual, row } = first;
        let whole = launch.writes[result].0.layout.shape();
        let mut begins = Begins { takes, n: row, reads: Vec::new(), writes: Vec::new() };
        let mut group = Group::empty(whole);
        for (i, access) in launch.reads.iter().enumerate() {
            match residual == Some(i) {
                true => group.touch(access, whole, false)?,
                false => begins.reads.push(access.clone()),
            }
        }
        for (o, (access, _)) in launch.writes.iter().enumerate() {
            match o == result || kept == Some(o) {
                true => group.touch(access, whole, true)?,
                false => begins.writes.push(access.clone()),
            }
        }
        group.begins = Some(begins);
        group.is_small().then_some(group)
    }

    /// A group of one launch, a norm of rows. It runs in the kernel that computes its rows, or alone.
    pub(super) fn of_norm(launch: &RecordedLaunch, norm: &RowNorm) -> Option<Group> {
        let x = norm.x.pointer.number();
        let rows = &launch.reads[x];
        let mut group = Group::empty(rows.layout.shape());
        let replaces = launch.writes.iter().all(|(_, mode)| !adds(*mode));
        let others = launch.reads.iter().enumerate().filter(|&(i, _)| i != x);
        group.ends = Some(Ends {
            width: norm.width,
            x: Touched { access: ElementAccess::of(rows, &group.shape)?, writes: false },
            reads: others.map(|(_, access)| access.clone()).collect(),
            writes: launch.writes.iter().map(|(access, _)| access.clone()).collect(),
        });
        (replaces && norm.width > 0).then_some(group)
    }

    /// A group of one launch, which takes a head. Its loop goes over what it adds up.
    pub(super) fn of_summing(launch: &RecordedLaunch, summing: &dyn Summing) -> Option<Group> {
        let source = &launch.reads[summing.source()];
        let mut group = Group::empty(source.layout.shape());
        let others = launch.reads.iter().enumerate().filter(|&(i, _)| i != summing.source());
        group.sums = Some(Sums {
            source: Touched { access: ElementAccess::of(source, &group.shape)?, writes: false },
            visits_all: summing.visits_all(),
            reads: others.map(|(_, access)| access.clone()).collect(),
            writes: launch.writes.iter().map(|(access, _)| access.clone()).collect(),
        });
        (source.layout.is_contiguous() && source.layout.numel() > 0).then_some(group)
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
        let meets =
            |known: &Touched, other: &Access| known.access.meets(other.place, &other.layout, other.dtype);
        // A state is read as a whole, so nothing in the loop may write to it. So is a factor.
        let is_read_only =
            |read: &Access| self.touched.iter().all(|known| !known.writes || !meets(known, read));
        let fits = self.pieces <= MAX_PIECES
            && self.words.len() <= MAX_DRAWS
            && self.words.iter().all(|(state, _)| is_read_only(state))
            && self.picks.len() <= MAX_PICKS
            && self.picks.iter().flatten().all(is_read_only);
        let meets_sums = |sums: &Sums| {
            sums.writes.iter().any(|write| {
                self.touched.iter().any(|known| meets(known, write))
                    || self.words.iter().any(|(state, _)| state.overlaps(write))
                    || self.picks.iter().flatten().any(|read| read.overlaps(write))
            }) || !sums.reads.iter().all(is_read_only)
        };
        fits && !self.sums.as_ref().is_some_and(meets_sums)
            && self.ends.as_ref().is_none_or(|ends| self.can_end_with(ends))
            && match &self.begins {
                None => {
                    self.shape.rank() <= MAX_AXES
                        && self.touched.len() <= MAX_VALUES
                        && self.scalars <= MAX_CHAIN_SCALARS
                }
                Some(Begins { n, reads, writes, takes }) => {
                    let is_beside = |known: &Touched| match known.writes {
                        true => known.access.layout.is_contiguous(),
                        false => products::reads(&known.access.layout, *n),
                    };
                    (takes.tail || self.pieces == 0)
                        && self.picks.is_empty()
                        && self.touched.len() <= MAX_OPERANDS
                        && self.scalars <= MAX_TAIL_SCALARS
                        && self.touched.iter().all(is_beside)
                        && reads.iter().all(is_read_only)
                        && writes.iter().all(|write| {
                            !self.touched.iter().any(|known| meets(known, write))
                                && !self.words.iter().any(|(state, _)| state.overlaps(write))
                        })
                }
            }
    }

    /// Whether the rows of a norm are computed by others of the group, and nobody else touches what it writes.
    fn can_end_with(&self, ends: &Ends) -> bool {
        let Ends { width, x, reads, writes } = ends;
        let Some(begins) = &self.begins else {
            return false;
        };
        let meets =
            |known: &Touched, other: &Access| known.access.meets(other.place, &other.layout, other.dtype);
        let is_computed = self.touched.iter().any(|known| known.writes && known.access == x.access);
        let others = || begins.reads.iter().chain(&begins.writes).chain(reads);
        begins.takes.norm
            && begins.n == *width
            && is_computed
            && reads.iter().all(|read| {
                !self.touched.iter().any(|known| known.writes && meets(known, read))
                    && !begins.writes.iter().any(|write| write.overlaps(read))
            })
            && writes.iter().all(|write| {
                !self.touched.iter().any(|known| meets(known, write))
                    && !others().any(|other| other.overlaps(write))
                    && !self.words.iter().any(|(state, _)| state.overlaps(write))
            })
    }

    /// The same launches with a loop of another shape. `None` if strides do not allow that.
    fn reshaped(&self, shape: &Shape) -> Option<Group> {
        if &self.shape == shape {
            return Some(self.clone());
        }
        let reshaped = |touched: &Touched| {
            let layout = touched.access.layout.reshape(shape)?;
            Some(Touched { access: ElementAccess { layout, ..touched.access.clone() }, ..*touched })
        };
        let touched = self.touched.iter().map(reshaped).collect::<Option<_>>()?;
        let ends = match &self.ends {
            Some(ends) => Some(Ends { x: reshaped(&ends.x)?, ..ends.clone() }),
            None => None,
        };
        let sums = match &self.sums {
            Some(sums) => Some(Sums { source: reshaped(&sums.source)?, ..sums.clone() }),
            None => None,
        };
        Some(Group { shape: shape.clone(), touched, ends, sums, ..self.clone() })
    }

    /// Whether it begins with a launch that takes a tail or a norm.
    pub(super) fn has_first(&self) -> bool {
        self.begins.is_some()
    }

    /// Whether it is a launch that takes a head, with or without one, and may leave elements out.
    pub(super) fn leaves_out(&self) -> bool {
        self.sums.as_ref().is_some_and(|sums| !sums.visits_all)
    }

    /// Whether an operand is a value of each element that it computes, which a block can pass on as whole rows.
    pub(super) fn computes_rows(&self, rows: &Access) -> bool {
        let of_rows = ElementAccess::of(rows, &self.shape);
        self.ends.is_none()
            && self.touched.iter().any(|known| known.writes && Some(&known.access) == of_rows.as_ref())
    }

    /// Both in one loop, if that computes the same. `other` runs first.
    pub(super) fn join(&self, other: &Group) -> Option<Group> {
        let has_two = self.has_first() && other.has_first() || self.ends.is_some() && other.ends.is_some();
        // What is added up ends a kernel that has nothing else to it but a loop.
        let ends = other.sums.is_some() || self.sums.is_some() && (other.has_first() || other.ends.is_some());
        if self.shape.numel() != other.shape.numel() || has_two || ends {
            return None;
        }
        // The loop of a launch that takes a tail has the shape of its result.
        let (mut whole, other) = match other.reshaped(&self.shape).filter(|_| other.begins.is_none()) {
            Some(other) => (self.clone(), other),
            None if self.begins.is_none() => (self.reshaped(&other.shape)?, other.clone()),
            None => return None,
        };
        // A norm ends the kernel, so what it reads must be there before it.
        let computes = |rows: &Touched| {
            self.touched.iter().any(|touched| {
                let ElementAccess { place, layout, dtype } = &rows.access;
                touched.writes && touched.access.meets(*place, layout, *dtype)
            })
        };
        if other.ends.as_ref().is_some_and(|ends| computes(&ends.x)) {
            return None;
        }
        whole.begins = whole.begins.or(other.begins);
        whole.ends = whole.ends.or(other.ends);
        whole.pieces += other.pieces;
        whole.scalars += other.scalars;
        other.touched.into_iter().try_for_each(|touched| whole.add(touched))?;
        let computes = |sums: &Sums| {
            let layouts = whole.touched.iter().map(|known| &known.access.layout);
            whole.touched.iter().any(|known| known.writes && known.access == sums.source.access)
                && Head::suits(&whole.shape, layouts)
        };
        if !whole.sums.as_ref().is_none_or(computes) {
            return None;
        }
        for words in other.words {
            if !whole.words.contains(&words) {
                whole.words.push(words);
            }
        }
        whole.picks.extend(other.picks);
        whole.is_small().then_some(whole)
    }
}

/// Whether a write reads what it writes to.
pub(super) fn adds(mode: Mode) -> bool {
    mode == Mode::Accumulate
}
