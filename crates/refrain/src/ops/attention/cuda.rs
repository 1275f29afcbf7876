//! Attention on CUDA. It runs on tensor cores, short sequences by [`Fragments`] and others by [`Flash`]; the rest (f64, heads of more
//! than 128 numbers, and in f32 heads of fewer than 8 with fewer than 32 keys) in f32 or f64 arithmetic. There, a few lanes share a
//! query, and keys and values pass through shared memory. The order of additions does not depend on the shape of the blocks.

use super::dropout::KEYS_OF_WORD;
use super::flash::Flash;
use super::fragments::Fragments;
use super::{Attention, AttentionBackward};

use crate::device::Launch;
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, MmaKind, Pointer, Source, View, params};
use crate::error::{Error, Result};
use crate::ops::dropout::scale;
use crate::tensor::{DType, Layout};

pub(super) const JOB: &str = include_str!("job.cu");
const COMMON: &str = include_str!("common.cu");

static FORWARD: Source = Source { name: "attention", parts: &[JOB, COMMON, include_str!("forward.cu")] };
static BACKWARD: Source = Source { name: "attention", parts: &[JOB, COMMON, include_str!("backward.cu")] };
static BACKWARD_LONG: Source =
    Source { name: "attention", parts: &[JOB, COMMON, include_str!("backward_long.cu")] };

/// Keys per iteration of a kernel (`CHUNK` in the kernel text).
const CHUNK: usize = 4;
/// Numbers in the `Softmax` of a row (in the kernel text).
pub(super) const SOFTMAX: usize = 3;
/// Threads of a block, if there are enough rows.
const THREADS: usize = 128;
/// From this many rows per sequence, a thread works on two rows.
const LONG: usize = 16;
/// This many blocks keep a GPU busy.
const ENOUGH_BLOCKS: usize = 264;
/// Shared memory of a block that leaves room for several blocks on a multiprocessor.
const TILE_BYTES: usize = 24 << 10;
/// Shared memory of a block that holds whole sequences, with room for several blocks.
const WHOLE_BYTES: usize = 24 << 10;
/// The shared memory that a block can have on every GPU of compute capability 8.0 or later.
const MOST_BYTES: usize = 99 << 10;

/// The sizes, and how a row is spread over lanes.
struct AttentionPlan {
    dtype: DType,
    causal: bool,
    /// Number of (sequence, head) pairs.
    pairs: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
    lanes: usize,
    /// Numbers of a row that a lane holds.
    each: usize,
    /// Rows per thread: two if there are enough rows for all threads.
    rows: usize,
    /// Bytes of a number in the arithmetic.
    size: usize,
}

/// How the rows of one side are divided into blocks, while the rows of the other side pass through in tiles.
struct Blocks {
    pairs_per_block: usize,
    parts: usize,
    tile: usize,
    grid: Grid,
}

impl AttentionPlan {
    fn new(q: &View<'_>, k: &View<'_>, causal: bool) -> AttentionPlan {
        let (shape, dtype) = (q.layout.shape(), q.dtype);
        let size = if dtype == DType::F64 { 8 } else { 4 };
        let (keys, head_dim, vec) = (k.layout.shape()[1], shape[3], 16 / size);
        // As many numbers per lane as the registers hold without spilling.
        let lanes = head_dim.div_ceil(64 / size).next_power_of_two().clamp(1, 32);
        AttentionPlan {
            dtype,
            causal,
            pairs: shape[0] * shape[2],
            heads: shape[2],
            queries: shape[1],
            keys,
            head_dim,
            lanes,
            each: head_dim.div_ceil(lanes).next_multiple_of(vec),
            rows: if shape[1].min(keys) >= LONG { 2 } else { 1 },
            size,
        }
    }

    fn padded(&self) -> usize {
        self.lanes * self.each
    }

    /// Elements of shared memory for `rows` rows of a pair (`slot_size` in the kernel text).
    fn slot(&self, rows: usize) -> usize {
        rows.next_multiple_of(CHUNK) * self.padded() + 16 / self.size * self.lanes
    }

