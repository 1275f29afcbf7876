//! Trains the model and prints some new images: `cargo run --release -p vae [device]`, where the device is `cpu`, `cuda` or `sim`.

use refrain::Device;
use vae::{PIXELS, SIZE, Training};

fn main() -> refrain_nn::Result<()> {
    let device: Device = std::env::args().nth(1).map_or_else(|| Ok(Device::best()), |name| name.parse())?;
    let training = Training::new(64, &device)?;
    println!("{}", training.model);
    for (step, loss) in training.run(1000, true)?.iter().enumerate().step_by(100) {
        println!("step {step:4}  loss {loss:.4}");
    }
    for image in training.model.draw(4, &training.generator)?.to_vec::<f32>()?.chunks(PIXELS) {
        for row in image.chunks(SIZE) {
            println!("{}", row.iter().map(|&p| if p > 0.5 { "# " } else { ". " }).collect::<String>());
        }
        println!();
    }
    Ok(())
}
