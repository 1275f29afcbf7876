//! A fused launch, which contains its parts.

use std::fmt::Write;
use std::sync::Arc;

use smallvec::SmallVec;

use super::group::{ElementAccess, First, Group, adds};
use super::{Fusible, Node, factor, names};
use crate::device::cuda::{CudaArgs, Elements, Gpu, Pick, Piece, Pointer, Product, RowNorm, Summing, Work};
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::device::{Device, HostArgs, Kernel, Launch, Mode, OPERANDS, Operand, RESULTS, Storage};
use crate::error::Result;
use crate::kernels::elementwise::chain::{Chain, ChainPick, ChainPiece, ChainWords, Head, Value};
use crate::kernels::products::cuda::{self as products, Followers, Stage, Tail};
use crate::record::recorded::Recorded;
use crate::recycled::Recycled;
use crate::tensor::{DType, Layout, Shape};

/// The kernel of a fused launch.
struct FusedKernel(Arc<Parts>);

struct Parts {
    parts: Vec<Part>,
    /// Bytes of the temporaries that only parts touch. CUDA keeps their values in registers.
    inner: Vec<usize>,
    /// The parts as one kernel.
    kernel: Fused,
}

/// How CUDA runs the parts.
enum Fused {
    Chain(Chain),
    Product(Followed),
    /// Two products, of which the second multiplies the rows of the first.
    Stages(Box<[Followed; 2]>),
    Elements(Box<dyn Elements>, Tail),
    Sums(Box<dyn Summing>, Head),
}

/// A product, and the other parts behind it. The norm is the last.
struct Followed {
    product: Box<Product>,
    tail: Option<Tail>,
    norm: Option<Box<RowNorm>>,
}

impl Followed {
    fn followers(&self) -> Followers<'_> {
        Followers { tail: self.tail.as_ref(), norm: self.norm.as_deref() }
    }

    fn stage(&self) -> Stage<'_> {
        Stage { product: &self.product, followers: self.followers() }
    }
}

/// A launch within a fused launch.
struct Part {
    op: &'static str,
    kernel: Box<dyn Kernel>,
    reads: Vec<PartOperand>,
    writes: Vec<(PartOperand, Mode)>,
}

/// An operand of a part.
#[derive(Debug)]
struct PartOperand {
    place: Place,
    layout: Arc<Layout>,
    dtype: DType,
}

/// The memory of an operand of a part: that of an operand of the fused launch, or a temporary that only parts touch.
#[derive(Clone, Copy, Debug)]
enum Place {
    Read(usize),
    Write(usize),
    Inner(usize),
}

