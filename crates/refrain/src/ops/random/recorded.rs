//! Generators while this thread records a step: each stays where it is, and what the step draws is counted.

use std::cell::RefCell;

use super::Generator;
use crate::error::Result;
#[cfg(shuttle)]
use crate::sync::keys::*;
use crate::sync::thread_local;

thread_local! {
    /// The generators that the step drew from, with the blocks that it drew.
    static DRAWN: RefCell<Vec<(Generator, u64)>> = const { RefCell::new(Vec::new()) };
}

/// How far the generator's next launch is from where the step begins.
pub(super) fn drawn(generator: &Generator) -> u64 {
    DRAWN.with_borrow(|all| all.iter().find(|(g, _)| g.is_same(generator)).map_or(0, |(_, drawn)| *drawn))
}

/// A launch that uses so many blocks of the generator is noted.
pub(super) fn draw(generator: &Generator, blocks: u64) {
    DRAWN.with_borrow_mut(|all| match all.iter_mut().find(|(g, _)| g.is_same(generator)) {
        Some((_, drawn)) => *drawn = drawn.wrapping_add(blocks),
        None => all.push((generator.clone(), blocks)),
    });
}

/// The draws of a step while it is recorded, until this is dropped.
pub(crate) struct DrawnInStep(());

impl DrawnInStep {
    pub(crate) fn begin() -> DrawnInStep {
        DrawnInStep(())
    }

    /// Records launches that advance each generator by what the step draws. A launch that reads a generator never
    /// advances it, because other launches of the step count from the same base.
    pub(crate) fn advance(&self) -> Result<()> {
        let all = DRAWN.with_borrow(Vec::clone);
        all.iter().try_for_each(|(generator, drawn)| generator.advance(*drawn))
    }

    /// The generators that the step drew from, with the blocks that it drew.
    pub(crate) fn end(self) -> Vec<(Generator, u64)> {
        DRAWN.take()
    }
}

impl Drop for DrawnInStep {
    fn drop(&mut self) {
        drop(DRAWN.take());
    }
}
