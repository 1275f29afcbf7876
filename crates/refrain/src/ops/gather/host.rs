//! `gather`, `scatter_add` and `scatter` on the CPU.

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, convert, store, with_float, with_stored};
use crate::device::cpu::{parallel, scratch::Scratch};
use crate::error::Result;
use crate::kernels::positions::{Position, check_range, missing, pick, unravel};
use crate::tensor::{DType, Layout, Shape};

fn check<I: Position>(args: &HostArgs<'_>, index: &[I], axis: usize, of: &Shape) -> Result<()> {
    let size = of[axis];
    check_range(args, 1, index, size, || format!("axis {axis} of size {size}"))
}

pub(super) fn gather<I: Position>(axis: usize, index: &[I], args: &HostArgs<'_>) -> Result<()> {
    let (from, to) = (args.read_shape(0), args.write_shape(0));
    check(args, index, axis, from)?;
    let (size, strides) = (from[axis], args.read_layout(0).strides());
    let last = to.rank() - 1;
    with_stored!(args.write_dtype(0), T => {
        let x = args.read::<T>(0)?;
        parallel::pieces(args.write::<T>(0)?, to[last], |i, row| {
            let at = unravel(i, &to[..last]);
            let start: usize =
                (at.iter().zip(strides).enumerate()).map(|(d, (i, s))| if d == axis { 0 } else { i * s }).sum();
            let index = &index[i * to[last]..][..row.len()];
            if axis == last {
                pick(&x[start..][..size], index, row);
            } else {
                let pick = |j, i: I| i.within(size).map_or_else(missing, |i| x[start + i * strides[axis] + j]);
                row.iter_mut().zip(index).enumerate().for_each(|(j, (y, &i))| *y = pick(j, i));
            }
        });
    });
    Ok(())
}

pub(super) fn gather_backward<I: Position>(axis: usize, index: &[I], args: &HostArgs<'_>) -> Result<()> {
    let to = args.write_shape(0);
    check(args, index, axis, to)?;
    let plan = GatherPlan::new(axis, args.write_layout(0), args.read_shape(1));
    with_float!(args, args.write_dtype(0), T, R => {
        let accumulate = args.accumulate(0);
        let begin = |_, y: &mut [T]| {
            if !accumulate {
                y.fill(T::from_number(<R as Number>::ZERO));
            }
        };
        plan.add::<T, R, I>(index, args.read::<T>(0)?, args.write::<T>(0)?, &begin);
        Ok(())
    })
}

pub(super) fn scatter_add<I: Position>(axis: usize, index: &[I], args: &HostArgs<'_>) -> Result<()> {
    let to = args.write_shape(0);
    check(args, index, axis, to)?;
    let plan = GatherPlan::new(axis, args.write_layout(0), args.read_shape(1));
    match args.write_dtype(0) {
        DType::F64 => add_to_copy::<f64, f64, I>(args, &plan, index),
        DType::F32 => add_to_copy::<f32, f32, I>(args, &plan, index),
        DType::F16 => add_to_copy::<half::f16, f32, I>(args, &plan, index),
        DType::BF16 => add_to_copy::<half::bf16, f32, I>(args, &plan, index),
        DType::U8 => add_to_copy::<u8, u8, I>(args, &plan, index),
        other => with_stored!(other, T => add_to_copy::<T, i64, I>(args, &plan, index)),
    }
}

fn add_to_copy<T: Stored, N: Number, I: Position>(
    args: &HostArgs<'_>,
    plan: &GatherPlan<'_>,
    index: &[I],
) -> Result<()> {
    let source = args.read::<T>(2)?;
    plan.add::<T, N, I>(index, source, args.write::<T>(0)?, &copy_of(original(args)?));
    Ok(())
}

/// What is written to, if not in place.
fn original<'a, T: Stored>(args: &HostArgs<'a>) -> Result<Option<&'a [T]>> {
    args.in_place(0).is_none().then(|| args.read::<T>(0)).transpose()
}

/// What a block is before entries are put into it: a copy from the same place.
fn copy_of<T: Stored>(original: Option<&[T]>) -> impl Fn(usize, &mut [T]) + Sync {
    move |at, y| {
        if let Some(x) = original {
            y.copy_from_slice(&x[at..][..y.len()]);
        }
    }
}

