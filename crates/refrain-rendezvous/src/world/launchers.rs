//! What each launcher says to the processes that it starts.

use super::slurm::first_host;
use super::variables::{PORT, Variables};
use super::{World, WorldOptions};
use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};

/// The world as the launcher that is found says it.
pub fn read(v: &Variables<'_>) -> Result<World> {
    if v.any(&["RANK", "LOCAL_RANK"]) {
        torchrun(v)
    } else if v.any(&["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]) {
        open_mpi(v)
    } else if v.any(&["PMI_RANK", "PMI_SIZE"]) && !pmi_of_slurm(v) {
        pmi(v)
    } else if v.any(&["SLURM_PROCID"]) && !outside_srun(v) {
        slurm(v)
    } else if v.any(&["JOB_COMPLETION_INDEX"]) {
        kubernetes(v)
    } else {
        nobody(v)
    }
}

/// What is the same for all launchers.
struct Start {
    launcher: &'static str,
    rank: usize,
    size: usize,
    local_rank: usize,
    local_size: Option<usize>,
    job: String,
    attempt: u64,
}

impl Start {
    /// The world, whose ranks meet where the option or `MASTER_ADDR` says, or else at `elsewhere`.
    fn world(
        self,
        v: &Variables<'_>,
        elsewhere: impl FnOnce(&str) -> Result<Option<Address>>,
    ) -> Result<World> {
        let WorldOptions { job, attempt, local_size, .. } = v.options;
        let job = job.clone().unwrap_or(self.job);
        let rendezvous = match v.meeting_point(&job)? {
            None if self.size > 1 => elsewhere(&job)?,
            given => given,
        };
        Ok(World {
            rank: self.rank,
            size: self.size,
            local_rank: self.local_rank,
            local_size: local_size.or(self.local_size),
            job,
            attempt: attempt.unwrap_or(self.attempt),
            rendezvous,
            launcher: self.launcher,
        })
    }
}

fn text(v: &Variables<'_>, name: &str) -> String {
    v.text(name).unwrap_or_default().to_owned()
}

fn torchrun(v: &Variables<'_>) -> Result<World> {
    let beside = if v.any(&["RANK"]) { "RANK" } else { "LOCAL_RANK" };
    let size = v.required(v.options.size, "WORLD_SIZE", "--world-size", beside)?;
    let local_size = v.count("LOCAL_WORLD_SIZE")?;
    // torchrun has an agent on each host. It counts the restarts that its own processes caused, so the counts of hosts differ.
    // The agents wait for each other before they start anything again, so attempts do not mix.
    let several_hosts = local_size.is_some_and(|n| n < size);
    let restarts = v.number("TORCHELASTIC_RESTART_COUNT")?.filter(|_| !several_hosts);
    let start = Start {
        launcher: "torchrun",
        rank: v.required(v.options.rank, "RANK", "--rank", "LOCAL_RANK")?,
        size,
        local_rank: v.required(v.options.local_rank, "LOCAL_RANK", "--local-rank", "RANK")?,
        local_size,
        job: text(v, "TORCHELASTIC_RUN_ID"),
        attempt: restarts.unwrap_or(0),
    };
    if size > 1 && v.options.rendezvous.is_none() {
        for (name, other) in [("MASTER_ADDR", "MASTER_PORT"), ("MASTER_PORT", "MASTER_ADDR")] {
            if v.any(&[other]) && !v.any(&[name]) {
                let message = format!(
                    "{name} is not set, but RANK, WORLD_SIZE and {other} are: set it, or pass --rendezvous tcp://HOST:PORT"
                );
                return Err(Error::new(ErrorKind::World, message));
            }
        }
    }
    start.world(v, |_| Ok(None))
}

fn open_mpi(v: &Variables<'_>) -> Result<World> {
    let size = v.required(v.options.size, "OMPI_COMM_WORLD_SIZE", "--world-size", "OMPI_COMM_WORLD_RANK")?;
    let local_size = v.count("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let beside = "OMPI_COMM_WORLD_SIZE";
    let start = Start {
        launcher: "Open MPI",
        rank: v.required(v.options.rank, "OMPI_COMM_WORLD_RANK", "--rank", beside)?,
        size,
        local_rank: v.required(v.options.local_rank, "OMPI_COMM_WORLD_LOCAL_RANK", "--local-rank", beside)?,
        local_size,
        job: text(v, "PMIX_NAMESPACE"),
        attempt: 0,
    };
    start.world(v, |job| on_one_host(v, size, local_size, job))
}

/// MPICH, Intel MPI and others whose launcher speaks PMI.
fn pmi(v: &Variables<'_>) -> Result<World> {
    let size = v.required(v.options.size, "PMI_SIZE", "--world-size", "PMI_RANK")?;
    let local_size = v.count("MPI_LOCALNRANKS")?;
    let start = Start {
        launcher: "PMI",
        rank: v.required(v.options.rank, "PMI_RANK", "--rank", "PMI_SIZE")?,
        size,
        local_rank: v.required(v.options.local_rank, "MPI_LOCALRANKID", "--local-rank", "PMI_RANK")?,
        local_size,
        job: String::new(),
        attempt: 0,
    };
    start.world(v, |job| on_one_host(v, size, local_size, job))
}

/// mpirun does not say on which host rank 0 is. That is known only if all ranks are on this one.
fn on_one_host(
    v: &Variables<'_>,
    size: usize,
    local_size: Option<usize>,
    job: &str,
) -> Result<Option<Address>> {
    match local_size == Some(size) {
        true => Ok(Some(v.tcp("127.0.0.1", job)?)),
        false => Ok(None),
    }
}

/// srun's own PMI sets `PMI_RANK`, too, but no local rank; Slurm's variables have all.
fn pmi_of_slurm(v: &Variables<'_>) -> bool {
    v.any(&["SLURM_LOCALID"]) && v.text("SLURM_PROCID") == v.text("PMI_RANK") && !outside_srun(v)
}

/// In a batch script and in an interactive allocation Slurm sets `SLURM_PROCID` to 0, though no other process was started.
fn outside_srun(v: &Variables<'_>) -> bool {
    match v.text("SLURM_STEP_ID").map(str::parse::<u64>) {
        Some(Ok(step)) => step >= 0xffff_fff0, // numbers that Slurm reserves for the batch script and the like
        Some(Err(_)) => false,
        None => v.text("ENVIRONMENT") == Some("BATCH"),
    }
}

fn slurm(v: &Variables<'_>) -> Result<World> {
    // A step may have fewer tasks than its job.
    let tasks = if v.any(&["SLURM_STEP_NUM_TASKS"]) { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
    let size = v.required(v.options.size, tasks, "--world-size", "SLURM_PROCID")?;
    let start = Start {
        launcher: "Slurm",
        rank: v.required(v.options.rank, "SLURM_PROCID", "--rank", tasks)?,
        size,
        local_rank: v.required(v.options.local_rank, "SLURM_LOCALID", "--local-rank", "SLURM_PROCID")?,
        local_size: None,
        job: match v.text("SLURM_JOB_ID") {
            Some(job) => format!("{job}.{}", v.text("SLURM_STEP_ID").unwrap_or("0")),
            None => String::new(),
        },
        attempt: v.number("SLURM_RESTART_COUNT")?.unwrap_or(0),
    };
    start.world(v, |job| {
        let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
        let Some((name, list)) = lists.iter().find_map(|name| v.text(name).map(|list| (name, list))) else {
            let message = "SLURM_PROCID is set, but none of SLURM_STEP_NODELIST and SLURM_JOB_NODELIST is, so the host of rank \
                           0 is not known: start with srun, or pass --rendezvous tcp://HOST:PORT";
            return Err(Error::new(ErrorKind::World, message));
        };
        let host = first_host(list).ok_or_else(|| {
            let message = format!("{name} is {list:?}, which is no list of hosts: pass --rendezvous tcp://HOST:PORT");
            Error::new(ErrorKind::World, message)
        })?;
        Ok(Some(v.tcp(&host, job)?))
    })
}

fn kubernetes(v: &Variables<'_>) -> Result<World> {
    let launcher = "Kubernetes";
    let size = match v.options.size {
        Some(size) => size,
        None => v.count("WORLD_SIZE")?.ok_or_else(|| {
            let message = "JOB_COMPLETION_INDEX is set, but WORLD_SIZE is not: set WORLD_SIZE in the manifest to the number of \
                           completions, or to 1 if each pod works alone";
            Error::new(ErrorKind::World, message)
        })?,
    };
    if size == 1 && v.options.rank.is_none() {
        return Start {
            launcher,
            rank: 0,
            size,
            local_rank: 0,
            local_size: Some(1),
            job: String::new(),
            attempt: 0,
        }
        .world(v, |_| Ok(None));
    }
    let start = Start {
        launcher,
        rank: v.required(v.options.rank, "JOB_COMPLETION_INDEX", "--rank", "WORLD_SIZE")?,
        size,
        local_rank: v.options.local_rank.unwrap_or(0), // a pod has its own GPUs
        local_size: None,
        job: text(v, "REFRAIN_JOB"),
        attempt: v.number("REFRAIN_ATTEMPT")?.unwrap_or(0),
    };
    start.world(v, |_| {
        let missing = |what: &str| {
            let message = format!(
                "{what}, so the host of rank 0 is not known: set REFRAIN_SERVICE in the manifest to the name of the headless \
                 service (and subdomain to the same), or set MASTER_ADDR"
            );
            Error::new(ErrorKind::World, message)
        };
        let service = v.text("REFRAIN_SERVICE").ok_or_else(|| missing("REFRAIN_SERVICE is not set"))?;
        // The pods of an Indexed Job are called by the name of the job and their index.
        let pod = v.text("HOSTNAME").unwrap_or_default();
        let index = text(v, "JOB_COMPLETION_INDEX");
        let job = pod.strip_suffix(&format!("-{index}")).filter(|job| !job.is_empty());
        let job = job.ok_or_else(|| missing(&format!("HOSTNAME is {pod:?}, which does not end in -{index}")))?;
        let port = if v.any(&["MASTER_PORT"]) { v.port("")? } else { PORT };
        Ok(Some(Address::Tcp { host: format!("{job}-0.{service}"), port }))
    })
}

/// No launcher: the options say all, or the process is alone.
fn nobody(v: &Variables<'_>) -> Result<World> {
    let WorldOptions { rank, size, local_rank, .. } = *v.options;
    match (rank, size) {
        (None, None | Some(1)) => {
            if let Some(size) = v.count("WORLD_SIZE")?.filter(|&n| n != 1 && size.is_none()) {
                let message = format!(
                    "WORLD_SIZE is {size}, but nothing says which rank this process is: start it with torchrun, srun, mpirun or \
                     as an Indexed Job, or set RANK and LOCAL_RANK, or unset WORLD_SIZE to train alone"
                );
                return Err(Error::new(ErrorKind::World, message));
            }
            let WorldOptions { job, attempt, rendezvous, local_rank, .. } = v.options.clone();
            Ok(World {
                job: job.unwrap_or_default(),
                attempt: attempt.unwrap_or(0),
                rendezvous,
                local_rank: local_rank.unwrap_or(0),
                local_size: None,
                ..World::one()
            })
        }
        (Some(rank), Some(size)) => Start {
            launcher: "the command line",
            rank,
            size,
            local_rank: local_rank.unwrap_or(0),
            local_size: None,
            job: String::new(),
            attempt: 0,
        }
        .world(v, |_| Ok(None)),
        (rank, _) => {
            let (given, other) =
                if rank.is_some() { ("--rank", "--world-size") } else { ("--world-size", "--rank") };
            let message = format!("{given} is given without {other}: pass both, or neither to train alone");
            Err(Error::new(ErrorKind::World, message))
        }
    }
}
