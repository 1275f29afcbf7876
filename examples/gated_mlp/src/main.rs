//! Trains the network and shows what a step launches: `cargo run --release -p gated-mlp [device]`, where the device is `cpu`,
//! `cuda` or `sim`.

use gated_mlp::Training;
use refrain::Device;

fn main() -> refrain_nn::Result<()> {
    let device: Device = std::env::args().nth(1).map_or_else(|| Ok(Device::best()), |name| name.parse())?;
    let training = Training::new(256, 3, &device)?;
    println!("{}", training.network);
    let losses = training.run_recorded(1000, |program| println!("{program}"))?;
    for (step, loss) in losses.iter().enumerate().step_by(100) {
        println!("step {step:4}  loss {loss:.4}");
    }
    Ok(())
}