pub(super) fn scatter<I: Position>(axis: usize, index: &[I], args: &HostArgs<'_>) -> Result<()> {
    let to = args.write_shape(0);
    check(args, index, axis, to)?;
    let plan = GatherPlan::new(axis, args.write_layout(0), args.read_shape(1));
    with_stored!(args.write_dtype(0), T => {
        let (source, begin) = (args.read::<T>(2)?, copy_of(original(args)?));
        plan.blocks(index, source, args.write::<T>(0)?, &begin, |index, source, y| {
            plan.block(index, source, y, |y, s: T| *y = s);
        });
    });
    Ok(())
}

/// Writes what a block is before entries are put into it. It begins at this element of the tensor.
type Begin<'a, T> = &'a (dyn Fn(usize, &mut [T]) + Sync);

/// Where the elements of an index of one shape belong in a tensor of another shape. Both are divided into blocks at
/// the axis. Blocks of the tensor do not overlap, so they can be processed in parallel.
struct GatherPlan<'a> {
    /// Sizes before the axis, of the tensor and of the index.
    outer: [&'a [usize]; 2],
    /// Elements per block of the tensor.
    block: usize,
    /// Size of the axis in the tensor.
    size: usize,
    /// Distance between neighbours along the axis, in the tensor.
    stride: usize,
    /// Rows per block of the index, along the axis.
    rows: usize,
    /// For each element of such a row, its offset after the axis, in the tensor.
    inner: Scratch<usize>,
}

impl<'a> GatherPlan<'a> {
    /// The plan for a contiguous tensor.
    fn new(axis: usize, to: &'a Layout, index: &'a Shape) -> GatherPlan<'a> {
        let (to, strides) = (to.shape(), to.strides());
        let after = &index[axis + 1..];
        let place = |i: usize| unravel(i, after).iter().zip(&strides[axis + 1..]).map(|(i, s)| i * s).sum();
        GatherPlan {
            outer: [&to[..axis], &index[..axis]],
            block: to[axis..].iter().product(),
            size: to[axis],
            stride: to[axis + 1..].iter().product(),
            rows: index[axis],
            inner: Scratch::collect(after.iter().product(), (0..after.iter().product()).map(place)),
        }
    }

    /// `y[position] += source`, in the order of the index.
    fn add<T: Stored, N: Number, I: Position>(
        &self,
        index: &[I],
        source: &[T],
        y: &mut [T],
        begin: Begin<'_, T>,
    ) {
        self.blocks(index, source, y, begin, |index, source, y| match N::same_mut(y) {
            Some(y) => self.block(index, source, y, |y: &mut N, s: T| *y = y.plus(s.to())),
            None => {
                let (mut sum, mut added) = (Scratch::<N>::new(y.len()), Scratch::<N>::new(source.len()));
                convert(y, &mut sum);
                convert(source, &mut added);
                self.block(index, &added, &mut sum, |y: &mut N, s: N| *y = y.plus(s));
                store(&sum, y, false);
            }
        });
    }

    /// Calls `begin` with each block, and then `body` with the index, the source and the result of each that the index covers.
    fn blocks<T: Stored, I: Position>(
        &self,
        index: &[I],
        source: &[T],
        y: &mut [T],
        begin: Begin<'_, T>,
        body: impl Fn(&[I], &[T], &mut [T]) + Sync,
    ) {
        let size = self.rows * self.inner.len();
        let [to, from] = self.outer;
        parallel::pieces(y, self.block, |b, y| {
            begin(b * self.block, y);
            let at = unravel(b, to);
            if size == 0 || at.iter().zip(from).any(|(i, n)| i >= n) {
                return;
            }
            let b = at.iter().zip(from).fold(0, |b, (i, n)| b * n + i);
            body(&index[b * size..][..size], &source[b * size..][..size], y);
        });
    }

    /// Calls `put` with the position that each entry names and its element of the source, in the order of the index.
    fn block<T: Stored, Y, I: Position>(
        &self,
        index: &[I],
        source: &[T],
        y: &mut [Y],
        put: impl Fn(&mut Y, T),
    ) {
        let width = self.inner.len();
        if width == 1 {
            for (&i, &s) in index.iter().zip(source) {
                if let Some(i) = i.within(self.size) {
                    put(&mut y[i * self.stride], s);
                }
            }
            return;
        }
        for (index, source) in index.chunks_exact(width).zip(source.chunks_exact(width)) {
            for ((&i, &s), inner) in index.iter().zip(source).zip(&*self.inner) {
                if let Some(i) = i.within(self.size) {
                    put(&mut y[i * self.stride + inner], s);
                }
            }
        }
    }
}
