//! The memory planner: gives every temporary an offset in one block.
//!
//! Temporaries that are never alive at the same time may share bytes. To find the smallest block is NP-hard (dynamic
//! storage allocation: Garey and Johnson, "Computers and intractability", 1979, problem SR2). A good heuristic places
//! them one after the other into the tightest gap, and tries several orders; it comes within a few per cent of the
//! bound. It compares every temporary with every other, so it is used for only the largest few thousand of them. A
//! long program may have any number of others; they are placed in order of time, like an allocator does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::false_dependencies::{ENOUGH, FalseDependencies};

/// Offsets are multiples of this, like addresses of device memory.
pub(super) const ALIGNMENT: usize = 256;

/// How many temporaries are compared with one another.
pub(super) const FEW: usize = 4096;

/// How much larger the block may become so that there are fewer false dependencies: this part of it, or the next one where the first
/// does not halve what they lack of slack.
pub(super) const GROWTH: [usize; 2] = [16, 8];
/// The same where they make the longest chain of launches longer.
pub(super) const LARGE_GROWTH: [usize; 1] = [8];
/// It becomes larger by at most so many bytes.
const GROWTH_BYTES: usize = 64 << 20;

/// The lifetime and size of a temporary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// The first and the last launch that touch it, as positions in the order of launches.
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) bytes: usize,
}

impl Life {
    /// The bytes that it takes in the block.
    pub(super) fn room(&self) -> usize {
        self.bytes.next_multiple_of(ALIGNMENT)
    }

    fn length(&self) -> usize {
        self.last - self.first + 1
    }

    fn meets(&self, other: &Life) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The offsets of the temporaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryPlan {
    pub(super) offsets: Vec<usize>,
    /// The size of the block.
    pub(super) bytes: usize,
    /// The maximum number of bytes that are alive at one time. No block can be smaller.
    pub(super) bound: usize,
}

/// Places temporaries so that no two that are alive at the same time share a byte. `None` if they do not fit into any
/// address space.
pub(super) fn plan(lives: &[Life]) -> Option<MemoryPlan> {
    plan_of(lives, FEW)
}

/// Like [`plan`], for a device that runs launches side by side: with as few false dependencies, and as much slack of those, as a
/// slightly larger block allows.
pub(super) fn plan_for_overlap(
    lives: &[Life],
    avoided: &FalseDependencies,
    growth: &[usize],
) -> Option<MemoryPlan> {
    let tight = plan(lives)?;
    let mut best = (harm(lives, &tight.offsets, avoided), tight.offsets, tight.bytes);
    let half = best.0 / 2;
    let limit_of = |part: usize| tight.bytes.saturating_add((tight.bytes / part).min(GROWTH_BYTES));
    let limits: Vec<usize> = growth.iter().map(|&part| limit_of(part)).collect();
    for (i, &limit) in limits.iter().enumerate() {
        if i > 0 && (best.0 <= half || limit == limits[i - 1]) {
            break;
        }
        for (offsets, bytes) in placings(lives, avoided, limit).flatten().filter(|(_, bytes)| *bytes <= limit)
        {
            if best.0 == 0 {
                break;
            }
            let harm = harm(lives, &offsets, avoided);
            if (harm, bytes) < (best.0, best.2) {
                best = (harm, offsets, bytes);
            }
        }
    }
    Some(MemoryPlan { offsets: best.1, bytes: best.2, bound: tight.bound })
}

/// How much slack the false dependencies of a plan lack.
pub(super) fn harm(lives: &[Life], offsets: &[usize], avoided: &FalseDependencies) -> usize {
    let share = |a: usize, b: usize| {
        offsets[a] < offsets[b] + lives[b].room() && offsets[b] < offsets[a] + lives[a].room()
    };
    let of = |a: usize| {
        let sharing = avoided.of(a).filter(move |&(b, _)| b < a && share(a, b));
        sharing.map(|(_, slack)| ENOUGH - slack).sum::<usize>()
    };
    (0..lives.len()).map(of).sum()
}

/// Like [`plan`], with another number of temporaries that are compared with one another.
pub(super) fn plan_of(lives: &[Life], few: usize) -> Option<MemoryPlan> {
    if lives.len() <= few {
        return compared(lives);
    }
    let placings: [&dyn Fn() -> Option<Placing>; 3] =
        [&|| in_time(lives, false), &|| in_time(lives, true), &|| stacked(lives, few)];
    smallest(lives, placings.into_iter().map(|placing| placing()))
}

/// The offsets, and the size of the block.
type Placing = (Vec<usize>, usize);

/// The first of the smallest placings. After one that reaches the bound, the others are not computed.
fn smallest(lives: &[Life], placings: impl Iterator<Item = Option<Placing>>) -> Option<MemoryPlan> {
    let bound = bound(lives)?;
    let mut best: Option<Placing> = None;
    for placing in placings.flatten() {
        if best.as_ref().is_none_or(|(_, bytes)| placing.1 < *bytes) {
            best = Some(placing);
        }
        if best.as_ref().is_some_and(|(_, bytes)| *bytes == bound) {
            break;
        }
    }
    best.map(|(offsets, bytes)| MemoryPlan { offsets, bytes, bound })
}

/// The maximum number of bytes that are alive at one time. `None` if it overflows.
fn bound(lives: &[Life]) -> Option<usize> {
    let last = lives.iter().map(|l| l.last + 1).max().unwrap_or(0);
    let mut change = vec![0i128; last + 1];
    for life in lives {
        change[life.first] += life.room() as i128;
        change[life.last + 1] -= life.room() as i128;
    }
    let mut alive = 0;
    let sums = change.iter().map(|c| {
        alive += c;
        alive
    });
    sums.max().unwrap_or(0).try_into().ok().filter(|&bytes: &usize| bytes <= isize::MAX as usize)
}

/// Compares all temporaries with one another, in several orders.
fn compared(lives: &[Life]) -> Option<MemoryPlan> {
    smallest(lives, placings(lives, &FalseDependencies::none(lives.len()), usize::MAX))
}

/// Placings in several orders, each in a block of `limit` bytes if it can be.
fn placings<'a>(
    lives: &'a [Life],
    avoided: &'a FalseDependencies,
    limit: usize,
) -> impl Iterator<Item = Option<Placing>> + 'a {
    let orders: [fn(&Life) -> (usize, usize); 5] = [
        |l| (usize::MAX - l.room(), l.first),
        |l| (usize::MAX - l.room().saturating_mul(l.length()), l.first),
        |l| (usize::MAX - l.length(), usize::MAX - l.room()),
        |l| (l.first, usize::MAX - l.room()),
        |l| (usize::MAX - l.last, usize::MAX - l.room()),
    ];
    let each = orders.into_iter().flat_map(|key| [(key, true), (key, false)]);
    each.map(move |(key, tightest)| {
        let mut order: Vec<usize> = (0..lives.len()).collect();
        order.sort_by_key(|&i| key(&lives[i]));
        place(lives, &order, tightest, avoided, limit)
    })
}

