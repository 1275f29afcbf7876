//! What all ranks of a communicator must have recorded alike.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::program::Program;
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::device::{Communicator, Mode};
use crate::error::{Error, Result};
use crate::ops::collective::gather_bytes;

/// The advice at the end of the message.
const FIX: &str = "all ranks must record the same operations with the same shapes, dtypes and parameters, on GPUs of one generation; keep what differs between ranks (the place of a rank's samples, seeds) in tensors, and do what only one rank does outside the step";

/// A short hash of a text.
type Hash = [u8; 8];

fn hash(text: &str) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(&Sha256::digest(text)[..size_of::<Hash>()]);
    hash
}

impl Program {
    /// A number for what the program does: its launches with operations, parameters, shapes, strides and dtypes, where their
    /// operands lie, and its outputs. It is the same in every process that records the same step with the same build, for GPUs
    /// with the same matrix instructions (what is fused depends on them), so the ranks of a [`Communicator`] compare it before the
    /// first replay. It does not depend on the values of tensors from outside, nor on which memory they have.
    ///
    /// ```
    /// use refrain::{Device, DType, Step, Tensor};
    ///
    /// let device = Device::cpu();
    /// let digest = |factor: f64| {
    ///     let mut step = Step::new(&device, |x| Ok(vec![x[0].mul_scalar(factor)?]));
    ///     step.call(&[Tensor::ones([2], DType::F32, &device)?])?;
    ///     let digest = step.program().map(|program| program.digest());
    ///     step.finish()?;
    ///     Ok::<_, refrain::Error>(digest)
    /// };
    /// assert_eq!(digest(2.0)?, digest(2.0)?);
    /// assert_ne!(digest(2.0)?, digest(3.0)?);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        self.lines().for_each(|line| digest.update(hash(&line)));
        digest.finalize().into()
    }

    /// Where an operand lies, and its elements.
    fn place(&self, access: &Access) -> String {
        let place = match access.place {
            StorageRef::External(e) => format!("tensor {e} of {} bytes", self.recorded.externals[e].bytes()),
            StorageRef::Temporary(t) => format!("temporary {t} at {}", self.offset(t).unwrap_or(0)),
        };
        let (layout, dtype) = (&access.layout, access.dtype);
        format!(
            "{dtype} {} strides {:?} offset {} in {place}",
            layout.shape(),
            layout.strides(),
            layout.offset()
        )
    }

    fn line(&self, launch: &RecordedLaunch) -> String {
        let mut line = format!("{} {}", launch.op, launch.kernel.parameters());
        for read in &launch.reads {
            let _ = write!(line, "; reads {}", self.place(read));
        }
        for (write, mode) in &launch.writes {
            let how = if *mode == Mode::Accumulate { "adds to" } else { "writes" };
            let _ = write!(line, "; {how} {}", self.place(write));
        }
        line
    }

    /// A line for each launch, and one for the outputs.
    fn lines(&self) -> impl Iterator<Item = String> {
        let outputs = || {
            let places: Vec<String> = self.recorded.outputs.iter().map(|access| self.place(access)).collect();
            format!("outputs {}", places.join("; "))
        };
        self.launches().map(|launch| self.line(launch)).chain(std::iter::once_with(outputs))
    }

    /// The communicators of its collectives, each once.
    fn communicators(&self) -> Vec<&Communicator> {
        let mut all: Vec<&Communicator> = Vec::new();
        for communicator in self.launches().filter_map(|launch| launch.kernel.communicator()) {
            if all.iter().all(|other| other.number() != communicator.number()) {
                all.push(communicator);
            }
        }
        // In one order on all ranks, also where they use them in another order.
        all.sort_by_key(|communicator| communicator.number());
        all
    }

    /// Checks that all ranks of its communicators have the same program. All ranks call this at the same place.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] on every rank, and the errors of collectives.
    pub(super) fn check_ranks(&self) -> Result<()> {
        self.communicators().into_iter().try_for_each(|communicator| self.compare(communicator))
    }

    fn compare(&self, communicator: &Communicator) -> Result<()> {
        const WHAT: &str = "the comparison of a recorded step";
        let digests = gather_bytes(communicator, WHAT, &self.digest())?;
        if digests.iter().all(|digest| *digest == digests[0]) {
            return Ok(());
        }
        let lines: Vec<String> = self.lines().collect();
        let mine: Vec<Hash> = lines.iter().map(|line| hash(line)).collect();
        let all = gather_bytes(communicator, WHAT, mine.as_flattened())?;
        let hash_at = |rank: usize, at: usize| all[rank].chunks(size_of::<Hash>()).nth(at);
        let longest = all.iter().map(|hashes| hashes.len() / size_of::<Hash>()).max().unwrap_or(0);
        let differs = |&at: &usize| (1..all.len()).any(|rank| hash_at(rank, at) != hash_at(0, at));
        let launch = (0..longest).find(differs).unwrap_or(0);
        let line = lines.get(launch).map_or("nothing more", String::as_str);
        let texts = gather_bytes(communicator, WHAT, line.as_bytes())?;
        // Those that agree, in the order of their lowest ranks.
        let mut groups: Vec<(Option<&[u8]>, Vec<usize>)> = Vec::new();
        for rank in 0..all.len() {
            let hash = hash_at(rank, launch);
            match groups.iter_mut().find(|(other, _)| *other == hash) {
                Some((_, ranks)) => ranks.push(rank),
                None => groups.push((hash, vec![rank])),
            }
        }
        let said = groups.iter().map(|(_, ranks)| {
            let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
            let who = if ranks.len() == 1 { "rank" } else { "ranks" };
            format!("{who} {}: {}", names.join(", "), String::from_utf8_lossy(&texts[ranks[0]]))
        });
        let message = format!("{}; {FIX}", said.collect::<Vec<_>>().join(" | "));
        // The first of the largest groups.
        let most = groups.iter().map(|(_, ranks)| ranks.len()).max().unwrap_or(0);
        let usual = groups.iter().position(|(_, ranks)| ranks.len() == most).unwrap_or(0);
        let others = groups.iter().enumerate().filter(|(at, _)| *at != usual);
        let mut ranks: Vec<usize> = others.flat_map(|(_, (_, ranks))| ranks.iter().copied()).collect();
        ranks.sort_unstable();
        Err(Error::RanksDiffer { ranks, launch, message })
    }
}
