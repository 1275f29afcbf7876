//! `gather`, `scatter_add` and `scatter` on CUDA.

use crate::device::Launch;
use crate::device::cuda::{
    Bounds, CudaArgs, Grid, KernelSpec, Pointer, Reporter, Source, padded, params, with_rank,
};
use crate::error::Result;
use crate::kernels::sort::Sort;
use crate::kernels::units;
use crate::tensor::{Dims, Shape, row_major};

static GATHER: Source = Source { name: "gather", parts: &[include_str!("kernel.cu")] };
const PLACES: &str = include_str!("places.cu");
const SUMS: &str = include_str!("sums.cu");
static ADD: Source = Source { name: "scatter_add", parts: &[SUMS, PLACES, include_str!("add.cu")] };
static BEGIN: Source = Source { name: "scatter_add", parts: &[SUMS, include_str!("begin.cu")] };
static KEYS: Source = Source { name: "scatter_add", parts: &[PLACES, include_str!("keys.cu")] };
static SET_RUNS: Source = Source { name: "scatter", parts: &[SUMS, include_str!("set_runs.cu")] };
static ADD_RUNS: Source = Source { name: "scatter_add", parts: &[SUMS, include_str!("add_runs.cu")] };

params! {
    struct GatherArgs<const RANK: usize> {
        x: Pointer = "const UNIT*",
        index: Pointer = "const ID*",
        y: Pointer = "UNIT*",
        n: i64,
        /// Of the axis in x: its size, and how far neighbours lie apart.
        size: i64,
        stride: i64,
        missing: u64,
        faults: Reporter,
        /// The index's shape, and the strides of x without those of the axis.
        shape: [i64; RANK],
        strides: [i64; RANK],
    }

    struct Places<const RANK: usize> {
        base: Pointer = "const ELEMENT*",
        source: Pointer = "const ELEMENT*",
        index: Pointer = "const ID*",
        y: Pointer = "ELEMENT*",
        /// Gets the places that entries name.
        keys: Pointer = "u32*",
        /// Places; entries.
        n: i64,
        entries: i64,
        /// Of the axis: the size and the stride in y, the number of entries of a column and their stride.
        size: i64,
        stride: i64,
        rows: i64,
        row_stride: i64,
        faults: Reporter,
        /// Axis by axis: the shape that is walked through, how far it is inside the other one, and the other one's
        /// strides. Of y and the index for `add`, of the index and y for `keys`.
        shape: [i64; RANK],
        inside: [i64; RANK],
        strides: [i64; RANK],
    }

    struct BeginArgs {
        base: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        n: i64,
    }

    struct AddRunsArgs {
        keys: Pointer = "const u32*",
        /// The entry that each key is of.
        sorted: Pointer = "const u32*",
        source: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        n: i64,
        entries: i64,
    }
}

const THREADS: usize = 256;
/// If a position would search more entries than this, the index is sorted.
const MOST: usize = 64;
/// If all positions together would search more entries than this, the index is sorted.
const LOOKS: usize = 1 << 22;
/// The maximum number of positions for a sort.
const SORTABLE: usize = u32::MAX as usize;

/// How to iterate a tensor: `shape`, how much of each axis is `inside` another tensor, and the strides of that
/// tensor. Adjacent whole axes are merged.
#[derive(Default)]
struct Walk {
    shape: Dims,
    inside: Dims,
    strides: Dims,
}

impl Walk {
    /// For a tensor of `shape` inside another of shape `other`. The stride of `axis` is 0.
    fn new(shape: &Shape, other: &Shape, axis: usize) -> Walk {
        let mut walk = Walk::default();
        for (i, (&n, stride)) in shape.iter().zip(row_major(other)).enumerate() {
            let (inside, stride) = if i == axis { (n, 0) } else { (n.min(other[i]), stride) };
            if n == 1 && inside == 1 {
                continue;
            }
            match (walk.shape.last_mut(), walk.inside.last_mut(), walk.strides.last_mut()) {
                (Some(last), Some(last_inside), Some(last_stride))
                    if inside == n && *last_stride == stride * n =>
                {
                    *last *= n;
                    *last_inside *= n;
                    *last_stride = stride;
                }
                _ => {
                    walk.shape.push(n);
                    walk.inside.push(inside);
                    walk.strides.push(stride);
                }
            }
        }
        walk
    }

