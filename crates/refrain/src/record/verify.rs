//! Checks the rules of a program between the stages that build it.

use std::collections::BTreeMap;

use super::edges::{Touch, edges};
use super::plan::{ALIGNMENT, Life};
use super::program::{Program, launch};
use super::recorded::Recorded;
use crate::device::program::{Access, Ranges, RecordedLaunch, StorageRef};
use crate::error::{Error, Result};

/// The bytes that a launch touches before memory is planned: each temporary is a memory of its own.
pub(super) fn touches(launch: &RecordedLaunch) -> Vec<Touch<'_>> {
    let accesses = launch.accesses().map(|(access, writes)| {
        let memory = match access.place {
            StorageRef::Temporary(t) => 2 * t,
            StorageRef::External(e) => 2 * e + 1,
        };
        Touch { memory, range: access.byte_range(), writes, access: Some(access) }
    });
    accesses.chain(launch.kernel.communicator().map(|_| Touch::NETWORK)).collect()
}

/// Checks that the launches of `before` are those of `after`, each once, where a fused launch stands for its `parts`; and
/// that launches that must wait for each other kept their order.
pub(super) fn fused(
    recorded: &Recorded,
    before: &[usize],
    after: &[usize],
    parts: &[Vec<usize>],
) -> Result<()> {
    let broken = |n: usize, what: &str| {
        Err(Error::internal(recorded.launches[n].op, format!("launch {n} {what} when launches were fused")))
    };
    let mut places: Vec<Option<usize>> = vec![None; recorded.launches.len()];
    let of = |n: &usize| match n.checked_sub(recorded.launches.len()) {
        None => std::slice::from_ref(n).to_vec(),
        Some(fused) => parts[fused].clone(),
    };
    for (place, n) in after.iter().flat_map(of).enumerate() {
        if places[n].replace(place).is_some() {
            return broken(n, "was doubled");
        }
    }
    let touches: Vec<Vec<Touch<'_>>> = before.iter().map(|&n| touches(&recorded.launches[n])).collect();
    for (at, waits) in edges(&touches).iter().enumerate() {
        let Some(place) = places[before[at]] else { return broken(before[at], "was lost") };
        if waits.iter().any(|&earlier| places[before[earlier]].is_none_or(|earlier| earlier > place)) {
            return broken(before[at], "came before one that it waits for");
        }
    }
    match before.len() == places.iter().flatten().count() {
        true => Ok(()),
        false => Err(Error::internal("step", "a launch was added when launches were fused")),
    }
}

/// Checks that every operand is inside its storage, and that a temporary is written before it is read. `order` has numbers
/// of recorded launches, and behind them those of `fused`.
pub(super) fn recorded(recorded: &Recorded, order: &[usize], fused: &[RecordedLaunch]) -> Result<()> {
    // What has been written of each temporary. A later write hides an earlier one.
    let mut written: Ranges<&Access> = Ranges::default();
    let is_written = |written: &Ranges<&Access>, t: usize, read: &Access| {
        written.meeting(t, read.byte_range()).any(|w| w.overlaps(read))
    };
    for &i in order {
        let launch = launch(recorded, fused, i);
        let broken = |what: String| Err(Error::internal(launch.op, format!("launch {i} {what}")));
        for (access, _) in launch.accesses() {
            let bytes = match access.place {
                StorageRef::External(e) => recorded.externals.get(e).map(|s| s.bytes()),
                StorageRef::Temporary(t) => recorded.temporaries.get(t).map(|t| t.bytes),
            };
            if bytes.is_none_or(|bytes| access.byte_range().end > bytes) {
                return broken("reaches beyond its storage".to_string());
            }
        }
        for (n, read) in launch.reads.iter().enumerate() {
            if let StorageRef::Temporary(t) = read.place
                && read.bytes() > 0
                && !is_written(&written, t, read)
            {
                return broken(format!("reads operand {n}, which nothing has written"));
            }
        }
        for (write, _) in &launch.writes {
            if let StorageRef::Temporary(t) = write.place
                && write.bytes() > 0
            {
                if write.layout.is_contiguous() {
                    written.clear(t, write.byte_range());
                }
                written.insert(t, write.byte_range(), write, |w| *w == write);
            }
        }
    }
    for (n, output) in recorded.outputs.iter().enumerate() {
        if let StorageRef::Temporary(t) = output.place
            && output.bytes() > 0
            && !is_written(&written, t, output)
        {
            return Err(Error::internal("step", format!("nothing has written output {n}")));
        }
    }
    Ok(())
}

/// Checks that temporaries are inside the block and aligned, and that no two that are alive at the same time share a
/// byte.
pub(super) fn planned(program: &Program) -> Result<()> {
    let broken = |what: String| Err(Error::internal("step", what));
    let places: Vec<(usize, Life)> = program.places().map(|(offset, life)| (offset, *life)).collect();
    for (offset, life) in &places {
        if offset % ALIGNMENT != 0 || offset + life.bytes > program.block_bytes() {
            return broken(format!("a temporary of {} bytes is at offset {offset}", life.bytes));
        }
    }
    match meeting(&places) {
        None => Ok(()),
        Some((at, other)) => {
            broken(format!("temporaries at {at} and {other} are alive at the same time and share memory"))
        }
    }
}

/// The offsets of two temporaries that are alive at the same time and share a byte, if there are any.
pub(super) fn meeting(places: &[(usize, Life)]) -> Option<(usize, usize)> {
    let mut begins: Vec<&(usize, Life)> = places.iter().filter(|(_, life)| life.bytes > 0).collect();
    let mut ends = begins.clone();
    begins.sort_by_key(|(_, life)| life.first);
    ends.sort_by_key(|(_, life)| life.last);
    let mut ends = ends.into_iter().peekable();
    // The temporaries that are alive, which do not overlap: where each begins and ends.
    let mut alive: BTreeMap<usize, usize> = BTreeMap::new();
    for (offset, life) in begins {
        while let Some((gone, _)) = ends.next_if(|(_, other)| other.last < life.first) {
            alive.remove(gone);
        }
        let end = offset + life.bytes;
        if let Some((&other, _)) = alive.range(..end).next_back().filter(|(_, other)| *other > offset) {
            return Some((*offset, other));
        }
        alive.insert(*offset, end);
    }
    None
}
