//! Sums on the CPU, of rows and of columns.
//!
//! Up to [`RUN`] numbers are added in 16 lanes, number `i` in lane `i % 16`, and then the lanes in halves. More numbers are cut
//! into runs, and the sums of the runs are added in the same way. So a sum has the same bits wherever its numbers lie in memory.

use std::slice::ChunksExact;

use bytemuck::Pod;
use half::bf16;
#[cfg(target_arch = "x86_64")]
use half::f16;
use pulp::{Simd, WithSimd};

use crate::device::cpu::narrow::bf16_to_f32;
#[cfg(target_arch = "x86_64")]
use crate::device::cpu::narrow::{Converts, F16Loops, HalfLoops, f16_loops, with_f16_loops};
use crate::device::cpu::numeric::{Number, Real, Stored, convert};
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::device::cpu::simd::{Vectors, arch, simd};
use crate::kernels::rows::LANES;

/// Numbers that are added in lanes, at most.
pub(crate) const RUN: usize = 1024;
/// Rows that [`columns`] passes before it goes on: four of each lane, which are added at a time.
const WINDOW: usize = 4 * LANES;

/// The sums of four rows of one length, at most [`RUN`].
pub(crate) fn four_rows<T: Stored, R: Real>(x: [&[T]; 4]) -> [R; 4] {
    if let [Some(a), Some(b), Some(c), Some(d)] = x.map(R::same) {
        return arch().dispatch(FourRows([a, b, c, d]));
    }
    if let Some(sums) = four_rows_of_halves(x) {
        return sums.map(R::from_f32);
    }
    let n = x[0].len();
    with_scratch(4 * n, |copies: &mut [R]| {
        x.iter().zip(copies.chunks_exact_mut(n.max(1))).for_each(|(x, copy)| convert(x, copy));
        arch().dispatch(FourRows(std::array::from_fn(|i| &copies[i * n..][..n])))
    })
}

struct FourRows<'a, R>([&'a [R]; 4]);

impl<R: Real> WithSimd for FourRows<'_, R> {
    type Output = [R; 4];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [R; 4] {
        // Registers that hold all lanes.
        let count = LANES / R::lanes::<S>();
        let mut lanes = [[R::ZERO; LANES]; 4];
        // One row after the other, as memory is read fastest. The processor is through with a row before its sums are.
        for (lanes, x) in lanes.iter_mut().zip(self.0) {
            let (whole, rest) = x.split_at(x.len() / LANES * LANES);
            let mut sums = [R::splat(simd, R::ZERO); LANES];
            for x in registers::<S, R>(whole) {
                for k in 0..count {
                    sums[k] = R::add_vectors(simd, sums[k], x[k]);
                }
            }
            lanes.copy_from_slice(bytemuck::cast_slice(&sums[..count]));
            lanes.iter_mut().zip(rest).for_each(|(lane, &v)| *lane += v);
        }
        in_halves(lanes)
    }
}

/// The numbers of all lanes at a time, in registers. Not by `array::map` of several slices, which is a call where it is not
/// inlined, so that the number of registers would not be known.
#[inline(always)]
pub(crate) fn registers<S: Simd, R: Real>(x: &[R]) -> ChunksExact<'_, R::Vector<S>> {
    R::as_vectors::<S>(x).0.chunks_exact(LANES / R::lanes::<S>())
}

/// Adds the lanes of each row.
#[inline(always)]
pub(crate) fn in_halves<R: Real>(mut lanes: [[R; LANES]; 4]) -> [R; 4] {
    let mut half = LANES / 2;
    while half > 0 {
        for lanes in &mut lanes {
            for l in 0..half {
                lanes[l] += lanes[l + half];
            }
        }
        half /= 2;
    }
    [lanes[0][0], lanes[1][0], lanes[2][0], lanes[3][0]]
}

/// Bytes of lanes that stay in the L1 cache beside the rows that are added to them.
const LANES_BYTES: usize = 1 << 14;

/// The sums of `sums.len()` columns of `rows` rows, at most [`RUN`]. The rows begin `step` numbers apart.
pub(crate) fn columns<T: Stored, R: Real>(x: &[T], step: usize, rows: usize, sums: &mut [R]) {
    let most = LANES_BYTES / (LANES * size_of::<R>());
    for (i, sums) in sums.chunks_mut(most).enumerate() {
        some_columns(&x[i * most..], step, rows, sums);
    }
}

fn some_columns<T: Stored, R: Real>(x: &[T], step: usize, rows: usize, sums: &mut [R]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(x) = f16::same(x)
        && let Some(loops) = f16_loops()
    {
        return with_f16_loops!(loops, loops => columns_by(loops, x, step, rows, sums));
    }
    columns_by(Each, x, step, rows, sums);
}

fn columns_by<T: Stored, R: Real>(adds: impl Adds<T, R>, x: &[T], step: usize, rows: usize, sums: &mut [R]) {
    let (width, used) = (sums.len(), rows.min(LANES));
    let row = |r: usize| &x[r * step..][..width];
    let mut lanes = Scratch::filled(used * width, R::ZERO);
    adds.run(
        #[inline(always)]
        || {
            for start in (0..rows).step_by(WINDOW) {
                for (lane, sums) in lanes.chunks_exact_mut(width).enumerate().take(rows - start) {
                    let first = start + lane;
                    if first + 3 * LANES < rows {
                        // The sums are loaded and stored once.
                        let rows = [first, first + LANES, first + 2 * LANES, first + 3 * LANES].map(row);
                        adds.add_four(sums, rows);
                    } else {
                        for r in (first..rows).step_by(LANES) {
                            adds.add_one(sums, row(r));
                        }
                    }
                }
            }
            // Unused lanes are zeros.
            let mut half = LANES / 2;
            while half > 0 {
                let (first, second) = lanes.split_at_mut(half.min(used) * width);
                let second = &second[..half.min(used.saturating_sub(half)) * width];
                first.iter_mut().zip(second).for_each(|(a, &b)| *a += b);
                half /= 2;
            }
        },
    );
    sums.copy_from_slice(&lanes[..width]);
}

