//! Random numbers from a generator whose position is on the device.

mod cuda;
pub(crate) mod host;
mod part;
pub(crate) mod philox;
mod recorded;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use part::BatchPart;
pub(crate) use part::DrawPlace;
pub(crate) use recorded::DrawnInStep;

use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::no_grad;
use crate::device::{CudaArgs, Device, HostArgs, recording};
use crate::error::{Error, Result};
use crate::sync::{Mutex, MutexGuard};
use crate::tensor::{DType, Dims, Shape, Tensor, check_devices};

/// A source of random numbers on a device: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
/// 3", 2011). The numbers depend only on a seed and a position.
///
/// The same seed gives the same numbers on every run, whatever the number of threads. A generator is a cheap handle:
/// clones share one position, also across threads. No two launches get the same part of the sequence; the order of
/// the calls decides which part a launch gets. A draw that fails, whatever the reason, does not advance the
/// generator.
///
/// The seed and the base of the position are in device memory that never moves. Each launch adds its own offset,
/// which is reserved when it is called.
///
/// ```
/// use refrain::{DType, Device, Generator};
/// let device = Device::cpu();
/// let generator = Generator::new(&device, 42)?;
/// let x = generator.normal([2, 3], DType::F32)?;
/// let (seed, offset) = generator.state()?;
/// let y = generator.normal([2, 3], DType::F32)?;
///
/// let resumed = Generator::from_state(&device, seed, offset)?;
/// assert_eq!(resumed.normal([2, 3], DType::F32)?.to_vec::<f32>()?, y.to_vec::<f32>()?);
/// # let _ = x;
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Clone)]
pub struct Generator {
    inner: Arc<Inner>,
    /// The part of a batch that this handle draws for, if it is one ([`Generator::for_batch_rows`]).
    part: Option<BatchPart>,
}

struct Inner {
    /// i64 `[seed, base]`: the bits of two u64.
    state: Tensor,
    /// The offset of the next launch from the base, in blocks of four words.
    offset: Mutex<u64>,
}

impl Generator {
    /// A generator at the start of the sequence of `seed`.
    ///
    /// # Errors
    /// If the device has not enough memory for the state (16 bytes).
    pub fn new(device: &Device, seed: u64) -> Result<Generator> {
        Generator::from_state(device, seed, 0)
    }

    /// A generator that continues bit for bit from what [`Generator::state`] returned.
    ///
    /// # Errors
    /// If the device has not enough memory for the state (16 bytes).
    pub fn from_state(device: &Device, seed: u64, offset: u64) -> Result<Generator> {
        let state = Tensor::from_slice(&[seed as i64, offset as i64], [2], device)?;
        let inner = Arc::new(Inner { state, offset: Mutex::new(0) });
        Ok(Generator { inner, part: None })
    }

    /// The seed and the position in its sequence, for a checkpoint. The position counts blocks of four 32-bit words.
    /// Each call that draws numbers advances it by whole blocks.
    pub fn state(&self) -> Result<(u64, u64)> {
        let offset = self.offset();
        let mut state = [0i64; 2];
        self.inner.state.read_into(&mut state)?;
        Ok((state[0] as u64, (state[1] as u64).wrapping_add(*offset)))
    }

    /// Moves this generator to a state that [`Generator::state`] returned, or with `offset` 0 to the start of the
    /// sequence of `seed`. The memory of the state does not move.
    pub fn set_state(&self, seed: u64, offset: u64) -> Result<()> {
        let mut next = self.offset();
        self.inner.state.write_from(&[seed as i64, offset as i64])?;
        *next = 0;
        Ok(())
    }

    /// Moves this generator to where `other` is: from there, both draw the same numbers. It happens on the device, so a
    /// recorded step may do it; then each replay does.
    ///
    /// ```
    /// use refrain::{DType, Device, Generator};
    /// let device = Device::cpu();
    /// let (generator, ahead) = (Generator::new(&device, 42)?, Generator::new(&device, 0)?);
    /// generator.uniform([10], DType::F32)?;
    /// ahead.copy_state_from(&generator)?;
    /// let numbers = ahead.normal([3], DType::F32)?.to_vec::<f32>()?;
    /// assert_eq!(generator.normal([3], DType::F32)?.to_vec::<f32>()?, numbers);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] if `other` is on another device.
    pub fn copy_state_from(&self, other: &Generator) -> Result<()> {
        check_devices("copy_state_from", &[&self.inner.state, &other.inner.state])?;
        if self.is_same(other) {
            return Ok(());
        }
        if recording::current().is_some() {
            recording::check_device("random", self.device())?;
            // Drawing nothing notes that replays begin with both offsets at 0.
            [self, other].iter().for_each(|generator| recorded::draw(generator, 0));
            let ahead = recorded::drawn(other).wrapping_sub(recorded::drawn(self));
            self.inner.state.copy_from(&other.inner.state)?;
            return self.advance(ahead);
        }
        // In one order in all threads, so that two of them never wait for each other.
        let (mut mine, theirs);
        if self.inner.state.storage_id() < other.inner.state.storage_id() {
            mine = self.offset();
            theirs = other.offset();
        } else {
            theirs = other.offset();
            mine = self.offset();
        }
        self.inner.state.copy_from(&other.inner.state)?;
        self.advance(*theirs)?;
        *mine = 0;
        Ok(())
    }

