//! Rows of one length, whatever lies between them.

use crate::device::cpu::narrow::HalfLoops;

/// Rows to read: row `r` begins at `r * step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs<'a, N> {
    pub(crate) data: &'a [N],
    pub(crate) step: usize,
}

impl<'a, N> Runs<'a, N> {
    /// The same row, again and again.
    pub(crate) fn one(data: &'a [N]) -> Runs<'a, N> {
        Runs { data, step: 0 }
    }

    /// Row `r`, of `len` elements.
    #[inline(always)]
    pub(crate) fn row(&self, r: usize, len: usize) -> &'a [N] {
        &self.data[r * self.step..][..len]
    }
}

/// Rows to write.
#[derive(Debug)]
pub(crate) struct RunsMut<'a, N> {
    pub(crate) data: &'a mut [N],
    pub(crate) step: usize,
    pub(crate) rows: usize,
    pub(crate) len: usize,
}

impl<'a, N> RunsMut<'a, N> {
    pub(crate) fn one(data: &'a mut [N]) -> RunsMut<'a, N> {
        RunsMut { len: data.len(), data, step: 0, rows: 1 }
    }

    /// Calls `f` with each row and its number.
    #[inline(always)]
    pub(crate) fn each(&mut self, mut f: impl FnMut(usize, &mut [N])) {
        for r in 0..self.rows {
            f(r, &mut self.data[r * self.step..][..self.len]);
        }
    }

    /// [`each`](Self::each), compiled for the instructions of `loops`.
    #[inline(always)]
    pub(crate) fn each_by(mut self, loops: impl HalfLoops, f: impl FnMut(usize, &mut [N])) {
        loops.run(
            #[inline(always)]
            move || self.each(f),
        );
    }
}
