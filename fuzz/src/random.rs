//! Random choices that follow from a number.

use crate::target::mix;

/// A sequence of random choices.
pub struct Random(u64);

impl Random {
    /// The sequence of a number.
    pub fn new(number: u64) -> Random {
        Random(mix(number))
    }

    /// Any number below `end`, which is above 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 % end as u64) as usize
    }

    /// Whether something comes to pass that does so once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub fn of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}