/// Adds rows to sums, one after the other.
trait Adds<T, R>: Copy {
    /// Runs a closure that adds, compiled for the instructions of the machine.
    fn run(self, f: impl FnOnce());
    fn add_four(self, sums: &mut [R], rows: [&[T]; 4]);
    fn add_one(self, sums: &mut [R], row: &[T]);
}

/// By conversions of each number.
#[derive(Clone, Copy)]
struct Each;

impl<T: Stored, R: Real> Adds<T, R> for Each {
    #[inline(always)]
    fn run(self, f: impl FnOnce()) {
        simd(f);
    }

    #[inline(always)]
    fn add_four(self, sums: &mut [R], [a, b, c, d]: [&[T]; 4]) {
        for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *sum = *sum + a.to() + b.to() + c.to() + d.to();
        }
    }

    #[inline(always)]
    fn add_one(self, sums: &mut [R], row: &[T]) {
        sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v.to());
    }
}

#[cfg(target_arch = "x86_64")]
impl<R: Real, C: Converts> Adds<f16, R> for F16Loops<C> {
    #[inline(always)]
    fn run(self, f: impl FnOnce()) {
        HalfLoops::run(self, f);
    }

    #[inline(always)]
    fn add_four(self, sums: &mut [R], rows: [&[f16]; 4]) {
        self.add(sums, rows);
    }

    #[inline(always)]
    fn add_one(self, sums: &mut [R], row: &[f16]) {
        self.add(sums, [row]);
    }
}

/// The sums of four rows of f16 or bf16, converted in registers. `None` for other types, and on a machine without instructions for
/// f16.
fn four_rows_of_halves<T: Stored>(x: [&[T]; 4]) -> Option<[f32; 4]> {
    #[cfg(target_arch = "x86_64")]
    if let [Some(a), Some(b), Some(c), Some(d)] = x.map(f16::same) {
        return f16_loops().map(|loops| {
            with_f16_loops!(loops, loops => HalfLoops::run(loops,
                #[inline(always)]
                || converted(
                    loops.simd(),
                    [a, b, c, d],
                    #[inline(always)]
                    |x| loops.widen(x),
                ),
            ))
        });
    }
    match x.map(bf16::same) {
        [Some(a), Some(b), Some(c), Some(d)] => Some(arch().dispatch(FourRowsOfBf16([a, b, c, d]))),
        _ => None,
    }
}

struct FourRowsOfBf16<'a>([&'a [bf16]; 4]);

impl WithSimd for FourRowsOfBf16<'_> {
    type Output = [f32; 4];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [f32; 4] {
        converted(
            simd,
            self.0,
            #[inline(always)]
            |x: [bf16; LANES]| {
                let mut wide = [0.0; LANES];
                for l in 0..LANES {
                    wide[l] = bf16_to_f32(x[l]);
                }
                wide
            },
        )
    }
}

#[inline(always)]
fn converted<S: Simd, H: Pod>(simd: S, x: [&[H]; 4], widen: impl Fn([H; LANES]) -> [f32; LANES]) -> [f32; 4] {
    let count = LANES / f32::lanes::<S>();
    let mut lanes = [[0.0; LANES]; 4];
    // Two rows at a time: conversions fill the processor, so that it does not come to the next row while additions of one wait.
    for (lanes, rows) in lanes.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0) {
        let mut sums = [[f32::splat(simd, 0.0); LANES]; 2];
        let ((a, a_rest), (b, b_rest)) = (rows[0].as_chunks::<LANES>(), rows[1].as_chunks::<LANES>());
        for (&a, &b) in a.iter().zip(b) {
            let (a, b) = (widen(a), widen(b));
            let (a, b) = (f32::as_vectors::<S>(&a).0, f32::as_vectors::<S>(&b).0);
            for k in 0..count {
                sums[0][k] = f32::add_vectors(simd, sums[0][k], a[k]);
                sums[1][k] = f32::add_vectors(simd, sums[1][k], b[k]);
            }
        }
        for ((lanes, sums), rest) in lanes.iter_mut().zip(&sums).zip([a_rest, b_rest]) {
            lanes.copy_from_slice(bytemuck::cast_slice(&sums[..count]));
            // Zeros change nothing.
            let mut last = [H::zeroed(); LANES];
            last[..rest.len()].copy_from_slice(rest);
            lanes.iter_mut().zip(widen(last)).for_each(|(lane, v)| *lane += v);
        }
    }
    in_halves(lanes)
}

/// Adds up the sums of runs, `[runs, results]`. The results are the first ones.
pub(crate) fn merge<R: Real>(sums: &mut [R], results: usize) {
    let mut count = sums.len() / results;
    let mut merged = Scratch::<R>::new(results);
    while count > 1 {
        let runs = count.div_ceil(RUN);
        for run in 0..runs {
            let len = RUN.min(count - run * RUN);
            let of_run = &sums[run * RUN * results..][..len * results];
            match &mut *merged {
                [one] => [*one, ..] = four_rows([of_run; 4]),
                merged => columns(of_run, results, len, merged),
            }
            sums[run * results..][..results].copy_from_slice(&merged);
        }
        count = runs;
    }
}
