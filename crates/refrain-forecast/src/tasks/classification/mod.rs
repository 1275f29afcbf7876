//! The task of cross-asset attention: classification on a fold of a panel.

pub mod evaluation;
mod recorded_classifier;
mod settings;

pub use recorded_classifier::RecordedClassifier;
pub use settings::PanelSettings;

use crate::Result;
use crate::data::panel::{Class, Fold, Panel};
use crate::data::series::Scaler;
use crate::data::windows;
use crate::models::cross_asset::{CLASSES, CrossAsset, CrossAssetConfig, Mode};
use crate::tasks::shared::each_batch;
use crate::training::{Demand, Estimate, Task, TrainingConfig};
use refrain::{Communicator, DType, Device, Precision, Tensor, no_grad};
use refrain_nn::{Confusion, Parameters};
use serde::{Deserialize, Serialize};

/// The weight of the labels of each class in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClassWeights {
    /// All labels have the same weight.
    None,
    /// In inverse proportion to the frequency of the class in the training part, so that all classes count alike.
    Balanced,
}

/// Learns the classes of the sources with the cross entropy. A sample is a row of the panel. Sources without a label
/// there do not count.
pub struct Classification {
    /// The model.
    pub model: CrossAsset,
    /// The standardisation of each feature of each source, fitted on the training part.
    pub scaler: Scaler,
    features: Tensor, // [rows, S, F] f32, standardised
    classes: Tensor,  // [rows, S] i64, 0 where there is no label
    weights: Tensor,  // [rows, S] f32, 0 where there is no label
    class_weights: [f64; CLASSES],
    majority: Class,
    train: Vec<i64>,
    validation: Vec<i64>,
    test: Vec<i64>,
}

/// The errors of a model on some samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassificationErrors {
    /// The mean cross entropy, with the class weights of the training.
    #[serde(rename = "validation_loss")]
    pub loss: f64,
    /// The share of labels that are predicted correctly.
    #[serde(rename = "validation_accuracy")]
    pub accuracy: f64,
    /// The mean over the classes of the share that is predicted correctly.
    #[serde(rename = "validation_balanced_accuracy")]
    pub balanced_accuracy: f64,
}

impl Classification {
    /// The resources that training a model on a fold of a panel needs.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for invalid settings.
    pub fn estimate(
        model: &CrossAssetConfig,
        config: &TrainingConfig,
        panel: &Panel,
        fold: &Fold,
        precision: Precision,
    ) -> Result<Estimate> {
        let cells = panel.rows() as f64 * model.sources as f64;
        let demand = Demand {
            size: model.size()?,
            layers: model.layers,
            activations: model.activations(config.at_once(fold.train.len())),
            // Features, classes and weights.
            data: cells * (model.features as f64 + 3.0),
            samples: fold.train.len() as f64,
            beside: 0.0,
        };
        Ok(Estimate::new(demand, precision))
    }

    /// A model with random weights for a fold of a panel. The features lie on the device, in f32, standardised by the
    /// fold's training part. Sources and features of the configuration are those of the panel.
    ///
    /// # Errors
    /// [`crate::Error::ConstantChannel`] for a feature that does not vary within the training part,
    /// [`crate::Error::NothingObserved`] for one that is only carried forward there, and the errors of
    /// [`Classification::of`].
    ///
    /// # Panics
    /// If the fold is not of this panel.
    pub fn new(
        config: CrossAssetConfig,
        panel: &Panel,
        fold: &Fold,
        weights: ClassWeights,
        device: &Device,
        seed: u64,
    ) -> Result<Classification> {
        evaluation::check_sizes(&config, panel)?;
        let scaler = Scaler::measure(panel.grid(), &panel.columns(), fold.train.clone(), panel.file())?;
        let model = CrossAsset::new(config, DType::F32, device, seed)?;
        Classification::of(model, scaler, panel, fold, weights)
    }

    /// A model for a fold of a panel, on the device of the model. The scaler standardises the features.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for a model of another number of sources or features, [`crate::Error::NotFinite`] for a value that is
    /// too large for f32 once it is standardised, [`crate::Error::Engine`] if the device has no memory for the panel.
    ///
    /// # Panics
    /// If the fold is not of this panel.
    pub fn of(
        model: CrossAsset,
        scaler: Scaler,
        panel: &Panel,
        fold: &Fold,
        weights: ClassWeights,
    ) -> Result<Classification> {
        evaluation::check_sizes(model.config(), panel)?;
        let (rows, sources, features) = (panel.rows(), panel.sources().len(), panel.features().len());
        let device = model.parameters().values().device().clone();
        let narrow = windows::narrow(&panel.grid().standardised(&scaler))?;
        let labels: Vec<Option<Class>> = (0..rows).flat_map(|row| panel.labels(row)).copied().collect();
        let counts = counts(&labels[fold.train.start * sources..fold.train.end * sources]);
        let class_weights = match weights {
            ClassWeights::None => [1.0; CLASSES],
            ClassWeights::Balanced => balanced(counts),
        };
        let class = |label: &Option<Class>| label.map_or(0, |class| class.index() as i64);
        let classes: Vec<i64> = labels.iter().map(class).collect();
        let weight = |label: &Option<Class>| label.map_or(0.0, |class| class_weights[class.index()] as f32);
        let of_labels: Vec<f32> = labels.iter().map(weight).collect();
        let samples = |part: &std::ops::Range<usize>| {
            panel.labelled(part.clone()).into_iter().map(|row| row as i64).collect::<Vec<_>>()
        };
        // If several are equally frequent, the first.
        let most = |&a: &Class, &b: &Class| {
            counts[a.index()].cmp(&counts[b.index()]).then(b.index().cmp(&a.index()))
        };
        Ok(Classification {
            model,
            scaler,
            features: Tensor::from_slice(&narrow, [rows, sources, features], &device)?,
            classes: Tensor::from_slice(&classes, [rows, sources], &device)?,
            weights: Tensor::from_slice(&of_labels, [rows, sources], &device)?,
            class_weights,
            majority: Class::ALL.into_iter().max_by(|a, b| most(a, b)).unwrap_or(Class::Flat),
            train: samples(&fold.train),
            validation: samples(&fold.validation),
            test: samples(&fold.test),
        })
    }

