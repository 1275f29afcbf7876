//! The list of models: forecasters are variants of [`ModelConfig`](super::ModelConfig).

use super::cross_asset::CrossAssetConfig;
use super::{CovariateKinds, Forecaster, ModelConfig, ModelListing, WindowShape};
use crate::data::series::CovariateCounts;
use crate::settings::{Values, assemble};
use crate::{Error, Result};
use refrain::{DType, Device};
use refrain_nn::Checkpoint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The classifiers of panels.
pub fn classifiers() -> Vec<ModelListing> {
    let (about, settings) = (CrossAssetConfig::about(), CrossAssetConfig::settings());
    vec![ModelListing { name: CROSS_ASSET, about, settings }]
}

const CROSS_ASSET: &str = "cross-asset";

/// The settings of any classifier of the sources of a panel. In a run folder, `name` says which one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name")]
pub enum ClassifierConfig {
    /// `cross-asset`.
    #[serde(rename = "cross-asset")]
    CrossAsset(CrossAssetConfig),
}

impl ClassifierConfig {
    /// The settings of the classifier with this name, for this many sources and features: the values in `values`, otherwise
    /// the defaults.
    ///
    /// # Errors
    /// [`Error::Model`] if no classifier has this name, [`Error::Setting`] for a value of the wrong type.
    pub fn from_settings(
        name: &str,
        sources: usize,
        features: usize,
        values: &Values,
    ) -> Result<ClassifierConfig> {
        let fixed = [("sources", sources), ("features", features)];
        of_name(&classifiers(), name, &fixed, values)
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Model`], which says what to change.
    pub fn validate(&self) -> Result<()> {
        match self {
            ClassifierConfig::CrossAsset(config) => config.validate(),
        }
    }
}

/// The settings of the model with this name: the given sizes, the values in `values`, otherwise the defaults.
fn of_name<T: DeserializeOwned>(
    models: &[ModelListing],
    name: &str,
    sizes: &[(&str, usize)],
    values: &Values,
) -> Result<T> {
    let Some(found) = models.iter().find(|model| model.name == name) else {
        let names: Vec<&str> = models.iter().map(|model| model.name).collect();
        let problem = format!("no model of {} is named `{name}`", names.join(", "));
        return Err(Error::Model { problem, fix: "choose one of them" });
    };
    let name = ("name".to_owned(), Value::from(name));
    let sizes = sizes.iter().map(|(field, size)| ((*field).to_owned(), Value::from(*size)));
    assemble(&found.settings, values, sizes.chain([name]).collect())
}

/// Makes [`ModelConfig`](super::ModelConfig) from one line for each forecaster: its name on the command line and in run
/// folders, and its settings.
macro_rules! forecasters {
    ($($name:literal $variant:ident($config:ty);)*) => {
        /// The settings of any forecaster. In a run folder, `name` says which one.
        ///
        /// ```
        /// use refrain_forecast::models::nlinear::NLinearConfig;
        /// use refrain_forecast::models::{ForecasterConfig, ModelConfig};
        ///
        /// let config = NLinearConfig { channels: 3, context: 24, horizon: 6, individual: false };
        /// let model = ModelConfig::from(config);
        /// assert_eq!((model.name(), model.window().horizon), ("nlinear", 6));
        /// ```
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "name")]
        pub enum ModelConfig {
            $(
                #[doc = concat!("`", $name, "`.")]
                #[serde(rename = $name)]
                $variant($config),
            )*
        }

        $(
            impl From<$config> for ModelConfig {
                fn from(config: $config) -> ModelConfig {
                    ModelConfig::$variant(config)
                }
            }
        )*

        /// What the settings of every forecaster say.
        impl std::ops::Deref for ModelConfig {
            type Target = dyn ForecasterConfig;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(ModelConfig::$variant(config) => config,)*
                }
            }
        }

        impl ModelConfig {
            /// The name on the command line and in run folders.
            pub fn name(&self) -> &'static str {
                match self {
                    $(ModelConfig::$variant(_) => $name,)*
                }
            }

            /// The same model with a horizon that is `values` times as long, for a loss with
            /// [so many values](crate::tasks::forecasting::loss::Loss::values) in each row.
            pub fn widened(&self, values: usize) -> ModelConfig {
                let mut model = self.clone();
                let horizon = match &mut model {
                    $(ModelConfig::$variant(config) => &mut config.horizon,)*
                };
                *horizon = horizon.saturating_mul(values);
                model
            }

            /// The same model for another number of channels. If it [shares](ChannelUse::Shared) its weights among the
            /// channels, it has the same weights.
            pub fn with_channels(&self, channels: usize) -> ModelConfig {
                let mut model = self.clone();
                match &mut model {
                    $(ModelConfig::$variant(config) => config.channels = channels,)*
                }
                model
            }

            /// The name for people.
            pub fn title(&self) -> &'static str {
                match self {
                    $(ModelConfig::$variant(_) => <$config>::about().title,)*
                }
            }
        }

        /// The forecasters; the first is the default.
        pub fn forecasters() -> Vec<ModelListing> {
            vec![$(
                ModelListing { name: $name, about: <$config>::about(), settings: <$config>::settings() },
            )*]
        }
    };
}

