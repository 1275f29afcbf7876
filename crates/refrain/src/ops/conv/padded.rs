//! The windows of images on the CPU, packed from the images themselves.
//!
//! An image is copied with its padding. A stride `s` cuts each axis into `s` phases: rows (or columns) `s` apart are neighbours. So
//! one element of neighbouring windows is a run of memory, and windows are packed by copies of such runs, without a matrix of all
//! windows.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::windows::Windows;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::{arch, simd};
use crate::kernels::products::host::pack::panel_width;
use crate::kernels::window::Window;

/// Windows that are packed at a time, at most, and so their runs: the columns of a panel.
pub(super) const MOST_COLUMNS: usize = 64;

/// Registers of a run, at most.
const MOST_REGISTERS: usize = 4;

/// How an image `[channels, height, width]` with its padding lies in memory: `[channels, phases, phases, rows, columns]`.
#[derive(Clone, Copy)]
pub(super) struct Padded {
    window: Window,
    channels: usize,
    size: [usize; 2],
    /// How many windows there are.
    count: [usize; 2],
    phases: [usize; 2],
    /// Rows and columns of a phase.
    phase: [usize; 2],
}

impl Padded {
    /// `None` if the image with its padding would be larger than its windows written down.
    pub(super) fn new(windows: &Windows) -> Option<Padded> {
        let Windows { window, channels, size, count, .. } = *windows;
        let reach = [0, 1].map(|axis| window.dilation[axis] * (window.kernel[axis] - 1));
        // Other phases have no element of a window.
        let phases = [0, 1].map(|axis| window.stride[axis].min(reach[axis] + 1));
        let phase = [0, 1].map(|axis| count[axis] + reach[axis] / window.stride[axis]);
        let padded = Padded { window, channels, size, count, phases, phase };
        let numbers = phases.into_iter().chain(phase).fold(channels, usize::saturating_mul);
        (numbers > 0 && numbers <= windows.len()).then_some(padded)
    }

    /// The numbers of a channel.
    fn channel(&self) -> usize {
        self.phases[0] * self.phases[1] * self.phase[0] * self.phase[1]
    }

    /// The numbers of an image, and some behind them that a copy of whole registers may read.
    pub(super) fn len(&self) -> usize {
        self.channels * self.channel() + MOST_COLUMNS
    }

    /// Where the element `[i, j]` of the first window of a channel lies. That of window `[row, column]` lies `row` times
    /// the columns of a phase plus `column` further.
    pub(super) fn place(&self, channel: usize, i: usize, j: usize) -> usize {
        let Padded { window: Window { stride, dilation, .. }, phases, phase: [rows, columns], .. } = *self;
        let at = [i * dilation[0], j * dilation[1]];
        let phase = at[0] % stride[0] * phases[1] + at[1] % stride[1];
        channel * self.channel() + phase * rows * columns + at[0] / stride[0] * columns + at[1] / stride[1]
    }

    /// Where all elements of the first window lie: those of a channel, row by row, and then the next channel's.
    pub(super) fn places(&self) -> Scratch<usize> {
        let [height, width] = self.window.kernel;
        let elements = self.channels * height * width;
        let place = |at: usize| self.place(at / width / height, at / width % height, at % width);
        Scratch::collect(elements, (0..elements).map(place))
    }

    /// Columns of a phase, which is how far the windows of a row lie from those of the row before.
    pub(super) fn step(&self) -> usize {
        self.phase[1]
    }

    /// Memory for an image, all zeros.
    pub(super) fn zeros<R: Real>(&self) -> Scratch<R> {
        Scratch::filled(self.len(), R::ZERO)
    }

