//! A fused launch, which contains its parts.

use std::fmt::Write;
use std::sync::Arc;

use smallvec::SmallVec;

use super::group::{ElementAccess, First, Group, adds};
use super::{Fusible, names};
use crate::device::cuda::{CudaArgs, Elements, Gpu, Piece, Pointer, Product, RowNorm, Work};
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::device::{Device, HostArgs, Kernel, Launch, Mode, OPERANDS, Operand, RESULTS, Storage};
use crate::error::Result;
use crate::kernels::elementwise::chain::{Chain, ChainPiece, ChainWords, Value};
use crate::kernels::products::cuda::{self as products, Followers, Tail};
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
    /// A product, and the other parts behind it. The norm is the last.
    Product(Box<Product>, Option<Tail>, Option<Box<RowNorm>>),
    Elements(Box<dyn Elements>, Tail),
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
        self.0.parts.iter().try_for_each(|part| part.run(args, &own))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        match &self.0.kernel {
            Fused::Chain(chain) => chain.run(args),
            Fused::Product(product, tail, norm) => {
                products::run_own(args, product, Followers { tail: tail.as_ref(), norm: norm.as_deref() })
            }
            Fused::Elements(elements, tail) => elements.run(args, Some(tail)),
        }
    }

    fn can_fail(&self) -> bool {
        false
    }

    fn cuda_workspace(&self, _: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        Ok(match &self.0.kernel {
            Fused::Chain(_) => 0,
            Fused::Product(product, ..) => products::own_workspace(gpu, product),
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

/// A launch that does what the members of a group do, which are given by their numbers in the recording. `uses` says how
/// many launches touch each temporary. `None` if it can't be made.
pub(super) fn build<'a>(
    recorded: &Recorded,
    group: &Group,
    members: impl Iterator<Item = (usize, Option<&'a Fusible>)> + Clone,
    uses: &[usize],
) -> Option<RecordedLaunch> {
    let touched: Vec<usize> =
        members.clone().flat_map(|(n, _)| super::temporaries(&recorded.launches[n])).collect();
    // A temporary that nobody else touches is not stored.
    let is_inner = |place| match place {
        StorageRef::Temporary(t) => touched.iter().filter(|&&other| other == t).count() == uses[t],
        StorageRef::External(_) => false,
    };
    let mut build = Build::new(&group.shape, &is_inner);
    let mut workspace = None;
    for (n, fusible) in members.clone() {
        let launch = &recorded.launches[n];
        match &fusible?.work {
            Work::Pieces(pieces) => build.add(launch, pieces)?,
            Work::Norm(norm) => build.add_norm(launch, norm)?,
            work => {
                build.add_first(launch, work)?;
                workspace = launch.workspace.clone();
            }
        }
    }
    let parts = members.map(|(n, _)| build.part(&recorded.launches[n])).collect::<Option<Vec<_>>>()?;
    let op = names::name(parts.iter().map(|part| part.op));
    let Build { values, accesses, words, pieces, first, norm, inner, reads, writes, .. } = build;
    let inner = inner.into_iter().map(|t| recorded.temporaries[t].bytes).collect();
    let chain = Chain::new(values, words, pieces);
    let kernel = match first {
        None => Fused::Chain(chain),
        Some((first, row, results)) => {
            let layouts = accesses.iter().map(|access| &access.layout);
            let (normalised, norm) = norm.unzip();
            let is_alone = chain.pieces.is_empty();
            if is_alone && normalised != results[0] {
                return None;
            }
            let tail = || Tail::new(chain, layouts, results, normalised, row);
            let norm = norm.map(Box::new);
            match first {
                Work::Product(product) if is_alone => Fused::Product(product, None, norm),
                Work::Product(product) => Fused::Product(product, Some(tail()?), norm),
                Work::Elements(elements) if norm.is_none() => Fused::Elements(elements, tail()?),
                Work::Elements(_) | Work::Pieces(_) | Work::Norm(_) => return None,
            }
        }
    };
    let kernel = FusedKernel(Arc::new(Parts { parts, inner, kernel }));
    Some(RecordedLaunch {
        op,
        kernel: Box::new(kernel),
        reads: reads.into(),
        writes: writes.into(),
        workspace,
    })
}

/// A fused launch while it is made.
struct Build<'a> {
    shape: &'a Shape,
    is_inner: &'a dyn Fn(StorageRef) -> bool,
    values: Vec<Value>,
    /// Where each of `values` lies.
    accesses: Vec<ElementAccess>,
    words: Vec<ChainWords>,
    pieces: Vec<ChainPiece>,
    /// The launch that takes a tail, how many elements a row of its result has, and the numbers of the values of the result and
    /// of what it keeps.
    first: Option<(Work, usize, [Option<usize>; 2])>,
    /// The norm that comes last, and the number of the value that it follows.
    norm: Option<(usize, RowNorm)>,
    /// The temporaries that are not stored.
    inner: Vec<usize>,
    reads: Vec<Access>,
    writes: Vec<(Access, Mode)>,
}

impl<'a> Build<'a> {
    fn new(shape: &'a Shape, is_inner: &'a dyn Fn(StorageRef) -> bool) -> Build<'a> {
        Build {
            shape,
            is_inner,
            values: Vec::new(),
            accesses: Vec::new(),
            words: Vec::new(),
            pieces: Vec::new(),
            first: None,
            norm: None,
            inner: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
        }
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

    fn add_first(&mut self, launch: &RecordedLaunch, work: &Work) -> Option<()> {
        let First { result, kept, residual, row } = match work {
            Work::Product(product) => First::product(product),
            Work::Elements(elements) => First::elements(&**elements),
            Work::Pieces(_) | Work::Norm(_) => return None,
        };
        // It runs before all pieces, so none may compute what it reads or writes.
        let is_computed = |build: &Build<'_>, v: usize| build.pieces.iter().any(|piece| piece.y == v);
        let (mut reads, mut writes, mut results) = (Vec::new(), Vec::new(), [None; 2]);
        for (i, access) in launch.reads.iter().enumerate() {
            let read = match residual == Some(i) {
                true => {
                    let value = self.read(access)?;
                    self.values[value].read.filter(|_| !is_computed(self, value))?
                }
                false => self.read_whole(access),
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
                None if (self.is_inner)(access.place) => return None,
                None => {
                    self.writes.push((access.clone(), *mode));
                    Some(self.writes.len() - 1)
                }
            };
            writes.push(write.map_or(Pointer::NOTHING, Pointer::write));
        }
        let moved = match work {
            Work::Product(product) => Work::Product(product.moved(&reads, &writes)?.into()),
            Work::Elements(elements) => Work::Elements(elements.moved(&reads, &writes)?),
            Work::Pieces(_) | Work::Norm(_) => return None,
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
                false => Pointer::read(self.read_whole(access)),
            })
            .collect();
        let mut writes = Vec::new();
        for (access, mode) in &launch.writes {
            match access.place {
                // Nobody reads it: statistics, where there is no backward pass.
                StorageRef::Temporary(t) if (self.is_inner)(access.place) => {
                    self.inner.push(t);
                    writes.push(Pointer::NOTHING);
                }
                _ => {
                    self.writes.push((access.clone(), *mode));
                    writes.push(Pointer::write(self.writes.len() - 1));
                }
            }
        }
        self.norm = Some((value, norm.moved(&reads, &writes)?));
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
        if (self.is_inner)(access.place) {
            return None;
        }
        self.reads.push(self.in_loop(access)?);
        let read = Some(self.reads.len() - 1);
        self.new_value(access, Value { dtype: access.dtype, read, write: None, adds: false })
    }

    fn write(&mut self, access: &Access, mode: Mode) -> Option<usize> {
        let adds = adds(mode);
        let is_inner = (self.is_inner)(access.place);
        let value = match self.known(access) {
            Some(known) => known,
            None if is_inner && adds => return None,
            None => self.new_value(access, Value { dtype: access.dtype, read: None, write: None, adds })?,
        };
        if is_inner {
            if let StorageRef::Temporary(t) = access.place
                && !self.inner.contains(&t)
            {
                self.inner.push(t);
            }
        } else if self.values[value].write.is_none() {
            let mode = if self.values[value].adds { Mode::Accumulate } else { Mode::Replace };
            self.writes.push((self.in_loop(access)?, mode));
            self.values[value].write = Some(self.writes.len() - 1);
        }
        Some(value)
    }

    /// The number of an operand that has no element for each element of the loop.
    fn read_whole(&mut self, access: &Access) -> usize {
        let known = self.reads.iter().position(|read| read == access);
        known.unwrap_or_else(|| {
            self.reads.push(access.clone());
            self.reads.len() - 1
        })
    }

    /// The number of the random words of a generator's state.
    fn words(&mut self, state: &Access, offset: u64) -> usize {
        let state = self.read_whole(state);
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
        let inner = |t| self.inner.iter().position(|&other| other == t).map(Place::Inner);
        let whole = || {
            let write = self.writes.iter().position(|(write, _)| write == access).map(Place::Write);
            write.or_else(|| self.reads.iter().position(|read| read == access).map(Place::Read))
        };
        let place = match (access.place, self.known(access)) {
            (StorageRef::Temporary(t), _) if (self.is_inner)(access.place) => inner(t),
            (_, Some(v)) => {
                let Value { read, write, .. } = self.values[v];
                write.map(Place::Write).or(read.map(Place::Read))
            }
            (_, None) => whole(),
        };
        Some(PartOperand { place: place?, layout: access.layout.clone(), dtype: access.dtype })
    }
}
