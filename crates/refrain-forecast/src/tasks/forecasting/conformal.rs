//! Split conformal prediction: intervals that cover what their levels promise.

use super::Levels;
use super::adaptive::Adaptive;
use super::evaluation::{Eager, Place, each_row};
use super::loss::Loss;
use super::quantiles::{self, Crossings, check_length};
use super::student_t::StudentTQuantiles;
use crate::data::series::{Part, SeriesSet, Stack};
use crate::data::windows::Windows;
use crate::models::{Distribution, Forecaster};
use crate::{Error, Result};
use refrain::Communicator;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// By how much the intervals of a model must be wider (or may be narrower) to cover the share of the true values that their
/// levels promise.
///
/// It is measured on windows that training has not seen: the score of a true value is its distance to the interval, negative
/// inside of it. Of n scores of a channel and a step of the horizon, the correction for the level `l` is the
/// `ceil((n + 1) l / 100)`-th smallest (Vovk et al., 2005; for quantiles: Romano, Patterson and Candès, "Conformalized Quantile
/// Regression", 2019). If the windows to come are exchangeable with those, the interval covers at least `l` %. The interval of a
/// model without quantiles begins as the forecast itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The levels of the intervals.
    pub levels: Levels,
    /// Number of channels.
    pub channels: usize,
    /// Rows of a forecast.
    pub horizon: usize,
    /// The number of windows that it was measured on.
    pub windows: usize,
    /// The weights of the model that it belongs to.
    pub weights_sha256: String,
    /// The corrections `[levels, channels, horizon]`, in units of the channels' standard deviations.
    corrections: Vec<f32>,
    /// For [`Adaptive`], the correction of any level: [`SHARES`] levels evenly from 0 to 100 %, `[kinds, channels, horizon, SHARES]`,
    /// ascending. The bounds that a model has learned differ from level to level; the scores of its forecast alone are one kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    scores: Vec<f32>,
}

/// So many scores of each step are kept.
const SHARES: usize = 101;

/// The scores of so many values are in memory at a time.
const SCORES_AT_ONCE: usize = 1 << 26;

impl Calibration {
    /// Its file in a run folder.
    pub const FILE: &str = "calibration.json";

