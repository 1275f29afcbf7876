//! Epoch after epoch, whatever is trained.

use std::ops::ControlFlow;

use refrain_forecast::plot::{EpochLoss, loss_svg};
use refrain_forecast::training::{EpochEnd, EpochReport, Task, Trainer};
use serde_json::Value;

use super::as_json;
use crate::console::Console;
use crate::error::Result;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::run::{self, RunFolder};

/// Trains to the end, or until the user interrupts; after each epoch, and then, all is on disk. `config` is kept with it,
/// `label` goes before the number of the epoch, `line` tells of one.
pub fn train<T: Task>(
    console: Console,
    trainer: &mut Trainer<T>,
    folder: &RunFolder,
    config: &Value,
    label: &str,
    interrupt: &Interrupt,
    line: impl Fn(&EpochReport<T::Validation>) -> String,
) -> Result<()> {
    let (samples, epochs) = (trainer.samples_per_epoch(), trainer.config().epochs);
    while !trainer.is_done() && !interrupt.asked() {
        let epoch = trainer.history().len() + 1;
        let (steps, done) = (trainer.steps_per_epoch(), trainer.steps_in_epoch());
        let mut progress = Progress::new(&format!("{label}epoch {epoch:>3}/{epochs}"), steps, done);
        let mut shown = Ok(());
        let mut before = trainer.samples_in_epoch();
        let end = trainer.epoch(Progress::INTERVAL, |trainer| {
            let seen = trainer.samples_in_epoch();
            let left = (samples - seen).saturating_add((epochs - epoch).saturating_mul(samples)) as u64;
            let steps = trainer.steps_in_epoch();
            shown = progress.at(steps, (seen - before) as u64, left, || trainer.mean_loss());
            before = seen;
            if shown.is_err() || interrupt.asked() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        progress.clear();
        shown?;
        let end = end?;
        trainer.save(folder.path(), config)?;
        if let EpochEnd::Finished(report) = end {
            folder.write(run::METRICS, metrics(trainer.history())?.as_bytes())?;
            console.line(format!("{label}epoch {:>3}/{epochs}  {}", report.epoch, line(&report)))?;
        }
    }
    Ok(())
}

/// A line of JSON for each epoch.
fn metrics<V: serde::Serialize>(history: &[EpochReport<V>]) -> Result<String> {
    let mut lines = String::new();
    for report in history {
        lines += &as_json(report)?.to_string();
        lines.push('\n');
    }
    Ok(lines)
}

/// The losses by epoch as an SVG document.
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
