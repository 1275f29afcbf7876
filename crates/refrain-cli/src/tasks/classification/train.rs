//! A classifier on the folds of a panel.

use refrain::{Device, with_precision};
use refrain_forecast::data::panel::{Class, Fold, Panel};
use refrain_forecast::data::series::{Filled, Scaler};
use refrain_forecast::models::ClassifierConfig;
use refrain_forecast::tasks::classification::confusion::Confusion;
use refrain_forecast::tasks::classification::{Classification, ClassificationErrors};
use refrain_forecast::training::{EpochReport, Replays, Trainer};
use serde::Serialize;

use crate::cli::{Precision, Train};
use crate::console::{Console, count, number, seconds, table};
use crate::error::{Error, Result, finite};
use crate::filled;
use crate::folder::RunFolder;
use crate::interrupt::Interrupt;
use crate::replays::ReplayFigures;
use crate::run;
use crate::run_config::{Classes, RunConfig};
use crate::settings::Complete;
use crate::source;
use crate::tasks::{as_json, epochs};

/// What the checkpoint of a fold keeps: everything needed to use its model.
#[derive(Serialize)]
struct FoldConfig<'a> {
    #[serde(flatten)]
    run: &'a RunConfig<Classes>,
    fold: usize,
    scaler: &'a Scaler,
}

/// The result of a fold.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct FoldScore {
    fold: usize,
    train_samples: usize,
    /// The first moment of the test part.
    test_from: String,
    loss: f64,
    accuracy: f64,
    balanced_accuracy: f64,
    /// The most frequent class of the training part, and the accuracy of always predicting it.
    majority_class: Class,
    majority_accuracy: f64,
    /// Rows are the true classes, columns the predicted ones: up, down, flat.
    confusion: Confusion,
    epochs: usize,
    best_epoch: usize,
    steps: u64,
    seconds: f64,
    seconds_per_epoch: f64,
    weights_sha256: String,
    /// How much of each feature was carried forward in each part. Parts without any are left out.
    filled: Vec<Filled>,
}

/// What `--json` prints. Accuracies are over the test parts of all folds.
#[derive(Serialize)]
struct Outcome<'a> {
    folds: &'a [FoldScore],
    accuracy: f64,
    balanced_accuracy: f64,
    majority_accuracy: f64,
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

/// A run with its panel.
struct Run<'a> {
    console: Console,
    args: &'a Train,
    device: Device,
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

pub fn start(args: &Train, settings: &Complete) -> Result<()> {
    let (console, device) = (Console::of_files(args.json), args.device.open()?);
    let data = settings.data()?;
    let (panel, report) = source::read_panel(&data, &settings.panel_options()?)?;
    source::describe_panel(console, &panel, &report)?;
    let config = RunConfig::<Classes>::new(settings, &panel)?;
    let folds = cut(console, &config, &panel, &device)?;
    let run = Run { console, args, device, config, panel, folds };
    // The first fold's trainer shows whether all can be made, before anything is written.
    let first = run.trainer(1)?;
    let folder = RunFolder::create(args.out.as_deref(), &format!("{}-cross-asset", source::stem(&data)))?;
    run.save(&first, 1, &folder.inside(&run::fold_folder(1))?)?;
    run.finish(&folder, first)
}

