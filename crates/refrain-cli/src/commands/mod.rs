//! The commands, one file each; `bench_epochs` is shared by two of them, and `bench_step_ranks` is `bench_step` in a job.

mod bench_cross_asset;
mod bench_epochs;
mod bench_load;
mod bench_patchtst;
mod bench_predict;
mod bench_step;
mod bench_step_config;
mod bench_step_ranks;
mod compare;
mod completions;
mod cross_validate;
mod devices;
mod evaluate;
mod export;
mod forecast;
mod import;
mod man;
mod train;

use crate::cli::{Bench, Command};
use crate::error::Result;

/// Runs a command.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Train(args) => train::run(*args),
        Command::Compare(args) => compare::run(*args),
        Command::CrossValidate(args) => cross_validate::run(*args),
        Command::Evaluate(args) => evaluate::run(args),
        Command::Forecast(args) => forecast::run(args),
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
        Command::Bench(Bench::Patchtst(args)) => bench_patchtst::run(args),
        Command::Bench(Bench::CrossAsset(args)) => bench_cross_asset::run(args),
        Command::Bench(Bench::Step(args)) => bench_step::run(args),
        Command::Bench(Bench::Load(args)) => bench_load::run(args),
        Command::Bench(Bench::Predict(args)) => bench_predict::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    }
}
