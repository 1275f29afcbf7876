//! Adaptive conformal inference: intervals that follow their own coverage where forecasts roll.

use super::Levels;
use super::conformal::Calibration;
use std::collections::{HashMap, VecDeque};

/// Adapts the intervals of each series and channel from origin to origin (Gibbs and Candès, "Adaptive Conformal Inference Under
/// Distribution Shift", NeurIPS 2021).
///
/// The interval of level `1 - a` takes the score of the calibration at the share `1 - a_t`. After each true value `a_t` goes up by
/// `rate * a` if the value lay in the interval, and down by `rate * (1 - a)` if not, for each step of the horizon. Only values that
/// are known at an origin count there: the step `s` of a forecast comes true `s` rows after its origin. Where `a_t` is above 1, the
/// smallest score is taken. Where it is below 0, the paper takes an infinite interval; here it grows on from the largest score, the
/// more the further `a_t` falls.
#[derive(Debug)]
pub struct Adaptive {
    calibration: Calibration,
    rate: f64,
    states: HashMap<(usize, usize), State>,
}

/// Of one channel of one series.
#[derive(Debug)]
struct State {
    /// `a_t`, `[levels, horizon]`.
    shares: Vec<f64>,
    /// Forecasts that have not come true completely.
    pending: VecDeque<Pending>,
}

#[derive(Debug)]
struct Pending {
    origin: usize,
    /// The steps that have been counted.
    counted: usize,
    /// Whether each value lay outside of its interval, `[levels, horizon]`; `None` if it was not observed.
    missed: Vec<Option<bool>>,
}

/// The share of values that may lie outside of the interval of a level.
fn outside(level: f64) -> f64 {
    1.0 - level / 100.0
}

impl Adaptive {
    pub(super) fn new(calibration: &Calibration, rate: f64) -> Adaptive {
        Adaptive { calibration: calibration.clone(), rate, states: HashMap::new() }
    }

    /// Goes on with the scores of another calibration of the same levels and steps, such as that of a model that was trained again.
    pub fn recalibrate(&mut self, other: Adaptive) {
        self.calibration = other.calibration;
    }

    /// The corrections `[levels, horizon]` of a channel at an origin, by what has come true before it. Origins of one channel
    /// ascend.
    pub fn corrections(&mut self, series: usize, channel: usize, origin: usize) -> Vec<f32> {
        let (calibration, rate) = (&self.calibration, self.rate);
        let (levels, horizon) = (&calibration.levels, calibration.horizon);
        let state = self.states.entry((series, channel)).or_insert_with(|| State::new(levels, horizon));
        state.settle(levels, horizon, rate, origin);
        let steps = (0..levels.len()).flat_map(|level| (0..horizon).map(move |step| (level, step)));
        let share = |(level, step): (usize, usize)| 1.0 - state.shares[level * horizon + step];
        steps.map(|at| calibration.score(at.0, channel, at.1, share(at))).collect()
    }

    /// Tells what came true after an origin, and the quantiles `[quantiles of the levels, horizon]` that were forecast. Values
    /// that were not observed are NaN.
    pub fn observe(
        &mut self,
        (series, channel): (usize, usize),
        origin: usize,
        quantiles: &[f32],
        truth: &[f32],
    ) {
        let (levels, horizon) = (self.calibration.levels.len(), self.calibration.horizon);
        let Some(state) = self.states.get_mut(&(series, channel)) else { return };
        let missed =
            (0..levels).flat_map(|level| (0..horizon).map(move |step| (level, step))).map(|(level, step)| {
                let [low, high] =
                    [levels - 1 - level, levels + 1 + level].map(|at| quantiles[at * horizon + step]);
                let truth = truth[step];
                (!truth.is_nan()).then_some(!(low <= truth && truth <= high))
            });
        state.pending.push_back(Pending { origin, counted: 0, missed: missed.collect() });
    }
}

impl State {
    fn new(levels: &Levels, horizon: usize) -> State {
        let shares = levels.iter().flat_map(|level| std::iter::repeat_n(outside(level), horizon)).collect();
        State { shares, pending: VecDeque::new() }
    }

    /// Counts what is known at an origin.
    fn settle(&mut self, levels: &Levels, horizon: usize, rate: f64, origin: usize) {
        for pending in &mut self.pending {
            let known = origin.saturating_sub(pending.origin).min(horizon);
            for (level, of) in levels.iter().enumerate() {
                for step in pending.counted..known {
                    if let Some(missed) = pending.missed[level * horizon + step] {
                        self.shares[level * horizon + step] +=
                            rate * (outside(of) - f64::from(u8::from(missed)));
                    }
                }
            }
            pending.counted = pending.counted.max(known);
        }
        self.pending.retain(|pending| pending.counted < horizon);
    }
}
