//! Convolutions of groups of few channels on the CPU.
//!
//! An image is copied with its padding ([`Padded`](crate::ops::conv::padded::Padded)). There neighbouring windows lie side by side,
//! and those of a row after those of the row before. So one element of all windows is a single run of memory. The sums of all windows are these runs, each
//! times its weight, and stay in registers while the elements of the window (taps) pass. A weight's gradient is the dot products
//! of the same runs with `dy`. Between two rows, a few windows are of no use, and their sums are dropped.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::suits;
use crate::device::HostArgs;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::arch;
use crate::device::cpu::widen::{Widened, output};
use crate::error::Result;
use crate::kernels::products::host::pack::panel_width;
use crate::ops::conv::host::{add_parts, all_finite, parts_of};
use crate::ops::conv::phases::{Phase, Phases, write_row};
use crate::ops::conv::places::Places;
use crate::ops::conv::weight_gradient::WeightGradient;
use crate::ops::conv::{Convolution, Direction};

/// Images times groups, at least. With fewer, other kernels share the rows of an image between threads.
const FEWEST_PLANES: usize = 8;
/// Results of a task, about.
const TASK: usize = 1 << 13;
/// Windows that all taps pass before the next ones, at most. Their numbers stay in the L1 cache.
const SPAN: usize = 1 << 11;

/// How each channel of the result is summed.
pub(in crate::ops::conv) struct Direct(Phases);

impl Direct {
    /// `None` if other kernels are faster.
    pub(in crate::ops::conv) fn of(places: &Places, direction: Direction) -> Option<Direct> {
        if !suits(places)
            || places.channels_last
            || places.images[0].saturating_mul(places.groups) < FEWEST_PLANES
        {
            return None;
        }
        let phases = Phases::of(places, direction)?;
        // Much padding beside few columns has almost only windows of no use.
        let few =
            |phase: &Phase| phase.windows(phases.padded.step()) <= 4 * phase.count[0] * phase.count[1] + 64;
        phases.phases.iter().all(few).then_some(Direct(phases))
    }

    pub(in crate::ops::conv) fn convolve<R: Real>(
        &self,
        op: &Convolution,
        args: &HostArgs<'_>,
    ) -> Result<()> {
        let x = Widened::<R>::rounded(args, 0, op.factors)?;
        let weight = Widened::<R>::rounded(args, 1, op.factors)?;
        let bias = if op.bias { Some(Widened::<R>::operand(args, 2)?) } else { None };
        let (x, bias, keep) = (x.get(), bias.as_ref().map(Widened::get), args.accumulate(0));
        let weights = self.0.weights(weight.get());
        let [from, to] = self.0.sides.map(|(channels, [height, width])| channels * height * width);
        let (channels, [height, width]) = self.0.sides[1];
        output(args, 0, |y: &mut [R]| {
            let planes = (TASK / to.max(1)).max(1);
            parallel::for_each(true, y.par_chunks_mut((planes * to).max(1)).enumerate(), |(task, y)| {
                let mut image = self.0.padded.zeros();
                let mut sums = Scratch::new(SPAN);
                for (at, y) in y.chunks_exact_mut(to).enumerate() {
                    let at = task * planes + at;
                    self.0.padded.write(&x[at * from..][..from], &mut image);
                    for (channel, y) in y.chunks_exact_mut(height * width).enumerate() {
                        let channel = at % self.0.groups * channels + channel;
                        let weights = &weights[channel * self.0.places.len()..][..self.0.places.len()];
                        let start = bias.map_or(R::ZERO, |bias| bias[channel]);
                        let (image, sums) = (&*image, &mut *sums);
                        arch().dispatch(Plane { phases: &self.0, image, weights, start, sums, keep, y });
                    }
                }
            });
        })
    }

