//! A classifier on the folds of a panel.

use std::path::Path;

use refrain::{Device, with_precision};
use refrain_forecast::data::panel::{Fold, Panel};
use refrain_forecast::data::series::Filled;
use refrain_forecast::models::ClassifierConfig;
use refrain_forecast::tasks::classification::{Classification, ClassificationErrors};
use refrain_forecast::training::{EpochReport, Replays, Trainer};
use serde::Serialize;

use super::report;
use super::score::{self, Column, FoldScore, Totals};
use super::{FoldConfig, OfFold};
use crate::cli::Train;
use crate::console::{Console, count, number, seconds};
use crate::error::{Error, Result};
use crate::filled;
use crate::folder::RunFolder;
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::precision::Precision;
use crate::replays::ReplayFigures;
use crate::run;
use crate::run_config::{Classes, RunConfig};
use crate::settings::Complete;
use crate::source;
use crate::tasks::{as_json, epochs};

/// The result of training a fold.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct FoldOutcome {
    #[serde(flatten)]
    score: FoldScore,
    epochs: usize,
    best_epoch: usize,
    steps: u64,
    seconds: f64,
    seconds_per_epoch: f64,
}

/// What `--json` prints. Accuracies are over the test parts of all folds.
#[derive(Serialize)]
struct Outcome<'a> {
    folds: &'a [FoldOutcome],
    #[serde(flatten)]
    totals: Totals,
    seconds: f64,
    seconds_per_epoch: f64,
    parameters: usize,
    precision: Precision,
    recorded: bool,
    #[serde(flatten)]
    replayed: ReplayFigures,
    device: String,
    out: String,
}

/// What a dry run says about a run, with `--json`. The times are those of the first fold.
#[derive(Serialize)]
struct Plan {
    parameters: usize,
    folds: usize,
    #[serde(flatten)]
    time: epochs::StepTime,
    device: String,
}

/// A run with its panel.
struct Run<'a> {
    console: Console,
    args: &'a Train,
    job: &'a Job,
    config: RunConfig<Classes>,
    panel: Panel,
    folds: Vec<Fold>,
}

/// Cuts the panel into folds, tells what the largest takes, before any of it is taken, and refuses what cannot fit.
pub fn cut(
    console: Console,
    config: &RunConfig<Classes>,
    panel: &Panel,
    device: &Device,
) -> Result<Vec<Fold>> {
    let RunConfig { task, training, precision, .. } = config;
    let ClassifierConfig::CrossAsset(model) = &task.model;
    let folds = task.data.folds.cut(panel)?;
    // Later folds train on more rows.
    if let Some(fold) = folds.last() {
        let estimate = Classification::estimate(model, training, panel, fold, precision.setting())?;
        console.line(format!("memory      {}", estimate.check(device)?))?;
    }
    Ok(folds)
}

pub fn start(args: &Train, settings: &Complete, job: &Job) -> Result<()> {
    let (console, device) = (job.console(args.json), job.device());
    let data = settings.data()?;
    let (panel, report) = source::read_panel(&data, &settings.panel_options()?)?;
    source::describe_panel(console, &panel, &report)?;
    let config = RunConfig::<Classes>::new(settings, &panel)?;
    agree(job, &config, args)?;
    let folds = cut(console, &config, &panel, device)?;
    let run = Run { console, args, job, config, panel, folds };
    // The first fold's trainer shows whether all can be made, before anything is written.
    let first = run.trainer(1)?;
    if args.dry_run {
        run.describe(None, &first)?;
        let (parameters, device) = (first.task().model.parameter_count(), job.device().name());
        let time = epochs::measure(console, first, run.config.precision.setting(), args.profile)?;
        return match job.is_first() {
            true => console.result(&Plan { parameters, folds: run.folds.len(), time, device }),
            false => Ok(()),
        };
    }
    let folder = match job.is_first() {
        true => RunFolder::create(args.out.as_deref(), &format!("{}-cross-asset", source::stem(&data)))?,
        false => RunFolder::of_another(args.out.as_deref().unwrap_or(Path::new(""))),
    };
    run.save(&first, 1, &folder.inside(&run::fold_folder(1))?)?;
    run.finish(&folder, first)
}

/// Refuses processes that would train something else than the first one, or otherwise.
fn agree(job: &Job, config: &RunConfig<Classes>, args: &Train) -> Result<()> {
    let mut all = as_json(config)?;
    all["eager"] = args.training.eager.into();
    all["checkpoint-every"] = format!("{:?}", args.checkpoint_every).into();
    job.agree(&all)
}

