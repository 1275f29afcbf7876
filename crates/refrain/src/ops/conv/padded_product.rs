//! Convolutions on the CPU as products of the weight with windows that are packed from images with their padding
//! ([`Padded`](super::padded::Padded)), of all results with the same taps ([`Phases`]).

use super::phases::{Phase, Phases, Weights, write_row};
use crate::device::cpu::numeric::Real;
use crate::device::cpu::parallel;
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::{arch, simd};
use crate::kernels::products::host::block::{Block, block_scratch_len};
use crate::kernels::products::host::pack::{Panels, panel_width};
use crate::kernels::products::host::{BLOCK_K, Matrix, Terms};

/// A weight of at most as many numbers stays in the L2 cache while the panels pass.
const SMALL_WEIGHT: usize = 1 << 16;
/// Windows that share the reads of a weight, about.
const WINDOWS: usize = 256;

impl Phases {
    /// Images of `n` whose windows are packed side by side, so that small ones fill panels, too. All threads get some.
    pub(super) fn images_at_once(&self, n: usize) -> usize {
        let windows = self.phases.iter().map(|phase| phase.count[0] * phase.count[1]).max().unwrap_or(0);
        let most = n / (2 * parallel::threads());
        // Images of one group do not lie side by side.
        if self.groups == 1 { (WINDOWS / windows.max(1)).clamp(1, most.max(1)) } else { 1 }
    }

    /// Writes `rows` rows of each image of `y`, or adds them: the weight of each row times the windows of the image, plus the bias of the
    /// row. The weights begin at row `first`.
    pub(super) fn multiply<R: Real, M: Terms<R>>(
        &self,
        terms: M,
        images: &[R],
        (weights, first, rows): (&Weights<'_, R>, usize, usize),
        bias: Option<&[R]>,
        keep: bool,
        y: &mut [R],
    ) {
        for (phase, weights) in self.phases.iter().zip(weights) {
            let weight = weights.rows_from(first, rows);
            self.multiply_phase(phase, images, (terms, weight), bias, keep, y);
        }
    }

    fn multiply_phase<R: Real, M: Terms<R>>(
        &self,
        phase: &Phase,
        images: &[R],
        (terms, weight): (M, Matrix<'_, R>),
        bias: Option<&[R]>,
        keep: bool,
        y: &mut [R],
    ) {
        let arch = arch();
        let (depth, places) = (phase.taps, &self.places[phase.begin..][..phase.taps]);
        let n = images.len() / self.padded.len() * phase.count[0] * phase.count[1];
        let (lanes, panel) = panel_width::<R>(arch);
        // A group of panels has all its terms before the next one begins.
        let group = if weight.rows * depth <= SMALL_WEIGHT { panel } else { n };
        // The rows of `y` may be a power of two apart: then their lines would displace each other in the cache.
        let step = group.next_multiple_of(panel) + if group > panel { panel } else { 0 };
        let mut packed = Scratch::<R>::new((BLOCK_K + 1) * panel + lanes);
        let mut scratch = Scratch::<R>::new(block_scratch_len::<R>(BLOCK_K));
        let mut sums = Scratch::<R>::new(weight.rows * step);
        if depth == 0 {
            sums.fill(R::ZERO);
        }
        for first in (0..n).step_by(group.max(1)) {
            let columns = group.min(n - first);
            for p0 in (0..depth).step_by(BLOCK_K) {
                let k = BLOCK_K.min(depth - p0);
                for j in (0..columns).step_by(panel) {
                    let n_panel = panel.min(columns - j);
                    let width = n_panel.next_multiple_of(lanes);
                    let (start, rows) = packed.split_at_mut(width);
                    start.fill(R::ZERO);
                    let windows = first + j..first + j + n_panel;
                    self.padded.pack(images, &places[p0..][..k], phase.count, windows, rows, (width, 0));
                    let k = terms.pack_columns(rows, k, width);
                    terms.compute(Block {
                        a: weight,
                        i0: 0,
                        p0: p0 / M::COUNT,
                        k,
                        panels: Panels::of_one_block(&packed, k),
                        c: RectangleMut::new(&mut sums[j..], [weight.rows, n_panel], step),
                        add: p0 > 0,
                        scratch: &mut scratch,
                    });
                }
            }
            self.write(phase, (first, columns), (&sums, step), bias, keep, y);
        }
    }

    /// Writes the sums of `columns` windows of a phase from window `first` on. The sums of a row lie `step` behind those of the row
    /// before.
    fn write<R: Real>(
        &self,
        phase: &Phase,
        (first, columns): (usize, usize),
        (sums, step): (&[R], usize),
        bias: Option<&[R]>,
        keep: bool,
        y: &mut [R],
    ) {
        let ([height, width], [down, right]) = (self.sides[1].1, self.stride);
        let (plane, each) = (height * width, phase.count[0] * phase.count[1]);
        let rows = sums.len() / step;
        // Results that fill a plane are one line, also where a stride is wider than the plane.
        let (line, right) = if each == plane { (plane, 1) } else { (phase.count[1], right) };
        let place = |line: usize| (phase.first[0] + line * down) * width + phase.first[1];
        simd(
            #[inline(always)]
            || {
                for (image, y) in y.chunks_exact_mut(rows * plane).enumerate() {
                    let (from, to) = (first.max(image * each), (first + columns).min((image + 1) * each));
                    for (row, y) in y.chunks_exact_mut(plane).enumerate() {
                        let bias = bias.map_or(R::ZERO, |bias| bias[row]);
                        let mut at = from;
                        while at < to {
                            let (row_of_windows, column) = (at % each / line, at % each % line);
                            let n = (line - column).min(to - at);
                            let sums = &sums[row * step + at - first..][..n];
                            write_row(
                                sums,
                                bias,
                                keep,
                                right,
                                &mut y[place(row_of_windows) + column * right..],
                            );
                            at += n;
                        }
                    }
                }
            },
        );
    }
}
