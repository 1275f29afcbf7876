//! `refrain import`.

use refrain::{DType, Device};
use refrain_forecast::models::patchtst::hugging_face::HuggingFace;
use refrain_forecast::models::{ChannelUse, ForecasterConfig};
use refrain_forecast::settings::Values;
use refrain_nn::checkpoint::{self, Snapshot};
use serde::Serialize;
use serde_json::json;

use crate::cli::Import;
use crate::console::{Console, count};
use crate::error::{Error, Result};
use crate::folder::RunFolder;
use crate::run_config::{Forecasts, RunConfig};
use crate::settings::Settings;
use crate::source;
use crate::tasks::as_json;
use crate::tasks::forecasting::init::Init;

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome {
    parameters: usize,
    channels: usize,
    context: usize,
    horizon: usize,
    /// Whether the head is new, so that the model must be trained before it forecasts.
    new_head: bool,
    weights_sha256: String,
    out: String,
}

pub fn run(args: Import) -> Result<()> {
    let console = Console::of_files(args.json);
    let checkpoint = HuggingFace::open(&args.folder)?;
    let (theirs, new_head) = (checkpoint.config().clone(), !checkpoint.has_head());
    let distribution = checkpoint.distribution();
    if let (None, Some(levels)) = (distribution, &args.levels) {
        return Err(Error::usage(
            format!(
                "the head of the checkpoint forecasts one value in each row, so there are no intervals of {levels} %"
            ),
            "leave --levels out; `refrain train --init` with --calibrate makes intervals for any model",
        ));
    }
    let init = Init::of(args.folder.clone(), checkpoint);
    let split = args.split.map(serde_json::to_value).transpose().map_err(Error::Json)?;
    let levels = distribution.map(|_| args.levels.map_or(json!("80,90"), |levels| json!(levels.to_string())));
    let chosen = [("data", Some(json!(args.data))), ("split", split), ("levels", levels)];
    let chosen = chosen.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let chosen: Values = chosen.chain(args.dialect.into_values()).collect();
    let settings = Settings::of(chosen).resolve_over(None, None, init.values())?;
    let of_series = settings.series()?;
    let options = of_series.read_options(None, settings.dialect()?);
    let (set, report) = source::read(&args.data, &options, of_series.layout)?;
    source::describe(console, &set, &report)?;
    let (file, channels) = (set.file().to_owned(), set.channels());
    if channels != theirs.channels && theirs.channel_use() != ChannelUse::Shared {
        return Err(Error::usage(
            format!("{file} has {channels} channels, and the checkpoint is for {}", theirs.channels),
            "pass the series that it is for; this checkpoint treats channels differently",
        ));
    }
    let (config, _) = RunConfig::<Forecasts>::new(&settings, set)?;
    let model = config.task.trained_model().build(DType::F32, &Device::cpu(), config.training.seed)?;
    init.apply(console, model.parameters())?;
    let folder = RunFolder::create(Some(&args.out), "")?;
    let snapshot = Snapshot {
        parameters: model.parameters(),
        optimizer: None,
        generators: &[],
        ema: None,
        config: as_json(&config)?,
    };
    checkpoint::save(folder.path(), &snapshot)?;
    let (window, parameters) = (model.window(), model.parameter_count());
    console.line(format!(
        "model       {}: context {} -> horizon {}, {}: {} parameters",
        config.task.model.title(),
        window.context,
        window.horizon,
        config.task.model.summary(),
        count(parameters),
    ))?;
    if new_head {
        console.warn("train the model before it forecasts: `refrain train --init` with this run")?;
    }
    if !theirs.revin {
        console.warn("the model does not scale its input; refrain standardises the series by its training part, which may not be what it was trained on")?;
    }
    console.line(format!("written to {}", folder.path().display()))?;
    console.result(&Outcome {
        parameters,
        channels: window.channels,
        context: window.context,
        horizon: window.horizon,
        new_head,
        weights_sha256: model.weights_sha256()?,
        out: folder.path().display().to_string(),
    })
}
