//! The configuration of a run, as its folder stores it.

use std::path::Path;

use refrain_forecast::baselines::SeasonalNaive;
use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::data::panel::{FoldRule, Panel, PanelOptions};
use refrain_forecast::data::series::{
    CovariateColumns, CovariateScaler, Layout, LongColumns, MaxGap, Part, ReadOptions, Scaler, Scaling,
    SeriesSet, SplitRule, TimeStep,
};
use refrain_forecast::models::{ChannelUse, ClassifierConfig, ModelConfig, WindowShape};
use refrain_forecast::tasks::classification::ClassWeights;
use refrain_forecast::tasks::forecasting::conformal::{Calibration, Intervals};
use refrain_forecast::tasks::forecasting::loss::Loss;
use refrain_forecast::tasks::forecasting::{Freeze, IntervalSettings, Objective, TuningSettings, outdated};
use refrain_forecast::training::TrainingConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::precision::Precision;
use crate::settings::{Complete, Task};
use crate::source;
use crate::tasks::forecasting::Data;

/// The version of the stored configuration. Version 1 had no number of its own: `version` was that of the program.
const VERSION: u64 = refrain_forecast::tasks::forecasting::RUN_VERSION;

/// The stored configuration of a run: what every run has, and what its task adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig<T> {
    /// The version of this format.
    version: u64,
    /// The program that wrote it, and its version.
    written_by: String,
    /// `forecasting` or `classification`.
    #[serde(rename = "task")]
    kind: Task,
    #[serde(flatten)]
    pub task: T,
    pub training: TrainingConfig,
    pub precision: Precision,
}

/// The stored configuration of a task.
pub trait TaskConfig: Serialize + DeserializeOwned {
    const KIND: Task;

    /// Returns an error, which names the folder, if parts contradict each other.
    fn validate(&self, folder: &Path) -> Result<()>;
}

/// A forecaster and the series that it learns from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecasts {
    pub data: SeriesData,
    /// The forecaster, with the horizon of a forecast.
    pub model: ModelConfig,
    pub loss: Loss,
    /// Runs of older versions have no intervals.
    #[serde(default)]
    pub intervals: IntervalSettings,
    #[serde(default)]
    pub freeze: Freeze,
    /// The share of hidden patches, if the model learns to fill them in instead of to forecast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretraining: Option<f64>,
}

impl Forecasts {
    /// The model that is trained: it forecasts several values in each row if the loss asks for them.
    pub fn trained_model(&self) -> ModelConfig {
        self.model.widened(self.loss.values())
    }

    /// Refuses intervals that nothing makes, and a calibration of none.
    fn check_intervals(&self) -> Result<()> {
        let IntervalSettings { levels, calibrate, adaptive } = &self.intervals;
        let learned = self.loss.levels();
        Intervals::default().adapting(*adaptive)?;
        if *adaptive > 0.0 && !calibrate {
            return Err(Error::usage(
                "adaptive intervals begin with calibrated ones",
                "pass --calibrate with --levels, or leave --adaptive out",
            ));
        }
        if *calibrate && levels.is_empty() {
            return Err(Error::usage(
                "there are no intervals to calibrate",
                "choose their levels in percent, such as --levels 80,90, or leave --calibrate out",
            ));
        }
        if learned == levels || (*calibrate && learned.is_empty()) {
            return Ok(());
        }
        let loss = self.loss.name();
        Err(Error::usage(
            format!(
                "intervals of {levels} % are learned by the losses quantile and student-t, and the loss is {loss}"
            ),
            "pass --loss quantile or student-t, or --calibrate to measure them after training, or leave --levels out",
        ))
    }
}

/// A classifier and the panel that it learns from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Classes {
    pub data: PanelData,
    pub model: ClassifierConfig,
}

