//! The settings of a training run. The model, loss or task that a setting belongs to declares it once. It is then a flag, a
//! key of the TOML file, and a key of presets. A flag overrides the file, the file overrides the preset, and the preset
//! overrides the default.

mod arguments;
mod file;
mod list;
mod of_run;

pub use arguments::{DialectFlags, preset_names, presets};
pub use list::{Task, known};

use std::path::Path;

use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::data::panel::PanelOptions;
use refrain_forecast::data::series::{CovariateCounts, MaxGap, SplitRule};
use refrain_forecast::models::{ClassifierConfig, ModelConfig, WindowShape};
use refrain_forecast::settings::{Setting, Values, assemble};
use refrain_forecast::tasks::classification::PanelSettings;
use refrain_forecast::tasks::forecasting::loss::Loss;
use refrain_forecast::tasks::forecasting::{IntervalSettings, Objective, SeriesSettings, TuningSettings};
use refrain_forecast::training::TrainingConfig;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::precision::Precision;
use list::{MODEL, Model, models};

/// The setting that only pretraining has a use for.
const MASK: &str = "mask-ratio";

/// Whether norms and biases decay.
pub const DECAY_ALL: &str = "decay-all";

/// The settings that the user gave.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings(Values);

/// What may change when a run is resumed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extension {
    pub epochs: Option<usize>,
    pub patience: Option<usize>,
}

impl Settings {
    /// Settings by name.
    pub fn of(values: Values) -> Settings {
        Settings(values)
    }

