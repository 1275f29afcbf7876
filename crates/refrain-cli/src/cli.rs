//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::settings::{Settings, preset_names};

/// Trains forecasters of time series and classifiers of panels, and measures the engine that does it.
#[derive(Debug, Parser)]
#[command(name = "refrain", version, max_term_width = 110)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
    /// Threads of the CPU [default: RAYON_NUM_THREADS, or one a core]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a forecaster and compare it with simple forecasts, or a classifier of the sources of a panel
    #[command(
        after_help = "Without arguments it trains PatchTST on the bundled weather of New York City; with --model \
        cross-asset, on the same weather as a panel: the airports are the sources, and whether it will be warmer or \
        colder by more than 2 °F in six hours is what is told."
    )]
    Train(Box<Train>),
    /// Measure a trained forecaster on the test part of a series
    Evaluate(Evaluate),
    /// Forecast what follows the last row of a series
    Forecast(Forecast),
    /// Measure speed
    #[command(subcommand)]
    Bench(Bench),
    /// Tell what this machine can compute on
    Devices(Devices),
}

#[derive(Debug, Args)]
pub struct Train {
    #[command(flatten)]
    pub settings: Settings,
    /// Settings by name, under those of --config and flags
    #[arg(long, value_name = "NAME", value_parser = preset_names())]
    pub preset: Option<String>,
    /// Settings from a TOML file, under those of flags
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The run's folder [default: runs/SERIES-NUMBER]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Run operation by operation, instead of recording the step once and replaying it
    #[arg(long)]
    pub eager: bool,
    /// Save not only after each epoch but also every so often: 90s, 5min, 2h, 500steps; or epoch
    #[arg(long, value_name = "TIME|STEPS", default_value = "5min", value_parser = checkpoint_every)]
    pub checkpoint_every: CheckpointEvery,
    /// Go on with an interrupted run, with its settings
    #[arg(long, value_name = "DIR", conflicts_with_all = ["preset", "config", "out"])]
    pub resume: Option<PathBuf>,
    /// Go on with the run in --out if one was begun there, else begin it: for jobs that are restarted as they are
    #[arg(long, requires = "out", conflicts_with = "resume")]
    pub resume_if_possible: bool,
    #[command(flatten)]
    pub device: DeviceArg,
    /// End with one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Evaluate {
    /// The run's folder
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The series [default: that of the training]; - is standard input
    #[arg(long, value_name = "NAME|FILE")]
    pub data: Option<String>,
    #[command(flatten)]
    pub device: DeviceArg,
    /// One line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Forecast {
    /// The run's folder
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The series whose future to forecast [default: that of the training]; - is standard input
    #[arg(long, value_name = "NAME|FILE")]
    pub data: Option<String>,
    /// The CSV file to write, in original units; - is standard output
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    #[command(flatten)]
    pub device: DeviceArg,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Train a small PatchTST on random walks, whose mean it is to tell
    Patchtst(BenchPatchtst),
    /// Train cross-asset attention on random features, of which labels follow from those of neighbours
    CrossAsset(BenchCrossAsset),
    /// Time one training step on rotating random batches
    #[command(
        after_help = "The first step is timed by itself: on a GPU its kernels are compiled in it, unless they are in \
        the cache. REFRAIN_CACHE= (empty) uses none."
    )]
    Step(BenchStep),
}

#[derive(Debug, Args)]
pub struct BenchPatchtst {
    /// Number of samples
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub samples: usize,
    /// Number of channels
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub channels: usize,
    /// Number of epochs
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub epochs: usize,
    /// Samples a step
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub batch_size: usize,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    pub lr: f64,
    /// Run operation by operation, instead of recording the step once and replaying it
    #[arg(long)]
    pub eager: bool,
    /// Seed of the data, the weights and the order of the samples
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    #[command(flatten)]
    pub device: DeviceArg,
    /// End with one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchCrossAsset {
    /// Number of samples, each of 12 sources of 32 features
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = at_least_one)]
    pub samples: usize,
    /// Number of epochs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub epochs: usize,
    /// Samples a step
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub batch_size: usize,
    /// Micro-batches that a step is cut into, their gradients added up
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub accumulate: usize,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    pub lr: f64,
    /// How matrix products are computed
    #[arg(long, value_name = "NAME", default_value = "f32")]
    pub precision: Precision,
    /// Run operation by operation, instead of recording the step once and replaying it
    #[arg(long)]
    pub eager: bool,
    /// Seed of the data, the weights and the order of the samples
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    #[command(flatten)]
    pub device: DeviceArg,
    /// End with one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchStep {
    /// The sizes of model and batch
    #[arg(long, value_name = "NAME")]
    pub config: StepConfig,
    /// How matrix products are computed, and what activations are
    #[arg(long, value_name = "NAME", default_value = "f32")]
    pub precision: Precision,
    /// Run operation by operation, instead of recording the step once and replaying it
    #[arg(long)]
    pub eager: bool,
    /// Tell at the end what each operation of the step takes
    #[arg(long, conflicts_with = "eager")]
    pub profile: bool,
    /// Steps a repeat
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub steps: usize,
    /// Repeats, of which median, minimum and maximum are told
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeats: usize,
    /// Steps before the first repeat
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub warmup: usize,
    /// Seed of weights and batches
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    #[command(flatten)]
    pub device: DeviceArg,
    /// End with one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Devices {
    /// One line of JSON
    #[arg(long)]
    pub json: bool,
}