/// The series of a run, and how it is split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeriesData {
    /// The name of a bundled series, an absolute path, or `-` for standard input.
    pub source: String,
    pub strict: bool,
    /// The calendar. Runs of older versions do not have it.
    #[serde(default)]
    pub step: Option<TimeStep>,
    pub split: SplitRule,
    /// Rows of a season, for the seasonal naive forecast.
    pub season: usize,
    /// Whether the series are independent. Then they have neither channels nor a scaler here: the model forecasts any series,
    /// and each is scaled by its own values.
    #[serde(default)]
    pub independent: bool,
    #[serde(default)]
    pub scaling: Scaling,
    /// The columns of a long file.
    #[serde(default)]
    pub columns: LongColumns,
    /// The columns that are inputs beside the channels.
    #[serde(default)]
    pub covariates: CovariateColumns,
    /// How the file is written. Runs of older versions have the usual one.
    #[serde(default)]
    pub dialect: Dialect,
    #[serde(default)]
    pub covariate_scaler: CovariateScaler,
    /// Names of the channels, in the model's order.
    pub channels: Vec<String>,
    pub scaler: Scaler,
    /// The longest gap that is filled.
    #[serde(default)]
    pub max_gap: MaxGap,
    /// SHA-256 of names, values (after filling) and what was filled, to recognise the series.
    pub sha256: String,
}

/// The panel of a run, and how it is split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PanelData {
    /// The name of a bundled panel, an absolute path, or `-` for standard input.
    pub source: String,
    pub options: PanelOptions,
    pub folds: FoldRule,
    pub class_weights: ClassWeights,
    /// The names of the sources, in the model's order.
    pub sources: Vec<String>,
    pub features: Vec<String>,
    /// SHA-256 of names, values and labels, to recognise the panel.
    pub sha256: String,
}

impl<T: TaskConfig> RunConfig<T> {
    fn of(task: T, settings: &Complete) -> Result<RunConfig<T>> {
        let training = settings.training()?;
        training.validate()?;
        let written_by = concat!("refrain ", env!("CARGO_PKG_VERSION")).to_owned();
        let precision = settings.precision()?;
        Ok(RunConfig { version: VERSION, written_by, kind: T::KIND, task, training, precision })
    }

    /// The configuration that a folder keeps, of this version or an earlier one.
    pub fn from_kept(mut kept: Value, folder: &Path) -> Result<RunConfig<T>> {
        let refuse = |problem: String, fix| Err(Error::run(folder, problem, fix));
        const FIX: &str = "restore the folder, or train again";
        if let Some(problem) = outdated(&kept) {
            return refuse(problem, "train again, or use the program that wrote it");
        }
        let kept = match &kept["version"] {
            Value::String(_) => upgraded(kept),
            Value::Number(version)
                if version.as_u64().is_some_and(|version| (2..=VERSION).contains(&version)) =>
            {
                kept["version"] = json!(VERSION);
                kept
            }
            Value::Number(version) => {
                let by = kept["written_by"].as_str().unwrap_or("another program");
                let problem = format!(
                    "its configuration is of version {version}, written by {by}; this program reads 1 to {VERSION}"
                );
                return refuse(problem, "use the program that wrote it");
            }
            _ => return refuse("its configuration does not say its version".to_owned(), FIX),
        };
        if kept["task"] != json!(T::KIND) {
            let (found, wanted) = (&kept["task"], json!(T::KIND));
            return refuse(format!("it is a run of {found}, not of {wanted}"), "choose another folder");
        }
        match serde_json::from_value::<RunConfig<T>>(kept) {
            Ok(config) => {
                config.training.validate()?;
                config.task.validate(folder)?;
                Ok(config)
            }
            Err(error) => refuse(format!("its configuration cannot be read: {error}"), FIX),
        }
    }
}

/// The task of a stored configuration of any version. A configuration without a task is taken for that of a forecaster.
pub fn task_of(kept: &Value) -> Task {
    match &kept["version"] {
        Value::String(_) if kept["data"]["channels"].is_array() => Task::Forecasting,
        Value::String(_) => Task::Classification,
        _ if kept["task"] == json!(Task::Classification) => Task::Classification,
        _ => Task::Forecasting,
    }
}

/// Converts a configuration of version 1, in which each task had one model and one loss.
fn upgraded(mut kept: Value) -> Value {
    let task = task_of(&kept);
    let model = match task {
        Task::Forecasting => "patchtst",
        Task::Classification => "cross-asset",
    };
    let program = kept["version"].as_str().unwrap_or_default();
    let written_by = format!("refrain {program}");
    let added = [("version", json!(VERSION)), ("written_by", json!(written_by)), ("task", json!(task))];
    let loss = (task == Task::Forecasting).then(|| ("loss", json!(Loss::default())));
    if let Value::Object(fields) = &mut kept {
        fields.entry("precision").or_insert(json!(Precision::F32));
        fields.extend(added.into_iter().chain(loss).map(|(name, value)| (name.to_owned(), value)));
        if let Some(Value::Object(settings)) = fields.get_mut("model") {
            settings.insert("name".to_owned(), json!(model));
        }
    }
    kept
}