    /// The most frequent class of the training part.
    pub fn majority(&self) -> Class {
        self.majority
    }

    /// The weight of a label of each class in the loss.
    pub fn class_weights(&self) -> [f64; CLASSES] {
        self.class_weights
    }

    /// Classifies the test part: the errors and the confusion matrix. Several ranks can share the work: if all of them call it with
    /// their communicator and the same model, each classifies a part, and all get the result of one process, bit for bit.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the device fails.
    pub fn test(&self, ranks: Option<&Communicator>) -> Result<(ClassificationErrors, Confusion)> {
        let mut sums = vec![0.0; Classification::SUMS];
        let batches: Vec<&[i64]> = self.test.chunks(self.validation_batch()).collect();
        let compute = |batch: usize| {
            let rows = Tensor::from_slice(batches[batch], batches[batch].len(), self.device())?;
            no_grad(|| self.measure(&rows))
        };
        each_batch(ranks, &vec![Classification::SUMS; batches.len()], compute, |_, more: &mut [f64]| {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += *more);
            Ok(())
        })?;
        Ok(evaluation::errors(&sums))
    }
}

impl Task for Classification {
    type Validation = ClassificationErrors;

    fn parameters(&self) -> &Parameters {
        self.model.parameters()
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        self.model.parameters_mut()
    }

    fn device(&self) -> &Device {
        self.features.device()
    }

    /// Rows of the panel.
    fn samples(&self) -> Vec<i64> {
        self.train.clone()
    }

    fn data(&self) -> Vec<&Tensor> {
        vec![&self.features, &self.classes, &self.weights]
    }

    /// `sum(w nll) / sum(w)` over the labels of the samples.
    fn loss(&self, rows: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let classes = self.classes.index_select(0, rows)?.unsqueeze(-1)?;
        let weights = self.weights.index_select(0, rows)?;
        let logits = self.model.logits(&self.features.index_select(0, rows)?, mode)?;
        let likelihood = logits.log_softmax(-1)?.gather(-1, &classes)?.squeeze(-1)?; // [B, S]
        Ok(likelihood.mul(&weights)?.sum(())?.div(&weights.sum(())?)?.neg()?)
    }

    /// The sum of the weights of their labels.
    fn weight(&self, rows: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(self.weights.index_select(0, rows)?.sum(())?))
    }

    fn validation_samples(&self) -> Vec<i64> {
        self.validation.clone()
    }

    const SUMS: usize = evaluation::SUMS;

    /// The counts of the confusion matrix, the sum of the weighted losses and that of the weights.
    fn measure(&self, rows: &Tensor) -> Result<Tensor> {
        let [features, classes, weights] =
            [&self.features, &self.classes, &self.weights].map(|x| x.index_select(0, rows));
        let logits = self.model.logits(&features?, Mode::Eval)?;
        evaluation::sums(&logits, &classes?, &weights?)
    }

    fn validation(&self, sums: &[f64]) -> ClassificationErrors {
        evaluation::errors(sums).0
    }

    fn error(validation: &ClassificationErrors) -> f64 {
        validation.loss
    }
}

/// The number of labels of each class.
fn counts(labels: &[Option<Class>]) -> [u64; CLASSES] {
    let mut counts = [0; CLASSES];
    labels.iter().flatten().for_each(|class| counts[class.index()] += 1);
    counts
}

/// `labels / (classes * labels of the class)`, over the classes that occur. The mean weight over all labels is 1,
/// which is also the weight of a class that does not occur.
fn balanced(counts: [u64; CLASSES]) -> [f64; CLASSES] {
    let (all, occurring) = (counts.iter().sum::<u64>(), counts.iter().filter(|&&count| count > 0).count());
    counts.map(|count| if count == 0 { 1.0 } else { all as f64 / (occurring as u64 * count) as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_weights_give_every_class_the_same_sum_and_labels_a_mean_of_1() {
        let counts = [10, 30, 60];
        let weights = balanced(counts);
        let sums: Vec<f64> =
            counts.iter().zip(weights).map(|(&count, weight)| count as f64 * weight).collect();
        assert!(sums.iter().all(|sum| (sum - 100.0 / 3.0).abs() < 1e-9), "{sums:?}");
        assert_eq!(balanced([10, 0, 10]), [1.0; 3]);
    }
}
