//! A progress bar on standard error, if that is a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The bar of one epoch.
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
    shown: Instant,
    samples: u64,
}

impl Progress {
    /// How often the bar is updated.
    pub const INTERVAL: Duration = Duration::from_millis(100);

    /// A bar of this many steps, some of them done.
    pub fn new(label: &str, steps: u64, done: u64) -> Progress {
        let bar = match crate::console::another_speaks() {
            true => ProgressBar::hidden(),
            false => ProgressBar::new(steps),
        };
        let bar = bar.with_position(done);
        let style = ProgressStyle::with_template("{prefix} {bar:28} {pos}/{len} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(label.to_owned());
        let now = Instant::now();
        Progress { bar, begun: now, shown: now, samples: 0 }
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
        if self.bar.is_hidden() || self.shown.elapsed() < Progress::INTERVAL / 2 {
            return Ok(());
        }
        self.shown = Instant::now();
        let rate = self.samples as f64 / self.begun.elapsed().as_secs_f64().max(1e-9);
        let remaining = crate::console::seconds(left as f64 / rate.max(1e-9));
        self.bar.set_message(format!("loss {:.4}  {rate:.0} samples/s  {remaining} left", loss()?));
        Ok(())
    }

    /// Removes the bar.
    pub fn clear(self) {
        self.bar.finish_and_clear();
    }
}
