//! Two products in one kernel: rows of the first one's result are rows of the second one's A, which a block has in shared memory.
//! So the second does not wait for all blocks of the first, and what only the second reads is never stored.

use std::fmt::Write;

use super::choice::{GemmKernel, TensorTile};
use super::plan::{COMMON, Followers, GemmPlan, Job, MOST_NUMBERS, TILES, TileRows, suits};
use super::shared::SharedMemory;
use super::{FORMS, FRAGMENTS};
use crate::device::cuda::{
    CudaArgs, Following, Grid, KernelSpec, MMA, MmaKind, Pointer, Product, Source, TailArgs, define, params,
    undefine,
};
use crate::error::{Error, Result};
use crate::kernels::activations::ACTIVATIONS;
use crate::kernels::norm::NormArgs;
use crate::tensor::DType;

/// The text of a stage.
static STAGE: Source =
    Source { name: "gemm", parts: &[ACTIVATIONS, COMMON, FORMS, TILES, FRAGMENTS, include_str!("stage.cu")] };
/// What the stages share. They and the kernel follow.
static STAGES: Source = Source { name: "gemm", parts: &[MMA] };
const KERNEL: &str = include_str!("stages.cu");

/// Rows that a block computes.
const ROWS: usize = 32;
/// The most columns that a warp computes at a time.
const CHUNK: usize = 64;
/// The longest row that is passed on.
const LONGEST_ROW: usize = 256;
/// The longest row of the second product's result. With rows of 64, a step of PatchTST (width 64, FFN 128, 21 channels, batch 128) took 5 %
/// longer on an H200 than with two kernels: a block has more of both matrices, and fewer blocks run at once.
const LONGEST_RESULT: usize = 32;
/// Banks of shared memory, of four bytes.
const BANKS: usize = 32;
/// The shared memory of a block at most, so that several run at once. Rows of a norm that are longer may add some.
const MOST_BYTES: usize = 56 << 10;

params! {
    /// The arguments of both products.
    struct Stages {
        first: Job<1, 1>,
        second: Job<1, 1>,
    }
}

/// A product in a kernel of several.
#[derive(Clone, Copy)]
pub(crate) struct Stage<'a> {
    pub(crate) product: &'a Product,
    pub(crate) followers: Followers<'a>,
}

/// How a stage is computed.
struct StagePlan {
    plan: GemmPlan,
    /// Tiles along k, and times that a block computes the columns of a tile.
    steps: usize,
    chunks: usize,
    /// Whether the last tile along k is full: nothing fills up rows that are passed on.
    is_whole: bool,
    /// Bytes of all tiles of A, and of B.
    bytes: [usize; 2],
}

/// Whether our own kernel multiplies on tensor cores, all of k at once, with rows of A one behind the other.
fn is_plain(p: &Product, mma: MmaKind) -> bool {
    !suits(p, mma)
        && !p.passes_rows(mma)
        && !p.is_empty()
        && p.batch.is_empty()
        && p.sums.is_none()
        && [p.a.dtype, p.b.dtype] == [p.dtype; 2]
        && p.a.dense[1]
        && (p.m <= 1 || p.a.row == p.k)
        && p.vector_width() == [16 / p.dtype.size(); 2]
        && GemmPlan::of(p, mma).cut.parts == 1
}

/// Whether one kernel can compute two products of which the first one's rows are the second one's, and is not slower than two.
pub(crate) fn feeds(first: &Product, second: &Product, mma: MmaKind) -> bool {
    let fits = [first, second].iter().all(|p| is_plain(p, mma))
        && first.dtype == second.dtype
        && first.m == second.m
        && first.m <= MOST_NUMBERS
        && first.n == second.k
        && first.n.is_multiple_of(16 * warps_along_n(second))
        && first.n <= LONGEST_ROW
        && second.n <= LONGEST_RESULT;
    fits && plans([first, second], mma)
        .is_some_and(|plans| plans[1].is_whole && memory(&plans, &plans[1].passed(first)) <= MOST_BYTES)
}

/// Warps that share rows. Of 16 columns, one would compute none.
fn warps_along_n(second: &Product) -> usize {
    if second.n > 16 { 2 } else { 1 }
}

/// `None` if tensor cores don't compute both.
fn plans([first, second]: [&Product; 2], mma: MmaKind) -> Option<[StagePlan; 2]> {
    let warps = warps_along_n(second);
    let columns = 1 << first.n.trailing_zeros().min((warps * CHUNK).trailing_zeros());
    Some([
        StagePlan::of(first, mma, warps, columns, first.n / columns)?,
        StagePlan::of(second, mma, warps, second.n.next_power_of_two().max(16), 1)?,
    ])
}

/// Bytes of shared memory.
fn memory([first, second]: &[StagePlan; 2], rows: &TileRows) -> usize {
    first.bytes[0] + first.bytes[1] + second.bytes[1] + rows.bytes
}

