//! A few numbers, one a dimension, that a kernel works with while it runs.

use std::ops::{Deref, DerefMut};

use crate::device::cpu::scratch::Scratch;

/// How many numbers need no working memory.
const INLINE: usize = 6;

/// A list of numbers that never asks the system for memory once a thread has worked for a while, however many
/// dimensions a tensor has: what a kernel needs for each launch of a replay.
pub(crate) struct Numbers {
    inline: [usize; INLINE],
    more: Option<Scratch<usize>>,
    len: usize,
}

impl Numbers {
    /// No numbers yet, and room for `room`.
    pub(crate) fn with_room(room: usize) -> Numbers {
        Numbers { inline: [0; INLINE], more: (room > INLINE).then(|| Scratch::new(room)), len: 0 }
    }

    /// What `numbers` gives, `room` at most.
    pub(crate) fn collect(room: usize, numbers: impl IntoIterator<Item = usize>) -> Numbers {
        let mut list = Numbers::with_room(room);
        numbers.into_iter().for_each(|n| list.push(n));
        list
    }

    pub(crate) fn zeros(len: usize) -> Numbers {
        Numbers::collect(len, std::iter::repeat_n(0, len))
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