    /// Measures the corrections for a model, whose own intervals are `learned`, on all windows of a part. Only observed values
    /// count. The part must be one that neither training nor early stopping has used.
    ///
    /// Several ranks can share the work, as in [`evaluate`](super::evaluation::evaluate).
    ///
    /// # Errors
    /// [`Error::Calibration`] if a channel and step has too few observed values for a level, or a forecast is not finite;
    /// [`Error::Model`] if the model has other quantiles; [`Error::Engine`] if the device fails.
    pub fn fit(
        model: &dyn Forecaster,
        learned: &Intervals,
        levels: &Levels,
        windows: &Windows,
        part: &Part,
        ranks: Option<&Communicator>,
    ) -> Result<Calibration> {
        let (channels, horizon) = (windows.channels(), windows.horizon());
        let values = check_length(learned.outputs.length(model.window().horizon, horizon)?, horizon, levels)?;
        // Of one value, the scores of all levels are the same.
        let bounds: Vec<(usize, usize)> = match values {
            1 => vec![(0, 0)],
            _ => (0..levels.len()).map(|at| (levels.len() - 1 - at, levels.len() + 1 + at)).collect(),
        };
        let a_channel = part.windows().saturating_mul(horizon).saturating_mul(bounds.len());
        let at_once = (SCORES_AT_ONCE / a_channel.max(1)).clamp(1, channels.max(1));
        let mut corrections = vec![0.0; levels.len() * channels * horizon];
        let adaptive = learned.adaptive > 0.0;
        let mut kept = vec![0.0; if adaptive { bounds.len() * channels * horizon * SHARES } else { 0 }];
        for first in (0..channels).step_by(at_once) {
            let those = first..channels.min(first + at_once);
            let mut scores: Vec<Vec<f32>> = vec![Vec::new(); bounds.len() * those.len() * horizon];
            each_row(&Eager(model), windows, part, ranks, |Place { channel, .. }, values, truth| {
                if !those.contains(&channel) {
                    return;
                }
                let (values, _) = learned.sorted(values, horizon);
                for (kind, (low, high)) in bounds.iter().enumerate() {
                    for (step, &truth) in truth.iter().enumerate().filter(|(_, truth)| !truth.is_nan()) {
                        let (low, high) = (values[low * horizon + step], values[high * horizon + step]);
                        let of_step = (kind * those.len() + channel - those.start) * horizon + step;
                        scores[of_step].push(distance(low, high, truth));
                    }
                }
            })?;
            if adaptive {
                for (of_step, scores) in scores.iter_mut().enumerate() {
                    scores.sort_unstable_by(f32::total_cmp);
                    let (kind, rest) = (of_step / (those.len() * horizon), of_step % (those.len() * horizon));
                    let at = ((kind * channels + those.start) * horizon + rest) * SHARES;
                    let ranks = (0..SHARES).map(|share| share as f64 / (SHARES - 1) as f64);
                    for (to, share) in kept[at..at + SHARES].iter_mut().zip(ranks) {
                        let most = scores.len().max(1) as f64;
                        let rank = ((scores.len() as f64 + 1.0) * share).ceil().clamp(1.0, most);
                        *to = scores.get(rank as usize - 1).copied().unwrap_or(0.0);
                    }
                }
            }
            for (at, level) in levels.iter().enumerate() {
                let kind = at.min(bounds.len() - 1);
                for channel in those.clone() {
                    for step in 0..horizon {
                        let of_step = (kind * those.len() + channel - those.start) * horizon + step;
                        let correction = correction(&mut scores[of_step], level)
                            .map_err(|problem| refuse(problem, level, channel, step))?;
                        corrections[(at * channels + channel) * horizon + step] = correction;
                    }
                }
            }
        }
        Ok(Calibration {
            levels: levels.clone(),
            channels,
            horizon,
            windows: part.windows(),
            weights_sha256: model.weights_sha256()?,
            corrections,
            scores: kept,
        })
    }

