//! The time of a training step of whole models, each written the way a user writes it: a line per model and precision, in
//! microseconds.
//!
//! `cargo run --release -p refrain-nn --example models -- cuda f32 bf16 gpt`; `bench/models.py` has the same models in PyTorch and
//! sets them side by side. Arguments after the device are precisions, and beginnings of the names of models.

mod forecasters;
mod frequencies;
mod images;
mod informer;
mod others;
mod series;
mod sounds;
mod text;
mod vision;

use std::time::Instant;

use refrain::optim::{AdamWOptions, Schedule};
use refrain::{DType, Device, Generator, Precision, Step, Tensor, with_precision};
use refrain_nn::{AdamW, Mode, Optimizer, ParameterBuilder, Result};

use text::Gpt;

/// Asks for the time of the launches of each step, on standard error.
const PROFILE: &str = "--profile";
/// Asks for the launches of each step, and what they wait for, in place of its time.
const PROGRAM: &str = "--program";
const REPEATS: usize = 5;
/// A repeat takes at least as many seconds.
const SHORTEST: f64 = 0.1;

/// What computes the loss of a batch that it holds.
type Loss = Box<dyn Fn(Mode<'_>) -> Result<Tensor>>;

/// Declares the parameters of a model, and draws its batch.
type Model = fn(&ParameterBuilder, &Generator) -> Result<Loss>;

const MODELS: &[(&str, Model)] = &[
    ("gpt of characters", |b, g| {
        text::gpt(b, g, Gpt { vocabulary: 65, context: 256, width: 384, layers: 6, batch: 64 })
    }),
    ("gpt of words", |b, g| {
        text::gpt(b, g, Gpt { vocabulary: 50257, context: 256, width: 512, layers: 4, batch: 16 })
    }),
    ("llama", text::llama),
    ("translation", text::translation),
    ("masked words", text::masked_words),
    ("experts", text::experts),
    ("vision transformer", images::vision_transformer),
    ("resnet-18", images::resnet),
    ("autoencoder", images::autoencoder),
    ("u-net", images::unet),
    ("convnext", images::convnext),
    ("mobilenet", images::mobilenet),
    ("vq-vae", vision::vq_vae),
    ("masked autoencoder", vision::masked_autoencoder),
    ("swin", vision::swin),
    ("diffusion transformer", vision::diffusion_transformer),
    ("conformer", sounds::conformer),
    ("temporal convolutions", series::temporal_convolutions),
    ("wavenet", series::wavenet),
    ("lstm", series::lstm),
    ("gru", series::gru),
    ("n-beats", series::n_beats),
    ("deepar", series::deep_ar),
    ("frets", frequencies::frets),
    ("n-hits", series::n_hits),
    ("mamba", series::mamba),
    ("autoformer", frequencies::autoformer),
    ("temporal fusion", forecasters::temporal_fusion),
    ("informer", informer::informer),
    ("timemixer", forecasters::timemixer),
    ("attention decoder", forecasters::attention_decoder),
    ("mlp", others::mlp),
    ("two towers", others::two_towers),
    ("contrastive", others::contrastive),
    ("graph", others::graph),
    ("attention of a graph", others::graph_attention),
    ("clicks", others::clicks),
    ("flow", others::flow),
    ("policy", others::policy),
    ("points", others::points),
];

fn ids(g: &Generator, below: usize, shape: &[usize]) -> Result<Tensor> {
    Ok(g.randint(0, below as i64, shape)?)
}

const PRECISIONS: [(&str, Precision); 3] =
    [("f32", Precision::F32), ("tf32", Precision::Tf32), ("bf16", Precision::Bf16)];

/// Prints the median time of a recorded training step: forward and backward pass, clipping of the gradients' norm at 1, AdamW.
fn time(name: &str, precision: &str, device: &Device, model: Model) -> Result<()> {
    let builder = ParameterBuilder::new(device, DType::F32);
    let loss = model(&builder, &Generator::new(device, 1)?)?;
    let parameters = builder.build(&Generator::new(device, 2)?)?;
    let options = AdamWOptions { weight_decay: 0.01, ..AdamWOptions::default() };
    let optimizer = AdamW::new(&parameters, options, Schedule::Constant { lr: 1e-3 })?.clip_grad_norm(1.0)?;
    let generator = Generator::new(device, 3)?;
    let mut step = Step::new(device, |_| {
        let loss = loss(Mode::Train(&generator))?;
        loss.backward()?;
        optimizer.step()?;
        Ok(vec![loss.detach()])
    });
    let mut run = |calls: usize| -> Result<f64> {
        device.synchronize()?;
        let begun = Instant::now();
        step.repeat(&[], calls)?;
        device.synchronize()?;
        Ok(begun.elapsed().as_secs_f64())
    };
    run(3)?;
    if is_asked(PROGRAM) {
        step.program().iter().for_each(|program| println!("{name}, {precision}: {program}"));
        return Ok(step.finish()?);
    }
    let calls = (SHORTEST / (run(4)? / 4.0)).ceil().clamp(1.0, 1000.0) as usize;
    let mut times = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        times.push(run(calls)? / calls as f64 * 1e6);
    }
    times.sort_by(f64::total_cmp);
    println!("{name}\t{precision}\t{:.3}", times[REPEATS / 2]);
    if is_asked(PROFILE) {
        eprintln!("{name}, {precision}:\n{}", step.profile(&[], 10)?);
    }
    Ok(step.finish()?)
}

fn is_asked(flag: &str) -> bool {
    std::env::args().any(|a| a == flag)
}

/// Whether one of those arguments that `of` selects is that of `is`, or there is none.
fn is_wanted(of: impl Fn(&str) -> bool, is: impl Fn(&str) -> bool) -> bool {
    let mut named = std::env::args().skip(2).filter(|a| a != PROFILE && a != PROGRAM && of(a)).peekable();
    named.peek().is_none() || named.any(|a| is(&a))
}

fn is_precision(argument: &str) -> bool {
    PRECISIONS.iter().any(|(name, _)| *name == argument)
}

fn main() -> Result<()> {
    let device: Device = std::env::args().nth(1).unwrap_or("cpu".to_string()).parse()?;
    for (name, model) in MODELS {
        for (precision, of) in PRECISIONS {
            let wanted = is_wanted(is_precision, |a| a == precision)
                && is_wanted(|a| !is_precision(a), |a| name.starts_with(a));
            if wanted && let Err(error) = with_precision(of, || time(name, precision, &device, *model)) {
                eprintln!("{name}, {precision}: {error}");
            }
        }
    }
    Ok(())
}
