//! `refrain bench patchtst`.

use serde_json::json;

use super::bench_epochs::{self, Place, Sizes};
use crate::bench::{WalkBench, WalkOptions};
use crate::cli::BenchPatchtst;
use crate::console::count;
use crate::error::{Error, Result};

pub fn run(args: BenchPatchtst) -> Result<()> {
    let BenchPatchtst { samples, channels, epochs, batch_size, lr, precision, eager, strong, seed, .. } =
        args;
    if !(lr > 0.0 && lr.is_finite()) {
        return Err(Error::usage(
            format!("the learning rate is {lr}"),
            "choose a positive number such as 1e-3",
        ));
    }
    let place = Place { ranks: &args.ranks, device: args.device, precision, json: args.json, strong };
    let sizes = Sizes { samples, batch_size, epochs };
    let precision = precision.name();
    let settings = json!({
        "bench": "patchtst", "sizes": sizes, "channels": channels, "lr": lr, "precision": precision, "eager": eager,
        "strong": strong, "seed": seed,
    });
    let (console, outcome) =
        bench_epochs::run(&place, sizes, settings, |Sizes { samples, batch_size, epochs }, device| {
            let options = WalkOptions { samples, channels, epochs, batch_size, lr, seed };
            let bench = WalkBench::new(options, device)?;
            let bench = if eager { bench.eager() } else { bench };
            let line = format!(
                "{} samples of {channels} channels, {} parameters, {precision}, {} with {} threads",
                count(samples),
                count(bench.parameter_count()),
                device.name(),
                rayon::current_num_threads(),
            );
            Ok((bench, line))
        })?;
    console.result(&outcome)
}

#[cfg(test)]
mod tests {
    use refrain::{Device, Precision, with_precision};

    use crate::bench::walks::{INCREMENT, LENGTH, random_walks};
    use crate::bench::{WalkBench, WalkOptions};

    #[test]
    fn a_model_learns_in_bf16_as_in_f32() {
        let options = WalkOptions { samples: 256, channels: 2, epochs: 3, batch_size: 32, lr: 1e-3, seed: 1 };
        let losses = |precision| {
            with_precision(precision, || {
                let mut bench = WalkBench::new(options.clone(), &Device::cpu()).unwrap();
                [(); 3].map(|()| bench.epoch().unwrap().loss)
            })
        };
        let (whole, half) = (losses(Precision::F32), losses(Precision::Bf16));
        assert!([whole, half].iter().all(|losses| losses[2] < losses[0] / 10.0), "{whole:?} and {half:?}");
        // Nearly the same, but not the same numbers.
        let apart = (whole[0] - half[0]).abs() / whole[0];
        assert!(apart > 0.0 && apart < 0.02, "{whole:?} and {half:?}");
    }

    #[test]
    fn walks_start_in_the_unit_interval_and_labels_are_their_means() {
        let (walks, labels) = random_walks(200, 5, 3, &Device::cpu()).unwrap();
        assert_eq!((walks.dims(), labels.dims()), (&[200, 5, LENGTH][..], &[200][..]));
        let (walks, labels) = (walks.to_vec::<f32>().unwrap(), labels.to_vec::<f32>().unwrap());
        let mut squares = 0.0;
        for (sample, label) in walks.chunks_exact(5 * LENGTH).zip(labels) {
            let mean = sample.iter().sum::<f32>() / sample.len() as f32;
            assert!((mean - label).abs() < 1e-5);
            for walk in sample.chunks_exact(LENGTH) {
                assert!((0.0..1.0).contains(&walk[0]));
                squares += walk.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum::<f32>();
            }
        }
        let variance = squares / (200 * 5 * (LENGTH - 1)) as f32;
        assert!((variance.sqrt() - INCREMENT).abs() < 2e-3, "increments of deviation {}", variance.sqrt());
    }
}