pub fn resume(args: &Train, folder: RunFolder, settings: Option<&Complete>, job: &Job) -> Result<()> {
    let (console, device) = (job.console(args.json), job.device());
    let saved = run::open_saved(&folder.path().join(run::fold_folder(1)))?;
    let config = RunConfig::<Classes>::from_kept(saved.run()?, folder.path())?;
    let Classes { data, model: ClassifierConfig::CrossAsset(model) } = &config.task;
    saved.check_size(model.size()?)?;
    let (panel, report) = source::read_panel(&data.source, &data.options)?;
    source::describe_panel(console, &panel, &report)?;
    if panel.fingerprint() != data.sha256 {
        return Err(Error::changed_since(&data.source));
    }
    if let Some(settings) = settings {
        let settings = &settings.clone().of_begun(&config.training);
        run::check_same(&config, &RunConfig::<Classes>::new(settings, &panel)?, folder.path())?;
    }
    agree(job, &config, args)?;
    let folds = cut(console, &config, &panel, device)?;
    let run = Run { console, args, job, config, panel, folds };
    let first = run.trainer(1)?.resume_from(&saved)?;
    console.line(format!("resumed     {}", folder.path().display()))?;
    run.finish(&folder, first)
}

impl Run<'_> {
    /// The trainer of a fold, before its first step. Folds are counted from 1.
    fn trainer(&self, fold: usize) -> Result<Trainer<Classification>> {
        let RunConfig { task, training, .. } = &self.config;
        let Classes { data, model: ClassifierConfig::CrossAsset(model) } = task;
        let task = Classification::new(
            model.clone(),
            &self.panel,
            &self.folds[fold - 1],
            data.class_weights,
            self.job.device(),
            training.seed,
        )?;
        let trainer = Trainer::of(task, training.clone())?;
        let trainer = match self.job.communicator() {
            None => trainer,
            Some(communicator) => trainer.with_communicator(communicator)?,
        };
        Ok(if self.args.training.eager { trainer.eager() } else { trainer })
    }

    fn save(&self, trainer: &Trainer<Classification>, fold: usize, folder: &RunFolder) -> Result<()> {
        Ok(trainer.save(folder.path(), &self.fold_config(trainer, fold)?)?)
    }

    fn fold_config(&self, trainer: &Trainer<Classification>, fold: usize) -> Result<serde_json::Value> {
        let fold = OfFold { fold, scaler: trainer.task().scaler.clone() };
        as_json(&FoldConfig { run: &self.config, fold })
    }

    /// Trains every fold to its end (the first one with the given trainer) and measures it.
    fn finish(&self, folder: &RunFolder, first: Trainer<Classification>) -> Result<()> {
        self.describe(Some(folder), &first)?;
        let interrupt = Interrupt::listen();
        let parameters = first.task().model.parameter_count();
        let mut first = Some(first);
        let (mut folds, mut replays) = (Vec::with_capacity(self.folds.len()), Replays::default());
        // The steps of earlier folds.
        let mut before = 0;
        let mut plots = Vec::with_capacity(self.folds.len());
        let precision = self.config.precision.setting();
        for fold in 1..=self.folds.len() {
            let inside = folder.inside(&run::fold_folder(fold))?;
            let trainer = match first.take() {
                Some(trainer) => trainer,
                // As the first process sees it: all of them must do the same.
                None if self.job.gather("saved", &run::is_saved(inside.path()))?[0] => {
                    self.trainer(fold)?.resume_from(&run::open_saved(inside.path())?)?
                }
                None => self.trainer(fold)?,
            };
            let train = || self.fold(fold, trainer, (folder, &inside), &interrupt, before);
            let (outcome, plot, of_fold) = with_precision(precision, train)?;
            before += outcome.steps;
            folds.push(outcome);
            plots.push(plot);
            replays.merge(&of_fold);
        }
        let outcome = self.outcome(&folds, &replays, parameters, folder);
        folder.write(run::FOLDS, (as_json(&folds)?.to_string() + "\n").as_bytes())?;
        let of_page = folds.iter().zip(&plots).map(|(fold, losses)| report::Fold {
            score: &fold.score,
            epochs: fold.epochs,
            best_epoch: fold.best_epoch,
            seconds: fold.seconds,
            losses,
        });
        let name = folder.path().file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let page = report::page(&name, &self.config, &self.panel, parameters, &of_page.collect::<Vec<_>>());
        folder.write(run::REPORT, page.as_bytes())?;
        let scores: Vec<&FoldScore> = folds.iter().map(|fold| &fold.score).collect();
        let seconds = folds.iter().map(|fold| fold.seconds_per_epoch).chain([outcome.seconds_per_epoch]);
        let cells = seconds.map(|seconds| format!("{seconds:.2}")).collect();
        score::show(self.console, &scores, Some(Column { header: "s per epoch", cells }))?;
        self.console.line("")?;
        outcome.replayed.show_detail(self.console)?;
        self.console.line(format!("written to {}", folder.path().display()))?;
        self.console.result(&outcome)
    }

    /// Trains a fold to its end and measures it on its test part. Also returns the plot of its losses and the figures of its
    /// replays.
    fn fold(
        &self,
        fold: usize,
        mut trainer: Trainer<Classification>,
        (folder, inside): (&RunFolder, &RunFolder),
        interrupt: &Interrupt,
        before: u64,
    ) -> Result<(FoldOutcome, String, Replays)> {
        let config = self.fold_config(&trainer, fold)?;
        let label = format!("fold {fold}/{}  ", self.folds.len());
        let (every, job) = (self.args.checkpoint_every, self.job);
        let tensorboard = self.args.training.tensorboard;
        let how = epochs::How { label: &label, every, interrupt, job, before, tensorboard };
        let end = epochs::train(self.console, &mut trainer, inside, &config, how, epoch_line)?;
        if let Some(signal) = end {
            let (epoch, step) = (trainer.history().len(), trainer.steps_in_epoch());
            job.leave()?;
            return Err(Error::Interrupted { signal, epoch, step, dir: folder.path().to_owned() });
        }
        let title = format!("fold {fold}: cross entropy by epoch");
        let plot = epochs::loss_plot::<Classification>(&title, trainer.history());
        inside.write(run::LOSS, plot.as_bytes())?;
        let (steps, history) = (trainer.steps(), trainer.history().to_vec());
        let seconds: f64 = history.iter().map(|epoch| epoch.seconds).sum();
        let replays = trainer.replays().unwrap_or_default();
        let score = FoldScore::measure(fold, &trainer.into_best()?, &self.panel, &self.folds[fold - 1], job)?;
        let outcome = FoldOutcome {
            score,
            epochs: history.len(),
            best_epoch: epochs::best(&history),
            steps,
            seconds,
            seconds_per_epoch: seconds / history.len() as f64,
        };
        Ok((outcome, plot, replays))
    }

    fn outcome<'s>(
        &self,
        folds: &'s [FoldOutcome],
        replays: &Replays,
        parameters: usize,
        folder: &RunFolder,
    ) -> Outcome<'s> {
        let scores: Vec<&FoldScore> = folds.iter().map(|fold| &fold.score).collect();
        let seconds: f64 = folds.iter().map(|fold| fold.seconds).sum();
        let epochs: usize = folds.iter().map(|fold| fold.epochs).sum();
        Outcome {
            folds,
            totals: Totals::of(&scores),
            seconds,
            seconds_per_epoch: seconds / epochs as f64,
            parameters,
            precision: self.config.precision,
            recorded: !self.args.training.eager,
            replayed: ReplayFigures::of(Some(*replays)),
            device: self.job.device().name(),
            out: folder.path().display().to_string(),
        }
    }

    fn describe(&self, folder: Option<&RunFolder>, first: &Trainer<Classification>) -> Result<()> {
        let RunConfig { task, training, precision, .. } = &self.config;
        let Classes { data, model: ClassifierConfig::CrossAsset(model) } = task;
        let line = |text| self.console.line(text);
        let rule = &data.options.rule;
        if self.panel.looks_ahead() > 0 {
            line(format!(
                "labels      up or down: a change of more than {} in {} rows",
                number(rule.threshold),
                count(rule.horizon)
            ))?;
        }
        line(format!(
            "folds       {} tested on {} time steps each, an embargo of {} between parts",
            self.folds.len(),
            count(self.folds[0].test.len()),
            count(data.folds.embargo),
        ))?;
        line(format!(
            "model       cross-asset: {} sources of {} features, d_model {}, {} heads, {} layers, FFN {}: {} parameters",
            model.sources,
            model.features,
            model.d_model,
            model.heads,
            model.layers,
            model.ffn,
            count(first.task().model.parameter_count()),
        ))?;
        let parts = match training.accumulate {
            1 => String::new(),
            parts => format!(" in {parts} parts"),
        };
        line(format!(
            "training    at most {} epochs, {} samples per step{parts}, learning rate {}, seed {}, {}, on {}",
            training.epochs,
            training.batch_size,
            training.lr,
            training.seed,
            precision.name(),
            self.job.device().name(),
        ))?;
        self.job.describe(self.console)?;
        if let Some(folder) = folder {
            line(format!("folder      {}", folder.path().display()))?;
        }
        let filled: Vec<Filled> = self.folds.iter().flat_map(|fold| fold.filled(&self.panel)).collect();
        filled::report(self.console, &filled)?;
        line(String::new())
    }
}

fn epoch_line(report: &EpochReport<ClassificationErrors>) -> String {
    let ClassificationErrors { loss, accuracy, balanced_accuracy } = report.validation;
    format!(
        "train loss {}  validation {}  accuracy {:.1} %  balanced {:.1} %  {:>7}{}",
        number(report.train_loss),
        number(loss),
        accuracy * 100.0,
        balanced_accuracy * 100.0,
        seconds(report.seconds),
        if report.best { "  best" } else { "" }
    )
}
