//! The options of the commands that need a trained model, or make one of another program's.

use std::path::PathBuf;

use clap::Args;

use refrain_forecast::data::series::SplitRule;
use refrain_forecast::tasks::forecasting::Levels;

use super::shared::{DeviceArg, RankArgs, at_least_one};
use crate::settings::DialectFlags;

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
    /// The levels of intervals in percent, such as `80,90`, of a model that forecasts a distribution; without this 80 and 90
    #[arg(long, value_name = "PERCENT")]
    pub levels: Option<Levels>,
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
