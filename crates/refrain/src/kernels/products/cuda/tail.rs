//! Elementwise kernels behind a product, or behind another kernel that computes a result element by element, in the same
//! kernel: what would be launched next passes the result on in registers.
//!
//! The result is rounded to its dtype before, so the bits are those of separate launches.

use std::fmt::Write;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::plan::{BATCH_RANK, GemmPlan, suits};
use crate::device::cuda::{
    CudaArgs, Following, MAX_DRAWS, MAX_OPERANDS, MAX_SCALARS, MmaKind, Product, TailArgs, View,
};
use crate::kernels::elementwise::chain::{Chain, VALUES};
use crate::tensor::Layout;

/// The start of the text of every tail.
const TAIL: &str = include_str!("tail.cu");
/// A chain of elementwise kernels that follows another one: that of a product, say, whose result is C.
#[derive(Debug)]
pub(crate) struct Tail {
    /// Its values have an element for each element of C.
    chain: Chain,
    reaches: Vec<Reach>,
    /// The values that the first kernel computes: C, and what it keeps.
    results: [Option<usize>; 2],
    /// The value that is passed on, to a norm or to another product.
    passed: Option<usize>,
    text: OnceLock<Arc<str>>,
}

/// Which elements an operand has for those of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// One for each.
    All,
    /// A row for all rows.
    Row,
    /// So many, whole rows, again and again.
    Period(usize),
    /// One for all.
    One,
}

impl Reach {
    /// Of a layout in the shape of C, whose rows have `n` elements. `None` if it is another.
    fn of(layout: &Layout, n: usize) -> Option<Reach> {
        if layout.is_contiguous() {
            return Some(Reach::All);
        }
        let axes = layout.shape().iter().zip(layout.strides()).filter(|(d, _)| **d > 1).rev();
        let (mut period, mut repeats) = (1, false);
        for (&d, &step) in axes {
            match step {
                0 => repeats = true,
                step if step == period && !repeats => period *= d,
                _ => return None,
            }
        }
        match period {
            1 => Some(Reach::One),
            _ if period == n => Some(Reach::Row),
            _ => period.is_multiple_of(n).then_some(Reach::Period(period)),
        }
    }
}

/// Whether a product can have a tail, and is not slower with it than followed by a launch: where our own kernel computes all
/// of it, in tiles of which several run at once on a multiprocessor.
pub(crate) fn takes_tail(p: &Product, mma: MmaKind) -> bool {
    !suits(p, mma) && !p.is_empty() && p.batch.len() <= BATCH_RANK && GemmPlan::of(p, mma).hides_tail(p)
}

/// Whether a norm of the rows of a product's result can follow in the product's kernel: where our own kernel computes it, in
/// tiles as wide as the rows.
pub(crate) fn takes_norm(p: &Product, mma: MmaKind) -> bool {
    !suits(p, mma) && !p.is_empty() && p.batch.len() <= BATCH_RANK && GemmPlan::of(p, mma).has_rows(p)
}

/// Whether the tail of a product whose rows have `n` elements can read an operand, given its layout in the shape of C.
pub(crate) fn reads(layout: &Layout, n: usize) -> bool {
    Reach::of(layout, n).is_some()
}