    /// Blocks for `rows` rows of each pair, each of which meets `others` rows.
    fn blocks(&self, op: &'static str, rows: usize, others: usize) -> Result<Blocks> {
        let (groups, units) = (THREADS / self.lanes, rows.div_ceil(self.rows));
        let slot = |tile: usize| 2 * self.size * self.slot(tile);
        let whole = others.next_multiple_of(CHUNK).max(CHUNK);
        let pairs_per_block = match groups / units {
            0 => 1,
            most => {
                let fitting = (TILE_BYTES / slot(whole)).min(self.pairs / ENOUGH_BLOCKS);
                most.min(fitting.max(1))
            }
        };
        let mut tile = whole;
        while tile > CHUNK && pairs_per_block * slot(tile) > TILE_BYTES {
            tile = (tile / 2).next_multiple_of(CHUNK);
        }
        let bytes = pairs_per_block * slot(tile);
        if bytes > MOST_BYTES {
            return Err(Error::invalid(
                op,
                format!("heads of {} numbers do not fit in a GPU's shared memory", self.head_dim),
            ));
        }
        let (parts, threads) = match units <= groups {
            true => (1, (pairs_per_block * units * self.lanes).next_multiple_of(32)),
            false => (units.div_ceil(groups), THREADS),
        };
        let grid = Grid::line(self.pairs.div_ceil(pairs_per_block) * parts, threads as u32).shared(bytes);
        Ok(Blocks { pairs_per_block, parts, tile, grid })
    }

    /// Blocks that hold whole pairs, if the sequences are short enough.
    fn whole(&self) -> Option<Blocks> {
        let rows = 2 * (self.slot(self.queries) + self.slot(self.keys));
        let bytes = (rows + self.queries * SOFTMAX) * self.size;
        if bytes > WHOLE_BYTES {
            return None;
        }
        let most = self.queries.max(self.keys).max(1).div_ceil(self.rows);
        let pairs_per_block = (WHOLE_BYTES / bytes.max(1))
            .min(THREADS / self.lanes / most)
            .min(self.pairs / ENOUGH_BLOCKS)
            .max(1);
        let threads = (pairs_per_block * most * self.lanes).next_multiple_of(32).min(2 * THREADS);
        let grid =
            Grid::line(self.pairs.div_ceil(pairs_per_block), threads as u32).shared(pairs_per_block * bytes);
        Some(Blocks { pairs_per_block, parts: 1, tile: 0, grid })
    }

    fn spec(&self, source: &'static Source, entry: &'static str, operands: &[&View<'_>]) -> KernelSpec {
        KernelSpec::new(source, entry)
            .dtype("IN", self.dtype)
            .dtype("COMPUTE", if self.size == 8 { DType::F64 } else { DType::F32 })
            .int("HEAD_DIM", self.head_dim as i64)
            .int("LANES", self.lanes as i64)
            .int("EACH", self.each as i64)
            .int("ROWS", self.rows as i64)
            .flag("ALIGNED", aligned(operands, 16 / self.size))
            .flag("CAUSAL", self.causal)
    }
}

params! {
    /// Queries, keys, values, outputs or gradients of them: `[sequences, tokens, heads, dim]`.
    pub(super) struct Heads {
        /// Where the first element is.
        at: Pointer,
        /// Elements from a sequence, a token and a head to the next.
        sequence: i64,
        token: i64,
        head: i64,
    }

    /// The arguments of the kernels.
    pub(super) struct Job {
        q: Heads,
        k: Heads,
        v: Heads,
        d_o: Heads,
        o: Heads,
        dq: Heads,
        dk: Heads,
        dv: Heads,
        /// `[sequences, heads, queries]`: of the rows of scores what the forward pass keeps, the largest (on tensor
        /// cores before the scale, unless scores are returned) and 1 / the sum of the exponentials.
        largest: Pointer,
        inverse: Pointer,
        /// And what kernels of the backward pass tell each other.
        softmaxes: Pointer,
        /// `[sequences, heads, queries, keys]`: scores to add, scores for the next layer, and the gradients of both.
        before: Pointer = "const IN*",
        /// Elements from the scores before of a sequence, a head and a query to the next.
        before_sequence: i64,
        before_head: i64,
        before_query: i64,
        after: Pointer = "IN*",
        d_before: Pointer = "IN*",
        d_after: Pointer = "const IN*",
        /// Dropout: the weights that it keeps, in so many words for a row of scores, and their factor.
        kept: Pointer = "const u64*",
        words: i64,
        kept_scale: f64,
        pairs: i64,
        heads: i64,
        queries: i64,
        keys: i64,
        /// Pairs of a sequence and a head that a block takes, blocks that share a pair, and of the other side the rows
        /// that pass by at a time.
        pairs_per_block: i64,
        parts: i64,
        tile: i64,
        scale: f64,
        /// Keys ahead of the first query, for the causal mask.
        past: i64,
    }
}

impl Heads {
    const NONE: Heads = Heads { at: Pointer::NOTHING, sequence: 0, token: 0, head: 0 };

