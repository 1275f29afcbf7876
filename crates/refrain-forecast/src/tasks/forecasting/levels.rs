//! The levels of prediction intervals.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// The levels of the intervals of a forecast, in percent, ascending: 90 % of the true values should lie in the interval of the
/// level 90. As text they are `80,90`, or `none`.
///
/// ```
/// use refrain_forecast::tasks::forecasting::Levels;
///
/// let levels: Levels = "90, 80".parse()?;
/// assert_eq!(levels.to_string(), "80,90");
/// assert_eq!(levels.quantiles(), [0.05, 0.1, 0.5, 0.9, 0.95]);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "Written")]
pub struct Levels(Vec<f64>);

/// More levels than this would say nothing that fewer do not say.
const MOST: usize = 49;

impl Levels {
    /// No intervals.
    pub const NONE: Levels = Levels(Vec::new());

    /// These levels, in any order.
    ///
    /// # Errors
    /// What is wrong with them: each lies between 0 and 100, and none occurs twice.
    pub fn new(mut levels: Vec<f64>) -> Result<Levels, String> {
        if let Some(level) = levels.iter().find(|&&level| !(level > 0.0 && level < 100.0)) {
            return Err(format!("the level {level} is not between 0 and 100 (percent)"));
        }
        levels.sort_unstable_by(f64::total_cmp);
        if let Some(pair) = levels.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("the level {} is given twice", pair[0]));
        }
        match levels.len() > MOST {
            true => Err(format!("{} levels are too many; at most {MOST} are possible", levels.len())),
            false => Ok(Levels(levels)),
        }
    }

    /// Whether there are no intervals.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of intervals.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The levels in percent, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = f64> + '_ {
        self.0.iter().copied()
    }

    /// The probabilities of the bounds of all intervals and of the median, ascending. The level `l` is the interval between the
    /// quantiles `(100 - l) / 200` and `(100 + l) / 200`.
    pub fn quantiles(&self) -> Vec<f64> {
        (0..self.values()).map(|at| self.quantile(at)).collect()
    }

    /// The number of these quantiles: two for each level, and the median.
    pub fn values(&self) -> usize {
        2 * self.len() + 1
    }

    /// One of these quantiles.
    ///
    /// # Panics
    /// If there is no such quantile.
    pub fn quantile(&self, at: usize) -> f64 {
        let half = self.len();
        match at.cmp(&half) {
            Ordering::Less => (100.0 - self.0[half - 1 - at]) / 200.0,
            Ordering::Equal => 0.5,
            Ordering::Greater => (100.0 + self.0[at - half - 1]) / 200.0,
        }
    }
}

impl FromStr for Levels {
    type Err = String;

    fn from_str(text: &str) -> Result<Levels, String> {
        if text == "none" {
            return Ok(Levels::NONE);
        }
        let levels: Result<Vec<f64>, _> = text.split(',').map(|level| level.trim().parse()).collect();
        match levels {
            Ok(levels) => Levels::new(levels),
            Err(_) => Err(format!("{text:?} is neither `none` nor levels in percent such as `80,90`")),
        }
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.is_empty() {
            return write!(f, "none");
        }
        let comma = |at: usize| if at > 0 { "," } else { "" };
        self.iter().enumerate().try_for_each(|(at, level)| write!(f, "{}{level}", comma(at)))
    }
}

impl From<Levels> for String {
    fn from(levels: Levels) -> String {
        levels.to_string()
    }
}

/// Levels as they are written down: text, a number, or numbers.
#[derive(Deserialize)]
#[serde(untagged, expecting = "neither `none` nor levels in percent such as `80,90`")]
enum Written {
    Text(String),
    One(f64),
    Several(Vec<f64>),
}

impl TryFrom<Written> for Levels {
    type Error = String;

    fn try_from(written: Written) -> Result<Levels, String> {
        match written {
            Written::Text(text) => text.parse(),
            Written::One(level) => Levels::new(vec![level]),
            Written::Several(levels) => Levels::new(levels),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn levels_are_read_as_text_numbers_and_lists() {
        let read = |value| serde_json::from_value::<Levels>(value).map_err(|error| error.to_string());
        let both = Levels::new(vec![80.0, 99.5]).unwrap();
        for value in [json!("80,99.5"), json!(" 99.5 ,80"), json!([99.5, 80])] {
            assert_eq!(read(value.clone()), Ok(both.clone()), "{value}");
        }
        assert_eq!(serde_json::to_value(&both).unwrap(), json!("80,99.5"));
        assert_eq!((read(json!(90)), read(json!("none"))), ("90".parse(), Ok(Levels::NONE)));
        assert_eq!(serde_json::to_value(Levels::NONE).unwrap(), json!("none"));
        for (value, expected) in [
            (json!("90,90"), "90 is given twice"),
            (json!("0"), "0 is not between"),
            (json!([50, 100]), "100 is not between"),
            (json!("nan"), "NaN is not between"),
            (json!(""), "neither `none`"),
            (json!("many"), "neither `none`"),
            (json!(true), "neither `none`"),
        ] {
            let message = read(value.clone()).unwrap_err();
            assert!(message.contains(expected), "{value}: {message}");
        }
        assert!(Levels::new((1..=50).map(f64::from).collect()).unwrap_err().contains("too many"));
    }
}