impl Kernel for FusedKernel {
    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let launch = args.launch();
        let new = |&bytes: &usize| Storage::new(launch.op, &Device::cpu_scratch(), bytes);
        let own: Vec<Recycled<Storage>> = self.0.inner.iter().map(new).collect::<Result<_>>()?;
        // As on a GPU, an index out of range does not keep the parts behind it from running. Only simulated GPUs and the CPU that writes
        // kernels down run this.
        let mut done = Ok(());
        for part in &self.0.parts {
            done = done.and(part.run(args, &own));
        }
        done
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        match &self.0.kernel {
            Fused::Chain(chain) => chain.run(args),
            Fused::Product(followed) => products::run_own(args, &followed.product, followed.followers()),
            Fused::Stages(stages) => products::run_stages(args, stages.each_ref().map(Followed::stage)),
            Fused::Elements(elements, tail) => elements.run(args, Some(tail)),
            Fused::Sums(summing, head) => summing.run(args, Some(head)),
        }
    }

    fn can_fail(&self) -> bool {
        self.0.parts.iter().any(|part| part.kernel.can_fail())
    }

    fn cuda_workspace(&self, _: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        Ok(match &self.0.kernel {
            Fused::Chain(_) | Fused::Stages(_) => 0,
            Fused::Sums(summing, _) => summing.workspace(),
            Fused::Product(followed) => products::own_workspace(gpu, &followed.product),
            Fused::Elements(elements, _) => elements.workspace(),
        })
    }

    fn flops(&self, _: &[&Shape], _: &[&Shape]) -> u64 {
        self.0.parts.iter().map(Part::flops).sum()
    }

    fn writer(&self, o: usize) -> Option<&'static str> {
        let writes =
            |part: &&Part| part.writes.iter().any(|(w, _)| matches!(w.place, Place::Write(at) if at == o));
        self.0.parts.iter().rfind(writes).map(|part| part.op)
    }

    fn parts(&self) -> Vec<String> {
        let operand = |o: &PartOperand| {
            let inner = if matches!(o.place, Place::Inner(_)) { " in registers" } else { "" };
            format!("{} {}{inner}", o.dtype, o.layout.shape())
        };
        let line = |part: &Part| {
            let reads: Vec<String> = part.reads.iter().map(operand).collect();
            let writes: Vec<String> = part.writes.iter().map(|(o, _)| operand(o)).collect();
            format!("{}: {} -> {}", part.op, reads.join(", "), writes.join(", "))
        };
        self.0.parts.iter().map(line).collect()
    }

    fn boxed(&self) -> Box<dyn Kernel> {
        Box::new(FusedKernel(self.0.clone()))
    }

    fn parameters(&self) -> String {
        let mut text = String::new();
        for part in &self.0.parts {
            let (kernel, reads, writes) = (part.kernel.parameters(), &part.reads, &part.writes);
            let _ = write!(text, "{} {kernel} of {reads:?} to {writes:?}; ", part.op);
        }
        text
    }
}

impl Part {
    fn flops(&self) -> u64 {
        let reads: SmallVec<[&Shape; OPERANDS]> = self.reads.iter().map(|o| o.layout.shape()).collect();
        let writes: SmallVec<[&Shape; RESULTS]> = self.writes.iter().map(|(o, _)| o.layout.shape()).collect();
        self.kernel.flops(&reads, &writes)
    }

    /// Runs on the host, as a part of the launch that `args` are of.
    fn run(&self, args: &HostArgs<'_>, own: &[Recycled<Storage>]) -> Result<()> {
        let launch = args.launch();
        let reads: SmallVec<[Operand<'_>; OPERANDS]> =
            self.reads.iter().map(|o| o.operand(launch, own)).collect();
        let writes: SmallVec<[(Operand<'_>, Mode); RESULTS]> =
            self.writes.iter().map(|(o, mode)| (o.operand(launch, own), *mode)).collect();
        let (op, kernel) = (self.op, &*self.kernel);
        args.run_part(&Launch { op, kernel, reads: &reads, writes: &writes, workspace: None }, own)
    }
}

impl PartOperand {
    fn operand<'a>(&'a self, launch: &'a Launch<'a>, own: &'a [Recycled<Storage>]) -> Operand<'a> {
        let storage = match self.place {
            Place::Read(r) => launch.reads[r].storage,
            Place::Write(w) => launch.writes[w].0.storage,
            Place::Inner(i) => &own[i],
        };
        Operand { storage, layout: &self.layout, dtype: self.dtype }
    }
}

/// What becomes one kernel, or a stage of one: a group, and its members with their numbers in the recording.
pub(super) struct Members<'a> {
    pub(super) group: &'a Group,
    pub(super) launches: Vec<(usize, &'a Fusible)>,
}

impl<'a> Members<'a> {
    pub(super) fn of(node: &'a Node, order: &[usize], fusible: &'a [Option<Fusible>]) -> Option<Members<'a>> {
        let launches = node.members.iter().map(|&at| Some((order[at], fusible[at].as_ref()?)));
        Some(Members { group: node.group.as_ref()?, launches: launches.collect::<Option<_>>()? })
    }

    /// The operand that is the first factor of the product.
    fn factor<'r>(&self, recorded: &'r Recorded) -> Option<&'r Access> {
        self.launches.iter().find_map(|(n, fusible)| factor(&fusible.work, &recorded.launches[*n]))
    }
}

