//! Checks the rules of a program between the stages that build it.

use std::collections::BTreeMap;

use super::plan::{ALIGNMENT, Life};
use super::program::Program;
use super::recorded::Recorded;
use crate::device::program::{Access, Ranges, StorageRef};
use crate::error::{Error, Result};

/// Checks that every operand is inside its storage, and that a temporary is written before it is read.
pub(super) fn recorded(recorded: &Recorded, order: &[usize]) -> Result<()> {
    // What has been written of each temporary. A later write hides an earlier one.
    let mut written: Ranges<&Access> = Ranges::default();
    let is_written = |written: &Ranges<&Access>, t: usize, read: &Access| {
        written.meeting(t, read.byte_range()).any(|w| w.overlaps(read))
    };
    for &i in order {
        let launch = &recorded.launches[i];
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
