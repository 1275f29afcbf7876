//! Class probabilities by a model whose forward pass is recorded.

use super::evaluation::check_sizes;
use crate::data::panel::Panel;
use crate::data::series::Scaler;
use crate::models::cross_asset::{CLASSES, CrossAsset, CrossAssetConfig, Mode};
use crate::tasks::recorded_passes::RecordedPasses;
use crate::{Error, Result};
use refrain::{Precision, Tensor};
use std::sync::Arc;

/// A model that gives class probabilities, with the scale of its features.
///
/// Its forward pass is recorded at the first call and then replayed, which gives the same values bit for bit. Any number of threads
/// may use it at the same time. `refrain forecast` makes its probabilities by one.
pub struct RecordedClassifier {
    model: Arc<CrossAsset>,
    scaler: Scaler,
    passes: RecordedPasses,
}

impl RecordedClassifier {
    /// A classifier of moments, up to `at_once` of them at the same time. The scaler standardises the features.
    pub fn new(
        model: CrossAsset,
        scaler: Scaler,
        precision: Precision,
        at_once: usize,
    ) -> RecordedClassifier {
        let model = Arc::new(model);
        let forward = {
            let model = model.clone();
            move |inputs: &[Tensor]| model.logits(&inputs[0], Mode::Eval)
        };
        let device = model.parameters().values().device();
        let passes = RecordedPasses::new(device, precision, at_once, forward);
        RecordedClassifier { model, scaler, passes }
    }

    /// The model.
    pub fn model(&self) -> &CrossAsset {
        &self.model
    }

    /// The probabilities of the classes of each source at a row of a panel, `(sources, 3)`: up, down, flat.
    ///
    /// # Errors
    /// [`Error::Panel`] if a value at the row is older than the panel allows ([`Panel::check_fresh`]), [`Error::Model`] for a
    /// panel of another number of sources or features, [`Error::NotFinite`] if a standardised feature or a probability is not
    /// finite, [`Error::Engine`] if the device fails.
    ///
    /// # Panics
    /// If the panel has no such row.
    pub fn probabilities(&self, panel: &Panel, row: usize) -> Result<Vec<[f64; CLASSES]>> {
        check_sizes(self.model.config(), panel)?;
        panel.check_fresh(row)?;
        let CrossAssetConfig { sources, features, .. } = *self.model.config();
        let width = sources * features;
        let values = self.scaler.transform(&panel.values()[row * width..][..width]);
        let finite = |what: String, value: f64| match (value as f32).is_finite() {
            true => Ok(value as f32),
            false => Err(Error::NotFinite { what, value }),
        };
        let narrow: Vec<f32> = std::iter::zip(panel.columns(), values)
            .map(|(column, value)| finite(format!("the standardised value of `{column}`"), value))
            .collect::<Result<_>>()?;
        let logits = self.passes.call(
            |device| Ok(vec![Tensor::from_slice(&narrow, [1, sources, features], device)?]),
            |outputs| outputs.to_vec::<f32>(0),
        )?;
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
}

/// `ln(sum(exp(logits)))`, without overflow.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum::<f64>().ln() + largest
}
