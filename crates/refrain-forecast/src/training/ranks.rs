//! The ranks of a data-parallel training run: what they share, and what they exchange.

use super::{BatchNormStatistics, Pace, Task, TrainingConfig};
use crate::{Error, Result};
use refrain::{Communicator, DType, ReduceOp, Tensor, no_grad};
use refrain_nn::Parameters;
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

/// The most bytes of a bucket: large enough for the full bandwidth and for few exchanges, which take processors from the
/// backward pass beside them.
const BUCKET: usize = 16 << 20;
/// The most bytes of the last bucket. Nothing is left to do beside its exchange.
const LAST_BUCKET: usize = 1 << 20;

/// Which rows of a batch the samples of a pass are.
pub(super) struct Rows {
    /// This rank's.
    pub(super) own: Range<usize>,
    /// The number of all.
    pub(super) of: usize,
    /// Whether no other pass over the batch follows.
    pub(super) is_last: bool,
}

/// This rank among those that train together.
pub(super) struct Ranks {
    communicator: Communicator,
    /// Contiguous parts of the gradients, in the order in which a backward pass finishes them.
    buckets: Vec<Tensor>,
    batch_norm: BatchNormStatistics,
    /// After how many steps the parameters were compared last.
    compared: Cell<Option<u64>>,
}

impl Ranks {
    /// Checks that all ranks train the same, and gives all of them the parameters of rank 0.
    pub(super) fn new<T: Task>(
        communicator: Communicator,
        task: &T,
        config: &TrainingConfig,
        samples: [&[i64]; 2],
    ) -> Result<Ranks> {
        let parameters = task.parameters();
        let gradients = parameters.gradients();
        if communicator.device() != gradients.device() {
            let problem = format!(
                "the communicator is on {} and the model on {}",
                communicator.device().name(),
                gradients.device().name()
            );
            return refuse(problem, "make both on the same device");
        }
        let bucket = |part: Range<usize>| gradients.narrow(0, part.start, part.len());
        let parts = buckets(gradients.numel(), gradients.dtype().size());
        let buckets = parts.into_iter().map(bucket).collect::<refrain::Result<_>>()?;
        let (batch_norm, compared) = (config.batch_norm, Cell::default());
        let ranks = Ranks { communicator, buckets, batch_norm, compared };
        ranks.check(task, config, samples)?;
        if ranks.batch_norm == BatchNormStatistics::Synchronised {
            parameters.share_batches(&ranks.communicator)?;
        }
        no_grad(|| ranks.communicator.broadcast_assign(parameters.values(), 0))?;
        ranks.share_buffers(parameters)?;
        Ok(ranks)
    }

    /// Gives all ranks the running statistics of rank 0.
    fn share_buffers(&self, parameters: &Parameters) -> Result<()> {
        let share = |(_, buffer): (&str, &Tensor)| self.communicator.broadcast_assign(buffer, 0);
        Ok(no_grad(|| parameters.buffers().try_for_each(share))?)
    }

    /// Refuses ranks that would train something else than rank 0.
    fn check<T: Task>(
        &self,
        task: &T,
        config: &TrainingConfig,
        [training, validation]: [&[i64]; 2],
    ) -> Result<()> {
        let parameters = task.parameters();
        let shapes: Vec<String> = parameters
            .iter()
            .chain(parameters.buffers())
            .map(|(name, tensor)| format!("{name} {} {}", tensor.dtype(), tensor.shape()))
            .collect();
        let data = task.data().into_iter().map(|values| values.checksum()?.to_scalar());
        let data = data.collect::<refrain::Result<Vec<i64>>>()?;
        let numbers = |numbers: &[i64]| hash(numbers.iter().flat_map(|n| n.to_le_bytes()));
        let mine = [
            hash(format!("{config:?}").bytes()),
            hash(shapes.join("\n").bytes()),
            numbers(training),
            numbers(validation),
            numbers(&data),
        ];
        let what = ["settings", "parameters", "training samples", "validation samples", "data"];
        let all = self.gather(&mine)?;
        for (rank, theirs) in all.iter().enumerate() {
            if let Some(at) = (0..what.len()).find(|&at| theirs[at] != all[0][at]) {
                let problem = format!("rank {rank} has other {} than rank 0", what[at]);
                return refuse(problem, "start all ranks with the same program, settings and data");
            }
        }
        Ok(())
    }

    /// What each rank gives, by rank. All give the same number of values.
    fn gather(&self, mine: &[i64]) -> Result<Vec<Vec<i64>>> {
        self.gather_values(&Tensor::from_slice(mine, [mine.len()], self.communicator.device())?)
    }

