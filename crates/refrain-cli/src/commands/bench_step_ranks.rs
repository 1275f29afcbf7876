//! `refrain bench step` by several processes: a step of each rank alone, then the same step of all ranks together.

use refrain::with_precision;
use refrain_rendezvous::{Phase, World};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::bench_step::median;
use super::bench_step_config::Chosen;
use crate::bench::{Repeats, SharedStep};
use crate::cli::BenchStep;
use crate::console::{Console, count, table};
use crate::error::{Error, Result, finite};
use crate::job::{self, Job};
use crate::replays::ReplayFigures;

/// What `--json` prints. Times are microseconds per step: medians over the repeats, those of the slowest rank.
#[derive(Serialize)]
struct Outcome {
    config: String,
    precision: &'static str,
    device: String,
    ranks: usize,
    scaling: &'static str,
    /// Rows of a batch, of one rank.
    rows: usize,
    steps: usize,
    repeats: usize,
    /// Of one rank alone, with `rows` rows.
    alone_us: f64,
    /// Of one rank alone, with the rows of all ranks. Only with --strong.
    #[serde(skip_serializing_if = "Option::is_none")]
    whole_us: Option<f64>,
    together_us: f64,
    /// What a step of all ranks takes longer than one of a rank alone with as many rows.
    exposed_us: f64,
    /// The speed of all ranks divided by their number and the speed of one rank.
    efficiency: f64,
    /// By rank: the repeats alone and together.
    all: Vec<Times>,
    /// The all-reduces of a step, and what the trainer exchanges between repeats.
    collectives_per_step: f64,
    mean_loss: f64,
    recorded: bool,
    #[serde(flatten)]
    replayed: ReplayFigures,
    gradient_bytes: usize,
    parameters: usize,
}

/// The times of one rank.
#[derive(Serialize, Deserialize)]
struct Times {
    alone: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    whole: Vec<f64>,
    together: Vec<f64>,
}

pub fn run(args: &BenchStep, world: World, chosen: &Chosen) -> Result<()> {
    if args.profile {
        return Err(Error::usage("--profile is for one process", "leave it out, or start one process"));
    }
    let (rows, ranks) = (chosen.workload.rows(), world.size);
    if args.strong && !rows.is_multiple_of(ranks) {
        let problem = format!("{ranks} ranks can't share a batch of {rows} rows equally");
        return Err(Error::usage(problem, "choose a number of ranks that divides it, or leave --strong out"));
    }
    let job = Job::join(world, &args.ranks, args.device, "bench step", job::RESTART)?;
    job.run(|job| with_precision(chosen.precision.setting(), || measure(args, chosen, job)))
}

