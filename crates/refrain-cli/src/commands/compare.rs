//! `refrain compare`.

use crate::cli::Compare;
use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::tasks::forecasting::comparison;

pub fn run(args: Compare) -> Result<()> {
    let training = &args.training;
    if let Some(folder) = &args.resume {
        if training.settings != Settings::default() || training.eager {
            return Err(Error::usage(
                "--resume uses the settings of the comparison, so no others can be given",
                "leave them out, or start a new comparison with --out",
            ));
        }
        return comparison::resume(&args, folder);
    }
    let (config, preset) = (training.config.as_deref(), training.preset.as_deref());
    let settings = training.settings.clone().resolve_each(config, preset, &args.models)?;
    comparison::start(&args, &settings)
}
