//! The options of the commands that train.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use refrain_forecast::settings::Values;

use super::shared::{DeviceArg, RankArgs, at_least_one};
use crate::settings::{Complete, Settings, preset_names};

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
    /// With --dry-run: also print the time of each operation of a training step; with --accumulate, of a micro-batch
    #[arg(long, requires = "dry_run", conflicts_with = "eager")]
    pub profile: bool,
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

/// The format of a table that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// Comma-separated values
    Csv,
    /// Apache Parquet
    Parquet,
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

pub(super) fn checkpoint_every(text: &str) -> Result<CheckpointEvery, String> {
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
