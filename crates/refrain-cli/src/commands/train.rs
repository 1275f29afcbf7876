//! `refrain train`.

use std::path::Path;

use refrain_rendezvous::World;

use crate::cli::Train;
use crate::error::{Error, Result};
use crate::job::{self, Job};
use crate::run;
use crate::settings::{Complete, Settings, Task};
use crate::tasks::forecasting::init::Init;
use crate::tasks::{classification, forecasting};

pub fn run(args: Train) -> Result<()> {
    let world = job::world(&args.ranks)?;
    if let Some(folder) = &args.resume {
        let is_panel = run::is_panel_run(folder) && args.training.settings != Settings::default();
        if is_panel || args.training.settings.extension().is_none() {
            return Err(Error::usage(
                "--resume uses the settings of the run, so no others can be given than --epochs and --patience of a forecaster",
                "leave them out, or start a new run with --out",
            ));
        }
        return resume(&args, world, folder, None);
    }
    let init = args.init.as_deref().map(Init::open).transpose()?;
    let base = init.as_ref().map(Init::values).unwrap_or_default();
    let settings = args.training.resolve(base)?;
    if let Some(folder) = args.out.as_deref().filter(|out| args.resume_if_possible && run::is_begun(out)) {
        return resume(&args, world, folder, Some(&settings));
    }
    let join = || Job::join(world, &args.ranks, args.device, "a new one", job::RESUME);
    match settings.task() {
        Task::Forecasting => {
            join()?.run(|job| forecasting::train::start(&args, &settings, init.as_ref(), job))
        }
        Task::Classification if init.is_some() => {
            Err(Error::usage("--init is for forecasters", "leave it out, or choose the model of the weights"))
        }
        Task::Classification => join()?.run(|job| classification::train::start(&args, &settings, job)),
    }
}

/// Resumes a run. If settings are given, they must be those of the run.
fn resume(args: &Train, world: World, path: &Path, settings: Option<&Complete>) -> Result<()> {
    Job::join(world, &args.ranks, args.device, "a resumed one", job::RESUME)?.run(|job| {
        // From here on, nobody else writes what is read.
        let folder = job.open_folder(path)?;
        let task = if run::is_panel_run(path) { Task::Classification } else { Task::Forecasting };
        if settings.is_some_and(|settings| settings.task() != task) {
            return Err(Error::run(path, "the run in it is for another model", "choose another --out"));
        }
        match task {
            Task::Forecasting => forecasting::train::resume(args, folder, settings, job),
            Task::Classification => classification::train::resume(args, folder, settings, job),
        }
    })
}
