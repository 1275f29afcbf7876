//! Trains epoch after epoch, for every kind of task.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use refrain::{Precision, with_precision};
use refrain_forecast::plot::{EpochLoss, loss_svg};
use refrain_forecast::training::{EpochEnd, EpochReport, Pace, Task, Trainer};
use refrain_rendezvous::Phase;
use serde::Serialize;
use serde_json::Value;

use super::as_json;
use crate::cli::CheckpointEvery;
use crate::console::{Console, count, seconds};
use crate::error::{Error, Result};
use crate::folder::RunFolder;
use crate::interrupt::{Interrupt, Signal};
use crate::job::Job;
use crate::progress::Progress;
use crate::tensorboard::EventFile;
use crate::{profile, run};

/// How training runs, besides its settings.
#[derive(Clone, Copy)]
pub struct How<'a> {
    /// What to print before the number of an epoch.
    pub label: &'a str,
    /// When to save, besides after each epoch.
    pub every: CheckpointEvery,
    pub interrupt: &'a Interrupt,
    /// The processes that train together.
    pub job: &'a Job,
    /// The steps that the job did before this training, so that no two steps of a job have the same number.
    pub before: u64,
    /// Whether TensorBoard shall read the metrics. A run that has its event file keeps it.
    pub tensorboard: bool,
}

