//! Fine-tunes the model: `cargo run --release -p fine-tune [device]`, where the device is `cpu`, `cuda` or `sim`.

use fine_tune::Training;
use refrain::Device;

fn main() -> refrain_nn::Result<()> {
    let device: Device = std::env::args().nth(1).map_or_else(|| Ok(Device::best()), |name| name.parse())?;
    let mut training = Training::new(true, &device)?;
    println!("{}", training.parameters);
    println!("new head           right: {:.1} %", 100.0 * training.accuracy()?);
    training.run(100, true)?;
    println!("after 100 steps    right: {:.1} %", 100.0 * training.accuracy()?);
    training.unfreeze()?;
    training.run(100, true)?;
    println!("all layers learn   right: {:.1} %", 100.0 * training.accuracy()?);
    Ok(())
}
