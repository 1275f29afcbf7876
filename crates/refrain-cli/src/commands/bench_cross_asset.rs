//! `refrain bench cross-asset`.

use refrain_forecast::models::cross_asset::CrossAssetConfig;
use serde::Serialize;
use serde_json::json;

use super::bench_epochs::{self, Place, Sizes};
use crate::bench::{CrossBench, CrossBenchOptions};
use crate::cli::BenchCrossAsset;
use crate::console::count;
use crate::error::Result;

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome {
    #[serde(flatten)]
    epochs: bench_epochs::Outcome,
    accumulate: usize,
}

pub fn run(args: BenchCrossAsset) -> Result<()> {
    let BenchCrossAsset {
        samples, epochs, batch_size, accumulate, lr, precision, eager, strong, seed, ..
    } = args;
    let place = Place { ranks: &args.ranks, device: args.device, precision, json: args.json, strong };
    let sizes = Sizes { samples, batch_size, epochs };
    let precision = precision.name();
    let settings = json!({
        "bench": "cross-asset", "sizes": sizes, "accumulate": accumulate, "lr": lr, "precision": precision, "eager": eager,
        "strong": strong, "seed": seed,
    });
    let (console, outcome) = bench_epochs::run(
        &place,
        sizes,
        settings,
        |Sizes { samples, batch_size, epochs }, device| {
            let model = CrossAssetConfig::default();
            let (sources, features) = (model.sources, model.features);
            let options = CrossBenchOptions { model, samples, epochs, batch_size, accumulate, lr, seed };
            let bench = CrossBench::new(options, device)?;
            let bench = if eager { bench.eager() } else { bench };
            let line = format!(
                "{} samples of {sources} sources of {features} features, {} parameters, {precision}, {} with {} threads",
                count(samples),
                count(bench.parameter_count()),
                device.name(),
                rayon::current_num_threads(),
            );
            Ok((bench, line))
        },
    )?;
    console.result(&Outcome { epochs: outcome, accumulate })
}

#[cfg(test)]
mod tests {
    use refrain::Device;
    use refrain_forecast::models::cross_asset::CrossAssetConfig;

    use crate::bench::{CrossBench, CrossBenchOptions};

    #[test]
    fn the_loss_falls_below_that_of_a_guess() {
        let model = CrossAssetConfig { sources: 3, features: 4, d_model: 16, ffn: 32, ..Default::default() };
        let options = CrossBenchOptions {
            model,
            samples: 512,
            epochs: 5,
            batch_size: 32,
            accumulate: 1,
            lr: 3e-3,
            seed: 1,
        };
        let losses = |options: &CrossBenchOptions| {
            let mut bench = CrossBench::new(options.clone(), &Device::cpu()).unwrap();
            [(); 5].map(|()| bench.epoch().unwrap().loss)
        };
        let whole = losses(&options);
        assert!(whole[0] > 1.0 && whole[4] < 0.7, "{whole:?}");
        let parts = losses(&CrossBenchOptions { accumulate: 4, ..options });
        assert!(whole.iter().zip(parts).all(|(a, b)| (a - b).abs() < 1e-3), "{whole:?} and {parts:?}");
    }
}
