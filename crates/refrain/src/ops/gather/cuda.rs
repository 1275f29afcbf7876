//! Picking along an axis, and adding to picked places, on CUDA.

use smallvec::SmallVec;

use crate::device::Launch;
use crate::device::cuda::{Bounds, CudaArgs, Grid, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::units::{self, UNITS};
use crate::ops::sort::Sort;
use crate::tensor::{Dims, Shape, row_major};

static GATHER: Source = Source { name: "gather", parts: &[UNITS, include_str!("kernel.cu")] };
static ADD: Source = Source { name: "scatter_add", parts: &[include_str!("add.cu")] };

const THREADS: usize = 256;
/// Entries that a place looks through at most, before the index is sorted.
const MOST: usize = 64;
/// Entries that all places look through, at most, of whatever number.
const LOOKS: usize = 1 << 22;
/// Places that a sort can tell apart.
const SORTABLE: usize = u32::MAX as usize;

/// Axes that are walked through: `shape`, how much of each is `inside` another tensor, and the strides of
/// that one. Axes that are whole and follow each other are one.
#[derive(Default)]
struct Walk {
    shape: Dims,
    inside: Dims,
    strides: Dims,
}

impl Walk {
    /// Through a tensor of `shape`, inside another of shape `other` but for `axis`, which does not move.
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

    /// Its axes in a kernel's parameters, leading ones of size 1 before them.
    fn words(&self, words: &mut SmallVec<[u64; 32]>, with_inside: bool) {
        let padding = self.rank() - self.shape.len();
        let mut row = |values: &[usize], fill: u64| {
            words.extend(std::iter::repeat_n(fill, padding).chain(values.iter().map(|&v| v as u64)));
        };
        row(&self.shape, 1);
        if with_inside {
            row(&self.inside, 1);
        }
        row(&self.strides, 0);
    }
}

pub(super) fn gather(axis: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let (from, to, dtype) = (args.read_shape(0), args.write_shape(0), args.write_dtype(0));
    let n = to.numel();
    if n == 0 {
        return Ok(());
    }
    let walk = Walk::new(to, from, axis);
    let mut words: SmallVec<[u64; 32]> = SmallVec::from_slice(&[args.read(0), args.read(1), args.write(0)]);
    words.extend([n as u64, from[axis] as u64, row_major(from)[axis] as u64, units::missing(dtype)]);
    words.extend(args.faults(Bounds::Axis));
    walk.words(&mut words, false);
    let spec = Spec::new(&GATHER, "gather").dtype("ID", args.read_dtype(1)).int("RANK", walk.rank() as i64);
    let spec = units::constants(spec, dtype.size(), n.max(from.numel()));
    args.kernel(spec, units::grid(args, n), &Params::new().words(&words))
}

/// The sort of `entries`, if that is better than that each of `places` looks at `rows` of them.
fn sort(op: &'static str, places: usize, entries: usize, rows: usize) -> Result<Option<Sort>> {
    let few = rows <= MOST || places.saturating_mul(rows) <= LOOKS;
    // Beyond what can be sorted there is still the slow way.
    if few || places > SORTABLE || entries >= 1 << 31 {
        Ok(None)
    } else {
        Sort::new(op, entries, places).map(Some)
    }
}

/// Bytes to add entries of the launch's second operand into a tensor of `shape`.
pub(super) fn workspace(axis: usize, shape: &Shape, launch: &Launch<'_>) -> Result<usize> {
    let index = launch.reads[1].layout.shape();
    let sort = sort(launch.op, shape.numel(), index.numel(), index[axis])?;
    Ok(sort.map_or(0, |sort| sort.workspace()))
}

pub(super) fn gather_backward(axis: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let base = args.accumulate(0).then(|| args.write(0));
    add(axis, base, args.read(0), args)
}

pub(super) fn scatter_add(axis: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    add(axis, Some(args.read(0)), args.read(2), args)
}

/// The output becomes `base` (0 without one) with `source` added to the places that operand 1 names.
fn add(axis: usize, base: Option<u64>, source: u64, args: &mut CudaArgs<'_>) -> Result<()> {
    let (to, index, dtype) = (args.write_shape(0), args.read_shape(1), args.write_dtype(0));
    let (n, entries) = (to.numel(), index.numel());
    if n == 0 {
        return Ok(());
    }
    let sort = sort(args.op(), n, entries, index[axis])?;
    // Places look at entries, or entries name places.
    let walk = if sort.is_some() { Walk::new(index, to, axis) } else { Walk::new(to, index, axis) };
    let mut words: SmallVec<[u64; 32]> = SmallVec::from_slice(&[
        base.unwrap_or_default(),
        source,
        args.read(1),
        args.write(0),
        n as u64,
        entries as u64,
        to[axis] as u64,
        row_major(to)[axis] as u64,
        index[axis] as u64,
        row_major(index)[axis] as u64,
    ]);
    words.extend(args.faults(Bounds::Axis));
    walk.words(&mut words, true);
    let ids = args.read_dtype(1);
    let spec = |entry, base: Option<u64>, rank: usize| {
        Spec::new(&ADD, entry)
            .dtype("ID", ids)
            .dtype("ELEMENT", dtype)
            .word("INDEX", units::index_type(n.max(entries)))
            .flag("BASE", base.is_some())
            .int("RANK", rank as i64)
    };
    let places = Params::new().words(&words);
    let Some(sort) = sort else {
        return args.kernel(spec("add", base, walk.rank()), units::grid(args, n), &places);
    };
    if base != Some(args.write(0)) {
        let params = Params::new().pointer(base.unwrap_or_default()).pointer(args.write(0)).size(n);
        args.kernel(spec("begin", base, 1), units::grid(args, n), &params)?;
    }
    let memory = args.workspace();
    let keys = spec("keys", None, walk.rank());
    args.kernel(keys, units::grid(args, entries), &places.pointer(sort.keys(memory)))?;
    let sorted = sort.run(args, memory)?;
    let params = Params::new()
        .pointer(sorted.keys)
        .pointer(sorted.entries)
        .pointer(source)
        .pointer(args.write(0))
        .size(n)
        .size(entries);
    let grid = Grid::line(entries.div_ceil(THREADS), THREADS as u32);
    args.kernel(spec("add_runs", None, 1), grid, &params)
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
