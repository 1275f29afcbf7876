//! Temporaries that should have bytes of their own although they are never alive at the same time.
//!
//! A launch that gets the bytes of a temporary waits for all launches that touch it. Where it needs nothing from one of them, this
//! wait is new. A weight gradient that reads a temporary last is such a launch: nothing but the optimiser needs it, and whoever
//! gets those bytes would wait for it.

use super::plan::Life;
use crate::device::program::Order;

/// How many launches earlier than necessary a launch should end that another one waits for because of its bytes. It may begin
/// late, as it is on no longest chain.
pub(super) const APART: usize = 8;

/// For each temporary, those that should not share its bytes.
pub(super) struct Apart {
    /// Each with a number below [`APART`]: how many launches there are between the end of the last launch that touches the earlier
    /// one, if it begins as early as it can, and the first one that touches the later one, if it begins as late as it may.
    near: Vec<Vec<(usize, usize)>>,
}

impl Apart {
    /// None should be apart.
    pub(super) fn none(temporaries: usize) -> Apart {
        Apart { near: vec![Vec::new(); temporaries] }
    }

    /// `waits` are the launches that each launch waits for while every temporary has bytes of its own; `touching` are, for each
    /// temporary, the launches that touch it.
    pub(super) fn new(lives: &[Life], touching: &[Vec<usize>], waits: &[Vec<usize>]) -> Apart {
        let mut order = Order::default();
        waits.iter().for_each(|waits| order.add(&mut waits.clone()));
        let (earliest, latest) = levels(waits);
        // The end of the last launch that touches a temporary.
        let end = |t: usize| touching[t].iter().map(|&at| earliest[at] + 1).max().unwrap_or(0);
        let ends: Vec<usize> = (0..lives.len()).map(end).collect();
        let mut near = vec![Vec::new(); lives.len()];
        for (later, life) in lives.iter().enumerate().filter(|(_, life)| life.bytes > 0) {
            let begin = latest[life.first];
            for earlier in 0..lives.len() {
                let other = &lives[earlier];
                if other.bytes == 0 || other.last >= life.first || ends[earlier] + APART <= begin {
                    continue;
                }
                let new_waits = touching[earlier].iter().filter(|&&at| !order.knows(at, life.first));
                let end = new_waits.map(|&at| earliest[at] + 1).max();
                if let Some(launches) = end.map(|end| begin.saturating_sub(end)).filter(|&n| n < APART) {
                    near[later].push((earlier, launches));
                    near[earlier].push((later, launches));
                }
            }
        }
        Apart { near }
    }

    /// The temporaries that should not share bytes with `t`.
    pub(super) fn near(&self, t: usize) -> &[(usize, usize)] {
        &self.near[t]
    }
}

/// The length of the longest chain before each launch, and how long it may be without making the longest of all longer.
fn levels(waits: &[Vec<usize>]) -> (Vec<usize>, Vec<usize>) {
    let mut earliest: Vec<usize> = Vec::with_capacity(waits.len());
    for waits in waits {
        earliest.push(waits.iter().map(|&w| earliest[w] + 1).max().unwrap_or(0));
    }
    let longest = earliest.iter().copied().max().unwrap_or(0);
    let mut latest = vec![longest; waits.len()];
    for (at, waits) in waits.iter().enumerate().rev() {
        for &w in waits {
            latest[w] = latest[w].min(latest[at].saturating_sub(1));
        }
    }
    (earliest, latest)
}