/// Places temporaries in the given order: each into the tightest gap that is large enough, or into the lowest one, with as much
/// slack as a block of `limit` bytes allows. The block becomes larger only for those that are alive at the same time.
pub(super) fn place(
    lives: &[Life],
    order: &[usize],
    tightest: bool,
    avoided: &FalseDependencies,
    limit: usize,
) -> Option<Placing> {
    let mut offsets = vec![0usize; lives.len()];
    // The placed ones, by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(lives.len());
    let mut bytes = 0;
    // Between the temporary that is placed and each other one.
    let mut slack = vec![ENOUGH; lives.len()];
    // Empty ones, which share no byte wherever they are, stay at the beginning.
    for &i in order.iter().filter(|&&i| lives[i].bytes > 0) {
        let mut any = false;
        avoided.of(i).for_each(|(j, n)| (slack[j], any) = (n, true));
        let room = lives[i].room();
        let offset_with = |least: usize| {
            let (mut end, mut chosen): (usize, Option<(usize, usize)>) = (0, None);
            for &j in placed.iter().filter(|&&j| slack[j] < least || lives[j].meets(&lives[i])) {
                let gap = offsets[j].saturating_sub(end);
                if gap >= room && chosen.is_none_or(|(_, g)| tightest && gap < g) {
                    chosen = Some((end, gap));
                }
                end = end.max(offsets[j] + lives[j].room());
            }
            chosen.map_or(end, |(at, _)| at)
        };
        let fits = |offset: &usize| offset.checked_add(room).is_some_and(|end| end <= limit);
        // Half the slack is much better than none, so a few steps are enough.
        let steps = [ENOUGH, ENOUGH / 2, ENOUGH / 4, 1].into_iter().filter(|_| any);
        let offset = steps.map(offset_with).find(fits).unwrap_or_else(|| offset_with(0));
        avoided.of(i).for_each(|(j, _)| slack[j] = ENOUGH);
        offsets[i] = offset;
        bytes = bytes.max(offset.checked_add(room)?);
        let at = placed.partition_point(|&j| offsets[j] <= offset);
        placed.insert(at, i);
    }
    Some((offsets, bytes))
}

