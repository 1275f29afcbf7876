//! The options of `refrain bench`.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::shared::{DeviceArg, RankArgs, at_least_one};
use crate::precision::Precision;

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
    /// Precision of matrix products and activations
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
    /// The model and batch to measure: seed, small, large, wide, long, cross, or a file of settings as `refrain train --config` reads
    /// it
    ///
    /// seed: PatchTST with context 24, d_model 64, 2 layers, batch 64 x 20 channels.
    /// small: context 336, d_model 16, 3 layers, batch 128 x 7 channels (ETTh1 in the paper).
    /// large: context 336, d_model 128, 3 layers, batch 32 x 21 channels (Weather in the paper).
    /// wide: context 512, d_model 512, 6 layers, batch 64 x 21 channels.
    /// long: context 2048 in 509 patches, d_model 256, 3 layers, batch 8 x 7 channels.
    /// cross: cross-asset attention with 12 sources of 32 features, d_model 256, 2 layers, batch 256.
    /// FILE: any forecaster, its loss and its batch, without covariates; what the file leaves out is as `refrain train` has it.
    #[arg(long, value_name = "NAME|FILE", value_parser = StepConfig::parse, verbatim_doc_comment)]
    pub config: StepConfig,
    /// Channels of a window, for a file of settings [default: 7]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub channels: Option<usize>,
    /// Precision of matrix products and activations [default: f32, or that of the file]
    #[arg(long, value_name = "NAME")]
    pub precision: Option<Precision>,
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

/// What `refrain bench step` measures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepConfig {
    Seed,
    Small,
    Large,
    Wide,
    Long,
    Cross,
    /// The settings of a run, in a file.
    Settings(PathBuf),
}

impl StepConfig {
    const NAMES: [(&'static str, StepConfig); 6] = [
        ("seed", StepConfig::Seed),
        ("small", StepConfig::Small),
        ("large", StepConfig::Large),
        ("wide", StepConfig::Wide),
        ("long", StepConfig::Long),
        ("cross", StepConfig::Cross),
    ];

    fn parse(text: &str) -> Result<StepConfig, String> {
        if let Some((_, known)) = StepConfig::NAMES.into_iter().find(|(name, _)| *name == text) {
            return Ok(known);
        }
        let path = PathBuf::from(text);
        match path.is_file() {
            true => Ok(StepConfig::Settings(path)),
            false => {
                let names = StepConfig::NAMES.map(|(name, _)| name).join(", ");
                Err(format!("neither one of {names} nor a file of settings"))
            }
        }
    }
}

impl fmt::Display for StepConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepConfig::Settings(path) => write!(f, "{}", path.display()),
            known => {
                let name = StepConfig::NAMES.into_iter().find(|(_, of)| of == known);
                f.write_str(name.map_or("", |(name, _)| name))
            }
        }
    }
}
