//! `refrain train`.

mod cross_asset;
mod epochs;
mod patchtst;

use serde::Serialize;

use crate::cli::Train;
use crate::error::{Error, Result};
use crate::run;
use crate::settings::{ModelKind, Settings};

pub fn run(args: Train) -> Result<()> {
    if let Some(folder) = &args.resume {
        if args.settings != Settings::default() {
            return Err(Error::usage(
                "--resume goes on with the settings that the run has, others cannot be given",
                "leave them out, or begin a new run with --out",
            ));
        }
        return match run::is_panel_run(folder) {
            true => cross_asset::resume(&args, folder),
            false => patchtst::resume(&args, folder),
        };
    }
    let settings = Settings::resolve(args.settings.clone(), args.config.as_deref(), args.preset)?;
    match settings.model {
        ModelKind::Patchtst => patchtst::start(&args, &settings),
        ModelKind::CrossAsset => cross_asset::start(&args, &settings),
    }
}

fn as_json(value: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(Error::Json)
}
