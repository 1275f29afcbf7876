//! Reductions on the CPU.

use std::cmp::Reverse;

use bytemuck::{Pod, Zeroable};

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real, Stored, convert, store, with_float, with_stored};
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::reduction::{
    Extent, PartPosition, Reducer, SEGMENT, State, Steps, Transposed, reduce, reduce_in,
};
use crate::kernels::rows::LANES;
use crate::kernels::{elementwise, rows, sums};
use crate::tensor::{DType, Dims, Layout, Shape};

/// What a reduction may do with the order of elements without changing a bit of its result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Nothing: rows are reduced as rows, columns as columns.
    Fixed,
    /// Reduce rows as columns, and columns as rows.
    Along,
    /// Everything.
    Free,
}

/// The operand `[outer, n, inner]`: where it lies, if its rows are contiguous or its columns are, otherwise as a contiguous copy.
pub(super) enum Elements<'a, T> {
    InPlace(&'a [T], Extent, Steps),
    Transposed(&'a [T], Transposed),
    /// All elements of a matrix whose rows are apart: of each row, then of the results.
    RowByRow(&'a [T], Extent, Steps),
    Copy(Scratch<T>, Extent),
}

impl<'a, T: Stored> Elements<'a, T> {
    pub(super) fn of(args: &HostArgs<'a>, extent: Extent, order: Order) -> Result<Elements<'a, T>> {
        Ok(Elements::in_layout(args.read(0)?, args.read_layout(0), extent, order))
    }

    fn in_layout(x: &'a [T], layout: &Layout, extent: Extent, order: Order) -> Elements<'a, T> {
        let turned = || if order == Order::Fixed { None } else { extent.turned(layout) };
        let whole = || match order {
            Order::Free if extent.n == layout.numel() => layout.packed().map(|_| (extent, extent.steps())),
            _ => None,
        };
        let direct = extent.steps_in(layout).map(|steps| (extent, steps)).or_else(turned).or_else(whole);
        if let Some((extent, steps)) = direct {
            return Elements::InPlace(x, extent, steps);
        }
        if let Some((extent, steps)) = row_by_row(extent, layout, order) {
            return Elements::RowByRow(x, extent, steps);
        }
        match Transposed::of(extent, layout) {
            Some(transposed) => Elements::Transposed(x, transposed),
            None => Elements::Copy(elementwise::contiguous(layout, x), extent),
        }
    }

    pub(super) fn reduce<U: Send, S: State>(
        &self,
        f: &impl Reducer<T, S, 1>,
        y: &mut [U],
        store: impl Fn(&mut U, S) + Sync + Send,
    ) {
        match self {
            Elements::InPlace(x, extent, steps) => reduce_in([x], *extent, *steps, f, y, store),
            Elements::Transposed(x, transposed) => transposed.reduce(x, f, y, store),
            Elements::RowByRow(x, extent, steps) => {
                let mut states = Scratch::<S>::new(extent.outer);
                reduce_in([x], *extent, *steps, f, &mut states, |to, state| *to = state);
                if let Some(all) = states.iter().copied().reduce(|a, b| f.merge(a, b)) {
                    y.iter_mut().for_each(|y| store(y, all));
                }
            }
            Elements::Copy(x, extent) => reduce([x], *extent, f, y, store),
        }
    }
}

/// The rows of a matrix all of whose elements are reduced, in any order.
fn row_by_row(extent: Extent, layout: &Layout, order: Order) -> Option<(Extent, Steps)> {
    if order != Order::Free || extent.n != layout.numel() {
        return None;
    }
    let n = *layout.shape().last()?;
    let outer = layout.numel().checked_div(n)?;
    match layout.reshape(&Shape::from([outer, n]))?.strides() {
        &[step, 1] => Some((Extent { outer, n, inner: 1 }, Steps { outer: step, n: 1 })),
        _ => None,
    }
}

/// The sum over the middle of `extent`, divided by `divisor`.
pub(crate) fn sum(args: &HostArgs<'_>, extent: Extent, divisor: f64) -> Result<()> {
    match args.read_dtype(0) {
        DType::F64 => float_sum::<f64, f64>(args, extent, divisor),
        DType::F32 => float_sum::<f32, f32>(args, extent, divisor),
        DType::F16 => float_sum::<half::f16, f32>(args, extent, divisor),
        DType::BF16 => float_sum::<half::bf16, f32>(args, extent, divisor),
        other => with_stored!(other, T => {
            let (y, accumulate) = (args.write::<i64>(0)?, args.accumulate(0));
            let x = Elements::<T>::of(args, extent, Order::Free)?;
            match (extent.n, accumulate) {
                (0, true) => {}
                (0, false) => y.fill(0),
                _ => x.reduce(&IntegerSum, y, |to, sum: i64| {
                    *to = if accumulate { to.wrapping_add(sum) } else { sum };
                }),
            }
            Ok(())
        }),
    }
}

/// Numbers of the last axes, at least, that a sum over several axes adds first, so that a transposed or narrowed operand is read
/// where it lies. The order of additions follows from it.
const FIRST: usize = 64;

/// How many of the last axes have at least [`FIRST`] elements, or all `n` reduced ones, and how many elements these are.
fn first_sum(shape: &Shape, n: usize) -> (usize, usize) {
    let (mut axes, mut width) = (0, 1);
    for &size in shape.iter().rev() {
        (axes, width) = (axes + 1, width * size);
        if width >= FIRST.min(n) {
            break;
        }
    }
    (axes, width)
}

/// The layout with its first axes, `count` of them, in the order of memory, and where contiguous results for the sorted axes lie
/// in the order of the layout. `None` if the axes are in that order; those of contiguous operands are, so that layouts of many axes
/// are never made here, which would allocate.
fn in_order_of_memory(layout: &Layout, count: usize) -> Option<(Layout, Layout)> {
    let strides = &layout.strides()[..count];
    if strides.is_sorted_by_key(|&stride| Reverse(stride)) {
        return None;
    }
    let mut order: Dims = (0..layout.rank()).collect();
    order[..count].sort_by_key(|&axis| Reverse(strides[axis]));
    let sorted = layout.permute(&order);
    let mut places: Dims = (0..count).collect();
    places.sort_by_key(|&place| order[place]);
    let shape: Shape = sorted.shape().iter().take(count).copied().collect();
    Some((sorted, Layout::contiguous(shape).permute(&places)))
}

fn float_sum<T: Stored, R: Real>(args: &HostArgs<'_>, extent: Extent, divisor: f64) -> Result<()> {
    let Extent { outer, n, inner } = extent;
    let mut sums = Scratch::<R>::filled(outer * inner, R::ZERO);
    let (x, layout) = (args.read::<T>(0)?, args.read_layout(0));
    let to_sums = |to: &mut R, sum| *to = sum;
    match first_sum(layout.shape(), n) {
        _ if n == 0 => {}
        (axes, width) if inner == 1 && n > 1 && width < n => {
            let first = Extent { outer: outer * (n / width), n: width, inner };
            let last = Extent { outer, n: n / width, inner };
            let mut parts = Scratch::<R>::new(first.outer);
            match in_order_of_memory(layout, layout.rank() - axes) {
                Some((sorted, of_parts)) => {
                    Elements::in_layout(x, &sorted, first, Order::Along).reduce(&Sum, &mut parts, to_sums);
                    let parts = Elements::in_layout(&parts, &of_parts, last, Order::Along);
                    parts.reduce(&Sum, &mut sums, to_sums);
                }
                None => {
                    Elements::in_layout(x, layout, first, Order::Along).reduce(&Sum, &mut parts, to_sums);
                    reduce([&*parts], last, &Sum, &mut sums, to_sums);
                }
            }
        }
        _ => Elements::in_layout(x, layout, extent, Order::Along).reduce(&Sum, &mut sums, to_sums),
    }
    let divisor = R::c(divisor);
    sums.iter_mut().for_each(|sum| *sum = *sum / divisor);
    match args.write_dtype(0) {
        DType::F32 => store::<f32, R>(&sums, args.write(0)?, args.accumulate(0)),
        _ => store::<T, R>(&sums, args.write(0)?, args.accumulate(0)),
    }
    Ok(())
}

/// Of floats, in the order of [`sums`].
struct Sum;

impl<T: Stored, R: Real> Reducer<T, R, 1> for Sum {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> R {
        sums::four_rows([x; 4])[0]
    }

    fn four_rows(&self, x: [[&[T]; 1]; 4], _: [PartPosition; 4]) -> [R; 4] {
        sums::four_rows(x.map(|[x]| x))
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, _: PartPosition, states: &mut [R]) {
        sums::columns(x, stride, rows, states);
    }

    fn merge(&self, a: R, b: R) -> R {
        a + b
    }

    fn rows_at_a_time(&self, _: Extent) -> usize {
        sums::RUN
    }

    fn merge_all(&self, states: &mut [R], results: usize) {
        sums::merge(states, results);
    }
}

/// Of integers, in any order.
struct IntegerSum;

/// Bytes that are summed at a time, so that the sum has at most 32 bits.
const BYTES: usize = 1 << 16;
/// Rows of bytes that are summed at a time, so that the sums have at most 16 bits.
const BYTE_ROWS: usize = 257;

impl<T: Stored> Reducer<T, i64, 1> for IntegerSum {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> i64 {
        if let Some(bytes) = u8::same(x) {
            let sum_of = |bytes: &[u8]| bytes.iter().fold(0u32, |sum, &v| sum + u32::from(v));
            return simd(
                #[inline(always)]
                || bytes.chunks(BYTES).fold(0, |sum: i64, bytes| sum.wrapping_add(sum_of(bytes).into())),
            );
        }
        simd(
            #[inline(always)]
            || rows::fold(x, 0, |v| v.to(), i64::wrapping_add),
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, _: PartPosition, sums: &mut [i64]) {
        let width = sums.len();
        let bytes = u8::same(x);
        simd(
            #[inline(always)]
            || {
                sums.fill(0);
                if let Some(x) = bytes {
                    let mut narrow = [0u16; SEGMENT];
                    for start in (0..rows).step_by(BYTE_ROWS) {
                        let narrow = &mut narrow[..width];
                        narrow.fill(0);
                        for r in start..rows.min(start + BYTE_ROWS) {
                            let row = &x[r * stride..][..width];
                            narrow.iter_mut().zip(row).for_each(|(s, &v)| *s += u16::from(v));
                        }
                        sums.iter_mut().zip(narrow).for_each(|(s, v)| *s += i64::from(*v));
                    }
                    return;
                }
                for r in 0..rows {
                    let row = &x[r * stride..][..width];
                    sums.iter_mut().zip(row).for_each(|(s, v)| *s = s.wrapping_add(v.to()));
                }
            },
        )
    }

    #[inline(always)]
    fn merge(&self, a: i64, b: i64) -> i64 {
        a.wrapping_add(b)
    }
}

/// The product over the middle of `extent`.
pub(super) fn product(args: &HostArgs<'_>, extent: Extent) -> Result<()> {
    fn of<T: Stored, N: Number, Y: Stored>(args: &HostArgs<'_>, extent: Extent, order: Order) -> Result<()> {
        let y = args.write::<Y>(0)?;
        let mut products = Scratch::<N>::filled(y.len(), N::ONE);
        if extent.n > 0 {
            let x = Elements::<T>::of(args, extent, order)?;
            x.reduce(&Product, &mut products, |to, product| *to = product);
        }
        store::<Y, N>(&products, y, false);
        Ok(())
    }
    match args.read_dtype(0) {
        dtype if dtype.is_float() => {
            with_float!(args, dtype, T, R => of::<T, R, T>(args, extent, Order::Along))
        }
        other => with_stored!(other, T => of::<T, i64, i64>(args, extent, Order::Free)),
    }
}

/// In lanes, and then the lanes in halves, so that rows and columns have one order.
struct Product;

impl<T: Stored, N: Number> Reducer<T, N, 1> for Product {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> N {
        simd(
            #[inline(always)]
            || rows::product(x),
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, _: PartPosition, products: &mut [N]) {
        let width = products.len();
        let mut lanes = Scratch::filled(LANES * width, N::ONE);
        let mut wide = [N::ZERO; SEGMENT];
        simd(
            #[inline(always)]
            || {
                for r in 0..rows {
                    let (lane, row) = (&mut lanes[r % LANES * width..][..width], &x[r * stride..][..width]);
                    if half::f16::same(row).is_some() {
                        // By instructions for slices.
                        convert(row, &mut wide[..width]);
                        lane.iter_mut().zip(&wide).for_each(|(p, &v)| *p = p.times(v));
                    } else {
                        lane.iter_mut().zip(row).for_each(|(p, v)| *p = p.times(v.to()));
                    }
                }
                let mut half = LANES / 2;
                while half > 0 {
                    let (first, second) = lanes.split_at_mut(half * width);
                    first.iter_mut().zip(&*second).for_each(|(a, &b)| *a = a.times(b));
                    half /= 2;
                }
            },
        );
        products.copy_from_slice(&lanes[..width]);
    }

    fn rows_at_a_time(&self, _: Extent) -> usize {
        sums::RUN
    }

    #[inline(always)]
    fn merge(&self, a: N, b: N) -> N {
        a.times(b)
    }
}

/// Count, mean, and sum of squared distances from the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Moments {
    pub(crate) count: f64,
    pub(crate) mean: f64,
    pub(crate) squares: f64,
}

/// Computes means and sums of squares in the arithmetic `R`. Parts are merged in f64 (Chan, Golub and LeVeque, 1979),
/// so that a mean far from 0 costs no digits.
pub(crate) struct InMoments<R>(pub(crate) std::marker::PhantomData<R>);

impl<T: Stored, R: Real> Reducer<T, Moments, 1> for InMoments<R> {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> Moments {
        simd(
            #[inline(always)]
            || {
                let mean = rows::sum([x], |[v]| v.to::<R>()) / R::from_i64(x.len() as i64);
                let squares = rows::sum(
                    [x],
                    #[inline(always)]
                    |[v]| (v.to::<R>() - mean) * (v.to::<R>() - mean),
                );
                Moments { count: x.len() as f64, mean: mean.to_f64(), squares: squares.to_f64() }
            },
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, _: PartPosition, states: &mut [Moments]) {
        if half::f16::same(x).is_none() {
            return moments_of_columns::<T, R>(x, stride, rows, states);
        }
        // The conversion takes long, so it is done once.
        let width = states.len();
        with_scratch(rows * width, |copies: &mut [R]| {
            let copies_of_rows = copies.chunks_exact_mut(width).enumerate();
            copies_of_rows.for_each(|(r, copy)| convert(&x[r * stride..][..width], copy));
            moments_of_columns::<R, R>(copies, width, rows, states);
        });
    }

    fn merge(&self, a: Moments, b: Moments) -> Moments {
        a.merge(b)
    }
}

fn moments_of_columns<T: Stored, R: Real>(x: &[T], stride: usize, rows: usize, states: &mut [Moments]) {
    let width = states.len();
    let (mut means, mut squares) = ([R::ZERO; SEGMENT], [R::ZERO; SEGMENT]);
    let (means, squares) = (&mut means[..width], &mut squares[..width]);
    simd(
        #[inline(always)]
        || {
            // Four rows at a time, one after the other: the sums are loaded and stored once.
            let row = |r: usize| &x[r * stride..][..width];
            for r in (0..rows / 4 * 4).step_by(4) {
                let (a, b, c, d) = (row(r), row(r + 1), row(r + 2), row(r + 3));
                for ((((m, a), b), c), d) in means.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                    *m = *m + a.to() + b.to() + c.to() + d.to();
                }
            }
            for r in rows / 4 * 4..rows {
                means.iter_mut().zip(row(r)).for_each(|(m, v)| *m += v.to());
            }
            let share = R::from_i64(rows as i64);
            means.iter_mut().for_each(|m| *m = *m / share);
            for r in (0..rows / 4 * 4).step_by(4) {
                let (a, b, c, d) = (row(r), row(r + 1), row(r + 2), row(r + 3));
                for (((((s, &m), a), b), c), d) in squares.iter_mut().zip(&*means).zip(a).zip(b).zip(c).zip(d)
                {
                    let (a, b, c, d): (R, R, R, R) = (a.to(), b.to(), c.to(), d.to());
                    *s = *s + (a - m) * (a - m) + (b - m) * (b - m) + (c - m) * (c - m) + (d - m) * (d - m);
                }
            }
            for r in rows / 4 * 4..rows {
                let row = row(r);
                for ((s, v), &m) in squares.iter_mut().zip(row).zip(&*means) {
                    *s += (v.to::<R>() - m) * (v.to::<R>() - m);
                }
            }
        },
    );
    for ((state, mean), squares) in states.iter_mut().zip(means).zip(squares) {
        *state = Moments { count: rows as f64, mean: mean.to_f64(), squares: squares.to_f64() };
    }
}

impl Moments {
    /// The moments of both parts together.
    pub(crate) fn merge(self, other: Moments) -> Moments {
        let count = self.count + other.count;
        let distance = other.mean - self.mean;
        Moments {
            count,
            mean: self.mean + distance * (other.count / count),
            squares: self.squares + other.squares + distance * distance * (self.count * other.count / count),
        }
    }

    /// The variance with a divisor of `count - correction`.
    pub(crate) fn variance(self, correction: f64) -> f64 {
        self.squares / (self.count - correction).max(0.0)
    }
}

/// Writes the variance and the mean.
pub(super) fn var(args: &HostArgs<'_>, extent: Extent, correction: usize) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => {
        let x = Elements::<T>::of(args, extent, Order::Fixed)?;
        let (y, means) = (args.write::<T>(0)?, args.write::<R>(1)?);
        if extent.n == 0 {
            y.fill(T::from_number(R::c(f64::NAN)));
            means.fill(R::c(f64::NAN));
            return Ok(());
        }
        let mut moments = Scratch::<Moments>::new(y.len());
        x.reduce(&InMoments::<R>(std::marker::PhantomData), &mut moments, |to, m| *to = m);
        for ((y, mean), m) in y.iter_mut().zip(means).zip(&*moments) {
            *y = T::from_number(m.variance(correction as f64));
            *mean = R::c(m.mean);
        }
        Ok(())
    })
}

/// Counts how many elements equal an extreme; `extremes[i]` belongs to result i. NaN counts as equal to NaN.
struct Ties<'a, T> {
    extremes: &'a [T],
}

/// Whether an element equals the extreme.
#[inline(always)]
pub(super) fn is_tie<N: Number>(v: N, extreme: N) -> bool {
    v == extreme || (v.is_nan() && extreme.is_nan())
}

impl<T: Stored, R: Real> Reducer<T, R, 1> for Ties<'_, T> {
    fn row(&self, [x]: [&[T]; 1], at: PartPosition) -> R {
        let extreme: R = self.extremes[at.result].to();
        simd(
            #[inline(always)]
            || rows::sum([x], |[v]| R::from_bool(is_tie(v.to(), extreme))),
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, at: PartPosition, states: &mut [R]) {
        let width = states.len();
        let extremes = &self.extremes[at.result..][..width];
        simd(
            #[inline(always)]
            || {
                states.fill(R::ZERO);
                for r in 0..rows {
                    for ((s, v), e) in states.iter_mut().zip(&x[r * stride..][..width]).zip(extremes) {
                        *s += R::from_bool(is_tie(v.to::<R>(), e.to::<R>()));
                    }
                }
            },
        )
    }

    fn merge(&self, a: R, b: R) -> R {
        a + b
    }
}

/// Operands: x, the extremes and dy. Result: dy divided by the number of elements that share it.
pub(super) fn tie_share(args: &HostArgs<'_>, extent: Extent) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => {
        let (x, extremes, dy) = (args.read::<T>(0)?, args.read::<T>(1)?, args.read::<T>(2)?);
        let y = args.write::<R>(0)?;
        reduce([x], extent, &Ties { extremes }, y, |to, count: R| *to = count);
        y.iter_mut().zip(dy).for_each(|(y, d)| *y = d.to::<R>() / *y);
        Ok(())
    })
}
