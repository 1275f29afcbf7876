//! The gradient of a convolution's weight on the CPU: products of `dy` with windows that are packed from images with their padding.
//!
//! The windows of some images are packed side by side, a row for each element of a window, and `dy` as panels. The sums of a task
//! stay in the cache, because it has some of the images or some of their channels.

use std::ops::Range;

use rayon::prelude::*;

use super::host::add_parts;
use super::padded::{MOST_COLUMNS, Padded};
use super::places::Places;
use super::windows::Windows;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::parallel;
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::arch;
use crate::kernels::elementwise::{Lines, LinesMut, transpose};
use crate::kernels::products::host::block::{Block, block_scratch_len};
use crate::kernels::products::host::pack::{Panels, packed_len, panel_width};
use crate::kernels::products::host::{BLOCK_K, BLOCK_M, Matrix, Terms};

/// Tasks of a group, about.
const TASKS: usize = 16;
/// Numbers of the gradient that a task sums, about.
const SUMS: usize = 1 << 17;
/// Rows of the gradient that a thread writes at a time.
const ROWS: usize = 16;

/// How the sums are shared among tasks, which depends on the shape alone.
pub(super) struct PaddedGradient<'a, M> {
    terms: M,
    places: &'a Places,
    /// The channels of a task.
    padded: Padded,
    channels: usize,
    /// Tasks for all channels of a group.
    shares: usize,
    /// Parts of the images, whose sums are added. Each part sums its images in their order.
    parts: usize,
    /// Results of a group.
    m: usize,
    /// Where the elements of the first window of these channels lie.
    of_windows: Scratch<usize>,
}

