//! Batches that several ranks share.

use crate::Result;
use refrain::{Communicator, Element, Tensor};

/// Calls `take` with the number and the values of each batch, in order. If several ranks share the work, each computes some of
/// the batches, and every rank gets all of them. A batch has the same values wherever it is computed, so the results are those of
/// one process, bit for bit. `lengths` has the number of values of each batch.
pub(super) fn each_batch<T: Element>(
    ranks: Option<&Communicator>,
    lengths: &[usize],
    mut compute: impl FnMut(usize) -> Result<Tensor>,
    mut take: impl FnMut(usize, &mut [T]) -> Result<()>,
) -> Result<()> {
    let mut values = Vec::new();
    let Some(ranks) = ranks else {
        for (at, &length) in lengths.iter().enumerate() {
            values.resize(length, T::default());
            compute(at)?.read_into(&mut values)?;
            take(at, &mut values)?;
        }
        return Ok(());
    };
    let (rank, size) = (ranks.rank(), ranks.size());
    // All ranks give the same number of values; the last batch may have fewer, or a rank none.
    let most = lengths.iter().copied().max().unwrap_or(0).max(1);
    values.resize(most * size, T::default());
    for first in (0..lengths.len()).step_by(size) {
        let mine = Tensor::zeros([most], T::DTYPE, ranks.device())?;
        if let Some(&length) = lengths.get(first + rank) {
            mine.narrow(0, 0, length)?.copy_from(&compute(first + rank)?.reshape([length])?)?;
        }
        ranks.all_gather(&mine)?.read_into(&mut values)?;
        for (at, values) in (first..lengths.len()).zip(values.chunks_exact_mut(most)) {
            take(at, &mut values[..lengths[at]])?;
        }
    }
    Ok(())
}
