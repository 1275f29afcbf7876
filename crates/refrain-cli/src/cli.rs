//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use refrain_forecast::data::series::SplitRule;
use refrain_forecast::settings::Values;

use refrain_rendezvous::{Address, World, WorldOptions};

use crate::console::Verbosity;
use crate::precision::Precision;
use crate::settings::{Complete, DialectFlags, Settings, preset_names};

/// Train time-series forecasters and panel classifiers, make forecasts, and measure speed.
#[derive(Debug, Parser)]
#[command(name = "refrain", version, max_term_width = 110)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
    /// Number of CPU threads [default: RAYON_NUM_THREADS, or one per core]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Print only warnings, errors and what was asked for
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Also print what the engine does: launches, replays and storages
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

impl Cli {
    /// How much to print.
    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a forecaster of a series, or a classifier of the sources of a panel
    #[command(
        after_help = "Without arguments, this trains PatchTST on the bundled weather of New York City, with the preset of that name. With --model cross-asset, \
        it trains on the same weather as a panel: the airports are the sources, and the model predicts whether it \
        will be warmer or colder by more than 2 °F in six hours."
    )]
    Train(Box<Train>),
    /// Train several models on the same parts of a series, and compare them with each other and with the baselines
    #[command(
        after_help = "Each model has a run folder of its own inside --out, as `refrain train` writes it. comparison.csv, comparison.json and \
        comparison.svg have the test errors of all. A setting holds for every model that has it; how the series is read and cut is the same for \
        all. After Ctrl-C, --resume continues."
    )]
    Compare(Box<Compare>),
    /// Forecast a series from several origins in its past, each by a model that has seen nothing of it after its origin
    #[command(
        after_help = "Writes forecasts.csv (unique_id, ds, cutoff, y, forecast and the bounds of intervals), the metrics of each origin, and the \
        model of each window into the folder --out. A forecaster has the settings of `refrain train`."
    )]
    CrossValidate(Box<CrossValidate>),
    /// Measure the errors of a trained model on the test part of its data
    #[command(
        after_help = "A forecaster is compared with baselines on the test part of a series. A classifier is tested on the test \
        part of each fold of a panel; for one fold alone, pass its folder (DIR/fold-2)."
    )]
    Evaluate(Evaluate),
    /// Forecast the rows that follow the last row of a series, or the classes of the sources of a panel
    #[command(
        after_help = "A forecaster writes the column time and one column per channel, in the units of the series; for a long file the columns unique_id, \
        ds and forecast. A model of independent series forecasts any ids, also those that it has not been trained on. A classifier writes the columns source, time, up, \
        down and flat: the probability of each class for each source at the last moment of the panel, which needs \
        no labels. It uses the model of the last fold; for another, pass its folder (DIR/fold-2)."
    )]
    Forecast(Forecast),
    /// Make a run folder of a PatchTST of Hugging Face's transformers
    #[command(
        after_help = "DIR has config.json and model.safetensors, as save_pretrained of PatchTSTForPrediction or PatchTSTForPretraining writes them. The series gives the run its channels, its split and the scale of each channel. The run is then evaluated, forecasts, and is trained further (refrain train --init) like any other."
    )]
    Import(Import),
    /// Write the PatchTST of a run for Hugging Face's transformers
    #[command(after_help = "PatchTSTForPrediction.from_pretrained loads the folder that this writes.")]
    Export(Export),
    /// Measure speed
    #[command(subcommand)]
    Bench(Bench),
    /// List the devices of this machine
    Devices(Devices),
    /// Print what makes a shell complete this command
    #[command(
        after_help = "For bash: refrain completions bash > ~/.local/share/bash-completion/completions/refrain\nFor zsh: refrain completions zsh > ~/.zfunc/_refrain\nFor fish: refrain completions fish > ~/.config/fish/completions/refrain.fish"
    )]
    Completions(Completions),
    /// Write the manual pages of all commands
    Man(Man),
}

