//! The folder of a run and its content.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use refrain_forecast::tasks::forecasting::conformal::Calibration;
use refrain_forecast::training::SavedRun;
use refrain_nn::checkpoint::Checkpoint;
use serde::Serialize;
use serde_json::Value;

use crate::console::{another_speaks, note};
use crate::error::{Error, Result};

/// Refuses settings that differ from those of the run in a folder. The version of the program may differ.
pub fn check_same(run: &impl Serialize, wanted: &impl Serialize, folder: &Path) -> Result<()> {
    let [run, wanted] = [serde_json::to_value(run), serde_json::to_value(wanted)];
    let mut all = differences(&run.map_err(Error::Json)?, &wanted.map_err(Error::Json)?, "now");
    all.retain(|difference| !["version ", "written_by "].iter().any(|name| difference.starts_with(name)));
    if all.is_empty() {
        return Ok(());
    }
    let problem = format!("the run in it was started with other settings: {}", few(all));
    Err(Error::run(folder, problem, "use the same settings, or choose another --out"))
}

/// The first of several things, and how many more there are.
pub fn few(mut all: Vec<String>) -> String {
    const FEW: usize = 3;
    let more = if all.len() > FEW { format!(" and {} more", all.len() - FEW) } else { String::new() };
    all.truncate(FEW);
    format!("{}{more}", all.join(", "))
}

/// Where two settings differ, as in `model.layers 3 (now 2)`. `now` says when, or where, the others hold.
pub fn differences(run: &Value, wanted: &Value, now: &str) -> Vec<String> {
    let mut all = Vec::new();
    collect("", run, wanted, now, &mut all);
    all
}

fn collect(name: &str, run: &Value, wanted: &Value, now: &str, all: &mut Vec<String>) {
    match (run, wanted) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let inner = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                collect(&inner, &of(a), &of(b), now, all);
            }
        }
        // A run of an older version does not have this setting.
        (Value::Null, _) => {}
        _ if run == wanted => {}
        (Value::Array(_), _) | (_, Value::Array(_)) => all.push(format!("{name} (different {now})")),
        _ => all.push(format!("{name} {run} ({now} {wanted})")),
    }
}

/// The folder of the last state, inside the run folder. The best weights are next to it.
const LATEST: &str = "checkpoint";
const MODEL: &str = refrain_nn::checkpoint::TENSORS;
/// The folder of a fold, inside the folder of a cross-asset run. Folds are counted from 1.
pub fn fold_folder(fold: usize) -> String {
    format!("fold-{fold}")
}
/// The file with which a process locks a folder, and which says who holds it. The lock is the operating system's and
/// ends with the process, however it ends; the file stays.
pub const LOCK: &str = "run.lock";
pub const FOLDS: &str = "folds.json";
pub const METRICS: &str = "metrics.jsonl";
pub const CALIBRATION: &str = Calibration::FILE;
pub const LOSS: &str = "loss.svg";
pub const FORECAST: &str = "forecast.svg";
/// Everything about a run on one page.
pub const REPORT: &str = "report.html";
/// The metrics of each epoch for TensorBoard.
pub const EVENTS: &str = "events.out.tfevents.refrain";
/// What a comparison is of, and what came out.
pub const COMPARISON: &str = "comparison.json";
pub const COMPARISON_TABLE: &str = "comparison.csv";
pub const COMPARISON_PLOT: &str = "comparison.svg";
/// The result of a run of a comparison.
pub const OUTCOME: &str = "outcome.json";

/// The best weights of a run or of a fold, opened.
pub struct SavedModel {
    pub folder: PathBuf,
    pub checkpoint: Checkpoint,
}

impl SavedModel {
    /// The weights in a folder, without a warning if they cannot be verified.
    pub fn open(folder: &Path) -> Result<SavedModel> {
        Ok(SavedModel { folder: folder.to_owned(), checkpoint: Checkpoint::open(folder)? })
    }

    /// The configuration that the folder keeps, of any version.
    pub fn config(&self) -> Result<Value> {
        Ok(self.checkpoint.config()?)
    }
}

/// Opens the best model of a run, or, if the run has folds, the model of each fold in order.
pub fn open_models(folder: &Path) -> Result<Vec<SavedModel>> {
    let folds = (1..).map(|fold| folder.join(fold_folder(fold)));
    // A fold without a model ends the list; who needs all of them counts.
    let folds: Vec<PathBuf> = folds.take_while(|fold| fold.join(MODEL).is_file()).collect();
    match folds.is_empty() {
        true => Ok(vec![open_model(folder, is_begun(folder))?]),
        false => folds.iter().map(|fold| open_model(fold, true)).collect(),
    }
}

/// Opens the best model in a folder. `begun` says whether a run has begun there.
fn open_model(folder: &Path, begun: bool) -> Result<SavedModel> {
    if !folder.join(MODEL).is_file() {
        return Err(match begun {
            true => Error::run(
                folder,
                format!("there is no {MODEL} in it, because no epoch of this run is finished yet"),
                "resume the run with `refrain train --resume`",
            ),
            false => no_run(folder),
        });
    }
    let model = SavedModel::open(folder)?;
    warn(model.checkpoint.unverified());
    Ok(model)
}

/// Opens the saved state of a run.
pub fn open_saved(folder: &Path) -> Result<SavedRun> {
    let saved = SavedRun::open(folder)?;
    warn(saved.unverified());
    Ok(saved)
}

fn warn(unverified: Option<String>) {
    if let Some(why) = unverified.filter(|_| !another_speaks()) {
        note(format!("warning: {why}"));
    }
}

/// The files that a run writes into its folders.
pub const FILES: [&str; 14] = [
    MODEL,
    refrain_nn::checkpoint::CONFIG,
    FOLDS,
    METRICS,
    CALIBRATION,
    LOSS,
    FORECAST,
    LOCK,
    COMPARISON,
    COMPARISON_TABLE,
    COMPARISON_PLOT,
    OUTCOME,
    REPORT,
    EVENTS,
];

/// Whether a folder with this name (in lower case) belongs inside a run folder.
pub fn is_inner_folder(name: &str) -> bool {
    name == LATEST || name.strip_prefix("fold-").is_some_and(|fold| fold.parse::<usize>().is_ok())
}

/// Whether a run writes files or folders with this name (in lower case) into its folders.
pub fn is_name_of_run(name: &str) -> bool {
    FILES.contains(&name) || is_inner_folder(name)
}

/// Whether a folder is a run folder, or one inside it.
pub fn is_of_run(folder: &Path) -> bool {
    [MODEL, LATEST, LOCK].iter().any(|name| folder.join(name).exists()) || is_panel_run(folder)
}

/// Whether a folder has a saved state.
pub fn is_saved(folder: &Path) -> bool {
    folder.join(LATEST).join(MODEL).is_file()
}

/// Whether a run was started in a folder, for any model.
pub fn is_begun(folder: &Path) -> bool {
    is_saved(folder) || is_saved(&folder.join(fold_folder(1)))
}

/// Whether a folder belongs to a cross-asset run.
pub fn is_panel_run(folder: &Path) -> bool {
    folder.join(fold_folder(1)).is_dir()
}

/// The error for a folder in which no run was started.
pub fn no_run(folder: &Path) -> Error {
    if folder.join(LOCK).exists() {
        let problem = "the run in this folder ended before it was saved for the first time";
        return Error::run(folder, problem, "start it again with `refrain train --out` and its settings");
    }
    Error::run(
        folder,
        "there is no run in this folder",
        "pass the folder that `refrain train` wrote to, such as runs/nyc-weather-1",
    )
}