    /// A handle to this generator that draws for the rows `rows` of a batch of `of` rows, of which other ranks have the rest:
    /// it gives this part of the numbers that the whole batch would get. So the numbers of a sample, such as a mask of
    /// dropout, do not depend on how many ranks share the batch, and all ranks' generators advance alike, by the numbers of
    /// the whole batch.
    ///
    /// This holds for draws whose first axis is the batch, or the batch times other axes: of a size that is a multiple of the
    /// number of rows, such as `[batch, tokens, features]`, `[batch * channels, features]` or the weights of attention,
    /// `[batch, heads, queries, keys]`. A draw whose first axis has another size has nothing to do with the batch: all ranks
    /// draw the same numbers, those of one process. To draw numbers that have nothing to do with the batch whatever their
    /// size (dropout of weights, say), use [`Generator::whole`].
    ///
    /// ```
    /// use refrain::{DType, Device, Generator};
    /// let device = Device::cpu();
    /// let whole = Generator::new(&device, 42)?.uniform([6, 5], DType::F32)?;
    /// // The second of three ranks.
    /// let part = Generator::new(&device, 42)?.for_batch_rows(2..4, 6)?.uniform([2, 5], DType::F32)?;
    /// assert_eq!(part.to_vec::<f32>()?, whole.narrow(0, 2, 2)?.to_vec::<f32>()?);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are no rows, or if they are not within the batch.
    pub fn for_batch_rows(&self, rows: Range<usize>, of: usize) -> Result<Generator> {
        Ok(Generator { inner: self.inner.clone(), part: Some(BatchPart::new(rows, of)?) })
    }

    /// A handle to this generator that draws for no part of a batch: all ranks draw the same numbers. See
    /// [`Generator::for_batch_rows`].
    pub fn whole(&self) -> Generator {
        Generator { inner: self.inner.clone(), part: None }
    }

    /// The device of the generator.
    pub fn device(&self) -> &Device {
        self.inner.state.device()
    }

    /// Uniform numbers in `[0, 1)`: multiples of 2^-53 (f64), 2^-24 (f32), 2^-11 (f16) or 2^-8 (bf16), so 1 never
    /// occurs. For floats.
    ///
    /// # Errors
    /// `Error::Unsupported` for other dtypes.
    pub fn uniform(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        self.sample(Distribution::Uniform, Spec::new(shape, dtype), |op| apply(op, &[&self.inner.state]))
    }

    /// [`Generator::uniform`] into the memory of `dst`. The numbers are the same.
    pub fn uniform_into(&self, dst: &Tensor) -> Result<()> {
        self.sample(Distribution::Uniform, Spec::like(dst), |op| apply_into(op, &[&self.inner.state], dst))
    }

    /// Normally distributed numbers with mean 0 and variance 1 (Box and Muller, "A note on the generation of random
    /// normal deviates", 1958), computed in f64 and rounded. For floats.
    ///
    /// f64 numbers come from 53 random bits each and are within +-8.6. The other dtypes use 32 random bits and are
    /// within +-6.7.
    ///
    /// # Errors
    /// `Error::Unsupported` for other dtypes.
    pub fn normal(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        self.sample(Distribution::Normal, Spec::new(shape, dtype), |op| apply(op, &[&self.inner.state]))
    }

    /// [`Generator::normal`] into the memory of `dst`. The numbers are the same.
    pub fn normal_into(&self, dst: &Tensor) -> Result<()> {
        self.sample(Distribution::Normal, Spec::like(dst), |op| apply_into(op, &[&self.inner.state], dst))
    }