impl StagePlan {
    /// With so many columns of C at a time, which `warps` share.
    fn of(p: &Product, mma: MmaKind, warps: usize, columns: usize, chunks: usize) -> Option<StagePlan> {
        let tile = TensorTile { warps: [ROWS / 16, warps], fragments: [1, columns / 8 / warps] };
        // Sums in the order of the product's own kernel. Groups of warps always take adjacent numbers.
        let (form, adjacent) = match GemmKernel::of(p, mma) {
            GemmKernel::Tensor { form, adjacent, .. } => (form, adjacent),
            GemmKernel::Groups { tile } => (tile.form, true),
            GemmKernel::Simt { .. } | GemmKernel::Skinny { .. } => return None,
        };
        let memory = SharedMemory::of(p, tile.size());
        let steps = p.k.div_ceil(memory.depth);
        Some(StagePlan {
            // Alone, the product is not cut along k. In these tiles it might be.
            plan: GemmPlan::unsplit(p, GemmKernel::Tensor { tile, form, adjacent }),
            steps,
            chunks,
            is_whole: p.k.is_multiple_of(memory.depth),
            bytes: [steps * memory.tiles[0], chunks * steps * memory.tiles[1]],
        })
    }

    /// The rows that it takes from the product before. Where they are read number by number, eight rows that are read at once lie in
    /// different banks.
    fn passed(&self, first: &Product) -> TileRows {
        match self.plan.way {
            GemmKernel::Tensor { adjacent: false, .. } if first.dtype == DType::F32 => {
                TileRows::apart(ROWS, first.n.next_multiple_of(BANKS) + 20, first.dtype)
            }
            _ => TileRows::of(ROWS, first.n, first.dtype),
        }
    }

    /// Writes the text of a stage, in a namespace. `before` are the rows that the stage before leaves in shared memory, `rows`
    /// those that this one leaves there, for its norm or for the next stage.
    fn write(
        &self,
        text: &mut String,
        args: &CudaArgs<'_>,
        name: &str,
        stage: &Stage<'_>,
        before: Option<&TileRows>,
        rows: Option<&TileRows>,
    ) {
        let Followers { tail, norm } = stage.followers;
        let spec = self
            .plan
            .spec(stage.product)
            .flag("TAIL", tail.is_some())
            .flag("NORM", norm.is_some())
            .flag("PASSES", rows.is_some() && norm.is_none())
            .flag("FOLLOWS", before.is_some())
            .int("STEPS", self.steps as i64)
            .int("CHUNKS", self.chunks as i64)
            .int("A_PITCH", before.map_or(0, |rows| rows.pitch as i64))
            .int("A_BYTES", if before.is_some() { 0 } else { self.bytes[0] as i64 })
            .int("B_BYTES", self.bytes[1] as i64);
        let spec = rows.map_or(spec.clone(), |rows| rows.constants(spec));
        let _ = writeln!(text, "namespace {name} {{");
        text.push_str(&stage.followers.text(args));
        define(text, &spec.constants);
        STAGE.parts.iter().for_each(|part| text.push_str(part));
        undefine(text, &spec.constants);
        text.push_str("}\n");
    }

    fn job(&self, args: &CudaArgs<'_>, stage: &Stage<'_>) -> Job<1, 1> {
        let Followers { tail, norm } = stage.followers;
        let tail = tail.map_or(TailArgs::NONE, |tail| tail.args(args));
        let norm = norm.map_or(NormArgs::NONE, NormArgs::of);
        self.plan.job(stage.product, Pointer::NOTHING, [tail], [norm])
    }
}

/// Runs two products of which one [`feeds`] the other.
pub(crate) fn run_stages(args: &mut CudaArgs<'_>, stages: [Stage<'_>; 2]) -> Result<()> {
    let [first, second] = stages;
    if !feeds(first.product, second.product, args.mma()) {
        // Kernels that are only looked at may be those of another GPU, which has other tiles.
        if !args.runs() {
            return Ok(());
        }
        return Err(Error::internal(args.op(), "no block has whole rows for the next product"));
    }
    let Some(mut plans) = plans([first.product, second.product], args.mma()) else {
        return Err(Error::internal(args.op(), "no tensor core for the products"));
    };
    for (plan, stage) in plans.iter_mut().zip(&stages) {
        plan.plan.align(args, stage.followers.tail);
    }
    let passed = plans[1].passed(first.product);
    let normalised = second.followers.norm.map(|norm| plans[1].plan.rows(norm));
    let mut text = String::new();
    plans[0].write(&mut text, args, "first", &first, None, Some(&passed));
    plans[1].write(&mut text, args, "second", &second, Some(&passed), normalised.as_ref());
    text.push_str(KERNEL);
    let rest = normalised.map_or(0, |rows| rows.bytes.saturating_sub(passed.bytes));
    let grid = Grid::line(first.product.m.div_ceil(ROWS), plans[0].plan.way.threads())
        .shared(memory(&plans, &passed) + rest);
    let job = Stages { first: plans[0].job(args, &first), second: plans[1].job(args, &second) };
    args.kernel(KernelSpec::new(&STAGES, "gemm_stages").generated(text.into()), grid, &job)
}
