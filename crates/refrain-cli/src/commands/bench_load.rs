//! `refrain bench load`.

use std::time::Instant;

use refrain::Generator;
use refrain_nn::{Init, LoadOptions, ParameterBuilder, Weights};
use serde::Serialize;

use super::bench_step::median;
use crate::cli::BenchLoad;
use crate::console::Console;
use crate::error::{Error, Result};

/// The figures, for `--json`.
#[derive(Serialize)]
struct Figures {
    device: String,
    tensors: usize,
    bytes: usize,
    /// Seconds of each load, in order.
    seconds: Vec<f64>,
    median_seconds: f64,
    bytes_per_second: f64,
}

pub fn run(args: BenchLoad) -> Result<()> {
    let console = Console::new(args.json);
    let device = args.device.open()?;
    let weights = Weights::open(&args.file)?;
    let names: Vec<&str> = weights.names().collect();
    let Some(first) = names.first() else {
        let what = format!("{} has no tensors", args.file.display());
        return Err(Error::usage(what, "pass a file with weights"));
    };
    // A model with the names and shapes of the file.
    let builder = ParameterBuilder::new(&device, weights.dtype(first)?);
    for name in &names {
        builder.parameter(name, weights.dims(name)?, Init::Constant(0.0))?;
    }
    let parameters = builder.build(&Generator::new(&device, 0)?)?;
    let bytes = parameters.count() * builder.dtype().size();
    console.line(format!(
        "{}: {} tensors of {}, {:.3} GB, to {}",
        args.file.display(),
        names.len(),
        builder.dtype(),
        bytes as f64 / 1e9,
        device.name()
    ))?;
    let options = LoadOptions { convert: true, ..LoadOptions::default() };
    let mut seconds = Vec::with_capacity(args.repeats);
    for repeat in 1..=args.repeats {
        device.synchronize()?;
        let begun = Instant::now();
        parameters.load_safetensors(&args.file, str::to_owned, options)?;
        device.synchronize()?;
        seconds.push(begun.elapsed().as_secs_f64());
        let rate = bytes as f64 / seconds[repeat - 1] / 1e9;
        console.line(format!(
            "load {repeat:>2}/{}  {:.3} s  {rate:.1} GB/s",
            args.repeats,
            seconds[repeat - 1]
        ))?;
    }
    let mut ascending = seconds.clone();
    ascending.sort_by(f64::total_cmp);
    let median_seconds = median(&ascending);
    let bytes_per_second = bytes as f64 / median_seconds;
    console.line(format!("median {median_seconds:.3} s, {:.1} GB/s", bytes_per_second / 1e9))?;
    let device = device.name();
    console.result(&Figures {
        device,
        tensors: names.len(),
        bytes,
        seconds,
        median_seconds,
        bytes_per_second,
    })
}
