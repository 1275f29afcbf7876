//! The ranks of a data-parallel training run: what they share, and what they exchange.

use super::TrainingConfig;
use crate::models::weights;
use crate::{Error, Result};
use refrain::{Communicator, DType, ReduceOp, Tensor, no_grad};
use refrain_nn::Parameters;
use sha2::{Digest, Sha256};
use std::ops::Range;

/// The bytes of a bucket: large enough for the full bandwidth, small enough that most of the gradients are exchanged beside
/// the rest of the backward pass.
const BUCKET: usize = 4 << 20;

/// Separates the seeds of the ranks.
const RANK: u64 = 0x9e37_79b9_7f4a_7c15;

/// This rank among those that train together.
pub(super) struct Ranks {
    communicator: Communicator,
    /// Contiguous parts of the gradients, in the order in which a backward pass finishes them.
    buckets: Vec<Tensor>,
}

impl Ranks {
    /// Checks that all ranks train the same, and gives all of them the parameters of rank 0.
    pub(super) fn new(
        communicator: Communicator,
        parameters: &Parameters,
        config: &TrainingConfig,
        samples: [&[i64]; 2],
    ) -> Result<Ranks> {
        let gradients = parameters.gradients();
        if communicator.device() != gradients.device() {
            let problem = format!(
                "the communicator is on {} and the model on {}",
                communicator.device().name(),
                gradients.device().name()
            );
            return refuse(problem, "make both on the same device");
        }
        let each = (BUCKET / gradients.dtype().size()).max(1);
        // Layers declare their parameters in the order of the forward pass.
        let starts = (0..gradients.numel()).step_by(each).rev();
        let bucket = |start: usize| gradients.narrow(0, start, each.min(gradients.numel() - start));
        let buckets = starts.map(bucket).collect::<refrain::Result<_>>()?;
        let ranks = Ranks { communicator, buckets };
        ranks.check(parameters, config, samples)?;
        parameters.share_batches(&ranks.communicator)?;
        no_grad(|| {
            ranks.communicator.broadcast_assign(parameters.values(), 0)?;
            parameters.buffers().try_for_each(|(_, buffer)| ranks.communicator.broadcast_assign(buffer, 0))
        })?;
        Ok(ranks)
    }

    /// Refuses ranks that would train something else than rank 0.
    fn check(
        &self,
        parameters: &Parameters,
        config: &TrainingConfig,
        [training, validation]: [&[i64]; 2],
    ) -> Result<()> {
        let shapes: Vec<String> = parameters
            .iter()
            .chain(parameters.buffers())
            .map(|(name, tensor)| format!("{name} {} {}", tensor.dtype(), tensor.shape()))
            .collect();
        let numbers = |numbers: &[i64]| hash(numbers.iter().flat_map(|n| n.to_le_bytes()));
        let mine = [
            hash(format!("{config:?}").bytes()),
            hash(shapes.join("\n").bytes()),
            numbers(training),
            numbers(validation),
        ];
        let what = ["settings", "parameters", "training samples", "validation samples"];
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
        let mine = Tensor::from_slice(mine, [mine.len()], self.communicator.device())?;
        let all = self.communicator.all_gather(&mine)?.to_vec::<i64>()?;
        Ok(all.chunks(mine.numel().max(1)).map(<[i64]>::to_vec).collect())
    }

    /// Whether this rank writes the files.
    pub(super) fn writes(&self) -> bool {
        self.communicator.rank() == 0
    }

    /// The seed of this rank; that of rank 0 is the given one.
    pub(super) fn seed(&self, seed: u64) -> u64 {
        seed.wrapping_add(RANK.wrapping_mul(self.communicator.rank() as u64))
    }

    /// The parts of this rank of a batch of `n` samples, as inputs of a pass. Each part has equally many samples on all
    /// ranks, because all ranks must record the same step: first a part whose samples all count, then, if samples are left
    /// over, a part of one sample of each rank, which does not count on the ranks that there is none left for.
    pub(super) fn shares(&self, n: usize) -> Result<Vec<Vec<Tensor>>> {
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        let (each, left) = (n / size, n % size);
        let last = if rank < left { rank } else { 0 };
        let parts = [
            (each * size, rank * each..(rank + 1) * each, true), // all ranks' samples, mine, whether mine count
            (left, last..last + 1, rank < left),
        ];
        parts
            .into_iter()
            .filter(|(all, ..)| *all > 0)
            .map(|(all, own, counts)| self.share(all, own, counts))
            .collect()
    }

    fn share(&self, all: usize, own: Range<usize>, counts: bool) -> Result<Vec<Tensor>> {
        let device = self.communicator.device();
        let places = |range: Range<usize>| {
            Tensor::arange(range.start as f64, range.end as f64, 1.0, DType::I64, device)
        };
        let counts = Tensor::full((), f64::from(u8::from(counts)), DType::F32, device)?;
        Ok(vec![places(0..all)?, places(own)?, counts])
    }

    /// This rank's part of what need not be of equal size: adjacent items, at most one more than on another rank.
    pub(super) fn part<'a, I>(&self, items: &'a [I]) -> &'a [I] {
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        let start = |rank: usize| (items.len() / size) * rank + (items.len() % size).min(rank);
        &items[start(rank)..start(rank + 1)]
    }

    /// Adds up the gradients of all ranks. In a recorded step, each bucket begins when its last gradient is there.
    pub(super) fn sum_gradients(&self) -> Result<()> {
        Ok(self
            .buckets
            .iter()
            .try_for_each(|bucket| self.communicator.all_reduce_assign(bucket, ReduceOp::Sum))?)
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

    /// Checks that all ranks have the same parameters, bit for bit.
    pub(super) fn compare(&self, parameters: &Parameters, when: &str) -> Result<()> {
        let all = self.gather(&weights::hashes(parameters)?)?;
        let ranks: Vec<usize> = (0..all.len()).filter(|&rank| all[rank] != all[0]).collect();
        let first = (0..all[0].len()).find(|&at| all.iter().any(|hashes| hashes[at] != all[0][at]));
        match first {
            None => Ok(()),
            Some(at) => {
                let mut names = parameters.iter().chain(parameters.buffers()).map(|(name, _)| name);
                let parameter = names.nth(at).unwrap_or_default().to_owned();
                Err(Error::RanksDiffer { when: when.to_owned(), ranks, parameter })
            }
        }
    }
}

fn refuse<T>(problem: String, fix: &'static str) -> Result<T> {
    Err(Error::Training { problem, fix })
}

/// The first 64 bits of the SHA-256 of these bytes.
fn hash(bytes: impl Iterator<Item = u8>) -> i64 {
    weights::short(Sha256::digest(bytes.collect::<Vec<u8>>()).as_slice())
}
