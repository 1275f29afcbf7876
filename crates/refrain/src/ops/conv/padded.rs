//! Products with the windows of an image on the CPU, packed from the image itself.
//!
//! An image is copied with its padding. A stride `s` cuts each axis into `s` phases: rows (or columns) `s` apart are neighbours. So
//! one element of neighbouring windows is a run of memory, and a panel of windows is packed by copies of such runs, without a matrix
//! of all windows. For a weight's gradient, such a run is a row of a factor and is read where it lies.

use pulp::{Simd, WithSimd};

use super::windows::Windows;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::{arch, simd};
use crate::kernels::elementwise::{Lines, LinesMut, transpose};
use crate::kernels::products::host::block::{Block, block_scratch_len};
use crate::kernels::products::host::pack::panel_width;
use crate::kernels::products::host::{BLOCK_K, Matrix, Single};
use crate::kernels::window::Window;

/// Columns of a panel, and so runs in a panel, at most.
const MOST_COLUMNS: usize = 64;
/// A weight of at most as many numbers stays in the L2 cache while the panels pass.
const SMALL_WEIGHT: usize = 1 << 16;

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
    fn len(&self) -> usize {
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

    /// Columns of a phase, which is how far the windows of a row lie from those of the row before.
    pub(super) fn step(&self) -> usize {
        self.phase[1]
    }

    /// Memory for an image, all zeros.
    pub(super) fn zeros<R: Real>(&self) -> Scratch<R> {
        Scratch::filled(self.len(), R::ZERO)
    }

    /// The image with its padding.
    pub(super) fn image<R: Real>(&self, x: &[R]) -> Scratch<R> {
        let mut image = self.zeros();
        self.write(x, &mut image);
        image
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
        for (channel, x) in image.chunks_exact_mut(self.channel()).zip(x.chunks_exact(height * width)) {
            for (at, phase) in channel.chunks_exact_mut(rows * columns).enumerate() {
                let (first_row, row) = begin(0, at / phases[1]);
                let (first_column, column) = begin(1, at % phases[1]);
                let lines = phase.chunks_exact_mut(columns).skip(row);
                for (to, x) in lines.zip(x.chunks_exact(width).skip(first_row).step_by(down)) {
                    let (to, x) = (&mut to[column..], &x[first_column.min(there)..there]);
                    match right {
                        1 => to[..x.len()].copy_from_slice(x),
                        _ => to.iter_mut().zip(x.iter().step_by(right)).for_each(|(to, &x)| *to = x),
                    }
                }
            }
        }
    }

    /// The places of the elements of the first window, in the order of [`Windows`].
    pub(super) fn places(&self, windows: &Windows) -> Scratch<usize> {
        let [height, width] = self.window.kernel;
        let mut places = Scratch::new(windows.depth());
        for channel in 0..self.channels {
            for (i, j) in (0..height).flat_map(|i| (0..width).map(move |j| (i, j))) {
                places[windows.place(channel, i, j)] = self.place(channel, i, j);
            }
        }
        places
    }

    /// The runs of `n` windows from window `first` on, and their number.
    fn runs(&self, first: usize, n: usize, lanes: usize) -> ([Run; MOST_COLUMNS], usize) {
        let (mut runs, mut count, mut at) = ([Run::default(); MOST_COLUMNS], 0, first);
        while at < first + n {
            let (row, column) = (at / self.count[1], at % self.count[1]);
            let len = (self.count[1] - column).min(first + n - at);
            let from = row * self.phase[1] + column;
            runs[count] = Run { from, to: at - first, registers: len.div_ceil(lanes) };
            (count, at) = (count + 1, at + len);
        }
        (runs, count)
    }

    /// Writes some rows of `y`, or adds them: the weight of each row times the windows of the image, plus the bias of the row.
    pub(super) fn multiply<R: Real>(
        &self,
        image: &[R],
        places: &[usize],
        weight: Matrix<'_, R>,
        bias: Option<&[R]>,
        keep: bool,
        y: &mut [R],
    ) {
        let arch = arch();
        let (n, depth) = (self.count[0] * self.count[1], places.len());
        let (lanes, panel) = panel_width::<R>(arch);
        // A group of panels has all its terms before the next one begins.
        let group = if weight.rows * depth <= SMALL_WEIGHT { panel } else { n };
        // The rows of `y` may be a power of two apart: then their lines would displace each other in the cache.
        let step = group.next_multiple_of(panel) + if group > panel { panel } else { 0 };
        let mut packed = Scratch::<R>::new((BLOCK_K + 1) * panel + lanes);
        let mut scratch = Scratch::<R>::new(block_scratch_len::<R>(BLOCK_K));
        let mut sums = Scratch::<R>::new(weight.rows * step);
        for first in (0..n).step_by(group) {
            let columns = group.min(n - first);
            for p0 in (0..depth).step_by(BLOCK_K) {
                let k = BLOCK_K.min(depth - p0);
                for j in (0..columns).step_by(panel) {
                    let n_panel = panel.min(columns - j);
                    let width = n_panel.next_multiple_of(lanes);
                    let (start, rows) = packed.split_at_mut(width);
                    start.fill(R::ZERO);
                    let (runs, count) = self.runs(first + j, n_panel, lanes);
                    let places = &places[p0..][..k];
                    arch.dispatch(PackRuns { image, places, runs: &runs[..count], width, rows });
                    arch.dispatch(Block {
                        terms: Single,
                        a: weight,
                        i0: 0,
                        p0,
                        m: weight.rows,
                        n: n_panel,
                        k,
                        panels: &packed[..(k + 1) * width],
                        c: &mut sums[j..],
                        c_row_stride: step,
                        add: p0 > 0,
                        scratch: &mut scratch,
                    });
                }
            }
            simd(
                #[inline(always)]
                || {
                    for (row, y) in y.chunks_exact_mut(n).enumerate() {
                        let (y, sums) = (&mut y[first..][..columns], &sums[row * step..][..columns]);
                        let of_y = |y: R| if keep { y } else { R::ZERO };
                        match bias.map(|bias| bias[row]) {
                            Some(bias) => {
                                y.iter_mut().zip(sums).for_each(|(y, &sum)| *y = of_y(*y) + sum + bias)
                            }
                            None => y.iter_mut().zip(sums).for_each(|(y, &sum)| *y = of_y(*y) + sum),
                        }
                    }
                },
            );
        }
    }

    /// Adds the sums over the windows of an image: `sums[[j, i, channel]][m]`, of the element `[i, j]` of each window times `dy[m]`
    /// of the window. `finite` says that no number of the image is an infinity or NaN.
    pub(super) fn add_gradient<R: Real>(
        &self,
        image: &[R],
        finite: bool,
        dy: &[R],
        m: usize,
        sums: &mut [R],
    ) {
        let arch = arch();
        let ([height, width], [rows, columns], step) = (self.window.kernel, self.count, self.phase[1]);
        // Between the rows, a few windows are of no use: their `dy` is zero. Numbers that they read are replaced by zeros if zero
        // times them may be NaN.
        let all = (rows - 1) * step + columns;
        let mut used = Scratch::<R>::new(if finite { 0 } else { self.channels * all });
        let (lanes, panel) = panel_width::<R>(arch);
        let mut packed = Scratch::<R>::new((BLOCK_K + 1) * panel);
        let mut scratch = Scratch::<R>::new(block_scratch_len::<R>(BLOCK_K));
        for p0 in (0..all).step_by(BLOCK_K) {
            let k = BLOCK_K.min(all - p0);
            for j0 in (0..m).step_by(panel) {
                let n = panel.min(m - j0);
                let width_of_panel = n.next_multiple_of(lanes);
                let packed = &mut packed[..(k + 1) * width_of_panel];
                if n < width_of_panel {
                    packed.fill(R::ZERO);
                }
                packed[..width_of_panel].fill(R::ZERO);
                for row in p0 / step..=(p0 + k - 1) / step {
                    // The part of the row that lies in the block.
                    let (from, to) = (p0.max(row * step), (p0 + k).min(row * step + columns));
                    if from < to {
                        let dy = &dy[j0 * rows * columns + row * columns + (from - row * step)..];
                        let from_lines = Lines { data: dy, step: rows * columns };
                        let data = &mut packed[(1 + from - p0) * width_of_panel..];
                        transpose(from_lines, LinesMut { data, step: width_of_panel }, to - from, n);
                    }
                    let unused = to.max(p0)..(p0 + k).min((row + 1) * step);
                    packed[(1 + unused.start - p0) * width_of_panel..(1 + unused.end - p0) * width_of_panel]
                        .fill(R::ZERO);
                }
                for (i, j) in (0..height).flat_map(|i| (0..width).map(move |j| (i, j))) {
                    let image = &image[self.place(0, i, j)..];
                    let a = if finite {
                        let row_stride = self.channel();
                        Matrix { data: image, rows: self.channels, cols: all, row_stride, col_stride: 1 }
                    } else {
                        self.copy_used(image, &mut used);
                        Matrix::row_major(&used, self.channels, all)
                    };
                    let block = Block {
                        terms: Single,
                        a,
                        i0: 0,
                        p0,
                        m: self.channels,
                        n,
                        k,
                        panels: &*packed,
                        c: &mut sums[(j * height + i) * self.channels * m + j0..],
                        c_row_stride: m,
                        add: true,
                        scratch: &mut scratch,
                    };
                    arch.dispatch(block);
                }
            }
        }
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
    /// From the first window of the image.
    from: usize,
    /// From the first window of the panel.
    to: usize,
    registers: usize,
}

/// Packs the windows of a panel: a row for each place, which has the numbers of all runs. Copies are of whole registers; what one
/// writes behind its run, the next one overwrites.
struct PackRuns<'a, R> {
    image: &'a [R],
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
            [run] if run.registers == 4 => self.one::<S, 4>(run.from),
            [run] if run.registers == 2 => self.one::<S, 2>(run.from),
            [run] if run.registers == 1 => self.one::<S, 1>(run.from),
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
    fn one<S: Simd, const N: usize>(self, from: usize) {
        for (row, &place) in self.rows.chunks_exact_mut(N * R::lanes::<S>()).zip(self.places) {
            copy::<S, R, N>(&self.image[place + from..], row);
        }
    }

    #[inline(always)]
    fn several<S: Simd>(self) {
        for (row, &place) in self.places.iter().enumerate() {
            for run in self.runs {
                let (from, to) =
                    (&self.image[place + run.from..], &mut self.rows[row * self.width + run.to..]);
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
