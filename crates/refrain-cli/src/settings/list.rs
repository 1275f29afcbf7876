//! Every model with the settings that a run of it has, and every setting with the models that have it.

use std::sync::OnceLock;

use refrain_forecast::data::NYC_WEATHER;
use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::data::series::MaxGap;
use refrain_forecast::models::{ModelListing, classifiers, forecasters};
use refrain_forecast::settings::Setting;
use refrain_forecast::tasks::classification::PanelSettings;
use refrain_forecast::tasks::forecasting::loss::Loss;
use refrain_forecast::tasks::forecasting::{IntervalSettings, SeriesSettings, TuningSettings};
use refrain_forecast::training::TrainingConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::precision::Precision;

/// The setting that names the model.
pub const MODEL: &str = "model";

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// To forecast a series.
    Forecasting,
    /// To classify the sources of a panel.
    Classification,
}

/// A model that can be trained.
#[derive(Debug)]
pub struct Model {
    pub task: Task,
    pub listing: ModelListing,
    /// All settings of a run of it.
    pub settings: Vec<Placed>,
}

impl Model {
    pub fn has(&self, name: &str) -> bool {
        self.default(name).is_some()
    }

    /// The default of a setting, if the model has it.
    pub fn default(&self, name: &str) -> Option<&Value> {
        self.settings.iter().find(|of| of.setting.name() == name).map(|of| of.setting.default())
    }
}

/// A setting and the heading under which the help text lists it.
#[derive(Debug, Clone)]
pub struct Placed {
    pub setting: Setting,
    pub heading: Option<&'static str>,
}

/// A setting of one or more models.
#[derive(Debug)]
pub struct Known {
    pub placed: Placed,
    /// The models that have it, and its default in each.
    pub models: Vec<(&'static str, Value)>,
}

/// Every model; the first is the default.
pub fn models() -> &'static [Model] {
    static MODELS: OnceLock<Vec<Model>> = OnceLock::new();
    MODELS.get_or_init(|| {
        let forecasters = forecasters().into_iter().map(|listing| (Task::Forecasting, listing));
        let classifiers = classifiers().into_iter().map(|listing| (Task::Classification, listing));
        let all: Vec<(Task, ModelListing)> = forecasters.chain(classifiers).collect();
        let models: Vec<String> =
            all.iter().map(|(_, listing)| format!("{} {}", listing.name, listing.about.does)).collect();
        let first = all.first().map_or("", |(_, listing)| listing.name);
        let about = format!("The model: {}", models.join("; "));
        let model = Setting::new(MODEL, &[&about], "NAME", first.to_owned());
        all.into_iter().map(|(task, listing)| Model::new(task, listing, model.clone())).collect()
    })
}

impl Model {
    fn new(task: Task, listing: ModelListing, model: Setting) -> Model {
        let about_data = "The series or panel: `nyc-weather` (bundled), a CSV file, or - for standard input";
        let about_gaps = "Longest gap that is filled, in rows, or `season`; windows or time steps with a longer gap are left out";
        let about_precision = "Precision: f32; tf32 (rounds the factors of matrix products, on a GPU); bf16 (mixed: activations \
                               are bf16, parameters f32)";
        let data = Setting::new("data", &[about_data], "NAME|FILE", NYC_WEATHER.to_owned());
        let gaps = Setting::new("max_gap", &[about_gaps], "ROWS", MaxGap::default());
        let precision = Setting::new("precision", &[about_precision], "NAME", Precision::default());
        let of_task = match task {
            Task::Forecasting => ("Series (to forecast)", SeriesSettings::settings()),
            Task::Classification => ("Panel (to classify)", PanelSettings::settings()),
        };
        let (losses, intervals) = match task {
            Task::Forecasting => {
                ([Loss::settings(), TuningSettings::settings()].concat(), IntervalSettings::settings())
            }
            Task::Classification => (Vec::new(), Vec::new()),
        };
        let groups = [
            (None, vec![model]),
            (Some("Data"), [vec![data, gaps], Dialect::settings()].concat()),
            (Some(of_task.0), of_task.1),
            (Some(listing.about.title), listing.settings.clone()),
            (Some("Training"), TrainingConfig::settings()),
            (Some("Training"), [vec![precision], losses].concat()),
            (Some("Intervals (of a forecast)"), intervals),
        ];
        let mut settings = Vec::new();
        for (heading, group) in groups {
            for setting in group {
                let setting = match listing.about.training.get(setting.name()) {
                    Some(default) => setting.with_default(default.clone()),
                    None => setting,
                };
                settings.push(Placed { setting, heading });
            }
        }
        Model { task, listing, settings }
    }
}

/// Every setting, once.
pub fn known() -> &'static [Known] {
    static KNOWN: OnceLock<Vec<Known>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let mut all: Vec<Known> = Vec::new();
        for model in models() {
            for placed in &model.settings {
                let of_model = (model.listing.name, placed.setting.default().clone());
                match all.iter_mut().find(|known| known.placed.setting.name() == placed.setting.name()) {
                    Some(known) => {
                        if known.placed.heading != placed.heading {
                            known.placed.heading = Some("Several models");
                        }
                        known.models.push(of_model);
                    }
                    None => all.push(Known { placed: placed.clone(), models: vec![of_model] }),
                }
            }
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_one_name_are_one_setting_in_all_models() {
        for known in known() {
            let first = &known.placed.setting;
            for model in models() {
                let same = model.settings.iter().filter(|of| of.setting.name() == first.name());
                let same: Vec<_> = same.map(|of| &of.setting).collect();
                assert!(same.len() <= 1, "{} has {} twice", model.listing.name, first.name());
                for other in same {
                    let kinds =
                        [first, other].map(|of| (of.value_name(), std::mem::discriminant(of.default())));
                    assert_eq!(kinds[0], kinds[1], "{} of {}", first.name(), model.listing.name);
                    first.check(other.default()).unwrap();
                }
            }
        }
    }
}
