//! What stands around a tensor that is padded, and where that comes from.

use std::ops::Range;

/// What [`Tensor::pad`](crate::Tensor::pad) puts around a tensor; below, for 1 2 3 4 with two elements on each side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// One value: v v 1 2 3 4 v v. A number becomes this by `into()`.
    Constant(f64),
    /// The tensor, reversed: 3 2 1 2 3 4 3 2. The elements at its ends are not repeated.
    Reflect,
    /// The elements at its ends: 1 1 1 2 3 4 4 4.
    Replicate,
    /// The tensor again: 3 4 1 2 3 4 1 2.
    Circular,
}

impl PadMode {
    /// Whether the padding consists of elements of the tensor.
    pub(super) fn repeats(self) -> bool {
        !matches!(self, PadMode::Constant(_))
    }
}

impl From<f64> for PadMode {
    fn from(value: f64) -> PadMode {
        PadMode::Constant(value)
    }
}

/// An axis of an operand and its padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    /// The size of the operand.
    pub(super) size: usize,
    pub(super) before: usize,
    pub(super) after: usize,
}

impl Axis {
    pub(super) fn padded(&self) -> usize {
        self.before + self.size + self.after
    }

    /// Whether nothing is added to it.
    pub(super) fn is_unpadded(&self) -> bool {
        self.before == 0 && self.after == 0
    }

    /// Where place `at` of the padded axis comes from in the operand, if it is not that of a value.
    pub(super) fn source(&self, mode: PadMode, at: usize) -> Option<usize> {
        let &Axis { size, before, .. } = self;
        match mode {
            PadMode::Constant(_) => at.checked_sub(before).filter(|&at| at < size),
            PadMode::Replicate => Some(at.saturating_sub(before).min(size - 1)),
            PadMode::Circular => Some((at + size - before) % size),
            PadMode::Reflect => {
                let far = at.abs_diff(before);
                Some(if far < size { far } else { 2 * (size - 1) - far })
            }
        }
    }

    /// The padding of each side from which places come to element `i` of the operand besides its own, in order.
    fn margins(&self, mode: PadMode, i: usize) -> [Range<usize>; 2] {
        let &Axis { size, before, after } = self;
        let end = before + size;
        let one = |there: bool, at: usize| if there { at..at + 1 } else { 0..0 };
        match mode {
            PadMode::Constant(_) => [0..0, 0..0],
            PadMode::Replicate => {
                [if i == 0 { 0..before } else { 0..0 }, if i == size - 1 { end..end + after } else { 0..0 }]
            }
            PadMode::Circular => {
                [one(i + before >= size, (i + before).saturating_sub(size)), one(i < after, end + i)]
            }
            PadMode::Reflect => [
                one((1..=before).contains(&i), before.saturating_sub(i)),
                one(i + 1 < size && i + 1 + after >= size, (end + size).saturating_sub(2 + i)),
            ],
        }
    }

    /// The places of the padded axis that come from element `i` of the operand, in order.
    pub(super) fn places(&self, mode: PadMode, i: usize) -> impl Iterator<Item = usize> {
        let [left, right] = self.margins(mode, i);
        left.chain([self.before + i]).chain(right)
    }
}
