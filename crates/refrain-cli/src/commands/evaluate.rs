//! `refrain evaluate`.

use crate::cli::Evaluate;
use crate::error::Result;
use crate::job::{self, Job};
use crate::tasks;

pub fn run(args: Evaluate) -> Result<()> {
    let job = Job::join(job::world(&args.ranks)?, &args.ranks, args.device, "evaluate", job::RESTART)?;
    job.run(|job| {
        let mut trained = tasks::load(&args.model, job.device())?;
        args.dialect.apply(trained.dialect())?;
        let data = args.data.unwrap_or_else(|| trained.source().to_owned());
        trained.evaluate(job.console_of_result(args.json), &data, job)
    })
}
