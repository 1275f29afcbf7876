//! The order of launches.

/// The maximum number of chains that a launch knows of. It limits the memory.
const KNOWN: usize = 64;

/// The order of launches, in which each waits for earlier ones only.
///
/// A set of all earlier launches for each launch would need memory that grows with the square of their number. So
/// launches are put on chains. On a chain, each launch comes after the one before it. A launch stores, for each
/// chain, the last launch that comes before it: a vector clock (Mattern, "Virtual time and global states of
/// distributed systems", 1989). If there are more than [`KNOWN`] parallel chains, a launch forgets the least recently
/// used ones. Then it no longer knows that some launches come before it.
#[derive(Default)]
pub(crate) struct Order {
    /// The chain of each launch.
    chains: Vec<u32>,
    /// The last launch of each chain.
    tails: Vec<u32>,
    /// The clocks of all launches, one after the other. A clock lists chains in order, each with its last launch.
    clocks: Vec<(u32, u32)>,
    /// Where the clock of each launch ends.
    ends: Vec<usize>,
    /// While a launch is added: for each chain, one more than the last launch that is known to come before it.
    latest: Vec<u32>,
}

impl Order {
    /// Adds the next launch, which comes after those in `waits`. Afterwards `waits` has, in order, only the launches
    /// that it must directly wait for: none that is known to come before another.
    pub(crate) fn add(&mut self, waits: &mut Vec<usize>) {
        let launch = self.chains.len();
        let mut clock: Vec<(u32, u32)> = Vec::new();
        // The latest first, so that launches that come before another in the list are found.
        waits.sort_unstable_by(|a, b| b.cmp(a));
        waits.dedup();
        waits.retain(|&wait| {
            let chain = self.chains[wait];
            if self.latest[chain as usize] as usize > wait {
                return false;
            }
            let known = &self.clocks[self.clock(wait)];
            for &(chain, last) in known.iter().chain(&[(chain, wait as u32)]) {
                let latest = &mut self.latest[chain as usize];
                if *latest == 0 {
                    clock.push((chain, 0));
                }
                *latest = (*latest).max(last + 1);
            }
            true
        });
        waits.reverse();
        for (chain, last) in &mut clock {
            *last = std::mem::take(&mut self.latest[*chain as usize]) - 1;
        }
        // Continue a chain that ends with one of its predecessors, if there is one.
        let next = clock.iter().filter(|(chain, last)| self.tails[*chain as usize] == *last);
        let chain = next.max_by_key(|(_, last)| *last).map_or(self.tails.len() as u32, |(chain, _)| *chain);
        if chain as usize == self.tails.len() {
            self.tails.push(0);
            self.latest.push(0);
        }
        self.tails[chain as usize] = launch as u32;
        self.chains.push(chain);
        if clock.len() > KNOWN {
            clock.select_nth_unstable_by(KNOWN, |(_, a), (_, b)| b.cmp(a));
            clock.truncate(KNOWN);
        }
        clock.sort_unstable();
        self.clocks.extend(clock);
        self.ends.push(self.clocks.len());
    }

    /// Whether `earlier` is known to come before `later`.
    pub(crate) fn knows(&self, earlier: usize, later: usize) -> bool {
        let clock = &self.clocks[self.clock(later)];
        let chain = self.chains[earlier];
        let found = clock.binary_search_by_key(&chain, |&(chain, _)| chain);
        found.is_ok_and(|at| clock[at].1 as usize >= earlier)
    }

    fn clock(&self, launch: usize) -> std::ops::Range<usize> {
        let begin = launch.checked_sub(1).map_or(0, |before| self.ends[before]);
        begin..self.ends[launch]
    }
}

/// Whether `earlier` comes before `later`, by a search of all paths backwards.
pub(crate) fn comes_before<'a>(earlier: usize, later: usize, waits: impl Fn(usize) -> &'a [usize]) -> bool {
    let mut seen = std::collections::HashSet::new();
    let mut ways = vec![later];
    while let Some(at) = ways.pop() {
        for &wait in waits(at) {
            if wait == earlier {
                return true;
            }
            if wait > earlier && seen.insert(wait) {
                ways.push(wait);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// An order never claims too much. If there are at most as many parallel chains as a launch knows, it also
        /// misses nothing.
        #[test]
        fn an_order_knows_what_comes_before_what(
            waits in prop::collection::vec(prop::collection::vec(1usize..12, 0..3), 1..200),
            stride in prop::sample::select(vec![1usize, 3, 40]),
        ) {
            let waits: Vec<Vec<usize>> = waits
                .into_iter()
                .enumerate()
                .map(|(i, back)| back.into_iter().filter_map(|d| i.checked_sub(d * stride)).collect())
                .collect();
            let mut order = Order::default();
            waits.iter().for_each(|w| order.add(&mut w.clone()));
            let is_whole = order.tails.len() <= KNOWN;
            for i in 0..waits.len() {
                for j in 0..i {
                    let (knows, before) = (order.knows(j, i), comes_before(j, i, |n| &waits[n]));
                    let direct = waits[i].iter().any(|&k| k == j || comes_before(j, k, |n| &waits[n]));
                    prop_assert_eq!(before, direct);
                    prop_assert!(before || !knows, "{} does not come before {}", j, i);
                    prop_assert!(!before || knows || !is_whole, "{} comes before {}", j, i);
                }
            }
        }
    }
}
