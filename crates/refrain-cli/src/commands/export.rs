//! `refrain export`.

use refrain::{DType, Device};
use refrain_forecast::models::ModelConfig;
use refrain_forecast::models::patchtst::hugging_face;
use serde::Serialize;

use crate::cli::Export;
use crate::console::Console;
use crate::error::{Error, Result};
use crate::run;
use crate::run_config::{Forecasts, RunConfig};

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome {
    parameters: usize,
    notes: Vec<String>,
    out: String,
}

pub fn run(args: Export) -> Result<()> {
    let console = Console::of_files(args.json);
    if run::is_panel_run(&args.model) {
        return Err(refused(&args, "a classifier"));
    }
    let saved = run::open_models(&args.model)?;
    let saved = saved.first().ok_or_else(|| run::no_run(&args.model))?;
    let config = RunConfig::<Forecasts>::from_kept(saved.config()?, &saved.folder)?;
    let ModelConfig::PatchTst(patchtst) = &config.task.model else {
        return Err(refused(&args, config.task.model.title()));
    };
    let loss = &config.task.loss;
    let distribution = loss.distribution();
    if loss.values() > 1 && distribution.is_none() {
        return Err(refused(&args, &format!("a model with the loss {}", loss.name())));
    }
    // Before the folder is made.
    hugging_face::check(patchtst, distribution, &args.model)?;
    let model = config.task.trained_model().load(&saved.checkpoint, DType::F32, &Device::cpu())?;
    std::fs::create_dir_all(&args.out).map_err(|source| Error::write(&args.out, source))?;
    let mut content = std::fs::read_dir(&args.out).map_err(|source| Error::read(&args.out, source))?;
    if content.next().is_some() {
        let problem = "the folder is not empty, and refrain does not overwrite anything";
        return Err(Error::run(&args.out, problem, "choose another --out"));
    }
    let notes = hugging_face::export(patchtst, distribution, model.parameters(), &args.out)?;
    for note in &notes {
        console.line(format!("note        {note}"))?;
    }
    console.line(format!("written to {}", args.out.display()))?;
    console.result(&Outcome {
        parameters: model.parameter_count(),
        notes,
        out: args.out.display().to_string(),
    })
}

fn refused(args: &Export, what: &str) -> Error {
    let problem = format!(
        "it is {what}, and Hugging Face's format is that of PatchTST with one value or Student's t distribution in each row"
    );
    Error::run(&args.model, problem, "export the run of a PatchTST with another loss")
}
