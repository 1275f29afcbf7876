//! Trains on a CSV file with the columns `unique_id`, `ds` and `y`, and forecasts the week after each of its first series:
//! `cargo run --release -p forecast [FILE|example] [device]`, where the device is `cpu`, `cuda` or `sim`.

use std::path::Path;

use forecast::{example_file, open, read, train};
use refrain::Device;
use refrain_forecast::Result;
use refrain_forecast::tasks::forecasting::Predictor;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let set = match arguments.next().as_deref() {
        None | Some("example") => read(example_file().as_bytes(), "example")?,
        Some(path) => open(Path::new(path))?,
    };
    let device: Device = arguments.next().map_or_else(|| Ok(Device::best()), |name| name.parse())?;
    println!("{} series, {} rows", set.series().len(), set.rows());

    let folder = std::env::temp_dir().join(format!("refrain-forecast-{}", std::process::id()));
    let errors = train(&set, &device, &folder)?;
    println!("last weeks: MSE {:.3}, of the week before {:.3}", errors.model.mse, errors.naive.mse);
    for interval in &errors.model.intervals {
        println!("{:.0} % of the true values lie in the {} % intervals", interval.coverage, interval.level);
    }

    // A server would load the folder once, and forecast from its threads.
    let predictor = Predictor::load(&folder, &device, 2)?;
    for series in set.series().iter().take(3) {
        let next = predictor.forecast_series(series.values())?;
        println!("{}: from {}", series.names()[0], series.time().format(series.rows()));
        for (day, value) in next.values.iter().enumerate() {
            let bounds = next.intervals.iter().map(|of| format!("{:.1} to {:.1}", of.low[day], of.high[day]));
            println!("  {value:8.1}  {}", bounds.collect::<Vec<_>>().join(", "));
        }
    }
    println!("the run folder is {}", folder.display());
    Ok(())
}
