//! The options that several commands have: the device, and the processes of a job.

use std::time::Duration;

use clap::Args;

use refrain_rendezvous::{Address, World, WorldOptions};

use super::training::{CheckpointEvery, checkpoint_every};

/// Which of several processes that train together this one is.
#[derive(Debug, Args)]
pub struct RankArgs {
    /// The number of this process among those that train together, from 0 [default: that of torchrun, srun, mpirun or an Indexed Job]
    #[arg(long, value_name = "N")]
    pub rank: Option<usize>,
    /// How many processes train together, one for each GPU [default: that of the launcher, or 1]
    #[arg(long, value_name = "N")]
    pub world_size: Option<usize>,
    /// The number of this process on its host, which is that of its GPU [default: that of the launcher, or 0]
    #[arg(long, value_name = "N")]
    pub local_rank: Option<usize>,
    /// Where the processes meet: tcp://HOST:PORT (of rank 0) or file:///PATH (on a shared disk) [default: where the launcher says]
    #[arg(long, value_name = "ADDRESS")]
    pub rendezvous: Option<Address>,
    /// Meet on a public address although REFRAIN_RENDEZVOUS_TOKEN is not set: whoever reaches it can take part
    #[arg(long)]
    pub rendezvous_without_token: bool,
    /// How long the processes wait for each other: 90s, 5min, 2h
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = time)]
    pub rendezvous_timeout: Duration,
    /// Within what time each process learns that another one died or hangs
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub failure_timeout: Duration,
}

impl RankArgs {
    /// Which process of how many this is, from the options and the environment.
    pub fn world(&self) -> Result<World, refrain_rendezvous::Error> {
        World::from_environment(&WorldOptions {
            rank: self.rank,
            size: self.world_size,
            local_rank: self.local_rank,
            rendezvous: self.rendezvous.clone(),
            ..WorldOptions::default()
        })
    }
}

/// The device to compute on.
#[derive(Debug, Clone, Copy, Args)]
pub struct DeviceArg {
    /// The device: auto (a GPU if there is one, or else the CPU), cpu, cuda, cuda:N, sim or sim:unified (a simulated GPU)
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = device)]
    pub device: DeviceChoice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    Auto,
    Cpu,
    /// The GPU of this number; without one, the first, or that of the process if several train together.
    Cuda(Option<usize>),
    /// A simulated GPU.
    Sim(refrain::Simulator),
}

fn device(text: &str) -> Result<DeviceChoice, String> {
    match text {
        "auto" => Ok(DeviceChoice::Auto),
        "cpu" => Ok(DeviceChoice::Cpu),
        "cuda" => Ok(DeviceChoice::Cuda(None)),
        _ if text.starts_with("sim") => {
            text.parse().map(DeviceChoice::Sim).map_err(|e: refrain::Error| e.to_string())
        }
        _ => text
            .strip_prefix("cuda:")
            .and_then(|n| n.parse().ok())
            .map(|n| DeviceChoice::Cuda(Some(n)))
            .ok_or_else(|| {
                "use auto, cpu, cuda, cuda:N, sim or sim:unified (`refrain devices` lists them)".to_owned()
            }),
    }
}

impl DeviceArg {
    pub fn open(self) -> refrain::Result<refrain::Device> {
        self.open_for(0)
    }

    /// Opens the device of the process with this number on its host.
    pub fn open_for(self, local_rank: usize) -> refrain::Result<refrain::Device> {
        let cuda = refrain::Device::cuda;
        match self.device {
            DeviceChoice::Auto => Ok(cuda(local_rank).unwrap_or_else(|_| refrain::Device::cpu())),
            DeviceChoice::Cpu => Ok(refrain::Device::cpu()),
            DeviceChoice::Cuda(ordinal) => cuda(ordinal.unwrap_or(local_rank)),
            DeviceChoice::Sim(simulator) => Ok(simulator.device()),
        }
    }
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    match checkpoint_every(text) {
        Ok(CheckpointEvery::Time(time)) => Ok(time),
        _ => Err("write a whole number and its unit, such as 90s, 5min or 2h".to_owned()),
    }
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("choose 1 or more".to_owned()),
        Ok(value) => Ok(value),
        Err(error) => Err(format!("{error}; choose a whole number of 1 or more")),
    }
}
