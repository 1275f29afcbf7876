//! Which numbers of its source the results of a convolution are summed of, on the CPU.
//!
//! In a transposed convolution of stride `s`, results `s` apart have the same elements of the weight (taps). They are a phase,
//! which is a convolution of stride 1 of the source.

use rayon::prelude::*;
use smallvec::SmallVec;

use super::Direction;
use super::padded::Padded;
use super::places::Places;
use super::windows::Windows;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::Scratch;
use crate::kernels::products::host::{Matrix, Terms};
use crate::kernels::window::Window;

/// Rows of weights that a thread writes at a time. Their numbers are neighbours in a weight.
const ROWS: usize = 16;
/// Elements of weights that a thread makes at a time.
const PIECE: usize = 1 << 12;
/// Phases that need no allocation: those of strides up to 4.
const INLINE: usize = 16;

/// Results `first + stride * [row, column]` of a channel, which have the same taps.
pub(super) struct Phase {
    pub(super) first: [usize; 2],
    pub(super) count: [usize; 2],
    /// The taps, among those of all phases.
    pub(super) begin: usize,
    pub(super) taps: usize,
}

impl Phase {
    /// The windows, with those of no use between the rows. The rows begin `step` windows apart.
    pub(super) fn windows(&self, step: usize) -> usize {
        (self.count[0] - 1) * step + self.count[1]
    }
}

/// The phases of a convolution, or of a transposed one.
pub(super) struct Phases {
    pub(super) padded: Padded,
    pub(super) groups: usize,
    /// Channels of a group, and the height and width: of the source and of the result.
    pub(super) sides: [(usize, [usize; 2]); 2],
    /// Steps between the results of a phase.
    pub(super) stride: [usize; 2],
    pub(super) phases: SmallVec<[Phase; INLINE]>,
    /// Where a tap of the first window of its phase lies in the padded source.
    pub(super) places: Scratch<usize>,
    /// Where the weight of a tap for the first result channel lies, among the weights of the group.
    of_weight: Scratch<usize>,
    /// From the weight of a result channel to that of the next one.
    channel_step: usize,
}

impl Phases {
    /// `None` if the source with its padding would be larger than its windows written down, or there is nothing to sum.
    pub(super) fn of(places: &Places, direction: Direction) -> Option<Phases> {
        let Places { images: [_, channels, height, width], count, out, groups, .. } = *places;
        let images = (channels / groups, [height, width]);
        let results = (out / groups, count);
        match direction {
            Direction::Forward => Phases::forward(places.window, [images, results], groups),
            Direction::Transposed => Phases::transposed(places.window, [results, images], groups),
        }
    }

    fn forward(window: Window, sides: [(usize, [usize; 2]); 2], groups: usize) -> Option<Phases> {
        let [(channels, size), (_, count)] = sides;
        let padded = Padded::new(&Windows::new(window, channels, size, count))?;
        let places = padded.places();
        let depth = places.len();
        Some(Phases {
            padded,
            groups,
            sides,
            stride: [1, 1],
            phases: SmallVec::from_iter([Phase { first: [0, 0], count, begin: 0, taps: depth }]),
            places,
            of_weight: Scratch::collect(depth, 0..depth),
            channel_step: depth,
        })
    }

    /// Result `i` along an axis has the pixels `(i + padding - k dilation) / stride` of the source for those taps `k` for which
    /// this is a whole number.
    fn transposed(window: Window, sides: [(usize, [usize; 2]); 2], groups: usize) -> Option<Phases> {
        let ([(from, source), (to, size)], Window { kernel, stride, padding, dilation }) = (sides, window);
        if size.contains(&0) {
            return None;
        }
        // Zeros before the source, and the pixels with them that results have.
        let lead = [0, 1].map(|axis| {
            let reach = dilation[axis] * (kernel[axis] - 1) / stride[axis];
            reach.saturating_sub(padding[axis] / stride[axis])
        });
        let used = [0, 1].map(|axis| lead[axis] + (padding[axis] + size[axis] - 1) / stride[axis] + 1);
        // A wide dilation has almost only zeros.
        let [plane, source_plane, results, kernel_len] =
            [used, source, size, kernel].map(|[height, width]| height.saturating_mul(width));
        if plane > source_plane + results.saturating_mul(kernel_len) {
            return None;
        }
        // Each pixel is a window.
        let pixels = Window { kernel: [1, 1], stride: [1, 1], padding: lead, dilation: [1, 1] };
        let padded = Padded::new(&Windows::new(pixels, from, source, used))?;
        let depth = from * kernel[0] * kernel[1];
        // There are fewer taps if results are fewer than the stride.
        let (mut places, mut of_weight) = (Scratch::filled(depth, 0), Scratch::filled(depth, 0));
        let (mut phases, mut taps) = (SmallVec::new(), 0);
        let firsts = [0, 1].map(|axis| stride[axis].min(size[axis]));
        for first in (0..firsts[0]).flat_map(|i| (0..firsts[1]).map(move |j| [i, j])) {
            // The place of a tap along an axis.
            let place = |axis: usize, k: usize| {
                let (at, back) = (first[axis] + padding[axis], k * dilation[axis]);
                let is_whole = at % stride[axis] == back % stride[axis];
                is_whole.then(|| lead[axis] + at / stride[axis] - back / stride[axis])
            };
            let begin = taps;
            for channel in 0..from {
                for (i, row) in (0..kernel[0]).filter_map(|i| Some((i, place(0, i)?))) {
                    for (j, column) in (0..kernel[1]).filter_map(|j| Some((j, place(1, j)?))) {
                        places[taps] = padded.place(channel, row, column);
                        of_weight[taps] = (channel * to * kernel[0] + i) * kernel[1] + j;
                        taps += 1;
                    }
                }
            }
            let count = [0, 1].map(|axis| (size[axis] - first[axis]).div_ceil(stride[axis]));
            phases.push(Phase { first, count, begin, taps: taps - begin });
        }
        let channel_step = kernel[0] * kernel[1];
        Some(Phases { padded, groups, sides, stride, phases, places, of_weight, channel_step })
    }