/// A launch that does what members do, of one group or of two, of which the second multiplies the rows of the first. `uses` says
/// how many launches touch each temporary. `None` if it can't be made.
pub(super) fn build(recorded: &Recorded, stages: &[Members<'_>], uses: &[usize]) -> Option<RecordedLaunch> {
    let launches =
        || stages.iter().flat_map(|stage| stage.launches.iter().map(|&(n, _)| &recorded.launches[n]));
    let touched: Vec<usize> = launches().flat_map(super::temporaries).collect();
    // A temporary that nobody else touches is not stored.
    let is_inner = |place| match place {
        StorageRef::Temporary(t) => touched.iter().filter(|&&other| other == t).count() == uses[t],
        StorageRef::External(_) => false,
    };
    let workspace = launches().find_map(|launch| launch.workspace.clone());
    let mut operands = Operands {
        is_inner: &is_inner,
        inner: Vec::new(),
        reads: Vec::new(),
        writes: Vec::new(),
        rows: None,
    };
    let (mut parts, mut kernels) = (Vec::new(), SmallVec::<[Fused; 2]>::new());
    for (s, stage) in stages.iter().enumerate() {
        let mut build = Build::new(&stage.group.shape, operands);
        for (n, fusible) in &stage.launches {
            let launch = &recorded.launches[*n];
            match &fusible.work {
                Work::Pieces(pieces) => build.add(launch, pieces)?,
                Work::Pick(pick) => build.add_pick(launch, pick)?,
                Work::Norm(norm) => build.add_norm(launch, norm)?,
                Work::Summing(summing) => build.add_summing(launch, &**summing)?,
                work => build.add_first(launch, work)?,
            }
        }
        for &(n, _) in &stage.launches {
            parts.push(build.part(&recorded.launches[n])?);
        }
        if let Some(next) = stages.get(s + 1) {
            build.pass(next.factor(recorded)?)?;
        }
        let kernel;
        (kernel, operands) = build.finish()?;
        kernels.push(kernel);
    }
    let kernel = match (kernels.pop()?, kernels.pop()) {
        (kernel, None) => kernel,
        (Fused::Product(second), Some(Fused::Product(first))) => Fused::Stages(Box::new([first, second])),
        (_, Some(_)) => return None,
    };
    let op = names::name(parts.iter().map(|part| part.op));
    let Operands { inner, reads, writes, .. } = operands;
    let inner = inner.into_iter().map(|t| recorded.temporaries[t].bytes).collect();
    Some(RecordedLaunch {
        op,
        kernel: Box::new(FusedKernel(Arc::new(Parts { parts, inner, kernel }))),
        reads: reads.into(),
        writes: writes.into(),
        workspace,
    })
}

/// What a fused launch touches, while it is made.
struct Operands<'a> {
    is_inner: &'a dyn Fn(StorageRef) -> bool,
    /// The temporaries that are not stored.
    inner: Vec<usize>,
    reads: Vec<Access>,
    writes: Vec<(Access, Mode)>,
    /// The rows that the stage before passes on, in the shape of its loop, and where they are stored if others read them.
    rows: Option<(ElementAccess, Option<usize>)>,
}

impl Operands<'_> {
    /// The rows that the stage before passes on, if they are this operand: where they are stored.
    fn rows(&self, access: &Access) -> Option<Option<usize>> {
        let (rows, write) = self.rows.as_ref()?;
        (ElementAccess::of(access, rows.layout.shape()).as_ref() == Some(rows)).then_some(*write)
    }

    /// The number of an operand that has no element for each element of the loop.
    fn read_whole(&mut self, access: &Access) -> usize {
        let known = self.reads.iter().position(|read| read == access);
        known.unwrap_or_else(|| {
            self.reads.push(access.clone());
            self.reads.len() - 1
        })
    }
}

