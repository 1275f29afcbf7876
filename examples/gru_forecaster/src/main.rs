//! Trains the forecaster and says how far off it is: `cargo run --release -p gru-forecaster [device]`, where the device is
//! `cpu`, `cuda` or `sim`.

use gru_forecaster::Training;
use refrain::Device;

fn main() -> refrain_nn::Result<()> {
    let device: Device = std::env::args().nth(1).map_or_else(|| Ok(Device::best()), |name| name.parse())?;
    let training = Training::new(32, 64, &device)?;
    println!("{}", training.forecaster);
    for (step, loss) in training.run(300, true)?.iter().enumerate().step_by(30) {
        println!("step {step:4}  loss {loss:.4}");
    }
    let (error, naive) = training.test()?;
    println!("mean squared error {error:.4}; {naive:.4} if the last value is repeated");
    Ok(())
}
