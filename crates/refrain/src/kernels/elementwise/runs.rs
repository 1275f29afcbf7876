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
    pub(crate) fn each(self, mut f: impl FnMut(usize, &mut [N])) {
        // In registers, because a row that is written could be the memory of `self`.
        let RunsMut { data, step, rows, len } = self;
        for r in 0..rows {
            f(r, &mut data[r * step..][..len]);
        }
    }

    /// [`each`](Self::each), compiled for the instructions of `loops`.
    #[inline(always)]
    pub(crate) fn each_by(self, loops: impl HalfLoops, f: impl FnMut(usize, &mut [N])) {
        loops.run(
            #[inline(always)]
            move || self.each(f),
        );
    }
}

/// Bytes that are computed at a time.
const BYTES: usize = 64;

/// Elements of one byte. Their loops are [`map_bytes`].
#[inline(always)]
pub(crate) fn are_bytes<N, Y>() -> bool {
    size_of::<N>() == 1 && size_of::<Y>() == 1
}

/// `y[i] = f(x[0][i], ...)` for elements of one byte. All slices have the same length.
///
/// The compiler's own loop takes 256 bytes at a time, and what is left of a row, often more than half, in small steps.
#[inline(always)]
pub(crate) fn map_bytes<N: Copy, Y: Copy, const K: usize>(
    x: [&[N]; K],
    y: &mut [Y],
    f: impl Fn([N; K]) -> Y,
) {
    let (chunks, rest) = y.as_chunks_mut::<BYTES>();
    let (x, x_rest) = each_split(x, chunks.len());
    for i in 0..chunks.len() {
        let mut rows = [x[0][i]; K];
        for k in 1..K {
            rows[k] = x[k][i];
        }
        chunks[i] = bytes_of(rows, chunks[i], &f);
    }
    let Some(&first) = rest.first() else {
        return;
    };
    let mut rows = [[x_rest[0][0]; BYTES]; K];
    for k in 0..K {
        rows[k][..rest.len()].copy_from_slice(&x_rest[k][..rest.len()]);
    }
    rest.copy_from_slice(&bytes_of(rows, [first; BYTES], &f)[..rest.len()]);
}

/// Each slice as `whole` chunks, and the rest.
#[inline(always)]
fn each_split<N, const K: usize>(x: [&[N]; K], whole: usize) -> ([&[[N; BYTES]]; K], [&[N]; K]) {
    // Not by `array::map`, which is a call where it is not inlined.
    let (mut chunks, mut rests) = ([&[][..]; K], [&[][..]; K]);
    for k in 0..K {
        let (all, rest) = x[k].as_chunks::<BYTES>();
        (chunks[k], rests[k]) = (&all[..whole], rest);
    }
    (chunks, rests)
}

#[inline(always)]
fn bytes_of<N: Copy, Y: Copy, const K: usize>(
    rows: [[N; BYTES]; K],
    mut y: [Y; BYTES],
    f: &impl Fn([N; K]) -> Y,
) -> [Y; BYTES] {
    for l in 0..BYTES {
        let mut numbers = [rows[0][l]; K];
        for k in 1..K {
            numbers[k] = rows[k][l];
        }
        y[l] = f(numbers);
    }
    y
}
