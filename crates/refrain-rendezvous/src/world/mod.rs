//! Which rank of how many this process is.

mod launchers;
mod slurm;
#[cfg(test)]
mod tests;
mod variables;

use std::collections::BTreeMap;

use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use variables::Variables;

/// What the user says about the world; it takes the place of what the environment says.
#[derive(Clone, Debug, Default)]
pub struct WorldOptions {
    /// `--rank`
    pub rank: Option<usize>,
    /// `--world-size`
    pub size: Option<usize>,
    /// `--local-rank`
    pub local_rank: Option<usize>,
    /// How many ranks this host has.
    pub local_size: Option<usize>,
    /// What keeps this job apart from others.
    pub job: Option<String>,
    /// How many times the job was started before.
    pub attempt: Option<u64>,
    /// `--rendezvous`
    pub rendezvous: Option<Address>,
}

/// Which rank of how many this process is, and where it meets the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// The number of this process among all of the job, from 0.
    pub rank: usize,
    /// How many processes the job has.
    pub size: usize,
    /// The number of this process among those of its host: which GPU is its own.
    pub local_rank: usize,
    /// How many processes of the job are on this host, if the launcher says so.
    pub local_size: Option<usize>,
    /// The launcher's name for the job; empty if it has none.
    pub job: String,
    /// How many times the launcher started the job before.
    pub attempt: u64,
    /// Where the ranks meet; `None` only in a world of one.
    pub rendezvous: Option<Address>,
    /// Who started the processes: `"torchrun"`, `"Slurm"`, ..., or `"nobody"` in a world of one.
    pub launcher: &'static str,
}

impl World {
    /// A process that has no others.
    pub fn one() -> Self {
        Self {
            rank: 0,
            size: 1,
            local_rank: 0,
            local_size: Some(1),
            job: String::new(),
            attempt: 0,
            rendezvous: None,
            launcher: "nobody",
        }
    }

    /// Reads the variables that launchers set in the environment of this process; see [`World::from_variables`].
    pub fn from_environment(options: &WorldOptions) -> Result<Self> {
        let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
        Self::from_variables(&variables, options)
    }

    /// Reads the variables that a launcher sets. In this order: torchrun (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`,
    /// `MASTER_PORT`), Open MPI (`OMPI_COMM_WORLD_*`), PMI (`PMI_*`), Slurm (`SLURM_*` of a step that `srun` started), a
    /// Kubernetes Indexed Job (`JOB_COMPLETION_INDEX`, `WORLD_SIZE`). A process without any of these is a world of one.
    ///
    /// The pods of an Indexed Job meet at the pod with index 0, whose name follows from `HOSTNAME` and from `REFRAIN_SERVICE`, the
    /// name of the headless service; `REFRAIN_JOB` and `REFRAIN_ATTEMPT` keep jobs and attempts apart.
    ///
    /// torchrun's agent listens on `MASTER_PORT` itself, so ranks meet at the next port.
    ///
    /// # Errors
    /// [`ErrorKind::World`] names the variable that is missing, no number, or contradicts another, and says what to set.
    pub fn from_variables(variables: &BTreeMap<String, String>, options: &WorldOptions) -> Result<Self> {
        let world = launchers::read(&Variables::new(variables, options))?;
        world.check()?;
        Ok(world)
    }

    fn check(&self) -> Result<()> {
        let wrong = |message: String| Err(Error::new(ErrorKind::World, message));
        let Self { rank, size, local_rank, launcher, .. } = self;
        if *size == 0 {
            return wrong(format!(
                "the world has 0 ranks, as {launcher} says: set the world size (WORLD_SIZE, --world-size) to the number \
                 of processes"
            ));
        }
        if rank >= size {
            return wrong(format!(
                "rank {rank} does not exist in a world of {size}, whose ranks are 0 to {} (as {launcher} says): \
                 ranks count from 0; give every process the same world size (WORLD_SIZE, --world-size) and its own rank",
                size - 1
            ));
        }
        if let Some(local_size) = self.local_size.filter(|n| local_rank >= n) {
            return wrong(format!(
                "local rank {local_rank} does not exist on a host with {local_size} ranks (as {launcher} says): local ranks \
                 count from 0 on every host"
            ));
        }
        if self.job.len() > 200 || self.job.contains(char::is_control) {
            return wrong(format!(
                "the name of the job is too long or has control characters: {:.50?}",
                self.job
            ));
        }
        if *size > 1 && self.rendezvous.is_none() {
            return wrong(format!(
                "{launcher} does not say where the {size} ranks meet: pass --rendezvous tcp://HOST:PORT with the host of \
                 rank 0 and a free port, or --rendezvous file:///PATH on a disk that all hosts share, or set MASTER_ADDR"
            ));
        }
        Ok(())
    }
}
