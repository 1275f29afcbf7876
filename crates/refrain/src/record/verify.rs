//! The rules of a program, looked at between the stages that it goes through.

use super::plan::{ALIGNMENT, Life};
use super::program::Program;
use super::recorded::{Access, Place, Recorded};
use crate::error::{Error, Result};

/// Every operand lies in its storage, and a temporary is written before it is read.
pub(super) fn recorded(recorded: &Recorded, order: &[usize]) -> Result<()> {
    let mut written: Vec<Vec<&Access>> = vec![Vec::new(); recorded.temporaries.len()];
    for &i in order {
        let launch = &recorded.launches[i];
        let broken = |what: String| Err(Error::internal(launch.op, format!("launch {i} {what}")));
        for (access, _) in launch.accesses() {
            let bytes = match access.place {
                Place::External(e) => recorded.externals.get(e).map(|s| s.bytes()),
                Place::Temporary(t) => recorded.temporaries.get(t).map(|t| t.bytes),
            };
            if bytes.is_none_or(|bytes| access.byte_range().end > bytes) {
                return broken("reaches beyond its storage".to_string());
            }
        }
        for (n, read) in launch.reads.iter().enumerate() {
            if let Place::Temporary(t) = read.place
                && read.bytes() > 0
                && !written[t].iter().any(|w| w.overlaps(read))
            {
                return broken(format!("reads operand {n}, which nothing has written"));
            }
        }
        for (write, _) in &launch.writes {
            if let Place::Temporary(t) = write.place {
                written[t].push(write);
            }
        }
    }
    for (n, output) in recorded.outputs.iter().enumerate() {
        if let Place::Temporary(t) = output.place
            && output.bytes() > 0
            && !written[t].iter().any(|w| w.overlaps(output))
        {
            return Err(Error::internal("step", format!("nothing has written output {n}")));
        }
    }
    Ok(())
}

/// Temporaries lie in the block, aligned, and no two that are alive at the same time share a byte.
pub(super) fn planned(program: &Program) -> Result<()> {
    let broken = |what: String| Err(Error::internal("step", what));
    let mut places: Vec<(usize, &Life)> = Vec::new();
    for (offset, life) in program.places() {
        if offset % ALIGNMENT != 0 || offset + life.bytes > program.block_bytes() {
            return broken(format!("a temporary of {} bytes lies at {offset}", life.bytes));
        }
        places.push((offset, life));
    }
    places.sort_unstable_by_key(|&(offset, _)| offset);
    for (i, (offset, life)) in places.iter().enumerate() {
        for (other, neighbour) in places[i + 1..].iter().take_while(|(o, _)| *o < offset + life.bytes) {
            if life.first <= neighbour.last && neighbour.first <= life.last && neighbour.bytes > 0 {
                return broken(format!(
                    "temporaries at {offset} and {other} are alive at the same time and share memory"
                ));
            }
        }
    }
    Ok(())
}