pub(super) use forecasters;

impl ModelConfig {
    /// The settings of the forecaster with this name: the values in `values`, otherwise the defaults.
    ///
    /// # Errors
    /// [`Error::Model`] if no forecaster has this name, [`Error::Setting`] for a value of the wrong type.
    pub fn from_settings(name: &str, window: WindowShape, values: &Values) -> Result<ModelConfig> {
        ModelConfig::with_covariates(name, window, CovariateCounts::default(), values)
    }

    /// The same for a series with covariates.
    ///
    /// # Errors
    /// Those of [`ModelConfig::from_settings`]; [`Error::Model`] if the forecaster does not take such covariates.
    pub fn with_covariates(
        name: &str,
        window: WindowShape,
        covariates: CovariateCounts,
        values: &Values,
    ) -> Result<ModelConfig> {
        let WindowShape { channels, context, horizon } = window;
        let mut sizes = vec![("channels", channels), ("context", context), ("horizon", horizon)];
        let all = super::forecasters();
        if let Some(listing) = all.iter().find(|listing| listing.name == name) {
            let about = &listing.about;
            if let Some(kind) = about.covariates.lacks(covariates) {
                let takes = |of: &&ModelListing| of.about.covariates.lacks(covariates).is_none();
                let others: Vec<&str> = all.iter().filter(takes).map(|of| of.name).collect();
                let problem = format!(
                    "{} takes no {kind} covariates; these models do: {}",
                    about.title,
                    others.join(", ")
                );
                return Err(Error::Model {
                    problem,
                    fix: "choose one of them by --model, or leave --past, --future, --static and --calendar out",
                });
            }
            let CovariateKinds { past, future, statics } = about.covariates;
            let counts = [
                ("past", past, covariates.past),
                ("future", future, covariates.future),
                ("statics", statics, covariates.statics),
            ];
            sizes.extend(counts.iter().filter(|(_, takes, _)| *takes).map(|&(name, _, count)| (name, count)));
        }
        of_name(&all, name, &sizes, values)
    }

    /// The settings by name, as [`ModelConfig::from_settings`] takes them; those of the window are not among them.
    pub fn values(&self) -> Values {
        let fields = serde_json::to_value(self).unwrap_or_default();
        let listings = super::forecasters();
        let settings =
            listings.iter().filter(|listing| listing.name == self.name()).flat_map(|of| &of.settings);
        let value = |name: &str| (name.to_owned(), fields[name.replace('-', "_")].clone());
        settings.map(|setting| value(setting.name())).collect()
    }

    /// The model with the weights of a checkpoint.
    ///
    /// # Errors
    /// [`Error::Nn`] if the checkpoint belongs to a model with other settings, and the errors of
    /// [`build`](super::ForecasterConfig::build).
    pub fn load(
        &self,
        checkpoint: &Checkpoint,
        dtype: DType,
        device: &Device,
    ) -> Result<Box<dyn Forecaster>> {
        checkpoint.check_size(self.size()?)?;
        let model = self.build(dtype, device, 0)?;
        checkpoint.load(model.parameters())?;
        Ok(model)
    }
}