/// A stage of a fused launch while it is made.
struct Build<'a> {
    shape: &'a Shape,
    operands: Operands<'a>,
    values: Vec<Value>,
    /// Where each of `values` lies.
    accesses: Vec<ElementAccess>,
    words: Vec<ChainWords>,
    picks: Vec<ChainPick>,
    pieces: Vec<ChainPiece>,
    /// The launch that takes a tail, how many elements a row of its result has, and the numbers of the values of the result and
    /// of what it keeps.
    first: Option<(Work, usize, [Option<usize>; 2])>,
    /// The norm that comes last.
    norm: Option<RowNorm>,
    /// The number of the value that the norm follows, or the next stage.
    passed: Option<usize>,
    /// The launch that takes a head, and the number of the value that it adds up.
    sums: Option<(Box<dyn Summing>, usize)>,
}

impl<'a> Build<'a> {
    fn new(shape: &'a Shape, operands: Operands<'a>) -> Build<'a> {
        Build {
            shape,
            operands,
            values: Vec::new(),
            accesses: Vec::new(),
            words: Vec::new(),
            picks: Vec::new(),
            pieces: Vec::new(),
            first: None,
            norm: None,
            passed: None,
            sums: None,
        }
    }

    /// Passes a value on to the next stage.
    fn pass(&mut self, rows: &Access) -> Option<()> {
        let value = self.known(rows)?;
        self.operands.rows = Some((self.accesses[value].clone(), self.values[value].write));
        self.passed.replace(value).is_none().then_some(())
    }

    /// The kernel of the stage, and what the launch touches.
    fn finish(self) -> Option<(Fused, Operands<'a>)> {
        let Build { shape, operands, values, accesses, words, picks, pieces, first, norm, passed, sums } =
            self;
        let chain = Chain::new(values, words, picks, pieces);
        if let Some((summing, value)) = sums {
            let stores = chain.values.iter().any(|value| value.write.is_some());
            if stores && !summing.visits_all() {
                return None;
            }
            return Some((Fused::Sums(summing, Head::new(chain, value, shape)), operands));
        }
        let Some((first, row, results)) = first else {
            return Some((Fused::Chain(chain), operands));
        };
        let layouts = accesses.iter().map(|access| &access.layout);
        let is_alone = chain.pieces.is_empty();
        if is_alone && passed != results[0] && passed.is_some() {
            return None;
        }
        let tail = || Tail::new(chain, layouts, results, passed, row);
        let kernel = match first {
            Work::Product(product) => {
                let tail = if is_alone { None } else { Some(tail()?) };
                Fused::Product(Followed { product, tail, norm: norm.map(Box::new) })
            }
            Work::Elements(elements) if norm.is_none() => Fused::Elements(elements, tail()?),
            Work::Elements(_) | Work::Pieces(_) | Work::Pick(_) | Work::Norm(_) | Work::Summing(_) => {
                return None;
            }
        };
        Some((kernel, operands))
    }

    fn add(&mut self, launch: &RecordedLaunch, pieces: &[Piece]) -> Option<()> {
        for piece in pieces {
            let x = piece.x.iter().map(|&x| self.read(&launch.reads[x])).collect::<Option<_>>()?;
            let words = piece.words.map(|words| self.words(&launch.reads[words.state], words.offset));
            let (access, mode) = &launch.writes[piece.y];
            let y = self.write(access, *mode)?;
            self.pieces.push(ChainPiece { piece: piece.clone(), x, y, adds: adds(*mode), words });
        }
        Some(())
    }

    fn add_pick(&mut self, launch: &RecordedLaunch, pick: &Pick) -> Option<()> {
        let (result, mode) = &launch.writes[0];
        // It is there before all pieces.
        if self.known(result).is_some() {
            return None;
        }
        let y = self.write(result, *mode)?;
        self.values[y].pick = Some(self.picks.len());
        let [table, index] = [pick.table, pick.index].map(|i| self.operands.read_whole(&launch.reads[i]));
        let order = Layout::contiguous(self.shape.clone());
        self.picks.push(ChainPick { op: launch.op, pick: Pick { table, index, ..*pick }, order });
        Some(())
    }

    fn add_first(&mut self, launch: &RecordedLaunch, work: &Work) -> Option<()> {
        let First { result, kept, residual, row } = match work {
            Work::Product(product) => First::product(product),
            Work::Elements(elements) => First::elements(&**elements),
            Work::Pieces(_) | Work::Pick(_) | Work::Norm(_) | Work::Summing(_) => return None,
        };
        let factor = match work {
            Work::Product(product) => Some(product.a.pointer.number()),
            _ => None,
        };
        // It runs before all pieces, so none may compute what it reads or writes.
        let is_computed = |build: &Build<'_>, v: usize| build.pieces.iter().any(|piece| piece.y == v);
        let (mut reads, mut writes, mut results) = (Vec::new(), Vec::new(), [None; 2]);
        for (i, access) in launch.reads.iter().enumerate() {
            let is_rows = factor == Some(i) && self.operands.rows(access).is_some();
            let read = match residual == Some(i) {
                // They are in shared memory.
                _ if is_rows => {
                    reads.push(Pointer::NOTHING);
                    continue;
                }
                true => {
                    let value = self.read(access)?;
                    self.values[value].read.filter(|_| !is_computed(self, value))?
                }
                false => self.operands.read_whole(access),
            };
            reads.push(Pointer::read(read));
        }
        for (o, (access, mode)) in launch.writes.iter().enumerate() {
            let is_result = [o == result, kept == Some(o)];
            let write = match is_result.iter().position(|&is| is) {
                Some(result) => {
                    let value = self.write(access, *mode)?;
                    results[result] = Some(value).filter(|&value| !is_computed(self, value));
                    results[result]?;
                    self.values[value].write
                }
                // Elements may be computed from what they also store, such as statistics.
                None if (self.operands.is_inner)(access.place) && !matches!(work, Work::Elements(_)) => {
                    return None;
                }
                None => {
                    self.operands.writes.push((access.clone(), *mode));
                    Some(self.operands.writes.len() - 1)
                }
            };
            writes.push(write.map_or(Pointer::NOTHING, Pointer::write));
        }
        let moved = match work {
            Work::Product(product) => Work::Product(product.moved(&reads, &writes)?.into()),
            Work::Elements(elements) => Work::Elements(elements.moved(&reads, &writes)?),
            Work::Pieces(_) | Work::Pick(_) | Work::Norm(_) | Work::Summing(_) => return None,
        };
        self.first = Some((moved, row, results));
        Some(())
    }

    fn add_norm(&mut self, launch: &RecordedLaunch, norm: &RowNorm) -> Option<()> {
        let x = norm.x.pointer.number();
        let value = self.known(&launch.reads[x])?;
        let reads: Vec<Pointer> = launch
            .reads
            .iter()
            .enumerate()
            .map(|(i, access)| match i == x {
                // The rows come from the kernel before.
                true => Pointer::NOTHING,
                false => Pointer::read(self.operands.read_whole(access)),
            })
            .collect();
        let mut writes = Vec::new();
        for (access, mode) in &launch.writes {
            match access.place {
                // Nobody reads it: statistics, where there is no backward pass.
                StorageRef::Temporary(t) if (self.operands.is_inner)(access.place) => {
                    self.operands.inner.push(t);
                    writes.push(Pointer::NOTHING);
                }
                _ => {
                    self.operands.writes.push((access.clone(), *mode));
                    writes.push(Pointer::write(self.operands.writes.len() - 1));
                }
            }
        }
        self.norm = Some(norm.moved(&reads, &writes)?);
        self.passed = Some(value);
        Some(())
    }

    fn add_summing(&mut self, launch: &RecordedLaunch, summing: &dyn Summing) -> Option<()> {
        let source = summing.source();
        let value = self.known(&launch.reads[source])?;
        let reads: Vec<Pointer> = (launch.reads.iter().enumerate())
            .map(|(i, access)| match i == source {
                true => Pointer::NOTHING,
                false => Pointer::read(self.operands.read_whole(access)),
            })
            .collect();
        let first = self.operands.writes.len();
        self.operands.writes.extend(launch.writes.iter().cloned());
        let writes: Vec<Pointer> = (first..self.operands.writes.len()).map(Pointer::write).collect();
        self.sums = Some((summing.moved(&reads, &writes)?, value));
        Some(())
    }

    /// The number of the values of an operand, if it has one.
    fn known(&self, access: &Access) -> Option<usize> {
        let access = ElementAccess::of(access, self.shape)?;
        self.accesses.iter().position(|known| *known == access)
    }

    fn new_value(&mut self, access: &Access, value: Value) -> Option<usize> {
        self.accesses.push(ElementAccess::of(access, self.shape)?);
        self.values.push(value);
        Some(self.values.len() - 1)
    }

    /// The same operand in the shape of the loop.
    fn in_loop(&self, access: &Access) -> Option<Access> {
        let ElementAccess { place, layout, dtype } = ElementAccess::of(access, self.shape)?;
        Some(Access { place, layout: layout.into(), dtype })
    }

    fn read(&mut self, access: &Access) -> Option<usize> {
        if let Some(known) = self.known(access) {
            return Some(known);
        }
        // Nothing in the loop has written it.
        if (self.operands.is_inner)(access.place) {
            return None;
        }
        self.operands.reads.push(self.in_loop(access)?);
        let read = Some(self.operands.reads.len() - 1);
        self.new_value(access, Value { dtype: access.dtype, read, write: None, adds: false, pick: None })
    }

    fn write(&mut self, access: &Access, mode: Mode) -> Option<usize> {
        let adds = adds(mode);
        let is_inner = (self.operands.is_inner)(access.place);
        let value = match self.known(access) {
            Some(known) => known,
            None if is_inner && adds => return None,
            None => {
                let dtype = access.dtype;
                self.new_value(access, Value { dtype, read: None, write: None, adds, pick: None })?
            }
        };
        if is_inner {
            if let StorageRef::Temporary(t) = access.place
                && !self.operands.inner.contains(&t)
            {
                self.operands.inner.push(t);
            }
        } else if self.values[value].write.is_none() {
            let mode = if self.values[value].adds { Mode::Accumulate } else { Mode::Replace };
            self.operands.writes.push((self.in_loop(access)?, mode));
            self.values[value].write = Some(self.operands.writes.len() - 1);
        }
        Some(value)
    }

    /// The number of the random words of a generator's state.
    fn words(&mut self, state: &Access, offset: u64) -> usize {
        let state = self.operands.read_whole(state);
        let known = self.words.iter().position(|words| words.state == state && words.offset == offset);
        known.unwrap_or_else(|| {
            self.words.push(ChainWords { state, offset, order: Layout::contiguous(self.shape.clone()) });
            self.words.len() - 1
        })
    }

    /// A launch as a part. All launches must have been added.
    fn part(&self, launch: &RecordedLaunch) -> Option<Part> {
        let reads = launch.reads.iter().map(|access| self.operand(access)).collect::<Option<_>>()?;
        let writes = launch.writes.iter().map(|(access, mode)| Some((self.operand(access)?, *mode)));
        let writes = writes.collect::<Option<_>>()?;
        Some(Part { op: launch.op, kernel: launch.kernel.boxed(), reads, writes })
    }

    fn operand(&self, access: &Access) -> Option<PartOperand> {
        let inner = |t| self.operands.inner.iter().position(|&other| other == t).map(Place::Inner);
        let whole = || {
            let write = self.operands.writes.iter().position(|(write, _)| write == access).map(Place::Write);
            write.or_else(|| self.operands.reads.iter().position(|read| read == access).map(Place::Read))
        };
        let rows = self.operands.rows(access).flatten().map(Place::Write);
        let place = match (access.place, self.known(access)) {
            (StorageRef::Temporary(t), _) if (self.operands.is_inner)(access.place) => {
                inner(t).or_else(whole)
            }
            _ if rows.is_some() => rows,
            (_, Some(v)) => {
                let Value { read, write, .. } = self.values[v];
                write.map(Place::Write).or(read.map(Place::Read))
            }
            (_, None) => whole(),
        };
        Some(PartOperand { place: place?, layout: access.layout.clone(), dtype: access.dtype })
    }
}
