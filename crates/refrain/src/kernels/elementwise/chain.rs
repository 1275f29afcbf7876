//! Several elementwise kernels as one on CUDA: each element passes through all of them in registers.
//!
//! The kernel is made from the texts that the operations have, each in a namespace of its own with its own constants. A value
//! is rounded to the dtype of the operation that made it, so the chain has the bits of the single kernels.

use std::fmt::Write;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::LoopPlan;
use super::cuda::{LOOP, Walk, Walked, grid};
use crate::device::cuda::{
    Bounds, ChainArgs, CudaArgs, HEAD_AXES, KernelSpec, Lead, Leading, MAX_CHAIN_SCALARS, MAX_DRAWS,
    MAX_PICKS, MAX_VALUES, MAX_WALKED, Pick, Piece, Pointer, Reporter, Source, View, define, padded, params,
    undefine, with_rank,
};
use crate::error::{Error, Result};
use crate::kernels::numbers::Numbers;
use crate::kernels::units;
use crate::tensor::{DType, Layout, Shape};

/// What the kernels of a chain share, whatever goes over their elements.
pub(crate) const VALUES: &str = include_str!("values.cu");
/// Their operands in memory.
pub(crate) const LOADS: &str = include_str!("loads.cu");
static SOURCE: Source = Source { name: "chain", parts: &[VALUES, LOADS, include_str!("chain.cu")] };

/// Axes at most.
pub(crate) const MAX_AXES: usize = 16;
/// Elements of a row that are worth a head.
const SHORTEST_ROW: usize = 8;

/// Values of one dtype, one for each element. They are loaded before the pieces and stored after them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) dtype: DType,
    /// The operand of the launch that holds them before.
    pub(crate) read: Option<usize>,
    /// The result of the launch that holds them afterwards.
    pub(crate) write: Option<usize>,
    /// Whether the result is added to, so that it also holds them before.
    pub(crate) adds: bool,
    /// The number of the pick that they come from.
    pub(crate) pick: Option<usize>,
}

/// Values that are picked from an operand of another shape, before the pieces.
#[derive(Clone, Debug)]
pub(crate) struct ChainPick {
    /// The operation, whose users meet an index out of range.
    pub(crate) op: &'static str,
    /// With the numbers of the operands in the launch of the chain.
    pub(crate) pick: Pick,
    /// Where the elements of the result lie, which are picked in this order.
    pub(crate) order: Layout,
}

/// Random words: element `i` in the order of a layout gets word `i`.
#[derive(Clone, Debug)]
pub(crate) struct ChainWords {
    /// The operand of the launch with the generator's state.
    pub(crate) state: usize,
    /// Added to its counter.
    pub(crate) offset: u64,
    /// The offset of an element in this layout is the number of its word.
    pub(crate) order: Layout,
}

/// A kernel of a chain, with the numbers of its values.
#[derive(Clone, Debug)]
pub(crate) struct ChainPiece {
    pub(crate) piece: Piece,
    pub(crate) x: SmallVec<[usize; 5]>,
    pub(crate) y: usize,
    /// Whether it adds to `y`.
    pub(crate) adds: bool,
    /// The number of its random words.
    pub(crate) words: Option<usize>,
}

/// A chain of elementwise kernels, in order.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub(crate) values: Vec<Value>,
    pub(crate) words: Vec<ChainWords>,
    pub(crate) picks: Vec<ChainPick>,
    pub(crate) pieces: Vec<ChainPiece>,
    text: OnceLock<Arc<str>>,
}

params! {
    /// The arguments of the loop.
    struct LoopArgs<const RANK: usize> {
        n: i64,
        chain: ChainArgs<RANK>,
    }
}

/// How a loop goes over the elements of a chain.
struct Way<'a> {
    views: Vec<View<'a>>,
    plan: LoopPlan,
    walk: Walk,
}

impl Chain {
    pub(crate) fn new(
        values: Vec<Value>,
        words: Vec<ChainWords>,
        picks: Vec<ChainPick>,
        pieces: Vec<ChainPiece>,
    ) -> Chain {
        Chain { values, words, picks, pieces, text: OnceLock::new() }
    }

