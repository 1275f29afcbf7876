//! What a run folder keeps beside the weights.

use super::IntervalSettings;
use super::loss::Loss;
use crate::data::dialect::Dialect;
use crate::data::series::{CovariateColumns, CovariateScaler, Scaler, Scaling, TimeStep};
use crate::models::ModelConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The newest version of the configuration in a run folder.
pub const RUN_VERSION: u64 = 3;

/// Why this program cannot use the model of a stored configuration, if it cannot: until version 2, the heads of models that
/// learned Student's t distribution had other values.
pub fn outdated(config: &Value) -> Option<String> {
    let is_old = config["version"].as_u64().is_some_and(|version| version < 3);
    let student_t = is_old && config["loss"]["name"] == "student-t";
    student_t.then(|| "an older version trained it with the Student-t loss, whose scale and degrees of freedom were of another form".to_owned())
}

/// What a [`Predictor`](super::Predictor) needs to know beside the weights. A program that trains a model passes it to
/// [`Trainer::save`](crate::training::Trainer::save), and [`Predictor::load`](super::Predictor::load) reads the folder.
///
/// `refrain train` keeps more, such as the data and its split; the commands need that, so they refuse a folder of this alone. It
/// also keeps covariates and calibrated intervals.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PredictorConfig {
    #[serde(skip_deserializing)]
    version: u64,
    pub(super) model: ModelConfig,
    #[serde(default)]
    pub(super) loss: Loss,
    #[serde(default)]
    pub(super) intervals: IntervalSettings,
    pub(super) data: DataConfig,
    #[serde(default)]
    pub(super) precision: Option<String>,
    /// The share of hidden patches, if the model was pretrained and does not forecast.
    #[serde(default)]
    pub(super) pretraining: Option<f64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct DataConfig {
    pub(super) channels: Vec<String>,
    pub(super) scaler: Scaler,
    #[serde(default)]
    pub(super) independent: bool,
    #[serde(default)]
    pub(super) scaling: Scaling,
    #[serde(default)]
    pub(super) covariates: CovariateColumns,
    #[serde(default)]
    pub(super) covariate_scaler: CovariateScaler,
    #[serde(default)]
    pub(super) step: Option<TimeStep>,
    #[serde(default)]
    pub(super) dialect: Dialect,
}

impl PredictorConfig {
    /// Of a model in f32 that learned from independent series, each scaled by its own values. The model has the horizon of a
    /// forecast, whatever the loss.
    pub fn of_series(model: impl Into<ModelConfig>, loss: Loss, scaling: Scaling) -> PredictorConfig {
        let mut config = PredictorConfig::of_channels(model, loss, Vec::new(), Scaler::unit(0));
        (config.data.independent, config.data.scaling) = (true, scaling);
        config
    }

    /// Of a model in f32 of one table with these channels, in its order, and their scale. The model has the horizon of a forecast,
    /// whatever the loss.
    pub fn of_channels(
        model: impl Into<ModelConfig>,
        loss: Loss,
        channels: Vec<String>,
        scaler: Scaler,
    ) -> PredictorConfig {
        let data = DataConfig {
            channels,
            scaler,
            independent: false,
            scaling: Scaling::default(),
            covariates: CovariateColumns::default(),
            covariate_scaler: CovariateScaler::default(),
            step: None,
            dialect: Dialect::default(),
        };
        let (intervals, precision, pretraining) = (IntervalSettings::default(), None, None);
        PredictorConfig {
            version: RUN_VERSION,
            model: model.into(),
            loss,
            intervals,
            data,
            precision,
            pretraining,
        }
    }

    /// As [`Trainer::save`](crate::training::Trainer::save) takes it.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}