impl RunConfig<Forecasts> {
    /// The configuration of a new run on these series, and the series cut into parts.
    pub fn new(settings: &Complete, set: SeriesSet) -> Result<(RunConfig<Forecasts>, Data)> {
        let of_series = settings.series()?;
        let (context, horizon, step) = (of_series.context, of_series.horizon, set.step());
        let counts = set.covariate_counts();
        let model =
            settings.forecaster(WindowShape { channels: set.channels(), context, horizon }, counts)?;
        model.validate()?;
        // With covariates a model mixes each series with its own.
        if set.is_independent() && counts.is_empty() {
            check_shared(&model, &set)?;
        }
        settings.training()?.validate()?;
        let season = match of_series.season {
            0 => step.season(context),
            season => season,
        };
        let max_gap = settings.max_gap()?;
        let longest = max_gap.rows(season, step, context);
        let (split, stack) = set.split(&of_series.split, context, horizon, longest)?;
        let scaler = set.scaler(&stack, of_series.scaling)?;
        let (sha256, covariate_scaler) = (set.fingerprint(), CovariateScaler::fit(&set, &stack));
        let set = set.with_scaled_covariates(&covariate_scaler);
        let options = of_series.read_options(None, settings.dialect()?);
        // Report a season that does not fit before training, not after it.
        SeasonalNaive::new(season, context)?;
        let independent = set.is_independent();
        let data = SeriesData {
            source: source::lasting(&settings.data()?),
            strict: of_series.strict,
            step: Some(step),
            split: of_series.split,
            season,
            independent,
            scaling: of_series.scaling,
            columns: options.columns,
            covariates: options.covariates,
            dialect: options.dialect.with_local_days(!set.first().time().is_utc()),
            covariate_scaler,
            channels: if independent { Vec::new() } else { set.first().names().to_vec() },
            scaler: if independent { Scaler::unit(0) } else { scaler.clone() },
            max_gap,
            sha256,
        };
        let (loss, intervals) = (settings.loss()?, settings.intervals()?);
        let TuningSettings { freeze, task, mask_ratio } = settings.tuning()?;
        let pretraining = (task == Objective::Pretrain).then_some(mask_ratio);
        let task = Forecasts { data, model, loss, intervals, freeze, pretraining };
        task.check_intervals()?;
        task.trained_model().validate()?;
        Ok((RunConfig::of(task, settings)?, Data { set, split, stack, scaler }))
    }

    /// How the data of the run is read.
    pub fn read_options(&self) -> ReadOptions {
        let SeriesData { strict, step, columns, covariates, dialect, .. } = &self.task.data;
        let (columns, covariates, dialect) = (columns.clone(), covariates.clone(), dialect.clone());
        ReadOptions { strict: *strict, step: *step, columns, covariates, dialect }
    }

    /// How the file with this name becomes series: the run's own as in training. Of others, a model that treats channels alike takes
    /// those of any layout.
    pub fn layout(&self, source: &str) -> Layout {
        let Forecasts { data, model, .. } = &self.task;
        match model.channel_use() {
            _ if data.independent => Layout::Independent,
            ChannelUse::Shared if source != data.source => Layout::Auto,
            _ => Layout::Grid,
        }
    }

    /// Series of this run or of other data, cut into parts as the run cuts its own. What the run knows is scaled as in training,
    /// anything else by its own training part.
    pub fn cut(&self, set: SeriesSet) -> Result<Data> {
        let Forecasts { data, model, .. } = &self.task;
        let set = set.with_scaled_covariates(&data.covariate_scaler);
        let WindowShape { context, horizon, .. } = model.window();
        let (split, stack) = set.split(&data.split, context, horizon, self.max_gap(set.step()))?;
        let scaler = match set.is_independent() || !self.knows_all(&set) {
            true => self.with_known(set.scaler(&stack, data.scaling)?, &set),
            false => self.with_known(Scaler::unit(set.channels()), &set),
        };
        Ok(Data { set, split, stack, scaler })
    }