    fn rank(&self) -> usize {
        self.shape.len().max(1).next_power_of_two()
    }
}

pub(super) fn gather(axis: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let (from, to, dtype) = (args.read_shape(0), args.write_shape(0), args.write_dtype(0));
    let n = to.numel();
    if n == 0 {
        return Ok(());
    }
    let walk = Walk::new(to, from, axis);
    let spec =
        KernelSpec::new(&GATHER, "gather").dtype("ID", args.read_dtype(1)).int("RANK", walk.rank() as i64);
    let spec = units::constants(spec, dtype.size(), n.max(from.numel()));
    with_rank!(args.op(), walk.rank(), RANK => {
        let kernel_args = GatherArgs::<RANK> {
            x: args.read(0),
            index: args.read(1),
            y: args.write(0),
            n: n as i64,
            size: from[axis] as i64,
            stride: row_major(from)[axis] as i64,
            missing: units::missing(dtype),
            faults: args.faults(Bounds::Axis),
            shape: padded(&walk.shape, 1),
            strides: padded(&walk.strides, 0),
        };
        args.kernel(spec, units::grid(args, n), &kernel_args)
    })
}

/// The sort of `entries`, if it is cheaper than a search of `rows` entries by each of `places` positions.
fn sort(op: &'static str, places: usize, entries: usize, rows: usize) -> Result<Option<Sort>> {
    let few = rows <= MOST || places.saturating_mul(rows) <= LOOKS;
    // If there are too many to sort, only the slow way remains.
    if few || places > SORTABLE || entries >= 1 << 31 {
        Ok(None)
    } else {
        Sort::new(op, entries, places).map(Some)
    }
}

/// Workspace bytes to add the entries of the launch's second operand into a tensor of `shape`.
pub(super) fn workspace(axis: usize, shape: &Shape, launch: &Launch<'_>) -> Result<usize> {
    let index = launch.reads[1].layout.shape();
    let sort = sort(launch.op, shape.numel(), index.numel(), index[axis])?;
    Ok(sort.map_or(0, |sort| sort.workspace()))
}

pub(super) fn gather_backward(axis: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let base = args.accumulate(0).then(|| args.write(0));
    put(Put::Add, axis, base, args.read(0), args)
}

pub(super) fn scatter_add(axis: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    put(Put::Add, axis, Some(args.read(0)), args.read(2), args)
}

pub(super) fn scatter(axis: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    put(Put::Set, axis, Some(args.read(0)), args.read(2), args)
}

/// What an element does to the position that it is put at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Put {
    Add,
    Set,
}