    /// The calibration that `refrain train` wrote into a run folder when training ended.
    ///
    /// # Errors
    /// [`Error::Calibration`] if there is none, or it is damaged; [`Error::Read`].
    pub fn read(folder: &Path) -> Result<Calibration> {
        let path = folder.join(Calibration::FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let problem = format!(
                    "{}: there is no {}, which is written when training ends",
                    folder.display(),
                    Calibration::FILE
                );
                return Err(Error::Calibration {
                    problem,
                    fix: "resume the run with `refrain train --resume`",
                });
            }
            Err(source) => return Err(Error::Read { path, source }),
        };
        serde_json::from_str(&text).map_err(|error| Error::Calibration {
            problem: format!("{} cannot be read: {error}", path.display()),
            fix: "restore the file, or train again",
        })
    }

    /// Refuses a part with too few windows for some level, or with too few observed values of a channel at a step of the
    /// horizon, before a model is trained.
    ///
    /// # Errors
    /// [`Error::Calibration`].
    pub fn check_windows(
        levels: &Levels,
        set: &SeriesSet,
        stack: &Stack,
        (context, horizon): (usize, usize),
        part: &Part,
    ) -> Result<()> {
        let (windows, highest) = (part.windows(), levels.iter().next_back().unwrap_or(0.0));
        if (windows as f64) < needed(highest) {
            let problem = format!(
                "{windows} windows are too few to calibrate intervals of {highest} %, which need {}",
                needed(highest)
            );
            return Err(Error::Calibration { problem, fix: FIX });
        }
        let channels = set.channels();
        let mut counts = vec![0_usize; channels * horizon];
        for (series, runs, end) in stack.origins(part, context) {
            let grid = set.series()[series].grid();
            for origin in runs.into_iter().flatten() {
                for row in origin..(origin + horizon).min(end) {
                    for channel in 0..channels {
                        counts[channel * horizon + row - origin] +=
                            usize::from(grid.is_observed(row, channel));
                    }
                }
            }
        }
        for (at, observed) in counts.into_iter().enumerate() {
            let (channel, step) = (at / horizon, at % horizon);
            if (observed as f64) < needed(highest) {
                let problem = format!(
                    "it has {observed} observed values in the calibration part, and needs {}",
                    needed(highest)
                );
                return Err(refuse(problem, highest, channel, step));
            }
        }
        Ok(())
    }

    /// Refuses a calibration of another model, or one that is damaged.
    ///
    /// # Errors
    /// [`Error::Calibration`].
    pub fn check(&self, model: &dyn Forecaster, levels: &Levels, horizon: usize) -> Result<()> {
        let refuse = |problem: &str| {
            let fix = "restore the file, or train again";
            Err(Error::Calibration { problem: format!("the calibration of the intervals {problem}"), fix })
        };
        if (&self.levels, self.channels, self.horizon) != (levels, model.window().channels, horizon) {
            return refuse("has other levels, channels or rows than the model");
        }
        let cells = self.levels.len() * self.channels * self.horizon;
        if self.corrections.len() != cells || !self.corrections.iter().all(|value| value.is_finite()) {
            return refuse("is damaged");
        }
        let kind = self.channels * self.horizon * SHARES;
        let kinds = self.scores.len().checked_div(kind).unwrap_or(0);
        let whole = kinds * kind == self.scores.len() && [0, 1, self.levels.len()].contains(&kinds);
        if !whole || !self.scores.iter().all(|value| value.is_finite()) {
            return refuse("is damaged");
        }
        match self.weights_sha256 == model.weights_sha256()? {
            true => Ok(()),
            false => refuse("belongs to other weights"),
        }
    }

    /// The score at a share of the scores of a step, between those that are kept. Of a share below 0 it is the first. Of one above
    /// 1 it grows from the last, by its distance to the median for each tenth.
    pub(super) fn score(&self, level: usize, channel: usize, step: usize, share: f64) -> f32 {
        let kind = if self.kinds() == 1 { 0 } else { level };
        let own = &self.scores_of(kind, channel)[step * SHARES..][..SHARES];
        let place = share.clamp(0.0, 1.0) * (SHARES - 1) as f64;
        let first = (place.floor() as usize).min(SHARES - 2);
        let part = (place - first as f64) as f32;
        let beyond = 10.0 * (share - 1.0).max(0.0) as f32 * (own[SHARES - 1] - own[SHARES / 2]);
        own[first] * (1.0 - part) + own[first + 1] * part + beyond
    }

    /// How many kinds of scores are kept.
    fn kinds(&self) -> usize {
        self.scores.len() / (self.channels * self.horizon * SHARES).max(1)
    }

    /// The scores `[horizon, SHARES]` of a kind.
    fn scores_of(&self, kind: usize, channel: usize) -> &[f32] {
        let length = self.horizon * SHARES;
        &self.scores[(kind * self.channels + channel) * length..][..length]
    }

    /// The corrections of each step, of the level with this number.
    pub(super) fn of(&self, level: usize, channel: usize) -> &[f32] {
        &self.corrections[(level * self.channels + channel) * self.horizon..][..self.horizon]
    }
}

/// How far a value lies outside of an interval; negative inside.
fn distance(low: f32, high: f32, truth: f32) -> f32 {
    let (below, above) = (low - truth, truth - high);
    // A bound of NaN contains nothing.
    if below.is_nan() || above.is_nan() { f32::INFINITY } else { below.max(above) }
}