/// Trains to the end, or until a signal asks a process of the job to end; then the signal is returned. The run is saved after
/// each epoch, as often as `how` says, and at a signal. `config` is saved with it; `line` formats the report of an
/// epoch.
pub fn train<T: Task>(
    console: Console,
    trainer: &mut Trainer<T>,
    folder: &RunFolder,
    config: &Value,
    how: How<'_>,
    line: impl Fn(&EpochReport<T::Validation>) -> String,
) -> Result<Option<Signal>> {
    let How { label, every, interrupt, job, before: earlier, tensorboard } = how;
    let (samples, epochs) = (trainer.samples_per_epoch(), trainer.config().epochs);
    let pace = match every {
        CheckpointEvery::Steps(steps) => Pace { interval: Progress::INTERVAL, stop_every: Some(steps) },
        _ => Progress::INTERVAL.into(),
    };
    // A run that was killed may have been saved before this was written.
    if !trainer.history().is_empty() {
        folder.write(run::METRICS, metrics(trainer.history())?.as_bytes())?;
    }
    let events = match tensorboard || EventFile::is_in(folder) {
        true => Some(EventFile::begin(folder, trainer.history())?),
        false => None,
    };
    let mut saved = Instant::now();
    let mut is_first = true;
    while !trainer.is_done() {
        if !job.goes_on(interrupt, earlier + trainer.steps())? {
            return job.signal(interrupt);
        }
        let epoch = trainer.history().len() + 1;
        let (steps, done) = (trainer.steps_per_epoch(), trainer.steps_in_epoch());
        let mut progress = Progress::new(&format!("{label}epoch {epoch:>3}/{epochs}"), steps, done);
        let mut may_go_on = Ok(());
        job.set_phase(phase(is_first, None));
        let mut before = trainer.samples_in_epoch();
        let end = trainer.epoch(pace, |trainer| {
            let seen = trainer.samples_in_epoch();
            let left = (samples - seen).saturating_add((epochs - epoch).saturating_mul(samples)) as u64;
            let steps = trainer.steps_in_epoch();
            let shown = progress.at(steps, (seen - before) as u64, left, || trainer.mean_loss());
            before = seen;
            let goes_on =
                shown.map_err(Error::from).and_then(|()| job.goes_on(interrupt, earlier + trainer.steps()));
            job.set_phase(phase(is_first, Some(trainer.steps_per_epoch() - steps)));
            let due = match every {
                CheckpointEvery::Time(time) => saved.elapsed() >= time,
                CheckpointEvery::Steps(steps) => trainer.steps().is_multiple_of(steps),
                CheckpointEvery::Epoch => false,
            };
            let stops = !matches!(goes_on, Ok(true));
            may_go_on = goes_on.map(drop);
            match stops || due {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        progress.clear();
        may_go_on?;
        let end = end?;
        is_first &= matches!(end, EpochEnd::Stopped);
        job.set_phase(Phase::Checkpoint);
        trainer.save(folder.path(), config)?;
        saved = Instant::now();
        if let EpochEnd::Finished(report) = end {
            folder.write(run::METRICS, metrics(trainer.history())?.as_bytes())?;
            if let Some(events) = &events {
                events.add(&report)?;
            }
            console.line(format!("{label}epoch {:>3}/{epochs}  {}", report.epoch, line(&report)))?;
            if report.skipped_steps > 0 {
                let EpochReport { epoch, skipped_steps, .. } = &report;
                console.warn(format!(
                    "{label}epoch {epoch}: {skipped_steps} of {steps} steps were skipped, because their gradients were not finite"
                ))?;
            }
        }
    }
    Ok(None)
}

/// How long a step takes, and what follows from it.
#[derive(Serialize)]
pub struct StepTime {
    seconds_per_step: f64,
    steps_per_epoch: u64,
    /// Without validation.
    seconds_per_epoch: f64,
    /// The most epochs that there can be.
    epochs: usize,
    /// Of all of them, without validation.
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Vec<profile::Line>>,
}

impl StepTime {
    fn show(&self, console: Console) -> Result<()> {
        let StepTime { seconds_per_step, steps_per_epoch, seconds_per_epoch, epochs, seconds: all, .. } =
            *self;
        console.line(format!(
            "time        about {} per epoch ({} steps of {:.2} ms), at most {} for {epochs} epochs; without validation",
            seconds(seconds_per_epoch),
            count(steps_per_epoch),
            seconds_per_step * 1e3,
            seconds(all),
        ))
    }
}

/// Measures some steps of the first epoch, and each operation of a step if `profile` says so, and prints what was measured.
pub fn measure<T: Task>(
    console: Console,
    mut trainer: Trainer<T>,
    precision: Precision,
    profile: bool,
) -> Result<StepTime> {
    /// The profile takes medians of this many runs.
    const RUNS: usize = 25;
    with_precision(precision, || {
        let mut time = time_of_step(&mut trainer)?;
        time.show(console)?;
        if !profile {
            return Ok(time);
        }
        let what = match trainer.config().accumulate {
            1 => "a step".to_owned(),
            parts => format!("one of the {parts} micro-batches of a step, without the update"),
        };
        if let Some(profile) = trainer.profile(RUNS)? {
            time.profile = Some(profile::show(console, &profile, &what)?);
        }
        Ok(time)
    })
}

/// The first steps, which are recorded and compiled, do not count.
fn time_of_step<T: Task>(trainer: &mut Trainer<T>) -> Result<StepTime> {
    const FIRST: u64 = 3;
    const MOST: Duration = Duration::from_secs(3);
    let begun = Instant::now();
    let (mut first, mut last) = ((0, Duration::ZERO), (0, Duration::ZERO));
    trainer.epoch(Progress::INTERVAL, |trainer| {
        last = (trainer.steps_in_epoch(), begun.elapsed());
        if first.0 < FIRST && first.0 < last.0 && last.0 < trainer.steps_per_epoch() {
            first = last;
        }
        match last.1 - first.1 > MOST {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })?;
    let (steps, time) = (last.0.saturating_sub(first.0).max(1), last.1.saturating_sub(first.1));
    let (seconds_per_step, steps_per_epoch) = (time.as_secs_f64() / steps as f64, trainer.steps_per_epoch());
    let (seconds_per_epoch, epochs) = (seconds_per_step * steps_per_epoch as f64, trainer.config().epochs);
    let seconds = seconds_per_epoch * epochs as f64;
    Ok(StepTime { seconds_per_step, steps_per_epoch, seconds_per_epoch, epochs, seconds, profile: None })
}

/// What the steps from here on are, if the epoch has `left` more. In the first epoch of a process, its first step and its last
/// one, whose batch may be smaller, are compiled and recorded, which may take long.
fn phase(is_first: bool, left: Option<u64>) -> Phase {
    match left {
        Some(0) => Phase::Validation,
        None | Some(1) if is_first => Phase::Starting,
        _ => Phase::Training,
    }
}

/// One line of JSON for each epoch.
fn metrics<V: serde::Serialize>(history: &[EpochReport<V>]) -> Result<String> {
    let mut lines = String::new();
    for report in history {
        lines += &as_json(report)?.to_string();
        lines.push('\n');
    }
    Ok(lines)
}

/// The plot of the losses by epoch, as an SVG document.
pub fn loss_plot<T: Task>(title: &str, history: &[EpochReport<T::Validation>]) -> String {
    let of = |report: &EpochReport<T::Validation>| EpochLoss {
        epoch: report.epoch,
        train: report.train_loss,
        validation: T::error(&report.validation),
    };
    loss_svg(title, &history.iter().map(of).collect::<Vec<_>>())
}

/// The number of the best epoch, 0 before the first.
pub fn best<V>(history: &[EpochReport<V>]) -> usize {
    history.iter().rev().find(|report| report.best).map_or(0, |report| report.epoch)
}