    /// The checksums of these tensors on each rank. The tensors stay on the device.
    fn checksums<'a>(&self, of: impl Iterator<Item = &'a Tensor>) -> Result<Vec<Vec<i64>>> {
        let sums = of.map(Tensor::checksum).collect::<refrain::Result<Vec<_>>>()?;
        self.gather_values(&Tensor::stack(&sums, 0)?)
    }

    fn gather_values(&self, mine: &Tensor) -> Result<Vec<Vec<i64>>> {
        let all = self.communicator.all_gather(mine)?.to_vec::<i64>()?;
        Ok(all.chunks(mine.numel().max(1)).map(<[i64]>::to_vec).collect())
    }

    /// Whether this rank writes the files.
    pub(super) fn writes(&self) -> bool {
        self.communicator.rank() == 0
    }

    /// The parts of this rank of a batch with these places, as inputs of a pass. Each part has equally many samples on all
    /// ranks, because all ranks must record the same step: first a part whose samples all count, then, if samples are left
    /// over, a part of one sample of each rank, which does not count on the ranks that there is none left for.
    pub(super) fn shares(&self, batch: &Tensor) -> Result<Vec<Vec<Tensor>>> {
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        let (each, left) = (batch.numel() / size, batch.numel() % size);
        let parts = [(each * size, each, true), (left, 1, rank < left)]; // all ranks' samples, mine, whether mine count
        parts
            .into_iter()
            .filter(|(all, ..)| *all > 0)
            .map(|(all, each, counts)| self.share(batch, all, each, counts))
            .collect()
    }

    fn share(&self, batch: &Tensor, all: usize, each: usize, counts: bool) -> Result<Vec<Tensor>> {
        let device = self.communicator.device();
        let places = |range: Range<usize>| {
            Tensor::arange(range.start as f64, range.end as f64, 1.0, DType::I64, device)
        };
        let counts = Tensor::full((), f64::from(u8::from(counts)), DType::F32, device)?;
        Ok(vec![places(0..all)?, places(self.own(all, each))?, counts, batch.clone()])
    }

    /// Which samples of a pass are this rank's: `each` of `all`. If there are too few, those of rank 0 stand in.
    fn own(&self, all: usize, each: usize) -> Range<usize> {
        let first = self.communicator.rank() * each;
        if first + each <= all { first..first + each } else { 0..each }
    }

    /// Which rows of the batch the samples of a pass are. This follows from the shapes of its inputs alone, because a
    /// recorded step may depend on nothing else.
    pub(super) fn rows(&self, inputs: &[Tensor]) -> Result<Rows> {
        let [all, own, _, batch] = inputs else {
            return refuse("a pass of several ranks lacks inputs".to_owned(), "report this");
        };
        let (all, each, of) = (all.numel(), own.numel(), batch.numel());
        let has_rest = all == each * self.communicator.size() && all < of;
        let first = if has_rest { 0 } else { of - all };
        let own = self.own(all, each);
        Ok(Rows { own: first + own.start..first + own.end, of, is_last: !has_rest })
    }

    /// This rank's part of what need not be of equal size: adjacent items, at most one more than on another rank.
    pub(super) fn part<'a, I>(&self, items: &'a [I]) -> &'a [I] {
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        let start = |rank: usize| (items.len() / size) * rank + (items.len() % size).min(rank);
        &items[start(rank)..start(rank + 1)]
    }

    /// The sum or the mean of the gradients of all ranks. In a recorded step, each bucket begins when its last gradient is there.
    pub(super) fn reduce_gradients(&self, by: ReduceOp) -> Result<()> {
        Ok(self.buckets.iter().try_for_each(|bucket| self.communicator.all_reduce_assign(bucket, by))?)
    }

    /// Whether a pass has equally many samples on all ranks, and all of them count.
    pub(super) fn are_equal(&self, inputs: &[Tensor]) -> bool {
        matches!(inputs, [all, own, ..] if all.numel() == own.numel() * self.communicator.size())
    }

    /// A number of each rank, by rank.
    pub(super) fn numbers(&self, mine: f64) -> Result<Vec<f64>> {
        let all = self.gather(&[mine.to_bits() as i64])?;
        Ok(all.iter().map(|bits| f64::from_bits(bits[0] as u64)).collect())
    }

    pub(super) fn rank(&self) -> usize {
        self.communicator.rank()
    }

    pub(super) fn size(&self) -> usize {
        self.communicator.size()
    }

    /// The sum over all ranks.
    pub(super) fn sum(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.communicator.all_reduce(x, ReduceOp::Sum)?)
    }

    /// Whether any rank wants this, and the number that rank 0 gives.
    pub(super) fn agree(&self, wanted: bool, number: u64) -> Result<(bool, u64)> {
        let all = self.gather(&[i64::from(wanted), number as i64])?;
        Ok((all.iter().any(|rank| rank[0] != 0), all[0][1] as u64))
    }

    /// Checks that all ranks are at the same step and will stop for their callbacks after the same steps. Otherwise one rank
    /// would wait for a step that another does not take.
    pub(super) fn check_pace(&self, pace: Pace, step: u64) -> Result<()> {
        let Pace { interval, stop_every } = pace;
        let nanoseconds = i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX);
        let all = self.gather(&[step as i64, nanoseconds, stop_every.map_or(-1, |steps| steps as i64)])?;
        let Some(rank) = all.iter().position(|other| *other != all[0]) else { return Ok(()) };
        let describe = |rank: usize| {
            let interval = Duration::from_nanos(all[rank][1] as u64);
            let stops = match all[rank][2] {
                -1 => String::new(),
                steps => format!(" and every {steps} steps"),
            };
            format!(
                "rank {rank} trains from step {} on with a callback every {interval:?}{stops}",
                all[rank][0]
            )
        };
        let problem = format!("{}, {}", describe(rank), describe(0));
        refuse(problem, "call Trainer::epoch with the same pace at the same step on all ranks")
    }

    /// Checks that all ranks resume at the same step.
    pub(super) fn check_step(&self, step: i64) -> Result<()> {
        let all = self.gather(&[step])?;
        match all.iter().position(|at| *at != all[0]) {
            Some(rank) => refuse(
                format!("rank {rank} resumes at step {}, rank 0 at step {}", all[rank][0], all[0][0]),
                "resume all ranks from the same folder",
            ),
            None => Ok(()),
        }
    }

    /// Whether the parameters after this step were compared.
    pub(super) fn has_compared(&self, step: u64) -> bool {
        self.compared.get() == Some(step)
    }

    /// Checks that all ranks have the same parameters after this step, bit for bit. Only checksums leave the devices.
    pub(super) fn compare(&self, parameters: &Parameters, step: u64, when: &str) -> Result<()> {
        if self.batch_norm == BatchNormStatistics::Local {
            self.share_buffers(parameters)?;
        }
        let buffers = || parameters.buffers().map(|(_, buffer)| buffer);
        let whole = self.checksums(std::iter::once(parameters.values()).chain(buffers()))?;
        if whole.iter().all(|of_rank| *of_rank == whole[0]) {
            self.compared.set(Some(step));
            return Ok(());
        }
        let tensors = || parameters.iter().chain(parameters.buffers());
        let all = self.checksums(tensors().map(|(_, tensor)| tensor))?;
        let ranks = (0..all.len()).filter(|&rank| all[rank] != all[0]).collect();
        let first = (0..all[0].len()).find(|&at| all.iter().any(|of_rank| of_rank[at] != all[0][at]));
        let name = first.and_then(|at| tensors().nth(at)).map(|(name, _)| name.to_owned());
        Err(Error::RanksDiffer { when: when.to_owned(), ranks, parameter: name.unwrap_or_default() })
    }
}

