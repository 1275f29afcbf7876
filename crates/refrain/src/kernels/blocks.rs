//! Rows in the arithmetic type on the CPU, whatever type they are stored in.

use super::elementwise::Runs;
use crate::device::cpu::numeric::{Real, Stored, convert, store};
use crate::device::cpu::scratch::with_scratch;

/// Elements that are converted at a time. They stay in the L1 cache.
const BLOCK: usize = 512;

/// What computes rows: it takes the number of the first one, the operands, the result, and whether to add to it.
pub(crate) type RowKernel<'a, R, const K: usize> = &'a mut dyn FnMut(usize, [Runs<'_, R>; K], &mut [R], bool);

/// Calls `kernel` with the rows of a result, which lie one after the other, and of its operands. All rows have `width` elements.
///
/// What is stored in the arithmetic type is passed as it is, all rows at once. Otherwise the kernel gets copies of some rows at a
/// time, and its result is rounded once. So kernels are compiled for f32 and f64, and not for each dtype that is computed in them.
pub(crate) fn in_blocks<T: Stored, R: Real, const K: usize>(
    x: [Runs<'_, T>; K],
    y: &mut [T],
    width: usize,
    accumulate: bool,
    kernel: RowKernel<'_, R, K>,
) {
    if y.is_empty() {
        return;
    }
    if let Some(y) = R::same_mut(y) {
        let x = x.map(|x| Runs { data: R::same(x.data).unwrap_or_default(), step: x.step });
        return kernel(0, x, y, accumulate);
    }
    let rows = (BLOCK / width).max(1);
    let most = (rows * width).min(y.len());
    with_scratch((K + 1) * most, |buf: &mut [R]| {
        let (result, copies) = buf.split_at_mut(most);
        for (block, y) in y.chunks_mut(most).enumerate() {
            let (first, result) = (block * rows, &mut result[..y.len()]);
            for (x, copy) in x.iter().zip(copies.chunks_exact_mut(most)) {
                let copy = &mut copy[..y.len()];
                if x.step == width {
                    convert(&x.data[first * width..][..y.len()], copy);
                } else {
                    let rows = copy.chunks_exact_mut(width).enumerate();
                    rows.for_each(|(r, copy)| convert(x.row(first + r, width), copy));
                }
            }
            let copies = std::array::from_fn(|k| Runs { data: &copies[k * most..][..y.len()], step: width });
            kernel(first, copies, result, false);
            store(result, y, accumulate);
        }
    });
}