    /// The weight's gradient of a convolution.
    pub(in crate::ops::conv) fn weight_gradient<R: Real>(
        &self,
        op: &WeightGradient,
        args: &HostArgs<'_>,
    ) -> Result<()> {
        let dy = Widened::<R>::rounded(args, 0, op.factors)?;
        let x = Widened::<R>::rounded(args, 1, op.factors)?;
        let (dy, x, keep) = (dy.get(), x.get(), args.accumulate(0));
        let (n, groups, depth) = (op.places.images[0], self.0.groups, self.0.places.len());
        let ([of_x, of_dy], m) = (self.0.sides.map(|(c, [h, w])| c * h * w), self.0.sides[1].0);
        let parts = parts_of(n);
        output(args, 0, |dw: &mut [R]| {
            if dw.is_empty() {
                return;
            }
            let mut sums = Scratch::<R>::new(parts * dw.len());
            parallel::for_each(true, sums.par_chunks_mut(m * depth).enumerate(), |(at, sums)| {
                let (part, group) = (at / groups, at % groups);
                let images = (part * n / parts..(part + 1) * n / parts).map(|image| image * groups + group);
                let planes = images.map(|at| (&x[at * of_x..][..of_x], &dy[at * of_dy..][..of_dy]));
                self.add_gradients(planes, sums);
            });
            add_parts(&mut sums, dw.len());
            for (dw, &sum) in dw.iter_mut().zip(&*sums) {
                *dw = if keep { *dw + sum } else { sum };
            }
        })
    }

    /// Writes the sums over images of a group.
    fn add_gradients<'a, R: Real>(&self, planes: impl Iterator<Item = (&'a [R], &'a [R])>, sums: &mut [R]) {
        let (arch, depth, step) = (arch(), self.0.places.len(), self.0.padded.step());
        let ([rows, columns], lanes) = (self.0.sides[1].1, panel_width::<R>(arch).0);
        let all = self.0.phases[0].windows(step);
        let mut image = self.0.padded.zeros();
        // Of windows of no use `dy` is zero.
        let mut spread = Scratch::filled(all.next_multiple_of(lanes), R::ZERO);
        let mut used = Scratch::<R>::new(0);
        let mut totals = Scratch::filled(sums.len() * lanes, R::ZERO);
        for (x, dy) in planes {
            self.0.padded.write(x, &mut image);
            // Zero times an infinity or NaN is NaN. Then windows of no use, and those behind the last one, are replaced by zeros.
            let all_used = step == columns && all.is_multiple_of(lanes);
            let finite = all_used || all_finite(x);
            if !finite && used.is_empty() {
                used = Scratch::filled(spread.len(), R::ZERO);
            }
            for (dy, totals) in dy.chunks_exact(rows * columns).zip(totals.chunks_exact_mut(depth * lanes)) {
                for (to, dy) in spread.chunks_mut(step).zip(dy.chunks_exact(columns)) {
                    to[..columns].copy_from_slice(dy);
                }
                if finite {
                    arch.dispatch(Dots { image: &image, places: &self.0.places, dy: &spread, totals });
                    continue;
                }
                for (&place, totals) in self.0.places.iter().zip(totals.chunks_exact_mut(lanes)) {
                    self.0.padded.copy_used(&image[place..], &mut used[..all]);
                    arch.dispatch(Dots { image: &used, places: &[0], dy: &spread, totals });
                }
            }
        }
        for (sum, lanes) in sums.iter_mut().zip(totals.chunks_exact_mut(lanes)) {
            let mut half = lanes.len() / 2;
            while half > 0 {
                (0..half).for_each(|lane| lanes[lane] += lanes[lane + half]);
                half /= 2;
            }
            *sum = lanes[0];
        }
    }
}

/// Writes a channel of the result, or adds it.
struct Plane<'a, R> {
    phases: &'a Phases,
    image: &'a [R],
    weights: &'a [R],
    /// The bias, to which the products are added.
    start: R,
    sums: &'a mut [R],
    keep: bool,
    y: &'a mut [R],
}

impl<R: Real> WithSimd for Plane<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Plane { phases, image, weights, start, sums, keep, y } = self;
        let (step, width, [down, right]) = (phases.padded.step(), phases.sides[1].1[1], phases.stride);
        let (mut places, mut weights) = (&*phases.places, weights);
        for phase in &phases.phases {
            let (of_phase, all) = (&places[..phase.taps], phase.windows(step));
            let mut row = 0;
            for first in (0..all).step_by(SPAN) {
                let end = all.min(first + SPAN);
                sum_runs(simd, &image[first..], of_phase, &weights[..phase.taps], start, end - first, sums);
                while row * step < end {
                    // The part of the row that lies in the span.
                    let (from, to) = (first.max(row * step), end.min(row * step + phase.count[1]));
                    if from < to {
                        let (sums, column) = (&sums[from - first..to - first], from - row * step);
                        let at = (phase.first[0] + row * down) * width + phase.first[1] + column * right;
                        write_row(sums, R::ZERO, keep, right, &mut y[at..]);
                    }
                    if (row + 1) * step > end {
                        break;
                    }
                    row += 1;
                }
            }
            (places, weights) = (&places[phase.taps..], &weights[phase.taps..]);
        }
    }
}

