//! Masked pretraining of a PatchTST on a series.

use std::path::Path;

use refrain::with_precision;
use refrain_forecast::models::ModelConfig;
use refrain_forecast::models::patchtst::{MaskedPatchTst, PatchTstConfig};
use refrain_forecast::tasks::forecasting::Freeze;
use refrain_forecast::tasks::forecasting::loss::Loss;
use refrain_forecast::tasks::pretraining::{Pretraining, PretrainingErrors};
use refrain_forecast::training::{EpochReport, SavedRun, Trainer};
use serde::Serialize;
use serde_json::Value;

use super::init::Init;
use super::train::{Training, agree, check_goes_on, check_series, describe_split, describe_training, extend};
use super::{Data, dry_run};
use crate::cli::Train;
use crate::console::{Console, count, number, seconds};
use crate::error::{Error, Result};
use crate::folder::RunFolder;
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::replays::ReplayFigures;
use crate::run;
use crate::run_config::{Forecasts, RunConfig};
use crate::settings::Complete;
use crate::source;
use crate::tasks::{as_json, epochs};

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome {
    /// Of the best epoch, over the hidden patches of the validation windows.
    validation_mse: f64,
    epochs: usize,
    best_epoch: usize,
    steps: u64,
    seconds: f64,
    parameters: usize,
    #[serde(flatten)]
    replayed: ReplayFigures,
    weights_sha256: String,
    device: String,
    out: String,
}

/// A run before its first step, or before it goes on.
struct Run {
    config: RunConfig<Forecasts>,
    data: Data,
    trainer: Trainer<Pretraining>,
}

/// The model and the share of hidden patches of a run.
fn masked(config: &RunConfig<Forecasts>) -> Result<(&PatchTstConfig, f64)> {
    match (&config.task.model, config.task.pretraining) {
        (ModelConfig::PatchTst(model), Some(ratio)) => Ok((model, ratio)),
        (model, _) => Err(Error::usage(
            format!("pretraining hides patches, and {} has none", model.title()),
            "choose --model patchtst, or leave --task out",
        )),
    }
}

/// Whether a saved run is one of pretraining.
pub fn is_of(saved: &SavedRun) -> Result<bool> {
    Ok(!saved.run::<Value>()?["pretraining"].is_null())
}

pub fn start(args: &Train, settings: &Complete, init: Option<&Init>, job: &Job) -> Result<()> {
    let console = job.console(args.json);
    let (data, of_series) = (settings.data()?, settings.series()?);
    let options = of_series.read_options(None, settings.dialect()?);
    let (set, report) = source::read(&data, &options, of_series.layout)?;
    source::describe(console, &set, &report)?;
    let (config, data) = RunConfig::<Forecasts>::new(settings, set)?;
    if config.task.freeze != Freeze::None {
        return Err(Error::usage("pretraining is of the encoder", "leave --freeze out"));
    }
    if config.task.loss != Loss::default() {
        return Err(Error::usage(
            format!(
                "pretraining minimises the squared error of hidden patches, and the loss is {}",
                config.task.loss.name()
            ),
            "leave --loss out here, and pass it when the encoder is trained to forecast (`--init`)",
        ));
    }
    if config.task.intervals.calibrate {
        return Err(Error::usage(
            "pretraining makes no forecasts, so there are no intervals to calibrate",
            "leave --calibrate out here, and pass it when the encoder is trained to forecast (`--init`)",
        ));
    }
    agree(job, &config, args.into())?;
    let trainer = trainer(console, &config, &data, job)?;
    if let Some(init) = init {
        init.apply(console, trainer.task().model().parameters())?;
    }
    let mut run = Run { config, data, trainer: together(trainer, job)? };
    if args.dry_run {
        if args.training.eager {
            run.trainer = run.trainer.eager();
        }
        run.describe(console, None, job)?;
        return dry_run::conclude(console, &run.config, &run.data, run.trainer, (job, args.profile));
    }
    let folder = match job.is_first() {
        true => RunFolder::create(args.out.as_deref(), &source::stem(&run.config.task.data.source))?,
        false => RunFolder::of_another(args.out.as_deref().unwrap_or(Path::new(""))),
    };
    run.trainer.save(folder.path(), &as_json(&run.config)?)?;
    conclude(console, args, run, &folder, job)
}