/// The parts of the gradients that are exchanged one by one, in the order in which a backward pass finishes them: layers declare
/// their parameters in the order of the forward pass.
fn buckets(elements: usize, size: usize) -> Vec<Range<usize>> {
    let (each, last) = (BUCKET / size, elements.min(LAST_BUCKET / size));
    let others =
        (last..elements).rev().step_by(each).map(|end| last.max((end + 1).saturating_sub(each))..end + 1);
    others.chain((last > 0).then_some(0..last)).collect()
}

fn refuse<T>(problem: String, fix: &'static str) -> Result<T> {
    Err(Error::Training { problem, fix })
}

/// The first 64 bits of the SHA-256 of these bytes.
fn hash(bytes: impl Iterator<Item = u8>) -> i64 {
    let digest = Sha256::digest(bytes.collect::<Vec<u8>>());
    digest.iter().take(8).fold(0, |number, &byte| number << 8 | i64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_the_gradients_from_the_end_and_the_last_one_is_small() {
        for elements in [0, 1, 1 << 18, (1 << 18) + 1, 1 << 22, (1 << 22) + (1 << 18) + 1, 88 << 18] {
            let buckets = buckets(elements, 4);
            let covered = buckets.iter().rev().fold(0, |end, bucket| {
                assert!(
                    bucket.start == end && !bucket.is_empty() && bucket.len() * 4 <= BUCKET,
                    "{buckets:?}"
                );
                bucket.end
            });
            assert_eq!(covered, elements);
            assert!(buckets.last().is_none_or(|last| last.len() * 4 <= LAST_BUCKET), "{buckets:?}");
        }
        assert_eq!(buckets(22 << 20, 4).len(), 7);
    }
}
