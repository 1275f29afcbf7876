//! Trains the model and lets it finish some sentences: `cargo run --release -p char-gpt [device]`, where the device is `cpu`,
//! `cuda` or `sim`.

use char_gpt::{Config, Training, Vocabulary, text};
use refrain::Device;

fn main() -> refrain_nn::Result<()> {
    let device: Device = std::env::args().nth(1).map_or_else(|| Ok(Device::best()), |name| name.parse())?;
    let text = text();
    let vocabulary = Vocabulary::of(&text);
    let config =
        Config { vocabulary: vocabulary.size(), context: 32, d_model: 64, heads: 4, layers: 2, dropout: 0.0 };
    let steps = 600;
    let training = Training::new(&vocabulary.encode(&text), config, 32, steps, &device)?;
    println!("{}", training.model);
    let losses = training.run(steps as usize, true)?;
    for (step, loss) in losses.iter().enumerate().step_by(100) {
        println!("step {step:4}  loss {loss:.4}");
    }
    for prompt in ["two and three are", "four and zero are", "one and"] {
        print!("{prompt}{}", training.model.complete(&vocabulary, prompt, &device)?);
    }
    Ok(())
}