pub fn resume(
    args: &Train,
    folder: RunFolder,
    settings: Option<&Complete>,
    saved: &SavedRun,
    job: &Job,
) -> Result<()> {
    let console = job.console(args.json);
    let mut config = RunConfig::<Forecasts>::from_kept(saved.run()?, folder.path())?;
    if settings.is_none() {
        extend(&mut config, args)?;
    }
    saved.check_size(MaskedPatchTst::size(masked(&config)?.0)?)?;
    let source = &config.task.data.source;
    let (set, report) = source::read(source, &config.read_options(), config.layout(source))?;
    source::describe(console, &set, &report)?;
    check_series(&config, &set)?;
    if let Some(settings) = settings {
        let settings = &settings.clone().of_begun(&config.training);
        run::check_same(&config, &RunConfig::<Forecasts>::new(settings, set.clone())?.0, folder.path())?;
    }
    agree(job, &config, args.into())?;
    let data = config.cut(set)?;
    let trainer = together(trainer(console, &config, &data, job)?, job)?.resume_from(saved)?;
    if settings.is_none() {
        check_goes_on(args, &trainer)?;
    }
    console.line(format!(
        "resumed     {} after {} steps",
        folder.path().display(),
        count(trainer.steps())
    ))?;
    conclude(console, args, Run { config, data, trainer }, &folder, job)
}

impl Run {
    /// Prints what the run is.
    fn describe(&self, console: Console, folder: Option<&RunFolder>, job: &Job) -> Result<()> {
        let Run { config, data, trainer } = self;
        let (model, ratio) = masked(config)?;
        describe_split(console, config, data, None)?;
        console.line(format!(
            "model       PatchTST fills in {:.0} % of the patches of {} rows: {} parameters",
            100.0 * ratio,
            model.context,
            count(trainer.task().model().parameters().count()),
        ))?;
        describe_training(console, config, (trainer, ""), data, folder, job)
    }
}

/// The trainer before its first step, if its memory is enough.
fn trainer(
    console: Console,
    config: &RunConfig<Forecasts>,
    data: &Data,
    job: &Job,
) -> Result<Trainer<Pretraining>> {
    let (model, ratio) = masked(config)?;
    let (training, precision) = (&config.training, config.precision.setting());
    let estimate = Pretraining::estimate(model, training, data.stack.rows(), &data.split, precision)?;
    console.line(format!("memory      {}", estimate.check(job.device())?))?;
    let windows = data.windows(job.device())?;
    let task = Pretraining::new(model.clone(), ratio, windows, &data.split, training.seed)?;
    Ok(Trainer::of(task, training.clone())?)
}

fn together(trainer: Trainer<Pretraining>, job: &Job) -> Result<Trainer<Pretraining>> {
    match job.communicator() {
        None => Ok(trainer),
        Some(communicator) => Ok(trainer.with_communicator(communicator)?),
    }
}

/// Trains to the end. Then the first process tells the result.
fn conclude(console: Console, args: &Train, mut run: Run, folder: &RunFolder, job: &Job) -> Result<()> {
    let Training { eager, checkpoint_every, tensorboard, .. } = args.into();
    if eager {
        run.trainer = run.trainer.eager();
    }
    run.describe(console, Some(folder), job)?;
    let Run { config, mut trainer, .. } = run;
    let (interrupt, kept) = (Interrupt::listen(), as_json(&config)?);
    let how = epochs::How {
        label: "",
        every: checkpoint_every,
        interrupt: &interrupt,
        job,
        before: 0,
        tensorboard,
    };
    let train = || epochs::train(console, &mut trainer, folder, &kept, how, epoch_line);
    if let Some(signal) = with_precision(config.precision.setting(), train)? {
        job.leave()?;
        let (epoch, step) = (trainer.history().len(), trainer.steps_in_epoch());
        return Err(Error::Interrupted { signal, epoch, step, dir: folder.path().to_owned() });
    }
    job.leave()?;
    if !job.is_first() {
        return Ok(());
    }
    let history = trainer.history().to_vec();
    let title = "mean squared error of hidden patches by epoch";
    folder.write(run::LOSS, epochs::loss_plot::<Pretraining>(title, &history).as_bytes())?;
    let (best, steps, replayed) =
        (epochs::best(&history), trainer.steps(), ReplayFigures::of(trainer.replays()));
    let of_best = history.iter().find(|report| report.epoch == best);
    let validation_mse = of_best.map_or(f64::NAN, |report| report.validation.mse);
    let out = folder.path().display().to_string();
    let task = trainer.into_best()?;
    let parameters = task.model().parameters();
    replayed.show_detail(console)?;
    console.line(format!("\nwritten to {out}; `refrain train --init {out}` teaches it to forecast"))?;
    console.result(&Outcome {
        validation_mse,
        epochs: history.len(),
        best_epoch: best,
        steps,
        seconds: history.iter().map(|epoch| epoch.seconds).sum(),
        parameters: parameters.count(),
        replayed,
        weights_sha256: task.model().weights_sha256()?,
        device: job.device().name(),
        out,
    })
}

fn epoch_line(report: &EpochReport<PretrainingErrors>) -> String {
    format!(
        "train loss {}  validation MSE {}  {:>7}{}",
        number(report.train_loss),
        number(report.validation.mse),
        seconds(report.seconds),
        if report.best { "  best" } else { "" }
    )
}