/// Writes the sums of `n` windows: runs of the image times their weights.
#[inline(always)]
fn sum_runs<S: Simd, R: Real>(
    simd: S,
    image: &[R],
    places: &[usize],
    weights: &[R],
    start: R,
    n: usize,
    sums: &mut [R],
) {
    let lanes = R::lanes::<S>();
    let mut at = 0;
    while at < n {
        let (image, sums) = (&image[at..], &mut sums[at..]);
        at += lanes
            * match (n - at).div_ceil(lanes) {
                1 => some_runs::<S, R, 1>(simd, image, places, weights, start, sums),
                2 => some_runs::<S, R, 2>(simd, image, places, weights, start, sums),
                3 => some_runs::<S, R, 3>(simd, image, places, weights, start, sums),
                4..8 => some_runs::<S, R, 4>(simd, image, places, weights, start, sums),
                _ => some_runs::<S, R, 8>(simd, image, places, weights, start, sums),
            };
    }
}

/// Writes `N` registers of sums.
#[inline(always)]
fn some_runs<S: Simd, R: Real, const N: usize>(
    simd: S,
    image: &[R],
    places: &[usize],
    weights: &[R],
    start: R,
    sums: &mut [R],
) -> usize {
    let len = N * R::lanes::<S>();
    let mut all = [R::splat(simd, start); N];
    for (&place, &weight) in places.iter().zip(weights) {
        let (x, weight) = (&R::as_vectors::<S>(&image[place..][..len]).0[..N], R::splat(simd, weight));
        for j in 0..N {
            all[j] = R::mul_add(simd, x[j], weight, all[j]);
        }
    }
    R::as_vectors_mut::<S>(&mut sums[..len]).0[..N].copy_from_slice(&all);
    N
}

/// Adds the products of each run with `dy` to the lanes of its total.
struct Dots<'a, R> {
    image: &'a [R],
    places: &'a [usize],
    /// Whole registers.
    dy: &'a [R],
    totals: &'a mut [R],
}

impl<R: Real> WithSimd for Dots<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let totals = R::as_vectors_mut::<S>(self.totals).0;
        for (span, dy) in self.dy.chunks(SPAN).enumerate() {
            let (image, dy) = (&self.image[span * SPAN..], R::as_vectors::<S>(dy).0);
            let (mut places, mut totals) = (self.places, &mut *totals);
            while !places.is_empty() {
                let n = match places.len() {
                    1 => some_dots::<S, R, 1>(simd, image, places, dy, totals),
                    2 => some_dots::<S, R, 2>(simd, image, places, dy, totals),
                    3 => some_dots::<S, R, 3>(simd, image, places, dy, totals),
                    4..8 => some_dots::<S, R, 4>(simd, image, places, dy, totals),
                    _ => some_dots::<S, R, 8>(simd, image, places, dy, totals),
                };
                (places, totals) = (&places[n..], &mut totals[n..]);
            }
        }
    }
}

/// Adds to the totals of `N` taps.
#[inline(always)]
fn some_dots<S: Simd, R: Real, const N: usize>(
    simd: S,
    image: &[R],
    places: &[usize],
    dy: &[R::Vector<S>],
    totals: &mut [R::Vector<S>],
) -> usize {
    let mut runs = [&[][..]; N];
    for j in 0..N {
        runs[j] = &R::as_vectors::<S>(&image[places[j]..]).0[..dy.len()];
    }
    let mut all = [R::splat(simd, R::ZERO); N];
    for (i, &dy) in dy.iter().enumerate() {
        for j in 0..N {
            all[j] = R::mul_add(simd, runs[j][i], dy, all[j]);
        }
    }
    for j in 0..N {
        totals[j] = R::add_vectors(simd, totals[j], all[j]);
    }
    N
}