impl<'a, M: Copy + Send + Sync> PaddedGradient<'a, M> {
    /// `None` if the image with its padding would be larger than its windows written down.
    pub(super) fn of(terms: M, places: &'a Places) -> Option<PaddedGradient<'a, M>> {
        let Places { images: [n, all, height, width], window, count, out, groups, .. } = *places;
        let ([kernel_h, kernel_w], m, of_group) = (window.kernel, out / groups, all / groups);
        let shares = (of_group * kernel_h * kernel_w * m).div_ceil(SUMS).clamp(1, TASKS);
        let channels = of_group.div_ceil(shares);
        let padded = Padded::new(&Windows::new(window, channels, [height, width], count))?;
        let of_windows = padded.places();
        let shares = of_group.div_ceil(channels);
        let parts = TASKS.div_ceil(shares).min(n).max(1);
        Some(PaddedGradient { terms, places, padded, channels, shares, parts, m, of_windows })
    }

    /// Writes the gradient, or adds it.
    pub(super) fn write<R: Real>(&self, dy: &[R], x: &[R], keep: bool, dw: &mut [R])
    where
        M: Terms<R>,
    {
        let Places { images: [n, all, ..], groups, .. } = *self.places;
        let (m, channels, of_group) = (self.m, self.channels, all / groups);
        let task = self.of_windows.len() * m;
        let mut sums = Scratch::<R>::new(self.parts * groups * self.shares * task);
        parallel::for_each(true, sums.par_chunks_mut(task).enumerate(), |(at, sums)| {
            let (at, first) = (at / self.shares, at % self.shares * channels);
            let (part, group) = (at / groups, at % groups);
            let images = part * n / self.parts..(part + 1) * n / self.parts;
            let channels = channels.min(of_group - first);
            self.add(images, group, group * of_group + first, channels, (dy, x), sums);
        });
        let of_groups = groups * self.shares * task;
        add_parts(&mut sums, of_groups);
        let sums = &sums[..of_groups];
        let depth = dw.len() / (groups * m);
        let rows = if groups == 1 { ROWS.min(m) } else { m };
        parallel::for_each(true, dw.par_chunks_mut(rows * depth).enumerate(), |(at, dw)| {
            let (group, row) = (at * rows / m, at * rows % m);
            let from = Lines { data: &sums[group * self.shares * task + row..], step: m };
            let rows = dw.len() / depth;
            if !keep {
                return transpose(from, LinesMut { data: dw, step: depth }, rows, depth);
            }
            let mut more = Scratch::<R>::new(dw.len());
            transpose(from, LinesMut { data: &mut more, step: depth }, rows, depth);
            dw.iter_mut().zip(&*more).for_each(|(dw, &more)| *dw += more);
        });
    }

    /// Writes the sums over images of a group: `sums[[channel, i, j]][m]`, of the element `[i, j]` of each window of some channels
    /// times `dy[m]` of the window.
    fn add<R: Real>(
        &self,
        images: Range<usize>,
        group: usize,
        first_channel: usize,
        channels: usize,
        (dy, x): (&[R], &[R]),
        sums: &mut [R],
    ) where
        M: Terms<R>,
    {
        let terms = self.terms;
        let Places { images: [_, all, height, width], count, groups, .. } = *self.places;
        let (arch, m, each) = (arch(), self.m, count[0] * count[1]);
        let lanes = panel_width::<R>(arch).0;
        let rows = self.of_windows.len() / self.channels * channels;
        // Behind a row there is room for what copies of whole registers write.
        let room = BLOCK_K + lanes;
        let mut panels = Scratch::<R>::new(packed_len::<R>(BLOCK_K, m));
        let mut windows = Scratch::<R>::new(BLOCK_M * room + MOST_COLUMNS);
        let mut elements = Scratch::<R>::new(if M::COUNT == 1 { 0 } else { BLOCK_M * BLOCK_K / M::COUNT });
        let mut scratch = Scratch::<R>::new(block_scratch_len::<R>(BLOCK_K));
        let at_once = (BLOCK_K / each).max(1);
        sums.fill(R::ZERO);
        for first in images.clone().step_by(at_once) {
            let some = first..images.end.min(first + at_once);
            let n = some.len();
            let plane = height * width;
            let of_x = |image| &x[(image * all + first_channel) * plane..][..channels * plane];
            let padded = self.padded.images(some.map(of_x));
            for p0 in (0..n * each).step_by(BLOCK_K) {
                let k = BLOCK_K.min(n * each - p0);
                let of_dy = |image: usize| &dy[((first + image) * groups + group) * m * each..][..m * each];
                let of_panel = pack_results(terms, of_dy, each, p0..p0 + k, m, &mut panels);
                for row in (0..rows).step_by(BLOCK_M) {
                    let height = BLOCK_M.min(rows - row);
                    let places = &self.of_windows[row..][..height];
                    for at in (0..k).step_by(MOST_COLUMNS) {
                        let some = p0 + at..p0 + k.min(at + MOST_COLUMNS);
                        self.padded.pack(&padded, places, count, some, &mut windows, (room, at));
                    }
                    let a = Matrix { data: &windows, rows: height, cols: k, row_stride: room, col_stride: 1 };
                    let a = terms.elements_of_rows(a, &mut elements);
                    terms.compute(Block {
                        a,
                        i0: 0,
                        p0: 0,
                        k: of_panel,
                        panels: Panels::of_one_block(&panels, of_panel),
                        c: RectangleMut::new(&mut sums[row * m..], [height, m], m),
                        add: true,
                        scratch: &mut scratch,
                    });
                }
            }
        }
    }
}

/// Packs `dy` of windows of images as panels of `m` columns, which begin with a row of zeros. An image has `each` windows. Returns the
/// number of rows of elements.
fn pack_results<'a, R: Real, M: Terms<R>>(
    terms: M,
    of_image: impl Fn(usize) -> &'a [R],
    each: usize,
    windows: Range<usize>,
    m: usize,
    panels: &mut [R],
) -> usize {
    let (lanes, widest) = panel_width::<R>(arch());
    let (mut rest, mut count) = (panels, windows.len());
    for j in (0..m).step_by(widest) {
        let n = widest.min(m - j);
        let width = n.next_multiple_of(lanes);
        let (start, panel) = rest.split_at_mut(width);
        start.fill(R::ZERO);
        if n < width {
            panel[..windows.len() * width].fill(R::ZERO);
        }
        let mut at = windows.start;
        while at < windows.end {
            let (image, window) = (at / each, at % each);
            let len = (each - window).min(windows.end - at);
            let from = Lines { data: &of_image(image)[j * each + window..], step: each };
            let data = &mut panel[(at - windows.start) * width..];
            transpose(from, LinesMut { data, step: width }, len, n);
            at += len;
        }
        count = terms.pack_columns(panel, windows.len(), width);
        rest = &mut panel[count * width..];
    }
    count
}