    fn of(x: &View<'_>) -> Heads {
        let s = x.layout.strides();
        Heads { at: x.pointer, sequence: s[0] as i64, token: s[1] as i64, head: s[2] as i64 }
    }
}

impl Job {
    /// Of these queries, keys and values, for all else to be added.
    fn new(op: &Attention, plan: &AttentionPlan, [q, k, v]: [&View<'_>; 3]) -> Job {
        Job {
            q: Heads::of(q),
            k: Heads::of(k),
            v: Heads::of(v),
            d_o: Heads::NONE,
            o: Heads::NONE,
            dq: Heads::NONE,
            dk: Heads::NONE,
            dv: Heads::NONE,
            largest: Pointer::NOTHING,
            inverse: Pointer::NOTHING,
            softmaxes: Pointer::NOTHING,
            before: Pointer::NOTHING,
            before_sequence: 0,
            before_head: 0,
            before_query: 0,
            after: Pointer::NOTHING,
            d_before: Pointer::NOTHING,
            d_after: Pointer::NOTHING,
            kept: Pointer::NOTHING,
            words: plan.keys.div_ceil(KEYS_OF_WORD) as i64,
            kept_scale: op.dropout.map_or(1.0, scale),
            pairs: plan.pairs as i64,
            heads: plan.heads as i64,
            queries: plan.queries as i64,
            keys: plan.keys as i64,
            pairs_per_block: 0,
            parts: 0,
            tile: 0,
            scale: op.scale,
            past: op.past.min(plan.keys) as i64,
        }
    }

    /// With the scores of operand `i` added.
    fn before(self, args: &CudaArgs<'_>, i: Option<usize>) -> Job {
        let Some(i) = i else { return self };
        let s = args.launch().reads[i].layout.strides();
        let [before_sequence, before_head, before_query] = [s[0], s[1], s[2]].map(|s| s as i64);
        Job { before: args.read(i), before_sequence, before_head, before_query, ..self }
    }

    /// Elements from the scores before of a sequence, a head and a query to the next, if they are not those of a tensor of their
    /// own.
    fn strides_before(&self) -> Option<[i64; 3]> {
        let strides = [self.before_sequence, self.before_head, self.before_query];
        let whole = [self.heads * self.queries * self.keys, self.queries * self.keys, self.keys];
        (self.before != Pointer::NOTHING && strides != whole).then_some(strides)
    }

    /// By blocks of one pair each, so many for a pair.
    pub(super) fn in_parts(&self, parts: usize) -> Job {
        Job { pairs_per_block: 1, parts: parts as i64, ..*self }
    }

    /// By these blocks.
    fn by(self, blocks: &Blocks) -> Job {
        let [pairs_per_block, parts, tile] =
            [blocks.pairs_per_block, blocks.parts, blocks.tile].map(|n| n as i64);
        Job { pairs_per_block, parts, tile, ..self }
    }
}

/// What kernels do with scores in memory, and with dropout.
#[derive(Clone, Copy)]
pub(super) struct WeightOptions {
    /// Whether scores are added.
    pub(super) before: bool,
    /// Whether these have strides of their own.
    strided: bool,
    /// Whether the scores, or (in the backward pass) their gradient, lie in memory.
    pub(super) after: bool,
    /// Whether the gradient of the scores that were added is written.
    d_before: bool,
    /// Whether scores come from a layer or go to one, in either pass.
    has_scores: bool,
    drops: bool,
    /// A power of two: each row of scores begins at a multiple of so many numbers, as far as strides and addresses say.
    apart: usize,
    /// How many neighbouring scores of a row can be moved in one instruction: 1, 2 or 4.
    vec: usize,
}

impl WeightOptions {
    fn new(op: &Attention, job: &Job, args: &CudaArgs<'_>) -> WeightOptions {
        let scores = [job.before, job.after, job.d_before, job.d_after];
        let there = scores.map(|x| x != Pointer::NOTHING);
        let bytes = args.read_dtype(0).size();
        let strides = job.strides_before();
        let fits = |vec: usize| {
            let of = |x: Pointer| x == Pointer::NOTHING || args.alignment(x).is_multiple_of(vec * bytes);
            scores.into_iter().all(of) && strides.iter().flatten().all(|s| s % vec as i64 == 0)
        };
        let apart = [8, 4, 2].into_iter().find(|&vec| vec * bytes <= 16 && fits(vec)).unwrap_or(1);
        WeightOptions {
            before: there[0],
            strided: strides.is_some(),
            after: there[1] || there[3],
            d_before: there[2],
            has_scores: op.adds_scores || op.returns_scores,
            drops: op.dropout.is_some(),
            apart,
            vec: common_power(&[apart, job.keys as usize, 4]),
        }
    }