/// Where to compute.
#[derive(Debug, Clone, Copy, Args)]
pub struct DeviceArg {
    /// Where to compute: auto (the fastest that is here), cpu, cuda, cuda:N; sim or sim:unified (a simulated GPU)
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = device)]
    pub device: DeviceChoice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    Auto,
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
    /// A simulated GPU.
    Sim(refrain::Simulator),
}

fn device(text: &str) -> Result<DeviceChoice, String> {
    match text {
        "auto" => Ok(DeviceChoice::Auto),
        "cpu" => Ok(DeviceChoice::Cpu),
        "cuda" => Ok(DeviceChoice::Cuda(0)),
        _ if text.starts_with("sim") => {
            text.parse().map(DeviceChoice::Sim).map_err(|e: refrain::Error| e.to_string())
        }
        _ => {
            text.strip_prefix("cuda:").and_then(|n| n.parse().ok()).map(DeviceChoice::Cuda).ok_or_else(|| {
                "use auto, cpu, cuda, cuda:N, sim or sim:unified (`refrain devices` lists what is here)"
                    .to_owned()
            })
        }
    }
}

impl DeviceArg {
    pub fn open(self) -> refrain::Result<refrain::Device> {
        match self.device {
            DeviceChoice::Auto => Ok(refrain::Device::best()),
            DeviceChoice::Cpu => Ok(refrain::Device::cpu()),
            DeviceChoice::Cuda(ordinal) => refrain::Device::cuda(ordinal),
            DeviceChoice::Sim(simulator) => Ok(simulator.device()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StepConfig {
    /// Context 24, d_model 64, 2 layers, batch 64 x 20 channels
    Seed,
    /// Context 336, d_model 16, 3 layers, batch 128 x 7 channels (ETTh1 in the paper)
    Small,
    /// Context 336, d_model 128, 3 layers, batch 32 x 21 channels (Weather in the paper)
    Large,
    /// Cross-asset attention: 12 sources of 32 features, d_model 256, 2 layers, batch 256
    Cross,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floating point
    #[default]
    F32,
    /// 32-bit floating point; on a GPU factors are rounded to TF32
    Tf32,
    /// Mixed precision: activations are bf16, parameters and losses f32
    Bf16,
}

impl Precision {
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
        }
    }

    pub fn setting(self) -> refrain::Precision {
        match self {
            Precision::F32 => refrain::Precision::F32,
            Precision::Tf32 => refrain::Precision::Tf32,
            Precision::Bf16 => refrain::Precision::Bf16,
        }
    }
}

/// When a run is saved between the ends of its epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointEvery {
    /// When so much time has passed since it was last saved.
    Time(Duration),
    /// After so many steps.
    Steps(u64),
    /// Never.
    Epoch,
}

fn checkpoint_every(text: &str) -> Result<CheckpointEvery, String> {
    if text == "epoch" {
        return Ok(CheckpointEvery::Epoch);
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().unwrap_or(0);
    let seconds = |each: u64| CheckpointEvery::Time(Duration::from_secs(number.saturating_mul(each)));
    match (number, unit.trim()) {
        (1.., "ms") => Ok(CheckpointEvery::Time(Duration::from_millis(number))),
        (1.., "s" | "seconds") => Ok(seconds(1)),
        (1.., "min" | "minutes") => Ok(seconds(60)),
        (1.., "h" | "hours") => Ok(seconds(3600)),
        (1.., "steps") => Ok(CheckpointEvery::Steps(number)),
        _ => Err("write a number from 1 and its unit, as in 90s, 5min, 2h or 500steps, or epoch".to_owned()),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("choose 1 or more".to_owned()),
        Ok(value) => Ok(value),
        Err(error) => Err(format!("{error}; choose a whole number from 1")),
    }
}

impl Cli {
    /// The command line of this process; a wrong one ends the process with a message and status 2.
    pub fn from_process() -> Cli {
        let matches = command().get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// The command line.
fn command() -> clap::Command {
    // The last of a flag given twice counts, so that a command line can be gone over by adding to it.
    let train = |train: clap::Command| train.args_override_self(true);
    Cli::command().args_override_self(true).mut_subcommand("train", train)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::known;

    #[test]
    fn checkpoints_come_by_time_or_steps() {
        let minutes = |n: u64| CheckpointEvery::Time(Duration::from_secs(60 * n));
        for (text, expected) in [
            ("5min", minutes(5)),
            ("300 s", minutes(5)),
            ("2h", minutes(120)),
            ("500steps", CheckpointEvery::Steps(500)),
            ("epoch", CheckpointEvery::Epoch),
        ] {
            assert_eq!(checkpoint_every(text), Ok(expected), "{text}");
        }
        for text in ["5", "0s", "0steps", "-1s", "1.5h", "often", ""] {
            assert!(checkpoint_every(text).unwrap_err().contains("5min"), "{text}");
        }
    }

    #[test]
    fn the_command_line_is_sound_and_tells_every_default() {
        command().debug_assert();
        let mut train = command().find_subcommand("train").unwrap().clone();
        let help = train.render_long_help().to_string();
        assert!(help.contains("[default: 64; 256 for cross-asset]"), "{help}");
        for known in known() {
            let setting = &known.placed.setting;
            let (name, value) = (setting.name(), setting.default());
            let default = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let said =
                help.split(&format!("      --{name} ")).nth(1).unwrap_or_else(|| panic!("{name} is no flag"));
            assert!(said.contains(&format!("[default: {default}")), "{name}: {said}");
        }
    }
}
