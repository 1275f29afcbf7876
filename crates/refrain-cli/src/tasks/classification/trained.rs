//! A trained classifier: its errors on the folds of a panel, and the class probabilities at the last moment.

use std::path::Path;

use refrain::{DType, Device, with_precision};
use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::data::panel::{Class, Panel};
use refrain_forecast::data::series::{Filled, Scaler};
use refrain_forecast::models::ClassifierConfig;
use refrain_forecast::models::cross_asset::CrossAsset;
use refrain_forecast::tasks::classification::{Classification, RecordedClassifier};
use serde::Serialize;

use super::OfFold;
use super::score::{self, FoldScore, Totals};
use crate::console::{Console, count};
use crate::error::{Error, Result};
use crate::filled;
use crate::job::Job;
use crate::output::Cell;
use crate::run::SavedModel;
use crate::run_config::{Classes, PanelData, RunConfig};
use crate::source;
use crate::tasks::{Asked, Prediction, Trained};

/// The models of a run's folds, or that of one fold, and the configuration of the run.
pub struct TrainedClassifier {
    config: RunConfig<Classes>,
    /// In the order of their numbers, at least one.
    folds: Vec<TrainedFold>,
    device: Device,
}

struct TrainedFold {
    /// Counted from 1.
    number: usize,
    model: CrossAsset,
    scaler: Scaler,
}

/// What `evaluate --json` prints. Accuracies are over the test parts of all folds.
#[derive(Serialize)]
struct Outcome<'a> {
    folds: &'a [FoldScore],
    #[serde(flatten)]
    totals: Totals,
    parameters: usize,
    device: String,
}

impl TrainedClassifier {
    /// The models that were found in a folder: that of a run, or that of one fold.
    pub fn load(folder: &Path, saved: &[SavedModel], device: &Device) -> Result<TrainedClassifier> {
        let mut of_run: Option<RunConfig<Classes>> = None;
        let mut folds = Vec::with_capacity(saved.len());
        for saved in saved {
            let (config, OfFold { fold, scaler }) = OfFold::from_kept(saved.config()?, &saved.folder)?;
            let ClassifierConfig::CrossAsset(model) = &config.task.model;
            let model = CrossAsset::load(&saved.checkpoint, model.clone(), DType::F32, device)?;
            folds.push(TrainedFold { number: fold, model, scaler });
            if *of_run.get_or_insert_with(|| config.clone()) != config {
                let problem = "its settings differ from those of the first fold";
                return Err(Error::run(&saved.folder, problem, "restore the folder, or train again"));
            }
        }
        let one_fold = saved.first().is_some_and(|saved| saved.folder == folder);
        let numbers = folds.iter().map(|fold| fold.number);
        match of_run {
            Some(config) if one_fold || numbers.eq(1..=config.task.data.folds.folds) => {
                Ok(TrainedClassifier { config, folds, device: device.clone() })
            }
            _ => Err(Error::run(
                folder,
                "not every fold of this run has a model yet",
                "resume the run with `refrain train --resume`, or pass the folder of one fold, such as fold-1",
            )),
        }
    }
}

/// Refuses processes with other models or other data than the first one, or that were asked for something else.
fn agree(folds: &[TrainedFold], panel: &Panel, asked: &Asked, job: &Job) -> Result<()> {
    let weights = folds.iter().map(|fold| fold.model.weights_sha256());
    let weights = weights.collect::<refrain_forecast::Result<Vec<String>>>()?;
    let mut all = asked.described();
    all["weights"] = weights.join(" ").into();
    all["data"] = panel.fingerprint().into();
    job.agree(&all)
}

impl Trained for TrainedClassifier {
    fn dialect(&mut self) -> &mut Dialect {
        &mut self.config.task.data.options.dialect
    }

    fn source(&self) -> &str {
        &self.config.task.data.source
    }

