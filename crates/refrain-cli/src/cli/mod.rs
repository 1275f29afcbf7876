//! The command line.

mod bench;
mod shared;
mod trained;
mod training;

pub use bench::{Bench, BenchCrossAsset, BenchLoad, BenchPatchtst, BenchPredict, BenchStep, StepConfig};
pub use shared::{DeviceArg, RankArgs};
pub use trained::{Evaluate, Export, Forecast, Import};
pub use training::{CheckpointEvery, Compare, CrossValidate, TableFormat, Train, TrainingArgs};

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::console::Verbosity;

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
        down and flat: the probability of each class for each source at the last time step of the panel, which needs \
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
    use super::shared::time;
    use super::training::checkpoint_every;
    use super::*;
    use crate::settings::known;
    use std::time::Duration;

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
