//! `refrain cross-validate`.

use refrain_forecast::settings::Values;

use crate::cli::CrossValidate;
use crate::error::{Error, Result};
use crate::settings::Task;
use crate::tasks::forecasting;

pub fn run(args: CrossValidate) -> Result<()> {
    if args.training.settings.chooses(args.training.config.as_deref(), "split")? {
        return Err(Error::usage(
            "cross-validate splits a series by its origins, so it takes no --split, and no split in --config",
            "leave it out; --windows, --step and --validation say where the parts lie",
        ));
    }
    let settings = args.training.resolve(Values::new())?;
    match settings.task() {
        Task::Forecasting => forecasting::cross_validation::run(&args, settings),
        Task::Classification => Err(Error::usage(
            "cross-validate is for forecasters, and the model is a classifier",
            "train it with --folds, which does the same for a panel",
        )),
    }
}