/// The `ceil((n + 1) level / 100)`-th smallest of n scores.
fn correction(scores: &mut [f32], level: f64) -> Result<f32, String> {
    let n = scores.len();
    // Rounding must not add one to a whole number.
    let rank = ((n as f64 + 1.0) * level / 100.0 - 1e-9).ceil().max(1.0) as usize;
    if rank > n {
        return Err(format!("there are {n} observed values, and at least {} are needed", needed(level)));
    }
    let (_, score, _) = scores.select_nth_unstable_by(rank - 1, f32::total_cmp);
    match score.is_finite() {
        true => Ok(*score),
        false => Err("a forecast is not finite".to_owned()),
    }
}

/// The fewest scores that have one of the rank for a level.
fn needed(level: f64) -> f64 {
    (level / (100.0 - level) - 1e-9).ceil()
}

const FIX: &str = "choose a longer validation part by --split, or a lower level";

fn refuse(problem: String, level: f64, channel: usize, step: usize) -> Error {
    Error::Calibration {
        problem: format!(
            "the interval of {level} % of channel {} cannot be calibrated for step {} of the horizon: {problem}",
            channel + 1,
            step + 1
        ),
        fix: FIX,
    }
}

/// The intervals around the forecasts of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Intervals {
    levels: Levels,
    outputs: Outputs,
    calibration: Option<Calibration>,
    /// The step size of [`Adaptive`], or 0.
    adaptive: f64,
}

/// What the values of a model are.
#[derive(Debug, Clone, Default, PartialEq)]
enum Outputs {
    /// Quantiles, or one value.
    #[default]
    Quantiles,
    /// The parameters of Student's t distribution.
    StudentT(Arc<StudentTQuantiles>),
}

impl Outputs {
    /// The number of quantiles times rows of this many values.
    fn length(&self, length: usize, horizon: usize) -> Result<usize> {
        match self {
            Outputs::Quantiles => Ok(length),
            Outputs::StudentT(of) if length == Distribution::StudentT.values() * horizon => {
                Ok(of.levels().values() * horizon)
            }
            Outputs::StudentT(_) => Err(quantiles::no_quantiles(length, horizon)),
        }
    }
}

impl Intervals {
    /// Those that a model has learned, as it forecasts them; or none.
    pub fn learned(levels: Levels) -> Intervals {
        Intervals { levels, ..Intervals::default() }
    }

    /// Those that a model has learned by a loss: its quantiles, those of its distribution, or none.
    ///
    /// # Errors
    /// [`Error::Engine`] if the CPU has no memory for a small table.
    pub fn of(loss: &Loss) -> Result<Intervals> {
        let levels = loss.levels().clone();
        let outputs = match loss {
            Loss::StudentT(_) => Outputs::StudentT(Arc::new(StudentTQuantiles::new(levels.clone())?)),
            _ => Outputs::Quantiles,
        };
        Ok(Intervals { levels, outputs, ..Intervals::default() })
    }

    /// The distribution that the model forecasts, if it is one.
    pub(super) fn distribution(&self) -> Option<Distribution> {
        match self.outputs {
            Outputs::Quantiles => None,
            Outputs::StudentT(_) => Some(Distribution::StudentT),
        }
    }

    /// The same, adaptive by this step size where forecasts roll; 0 is not. A calibration that is [fitted](Calibration::fit) for
    /// them keeps what that needs.
    ///
    /// # Errors
    /// [`Error::Calibration`] for a step size that is negative or not finite.
    pub fn adapting(self, rate: f64) -> Result<Intervals> {
        if !(rate >= 0.0 && rate.is_finite()) {
            let problem = format!("the step size of adaptive intervals is {rate}");
            return Err(Error::Calibration { problem, fix: "choose 0 or a small number such as 0.01" });
        }
        Ok(Intervals { adaptive: rate, ..self })
    }

    /// What adapts them where forecasts roll, if they do and have a calibration for it.
    pub fn adaptive(&self) -> Option<Adaptive> {
        let calibration =
            self.calibration.as_ref().filter(|of| self.adaptive > 0.0 && !of.scores.is_empty())?;
        Some(Adaptive::new(calibration, self.adaptive))
    }