    /// Whole numbers from `low` up to `high`, which is excluded, each as likely as the others (within 1 part in 2^53 / `high -
    /// low`): i64. In a recorded step, each replay draws new ones.
    ///
    /// ```
    /// use refrain::{Device, Generator};
    /// let dice = Generator::new(&Device::cpu(), 7)?.randint(1, 7, [100])?.to_vec::<i64>()?;
    /// assert!((1..7).all(|side| dice.contains(&side)) && dice.iter().all(|side| (1..7).contains(side)));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If `low` is not below `high`, or one of both is beyond 2^53, where f64 no longer counts.
    pub fn randint(&self, low: i64, high: i64, shape: impl Into<Shape>) -> Result<Tensor> {
        const LIMIT: i64 = 1 << 53;
        let range = high.saturating_sub(low);
        if !(1..=LIMIT).contains(&range) || ![low, high].iter().all(|bound| (-LIMIT..=LIMIT).contains(bound))
        {
            let message = format!(
                "there is no range from {low} to {high}; `low` must be below `high`, and they must be at most 2^53 apart and from 0"
            );
            return Err(Error::invalid("randint", message));
        }
        let unit = self.uniform(shape, DType::F64)?;
        unit.mul_scalar(range as f64)?.floor()?.add_scalar(low as f64)?.to_dtype(DType::I64)
    }

    /// The numbers `0..count` in random order: i64 `[count]`. The order is that of as many keys of [`Generator::uniform`] in
    /// f64. In a recorded step, each replay draws a new order.
    ///
    /// # Errors
    /// If the device fails.
    pub fn permutation(&self, count: usize) -> Result<Tensor> {
        self.whole().uniform(count, DType::F64)?.argsort(0, false)
    }

    /// Ones and zeros in the shape and dtype of `p`; each element is 1 with the probability that `p` has in its place. Never
    /// where `p` is 0 or less or NaN, always where it is 1 or more. Probabilities have steps of 2^-24 (2^-53 in f64). For
    /// floats. In a recorded step, each replay draws new ones.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other dtypes, [`Error::DeviceMismatch`] if `p` is on another device.
    pub fn bernoulli(&self, p: &Tensor) -> Result<Tensor> {
        const OP: &str = "bernoulli";
        p.require_float(OP)?;
        check_devices(OP, &[&self.inner.state, p])?;
        no_grad(|| {
            let wide = if p.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            self.uniform(p.shape(), wide)?.lt(&p.to_dtype(wide)?)?.to_dtype(p.dtype())
        })
    }

    /// Positions along the last axis of `weights`, each drawn with a probability in proportion to its weight: i64 `[.., count]`
    /// for weights `[.., n]`. For floats; weights are not negative and need not sum to 1. Without `replacement` the
    /// positions of a row differ. A position of weight 0 is drawn only if no other is left.
    ///
    /// Each weight is divided by a random number of the exponential distribution, and the largest quotients win (Efraimidis
    /// and Spirakis, 2006), so that nothing is read back: a step can record it, and each replay draws new positions. It
    /// draws `n` random numbers for a row, with replacement `count * n`.
    ///
    /// ```
    /// use refrain::{Device, Generator, Tensor};
    /// let device = Device::cpu();
    /// let weights = Tensor::from_slice(&[0.0f32, 3.0, 1.0], [3], &device)?;
    /// let drawn = Generator::new(&device, 5)?.multinomial(&weights, 100, true)?.to_vec::<i64>()?;
    /// assert!(drawn.contains(&1) && drawn.contains(&2) && !drawn.contains(&0));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the weights are a scalar or there are no positions, or without `replacement` fewer than
    /// `count`; [`Error::Unsupported`] for other dtypes; [`Error::DeviceMismatch`].
    pub fn multinomial(&self, weights: &Tensor, count: usize, replacement: bool) -> Result<Tensor> {
        const OP: &str = "multinomial";
        /// Less than every random number but 0, whose quotient would not be a number.
        const LEAST: f64 = 1.0 / (1u128 << 64) as f64;
        weights.require_float(OP)?;
        check_devices(OP, &[&self.inner.state, weights])?;
        let n = weights.dims().last().copied().unwrap_or(0);
        if n == 0 || !replacement && count > n {
            let kind = if replacement { "with" } else { "without" };
            let message = format!(
                "{count} positions can't be drawn {kind} replacement from weights of shape {}",
                weights.shape()
            );
            return Err(Error::invalid(OP, message));
        }
        no_grad(|| {
            let weights = weights.to_dtype(DType::F64)?;
            let mut shape = Dims::from_slice(weights.dims());
            if replacement {
                shape.insert(shape.len() - 1, count);
            }
            // Weights of one row are those of the whole batch.
            let generator = if weights.rank() == 1 { self.whole() } else { self.clone() };
            let random =
                generator.uniform(&shape[..], DType::F64)?.neg()?.log1p()?.neg()?.maximum_scalar(LEAST)?;
            if replacement {
                return weights.unsqueeze(-2)?.div(&random)?.argmax(-1);
            }
            Ok(weights.div(&random)?.topk(count, -1, true)?.1)
        })
    }

    fn sample<T>(
        &self,
        distribution: Distribution,
        spec: Spec,
        launch: impl FnOnce(Sample) -> Result<T>,
    ) -> Result<T> {
        let op = Sample { distribution, spec, place: DrawPlace::default() };
        op.check(self.device())?;
        let each = host::words_each(op.spec.dtype);
        let shape = op.spec.shape.clone();
        self.draw(&shape, each, |place| launch(Sample { place, ..op }))
    }

