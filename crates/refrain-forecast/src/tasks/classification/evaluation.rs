//! The errors of a classifier on samples.

use super::ClassificationErrors;
use crate::data::panel::Panel;
use crate::models::cross_asset::{CLASSES, CrossAssetConfig};
use crate::{Error, Result};
use refrain::{DType, Tensor};
use refrain_nn::Confusion;

/// The cells of the confusion matrix, and two more.
pub(super) const SUMS: usize = CLASSES * CLASSES + 2;

/// Of logits `[B, S, 3]` beside classes (i64) and their weights (f32), both `[B, S]`: the counts of the confusion matrix,
/// the sum of the weighted losses and that of the weights, f64 `[SUMS]`. What has the weight 0 has no label, and does not count.
pub(super) fn sums(logits: &Tensor, classes: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let device = logits.device();
    let (logits, weights) = (logits.to_dtype(DType::F64)?, weights.to_dtype(DType::F64)?);
    let cells = classes.mul_scalar(CLASSES as f64)?.add(&logits.argmax(-1)?)?.unsqueeze(-1)?;
    let all = Tensor::arange(0.0, (CLASSES * CLASSES) as f64, 1.0, DType::I64, device)?;
    let labelled = weights.gt_scalar(0.0)?.to_dtype(DType::F64)?.unsqueeze(-1)?;
    let counts = cells.eq(&all)?.to_dtype(DType::F64)?.mul(&labelled)?.sum([0, 1])?;
    let likelihood = logits.log_softmax(-1)?.gather(-1, &classes.unsqueeze(-1)?)?.squeeze(-1)?;
    let loss = likelihood.mul(&weights)?.sum(())?.neg()?.unsqueeze(0)?;
    Ok(Tensor::concat(&[&counts, &loss, &weights.sum(())?.unsqueeze(0)?], 0)?)
}

/// The errors and the confusion matrix of these sums.
pub(super) fn errors(sums: &[f64]) -> (ClassificationErrors, Confusion) {
    let count = |truth: usize| std::array::from_fn(|predicted| sums[truth * CLASSES + predicted] as u64);
    let confusion = Confusion::from(std::array::from_fn::<[u64; CLASSES], CLASSES, _>(count));
    let (accuracy, balanced_accuracy) = (confusion.accuracy(), confusion.balanced_accuracy());
    let loss = sums[CLASSES * CLASSES] / sums[CLASSES * CLASSES + 1];
    (ClassificationErrors { loss, accuracy, balanced_accuracy }, confusion)
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