    fn evaluate(self: Box<Self>, console: Console, data: &str, job: &Job) -> Result<()> {
        let TrainedClassifier { config, folds: trained, device } = *self;
        let of_data = &config.task.data;
        let (panel, report) = source::read_panel(data, &of_data.options)?;
        source::describe_panel(console, &panel, &report)?;
        config.check_names(&panel)?;
        agree(&trained, &panel, &Asked::default(), job)?;
        let folds = of_data.folds.cut(&panel)?;
        let filled: Vec<Filled> =
            trained.iter().flat_map(|TrainedFold { number, .. }| folds[number - 1].filled(&panel)).collect();
        filled::report(console, &filled)?;
        let parameters = trained.first().map_or(0, |fold| fold.model.parameter_count());
        let mut scores = Vec::with_capacity(trained.len());
        for TrainedFold { number, model, scaler } in trained {
            let fold = &folds[number - 1];
            scores.push(with_precision(config.precision.setting(), || {
                let task = Classification::of(model, scaler, &panel, fold, of_data.class_weights)?;
                FoldScore::measure(number, &task, &panel, fold, job)
            })?);
        }
        let of_folds: Vec<&FoldScore> = scores.iter().collect();
        score::show(console, &of_folds, None)?;
        let totals = Totals::of(&of_folds);
        console.result(&Outcome { folds: &scores, totals, parameters, device: device.name() })
    }

    /// The columns are `source`, `time` and the classes. The model is that of the last fold, which saw the newest rows.
    fn forecast(
        self: Box<Self>,
        console: Console,
        data: &str,
        asked: &Asked,
        job: &Job,
    ) -> Result<Prediction> {
        if !asked.horizons.is_empty() {
            let problem = "--horizon is for forecasters, and the model is a classifier";
            return Err(Error::usage(
                problem,
                "leave it out; the labels of the training say how far it looks ahead",
            ));
        }
        let TrainedClassifier { config, mut folds, .. } = *self;
        let PanelData { options, features, .. } = &config.task.data;
        let (panel, report) = source::read_unlabelled_panel(data, options, features)?;
        source::describe_panel(console, &panel, &report)?;
        config.check_names(&panel)?;
        agree(&folds, &panel, asked, job)?;
        let Some(TrainedFold { number, model, scaler }) = folds.pop() else {
            return Err(Error::usage("the run has no fold", "train again"));
        };
        let unknown = |name: &&String| !panel.sources().contains(name);
        let ids = asked.ids.as_deref();
        if let Some(name) = ids.and_then(|ids| ids.iter().find(unknown)) {
            let problem = format!("{data} has no source `{name}`");
            return Err(Error::usage(problem, "check the spelling, or leave --ids out"));
        }
        let is_asked = |source: &String| ids.is_none_or(|ids| ids.contains(source));
        let last = match &asked.from {
            None => panel.rows() - 1,
            Some(time) => panel.rows_before(time, &options.dialect)? - 1,
        };
        let classifier = RecordedClassifier::new(model, scaler, config.precision.setting(), 1);
        let probabilities = classifier.probabilities(&panel, last)?;
        let row = |(source, probabilities): (&String, [f64; Class::ALL.len()])| {
            let names = [source.clone(), panel.time(last)].map(Cell::Text);
            names.into_iter().chain(probabilities.map(|value| Cell::Number(value as f32))).collect()
        };
        let classes = Class::ALL.map(|class| class.name().to_owned());
        Ok(Prediction {
            columns: ["source", "time"].map(str::to_owned).into_iter().chain(classes).collect(),
            rows: panel
                .sources()
                .iter()
                .zip(probabilities)
                .filter(|(name, _)| is_asked(name))
                .map(row)
                .collect(),
            weights_sha256: classifier.model().weights_sha256()?,
            summary: format!(
                "the classes of {} sources at {}, by the model of fold {number}",
                count(panel.sources().iter().filter(|name| is_asked(name)).count()),
                panel.time(last)
            ),
        })
    }
}