    /// Runs the chain. The operands and results of the launch all have one shape.
    pub(crate) fn run(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let Way { views, plan, walk } = self.way(args, None)?;
        let n = plan.numel();
        if n == 0 {
            return Ok(());
        }
        let spec = KernelSpec::new(&SOURCE, "chain")
            .int("RANK", walk.rank as i64)
            .int("VEC", walk.vec as i64)
            .int("DENSE", walk.dense)
            .word("INDEX", if walk.wide { "u64" } else { "u32" })
            .generated(self.text(args));
        let grid = grid(args, n / walk.vec);
        with_rank!(args.op(), walk.rank, RANK => {
            let chain = self.told::<RANK>(args, &views, &plan.shape, &plan.strides);
            args.kernel(spec, grid, &LoopArgs { n: n as i64, chain })
        })
    }

    /// How a loop goes over the operands of the chain, in the order of `first` or else of the first of them.
    fn way<'a>(&self, args: &CudaArgs<'a>, first: Option<(&Layout, Walked)>) -> Result<Way<'a>> {
        let in_memory = self.in_memory();
        let views: Vec<View<'a>> = in_memory.iter().filter_map(|&v| self.values[v].view(args)).collect();
        let fits = self.words.len() <= MAX_DRAWS && self.picks.len() <= MAX_PICKS;
        if first.is_none() && views.is_empty() || in_memory.len() > MAX_VALUES || !fits {
            return Err(Error::internal(args.op(), "a chain with too many operands, or none"));
        }
        let layouts: Vec<&Layout> = (first.iter().map(|(layout, _)| *layout))
            .chain(views.iter().map(|view| view.layout))
            .chain(self.words.iter().map(|words| &words.order))
            .chain(self.picks.iter().map(|pick| &pick.order))
            .collect();
        let plan = LoopPlan::new(&layouts);
        // A result holds each element once, and each element has its own random word.
        let walked = in_memory
            .iter()
            .zip(&views)
            .map(|(&v, view)| Walked { repeats: self.values[v].write.is_none(), ..Walked::of(view) });
        let positions = self.words.iter().map(|_| Walked { size: 1, alignment: 256, repeats: false });
        // What a thread takes at once is in one slice.
        let picked = self.picks.iter().map(|ChainPick { pick, .. }| {
            let size = args.read_dtype(pick.table).size();
            let alignment = units::largest([pick.width * size, args.input(pick.table).alignment()]);
            Walked { size, alignment, repeats: false }
        });
        let first = first.iter().map(|(_, walked)| *walked);
        let walked: Vec<Walked> = first.chain(walked).chain(positions).chain(picked).collect();
        let walk = Walk::new(&plan, &walked);
        Ok(Way { views, plan, walk })
    }

    /// What the kernel is told.
    fn told<const RANK: usize>(
        &self,
        args: &CudaArgs<'_>,
        views: &[View<'_>],
        shape: &Numbers,
        strides: &[Numbers],
    ) -> ChainArgs<RANK> {
        let mut told = ChainArgs::<RANK> {
            zero: 0,
            operands: [Pointer::NOTHING; MAX_VALUES],
            s: [0.0; MAX_CHAIN_SCALARS],
            states: [Pointer::NOTHING; MAX_DRAWS],
            offsets: [0; MAX_DRAWS],
            tables: [Pointer::NOTHING; MAX_PICKS],
            indices: [Pointer::NOTHING; MAX_PICKS],
            picked: [[0; 3]; MAX_PICKS],
            reporters: [Reporter::NONE; MAX_PICKS],
            shape: padded(shape, 1),
            strides: [[0; RANK]; MAX_WALKED],
        };
        told.operands.iter_mut().zip(views).for_each(|(to, view)| *to = view.pointer);
        told.strides.iter_mut().zip(strides).for_each(|(to, strides)| *to = padded(strides, 0));
        told.s.iter_mut().zip(self.scalars().0).for_each(|(to, s)| *to = s);
        for (i, words) in self.words.iter().enumerate() {
            told.states[i] = args.read(words.state);
            told.offsets[i] = words.offset;
        }
        for (i, ChainPick { op, pick, .. }) in self.picks.iter().enumerate() {
            told.tables[i] = args.read(pick.table);
            told.indices[i] = args.read(pick.index);
            told.picked[i] = [pick.count, pick.size, pick.width].map(|n| n as i64);
            told.reporters[i] = args.faults_of(op, Bounds::Axis);
        }
        told
    }

    /// The values that the loop loads or stores, a result first.
    fn in_memory(&self) -> SmallVec<[usize; MAX_VALUES]> {
        let with = |stored: bool| {
            let values = self.values.iter().enumerate();
            values
                .filter(move |(_, value)| value.write.is_some() == stored && (stored || value.read.is_some()))
        };
        with(true).chain(with(false)).map(|(v, _)| v).collect()
    }

    /// The text behind `chain.cu`.
    fn text(&self, args: &CudaArgs<'_>) -> Arc<str> {
        let written = || {
            self.written(args, "void elements", "", |text| {
                self.write_reports(text);
                self.write_stores(text);
            })
        };
        self.text.get_or_init(|| written().into()).clone()
    }

    /// Stores the values that others read.
    fn write_stores(&self, text: &mut String) {
        for (at, v) in self.in_memory().into_iter().enumerate() {
            let Value { dtype, write, .. } = self.values[v];
            if write.is_some() {
                let _ = writeln!(text, "    keep<{at}, {dtype}_t, N>(e, at, v{v});");
            }
        }
    }

    /// Reports the indices out of range, which are in `bad`.
    fn write_reports(&self, text: &mut String) {
        (0..self.picks.len()).for_each(|k| {
            let _ = writeln!(text, "    report_bad(e, {k}, bad);");
        });
    }

    /// The text of a function over N elements, which `ends` with what it does with the values. Without `more` parameters, it begins with
    /// no index out of range.
    fn written(
        &self,
        args: &CudaArgs<'_>,
        function: &str,
        more: &str,
        ends: impl FnOnce(&mut String),
    ) -> String {
        let mut text = String::new();
        let numbers = self.write_texts(&mut text);
        let in_memory = self.in_memory();
        let place = |v: usize| in_memory.iter().position(|&m| m == v).unwrap_or(0);

        let _ = writeln!(
            text,
            "template <int N, typename E> DEVICE {function}(const E& e, INDEX first{more}) {{"
        );
        if more.is_empty() && !self.picks.is_empty() {
            let _ = writeln!(text, "    i64 bad[{MAX_PICKS}] = {{}};");
        }
        text.push_str("    INDEX at[RANK];\n    locate(at, e, first);\n");
        for (v, value) in self.values.iter().enumerate() {
            let dtype = value.dtype;
            let _ = match value.pick {
                Some(k) => {
                    let (position, ids) =
                        (in_memory.len() + self.words.len() + k, args.read_dtype(self.picks[k].pick.index));
                    let ChainPick { pick, order, .. } = &self.picks[k];
                    let (missing, is_flat) =
                        (units::missing(dtype), order.numel() == pick.count * pick.width);
                    writeln!(
                        text,
                        "    vec<{dtype}_t, N> v{v} = pick<{ids}_t, {dtype}_t, N, {is_flat}>(e, {k}, place<{position}>(e, at), {missing:#x}ull, bad);"
                    )
                }
                None if value.is_loaded() => {
                    writeln!(text, "    vec<{dtype}_t, N> v{v} = fetch<{}, {dtype}_t, N>(e, at);", place(v))
                }
                None => writeln!(text, "    vec<{dtype}_t, N> v{v};"),
            };
        }
        for w in 0..self.words.len() {
            let position = in_memory.len() + w;
            let _ = writeln!(
                text,
                "    Drawn<N> w{w} = draw<N>(stream(e.states[{w}], e.offsets[{w}]), (u64)place<{position}>(e, at));"
            );
        }
        self.write_pieces(&numbers, &mut text);
        ends(&mut text);
        text.push_str("}\n");
        text
    }

    /// Writes the texts of the pieces, and returns the number of the namespace of each. Pieces of the same text and constants
    /// share one.
    pub(crate) fn write_texts(&self, text: &mut String) -> Vec<usize> {
        let mut known: Vec<KernelSpec> = Vec::new();
        self.pieces.iter().map(|piece| self.namespace(piece, &mut known, text)).collect()
    }

    /// Writes the pieces, in namespaces `numbers`, each as a loop over N elements: of values `v0`, `v1`, .. with random words `w0`,
    /// .., and scalars `e.s`.
    pub(crate) fn write_pieces(&self, numbers: &[usize], text: &mut String) {
        let (_, places) = self.scalars();
        for ((piece, number), scalars) in self.pieces.iter().zip(numbers).zip(places) {
            let word = piece.words.map_or(String::new(), |w| format!(", w{w}.at[i]"));
            let (y, dtype) = (piece.y, self.values[piece.y].dtype);
            let _ = writeln!(text, "    {{\n        typedef {}_t C;\n        C y[N];", piece.piece.compute);
            for (k, v) in piece.x.iter().enumerate() {
                let _ = writeln!(text, "        vec<C, N> x{k} = given<C>(v{v}, e);");
            }
            if piece.adds {
                let _ = writeln!(text, "        vec<C, N> before = given<C>(v{y}, e);");
            }
            let x: Vec<String> = (0..piece.x.len()).map(|k| format!("x{k}.at[i]")).collect();
            let _ = writeln!(
                text,
                "        #pragma unroll\n        for (int i = 0; i < N; i++) {{\n            C x[{}] = {{{}}};\n            \
                     y[i] = part{number}::apply(x, e.s + {scalars}{word});",
                x.len() + 1,
                x.join(", ")
            );
            if piece.adds {
                text.push_str("            y[i] = (C)(before.at[i] + y[i]);\n");
            }
            let _ = writeln!(text, "        }}\n        v{y} = round_all<{dtype}_t, N>(y);\n    }}");
        }
    }

    /// The scalars of all pieces, and where those of each begin. Pieces of the same scalars share them, so that the compiler sees
    /// what they compute alike.
    pub(crate) fn scalars(&self) -> (SmallVec<[f64; MAX_CHAIN_SCALARS]>, SmallVec<[usize; MAX_VALUES]>) {
        let (mut all, mut places) = (SmallVec::new(), SmallVec::<[usize; MAX_VALUES]>::new());
        for (i, piece) in self.pieces.iter().enumerate() {
            let own = &piece.piece.scalars;
            let bits =
                |s: &[f64]| s.iter().map(|s| s.to_bits()).collect::<SmallVec<[u64; MAX_CHAIN_SCALARS]>>();
            let known = self.pieces[..i].iter().position(|other| bits(&other.piece.scalars) == bits(own));
            places.push(known.map_or(all.len(), |known| places[known]));
            if known.is_none() {
                all.extend(own.iter().copied());
            }
        }
        (all, places)
    }

    /// The number of the namespace of a piece. A new one is written.
    fn namespace(&self, piece: &ChainPiece, known: &mut Vec<KernelSpec>, text: &mut String) -> usize {
        const INPUTS: [&str; 5] = ["IN0", "IN1", "IN2", "IN3", "IN4"];
        let mut spec = KernelSpec::new(piece.piece.source, "chain");
        spec.constants = piece.piece.constants.clone();
        spec = spec
            .dtype("COMPUTE", piece.piece.compute)
            .dtype("OUT", self.values[piece.y].dtype)
            .int("INPUTS", piece.x.len() as i64);
        for (name, &v) in INPUTS.into_iter().zip(&piece.x) {
            spec = spec.dtype(name, self.values[v].dtype);
        }
        if let Some(number) = known.iter().position(|other| *other == spec) {
            return number;
        }
        define(text, &spec.constants);
        let _ = writeln!(text, "namespace part{} {{", known.len());
        piece.piece.source.parts.iter().filter(|part| **part != LOOP).for_each(|part| text.push_str(part));
        text.push_str("}\n");
        undefine(text, &spec.constants);
        known.push(spec);
        known.len() - 1
    }
}