    /// These settings; what is not set is taken from `base`.
    fn or(mut self, base: Values) -> Settings {
        for (name, value) in base {
            self.0.entry(name).or_insert(value);
        }
        self
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// How a run is to be extended, if these settings say that and nothing else.
    pub fn extension(&self) -> Option<Extension> {
        let count = |name: &str| {
            let value = self.0.get(name)?;
            value.as_u64().map(|count| usize::try_from(count).unwrap_or(usize::MAX))
        };
        let extension = Extension { epochs: count("epochs"), patience: count("patience") };
        let known = [extension.epochs, extension.patience].into_iter().flatten().count();
        (known == self.0.len()).then_some(extension)
    }

    /// All settings, from flags, file, preset and defaults.
    pub fn resolve(flags: Settings, file: Option<&Path>, preset: Option<&str>) -> Result<Complete> {
        flags.resolve_over(file, preset, Values::new())
    }

    /// All settings: these, which are flags, then those of the file, of `base`, of the preset, and the defaults.
    pub fn resolve_over(self, file: Option<&Path>, preset: Option<&str>, base: Values) -> Result<Complete> {
        let file = file.map(file::read).transpose()?.unwrap_or_default();
        let chooses_mask = self.has(MASK) || file.chooses(MASK);
        let of_file = match self.0.get(MODEL) {
            Some(name) if file.values.get(MODEL) != Some(name) => {
                file.for_model(model_of(name.as_str().unwrap_or_default())?)
            }
            _ => file.values,
        };
        let set = self.or(of_file);
        if let (Some(of_weights), Some(chosen)) = (base.get(MODEL), set.0.get(MODEL))
            && of_weights != chosen
        {
            return Err(Error::usage(
                format!("the initial weights are those of the model {of_weights}, not of {chosen}"),
                "leave the model out, or choose other weights",
            ));
        }
        let set = set.or(base);
        let named = preset.map(|name| preset_of(name, &set)).transpose()?.unwrap_or_default();
        let set = set.or(named);
        let name = match set.0.get(MODEL) {
            Some(name) => name.as_str().unwrap_or_default(),
            None => models()[0].listing.name,
        };
        let model = model_of(name)?;
        set.check_model(model)?;
        // A preset with the name of the data is for that data.
        let data = set.0.get("data").or(model.default("data")).and_then(serde_json::Value::as_str);
        let own = model.listing.about.presets.iter().find(|own| preset.is_none() && Some(own.name) == data);
        let preset = preset.or(own.map(|own| own.name)).map(str::to_owned);
        let set = match own {
            Some(own) => set.or(file::parse(own.toml, Path::new(own.name))?),
            None => set,
        };
        if set.has("price") && !(set.has("label-horizon") && set.has("label-threshold")) {
            return Err(Error::usage(
                "--price needs --label-horizon and --label-threshold, which define up, down and flat",
                "set --label-horizon (how many rows ahead) and --label-threshold (the largest change that is flat)",
            ));
        }
        let complete = Complete { model, preset, values: set.or(model.listing.about.training.clone()).0 };
        if chooses_mask && complete.tuning()?.task != Objective::Pretrain {
            return Err(Error::usage(
                "--mask-ratio is the share of the patches that pretraining hides, and the task is to forecast",
                "leave it out, or ask for --task pretrain",
            ));
        }
        Ok(complete)
    }

    /// Whether the user has chosen a setting, by a flag or in a file.
    pub fn chooses(&self, file: Option<&Path>, name: &str) -> Result<bool> {
        let file = file.map(file::read).transpose()?.unwrap_or_default();
        Ok(self.has(name) || file.chooses(name))
    }

    /// The settings of several forecasters that are to be compared. A setting holds for every model that has it, and one at least
    /// must have it; of the configuration of a run, the settings of its model are for that model alone. How the series is read and
    /// cut is the same for all: what is not set, as the first model has it.
    pub fn resolve_each(
        self,
        file: Option<&Path>,
        preset: Option<&str>,
        names: &[String],
    ) -> Result<Vec<Complete>> {
        if self.has(MODEL) {
            let fix = "leave --model out, and name all models by --models";
            return Err(Error::usage("the models to compare are those of --models", fix));
        }
        let file = file.map(file::read).transpose()?.unwrap_or_default();
        let mut chosen: Vec<&Model> = Vec::new();
        for name in names {
            let model = model_of(name)?;
            if model.task != Task::Forecasting {
                let problem = format!("{name} is a classifier, and classifiers are not compared");
                return Err(Error::usage(problem, "choose forecasters"));
            }
            if !chosen.iter().any(|known| known.listing.name == name) {
                chosen.push(model);
            }
        }
        let Some(first) = chosen.first() else {
            return Err(Error::usage("there is no model to compare", "name them by --models"));
        };
        let of_model = |model: &Model| -> Result<Settings> {
            let set = self.clone().or(file.for_model(model));
            let named = preset.map(|name| preset_of(name, &set)).transpose()?.unwrap_or_default();
            let mut set = set.or(named);
            set.0.remove(MODEL);
            if let Some(name) = set.0.keys().find(|name| !chosen.iter().any(|model| model.has(name))) {
                let foreign = Settings([(name.clone(), set.0[name].clone())].into_iter().collect());
                foreign.check_model(first)?;
            }
            set.0.retain(|name, _| model.has(name));
            set.0.insert(MODEL.to_owned(), model.listing.name.into());
            Ok(set)
        };
        let common = of_model(first)?.resolve_over(None, None, Values::new())?.of_windows();
        let complete =
            |model: &&Model| of_model(model)?.or(common.clone()).resolve_over(None, None, Values::new());
        chosen.iter().map(complete).collect()
    }

    /// Refuses settings that the model does not have.
    fn check_model(&self, model: &Model) -> Result<()> {
        let foreign = |name: &&String| !model.has(name);
        let Some(name) = self.0.keys().find(foreign) else { return Ok(()) };
        let owners: Vec<&str> =
            models().iter().filter(|model| model.has(name)).map(|model| model.listing.name).collect();
        let (owners, chosen) = (owners.join(" and "), model.listing.name);
        Err(Error::usage(
            format!("{name} is a setting of {owners}, the model is {chosen}"),
            format!("leave it out, or ask for --model {owners}"),
        ))
    }
}

/// The model with this name.
fn model_of(name: &str) -> Result<&'static Model> {
    let found = models().iter().find(|model| model.listing.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = models().iter().map(|model| model.listing.name).collect();
        Error::usage(format!("there is no model {name:?}"), format!("choose one of {}", names.join(", ")))
    })
}

/// The settings of a preset. `set` is what was set beside.
fn preset_of(name: &str, set: &Settings) -> Result<Values> {
    let found = presets().find(|preset| preset.name == name);
    let Some(preset) = found else {
        return Err(Error::usage(
            format!("there is no preset {name:?}"),
            "`refrain train --help` lists them",
        ));
    };
    match preset.data {
        Some(fix) if !set.has("data") => {
            let problem = format!("the preset {name} needs its series, which is not bundled");
            Err(Error::usage(problem, fix))
        }
        _ => file::parse(preset.toml, Path::new(name)),
    }
}

/// All settings of a run, each with a value.
#[derive(Debug, Clone)]
pub struct Complete {
    model: &'static Model,
    /// The name of the preset, if there is one.
    preset: Option<String>,
    /// What is not among them has its default.
    values: Values,
}

impl Complete {
    /// What the model is for.
    pub fn task(&self) -> Task {
        self.model.task
    }

    /// The preset that values were taken from: the one that the user named, or that of the data.
    pub fn preset(&self) -> Option<&str> {
        self.preset.as_deref()
    }

