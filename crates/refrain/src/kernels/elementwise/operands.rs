//! The operands of an elementwise kernel on the CPU, tile by tile.

use std::any::TypeId;
use std::ops::Range;

use smallvec::SmallVec;

use super::read::{convert_rectangle, gather, read_run, scatter};
use super::runs::Runs;
use super::{LoopPlan, MAX_INPUTS};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, store};
use crate::error::{Error, Result};
use crate::tensor::{DType, Layout};

/// Elements per tile. The buffers of a tile stay in the L1 cache, beside what they are read from.
const TILE: usize = 1024;
/// Elements per tile where an operand is transposed: some rows, so that blocks can be transposed.
const TILE_TRANSPOSED: usize = 8 * TILE;
/// Elements per tile without buffers, at most.
const MOST: usize = 16 * TILE;
/// The shortest row that is worth a tile of its own.
const ROW: usize = 64;

/// A slice of any dtype.
pub(super) enum Data<'a> {
    F64(&'a [f64]),
    F32(&'a [f32]),
    F16(&'a [half::f16]),
    BF16(&'a [half::bf16]),
    I64(&'a [i64]),
    I32(&'a [i32]),
    U8(&'a [u8]),
    /// The operand is the output, so read from there.
    InPlace,
}

impl<'a> Data<'a> {
    fn of(args: &HostArgs<'a>, i: usize) -> Result<Data<'a>> {
        if args.in_place(i).is_some() {
            return Ok(Data::InPlace);
        }
        Ok(match args.read_dtype(i) {
            DType::F64 => Data::F64(args.read(i)?),
            DType::F32 => Data::F32(args.read(i)?),
            DType::F16 => Data::F16(args.read(i)?),
            DType::BF16 => Data::BF16(args.read(i)?),
            DType::I64 => Data::I64(args.read(i)?),
            DType::I32 => Data::I32(args.read(i)?),
            DType::U8 | DType::Bool => Data::U8(args.read(i)?),
        })
    }
}

/// Runs an expression with `$slice` as the slice, or `$in_place`.
macro_rules! with_data {
    ($data:expr, $slice:ident => $body:expr, $in_place:expr) => {
        match $data {
            Data::F64($slice) => $body,
            Data::F32($slice) => $body,
            Data::F16($slice) => $body,
            Data::BF16($slice) => $body,
            Data::I64($slice) => $body,
            Data::I32($slice) => $body,
            Data::U8($slice) => $body,
            Data::InPlace => $in_place,
        }
    };
}

impl Data<'_> {
    /// Whether the elements are of the arithmetic type.
    fn is<N: Number>(&self) -> bool {
        fn type_of<T: 'static>(_: &[T]) -> TypeId {
            TypeId::of::<T>()
        }
        with_data!(self, d => type_of(d) == TypeId::of::<N>(), false)
    }
}

/// Which elements make a tile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiling {
    /// All operands are dense: any run.
    Dense,
    /// Each row of every operand is a run, or one element: some rows.
    Rows,
    /// Any elements, which are first made contiguous.
    Gathered,
}

/// The operands of a launch.
pub(super) struct Operands<'a> {
    pub(super) plan: LoopPlan,
    pub(super) data: SmallVec<[Data<'a>; MAX_INPUTS]>,
    pub(super) accumulate: bool,
    pub(super) tiling: Tiling,
}

/// A tile: rows of `len` elements; one row, unless the operands are tiled by rows.
pub(super) struct Block {
    element: usize,
    /// Where it begins in the memory of the output and of each operand. Not for gathered tiles.
    pub(super) offsets: [usize; MAX_INPUTS + 1],
    /// From the start of a row to that of the next one.
    pub(super) steps: [usize; MAX_INPUTS + 1],
    pub(super) rows: usize,
    pub(super) len: usize,
}

impl<'a> Operands<'a> {
    /// `None` if there are no elements.
    pub(super) fn of(args: &HostArgs<'a>) -> Result<Option<Operands<'a>>> {
        let layouts: SmallVec<[&Layout; MAX_INPUTS + 1]> = std::iter::once(args.write_layout(0))
            .chain((0..args.reads()).map(|i| args.read_layout(i)))
            .collect();
        if layouts.len() > MAX_INPUTS + 1 {
            return Err(Error::internal(args.op(), "an elementwise kernel with too many operands"));
        }
        let plan = LoopPlan::new(&layouts);
        if plan.numel() == 0 {
            return Ok(None);
        }
        let data = (0..args.reads()).map(|i| Data::of(args, i)).collect::<Result<_>>()?;
        let tiling = if (0..layouts.len()).all(|operand| plan.is_dense(operand)) {
            Tiling::Dense
        } else if plan.has_rows(ROW) {
            Tiling::Rows
        } else {
            Tiling::Gathered
        };
        Ok(Some(Operands { plan, data, accumulate: args.accumulate(0), tiling }))
    }

    /// Elements per tile, at most.
    pub(super) fn most(&self, has_buffers: bool) -> usize {
        let is_transposed = |operand| self.plan.is_transposed(operand);
        match self.tiling {
            Tiling::Gathered if (1..=self.data.len()).any(is_transposed) => TILE_TRANSPOSED,
            Tiling::Dense | Tiling::Rows if !has_buffers => MOST,
            _ => TILE,
        }
    }

    /// Gives up rows: they are worth it only if all of them are read and written where they lie.
    pub(super) fn gather_rows(&mut self) {
        if self.tiling == Tiling::Rows {
            self.tiling = Tiling::Gathered;
        }
    }

    /// Whether operand `i` is read where it lies.
    pub(super) fn is_direct<N: Number>(&self, i: usize) -> bool {
        let has_stride = match self.tiling {
            Tiling::Dense => true,
            Tiling::Rows => self.stride(i + 1) == 1,
            Tiling::Gathered => self.plan.is_dense(i + 1),
        };
        has_stride && self.data[i].is::<N>()
    }

    /// Which of two operands is one number in each row, if both are in the arithmetic type.
    pub(super) fn one_of_two<N: Number>(&self) -> Option<usize> {
        match self.data.len() {
            2 if self.tiling == Tiling::Rows => [0, 1]
                .into_iter()
                .find(|&i| self.stride(i + 1) == 0 && self.data[i].is::<N>() && self.is_direct::<N>(1 - i)),
            _ => None,
        }
    }

    /// The distance of neighbours in a row.
    fn stride(&self, operand: usize) -> usize {
        match self.tiling {
            Tiling::Dense => 1,
            _ => self.plan.strides[operand].last().copied().unwrap_or(1),
        }
    }

    /// Calls `body` with each tile of some elements.
    #[inline(always)]
    pub(super) fn tiles(&self, elements: Range<usize>, most: usize, mut body: impl FnMut(Block)) {
        let mut element = elements.start;
        while element < elements.end {
            let block = match self.tiling {
                Tiling::Rows => self.block_of_rows(element, elements.end, most),
                Tiling::Dense | Tiling::Gathered => Block {
                    element,
                    offsets: [element; MAX_INPUTS + 1],
                    steps: [0; MAX_INPUTS + 1],
                    rows: 1,
                    len: most.min(elements.end - element),
                },
            };
            element += block.rows * block.len;
            body(block);
        }
    }

    /// As many whole rows of one matrix as there are, or a part of a row.
    fn block_of_rows(&self, element: usize, end: usize, most: usize) -> Block {
        let last = self.plan.shape.len() - 1;
        let inner = self.plan.shape[last];
        let (row, column) = (element / inner, element % inner);
        let mut steps = [0; MAX_INPUTS + 1];
        let mut rows_left = 1;
        if last > 0 {
            let strides = self.plan.strides.iter().map(|strides| strides[last - 1]);
            steps.iter_mut().zip(strides).for_each(|(step, stride)| *step = stride);
            rows_left = self.plan.shape[last - 1] - row % self.plan.shape[last - 1];
        }
        let left = most.min(end - element);
        let (rows, len) = match column {
            0 if left >= inner => (rows_left.min(left / inner), inner),
            _ => (1, left.min(inner - column)),
        };
        Block { element, offsets: self.plan.offsets(element), steps, rows, len }
    }

    /// Operand `i` of a tile, which is in the arithmetic type, where it lies.
    pub(super) fn runs<N: Number>(&self, i: usize, block: &Block) -> Runs<'_, N> {
        let (offset, step) = (block.offsets[i + 1], block.steps[i + 1]);
        let data = with_data!(&self.data[i], d => N::same(&d[offset..]), None);
        Runs { data: data.unwrap_or_default(), step }
    }

    /// Operand `i` of a tile in the arithmetic type, contiguous. `memory` is that of the output from `base` on.
    pub(super) fn read<'b, T: Stored, N: Number>(
        &'b self,
        i: usize,
        at: &Block,
        (memory, base): (&[T], usize),
        buf: &'b mut [N],
    ) -> &'b [N] {
        if self.is_direct::<N>(i) {
            return &self.runs(i, at).data[..at.len];
        }
        self.read_into(i, at, (memory, base), buf);
        buf
    }

    /// Fills `to` with operand `i` of a tile, in the arithmetic type.
    pub(super) fn read_into<T: Stored, N: Number>(
        &self,
        i: usize,
        at: &Block,
        (memory, base): (&[T], usize),
        to: &mut [N],
    ) {
        let plan = &self.plan;
        // Rows are only read where they lie.
        if self.tiling != Tiling::Gathered {
            return with_data!(&self.data[i], d => read_run(d, at.element, to), read_run(memory, at.element - base, to));
        }
        with_data!(&self.data[i], d => gather(plan, i + 1, d, at.element, to), {
            let mut done = 0;
            plan.rectangles(0, at.element, to.len(), |mut r| {
                r.offset -= base;
                let to = &mut to[done..done + r.rows * r.len];
                done += to.len();
                convert_rectangle(memory, &r, to);
            });
        });
    }

    /// The part of the output's memory that a tile of one row is, if it is one.
    pub(super) fn run_of_output<'b, T>(
        &self,
        at: &Block,
        (memory, base): (&'b mut [T], usize),
    ) -> Option<&'b mut [T]> {
        match self.tiling {
            Tiling::Gathered if !self.plan.is_dense(0) => None,
            _ => Some(&mut memory[at.offsets[0] - base..][..at.len]),
        }
    }

    /// Writes the values of a tile of one row.
    pub(super) fn write<T: Stored, Y: Number>(
        &self,
        at: &Block,
        values: &[Y],
        (memory, base): (&mut [T], usize),
    ) {
        match self.run_of_output(at, (&mut *memory, base)) {
            Some(run) => store(values, run, self.accumulate),
            None => scatter(&self.plan, values, at.element, memory, base, self.accumulate),
        }
    }
}
