//! The errors of a classifier on samples, and the class probabilities at a moment.

use super::confusion::Confusion;
use super::{Classification, ClassificationErrors};
use crate::data::panel::{Class, Panel};
use crate::data::series::Scaler;
use crate::models::cross_asset::{CLASSES, CrossAsset, CrossAssetConfig, Mode};
use crate::{Error, Result};
use refrain::{Tensor, no_grad};

/// How many samples are classified at a time.
const AT_ONCE: usize = 1024;

/// The errors and the confusion matrix of a task's model over samples with a label.
pub(super) fn measure(task: &Classification, samples: &[i64]) -> Result<(ClassificationErrors, Confusion)> {
    let sources = task.model.config().sources;
    let mut confusion = Confusion::default();
    let (mut loss, mut weight) = (0.0, 0.0);
    for samples in samples.chunks(AT_ONCE) {
        let rows = Tensor::from_slice(samples, samples.len(), task.features.device())?;
        let x = task.features.index_select(0, &rows)?;
        let logits = no_grad(|| task.model.logits(&x, Mode::Eval))?.to_vec::<f32>()?;
        let labels = samples.iter().flat_map(|&row| &task.labels[row as usize * sources..][..sources]);
        for (label, logits) in labels.zip(logits.chunks_exact(CLASSES)) {
            let Some(truth) = *label else { continue };
            let of = |class: Class| f64::from(logits[class.index()]);
            let predicted = Class::ALL.into_iter().max_by(|&a, &b| of(a).total_cmp(&of(b))).unwrap_or(truth);
            confusion.add(truth, predicted);
            let weight_of_label = task.class_weights[truth.index()];
            loss += weight_of_label * (log_sum_exp(logits) - of(truth));
            weight += weight_of_label;
        }
    }
    let (accuracy, balanced_accuracy) = (confusion.accuracy(), confusion.balanced_accuracy());
    Ok((ClassificationErrors { loss: loss / weight, accuracy, balanced_accuracy }, confusion))
}

/// The probabilities of the classes of each source at a row of a panel, `(sources, 3)`: up, down, flat. The scaler
/// standardises the features.
///
/// # Errors
/// [`Error::Panel`] if a value at the row is older than the panel allows ([`Panel::check_fresh`]), [`Error::Model`] for a
/// model of another number of sources or features, [`Error::NotFinite`] if a standardised feature or a probability is not
/// finite, [`Error::Engine`] if the device fails.
///
/// # Panics
/// If the panel has no such row.
pub fn probabilities(
    model: &CrossAsset,
    scaler: &Scaler,
    panel: &Panel,
    row: usize,
) -> Result<Vec<[f64; CLASSES]>> {
    check_sizes(model.config(), panel)?;
    panel.check_fresh(row)?;
    let CrossAssetConfig { sources, features, .. } = *model.config();
    let width = sources * features;
    let values = scaler.transform(&panel.values()[row * width..][..width]);
    let finite = |what: String, value: f64| match (value as f32).is_finite() {
        true => Ok(value as f32),
        false => Err(Error::NotFinite { what, value }),
    };
    let narrow: Vec<f32> = std::iter::zip(panel.columns(), values)
        .map(|(column, value)| finite(format!("the standardised value of `{column}`"), value))
        .collect::<Result<_>>()?;
    let x = Tensor::from_slice(&narrow, [1, sources, features], model.parameters().values().device())?;
    let logits = no_grad(|| model.logits(&x, Mode::Eval))?.to_vec::<f32>()?;
    let of_source = |(source, logits): (&String, &[f32])| {
        let sum = log_sum_exp(logits);
        let mut probabilities = [0.0; CLASSES];
        for (probability, &logit) in probabilities.iter_mut().zip(logits) {
            *probability = (f64::from(logit) - sum).exp();
            finite(format!("a class probability of {source}"), *probability)?;
        }
        Ok(probabilities)
    };
    panel.sources().iter().zip(logits.chunks_exact(CLASSES)).map(of_source).collect()
}

/// `ln(sum(exp(logits)))`, without overflow.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum::<f64>().ln() + largest
}

/// Refuses a model of another number of sources or features than the panel.
pub(super) fn check_sizes(config: &CrossAssetConfig, panel: &Panel) -> Result<()> {
    let (sources, features) = (panel.sources().len(), panel.features().len());
    if (config.sources, config.features) == (sources, features) {
        return Ok(());
    }
    let problem = format!(
        "the model has {} sources of {} features, but the panel has {sources} of {features}",
        config.sources, config.features
    );
    Err(Error::Model { problem, fix: "take both from the panel" })
}
