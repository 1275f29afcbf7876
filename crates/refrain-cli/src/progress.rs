//! A progress bar on standard error if that is a terminal, otherwise a line every few seconds.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::console::{Verbosity, another_speaks, note, seconds, verbosity};

/// How often there is a line without a terminal, unless the variable REFRAIN_PROGRESS says how many seconds.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The bar of one epoch.
pub struct Progress {
    bar: ProgressBar,
    label: String,
    /// Without a bar, how often there is a line; `None` for never.
    line_every: Option<Duration>,
    begun: Instant,
    shown: Instant,
    samples: u64,
}

impl Progress {
    /// How often the bar is updated.
    pub const INTERVAL: Duration = Duration::from_millis(100);

    /// A bar of this many steps, some of them done.
    pub fn new(label: &str, steps: u64, done: u64) -> Progress {
        let silent = another_speaks() || verbosity() == Verbosity::Quiet;
        let bar = if silent { ProgressBar::hidden() } else { ProgressBar::new(steps) };
        // A hidden bar does not know its length.
        bar.set_length(steps);
        let bar = bar.with_position(done);
        let style = ProgressStyle::with_template("{prefix} {bar:28} {pos}/{len} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(label.to_owned());
        let now = Instant::now();
        let line_every = (!silent && bar.is_hidden()).then(line_every).flatten();
        Progress { bar, label: label.to_owned(), line_every, begun: now, shown: now, samples: 0 }
    }

    /// Updates the bar: this many steps of the epoch are done, this many samples were seen since the last update, and
    /// `left` samples remain. `loss` is only called if the loss is shown.
    pub fn at<E>(
        &mut self,
        steps: u64,
        samples: u64,
        left: u64,
        loss: impl FnOnce() -> Result<f64, E>,
    ) -> Result<(), E> {
        self.samples += samples;
        self.bar.set_position(steps);
        let every = match (self.bar.is_hidden(), self.line_every) {
            (false, _) => Progress::INTERVAL / 2,
            (true, Some(every)) => every,
            (true, None) => return Ok(()),
        };
        if self.shown.elapsed() < every {
            return Ok(());
        }
        self.shown = Instant::now();
        let rate = self.samples as f64 / self.begun.elapsed().as_secs_f64().max(1e-9);
        let remaining = seconds(left as f64 / rate.max(1e-9));
        let message = format!("loss {:.4}  {rate:.0} samples/s  {remaining} left", loss()?);
        match self.bar.is_hidden() {
            true => {
                note(format!("{}  step {steps}/{}  {message}", self.label, self.bar.length().unwrap_or(0)))
            }
            false => self.bar.set_message(message),
        }
        Ok(())
    }

    /// Removes the bar.
    pub fn clear(self) {
        self.bar.finish_and_clear();
    }
}

/// How often there is a line without a terminal, as the environment says.
fn line_every() -> Option<Duration> {
    let chosen = std::env::var("REFRAIN_PROGRESS").ok();
    let Some(chosen) = chosen.and_then(|text| text.trim().parse::<f64>().ok()) else {
        return Some(LINE_EVERY);
    };
    Duration::try_from_secs_f64(chosen).ok().filter(|every| !every.is_zero())
}
