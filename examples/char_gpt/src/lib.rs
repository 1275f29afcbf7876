//! A small GPT over characters, written against the public interface alone. It learns sentences such as `two and three are
//! five.` and then continues them.

use refrain::optim::{AdamWOptions, Schedule};
use refrain::{Activation, DType, Device, Generator, Precision, Step, Tensor, no_grad, with_precision};
use refrain_nn::{
    AdamW, AttentionContext, AttentionOptions, Embedding, EncoderDropout, Init, KeyValueCache, LayerNorm,
    Layers, Linear, Mode, NormKind, Optimizer, ParameterBuilder, Parameters, Result, TransformerEncoderLayer,
    TransformerEncoderOptions,
};

const NUMBERS: [&str; 9] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"];

/// All sums of two numbers up to four, a sentence each.
pub fn text() -> String {
    let sentence =
        |a: usize, b: usize| format!("{} and {} are {}.\n", NUMBERS[a], NUMBERS[b], NUMBERS[a + b]);
    (0..5).flat_map(|a| (0..5).map(move |b| sentence(a, b))).collect()
}

/// The characters of a text, each with a number.
pub struct Vocabulary(Vec<char>);

impl Vocabulary {
    /// The characters that occur in `text`.
    pub fn of(text: &str) -> Vocabulary {
        let mut characters: Vec<char> = text.chars().collect();
        characters.sort_unstable();
        characters.dedup();
        Vocabulary(characters)
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// The numbers of the characters of a text; characters that are unknown are left out.
    pub fn encode(&self, text: &str) -> Vec<i64> {
        text.chars().filter_map(|c| Some(self.0.binary_search(&c).ok()? as i64)).collect()
    }

    /// The text of some numbers.
    pub fn decode(&self, ids: &[i64]) -> String {
        ids.iter().filter_map(|&id| self.0.get(id as usize)).collect()
    }
}

/// The sizes of a [`Gpt`].
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of different characters.
    pub vocabulary: usize,
    /// How many characters it sees at most.
    pub context: usize,
    /// Features per character.
    pub d_model: usize,
    /// Heads of the attention.
    pub heads: usize,
    /// Layers.
    pub layers: usize,
    /// Probability of dropout.
    pub dropout: f64,
}

/// A decoder-only transformer (Radford et al., 2018; pre-norm).
#[derive(Layers)]
pub struct Gpt {
    #[layers(skip)]
    config: Config,
    characters: Embedding,
    places: Embedding,
    blocks: Vec<TransformerEncoderLayer>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    /// Declares the parameters.
    ///
    /// # Errors
    /// If the sizes do not fit together.
    pub fn new(builder: &ParameterBuilder, config: Config) -> Result<Gpt> {
        let Config { vocabulary, context, d_model, heads, layers, dropout } = config;
        let options = TransformerEncoderOptions {
            attention: AttentionOptions { causal: true, ..AttentionOptions::new(d_model, heads) },
            ffn: 4 * d_model,
            ffn_bias: true,
            channel_attention: false,
            norm_first: true,
            norm: NormKind::Layer,
            eps: 1e-5,
            activation: Activation::Gelu,
            dropout: EncoderDropout::all(dropout),
        };
        let small = Init::Normal { mean: 0.0, std: 0.02 };
        let blocks = builder.scope("blocks");
        Ok(Gpt {
            config,
            characters: Embedding::with_init(&builder.scope("characters"), vocabulary, d_model, small)?,
            places: Embedding::with_init(&builder.scope("places"), context, d_model, small)?,
            blocks: (0..layers)
                .map(|i| TransformerEncoderLayer::new(&blocks.scope(i), &options))
                .collect::<Result<_>>()?,
            norm: LayerNorm::new(&builder.scope("norm"), d_model, 1e-5)?,
            head: Linear::with_init(&builder.scope("head"), d_model, vocabulary, small, None)?,
        })
    }

    /// Characters `[batch, length]` to the logits of the character after each, `[batch, length, vocabulary]`.
    ///
    /// # Errors
    /// If the text is longer than the context.
    pub fn forward(&self, ids: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.forward_at(0, ids, |block, x| block.forward(x, mode))
    }

    /// An empty key-value cache for each layer.
    pub fn caches(&self) -> Vec<KeyValueCache> {
        self.blocks.iter().map(|_| KeyValueCache::new(self.config.context)).collect()
    }

    /// The same for characters that follow those in the caches, which then have them, too. Without history for a backward pass.
    ///
    /// # Errors
    /// If the text is longer than the context.
    pub fn forward_cached(&self, ids: &Tensor, caches: &mut [KeyValueCache]) -> Result<Tensor> {
        let start = caches.first().map_or(0, KeyValueCache::len);
        let mut caches = caches.iter_mut();
        no_grad(|| {
            self.forward_at(start, ids, |block, x| {
                let context = AttentionContext { cache: caches.next(), ..AttentionContext::default() };
                block.forward_with(x, context, Mode::Eval)
            })
        })
    }

