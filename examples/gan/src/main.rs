//! Trains both players and prints some points: `cargo run --release -p gan [device]`, where the device is `cpu`, `cuda` or `sim`.

use gan::Training;
use refrain::Device;

fn main() -> refrain_nn::Result<()> {
    let device: Device = std::env::args().nth(1).map_or_else(|| Ok(Device::best()), |name| name.parse())?;
    let training = Training::new(128, &device)?;
    println!("{}\n{}", training.artist.model, training.critic.model);
    for (step, [critic, artist]) in training.run(2000, true)?.iter().enumerate().step_by(200) {
        println!("step {step:4}  critic {critic:.4}  artist {artist:.4}");
    }
    for [x, y] in training.draw(8)? {
        println!("{x:6.2} {y:6.2}");
    }
    Ok(())
}
