//! The key-value cache of an attention layer.

use refrain::Tensor;

use crate::error::{Error, Result};

const LAYER: &str = "KeyValueCache";

/// Keys and values of the tokens that an attention layer has seen, so that a model that writes a text computes each token once.
/// Every layer needs a cache of its own. Pass it as [`AttentionContext::cache`](super::AttentionContext::cache), inside
/// [`no_grad`](refrain::no_grad): the new tokens attend to those in the cache and are then in it, too. With a causal layer, a
/// token sees all tokens in the cache, itself, and the new ones before it.
///
/// The first use allocates memory for `capacity` tokens; later ones allocate nothing. How many tokens it has is known to the host,
/// so it can't be used in a recorded step.
///
/// ```
/// use refrain::{DType, Device, Generator, no_grad};
/// use refrain_nn::{
///     AttentionContext, AttentionOptions, KeyValueCache, Mode, MultiHeadAttention, ParameterBuilder,
/// };
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F64);
/// let options = AttentionOptions { causal: true, ..AttentionOptions::new(8, 2) };
/// let attention = MultiHeadAttention::new(&builder, &options)?;
/// let generator = Generator::new(&device, 0)?;
/// builder.build(&generator)?;
/// let x = generator.normal([1, 5, 8], DType::F64)?;
/// let whole = attention.forward(&x, Mode::Eval)?.i((.., 3..))?.to_vec::<f64>()?;
///
/// let mut cache = KeyValueCache::new(16);
/// let mut parts = Vec::new();
/// for part in [x.i((.., ..3))?, x.i((.., 3..))?] {
///     let context = AttentionContext { cache: Some(&mut cache), ..AttentionContext::default() };
///     parts.push(no_grad(|| attention.forward_with(&part, context, Mode::Eval))?);
/// }
/// assert_eq!(cache.len(), 5);
/// let last = parts[1].to_vec::<f64>()?;
/// assert!(whole.iter().zip(&last).all(|(a, b)| (a - b).abs() < 1e-12));
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct KeyValueCache {
    capacity: usize,
    length: usize,
    /// Keys and values, `[batch, capacity, heads, dim]`.
    memory: Option<[Tensor; 2]>,
}

impl KeyValueCache {
    /// An empty cache for `capacity` tokens of each sequence.
    pub fn new(capacity: usize) -> KeyValueCache {
        KeyValueCache { capacity, length: 0, memory: None }
    }

    /// How many tokens are in it.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many tokens fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets all tokens, for the next text. The memory is kept.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Leaves out the tokens from this one on.
    pub(super) fn forget_from(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Adds the keys and values of new tokens, `[batch, tokens, heads, dim]`. Returns those of all tokens.
    pub(super) fn append(&mut self, key: &Tensor, value: &Tensor) -> Result<[Tensor; 2]> {
        if key.requires_grad() || value.requires_grad() {
            let message = "it keeps no history for a backward pass; use it inside `no_grad`";
            return Err(Error::invalid(LAYER, message));
        }
        let &[batch, tokens, heads, dim] = key.dims() else {
            return Err(Error::invalid(LAYER, "keys must be [batch, tokens, heads, dim]"));
        };
        let room = self.capacity - self.length;
        if tokens > room {
            let message = format!(
                "{tokens} tokens do not fit behind the {} that it has; its capacity is {}",
                self.length, self.capacity
            );
            return Err(Error::invalid(LAYER, message));
        }
        let shape = [batch, self.capacity, heads, dim];
        let describe = |t: &Tensor, shape: &[usize]| format!("{} {shape:?} on {}", t.dtype(), t.device());
        let memory = match &self.memory {
            Some(memory) if describe(&memory[0], memory[0].dims()) == describe(key, &shape) => memory.clone(),
            Some(memory) if self.length > 0 => {
                let message = format!(
                    "its keys are {}, and the new ones {}; use one cache for each layer and text, or clear it",
                    describe(&memory[0], memory[0].dims()),
                    describe(key, key.dims())
                );
                return Err(Error::invalid(LAYER, message));
            }
            _ => {
                let zeros = || Tensor::zeros(shape, key.dtype(), key.device());
                [zeros()?, zeros()?]
            }
        };
        let end = self.length + tokens;
        for (memory, new) in memory.iter().zip([key, value]) {
            memory.narrow(1, self.length, tokens)?.copy_from(new)?;
        }
        let all = [memory[0].narrow(1, 0, end)?, memory[1].narrow(1, 0, end)?];
        self.memory = Some(memory);
        self.length = end;
        Ok(all)
    }
}