    /// The scale of series whose next rows are to be forecast: that of training for what the run knows, otherwise that of all
    /// rows.
    pub fn scaler_of_all(&self, set: &SeriesSet) -> Result<Scaler> {
        let scaling = self.task.data.scaling;
        let scaler = match (set.is_independent(), scaling) {
            (true, _) => set.scaler_of_all(scaling),
            (false, Scaling::Standard) if !self.knows_all(set) => Scaler::fit(set.first(), 0..set.rows())?,
            (false, _) => Scaler::unit(set.channels()),
        };
        Ok(self.with_known(scaler, set))
    }

    fn knows_all(&self, set: &SeriesSet) -> bool {
        set.names().all(|name| self.task.data.channels.contains(name))
    }

    /// A scaler with the scale of training for those channels of a grid that the run knows.
    fn with_known(&self, mut scaler: Scaler, set: &SeriesSet) -> Scaler {
        let SeriesData { channels, scaler: known, .. } = &self.task.data;
        if set.is_independent() {
            return scaler;
        }
        for (at, name) in set.names().enumerate() {
            if let Some(own) = channels.iter().position(|channel| channel == name) {
                (scaler.mean[at], scaler.std[at]) = (known.mean[own], known.std[own]);
            }
        }
        scaler
    }

    /// Takes the part that intervals are calibrated on from a split, if they are to be calibrated.
    pub fn hold_out_calibration(&self, data: &mut Data) -> Result<Option<Part>> {
        let IntervalSettings { levels, calibrate, .. } = &self.task.intervals;
        if !calibrate {
            return Ok(None);
        }
        let part = data.set.hold_out_calibration(&mut data.split, &data.stack)?;
        let WindowShape { context, horizon, .. } = self.task.model.window();
        Calibration::check_windows(levels, &data.set, &data.stack, (context, horizon), &part)?;
        Ok(Some(part))
    }

    /// The longest gap that the run fills in a series with this step, in rows.
    pub fn max_gap(&self, step: TimeStep) -> usize {
        let Forecasts { data, model, .. } = &self.task;
        data.max_gap.rows(data.season, step, model.window().context)
    }

    /// Checks that a file became series as that of the run did, with its channels.
    pub fn check_channels(&self, set: &SeriesSet) -> Result<()> {
        let SeriesData { source, independent, channels, .. } = &self.task.data;
        if set.is_independent() != *independent {
            return Err(Error::changed_since(source));
        }
        if *independent {
            return Ok(());
        }
        let fix = "pass a series with the same columns in the same order";
        check_names(set.file(), "channels", set.first().names(), channels, fix)
    }

    /// Series that the model can forecast: a model with weights for each channel, or that mixes channels, needs those that it was
    /// trained on, in any order; they are put in its order, and others are left out.
    pub fn matched(&self, set: SeriesSet) -> Result<SeriesSet> {
        let Forecasts { data, model, .. } = &self.task;
        if data.independent || model.channel_use() == ChannelUse::Shared {
            return Ok(set);
        }
        if data.channels.iter().all(|name| set.names().any(|found| found == name)) {
            return Ok(set.select(&data.channels)?);
        }
        let found: Vec<String> = set.names().cloned().collect();
        let fix = match model.channel_use() {
            ChannelUse::Own => {
                "pass a series that has the same columns, in any order; or train with --layout independent, whose model has no \
                 weights of single channels and forecasts any series"
            }
            ChannelUse::Shared | ChannelUse::Mixed => "pass a series that has the same columns, in any order",
        };
        check_names(set.file(), "channels", &found, &data.channels, fix)?;
        Ok(set)
    }
}

/// Refuses a model that needs a grid, for independent series.
fn check_shared(model: &ModelConfig, set: &SeriesSet) -> Result<()> {
    let why = match model.channel_use() {
        ChannelUse::Shared => return Ok(()),
        ChannelUse::Own => "has weights for each channel",
        ChannelUse::Mixed => "mixes channels",
    };
    Err(Error::usage(
        format!(
            "{}: its {} series are independent (they do not start and end together), but the model ({}) {why}, so it needs \
             channels on one grid",
            set.file(),
            set.series().len(),
            model.title(),
        ),
        "choose a model that treats all channels alike (`--model nlinear`, or PatchTST without --individual-head), or pass \
         --layout grid, which fills the ends",
    ))
}