    /// How many neighbouring scores of so many rows can be moved in one instruction.
    pub(super) fn run(&self, rows: usize, keys: usize) -> usize {
        common_power(&[self.apart, if self.strided { keys } else { rows * keys }])
    }

    pub(super) fn constants(&self, spec: KernelSpec) -> KernelSpec {
        // Without scores in memory, one text serves all.
        let vec = if self.before || self.after || self.d_before { self.vec } else { 1 };
        spec.flag("BEFORE", self.before)
            .flag("STRIDED", self.strided)
            .flag("AFTER", self.after)
            .flag("D_BEFORE", self.d_before)
            .flag("HAS_SCORES", self.has_scores)
            .flag("DROPS", self.drops)
            .int("SCORE_VEC", vec as i64)
    }
}

/// The greatest power of two that divides all of these.
fn common_power(numbers: &[usize]) -> usize {
    let all = numbers.iter().fold(0, |all, n| all | n);
    1 << all.trailing_zeros()
}

/// Whether `vec` numbers can be moved in one instruction in each of these, from multiples of `vec` on.
pub(super) fn aligned(operands: &[&View<'_>], vec: usize) -> bool {
    operands.iter().all(|x| {
        let steps = [&x.layout.strides()[..3], &[x.layout.offset()]].concat();
        x.layout.shape()[3].is_multiple_of(vec) && steps.iter().all(|s| s.is_multiple_of(vec))
    })
}

/// Queries, keys and values, or their gradients, with these layouts in the operands.
pub(super) fn views<'a>(
    op: &Attention,
    layouts: &'a [Layout; 3],
    operand: impl Fn(usize) -> View<'a>,
) -> [View<'a>; 3] {
    [0, 1, 2].map(|i| operand(if op.packed { 0 } else { i }).with_layout(&layouts[i]))
}

pub(super) fn forward(op: &Attention, args: &mut CudaArgs<'_>) -> Result<()> {
    let launch = args.launch();
    let layouts = op.layouts(|i| launch.reads[i].layout);
    let [q, k, v] = &views(op, &layouts, |i| View::read(launch, i));
    let plan = AttentionPlan::new(q, k, op.causal);
    if plan.pairs * plan.queries * plan.head_dim == 0 {
        return Ok(());
    }
    let o = &View::write(launch, 0);
    let all = [q, k, v, o];
    let write = |o: Option<usize>| o.map_or(Pointer::NOTHING, |o| args.write(o));
    let job = Job {
        o: Heads::of(o),
        largest: args.write(1),
        inverse: args.write(2),
        after: write(op.scores()),
        kept: op.kept().map_or(Pointer::NOTHING, |i| args.read(i)),
        ..Job::new(op, &plan, [q, k, v]).before(args, op.before())
    };
    let options = WeightOptions::new(op, &job, args);
    let flash = Flash::new(op, q, k, args.mma());
    if let Some(fragments) = Fragments::new(op, q, k).filter(|f| f.hold_gradients() || flash.is_none()) {
        return fragments.forward(args, &all, &job, options);
    }
    if let Some(flash) = flash {
        return flash.forward(args, &all, &job, options);
    }
    let blocks = plan.blocks(launch.op, plan.queries, plan.keys)?;
    let spec = options.constants(plan.spec(&FORWARD, "attention_forward", &all));
    args.kernel(spec, blocks.grid, &job.by(&blocks))
}

pub(super) fn backward_workspace(op: &Attention, launch: &Launch<'_>) -> usize {
    let layouts = op.layouts(|i| launch.reads[i].layout);
    let [q, k, _] = &views(op, &layouts, |i| View::read(launch, i));
    let plan = AttentionPlan::new(q, k, false);
    let alone = Fragments::for_gradients(op, q, k).is_some()
        || Flash::new(op, q, k, MmaKind::Warp).is_none() && plan.whole().is_some();
    if alone { 0 } else { plan.pairs * plan.queries * SOFTMAX * plan.size }
}

pub(super) fn backward(gradient: &AttentionBackward, args: &mut CudaArgs<'_>) -> Result<()> {
    let (op, launch) = (&gradient.attention, args.launch());
    let layouts = op.layouts(|i| launch.reads[i].layout);
    let [q, k, v] = &views(op, &layouts, |i| View::read(launch, i));
    let layouts = op.layouts(|o| launch.writes[o].0.layout);
    let [dq, dk, dv] = &views(op, &layouts, |o| View::write(launch, o));
    let [d_o, largest, inverse, o] = [0, 1, 2, 3].map(|i| op.operands() + i);
    let [d_o, o] = [d_o, o].map(|i| View::read(launch, i));
    let (d_o, o) = (&d_o, &o);
    let plan = AttentionPlan::new(q, k, op.causal);
    if plan.pairs * (plan.queries + plan.keys) * plan.head_dim == 0 {
        return Ok(());
    }
    let all = [q, k, v, d_o, o, dq, dk, dv];
    let read = |i: Option<usize>| i.map_or(Pointer::NOTHING, |i| args.read(i));
    let job = Job {
        d_o: Heads::of(d_o),
        o: Heads::of(o),
        dq: Heads::of(dq),
        dk: Heads::of(dk),
        dv: Heads::of(dv),
        largest: args.read(largest),
        inverse: args.read(inverse),
        softmaxes: args.workspace(),
        d_before: gradient.d_before().map_or(Pointer::NOTHING, |o| args.write(o)),
        d_after: read(gradient.d_after()),
        kept: read(gradient.kept()),
        ..Job::new(op, &plan, [q, k, v]).before(args, gradient.before())
    };
    let options = WeightOptions::new(op, &job, args);
    if let Some(fragments) = Fragments::for_gradients(op, q, k) {
        return fragments.backward(args, &all, &job, options);
    }
    if let Some(flash) = Flash::new(op, q, k, args.mma()) {
        return flash.backward(args, &all, &job, options);
    }
    if let Some(blocks) = plan.whole() {
        let spec = options.constants(plan.spec(&BACKWARD, "attention_backward", &all));
        return args.kernel(spec, blocks.grid, &job.by(&blocks));
    }
    if plan.queries > 0 {
        let blocks = plan.blocks(launch.op, plan.queries, plan.keys)?;
        let spec = options.constants(plan.spec(&BACKWARD_LONG, "attention_backward_queries", &all));
        args.kernel(spec, blocks.grid, &job.by(&blocks))?;
    }
    if plan.keys > 0 {
        let blocks = plan.blocks(launch.op, plan.keys, plan.queries)?;
        let spec = options.constants(plan.spec(&BACKWARD_LONG, "attention_backward_keys", &all));
        args.kernel(spec, blocks.grid, &job.by(&blocks))?;
    }
    Ok(())
}