impl Tail {
    /// `layouts` are those of the values of the chain, in the shape of C. `results` are the numbers of C and of what the
    /// product keeps, `passed` is that of what is passed on. `None` if it can't be made.
    pub(crate) fn new<'a>(
        chain: Chain,
        layouts: impl Iterator<Item = &'a Layout>,
        results: [Option<usize>; 2],
        passed: Option<usize>,
        n: usize,
    ) -> Option<Tail> {
        let reaches = layouts.map(|layout| Reach::of(layout, n)).collect::<Option<_>>()?;
        let tail = Tail { chain, reaches, results, passed, text: OnceLock::new() };
        let scalars = tail.chain.scalars().0.len();
        let fits = tail.operands().len() <= MAX_OPERANDS
            && scalars <= MAX_SCALARS
            && tail.chain.words.len() <= MAX_DRAWS;
        fits.then_some(tail)
    }

    fn is_result(&self, v: usize) -> bool {
        self.results.contains(&Some(v))
    }

    /// Whether it is loaded before the pieces.
    fn is_loaded(&self, v: usize) -> bool {
        !self.is_result(v) && self.chain.values[v].is_loaded()
    }

    /// Whether it is stored after the pieces. The first kernel stores its results itself.
    fn is_stored(&self, v: usize) -> bool {
        self.chain.values[v].write.is_some()
            && (!self.is_result(v) || self.chain.pieces.iter().any(|piece| piece.y == v))
    }

    /// The values that the tail loads or stores.
    fn operands(&self) -> SmallVec<[usize; MAX_OPERANDS]> {
        (0..self.chain.values.len()).filter(|&v| self.is_loaded(v) || self.is_stored(v)).collect()
    }

    fn views<'a>(&self, args: &CudaArgs<'a>) -> SmallVec<[View<'a>; MAX_OPERANDS]> {
        self.operands().iter().filter_map(|&v| self.chain.values[v].view(args)).collect()
    }

    fn written(&self) -> String {
        let mut text = [VALUES, TAIL].concat();
        let numbers = self.chain.write_texts(&mut text);
        text.push_str("namespace tail {\n");
        self.write_begin(&mut text);
        self.write_fetch(&mut text);
        self.write_follow(&numbers, &mut text);
        text.push_str("}\n");
        text
    }

    fn write_begin(&self, text: &mut String) {
        let (mut members, mut streams) = (String::new(), String::new());
        for w in 0..self.chain.words.len() {
            let _ = write!(members, " Stream w{w};");
            let _ = write!(streams, " stream(e.states[{w}], e.offsets[{w}]),");
        }
        let _ = write!(
            text,
            "struct Begun {{{members} }};\n\
             template <typename J> DEVICE Begun begin(const J& j) {{\n    \
                 const auto& e = j.tail[0];\n    return {{{streams} }};\n}}\n"
        );
    }

    fn write_fetch(&self, text: &mut String) {
        let (mut members, mut loads) = (String::new(), String::new());
        for (k, v) in self.operands().into_iter().enumerate().filter(|&(_, v)| self.is_loaded(v)) {
            let dtype = self.chain.values[v].dtype;
            let _ = write!(members, " vec<{dtype}_t, N> v{v};");
            let _ = match self.reaches[v] {
                Reach::All => {
                    writeln!(loads, "    o.v{v} = some<{dtype}_t, N, WHOLE>(e.operands[{k}], at, there);")
                }
                Reach::Row => {
                    writeln!(loads, "    o.v{v} = some<{dtype}_t, N, WHOLE>(e.operands[{k}], col, there);")
                }
                Reach::Period(period) => writeln!(
                    loads,
                    "    o.v{v} = some<{dtype}_t, N, WHOLE>(e.operands[{k}], (i64)((u64)at % {period}), there);"
                ),
                Reach::One => writeln!(loads, "    o.v{v} = one<{dtype}_t, N>(e.operands[{k}]);"),
            };
        }
        let _ = write!(
            text,
            "template <int N> struct Operands {{{members} }};\n\
             template <int N, bool WHOLE, typename J> DEVICE Operands<N> fetch(const J& j, i64 at, int col, int there) {{\n    \
                 const auto& e = j.tail[0];\n    Operands<N> o;\n{loads}    return o;\n}}\n"
        );
    }

    fn write_follow(&self, numbers: &[usize], text: &mut String) {
        text.push_str(
            "template <int N, bool WHOLE, typename J, typename C>\n\
             DEVICE auto follow(\n    \
                 const J& j, const Begun& begun, i64 at, int step, int there, const Operands<N>& o, const vec<C, N>& c, const vec<C, N>& kept\n\
             ) {\n    \
                 const auto& e = j.tail[0];\n",
        );
        let names = ["c", "kept"];
        for (v, value) in self.chain.values.iter().enumerate() {
            let dtype = value.dtype;
            let from = match self.results.iter().position(|&result| result == Some(v)) {
                Some(result) => format!(" = {}", names[result]),
                None if self.is_loaded(v) => format!(" = o.v{v}"),
                None => String::new(),
            };
            let _ = writeln!(text, "    vec<{dtype}_t, N> v{v}{from};");
        }
        for w in 0..self.chain.words.len() {
            let _ = writeln!(text, "    Drawn<N> w{w} = words<N, WHOLE>(begun.w{w}, at, step);");
        }
        self.chain.write_pieces(numbers, text);
        for (k, v) in self.operands().into_iter().enumerate().filter(|&(_, v)| self.is_stored(v)) {
            let _ = writeln!(text, "    keep<WHOLE>(e.operands[{k}], at + step, there, v{v});");
        }
        let _ = match self.passed {
            Some(v) => writeln!(text, "    return v{v};\n}}"),
            None => writeln!(text, "    return c;\n}}"),
        };
    }
}

impl Following for Tail {
    fn text(&self) -> Arc<str> {
        self.text.get_or_init(|| self.written().into()).clone()
    }

    fn args(&self, args: &CudaArgs<'_>) -> TailArgs {
        let mut tail = TailArgs::NONE;
        tail.operands.iter_mut().zip(self.views(args)).for_each(|(to, view)| *to = view.pointer);
        tail.s.iter_mut().zip(self.chain.scalars().0).for_each(|(to, s)| *to = s);
        for (i, words) in self.chain.words.iter().enumerate() {
            tail.states[i] = args.read(words.state);
            tail.offsets[i] = words.offset;
        }
        tail
    }

    fn is_aligned(&self, args: &CudaArgs<'_>, elements: usize) -> bool {
        self.views(args).iter().all(|view| view.alignment().is_multiple_of(elements * view.dtype.size()))
    }
}