/// Checks that data has the names that the model was trained on.
fn check_names(file: &str, what: &str, found: &[String], trained: &[String], fix: &str) -> Result<()> {
    if found == trained {
        return Ok(());
    }
    let (found, trained) = (listing(found), listing(trained));
    Err(Error::usage(format!("{file} has the {what} {found}, but the model was trained on {trained}"), fix))
}

impl TaskConfig for Forecasts {
    const KIND: Task = Task::Forecasting;

    fn validate(&self, folder: &Path) -> Result<()> {
        self.model.validate()?;
        self.loss.validate()?;
        let refuse = |problem: String| Err(Error::contradiction(folder, problem));
        if self.check_intervals().is_err() {
            let (levels, loss) = (&self.intervals.levels, self.loss.levels());
            return refuse(format!("its intervals are {levels}, those of its loss {loss}"));
        }
        let SeriesData { channels, scaler, season, independent, .. } = &self.data;
        let (named, window) = (channels.len(), self.model.window());
        if *independent {
            let alone = !self.data.covariates.counts().is_empty();
            let shared = window.channels == 1 && (alone || self.model.channel_use() == ChannelUse::Shared);
            if !shared || named + scaler.mean.len() + scaler.std.len() > 0 {
                return refuse(
                    "a model of independent series has one channel, and no name or scale".to_owned(),
                );
            }
        } else if [window.channels, scaler.mean.len(), scaler.std.len()] != [named; 3] {
            return refuse(format!("{named} channels are named, the model has {}", window.channels));
        }
        if let Some(channel) = scaler.fault() {
            let (mean, std) = (scaler.mean[channel], scaler.std[channel]);
            return refuse(format!("`{}` has a mean of {mean} and a deviation of {std}", channels[channel]));
        }
        let covariates = self.data.covariates.counts();
        if self.model.covariates() != covariates || self.data.covariate_scaler.counts() != covariates {
            return refuse("its covariates are not those of its model".to_owned());
        }
        if !self.data.covariate_scaler.is_sound() {
            return refuse("a covariate has an impossible mean or deviation".to_owned());
        }
        if *season == 0 || *season > window.context {
            return refuse(format!("a season of {season} rows, with a context of {}", window.context));
        }
        Ok(())
    }
}

impl RunConfig<Classes> {
    /// The configuration of a new run on this panel.
    pub fn new(settings: &Complete, panel: &Panel) -> Result<RunConfig<Classes>> {
        let model = settings.classifier(panel.sources().len(), panel.features().len())?;
        model.validate()?;
        let (of_panel, options) = (settings.panel()?, settings.panel_options()?);
        let dialect = options.dialect.clone();
        let data = PanelData {
            source: source::lasting(&settings.data()?),
            options: PanelOptions { dialect: dialect.with_local_days(!panel.is_utc()), ..options },
            folds: of_panel.fold_rule(),
            class_weights: of_panel.class_weights,
            sources: panel.sources().to_vec(),
            features: panel.features().to_vec(),
            sha256: panel.fingerprint(),
        };
        RunConfig::of(Classes { data, model }, settings)
    }

    /// Checks that a panel has the sources and features that the model was trained on.
    pub fn check_names(&self, panel: &Panel) -> Result<()> {
        let PanelData { sources, features, .. } = &self.task.data;
        let fix = "pass a panel in which the sources appear in the same order";
        check_names(panel.file(), "sources", panel.sources(), sources, fix)?;
        let fix = "pass a panel with the same columns in the same order";
        check_names(panel.file(), "features", panel.features(), features, fix)
    }
}

impl TaskConfig for Classes {
    const KIND: Task = Task::Classification;

    fn validate(&self, folder: &Path) -> Result<()> {
        self.model.validate()?;
        let ClassifierConfig::CrossAsset(model) = &self.model;
        let (sources, features) = (self.data.sources.len(), self.data.features.len());
        if (model.sources, model.features) == (sources, features) {
            return Ok(());
        }
        let problem = format!(
            "{sources} sources of {features} features are named, the model has {} of {}",
            model.sources, model.features
        );
        Err(Error::contradiction(folder, problem))
    }
}

/// Lists names for a message: the first few of many.
fn listing(names: &[String]) -> String {
    const FEW: usize = 8;
    let more = if names.len() > FEW { format!(", ... ({} in all)", names.len()) } else { String::new() };
    names.iter().take(FEW).map(String::as_str).collect::<Vec<_>>().join(", ") + &more
}
