//! Finds the launches that make no difference.

use super::recorded::Recorded;
use crate::device::Mode;
use crate::device::program::StorageRef;

/// The launches that matter, in order: those that write something that existed before the step, an output, or
/// something that a later launch that matters reads. Launches that can fail always matter, because their error is
/// also a result; and so do collectives, because other ranks wait for them.
pub(super) fn live(recorded: &Recorded) -> Vec<usize> {
    let mut needed = vec![false; recorded.temporaries.len()];
    for output in &recorded.outputs {
        if let StorageRef::Temporary(t) = output.place {
            needed[t] = true;
        }
    }
    let mut live = Vec::new();
    for (i, launch) in recorded.launches.iter().enumerate().rev() {
        let is_read = launch.writes.iter().any(|(w, _)| match w.place {
            StorageRef::External(_) => w.bytes() > 0,
            StorageRef::Temporary(t) => needed[t],
        });
        let matters = is_read || launch.kernel.can_fail() || launch.kernel.communicator().is_some();
        if !matters {
            continue;
        }
        live.push(i);
        for (write, mode) in &launch.writes {
            if let StorageRef::Temporary(t) = write.place {
                // If this launch replaces all of it without reading it, the earlier write is not needed.
                let replaced = *mode == Mode::Replace
                    && write.layout.is_contiguous()
                    && write.byte_range().len() == recorded.temporaries[t].bytes;
                needed[t] &= !replaced;
                needed[t] |= *mode == Mode::Accumulate;
            }
        }
        for read in &launch.reads {
            if let StorageRef::Temporary(t) = read.place {
                needed[t] = true;
            }
        }
    }
    live.reverse();
    live
}