/// A chain whose last value is an operand of the kernel that calls it, element by element.
#[derive(Debug)]
pub(crate) struct Head {
    chain: Chain,
    /// The number of that value.
    value: usize,
    /// Where its elements would lie.
    order: Layout,
    text: OnceLock<Arc<str>>,
}

impl Head {
    pub(crate) fn new(chain: Chain, value: usize, shape: &Shape) -> Head {
        Head { chain, value, order: Layout::contiguous(shape.clone()), text: OnceLock::new() }
    }

    /// Whether a kernel can call a chain of operands of these layouts, in the order of the elements. If rows are short or one lies across
    /// them, a loop over the chain alone is faster.
    pub(crate) fn suits<'a>(shape: &Shape, layouts: impl Iterator<Item = &'a Layout>) -> bool {
        let order = Layout::contiguous(shape.clone());
        let layouts: Vec<&Layout> = layouts.collect();
        let plan = LoopPlan::new(&std::iter::once(&order).chain(layouts).collect::<Vec<_>>());
        let has_rows = plan.strides.iter().all(|strides| strides.last().is_none_or(|&last| last <= 1));
        let is_long = plan.shape.len() == 1 || plan.shape.last().is_some_and(|&len| len >= SHORTEST_ROW);
        plan.shape.len() <= HEAD_AXES && has_rows && is_long
    }
}

