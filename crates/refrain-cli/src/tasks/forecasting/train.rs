//! A forecaster on a series.

use std::path::Path;

use refrain::{Device, with_precision};
use refrain_forecast::data::series::{Part, SeriesSet};
use refrain_forecast::tasks::forecasting::conformal::{Calibration, Intervals};
use refrain_forecast::tasks::forecasting::loss::Loss;
use refrain_forecast::tasks::forecasting::{
    ForecastErrors, Forecasting, Freeze, Objective, RecordedForecaster,
};
use refrain_forecast::training::{EpochReport, Estimate, SavedRun, Task, Trainer};
use refrain_rendezvous::Phase;
use serde::Serialize;

use super::init::Init;
use super::plots::Drawer;
use super::report;
use super::score::{self, Score};
use super::{Data, dry_run, pretrain};
use crate::cli::{CheckpointEvery, Train, TrainingArgs};
use crate::console::{self, Console, count, number, seconds};
use crate::error::{Error, Result};
use crate::filled;
use crate::folder::RunFolder;
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::replays::ReplayFigures;
use crate::run;
use crate::run_config::{Forecasts, RunConfig};
use crate::settings::{Complete, Extension};
use crate::source;
use crate::tasks::{as_json, epochs};

/// A run, from its series to its trainer.
struct Run {
    config: RunConfig<Forecasts>,
    folder: RunFolder,
    parts: Parts,
}

/// Series cut into parts, and the trainer on them.
pub struct Parts {
    data: Data,
    /// What intervals are calibrated on.
    calibration: Option<Part>,
    pub trainer: Trainer<Forecasting>,
}

/// How a run is trained, besides its settings.
#[derive(Clone, Copy)]
pub struct Training<'a> {
    pub eager: bool,
    pub checkpoint_every: CheckpointEvery,
    /// What the weights of a new run begin with, if not with random values.
    pub init: Option<&'a Init>,
    /// What asks the command to end, if it does more than this run. Otherwise the run listens by itself.
    pub interrupt: Option<&'a Interrupt>,
    /// Whether TensorBoard shall read the metrics.
    pub tensorboard: bool,
}

impl From<&Train> for Training<'_> {
    fn from(args: &Train) -> Self {
        Training { checkpoint_every: args.checkpoint_every, ..Training::of(&args.training) }
    }
}

