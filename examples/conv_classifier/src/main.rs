//! Trains the network and says how often it is right: `cargo run --release -p conv-classifier [device]`, where the device is
//! `cpu`, `cuda` or `sim`.

use conv_classifier::Training;
use refrain::Device;

fn main() -> refrain_nn::Result<()> {
    let device: Device = std::env::args().nth(1).map_or_else(|| Ok(Device::best()), |name| name.parse())?;
    let training = Training::new(64, &device)?;
    println!("{}", training.network);
    for (step, loss) in training.run(200, true)?.iter().enumerate().step_by(20) {
        println!("step {step:4}  loss {loss:.4}");
    }
    println!("right: {:.1} %", 100.0 * training.accuracy()?);
    Ok(())
}