pub fn resume(args: &Train, folder: RunFolder, settings: Option<&Complete>) -> Result<()> {
    let (console, device) = (Console::of_files(args.json), args.device.open()?);
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
        run::check_same(&config, &RunConfig::<Classes>::new(settings, &panel)?, folder.path())?;
    }
    let folds = cut(console, &config, &panel, &device)?;
    let run = Run { console, args, device, config, panel, folds };
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
            &self.device,
            training.seed,
        )?;
        let trainer = Trainer::of(task, training.clone())?;
        Ok(if self.args.eager { trainer.eager() } else { trainer })
    }

    fn save(&self, trainer: &Trainer<Classification>, fold: usize, folder: &RunFolder) -> Result<()> {
        Ok(trainer.save(folder.path(), &self.fold_config(trainer, fold)?)?)
    }

    fn fold_config(&self, trainer: &Trainer<Classification>, fold: usize) -> Result<serde_json::Value> {
        as_json(&FoldConfig { run: &self.config, fold, scaler: &trainer.task().scaler })
    }

    /// Trains every fold to its end (the first one with the given trainer) and measures it.
    fn finish(&self, folder: &RunFolder, first: Trainer<Classification>) -> Result<()> {
        self.describe(folder, &first)?;
        let interrupt = Interrupt::listen();
        let parameters = first.task().model.parameter_count();
        let mut first = Some(first);
        let (mut scores, mut replays) = (Vec::with_capacity(self.folds.len()), Replays::default());
        let precision = self.config.precision.setting();
        for fold in 1..=self.folds.len() {
            let inside = folder.inside(&run::fold_folder(fold))?;
            let trainer = match first.take() {
                Some(trainer) => trainer,
                None if run::is_saved(inside.path()) => {
                    self.trainer(fold)?.resume_from(&run::open_saved(inside.path())?)?
                }
                None => self.trainer(fold)?,
            };
            let train = || self.fold(fold, trainer, folder, &inside, &interrupt);
            let (score, of_fold) = with_precision(precision, train)?;
            scores.push(score);
            replays.merge(&of_fold);
        }
        let outcome = self.outcome(&scores, &replays, parameters, folder);
        folder.write(run::FOLDS, (as_json(&scores)?.to_string() + "\n").as_bytes())?;
        self.show(&scores, &outcome)?;
        self.console.line("")?;
        outcome.replayed.show(self.console)?;
        self.console.line(format!("written to {}", folder.path().display()))?;
        self.console.result(&outcome)
    }

    /// Trains a fold to its end and measures it on its test part. Also returns the figures of its replays, `None`
    /// with --eager.
    fn fold(
        &self,
        fold: usize,
        mut trainer: Trainer<Classification>,
        folder: &RunFolder,
        inside: &RunFolder,
        interrupt: &Interrupt,
    ) -> Result<(FoldScore, Replays)> {
        let config = self.fold_config(&trainer, fold)?;
        let label = format!("fold {fold}/{}  ", self.folds.len());
        let how = epochs::How { label: &label, every: self.args.checkpoint_every, interrupt };
        let end = epochs::train(self.console, &mut trainer, inside, &config, how, epoch_line)?;
        if let Some(signal) = end {
            let (epoch, step) = (trainer.history().len(), trainer.steps_in_epoch());
            return Err(Error::Interrupted { signal, epoch, step, dir: folder.path().to_owned() });
        }
        let title = format!("fold {fold}: cross entropy by epoch");
        let plot = epochs::loss_plot::<Classification>(&title, trainer.history());
        inside.write(run::LOSS, plot.as_bytes())?;
        let (steps, history) = (trainer.steps(), trainer.history().to_vec());
        let seconds: f64 = history.iter().map(|epoch| epoch.seconds).sum();
        let train_samples = trainer.samples_per_epoch();
        let replays = trainer.replays().unwrap_or_default();
        let task = trainer.into_best()?;
        let (errors, confusion) = task.test()?;
        finite(format!("the test loss of fold {fold}"), errors.loss)?;
        let score = FoldScore {
            fold,
            train_samples,
            test_from: self.panel.time(self.folds[fold - 1].test.start),
            loss: errors.loss,
            accuracy: errors.accuracy,
            balanced_accuracy: errors.balanced_accuracy,
            majority_class: task.majority(),
            majority_accuracy: confusion.of_always(task.majority()).accuracy(),
            confusion,
            epochs: history.len(),
            best_epoch: epochs::best(&history),
            steps,
            seconds,
            seconds_per_epoch: seconds / history.len() as f64,
            weights_sha256: task.model.weights_sha256()?,
            filled: self.folds[fold - 1].filled(&self.panel),
        };
        Ok((score, replays))
    }

    fn outcome<'s>(
        &self,
        scores: &'s [FoldScore],
        replays: &Replays,
        parameters: usize,
        folder: &RunFolder,
    ) -> Outcome<'s> {
        let mut all = Confusion::default();
        scores.iter().for_each(|score| all.merge(&score.confusion));
        let predicted_by_majority: f64 =
            scores.iter().map(|score| score.majority_accuracy * score.confusion.total() as f64).sum();
        let seconds: f64 = scores.iter().map(|score| score.seconds).sum();
        let epochs: usize = scores.iter().map(|score| score.epochs).sum();
        Outcome {
            folds: scores,
            accuracy: all.accuracy(),
            balanced_accuracy: all.balanced_accuracy(),
            majority_accuracy: predicted_by_majority / all.total() as f64,
            seconds,
            seconds_per_epoch: seconds / epochs as f64,
            parameters,
            precision: self.config.precision,
            recorded: !self.args.eager,
            replayed: ReplayFigures::of(Some(*replays)),
            device: self.device.name(),
            out: folder.path().display().to_string(),
        }
    }

    fn describe(&self, folder: &RunFolder, first: &Trainer<Classification>) -> Result<()> {
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
            "folds       {} tested on {} moments each, an embargo of {} between parts",
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
            self.device.name(),
        ))?;
        line(format!("folder      {}", folder.path().display()))?;
        let filled: Vec<Filled> = self.folds.iter().flat_map(|fold| fold.filled(&self.panel)).collect();
        filled::report(self.console, &filled)?;
        line(String::new())
    }

    /// The table of the folds, and each confusion matrix.
    fn show(&self, scores: &[FoldScore], outcome: &Outcome<'_>) -> Result<()> {
        let row = |name: String, [accuracy, balanced, majority]: [f64; 3], class: &str, seconds: f64| {
            let shares = [accuracy, balanced, majority].map(|share| format!("{:.1} %", share * 100.0));
            let [accuracy, balanced, majority] = shares;
            vec![name, accuracy, balanced, majority, class.to_owned(), format!("{seconds:.2}")]
        };
        let of_fold = |score: &FoldScore| {
            let shares = [score.accuracy, score.balanced_accuracy, score.majority_accuracy];
            let name = format!("{} from {}", score.fold, score.test_from);
            row(name, shares, score.majority_class.name(), score.seconds_per_epoch)
        };
        let mut rows: Vec<Vec<String>> = scores.iter().map(of_fold).collect();
        let shares = [outcome.accuracy, outcome.balanced_accuracy, outcome.majority_accuracy];
        rows.push(row("all".to_owned(), shares, "", outcome.seconds_per_epoch));
        let header = ["test part of fold", "accuracy", "balanced", "majority", "class", "s per epoch"];
        self.console.line(format!("\n{}", table(&header, &rows)))?;
        for score in scores {
            let rows: Vec<Vec<String>> = Class::ALL
                .into_iter()
                .map(|truth| {
                    let counts = score.confusion.counts[truth.index()].map(count);
                    std::iter::once(truth.name().to_owned()).chain(counts).collect()
                })
                .collect();
            let name = format!("fold {}: true class", score.fold);
            let header = [name.as_str(), "predicted up", "predicted down", "predicted flat"];
            self.console.line(format!("\n{}", table(&header, &rows)))?;
        }
        Ok(())
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
