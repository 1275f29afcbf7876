//! `refrain train`.

mod cross_asset;
mod epochs;
mod patchtst;

use std::path::Path;

use serde::Serialize;

use crate::cli::Train;
use crate::error::{Error, Result};
use crate::folder::RunFolder;
use crate::run;
use crate::settings::{Complete, ModelKind, Settings};

pub fn run(args: Train) -> Result<()> {
    if let Some(folder) = &args.resume {
        if args.settings != Settings::default() {
            return Err(Error::usage(
                "--resume goes on with the settings that the run has, others cannot be given",
                "leave them out, or begin a new run with --out",
            ));
        }
        return resume(&args, folder, None);
    }
    let settings = Settings::resolve(args.settings.clone(), args.config.as_deref(), args.preset)?;
    if let Some(folder) = args.out.as_deref().filter(|out| args.resume_if_possible && run::is_begun(out)) {
        return resume(&args, folder, Some(&settings));
    }
    match settings.model {
        ModelKind::Patchtst => patchtst::start(&args, &settings),
        ModelKind::CrossAsset => cross_asset::start(&args, &settings),
    }
}

/// Goes on with a run; if settings are given, they must be those of the run.
fn resume(args: &Train, path: &Path, settings: Option<&Complete>) -> Result<()> {
    // Nobody writes what is read from here on.
    let folder = RunFolder::open(path)?;
    let kind = if run::is_panel_run(path) { ModelKind::CrossAsset } else { ModelKind::Patchtst };
    if settings.is_some_and(|settings| settings.model != kind) {
        return Err(Error::run(path, "the run in it is of another model", "choose another --out"));
    }
    match kind {
        ModelKind::CrossAsset => cross_asset::resume(args, folder, settings),
        ModelKind::Patchtst => patchtst::resume(args, folder, settings),
    }
}

fn as_json(value: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(Error::Json)
}