    /// The weights of each result channel, in the order of the taps, of which those of a phase are neighbours.
    pub(super) fn weights<R: Real>(&self, weight: &[R]) -> Scratch<R> {
        let (depth, to, step) = (self.places.len(), self.sides[1].0, self.channel_step);
        let mut weights = Scratch::new(self.groups * to * depth);
        let rows = if self.groups == 1 { ROWS.min(to) } else { to };
        let pieces = weights.par_chunks_mut((rows * depth).max(1)).enumerate();
        parallel::for_each(true, pieces, |(piece, weights)| {
            let row = piece * rows;
            let weight = &weight[row / to * to * depth + row % to * step..];
            for (row, weights) in weights.chunks_exact_mut(depth).enumerate() {
                weights.iter_mut().zip(&*self.of_weight).for_each(|(to, &at)| *to = weight[at + row * step]);
            }
        });
        weights
    }

    /// The length of the elements that [`elements`](Self::elements) makes.
    pub(super) fn elements_len<R: Real, M: Terms<R>>(&self, terms: M) -> usize {
        let of_row = self.phases.iter().map(|phase| terms.of_numbers(phase.taps)).sum::<usize>();
        if M::COUNT == 1 { 0 } else { self.groups * self.sides[1].0 * of_row }
    }

    /// The elements of what [`weights`](Self::weights) returns, which may be made in `to`: for each phase, a row for each result channel
    /// of each group.
    pub(super) fn elements<'a, R: Real, M: Terms<R>>(
        &self,
        terms: M,
        weights: &'a [R],
        to: &'a mut [R],
    ) -> Weights<'a, R> {
        let (depth, rows, mut rest) = (self.places.len(), self.groups * self.sides[1].0, to);
        let of_phase = |phase: &Phase| {
            let data = &weights[phase.begin..];
            let x = Matrix { data, rows, cols: phase.taps, row_stride: depth, col_stride: 1 };
            let len = if M::COUNT == 1 { 0 } else { rows * terms.of_numbers(phase.taps) };
            let (to, after) = std::mem::take(&mut rest).split_at_mut(len);
            rest = after;
            if M::COUNT == 1 || len == 0 {
                return terms.elements_of_rows(x, to);
            }
            let count = len / rows;
            let rows_at_once = (PIECE / count).max(1);
            parallel::pieces(to, rows_at_once * count, |at, to| {
                terms.elements_of_rows(x.rows_from(at * rows_at_once, to.len() / count), to);
            });
            Matrix::row_major(to, rows, count)
        };
        self.phases.iter().map(of_phase).collect()
    }
}

/// The elements of the weights of each phase.
pub(super) type Weights<'a, R> = SmallVec<[Matrix<'a, R>; INLINE]>;

/// Writes sums plus a bias to numbers `step` apart, or adds them.
#[inline(always)]
pub(super) fn write_row<R: Real>(sums: &[R], bias: R, keep: bool, step: usize, y: &mut [R]) {
    let of_y = |y: R| if keep { y } else { R::ZERO };
    match step {
        1 => y[..sums.len()].iter_mut().zip(sums).for_each(|(y, &sum)| *y = of_y(*y) + sum + bias),
        _ => y.iter_mut().step_by(step).zip(sums).for_each(|(y, &sum)| *y = of_y(*y) + sum + bias),
    }
}
