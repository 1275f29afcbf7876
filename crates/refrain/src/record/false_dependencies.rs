//! Waits that the memory plan could add.
//!
//! A launch that gets the bytes of a temporary waits for all launches that touch it. Where it needs nothing from one of them, this
//! wait is a false dependency. A weight gradient that reads a temporary last is such a launch: nothing but the optimiser needs it,
//! and whoever gets those bytes would wait for it.

use super::plan::Life;
use crate::device::program::Order;

/// False dependencies with at least so much slack do no harm. More than 0, because a launch beside the longest chain often begins
/// late: those on the chain go first.
pub(super) const ENOUGH: usize = 8;

/// The pairs of temporaries that should not share bytes, each with its slack, which is below [`ENOUGH`].
///
/// The slack is the number of steps of the longest chain between the end of the launch that would be waited for, if it begins as
/// early as it can, and the launch that would wait, if it begins as late as it may without making the step longer.
pub(super) struct FalseDependencies {
    /// For each temporary, the others.
    pairs: Vec<Vec<(u32, u8)>>,
}

impl FalseDependencies {
    pub(super) fn none(temporaries: usize) -> FalseDependencies {
        FalseDependencies { pairs: vec![Vec::new(); temporaries] }
    }

    /// `waits` are the launches that each launch waits for while every temporary has bytes of its own; `touching` are, for each
    /// temporary, the launches that touch it.
    pub(super) fn new(lives: &[Life], touching: &[Vec<usize>], waits: &[Vec<usize>]) -> FalseDependencies {
        FalseDependencies::with_earliest(lives, touching, waits, &levels(waits).0)
    }

    /// The same, if each launch begins only after a chain of so many others. False dependencies of a plan can make such chains, although
    /// each of them alone has enough slack.
    pub(super) fn with_earliest(
        lives: &[Life],
        touching: &[Vec<usize>],
        waits: &[Vec<usize>],
        earliest: &[usize],
    ) -> FalseDependencies {
        let mut order = Order::default();
        waits.iter().for_each(|waits| order.add(&mut waits.clone()));
        let (_, latest) = levels(waits);
        let end = |t: usize| touching[t].iter().map(|&at| earliest[at] + 1).max().unwrap_or(0);
        let ends: Vec<usize> = (0..lives.len()).map(end).collect();
        let mut pairs = vec![Vec::new(); lives.len()];
        for (later, life) in lives.iter().enumerate().filter(|(_, life)| life.bytes > 0) {
            let begin = latest[life.first];
            for earlier in 0..lives.len() {
                let other = &lives[earlier];
                if other.bytes == 0 || other.last >= life.first || ends[earlier] + ENOUGH <= begin {
                    continue;
                }
                let waited_for = touching[earlier].iter().filter(|&&at| !order.knows(at, life.first));
                let end = waited_for.map(|&at| earliest[at] + 1).max();
                if let Some(slack) = end.map(|end| begin.saturating_sub(end)).filter(|&slack| slack < ENOUGH)
                {
                    pairs[later].push((earlier as u32, slack as u8));
                    pairs[earlier].push((later as u32, slack as u8));
                }
            }
        }
        FalseDependencies { pairs }
    }

    /// The temporaries that should not share bytes with `t`, each with the slack.
    pub(super) fn of(&self, t: usize) -> impl Iterator<Item = (usize, usize)> {
        self.pairs[t].iter().map(|&(other, slack)| (other as usize, slack.into()))
    }
}

/// The length of the longest chain before each launch.
pub(super) fn chains_before(waits: &[Vec<usize>]) -> Vec<usize> {
    let mut earliest: Vec<usize> = Vec::with_capacity(waits.len());
    for waits in waits {
        earliest.push(waits.iter().map(|&w| earliest[w] + 1).max().unwrap_or(0));
    }
    earliest
}

/// The length of the longest chain before each launch, and how long it may be without making the longest of all longer.
fn levels(waits: &[Vec<usize>]) -> (Vec<usize>, Vec<usize>) {
    let earliest = chains_before(waits);
    let longest = earliest.iter().copied().max().unwrap_or(0);
    let mut latest = vec![longest; waits.len()];
    for (at, waits) in waits.iter().enumerate().rev() {
        for &w in waits {
            latest[w] = latest[w].min(latest[at].saturating_sub(1));
        }
    }
    (earliest, latest)
}