    /// Some images with their padding, one after the other.
    pub(super) fn images<'a, R: Real>(&self, images: impl ExactSizeIterator<Item = &'a [R]>) -> Scratch<R> {
        let mut padded = Scratch::filled(images.len() * self.len(), R::ZERO);
        for (to, x) in padded.chunks_exact_mut(self.len()).zip(images) {
            self.write(x, to);
        }
        padded
    }

    /// Writes an image. The padding stays as it is.
    pub(super) fn write<R: Real>(&self, x: &[R], image: &mut [R]) {
        let Padded { window, size: [height, width], phases, phase: [rows, columns], .. } = *self;
        let ([_, left], [down, right]) = (window.padding, window.stride);
        if x.is_empty() {
            return;
        }
        // Columns behind the last window stay zeros, because no window reads them.
        let used = (self.count[1] - 1) * right + window.dilation[1] * (window.kernel[1] - 1) + 1;
        let there = width.min(used.saturating_sub(left));
        // The first pixel of a phase along an axis, and its place there.
        let begin = |axis: usize, phase: usize| {
            let (stride, padding) = (window.stride[axis], window.padding[axis]);
            let (whole, ahead) = (padding / stride, padding % stride);
            match phase.checked_sub(ahead) {
                Some(first) => (first, whole),
                None => (stride - ahead + phase, whole + 1),
            }
        };
        simd(
            #[inline(always)]
            || {
                for (channel, x) in image.chunks_exact_mut(self.channel()).zip(x.chunks_exact(height * width))
                {
                    for (at, phase) in channel.chunks_exact_mut(rows * columns).enumerate() {
                        let (first_row, row) = begin(0, at / phases[1]);
                        let (first_column, column) = begin(1, at % phases[1]);
                        let lines = phase.chunks_exact_mut(columns).skip(row);
                        for (to, x) in lines.zip(x.chunks_exact(width).skip(first_row).step_by(down)) {
                            let (to, x) = (&mut to[column..], &x[first_column.min(there)..there]);
                            match right {
                                1 => to[..x.len()].copy_from_slice(x),
                                2 => {
                                    let (pairs, last) = x.as_chunks::<2>();
                                    to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0]);
                                    to[pairs.len()..].iter_mut().zip(last).for_each(|(to, &x)| *to = x);
                                }
                                _ => to.iter_mut().zip(x.iter().step_by(right)).for_each(|(to, &x)| *to = x),
                            }
                        }
                    }
                }
            },
        );
    }

    /// Packs windows `from.start..from.end`, at most [`MOST_COLUMNS`], of images of `count` windows each: a row for each of the
    /// places, in which they lie from column `to` on. Behind the last one, a row may get other numbers.
    pub(super) fn pack<R: Real>(
        &self,
        images: &[R],
        places: &[usize],
        count: [usize; 2],
        from: Range<usize>,
        rows: &mut [R],
        (width, to): (usize, usize),
    ) {
        let arch = arch();
        let lanes = panel_width::<R>(arch).0;
        let (mut runs, mut len) = ([Run::default(); MOST_COLUMNS], 0);
        // Without columns between rows, windows are neighbours across rows.
        let line = if self.phase[1] == count[1] { count[0] * count[1] } else { count[1] };
        let each = count[0] * count[1];
        let mut at = from.start;
        while at < from.end {
            let (image, window) = (at / each, at % each);
            let (row, column) = (window / line, window % line);
            let n = (line - column).min(from.end - at).min(MOST_REGISTERS * lanes);
            let begin = image * self.len() + row * self.phase[1] + column;
            runs[len] = Run { from: begin, to: to + at - from.start, registers: n.div_ceil(lanes) };
            (len, at) = (len + 1, at + n);
        }
        arch.dispatch(PackRuns { images, places, runs: &runs[..len], width, rows });
    }

    /// Copies one element of each window of each channel, from that of the first window on, with zeros between the rows of windows.
    pub(super) fn copy_used<R: Real>(&self, image: &[R], used: &mut [R]) {
        let ([rows, columns], step) = (self.count, self.phase[1]);
        used.fill(R::ZERO);
        for (channel, used) in used.chunks_exact_mut((rows - 1) * step + columns).enumerate() {
            let image = image[channel * self.channel()..].chunks(step);
            for (used, image) in used.chunks_mut(step).zip(image) {
                used[..columns].copy_from_slice(&image[..columns]);
            }
        }
    }
}

/// Windows of a panel that are neighbours in memory.
#[derive(Clone, Copy, Default)]
struct Run {
    /// From the first window of the first image.
    from: usize,
    /// The column of a row.
    to: usize,
    registers: usize,
}

/// Packs the windows of a panel: a row for each place, which has the numbers of all runs. Copies are of whole registers; what one
/// writes behind its run, the next one overwrites.
struct PackRuns<'a, R> {
    images: &'a [R],
    places: &'a [usize],
    runs: &'a [Run],
    width: usize,
    rows: &'a mut [R],
}

impl<R: Real> WithSimd for PackRuns<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        match self.runs {
            [run] if run.registers == 4 => self.one::<S, 4>(run),
            [run] if run.registers == 2 => self.one::<S, 2>(run),
            [run] if run.registers == 1 => self.one::<S, 1>(run),
            runs if runs.iter().all(|run| run.registers == 1) => self.short::<S>(),
            _ => self.several::<S>(),
        }
    }
}

/// Copies `N` registers. Not by a loop over a number that is not known, which would become a call.
#[inline(always)]
fn copy<S: Simd, R: Real, const N: usize>(from: &[R], to: &mut [R]) {
    let lanes = R::lanes::<S>();
    let (from, to) = (&from[..N * lanes], &mut to[..N * lanes]);
    let (from, to) = (R::as_vectors::<S>(from).0, R::as_vectors_mut::<S>(to).0);
    to[..N].copy_from_slice(&from[..N]);
}

impl<R: Real> PackRuns<'_, R> {
    #[inline(always)]
    fn one<S: Simd, const N: usize>(self, run: &Run) {
        for (row, &place) in self.rows.chunks_mut(self.width).zip(self.places) {
            copy::<S, R, N>(&self.images[place + run.from..], &mut row[run.to..]);
        }
    }

    /// All runs have one register.
    #[inline(always)]
    fn short<S: Simd>(self) {
        for (row, &place) in self.places.iter().enumerate() {
            let (images, to) = (&self.images[place..], &mut self.rows[row * self.width..]);
            for run in self.runs {
                copy::<S, R, 1>(&images[run.from..], &mut to[run.to..]);
            }
        }
    }

    #[inline(always)]
    fn several<S: Simd>(self) {
        for (row, &place) in self.places.iter().enumerate() {
            for run in self.runs {
                let (from, to) =
                    (&self.images[place + run.from..], &mut self.rows[row * self.width + run.to..]);
                match run.registers {
                    1 => copy::<S, R, 1>(from, to),
                    2 => copy::<S, R, 2>(from, to),
                    3 => copy::<S, R, 3>(from, to),
                    _ => copy::<S, R, 4>(from, to),
                }
            }
        }
    }
}