/// Sets the output to `base` (or 0) and puts `source` at the positions that operand 1 names.
fn put(how: Put, axis: usize, base: Option<Pointer>, source: Pointer, args: &mut CudaArgs<'_>) -> Result<()> {
    let (to, index, dtype) = (args.write_shape(0), args.read_shape(1), args.write_dtype(0));
    let (n, entries) = (to.numel(), index.numel());
    if n == 0 {
        return Ok(());
    }
    let sort = sort(args.op(), n, entries, index[axis])?;
    // Without a sort, iterate positions and search entries. With a sort, iterate entries, which name positions.
    let walk = if sort.is_some() { Walk::new(index, to, axis) } else { Walk::new(to, index, axis) };
    let rank = walk.rank();
    let ids = args.read_dtype(1);
    let with_index = |spec: KernelSpec| {
        spec.dtype("ID", ids).word("INDEX", units::index_type(n.max(entries))).int("RANK", rank as i64)
    };
    let on_top = |spec: KernelSpec| spec.dtype("ELEMENT", dtype).flag("BASE", base.is_some());
    let base = base.unwrap_or(Pointer::NOTHING);
    let places = Places {
        base,
        source,
        index: args.read(1),
        y: args.write(0),
        keys: sort.as_ref().map_or(Pointer::NOTHING, Sort::keys),
        n: n as i64,
        entries: entries as i64,
        size: to[axis] as i64,
        stride: row_major(to)[axis] as i64,
        rows: index[axis] as i64,
        row_stride: row_major(index)[axis] as i64,
        faults: args.faults(Bounds::Axis),
        shape: [],
        inside: [],
        strides: [],
    };
    let Some(sort) = sort else {
        let spec = with_index(on_top(KernelSpec::new(&ADD, "add"))).flag("SET", how == Put::Set);
        return with_rank!(args.op(), rank, RANK => {
            args.kernel(spec, units::grid(args, n), &places.along::<RANK>(&walk))
        });
    };
    if !args.same_place(base, args.write(0)) {
        let kernel_args = BeginArgs { base, y: args.write(0), n: n as i64 };
        args.kernel(on_top(KernelSpec::new(&BEGIN, "begin")), units::grid(args, n), &kernel_args)?;
    }
    let spec = with_index(KernelSpec::new(&KEYS, "keys").dtype("ELEMENT", dtype));
    with_rank!(args.op(), rank, RANK => {
        args.kernel(spec, units::grid(args, entries), &places.along::<RANK>(&walk))
    })?;
    let sorted = sort.run(None, args)?;
    let kernel_args = AddRunsArgs {
        keys: sorted.keys,
        sorted: sorted.entries,
        source,
        y: args.write(0),
        n: n as i64,
        entries: entries as i64,
    };
    let grid = Grid::line(entries.div_ceil(THREADS), THREADS as u32);
    let spec = match how {
        Put::Add => KernelSpec::new(&ADD_RUNS, "add_runs"),
        Put::Set => KernelSpec::new(&SET_RUNS, "set_runs"),
    };
    args.kernel(spec.dtype("ELEMENT", dtype), grid, &kernel_args)
}

impl Places<0> {
    /// With the axes of a walk.
    fn along<const RANK: usize>(&self, walk: &Walk) -> Places<RANK> {
        let Places {
            base, source, index, y, keys, n, entries, size, stride, rows, row_stride, faults, ..
        } = *self;
        Places {
            base,
            source,
            index,
            y,
            keys,
            n,
            entries,
            size,
            stride,
            rows,
            row_stride,
            faults,
            shape: padded(&walk.shape, 1),
            inside: padded(&walk.inside, 1),
            strides: padded(&walk.strides, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::positions::unravel;

    #[test]
    fn a_walk_knows_where_the_other_tensor_has_the_place() {
        let cases: [(&[usize], &[usize], usize); 7] = [
            (&[2, 3, 4], &[2, 9, 4], 1),
            (&[2, 3, 4], &[2, 9, 3], 1),
            (&[3, 5, 4], &[2, 5, 4], 2),
            (&[3, 5, 4, 2], &[3, 4, 4, 7], 3),
            (&[4, 2, 3], &[6, 2, 3], 0),
            (&[4, 1, 3], &[4, 1, 2], 0),
            (&[7], &[2], 0),
        ];
        for (shape, other, axis) in cases {
            let (shape, other) = (Shape::from(shape), Shape::from(other));
            let walk = Walk::new(&shape, &other, axis);
            let strides = row_major(&other);
            for n in 0..shape.numel() {
                let at = unravel(n, &shape);
                let inside = (0..at.len()).all(|i| i == axis || at[i] < other[i]);
                let place: usize = (0..at.len()).filter(|&i| i != axis).map(|i| at[i] * strides[i]).sum();
                let walked = unravel(n, &walk.shape);
                assert_eq!(
                    walked.iter().zip(&walk.inside).all(|(i, n)| i < n),
                    inside,
                    "{shape} {other} {n}"
                );
                if inside {
                    let reached: usize = walked.iter().zip(&walk.strides).map(|(i, s)| i * s).sum();
                    assert_eq!(reached, place, "{shape} {other} {n}");
                }
            }
        }
    }
}