    /// The tensor with the seed and the base, which launches read.
    pub(crate) fn state_tensor(&self) -> &Tensor {
        &self.inner.state
    }

    /// Whether both are handles to the same generator.
    pub(crate) fn is_same(&self, other: &Generator) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Calls `launch` with the place of its first word, for an operation that draws `each` words for each element of this
    /// shape. If it succeeds, the generator advances; if it fails, whatever the reason, it does not. No other draw can happen
    /// meanwhile.
    pub(crate) fn draw<T>(
        &self,
        dims: &[usize],
        each: usize,
        launch: impl FnOnce(DrawPlace) -> Result<T>,
    ) -> Result<T> {
        let words = dims.iter().fold(each as u64, |words, &size| words.saturating_mul(size as u64));
        let place = |offset| match &self.part {
            Some(part) => part.place(dims, words, offset),
            None => (DrawPlace::whole(offset), words),
        };
        let blocks = |words: u64| words.div_ceil(philox::WORDS as u64);
        if recording::current().is_some() {
            recording::check_device("random", self.device())?;
            let (place, words) = place(recorded::drawn(self));
            let done = launch(place)?;
            recorded::draw(self, blocks(words));
            return Ok(done);
        }
        let mut next = self.offset();
        let (place, words) = place(*next);
        let done = launch(place)?;
        *next = next.wrapping_add(blocks(words));
        Ok(done)
    }

    /// Advances the base by some blocks.
    pub(crate) fn advance(&self, blocks: u64) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        no_grad(|| self.inner.state.narrow(0, 1, 1)?.add_scalar_assign(blocks as i64 as f64))
    }

    /// Moves the base to the current position, because the replay of a step counts from the base. Nobody else can
    /// draw while the returned guard lives.
    pub(crate) fn settle(&self) -> Result<MutexGuard<'_, u64>> {
        let mut offset = self.offset();
        if *offset > 0 {
            self.advance(*offset)?;
            *offset = 0;
        }
        Ok(offset)
    }

    fn offset(&self) -> MutexGuard<'_, u64> {
        self.inner.offset.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Generator({})", self.device())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distribution {
    Uniform,
    Normal,
}

/// Numbers of a distribution, from the operand `[seed, base]`. Element `i` of the result (row-major) uses word `i`
/// (words `2 i` and `2 i + 1` in f64), counted from the place of the launch. Normal numbers come in pairs.
#[derive(Clone, Debug)]
struct Sample {
    distribution: Distribution,
    spec: Spec,
    place: DrawPlace,
}

impl Sample {
    /// Checks that such a tensor is possible.
    fn check(&self, device: &Device) -> Result<()> {
        let Spec { shape, dtype } = &self.spec;
        if !dtype.is_float() {
            let (op, dtype) = (self.name(), *dtype);
            return Err(Error::Unsupported { op, dtype, device: device.name() });
        }
        shape.checked_numel(self.name(), dtype.size()).map(drop)
    }
}

impl Op for Sample {
    const NAME: &'static str = "sample";

    fn name(&self) -> &'static str {
        match self.distribution {
            Distribution::Uniform => "uniform",
            Distribution::Normal => "normal",
        }
    }

    fn words_before(&self) -> u64 {
        self.place.words_before()
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        self.check(x[0].device())?;
        Ok(self.spec.clone().one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::sample(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::sample(self, args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::devices;

    #[test]
    fn a_moved_base_gives_what_later_launches_would_get() {
        for device in devices() {
            let (a, b) = (Generator::new(&device, 9).unwrap(), Generator::new(&device, 9).unwrap());
            let first = a.uniform(8, DType::F32).unwrap().to_vec::<f32>().unwrap();
            let second = a.uniform(8, DType::F32).unwrap().to_vec::<f32>().unwrap();
            assert_ne!(first, second);
            // As in a replay: the base on the device moves, the launch keeps its offset.
            let op = b.sample(Distribution::Uniform, Spec::new(8, DType::F32), Ok).unwrap();
            let run = || apply(op.clone(), &[b.state_tensor()]).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(run(), first);
            b.state_tensor().narrow(0, 1, 1).unwrap().add_scalar_assign(2.0).unwrap();
            assert_eq!(run(), second);
        }
    }

    /// Launches of a recorded step read it there.
    #[test]
    fn a_state_that_is_set_stays_in_its_memory() {
        for device in devices() {
            let g = Generator::new(&device, 9).unwrap();
            let storage = g.state_tensor().storage_id();
            g.set_state(3, 17).unwrap();
            assert_eq!(g.state_tensor().storage_id(), storage);
        }
    }
}
