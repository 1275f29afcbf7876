//! Metrics of classifiers.

use refrain::{DType, Device, Tensor};

use crate::error::{Error, Result};

const WHAT: &str = "ConfusionMatrix";

/// Counts, for each true class, how often each class was predicted. The counts are on the device, so a recorded step may update
/// them; [`ConfusionMatrix::read`] copies them to the host, where [`Confusion`] has the metrics.
///
/// ```
/// use refrain::{Device, Tensor};
/// use refrain_nn::ConfusionMatrix;
///
/// let device = Device::cpu();
/// let matrix = ConfusionMatrix::new(3, &device)?;
/// let truth = Tensor::from_slice(&[0i64, 0, 1, 2], 4, &device)?;
/// let predicted = Tensor::from_slice(&[0i64, 1, 1, 2], 4, &device)?; // logits.argmax(-1)
/// matrix.update(&truth, &predicted)?;
/// let confusion = matrix.read()?;
/// assert_eq!(confusion.counts(), [[1, 1, 0], [0, 1, 0], [0, 0, 1]]);
/// assert_eq!((confusion.accuracy(), confusion.recall(0), confusion.precision(1)), (0.75, Some(0.5), Some(0.5)));
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct ConfusionMatrix {
    /// i64 `[classes, classes]`
    counts: Tensor,
}

impl ConfusionMatrix {
    /// Without samples.
    ///
    /// # Errors
    /// If there are no classes, or the device has not enough memory.
    pub fn new(classes: usize, device: &Device) -> Result<ConfusionMatrix> {
        if classes == 0 {
            return Err(Error::invalid(WHAT, "there are 0 classes; use at least one"));
        }
        Ok(ConfusionMatrix { counts: Tensor::zeros([classes, classes], DType::I64, device)? })
    }

    /// Adds samples with these true and predicted classes, i64 or i32 of one shape. It needs memory for `2 * samples * classes`
    /// numbers in f64.
    ///
    /// # Errors
    /// If shapes or dtypes differ from that, or an id is not below the number of classes: on the CPU here, on a GPU at the next
    /// wait ([`Device::synchronize`]).
    pub fn update(&self, truth: &Tensor, predicted: &Tensor) -> Result<()> {
        if truth.shape() != predicted.shape() {
            let message = format!(
                "true classes have shape {} and predicted ones {}; both must have one shape",
                truth.shape(),
                predicted.shape()
            );
            return Err(Error::invalid(WHAT, message));
        }
        let classes = self.counts.dims()[0];
        let one_hot = |ids: &Tensor| ids.reshape(-1)?.one_hot(classes, DType::F64);
        // Products of f64 ones and zeros add up exactly.
        let new = one_hot(truth)?.transpose(0, 1)?.matmul(&one_hot(predicted)?)?;
        Ok(self.counts.add_assign(&new.to_dtype(DType::I64)?)?)
    }

    /// Forgets all samples.
    ///
    /// # Errors
    /// If the device fails.
    pub fn clear(&self) -> Result<()> {
        Ok(self.counts.fill(0.0)?)
    }

    /// The counts on the device, i64 `[classes, classes]`, truth first. Those of several ranks can be added up.
    pub fn counts(&self) -> &Tensor {
        &self.counts
    }

    /// The counts so far, on the host.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Confusion> {
        let counts = self.counts.to_vec::<i64>()?;
        let row = |row: &[i64]| row.iter().map(|&n| n as u64).collect();
        Confusion::of_counts(counts.chunks(self.counts.dims()[0]).map(row).collect())
    }
}

/// A confusion matrix on the host, and its metrics. Those of a class are `None` where they would divide by 0.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub struct Confusion {
    counts: Vec<Vec<u64>>,
}

/// Of counts by true class, then by predicted class.
impl<const CLASSES: usize> From<[[u64; CLASSES]; CLASSES]> for Confusion {
    fn from(counts: [[u64; CLASSES]; CLASSES]) -> Confusion {
        const { assert!(CLASSES > 0) };
        Confusion { counts: counts.map(|row| row.to_vec()).to_vec() }
    }
}

impl Confusion {
    /// Of counts by true class, then by predicted class.
    ///
    /// # Errors
    /// If there are not as many columns as rows, or none.
    pub fn of_counts(counts: Vec<Vec<u64>>) -> Result<Confusion> {
        if counts.is_empty() || counts.iter().any(|row| row.len() != counts.len()) {
            return Err(Error::invalid("Confusion", "counts must be a square of at least one class"));
        }
        Ok(Confusion { counts })
    }

    /// `counts[truth][predicted]`.
    pub fn counts(&self) -> &[Vec<u64>] {
        &self.counts
    }

    /// The number of samples.
    pub fn total(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }

    /// The number of samples whose class is `class`.
    ///
    /// # Panics
    /// If there is no such class, as all methods that take one.
    pub fn support(&self, class: usize) -> u64 {
        self.counts[class].iter().sum()
    }

    /// The number of samples for which `class` was predicted.
    pub fn predicted(&self, class: usize) -> u64 {
        self.counts.iter().map(|row| row[class]).sum()
    }

    /// The share of samples that were predicted correctly. NaN if there are none.
    pub fn accuracy(&self) -> f64 {
        let right: u64 = (0..self.counts.len()).map(|class| self.counts[class][class]).sum();
        right as f64 / self.total() as f64
    }

    /// The share of the samples of a class that were predicted correctly.
    pub fn recall(&self, class: usize) -> Option<f64> {
        ratio(self.counts[class][class], self.support(class))
    }

    /// The share of the predictions of a class that are correct.
    pub fn precision(&self, class: usize) -> Option<f64> {
        ratio(self.counts[class][class], self.predicted(class))
    }

    /// The harmonic mean of precision and recall of a class; 0 if none of its samples was predicted correctly.
    pub fn f1(&self, class: usize) -> Option<f64> {
        ratio(2 * self.counts[class][class], self.support(class) + self.predicted(class))
    }

    /// The mean of the recalls of the classes that occur. NaN without samples.
    pub fn balanced_accuracy(&self) -> f64 {
        mean((0..self.counts.len()).filter_map(|class| self.recall(class)))
    }

    /// The mean of the F1 scores of the classes that occur or were predicted. NaN without samples.
    pub fn macro_f1(&self) -> f64 {
        mean((0..self.counts.len()).filter_map(|class| self.f1(class)))
    }

    /// The correlation coefficient of Matthews for any number of classes (Gorodkin, 2004), from -1 to 1. 0 if only one class occurs
    /// or was predicted.
    pub fn matthews(&self) -> f64 {
        let classes = 0..self.counts.len();
        let total = self.total() as f64;
        let sum = |f: &dyn Fn(usize) -> f64| classes.clone().map(f).sum::<f64>();
        let (support, predicted) = (|c| self.support(c) as f64, |c| self.predicted(c) as f64);
        let right = sum(&|c| self.counts[c][c] as f64);
        let covariance = right * total - sum(&|c| support(c) * predicted(c));
        let spread = |of: &dyn Fn(usize) -> f64| total * total - sum(&|c| of(c) * of(c));
        let scale = (spread(&support) * spread(&predicted)).sqrt();
        if scale == 0.0 { 0.0 } else { covariance / scale }
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}