impl Leading for Head {
    fn lead(&self, args: &CudaArgs<'_>, row: usize) -> Result<Lead> {
        let dtype = self.chain.values[self.value].dtype;
        let alignment = units::largest([row * dtype.size()]);
        let first = (&self.order, Walked { size: dtype.size(), alignment, repeats: false });
        let Way { views, plan, walk } = self.chain.way(args, Some(first))?;
        let function = format!("vec<{dtype}_t, N> element");
        let ends = |text: &mut String| {
            self.chain.write_stores(text);
            // The caller must not contract a product and its own sum to one rounding. What was rounded to 16 bits can't be.
            let _ = match dtype {
                DType::F32 | DType::F64 => writeln!(text, "    return given<{dtype}_t>(v{}, e);", self.value),
                _ => writeln!(text, "    return v{};", self.value),
            };
        };
        let written = || {
            let mut text = self.chain.written(args, &function, ", i64* bad", ends);
            text.push_str("template <typename E> DEVICE void report_all(const E& e, const i64* bad) {\n");
            self.chain.write_reports(&mut text);
            text + "}\n"
        };
        let text = self.text.get_or_init(|| written().into()).clone();
        // The walk has the order of the elements before the operands. What an axis is missing for comes last.
        let axes = |numbers: &Numbers, fill: usize| {
            let missing = std::iter::repeat(fill);
            Numbers::collect(HEAD_AXES, numbers.iter().copied().chain(missing).take(HEAD_AXES))
        };
        let strides: Vec<Numbers> = plan.strides[1..].iter().map(|strides| axes(strides, 0)).collect();
        let args = self.chain.told(args, &views, &axes(&plan.shape, 1), &strides);
        let Walk { vec, dense, wide, .. } = walk;
        Ok(Lead { text, vec, dense: dense >> 1, wide, axes: plan.shape.len(), args })
    }
}