    /// The name of the model.
    pub fn model(&self) -> &'static str {
        self.model.listing.name
    }

    /// The same for a run that has begun. Where nothing was chosen, what decays is the run's: earlier versions had another default.
    pub fn of_begun(mut self, run: &TrainingConfig) -> Complete {
        self.values.entry(DECAY_ALL.to_owned()).or_insert(run.decay_all.into());
        self
    }

    /// What was chosen, by flags, files and presets: the settings from which [`Settings::resolve_over`] makes these again.
    pub fn chosen(&self) -> Values {
        let name = (MODEL.to_owned(), self.model.listing.name.into());
        self.values.clone().into_iter().chain([name]).collect()
    }

    /// How the text of the data is written, and what becomes of rows out of order.
    pub fn dialect(&self) -> Result<Dialect> {
        self.of(&Dialect::settings())
    }

    /// The settings that say which windows a forecaster sees.
    fn of_windows(&self) -> Values {
        let series = [SeriesSettings::settings(), Dialect::settings()].concat();
        let names = series.iter().map(Setting::name).chain(["data", "max-gap"]);
        let value = |name: &str| self.values.get(name).or_else(|| self.model.default(name)).cloned();
        names.filter_map(|name| Some((name.to_owned(), value(name)?))).collect()
    }

    /// The series or panel.
    pub fn data(&self) -> Result<String> {
        self.get("data")
    }

    /// The longest gap that is filled.
    pub fn max_gap(&self) -> Result<MaxGap> {
        self.get("max-gap")
    }

    /// How matrix products are computed.
    pub fn precision(&self) -> Result<Precision> {
        self.get("precision")
    }

    /// How a series is read and cut.
    pub fn series(&self) -> Result<SeriesSettings> {
        self.of(&SeriesSettings::settings())
    }

    /// The same settings with another split.
    pub fn with_split(mut self, rule: &SplitRule) -> Result<Complete> {
        let value = serde_json::to_value(rule).map_err(Error::Json)?;
        self.values.insert("split".to_owned(), value);
        Ok(self)
    }

    /// The forecaster for windows of a shape with so many covariates.
    pub fn forecaster(&self, window: WindowShape, covariates: CovariateCounts) -> Result<ModelConfig> {
        Ok(ModelConfig::with_covariates(self.model.listing.name, window, covariates, &self.values)?)
    }

    /// The loss of a forecast.
    pub fn loss(&self) -> Result<Loss> {
        Ok(Loss::from_settings(&self.values)?)
    }

    /// The intervals around a forecast.
    pub fn intervals(&self) -> Result<IntervalSettings> {
        self.of(&IntervalSettings::settings())
    }

    /// What is learned beside a loss, and which of the weights.
    pub fn tuning(&self) -> Result<TuningSettings> {
        self.of(&TuningSettings::settings())
    }

    /// How a panel is labelled and cut.
    pub fn panel(&self) -> Result<PanelSettings> {
        self.of(&PanelSettings::settings())
    }

    /// How to read a panel.
    pub fn panel_options(&self) -> Result<PanelOptions> {
        Ok(self.panel()?.options(self.max_gap()?, self.dialect()?))
    }

    /// The classifier for so many sources and features.
    pub fn classifier(&self, sources: usize, features: usize) -> Result<ClassifierConfig> {
        Ok(ClassifierConfig::from_settings(self.model.listing.name, sources, features, &self.values)?)
    }

    /// How to train.
    pub fn training(&self) -> Result<TrainingConfig> {
        self.of(&TrainingConfig::settings())
    }

    fn of<T: DeserializeOwned>(&self, settings: &[Setting]) -> Result<T> {
        Ok(assemble(settings, &self.values, Values::new())?)
    }

    fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let value = self.values.get(name).or_else(|| self.model.default(name));
        T::deserialize(value.unwrap_or(&serde_json::Value::Null)).map_err(Error::Json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn settings(pairs: &[(&str, Value)]) -> Settings {
        Settings(pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
    }

    const WINDOW: WindowShape = WindowShape { channels: 2, context: 336, horizon: 96 };

    #[test]
    fn flags_override_the_file_which_overrides_the_preset() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            &file,
            "data = 'a.csv'\nepochs = 3\nlr = 0.5\nnorm = 'layer'\nsplit = '0.5,0.2,0.3'\n",
        )
        .unwrap();
        let flags = settings(&[("lr", json!(0.25))]);
        let complete = Settings::resolve(flags, Some(file.path()), Some("etth1")).unwrap();
        let training = complete.training().unwrap();
        assert_eq!((training.lr, training.epochs, training.batch_size, training.seed), (0.25, 3, 128, 42));
        let model =
            serde_json::to_value(complete.forecaster(WINDOW, CovariateCounts::default()).unwrap()).unwrap();
        assert_eq!(
            (&model["norm"], &model["d_model"], &model["heads"]),
            (&json!("layer"), &json!(16), &json!(4))
        );
        let expected = SplitRule::Fractions { train: 0.5, validation: 0.2, test: 0.3 };
        assert_eq!(complete.series().unwrap().split, expected);
    }

    #[test]
    fn the_bundled_weather_has_a_preset_of_its_own_unless_another_is_named() {
        let model = |pairs: &[(&str, Value)], preset: Option<&str>| {
            let complete = Settings::resolve(settings(pairs), None, preset).unwrap();
            let model =
                serde_json::to_value(complete.forecaster(WINDOW, CovariateCounts::default()).unwrap())
                    .unwrap();
            (complete.preset().map(str::to_owned), model["d_model"].clone(), model["revin"].clone())
        };
        let own = || Some("nyc-weather".to_owned());
        assert_eq!(model(&[], None), (own(), json!(32), json!(false)));
        let data = |name: &str| ("data", json!(name));
        assert_eq!(
            model(&[data("nyc-weather"), ("revin", json!(true))], None),
            (own(), json!(32), json!(true))
        );
        assert_eq!(model(&[data("a.csv")], None), (None, json!(64), json!(true)));
        assert_eq!(model(&[data("a.csv")], Some("nyc-weather")), (own(), json!(32), json!(false)));
        let etth1 = model(&[data("nyc-weather")], Some("etth1"));
        assert_eq!(etth1, (Some("etth1".to_owned()), json!(16), json!(true)));
        // Other models have none.
        for name in ["nlinear", "cross-asset"] {
            let complete = Settings::resolve(settings(&[("model", json!(name))]), None, None).unwrap();
            assert_eq!(complete.preset(), None, "{name}");
        }
    }

    #[test]
    fn an_error_in_the_file_names_line_and_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, expected) in [
            ("epoch = 3", "unknown setting `epoch`"),
            ("epochs = 'many'", "epochs: invalid type"),
            ("norm = 'group'", "norm: unknown variant `group`"),
            ("split = 'half'", "neither `ett`"),
            ("split = 5", "neither `ett`"),
            ("lr = nan", "lr: not a finite number"),
            ("lr = ", "TOML parse error at line 2"),
        ] {
            std::fs::write(&file, format!("# settings\n{text}")).unwrap();
            let message =
                Settings::resolve(Settings::default(), Some(file.path()), None).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("line 2"), "{message}");
        }
    }

    #[test]
    fn a_preset_without_its_series_says_where_to_get_it() {
        let error = Settings::resolve(Settings::default(), None, Some("etth1")).unwrap_err();
        assert!(error.to_string().contains("--data"), "{error}");
    }

    #[test]
    fn every_preset_is_one_of_its_model() {
        let mut count = 0;
        for preset in presets() {
            let flags = settings(&[("data", json!("a.csv"))]);
            let complete = Settings::resolve(flags, None, Some(preset.name)).unwrap();
            complete.forecaster(WINDOW, CovariateCounts::default()).unwrap().validate().unwrap();
            complete.training().unwrap().validate().unwrap();
            count += 1;
        }
        assert!(count > 0);
    }

    #[test]
    fn a_model_has_defaults_of_its_own_and_refuses_what_it_has_not() {
        let cross = || ("model", json!("cross-asset"));
        let resolve = |pairs: &[(&str, Value)]| Settings::resolve(settings(pairs), None, None);
        let complete = resolve(&[cross()]).unwrap();
        let ClassifierConfig::CrossAsset(model) = complete.classifier(3, 4).unwrap();
        let training = complete.training().unwrap();
        assert_eq!((model.d_model, model.ffn, training.batch_size, model.heads), (256, 1024, 256, 4));
        assert_eq!((training.lr, training.patience), (3e-4, 3));
        let narrow = resolve(&[cross(), ("d-model", json!(8))]).unwrap().classifier(3, 4).unwrap();
        assert_eq!(serde_json::to_value(narrow).unwrap()["d_model"], 8);
        for (pairs, expected) in [
            (&[("patch", json!(8)), cross()][..], "patch is a setting of patchtst, the model is cross-asset"),
            (&[("folds", json!(2))], "folds is a setting of cross-asset"),
            (&[("patch", json!(8)), ("model", json!("nlinear"))], "the model is nlinear"),
            (&[("loss", json!("mae")), cross()], "loss is a setting of patchtst and nlinear"),
            (&[("price", json!("close")), cross()], "--price needs"),
            (&[("model", json!("arima"))], "no model \"arima\""),
        ] {
            let message = resolve(pairs).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
