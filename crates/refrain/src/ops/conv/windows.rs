//! The windows of an image as a matrix on the CPU.
//!
//! Windows whose elements are neighbours along the width overlap in memory: the rows of an image that a row of windows touches
//! lie side by side, with the channels last (`[width, height of a window, channels]`). There a window is one run of memory,
//! and the next one begins `stride` columns later; so what is written is only as many times larger than the image as a window
//! is high. Windows with a dilation along the width, or with much padding, are written down one by one.

use crate::device::cpu::numeric::Stored;
use crate::device::cpu::parallel;
use crate::kernels::elementwise::{Lines, LinesMut, transpose};
use crate::kernels::products::host::Matrix;
use crate::kernels::window::Window;

/// How the windows of an image `[channels, height, width]` lie in memory.
#[derive(Clone, Copy)]
pub(super) struct Windows {
    pub(super) window: Window,
    pub(super) channels: usize,
    pub(super) size: [usize; 2],
    /// How many windows there are.
    pub(super) count: [usize; 2],
    /// How many begin in a row of windows; those behind the last one are of no use.
    pub(super) begin: usize,
    /// Columns of a row of windows, if they overlap in memory.
    width: Option<usize>,
}

impl Windows {
    pub(super) fn new(window: Window, channels: usize, size: [usize; 2], count: [usize; 2]) -> Windows {
        let (kernel, stride, columns) = (window.kernel[1], window.stride[1], count[1]);
        let used = columns.saturating_sub(1) * stride + kernel;
        let begin = used.div_ceil(stride);
        // With a stride above the window, what lies between windows is written, too.
        let suits = window.dilation[1] == 1 && begin <= 2 * columns && begin * stride <= 2 * columns * kernel;
        let width = suits.then_some(begin * stride);
        Windows { window, channels, size, count, begin: if suits { begin } else { columns }, width }
    }

    /// The numbers of a window.
    pub(super) fn depth(&self) -> usize {
        self.channels * self.window.kernel[0] * self.window.kernel[1]
    }

    /// The numbers of a column of the rows side by side.
    fn column(&self) -> usize {
        self.window.kernel[0] * self.channels
    }

    /// The numbers that are written for an image.
    pub(super) fn len(&self) -> usize {
        match self.width {
            Some(width) => (self.count[0] * width + self.window.kernel[1] - 1) * self.column(),
            None => self.count[0] * self.begin * self.depth(),
        }
    }

    /// The place in a window of element `[i, j]` of a channel.
    pub(super) fn place(&self, channel: usize, i: usize, j: usize) -> usize {
        let [height, width] = self.window.kernel;
        match self.width {
            Some(_) => (j * height + i) * self.channels + channel,
            None => (channel * height + i) * width + j,
        }
    }

    /// The matrix of a row for each window that begins, from the numbers written for an image.
    pub(super) fn matrix<'a, E>(&self, data: &'a [E]) -> Matrix<'a, E> {
        let step = match self.width {
            Some(_) => self.window.stride[1] * self.column(),
            None => self.depth(),
        };
        Matrix { data, rows: self.count[0] * self.begin, cols: self.depth(), row_stride: step, col_stride: 1 }
    }

    /// Copies the matrix of the numbers written for an image to `to`, with zeros for windows that are of no use.
    pub(super) fn copy_used<E: Stored>(&self, data: &[E], zero: E, to: &mut [E]) {
        let matrix = self.matrix(data);
        for (row, to) in to.chunks_exact_mut(matrix.cols).enumerate() {
            match row % self.begin < self.count[1] {
                true => to.copy_from_slice(&data[row * matrix.row_stride..][..matrix.cols]),
                false => to.fill(zero),
            }
        }
    }

    /// Writes the windows of an image.
    pub(super) fn write<E: Stored>(&self, x: &[E], zero: E, to: &mut [E]) {
        match self.width {
            Some(width) => self.write_rows(x, zero, to, width),
            None => self.write_each(x, zero, to),
        }
    }

    fn write_rows<E: Stored>(&self, x: &[E], zero: E, to: &mut [E], width: usize) {
        let Windows { window, channels, size: [height, columns], .. } = *self;
        let (kernel, left) = (window.kernel[0], window.padding[1]);
        // Columns behind the last window stay zeros, because nothing may come of them.
        let used = (self.count[1] - 1) * window.stride[1] + window.kernel[1];
        let there = columns.min(used.saturating_sub(left));
        parallel::pieces(to, width * self.column(), |row, to| {
            to.fill(zero);
            if row == self.count[0] || there == 0 {
                return;
            }
            for k in 0..kernel {
                let Some(i) = window.place(0, row, k, height) else { continue };
                let from = Lines { data: &x[i * columns..], step: height * columns };
                let data = &mut to[(left * kernel + k) * channels..];
                transpose(from, LinesMut { data, step: self.column() }, there, channels);
            }
        });
    }

    fn write_each<E: Stored>(&self, x: &[E], zero: E, to: &mut [E]) {
        let Windows { window, size: [height, width], count: [_, columns], .. } = *self;
        let [kernel_h, kernel_w] = window.kernel;
        parallel::pieces(to, self.depth(), |at, to| {
            let (row, column) = (at / columns, at % columns);
            for (line, to) in to.chunks_exact_mut(kernel_w).enumerate() {
                let (channel, k) = (line / kernel_h, line % kernel_h);
                let from =
                    window.place(0, row, k, height).map(|i| &x[(channel * height + i) * width..][..width]);
                for (k, to) in to.iter_mut().enumerate() {
                    let value = from.and_then(|from| window.place(1, column, k, width).map(|j| from[j]));
                    *to = value.unwrap_or(zero);
                }
            }
        });
    }
}