/// Places temporaries in the order in which their lives begin (or, `backwards`, end): each into the tightest gap
/// between those that are alive then.
pub(super) fn in_time(lives: &[Life], backwards: bool) -> Option<Placing> {
    let end = lives.iter().map(|l| l.last).max().unwrap_or(0);
    let (begins, ends): (fn(&Life, usize) -> usize, fn(&Life, usize) -> usize) = match backwards {
        false => (|l, _| l.first, |l, _| l.last),
        true => (|l, end| end - l.last, |l, end| end - l.first),
    };
    let mut arrivals: Vec<usize> = (0..lives.len()).filter(|&i| lives[i].bytes > 0).collect();
    let mut departures = arrivals.clone();
    arrivals.sort_by_key(|&i| (begins(&lives[i], end), Reverse(lives[i].room())));
    departures.sort_by_key(|&i| ends(&lives[i], end));
    let mut departures = departures.into_iter().peekable();
    let mut offsets = vec![0usize; lives.len()];
    let mut block = Block::default();
    for i in arrivals {
        while let Some(gone) = departures.next_if(|&g| ends(&lives[g], end) < begins(&lives[i], end)) {
            block.free(offsets[gone], lives[gone].room());
        }
        offsets[i] = block.take(lives[i].room())?;
    }
    Some((offsets, block.bytes))
}

/// Compares the largest temporaries with one another, and places the others above them.
fn stacked(lives: &[Life], few: usize) -> Option<Placing> {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&i| Reverse(lives[i].room()));
    let (large, small) = order.split_at(few);
    let of = |part: &[usize]| part.iter().map(|&i| lives[i]).collect::<Vec<Life>>();
    let lower = compared(&of(large))?;
    let small_lives = of(small);
    let upper = smallest(&small_lives, [false, true].into_iter().map(|b| in_time(&small_lives, b)))?;
    let mut offsets = vec![0; lives.len()];
    large.iter().zip(&lower.offsets).for_each(|(&i, &at)| offsets[i] = at);
    small.iter().zip(&upper.offsets).for_each(|(&i, &at)| offsets[i] = lower.bytes + at);
    Some((offsets, lower.bytes.checked_add(upper.bytes)?))
}

/// The block while temporaries come and go.
#[derive(Default)]
struct Block {
    /// The gaps below `top`, none adjacent to another: by offset with their lengths, and by length.
    gaps: BTreeMap<usize, usize>,
    by_length: BTreeSet<(usize, usize)>,
    /// The end of the highest temporary.
    top: usize,
    /// The highest end so far.
    bytes: usize,
}

impl Block {
    fn take(&mut self, room: usize) -> Option<usize> {
        let Some(&(length, offset)) = self.by_length.range((room, 0)..).next() else {
            let offset = self.top;
            self.top = offset.checked_add(room)?;
            self.bytes = self.bytes.max(self.top);
            return Some(offset);
        };
        self.remove_gap(offset, length);
        if length > room {
            self.add_gap(offset + room, length - room);
        }
        Some(offset)
    }

    fn free(&mut self, mut offset: usize, mut length: usize) {
        if let Some((&at, &before)) = self.gaps.range(..offset).next_back()
            && at + before == offset
        {
            self.remove_gap(at, before);
            (offset, length) = (at, before + length);
        }
        if let Some(&after) = self.gaps.get(&(offset + length)) {
            self.remove_gap(offset + length, after);
            length += after;
        }
        match offset + length == self.top {
            true => self.top = offset,
            false => self.add_gap(offset, length),
        }
    }

    fn add_gap(&mut self, offset: usize, length: usize) {
        self.gaps.insert(offset, length);
        self.by_length.insert((length, offset));
    }

    fn remove_gap(&mut self, offset: usize, length: usize) {
        self.gaps.remove(&offset);
        self.by_length.remove(&(length, offset));
    }
}