    /// The same with other corrections, `[levels, horizon]` for each channel.
    pub fn with_corrections(&self, of_channels: &[Vec<f32>]) -> Intervals {
        let Some(own) = &self.calibration else { return self.clone() };
        let (levels, horizon) = (own.levels.len(), own.horizon);
        let mut corrections = own.corrections.clone();
        for (channel, of_channel) in of_channels.iter().enumerate().take(own.channels) {
            for level in 0..levels {
                let to = (level * own.channels + channel) * horizon;
                corrections[to..to + horizon].copy_from_slice(&of_channel[level * horizon..][..horizon]);
            }
        }
        self.clone().with_calibration(Calibration { corrections, ..own.clone() })
    }

    /// The same with a calibration, whose levels they take.
    pub fn with_calibration(self, calibration: Calibration) -> Intervals {
        Intervals { levels: calibration.levels.clone(), calibration: Some(calibration), ..self }
    }

    /// Those of a calibration: around the quantiles that a model has learned, or around its forecast.
    pub fn calibrated(calibration: Calibration) -> Intervals {
        Intervals::default().with_calibration(calibration)
    }

    /// The intervals for forecasts of other channels: for each the number of the channel that it was calibrated as, if it was.
    ///
    /// # Errors
    /// [`Error::Calibration`] if they are calibrated, and a channel was not.
    pub fn of_channels(&self, places: &[Option<usize>]) -> Result<Intervals> {
        let Some(own) = &self.calibration else { return Ok(self.clone()) };
        let known = |place: &Option<usize>| {
            place.filter(|&place| place < own.channels).ok_or_else(|| Error::Calibration {
                problem: "the intervals are calibrated for each channel of the training data, and here is another channel"
                    .to_owned(),
                fix: "train with --layout independent, whose calibration holds for any series, or without --calibrate",
            })
        };
        let places = places.iter().map(known).collect::<Result<Vec<usize>>>()?;
        let each = |of: usize| (0..of).flat_map(|at| places.iter().map(move |&place| (at, place)));
        let corrections = each(own.levels.len()).flat_map(|(level, place)| own.of(level, place)).copied();
        let scores = each(own.kinds()).flat_map(|(kind, place)| own.scores_of(kind, place)).copied();
        let (corrections, scores) = (corrections.collect(), scores.collect());
        let calibration = Calibration { channels: places.len(), corrections, scores, ..own.clone() };
        Ok(self.clone().with_calibration(calibration))
    }

    /// Their levels.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// How many values a model that has these intervals forecasts in each row.
    ///
    /// # Errors
    /// [`Error::Model`] if the number is impossible.
    pub(super) fn check(&self, length: usize, horizon: usize) -> Result<()> {
        let length = self.outputs.length(length, horizon)?;
        let values = check_length(length, horizon, &self.levels)?;
        match values == self.levels.values() || self.calibration.is_some() {
            true => Ok(()),
            false => Err(quantiles::no_quantiles(length, horizon)),
        }
    }

