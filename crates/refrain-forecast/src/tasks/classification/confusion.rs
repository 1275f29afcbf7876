//! Confusion matrices.

use crate::data::panel::Class;
use serde::{Deserialize, Serialize};

const CLASSES: usize = Class::ALL.len();

/// A confusion matrix: for each true class, how often each class was predicted.
///
/// ```
/// use refrain_forecast::tasks::classification::confusion::Confusion;
/// use refrain_forecast::data::panel::Class::{Down, Flat, Up};
///
/// let mut confusion = Confusion::default();
/// [(Up, Up), (Up, Flat), (Down, Down), (Up, Up)].map(|(truth, told)| confusion.add(truth, told));
/// assert_eq!(confusion.accuracy(), 0.75);
/// assert_eq!(confusion.balanced_accuracy(), (2.0 / 3.0 + 1.0) / 2.0); // nothing was flat
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confusion {
    /// `counts[truth][predicted]`, by class number.
    pub counts: [[u64; CLASSES]; CLASSES],
}

impl Confusion {
    /// Adds a moment with its true and its predicted class.
    pub fn add(&mut self, truth: Class, predicted: Class) {
        self.counts[truth.index()][predicted.index()] += 1;
    }

    /// Adds the moments of another matrix.
    pub fn merge(&mut self, other: &Confusion) {
        let cells = self.counts.iter_mut().flatten().zip(other.counts.iter().flatten());
        cells.for_each(|(count, more)| *count += more);
    }

    /// The number of moments.
    pub fn total(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }

    /// The share of moments that were predicted correctly. NaN if there are none.
    pub fn accuracy(&self) -> f64 {
        let right: u64 = (0..CLASSES).map(|class| self.counts[class][class]).sum();
        right as f64 / self.total() as f64
    }

    /// The share of the moments of a class that were predicted correctly. `None` if there are none.
    pub fn recall(&self, class: Class) -> Option<f64> {
        let of_class = &self.counts[class.index()];
        let all: u64 = of_class.iter().sum();
        (all > 0).then(|| of_class[class.index()] as f64 / all as f64)
    }

    /// The mean of the recalls of the classes that occur. Always predicting the same class gives 1 / the number of
    /// classes. NaN if there are no moments.
    pub fn balanced_accuracy(&self) -> f64 {
        let recalls: Vec<f64> = Class::ALL.into_iter().filter_map(|class| self.recall(class)).collect();
        recalls.iter().sum::<f64>() / recalls.len() as f64
    }

    /// The matrix of always predicting one class for all of these moments.
    pub fn of_always(&self, predicted: Class) -> Confusion {
        let mut always = Confusion::default();
        for (truth, counts) in self.counts.iter().enumerate() {
            always.counts[truth][predicted.index()] = counts.iter().sum();
        }
        always
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_majority_class_has_its_share_as_accuracy_and_no_more_than_chance_when_balanced() {
        let confusion = Confusion { counts: [[5, 1, 0], [2, 2, 0], [0, 4, 6]] };
        assert_eq!((confusion.total(), confusion.accuracy()), (20, 13.0 / 20.0));
        assert_eq!(confusion.recall(Class::Down), Some(0.5));
        let mut twice = confusion;
        twice.merge(&confusion);
        assert_eq!((twice.total(), twice.accuracy()), (40, confusion.accuracy()));
        let always = confusion.of_always(Class::Flat);
        assert_eq!(always.counts, [[0, 0, 6], [0, 0, 4], [0, 0, 10]]);
        assert_eq!((always.accuracy(), always.balanced_accuracy()), (0.5, 1.0 / 3.0));
        assert!(
            Confusion::default().accuracy().is_nan() && Confusion::default().balanced_accuracy().is_nan()
        );
    }
}