impl Training<'_> {
    /// As the options say that all commands that train have.
    pub fn of(args: &TrainingArgs) -> Self {
        let TrainingArgs { eager, tensorboard, .. } = *args;
        let checkpoint_every = CheckpointEvery::Epoch;
        Training { eager, checkpoint_every, init: None, interrupt: None, tensorboard }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
pub struct Outcome {
    #[serde(flatten)]
    score: Score,
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

pub fn start(args: &Train, settings: &Complete, init: Option<&Init>, job: &Job) -> Result<()> {
    if settings.tuning()?.task == Objective::Pretrain {
        return pretrain::start(args, settings, init, job);
    }
    let console = job.console(args.json);
    let (data, of_series) = (settings.data()?, settings.series()?);
    let options = of_series.read_options(None, settings.dialect()?);
    let (set, report) = source::read(&data, &options, of_series.layout)?;
    source::describe(console, &set, &report)?;
    if let Some(preset) = settings.preset() {
        console.line(format!("preset      {preset}"))?;
    }
    let training = Training { init, ..args.into() };
    if args.dry_run {
        return plan(console, training, settings, set, (job, args.profile));
    }
    let folder = || match job.is_first() {
        true => RunFolder::create(args.out.as_deref(), &source::stem(&data)),
        false => Ok(RunFolder::of_another(args.out.as_deref().unwrap_or(Path::new("")))),
    };
    let run = begin(console, training, settings, set, folder, job)?;
    conclude(console, training, run, job)
}

/// A new run on these series, to its end, in this process alone.
pub fn run(
    console: Console,
    training: Training<'_>,
    settings: &Complete,
    set: SeriesSet,
    folder: impl FnOnce() -> Result<RunFolder>,
    device: &Device,
) -> Result<Option<Outcome>> {
    let job = Job::alone(device.clone());
    let run = begin(console, training, settings, set, folder, &job)?;
    report(console, train(console, training, run, &job)?, &job)
}

/// A run on these series that was interrupted, to its end, in this process alone.
pub fn go_on(
    console: Console,
    training: Training<'_>,
    folder: RunFolder,
    set: SeriesSet,
    device: &Device,
) -> Result<Option<Outcome>> {
    let job = Job::alone(device.clone());
    let saved = run::open_saved(folder.path())?;
    let config = RunConfig::<Forecasts>::from_kept(saved.run()?, folder.path())?;
    check_series(&config, &set)?;
    let parts = resumed(console, &config, &saved, set, &job)?;
    report(console, train(console, training, Run { config, folder, parts }, &job)?, &job)
}

/// Says what a run would be, and how long it would take. Nothing is written.
fn plan(
    console: Console,
    training: Training<'_>,
    settings: &Complete,
    set: SeriesSet,
    (job, profile): (&Job, bool),
) -> Result<()> {
    let (config, mut data) = RunConfig::<Forecasts>::new(settings, set)?;
    agree(job, &config, training)?;
    let calibration = config.hold_out_calibration(&mut data)?;
    estimate(console, &config, &data, job.device())?;
    let mut trainer = together(trainer(&config, &data, job.device())?, job)?;
    if training.eager {
        trainer = trainer.eager();
    }
    let parts = Parts { data, calibration, trainer };
    describe(console, &config, &parts, None, job)?;
    dry_run::conclude(console, &config, &parts.data, parts.trainer, (job, profile))
}

/// A new run on these series before its first step. The folder is made when it is known that the run is possible.
fn begin(
    console: Console,
    training: Training<'_>,
    settings: &Complete,
    set: SeriesSet,
    folder: impl FnOnce() -> Result<RunFolder>,
    job: &Job,
) -> Result<Run> {
    let (config, mut data) = RunConfig::<Forecasts>::new(settings, set)?;
    agree(job, &config, training)?;
    if config.task.pretraining.is_some() {
        return Err(Error::usage("only `refrain train` pretrains", "leave --task out"));
    }
    if config.task.freeze != Freeze::None && training.init.is_none() {
        return Err(Error::usage(
            "--freeze keeps initial weights, and there are none",
            "pass the run or file that they are from with --init",
        ));
    }
    let calibration = config.hold_out_calibration(&mut data)?;
    estimate(console, &config, &data, job.device())?;
    let trainer = trainer(&config, &data, job.device())?;
    if let Some(init) = training.init {
        init.apply(console, trainer.model().parameters())?;
    }
    let trainer = together(trainer, job)?;
    let folder = folder()?;
    // Now it is known that the folder is writable, and the run can be resumed from its first step.
    trainer.save(folder.path(), &as_json(&config)?)?;
    Ok(Run { config, folder, parts: Parts { data, calibration, trainer } })
}

/// Refuses processes that would train something else than the first one, or otherwise.
pub(super) fn agree(job: &Job, config: &RunConfig<Forecasts>, training: Training<'_>) -> Result<()> {
    let Training { eager, checkpoint_every, .. } = training;
    let mut all = as_json(config)?;
    all["eager"] = eager.into();
    all["checkpoint-every"] = format!("{checkpoint_every:?}").into();
    job.agree(&all)
}

/// Makes the trainer one of several, if several processes train together.
fn together(trainer: Trainer<Forecasting>, job: &Job) -> Result<Trainer<Forecasting>> {
    match job.communicator() {
        None => Ok(trainer),
        Some(communicator) => Ok(trainer.with_communicator(communicator)?),
    }
}

pub fn resume(args: &Train, folder: RunFolder, settings: Option<&Complete>, job: &Job) -> Result<()> {
    let console = job.console(args.json);
    let mut saved = run::open_saved(folder.path())?;
    if settings.is_none() && args.training.settings.has("epochs") {
        saved = saved.extended();
    }
    if pretrain::is_of(&saved)? {
        return pretrain::resume(args, folder, settings, &saved, job);
    }
    let mut config = RunConfig::<Forecasts>::from_kept(saved.run()?, folder.path())?;
    if settings.is_none() {
        extend(&mut config, args)?;
    }
    saved.check_size(config.task.trained_model().size()?)?;
    let source = &config.task.data.source;
    let (set, report) = source::read(source, &config.read_options(), config.layout(source))?;
    source::describe(console, &set, &report)?;
    check_series(&config, &set)?;
    if let Some(settings) = settings {
        let settings = &settings.clone().of_begun(&config.training);
        run::check_same(&config, &RunConfig::<Forecasts>::new(settings, set.clone())?.0, folder.path())?;
    }
    agree(job, &config, args.into())?;
    let parts = resumed(console, &config, &saved, set, job)?;
    if settings.is_none() {
        check_goes_on(args, &parts.trainer)?;
    }
    console.line(format!(
        "resumed     {} after {} steps",
        folder.path().display(),
        count(parts.trainer.steps())
    ))?;
    conclude(console, args.into(), Run { config, folder, parts }, job)
}

/// Gives a run more epochs or more patience, if that is asked for. Its schedule of learning rates becomes that of all epochs.
pub(super) fn extend(config: &mut RunConfig<Forecasts>, args: &Train) -> Result<()> {
    let Some(Extension { epochs, patience }) = args.training.settings.extension() else { return Ok(()) };
    let before = config.training.epochs;
    if let Some(epochs) = epochs.filter(|&epochs| epochs < before) {
        return Err(Error::usage(
            format!("the run has {before} epochs, and {epochs} are fewer"),
            "ask for more --epochs, or leave them out",
        ));
    }
    config.training.epochs = epochs.unwrap_or(before);
    config.training.patience = patience.unwrap_or(config.training.patience);
    Ok(config.training.validate()?)
}

/// Refuses more epochs for a run that stopped early, and would do none of them.
pub(super) fn check_goes_on<T: Task>(args: &Train, trainer: &Trainer<T>) -> Result<()> {
    let (trained, config) = (trainer.history().len(), trainer.config());
    if !(args.training.settings.has("epochs") && trainer.is_done() && trained < config.epochs) {
        return Ok(());
    }
    Err(Error::usage(
        format!(
            "the run stopped early after epoch {trained}: {} epochs were without a lower validation error",
            config.patience
        ),
        "pass a larger --patience, too",
    ))
}

/// The series is that which the run began with.
pub fn check_series(config: &RunConfig<Forecasts>, set: &SeriesSet) -> Result<()> {
    config.check_channels(set)?;
    match set.fingerprint() == config.task.data.sha256 {
        true => Ok(()),
        false => Err(Error::changed_since(&config.task.data.source)),
    }
}

/// The trainer of a run before its first step.
pub fn trainer(config: &RunConfig<Forecasts>, data: &Data, device: &Device) -> Result<Trainer<Forecasting>> {
    let RunConfig { task, training, .. } = config;
    let windows = data.windows(device)?;
    let task = Forecasting::new(task.model.clone(), task.loss.clone(), windows, &data.split, training.seed)?;
    Ok(Trainer::of(task.freeze(config.task.freeze)?, training.clone())?)
}

/// The trainer of a run that is to go on with the series that it began with.
pub fn resumed(
    console: Console,
    config: &RunConfig<Forecasts>,
    saved: &SavedRun,
    set: SeriesSet,
    job: &Job,
) -> Result<Parts> {
    let mut data = config.cut(set)?;
    let calibration = config.hold_out_calibration(&mut data)?;
    estimate(console, config, &data, job.device())?;
    let trainer = together(trainer(config, &data, job.device())?, job)?.resume_from(saved)?;
    Ok(Parts { data, calibration, trainer })
}

/// Prints the resources that the run needs, before anything is allocated. Returns an error if they do not fit.
pub fn estimate(
    console: Console,
    config: &RunConfig<Forecasts>,
    data: &Data,
    device: &Device,
) -> Result<Estimate> {
    let RunConfig { task, training, precision, .. } = config;
    let model = task.trained_model();
    let (rows, padding) = (data.stack.rows(), data.stack.padding());
    let estimate = Forecasting::estimate(&*model, training, rows, &data.split, precision.setting())?;
    let padding = match padding {
        0 => String::new(),
        rows => format!("; {} rows of padding for short series", count(rows)),
    };
    console.line(format!("memory      {}{padding}", estimate.check(device)?))?;
    Ok(estimate)
}

/// Trains to the end. Then the processes measure together.
fn conclude(console: Console, training: Training<'_>, run: Run, job: &Job) -> Result<()> {
    let run = train(console, training, run, job)?;
    job.set_phase(Phase::Validation);
    let outcome = report(console, run, job)?;
    job.leave()?;
    outcome.map_or(Ok(()), |outcome| console.result(&outcome))
}

/// Measures a run that is trained. The first process of the job gets the figures.
fn report(console: Console, run: Run, job: &Job) -> Result<Option<Outcome>> {
    with_precision(run.config.precision.setting(), || measure(console, run, job))
}

fn measure(console: Console, run: Run, job: &Job) -> Result<Option<Outcome>> {
    let Run { config, folder, parts: Parts { data, calibration, trainer } } = run;
    let (steps, history) = (trainer.steps(), trainer.history().to_vec());
    let seconds: f64 = history.iter().map(|epoch| epoch.seconds).sum();
    let best = epochs::best(&history);
    let replayed = ReplayFigures::of(trainer.replays());
    let Forecasting { model, windows, .. } = trainer.into_best()?;
    let name = folder.path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let loss = config.task.loss.title();
    let losses =
        epochs::loss_plot::<Forecasting>(&format!("{name}: {loss} by epoch (standardised)"), &history);
    folder.write(run::LOSS, losses.as_bytes())?;
    let learned = Intervals::of(&config.task.loss)?.adapting(config.task.intervals.adaptive)?;
    let intervals = match calibration {
        None => learned,
        Some(part) => {
            let levels = &config.task.intervals.levels;
            let ranks = job.communicator();
            let calibration = Calibration::fit(&*model, &learned, levels, &windows, &part, ranks.as_ref())?;
            folder.write(run::CALIBRATION, as_json(&calibration)?.to_string().as_bytes())?;
            learned.with_calibration(calibration)
        }
    };
    let (horizon, precision) = (config.task.model.window().horizon, config.precision.setting());
    let forecaster = &RecordedForecaster::new(model, horizon, intervals, precision, 1)?;
    let measured = score::measure(console, &config, &data, forecaster, &windows, job)?;
    let Some(measured) = measured else { return Ok(None) };
    let (model, linear) = (forecaster.model(), measured.linear.as_ref());
    let drawer = Drawer { config: &config, data: &data, forecaster, linear };
    folder.write(run::FORECAST, drawer.example()?.as_bytes())?;
    let trained = report::Trained {
        name: &name,
        parameters: model.parameter_count(),
        epochs: history.len(),
        best_epoch: best,
        seconds,
        losses: &losses,
    };
    folder.write(run::REPORT, report::page(&drawer, &measured, &trained)?.as_bytes())?;
    let score = measured.score;
    let plural = if history.len() == 1 { "" } else { "s" };
    let trained = console::seconds(seconds);
    console
        .line(format!("\ntrained {} epoch{plural} in {trained}, the best is epoch {best}", history.len()))?;
    replayed.show_detail(console)?;
    console.line(format!("written to {}", folder.path().display()))?;
    Ok(Some(Outcome {
        score,
        epochs: history.len(),
        best_epoch: best,
        steps,
        seconds,
        parameters: model.parameter_count(),
        replayed,
        weights_sha256: model.weights_sha256()?,
        device: job.device().name(),
        out: folder.path().display().to_string(),
    }))
}

fn describe(
    console: Console,
    config: &RunConfig<Forecasts>,
    parts: &Parts,
    folder: Option<&RunFolder>,
    job: &Job,
) -> Result<()> {
    let model = &config.task.model;
    let Parts { data, calibration, trainer } = parts;
    let window = model.window();
    describe_split(console, config, data, calibration.as_ref())?;
    console.line(format!(
        "model       {}: context {} -> horizon {}, {}: {} parameters",
        model.title(),
        window.context,
        window.horizon,
        model.summary(),
        count(trainer.model().parameter_count()),
    ))?;
    let loss = match &config.task.loss {
        Loss::Mse(_) => String::new(),
        loss => format!("{}, ", loss.title()),
    };
    describe_training(console, config, (trainer, &loss), data, folder, job)
}

/// Prints how the training goes on, where it is written, and what is filled. `loss` is words about the loss, before the rate.
pub(super) fn describe_training<T: Task>(
    console: Console,
    config: &RunConfig<Forecasts>,
    (trainer, loss): (&Trainer<T>, &str),
    data: &Data,
    folder: Option<&RunFolder>,
    job: &Job,
) -> Result<()> {
    let training = &config.training;
    console.line(format!(
        "training    {} epochs at most of {} steps of {} windows, {loss}learning rate {}, seed {}, {}, on {}",
        training.epochs,
        count(trainer.steps_per_epoch()),
        training.batch_size,
        training.lr,
        training.seed,
        config.precision.name(),
        job.device().name(),
    ))?;
    job.describe(console)?;
    if let Some(folder) = folder {
        console.line(format!("folder      {}", folder.path().display()))?;
    }
    filled::report(console, &data.set.filled(&data.split, &data.stack))?;
    console.line("")
}

/// Prints how the series are split, and which windows are left out.
pub(super) fn describe_split(
    console: Console,
    config: &RunConfig<Forecasts>,
    data: &Data,
    calibration: Option<&Part>,
) -> Result<()> {
    let (split, set) = (&data.split, &data.set);
    let part = |name: &str, part: &Part| match set.is_independent() {
        true => format!("{name} {} windows", count(part.windows())),
        false => {
            let first = set.first().time().format(part.rows.start);
            format!("{name} {} windows from {first}", count(part.windows()))
        }
    };
    let calibration = calibration.map(|of| part(", calibration", of)).unwrap_or_default();
    console.line(format!(
        "split       {}, {}{calibration}, {}",
        part("training", &split.train),
        part("validation", &split.validation),
        part("test", &split.test)
    ))?;
    filled::Windows::of(split).report(console, config.max_gap(set.step()))
}

/// Trains to the end. The run is saved after each epoch, and when the user interrupts.
fn train(console: Console, training: Training<'_>, mut run: Run, job: &Job) -> Result<Run> {
    if training.eager {
        run.parts.trainer = run.parts.trainer.eager();
    }
    describe(console, &run.config, &run.parts, Some(&run.folder), job)?;
    let own = training.interrupt.is_none().then(Interrupt::listen);
    let config = as_json(&run.config)?;
    let precision = run.config.precision.setting();
    let Run { folder, parts: Parts { trainer, .. }, .. } = &mut run;
    let mut signal = None;
    if let Some(interrupt) = training.interrupt.or(own.as_ref()) {
        let Training { checkpoint_every: every, tensorboard, .. } = training;
        let how = epochs::How { label: "", every, interrupt, job, before: 0, tensorboard };
        let train = || epochs::train(console, trainer, folder, &config, how, epoch_line);
        signal = with_precision(precision, train)?;
    }
    let Some(signal) = signal else { return Ok(run) };
    job.leave()?;
    let (trainer, dir) = (&run.parts.trainer, run.folder.path().to_owned());
    Err(Error::Interrupted { signal, epoch: trainer.history().len(), step: trainer.steps_in_epoch(), dir })
}

fn epoch_line(report: &EpochReport<ForecastErrors>) -> String {
    let loss = report.validation.loss.map(|loss| format!("loss {}  ", number(loss))).unwrap_or_default();
    format!(
        "train loss {}  validation {loss}MSE {}  MAE {}  {:>7}{}",
        number(report.train_loss),
        number(report.validation.mse),
        number(report.validation.mae),
        seconds(report.seconds),
        if report.best { "  best" } else { "" }
    )
}