    /// The quantiles of a model's values, ascending in each row.
    pub(super) fn sorted<'a>(&self, values: &'a mut [f32], horizon: usize) -> (Cow<'a, [f32]>, Crossings) {
        match &self.outputs {
            Outputs::Quantiles => {
                let crossings = quantiles::sort(values, horizon);
                (Cow::Borrowed(values), crossings)
            }
            // Those of a distribution never cross.
            Outputs::StudentT(of) => {
                (Cow::Owned(of.of(values, horizon)), Crossings { crossed: 0, of: horizon as u64 })
            }
        }
    }

    /// The quantiles `[quantiles of the levels, horizon]` of a channel, ascending in each row, of what a model has forecast,
    /// sorted. The interval of a higher level always contains that of a lower one, and all contain the median.
    pub(super) fn quantiles(&self, channel: usize, sorted: &[f32], horizon: usize, out: &mut Vec<f32>) {
        let own = self.calibration.as_ref();
        self.widened(|level, step| own.map_or(0.0, |own| own.of(level, channel)[step]), sorted, horizon, out);
    }

    /// The same with the correction of each level and step.
    pub(super) fn widened(
        &self,
        correction: impl Fn(usize, usize) -> f32,
        sorted: &[f32],
        horizon: usize,
        out: &mut Vec<f32>,
    ) {
        let (middle, values) = (self.levels.len(), sorted.len() / horizon);
        out.resize(self.levels.values() * horizon, 0.0);
        out[middle * horizon..][..horizon].copy_from_slice(quantiles::median(sorted, horizon));
        for at in 0..middle {
            let (low, high) = match values {
                1 => (0, 0),
                _ => (middle - 1 - at, middle + 1 + at),
            };
            for step in 0..horizon {
                let by = correction(at, step);
                let inner = [middle - at, middle + at].map(|quantile| out[quantile * horizon + step]);
                let (low, high) = (sorted[low * horizon + step] - by, sorted[high * horizon + step] + by);
                // Written so that a NaN stays.
                let (low, high) = (
                    if low > inner[0] { inner[0] } else { low },
                    if high < inner[1] { inner[1] } else { high },
                );
                out[(middle - 1 - at) * horizon + step] = low;
                out[(middle + 1 + at) * horizon + step] = high;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correction_is_the_score_of_its_rank() {
        let scores = |n: usize| (0..n).map(|i| (i * 7 % n) as f32).collect::<Vec<_>>();
        // Of 99 scores 0 to 98, the 90th smallest; of 100, the 91st.
        assert_eq!(correction(&mut scores(99), 90.0), Ok(89.0));
        assert_eq!(correction(&mut scores(100), 90.0), Ok(90.0));
        assert_eq!(correction(&mut scores(9), 90.0), Ok(8.0));
        assert_eq!(correction(&mut scores(19), 95.0), Ok(18.0));
        assert!(correction(&mut scores(8), 90.0).unwrap_err().contains("8 observed values, and at least 9"));
        assert!(correction(&mut scores(18), 95.0).unwrap_err().contains("at least 19"));
        assert!(correction(&mut [], 50.0).is_err());
        assert!(correction(&mut [f32::INFINITY; 20], 50.0).unwrap_err().contains("not finite"));
    }

    #[test]
    fn intervals_of_higher_levels_contain_those_of_lower_ones() {
        let calibration = |corrections: Vec<f32>| Calibration {
            levels: "80,90".parse().unwrap(),
            channels: 1,
            horizon: 2,
            windows: 100,
            weights_sha256: String::new(),
            corrections,
            scores: Vec::new(),
        };
        let mut out = Vec::new();
        let mut of = |corrections: [f32; 4], sorted: &[f32]| {
            let intervals = Intervals::calibrated(calibration(corrections.to_vec()));
            intervals.check(sorted.len(), 2).unwrap();
            intervals.quantiles(0, sorted, 2, &mut out);
            out.clone()
        };
        // One value: the forecast and its corrections.
        let got = of([1.0, 2.0, 3.0, 1.5], &[10.0, 20.0]);
        assert_eq!(got, [7.0, 18.0, 9.0, 18.0, 10.0, 20.0, 11.0, 22.0, 13.0, 22.0]);
        // Quantiles: a correction below zero makes an interval narrower, down to the median.
        let sorted = [1.0, 1.0, 2.0, 2.0, 5.0, 5.0, 8.0, 8.0, 9.0, 9.0];
        let got = of([-1.0, -7.0, 0.0, 1.0], &sorted);
        assert_eq!(got, [1.0, 0.0, 3.0, 5.0, 5.0, 5.0, 7.0, 5.0, 9.0, 10.0]);
        let got = of([0.0; 4], &[f32::NAN; 10]);
        assert!(got.iter().all(|value| value.is_nan()));
        let learned = Intervals::learned("80,90".parse().unwrap());
        assert!(learned.check(2, 2).is_err() && learned.check(10, 2).is_ok() && learned.check(6, 2).is_err());
    }
}