/// What the commands that train have in common: the settings of the training, and where they come from.
#[derive(Debug, Clone, Args)]
pub struct TrainingArgs {
    #[command(flatten)]
    pub settings: Settings,
    /// A named set of settings; --config and flags override it [default: that of the data, if it has one]
    #[arg(long, value_name = "NAME", value_parser = preset_names())]
    pub preset: Option<String>,
    /// A file with settings, or the config.json of a run, as TOML or JSON; flags override it, and it overrides the preset
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Run each operation eagerly instead of recording the step once and replaying it
    #[arg(long)]
    pub eager: bool,
    /// Also write the metrics of each epoch as an event file, which TensorBoard reads, into the run folder
    #[arg(long)]
    pub tensorboard: bool,
}

impl TrainingArgs {
    /// All settings: flags, those of the file, `base`, the preset, and the defaults.
    pub fn resolve(&self, base: Values) -> crate::error::Result<Complete> {
        self.settings.clone().resolve_over(self.config.as_deref(), self.preset.as_deref(), base)
    }
}

#[derive(Debug, Args)]
pub struct Train {
    #[command(flatten)]
    pub training: TrainingArgs,
    /// Begin with the weights of a forecaster's run, of a PatchTST of Hugging Face, or of a safetensors file
    ///
    /// The settings of that model are the defaults. Its head is left out if another horizon or loss is asked for.
    #[arg(long, value_name = "DIR|FILE", conflicts_with = "resume")]
    pub init: Option<PathBuf>,
    /// The run folder [default: runs/SERIES-NUMBER]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// How often to save the run, besides after each epoch: 90s, 5min, 2h, 500steps; or epoch (only then)
    #[arg(long, value_name = "TIME|STEPS", default_value = "5min", value_parser = checkpoint_every)]
    pub checkpoint_every: CheckpointEvery,
    /// Resume the interrupted run in this folder, with its settings
    #[arg(long, value_name = "DIR", conflicts_with_all = ["preset", "config", "out"])]
    pub resume: Option<PathBuf>,
    /// Resume the run in --out if there is one, or else start it; for jobs that may be restarted
    #[arg(long, requires = "out", conflicts_with = "resume")]
    pub resume_if_possible: bool,
    /// Print the data, the split, the model, and how much memory and time the run would take, and end; nothing is written
    #[arg(long, conflicts_with_all = ["resume", "resume_if_possible"])]
    pub dry_run: bool,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub device: DeviceArg,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Compare {
    /// The models, separated by commas, such as patchtst,dlinear,itransformer
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', required_unless_present = "resume")]
    pub models: Vec<String>,
    #[command(flatten)]
    pub training: TrainingArgs,
    /// The folder for the table, the plot and the run folders [default: runs/SERIES-comparison-NUMBER]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue the interrupted comparison in this folder, with its settings
    #[arg(long, value_name = "DIR", conflicts_with_all = ["models", "preset", "config", "out"])]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArg,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CrossValidate {
    /// Number of origins
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub windows: usize,
    /// Rows from one origin to the next [default: the horizon]
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    pub step: Option<usize>,
    /// Rows before each origin that choose the best epoch [default: the horizon]
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    pub validation: Option<usize>,
    /// Train again for each origin, instead of once for the first
    #[arg(long)]
    pub refit: bool,
    /// Train for so many origins at a time, each in a process of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one, requires = "refit")]
    pub processes: usize,
    /// The format of the file of forecasts
    #[arg(long, value_name = "FORMAT", default_value = "csv")]
    pub format: TableFormat,
    /// Only train for this origin, into --out: what --processes starts
    #[arg(long, hide = true)]
    pub train_window: Option<usize>,
    #[command(flatten)]
    pub training: TrainingArgs,
    /// The folder for forecasts, metrics and models [default: runs/SERIES-cross-validation-NUMBER]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArg,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Evaluate {
    /// The run folder
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The series or panel [default: the data of the training]; - is standard input. It is read as the data of the training, unless flags such as --separator say otherwise
    #[arg(long, value_name = "NAME|FILE")]
    pub data: Option<String>,
    #[command(flatten)]
    pub dialect: DialectFlags,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub device: DeviceArg,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Forecast {
    /// The run folder
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The series or panel to forecast [default: the data of the training]; - is standard input. It is read as the data of the training, unless flags such as --separator say otherwise
    #[arg(long, value_name = "NAME|FILE")]
    pub data: Option<String>,
    #[command(flatten)]
    pub dialect: DialectFlags,
    /// Only these ids of a long file, columns of a wide one, or sources of a panel, separated by commas [default: all]
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    pub ids: Option<Vec<String>>,
    /// The time at which the forecast begins; rows from then on are not used [default: after the last row]
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Rows of the forecast, at most those of the training; several, such as 24,96, give one forecast each, told apart by a column `horizon` [default: that of the training]
    #[arg(long, value_name = "ROWS,...", value_delimiter = ',', value_parser = at_least_one)]
    pub horizon: Vec<usize>,
    /// The file to write: Parquet if its name ends in .parquet, otherwise CSV; - is standard output
    #[arg(long, value_name = "FILE", required_unless_present = "json")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub device: DeviceArg,
    /// Print the forecast as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Import {
    /// The folder with config.json and model.safetensors
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The series that the model is for: `nyc-weather` (bundled), a CSV file, or - for standard input
    #[arg(long, value_name = "NAME|FILE")]
    pub data: String,
    #[command(flatten)]
    pub dialect: DialectFlags,
    /// How to split the rows in time, as for train: fractions such as `0.7,0.1,0.2`, or `ett`
    #[arg(long, value_name = "RULE")]
    pub split: Option<SplitRule>,
    /// The run folder to write
    #[arg(long, value_name = "RUN")]
    pub out: PathBuf,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Export {
    /// The run folder
    #[arg(value_name = "RUN")]
    pub model: PathBuf,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Train a small PatchTST to predict the mean of random walks
    Patchtst(BenchPatchtst),
    /// Train cross-asset attention on random features; the labels depend on the neighbours' features
    CrossAsset(BenchCrossAsset),
    /// Time one training step on rotating random batches
    #[command(
        after_help = "The first step is timed separately: on a GPU it also compiles the kernels that are not in the cache. \
        REFRAIN_CACHE= (empty) switches the cache off. In a job (torchrun, srun, mpirun), each rank first runs the step alone, then \
        all of them run it as one training, with their gradients added up; both by the trainer of `refrain train`."
    )]
    Step(BenchStep),
    /// Time how long the weights of a safetensors file take to the device
    Load(BenchLoad),
    /// Time the forecast of one window by a trained forecaster, of one caller or of several at once
    #[command(
        after_help = "The windows are random. Each caller waits for its forecast before it asks for the next one. The recorded forward pass is \
        replayed, as the library's Predictor does it."
    )]
    Predict(BenchPredict),
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
    /// Samples per step
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub batch_size: usize,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    pub lr: f64,
    /// Run each operation eagerly instead of recording the step once and replaying it
    #[arg(long)]
    pub eager: bool,
    /// In a job: share each batch among the ranks, instead of giving each rank a batch of its own
    #[arg(long)]
    pub strong: bool,
    /// Seed of the data, the weights and the order of the samples
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub device: DeviceArg,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchCrossAsset {
    /// Number of samples; each has 12 sources with 32 features
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = at_least_one)]
    pub samples: usize,
    /// Number of epochs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub epochs: usize,
    /// Samples per step
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub batch_size: usize,
    /// Micro-batches per step; their gradients are added up
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub accumulate: usize,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    pub lr: f64,
    /// Precision of matrix products
    #[arg(long, value_name = "NAME", default_value = "f32")]
    pub precision: Precision,
    /// Run each operation eagerly instead of recording the step once and replaying it
    #[arg(long)]
    pub eager: bool,
    /// In a job: share each batch among the ranks, instead of giving each rank a batch of its own
    #[arg(long)]
    pub strong: bool,
    /// Seed of the data, the weights and the order of the samples
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub device: DeviceArg,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchStep {
    /// The model and batch to measure
    #[arg(long, value_name = "NAME")]
    pub config: StepConfig,
    /// Precision of matrix products and activations
    #[arg(long, value_name = "NAME", default_value = "f32")]
    pub precision: Precision,
    /// Run each operation eagerly instead of recording the step once and replaying it
    #[arg(long)]
    pub eager: bool,
    /// Also print the time of each operation of the step
    #[arg(long, conflicts_with = "eager")]
    pub profile: bool,
    /// In a job: share the batch of the configuration among the ranks, instead of giving each rank all of it
    #[arg(long)]
    pub strong: bool,
    /// Steps per repeat
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub steps: usize,
    /// Number of repeats; the median, minimum and maximum are printed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeats: usize,
    /// Steps before the first repeat, not timed
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub warmup: usize,
    /// Seed of the weights and the batches
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub device: DeviceArg,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchLoad {
    /// A safetensors file, or the index of several; a model with its names and shapes is made for it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Number of loads; the first one also allocates memory
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repeats: usize,
    #[command(flatten)]
    pub device: DeviceArg,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchPredict {
    /// The run folder
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// How many threads ask for forecasts at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub callers: usize,
    /// Forecasts of each caller
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = at_least_one)]
    pub forecasts: usize,
    /// Forecasts of each caller before those, not timed
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub warmup: usize,
    #[command(flatten)]
    pub device: DeviceArg,
    /// Print the result as one line of JSON on standard output; everything else goes to standard error
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Devices {
    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct Man {
    /// The folder to write: refrain.1, refrain-train.1, ... [default: refrain.1 on standard output]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

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

/// The format of a table that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// Comma-separated values
    Csv,
    /// Apache Parquet
    Parquet,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StepConfig {
    /// Context 24, d_model 64, 2 layers, batch 64 x 20 channels
    Seed,
    /// Context 336, d_model 16, 3 layers, batch 128 x 7 channels (ETTh1 in the paper)
    Small,
    /// Context 336, d_model 128, 3 layers, batch 32 x 21 channels (Weather in the paper)
    Large,
    /// Context 512, d_model 512, 6 layers, batch 64 x 21 channels
    Wide,
    /// Context 2048 in 509 patches, d_model 256, 3 layers, batch 8 x 7 channels
    Long,
    /// Cross-asset attention: 12 sources of 32 features, d_model 256, 2 layers, batch 256
    Cross,
}

/// When a run is saved, besides after each epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointEvery {
    /// When this much time has passed since the last save.
    Time(Duration),
    /// After this many steps.
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
        _ => {
            Err("write a whole number and its unit, such as 90s, 5min, 2h or 500steps, or write epoch"
                .to_owned())
        }
    }
}

fn time(text: &str) -> Result<Duration, String> {
    match checkpoint_every(text) {
        Ok(CheckpointEvery::Time(time)) => Ok(time),
        _ => Err("write a whole number and its unit, such as 90s, 5min or 2h".to_owned()),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("choose 1 or more".to_owned()),
        Ok(value) => Ok(value),
        Err(error) => Err(format!("{error}; choose a whole number of 1 or more")),
    }
}

impl Cli {
    /// Parses the command line of this process. On a wrong one, the process ends with a message and status 2.
    pub fn from_process() -> Cli {
        let matches = command().get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// The command line.
pub fn command() -> clap::Command {
    // If a flag is given twice, the last one counts: so you can change a command line by adding to it.
    let train = |train: clap::Command| train.args_override_self(true);
    Cli::command()
        .args_override_self(true)
        .mut_subcommand("train", train)
        .mut_subcommand("compare", train)
        .mut_subcommand("cross-validate", train)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::known;

    #[test]
    fn checkpoint_every_accepts_times_and_steps() {
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
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        for text in ["500steps", "epoch", "90"] {
            assert!(time(text).unwrap_err().contains("90s"), "{text}");
        }
    }

    #[test]
    fn the_command_line_is_valid_and_its_help_shows_every_default() {
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