impl Value {
    /// Whether the loop loads it before the pieces.
    pub(crate) fn is_loaded(&self) -> bool {
        self.read.is_some() || self.adds
    }

    /// Where it lies in memory.
    pub(crate) fn view<'a>(&self, args: &CudaArgs<'a>) -> Option<View<'a>> {
        self.write.map(|w| args.output(w)).or(self.read.map(|r| args.input(r)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_the_same_scalars_share_them() {
        let piece = |scalars: &[f64]| ChainPiece {
            piece: Piece {
                source: &SOURCE,
                constants: KernelSpec::new(&SOURCE, "chain").constants,
                compute: DType::F32,
                scalars: scalars.into(),
                x: SmallVec::new(),
                y: 0,
                words: None,
            },
            x: SmallVec::new(),
            y: 0,
            adds: false,
            words: None,
        };
        let pieces = [&[1.0, 2.0][..], &[], &[0.0], &[1.0, 2.0], &[-0.0], &[1.0]].map(piece);
        let (scalars, places) = Chain::new(Vec::new(), Vec::new(), Vec::new(), pieces.into()).scalars();
        // The zeros differ.
        assert!(scalars.iter().map(|s| s.to_bits()).eq([1.0f64, 2.0, 0.0, -0.0, 1.0].map(f64::to_bits)));
        assert_eq!(places[..], [0, 2, 2, 0, 3, 4]);
    }
}
