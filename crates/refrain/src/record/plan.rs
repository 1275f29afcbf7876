//! A place for every temporary in one block.
//!
//! Temporaries that are never alive at the same time may share bytes. To find the smallest block is NP-hard (dynamic
//! storage allocation: Garey and Johnson, "Computers and intractability", 1979, problem SR2); placing them one after
//! the other, each into the tightest gap, in several orders comes within a few per cent of the bound.

/// Places begin at multiples of this, as device memory does.
pub(super) const ALIGNMENT: usize = 256;

/// A temporary as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// The first and the last launch that touch it, by their place in the order.
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) bytes: usize,
}

impl Life {
    /// Bytes that it takes in the block.
    pub(super) fn room(&self) -> usize {
        self.bytes.next_multiple_of(ALIGNMENT)
    }

    fn meets(&self, other: &Life) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Where temporaries lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) offsets: Vec<usize>,
    /// The size of the block.
    pub(super) bytes: usize,
    /// The most bytes that are alive at one time: no block can be smaller.
    pub(super) bound: usize,
}

/// Places temporaries so that no two that are alive at the same time share a byte.
pub(super) fn plan(lives: &[Life]) -> Plan {
    let bound = bound(lives);
    let mut best: Option<Plan> = None;
    let size = |l: &Life| l.room();
    let length = |l: &Life| l.last - l.first + 1;
    let orders: [&dyn Fn(&Life) -> (usize, usize); 5] = [
        &|l| (usize::MAX - size(l), l.first),
        &|l| (usize::MAX - size(l).saturating_mul(length(l)), l.first),
        &|l| (usize::MAX - length(l), usize::MAX - size(l)),
        &|l| (l.first, usize::MAX - size(l)),
        &|l| (usize::MAX - l.last, usize::MAX - size(l)),
    ];
    for key in orders {
        let mut order: Vec<usize> = (0..lives.len()).collect();
        order.sort_by_key(|&i| key(&lives[i]));
        for tightest in [true, false] {
            let plan = place(lives, &order, tightest, bound);
            if best.as_ref().is_none_or(|b| plan.bytes < b.bytes) {
                best = Some(plan);
            }
            if best.as_ref().is_some_and(|b| b.bytes == bound) {
                break;
            }
        }
    }
    best.unwrap_or(Plan { offsets: Vec::new(), bytes: 0, bound })
}

/// The most bytes that are alive at one time.
fn bound(lives: &[Life]) -> usize {
    let last = lives.iter().map(|l| l.last + 1).max().unwrap_or(0);
    let mut change = vec![0isize; last + 1];
    for life in lives {
        change[life.first] += life.room() as isize;
        change[life.last + 1] -= life.room() as isize;
    }
    let mut alive = 0;
    change
        .iter()
        .map(|c| {
            alive += c;
            alive as usize
        })
        .max()
        .unwrap_or(0)
}

/// Places temporaries in an order: each into the tightest gap that takes it, or into the lowest.
fn place(lives: &[Life], order: &[usize], tightest: bool, bound: usize) -> Plan {
    let mut offsets = vec![0usize; lives.len()];
    // Those placed, by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(lives.len());
    let mut bytes = 0;
    for &i in order {
        let room = lives[i].room();
        let (mut end, mut chosen): (usize, Option<(usize, usize)>) = (0, None);
        for &j in placed.iter().filter(|&&j| lives[j].meets(&lives[i])) {
            let gap = offsets[j].saturating_sub(end);
            if gap >= room && chosen.is_none_or(|(_, g)| tightest && gap < g) {
                chosen = Some((end, gap));
            }
            end = end.max(offsets[j] + lives[j].room());
        }
        let offset = chosen.map_or(end, |(at, _)| at);
        offsets[i] = offset;
        bytes = bytes.max(offset + room);
        let at = placed.partition_point(|&j| offsets[j] <= offset);
        placed.insert(at, i);
    }
    Plan { offsets, bytes, bound }
}