    /// Characters whose first is at the place `start`, through all blocks by `run`.
    fn forward_at(
        &self,
        start: usize,
        ids: &Tensor,
        mut run: impl FnMut(&TransformerEncoderLayer, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let end = start + ids.size(1)?;
        let places = Tensor::arange(start as f64, end as f64, 1.0, DType::I64, ids.device())?;
        let mut x = (self.characters.forward(ids)? + self.places.forward(&places)?)?;
        for block in &self.blocks {
            x = run(block, &x)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }

    /// The text that follows `prompt`, each time the most likely character, up to the end of the line. Each character is computed
    /// once, as long as the text fits into the context. Behind that, the last characters are computed again for each new one,
    /// because their places change.
    ///
    /// # Errors
    /// If the prompt has no character of the vocabulary, or the device fails.
    pub fn complete(&self, vocabulary: &Vocabulary, prompt: &str, device: &Device) -> Result<String> {
        let mut ids = vocabulary.encode(prompt);
        if ids.is_empty() {
            return refuse("complete", "the prompt has no known character; begin with one of the text");
        }
        let (begin, context) = (ids.len(), self.config.context);
        let mut caches = self.caches();
        // How many characters the caches have.
        let mut done = 0;
        for _ in 0..2 * context {
            if ids.len() > context {
                caches.iter_mut().for_each(KeyValueCache::clear);
                done = ids.len() - context;
            }
            let new = &ids[done..];
            let input = Tensor::from_slice(new, [1, new.len()], device)?;
            let logits = self.forward_cached(&input, &mut caches)?;
            let next = logits.i((0, new.len() - 1))?.argmax(())?.to_scalar::<i64>()?;
            done = ids.len();
            ids.push(next);
            if vocabulary.decode(&[next]) == "\n" {
                break;
            }
        }
        Ok(vocabulary.decode(&ids[begin..]))
    }
}

fn refuse<T>(op: &'static str, message: &str) -> Result<T> {
    Err(refrain::Error::InvalidArgument { op, message: message.to_owned() }.into())
}

/// A [`Gpt`] in training on a text.
pub struct Training {
    /// The model.
    pub model: Gpt,
    /// Its parameters.
    pub parameters: Parameters,
    optimizer: AdamW,
    /// Draws batches and dropout.
    generator: Generator,
    text: Tensor, // i64 [characters]
    batch: usize,
}

impl Training {
    /// Begins.
    ///
    /// # Errors
    /// If the sizes do not fit together, the text is not longer than the context, or the device has not enough memory.
    pub fn new(text: &[i64], config: Config, batch: usize, steps: u64, device: &Device) -> Result<Training> {
        if text.len() <= config.context {
            return refuse(
                "train",
                "the text is not longer than the context; use more text or a smaller context",
            );
        }
        let builder = ParameterBuilder::new(device, DType::F32);
        let model = Gpt::new(&builder, config)?;
        let parameters = builder.build(&Generator::new(device, 1)?)?;
        let schedule = Schedule::WarmupCosine {
            lr: 5e-3,
            warmup_steps: steps / 10,
            total_steps: steps,
            start_factor: 0.1,
            eta_min: 1e-4,
        };
        let optimizer = AdamW::new(&parameters, AdamWOptions::default(), schedule)?.clip_grad_norm(1.0)?;
        Ok(Training {
            model,
            parameters,
            optimizer,
            generator: Generator::new(device, 2)?,
            text: Tensor::from_slice(text, text.len(), device)?,
            batch,
        })
    }

    /// One step, on text from random places: all of it on the device, so that it can be recorded. Returns the loss.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&self) -> Result<Tensor> {
        let context = self.model.config.context;
        let starts = self.generator.randint(0, (self.text.numel() - context) as i64, [self.batch, 1])?;
        let places = Tensor::arange(0.0, (context + 1) as f64, 1.0, DType::I64, self.text.device())?;
        let places = (starts + places)?.reshape(-1)?;
        let ids = self.text.index_select(0, &places)?.reshape((self.batch, -1))?; // [batch, context + 1]
        let logits = self.model.forward(&ids.i((.., ..context))?, Mode::Train(&self.generator))?;
        let loss = logits.cross_entropy(&ids.i((.., 1..))?)?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }

    /// Trains with a recorded step, or with eager code. Returns the losses.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self, steps: usize, recorded: bool) -> Result<Vec<f32>> {
        with_precision(Precision::F32, || {
            let mut step = Step::new(self.text.device(), |_| Ok(vec![self.step()?]));
            let mut losses = Vec::with_capacity(steps);
            for _ in 0..steps {
                losses.push(match recorded {
                    true => step.call(&[])?.to_scalar::<f32>(0)?,
                    false => self.step()?.to_scalar::<f32>()?,
                });
            }
            step.finish()?;
            Ok(losses)
        })
    }
}