fn measure(args: &BenchStep, chosen: &Chosen, job: &Job) -> Result<()> {
    let BenchStep { steps, repeats, warmup, seed, eager, strong, .. } = *args;
    let (config, precision, ranks) = (chosen.name.clone(), chosen.precision.name(), job.size());
    job.agree(&json!({
        "config": config, "settings": chosen.settings, "precision": precision, "eager": eager, "strong": strong,
        "steps": steps, "repeats": repeats, "warmup": warmup, "seed": seed,
    }))?;
    let (console, device) = (job.console_of_result(args.json), job.device());
    let all_rows = chosen.workload.rows();
    let rows = if strong { all_rows / ranks } else { all_rows };
    let numbers = Repeats { warmup: warmup as u64, steps: steps as u64, repeats };
    let step = |rows, ranks| -> Result<SharedStep> {
        let step = SharedStep::new(&*chosen.workload, rows, ranks, device, seed, numbers)?;
        Ok(if eager { step.eager() } else { step })
    };
    let alone = |rows| -> Result<Vec<f64>> {
        let mut step = step(rows, 1)?;
        // The ranks share the machine alone, too.
        job.gather("ready", &rows)?;
        Ok(step.measure(|| {})?)
    };
    let (alone, whole) = (alone(rows)?, if strong { alone(all_rows)? } else { Vec::new() });
    let mut step = step(rows, ranks)?;
    if let Some(communicator) = job.communicator() {
        step = step.with_communicator(communicator)?;
    }
    let collectives = || job.communicator().map_or(0, |communicator| communicator.collectives());
    let before = collectives();
    let together = step.measure(|| job.set_phase(Phase::Training))?;
    let collectives_per_step = (collectives() - before) as f64 / step.steps() as f64;
    let mean_loss = step.mean_loss()?;
    finite("the mean loss", mean_loss)?;
    let (parameters, replayed) = (step.parameter_count(), ReplayFigures::of(step.replays()));
    drop(step);
    let all = job.gather("times", &Times { alone, whole, together })?;
    let slowest =
        |of: fn(&Times) -> &[f64]| all.iter().map(|times| summary(of(times))).fold([0.0; 3], slower);
    let [alone, whole, together] = [slowest(|t| &t.alone), slowest(|t| &t.whole), slowest(|t| &t.together)];
    let (alone_us, whole_us, together_us) = (alone[0], strong.then_some(whole[0]), together[0]);
    let efficiency = whole_us.map_or(alone_us, |us| us / ranks as f64) / together_us;
    let outcome = Outcome {
        config,
        precision,
        device: device.name(),
        ranks,
        scaling: if strong { "strong" } else { "weak" },
        rows,
        steps,
        repeats,
        alone_us,
        whole_us,
        together_us,
        exposed_us: together_us - alone_us,
        efficiency,
        all,
        collectives_per_step,
        mean_loss,
        recorded: !eager,
        replayed,
        gradient_bytes: parameters * 4,
        parameters,
    };
    console.line(format!(
        "{}: {} parameters, {} {} on each of {ranks} ranks ({} scaling), {precision}, {}",
        outcome.config,
        count(parameters),
        count(rows),
        chosen.row,
        outcome.scaling,
        outcome.device,
    ))?;
    job.describe(console)?;
    show(console, &outcome, [alone, whole, together])?;
    console.result(&outcome)
}

/// The median, the minimum and the maximum.
fn summary(times: &[f64]) -> [f64; 3] {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    match times[..] {
        [] => [0.0; 3],
        [min, .., max] => [median(&times), min, max],
        [only] => [only; 3],
    }
}

fn slower(one: [f64; 3], other: [f64; 3]) -> [f64; 3] {
    if other[0] > one[0] { other } else { one }
}

fn show(console: Console, outcome: &Outcome, [alone, whole, together]: [[f64; 3]; 3]) -> Result<()> {
    let Outcome { ranks, rows, repeats, steps, exposed_us, efficiency, whole_us, .. } = *outcome;
    let line = |name: String, times: [f64; 3], more: [String; 2]| {
        [vec![name], times.map(|us| format!("{us:.1}")).to_vec(), more.to_vec()].concat()
    };
    let none = || [String::new(), String::new()];
    let mut lines = Vec::new();
    if whole_us.is_some() {
        lines.push(line(format!("1 rank, {} rows", count(rows * ranks)), whole, none()));
    }
    lines.push(line(format!("1 rank, {} rows", count(rows)), alone, none()));
    let more = [format!("{exposed_us:.1}"), format!("{efficiency:.3}")];
    lines.push(line(format!("{ranks} ranks, {} rows each", count(rows)), together, more));
    console.line(table(&["us per step", "median", "minimum", "maximum", "exposed", "efficiency"], &lines))?;
    let collectives = outcome.collectives_per_step;
    console.line(format!(
        "{repeats} repeats of {steps} steps, of the slowest rank; {collectives:.1} collectives per step"
    ))?;
    outcome.replayed.show(console)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_is_the_one_with_the_largest_median() {
        let all = [[1.0, 9.0, 2.0], [3.0, 4.0, 2.5]].map(|times| summary(&times));
        assert_eq!(all, [[2.0, 1.0, 9.0], [3.0, 2.5, 4.0]]);
        assert_eq!(all.into_iter().fold([0.0; 3], slower), [3.0, 2.5, 4.0]);
        assert_eq!((summary(&[7.0]), summary(&[])), ([7.0; 3], [0.0; 3]));
    }
}
