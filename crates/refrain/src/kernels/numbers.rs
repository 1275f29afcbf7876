//! Short lists of numbers, one per dimension, that a kernel uses while it runs.

use std::ops::{Deref, DerefMut};

use crate::device::cpu::scratch::Scratch;

/// How many numbers fit without scratch memory.
const INLINE: usize = 6;

/// A list of numbers that allocates nothing after a thread has worked for a while, whatever the number of dimensions.
/// Kernels need such lists in each launch of a replay.
pub(crate) struct Numbers {
    inline: [usize; INLINE],
    more: Option<Scratch<usize>>,
    len: usize,
}

impl Numbers {
    /// An empty list with space for `room` numbers.
    pub(crate) fn with_room(room: usize) -> Numbers {
        Numbers { inline: [0; INLINE], more: (room > INLINE).then(|| Scratch::new(room)), len: 0 }
    }

    /// The items of `numbers`, at most `room`.
    pub(crate) fn collect(room: usize, numbers: impl IntoIterator<Item = usize>) -> Numbers {
        let mut list = Numbers::with_room(room);
        numbers.into_iter().for_each(|n| list.push(n));
        list
    }

    pub(crate) fn zeros(len: usize) -> Numbers {
        Numbers { inline: [0; INLINE], more: (len > INLINE).then(|| Scratch::filled(len, 0)), len }
    }

    fn room(&mut self) -> &mut [usize] {
        match &mut self.more {
            Some(more) => more,
            None => &mut self.inline,
        }
    }

    pub(crate) fn push(&mut self, number: usize) {
        let at = self.len;
        self.room()[at] = number;
        self.len += 1;
    }
}

impl Deref for Numbers {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        match &self.more {
            Some(more) => &more[..self.len],
            None => &self.inline[..self.len],
        }
    }
}

impl DerefMut for Numbers {
    fn deref_mut(&mut self) -> &mut [usize] {
        let len = self.len;
        &mut self.room()[..len]
    }
}
