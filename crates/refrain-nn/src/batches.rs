//! Shuffled batches whose order and cursor are on the device.

use refrain::{DType, Device, Generator, Tensor};

use crate::error::{Error, Result};

/// The samples of an epoch in shuffled order, a batch at a time. The order and a cursor are on the device, so a recorded
/// [`Step`](refrain::Step) takes the next batch in each replay, without input from the host.
///
/// The order of an epoch depends on the seed and on the number of the epoch alone. So a run that was stopped continues
/// exactly if you save these two and the number of the step ([`Batches::begin`]).
///
/// ```
/// use refrain::{Device, DType, Step, Tensor};
/// use refrain_nn::Batches;
///
/// let device = Device::cpu();
/// let data = Tensor::arange(0.0, 10.0, 1.0, DType::F32, &device)?; // 10 samples
/// let batches = Batches::new(0..10, 4, 42, &device)?;
/// let mut step = Step::new(&device, |positions| {
///     let samples = batches.next(&positions[0])?; // i64, at most [4]
///     Ok(vec![data.index_select(0, &samples)?])
/// });
/// for epoch in 0..3 {
///     batches.begin(epoch, 0)?;
///     let mut seen = Vec::new();
///     for at in 0..batches.steps() {
///         seen.extend(step.call(&[batches.positions(at).clone()])?.to_vec::<f32>(0)?);
///     }
///     seen.sort_by(f32::total_cmp);
///     assert_eq!(seen, data.to_vec::<f32>()?); // each sample once
/// }
/// step.finish()?;
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct Batches {
    /// The samples as they were given, i64 `[count]`.
    samples: Tensor,
    seed: u64,
    batch: usize,
    /// The samples in the order of the epoch, i64 `[count]`.
    order: Tensor,
    /// How many of them were taken, i64 `[1]`.
    cursor: Tensor,
    /// 0, 1, .. for a full batch, and for the smaller last batch.
    positions: [Tensor; 2],
}

impl Batches {
    /// Epochs over the samples of these numbers, in batches of `batch`. If `batch` does not divide their count, the last
    /// batch of an epoch is smaller. Call [`Batches::begin`] before the first batch.
    ///
    /// # Errors
    /// If `batch` is 0, or the device has not enough memory.
    pub fn new(
        samples: impl IntoIterator<Item = i64>,
        batch: usize,
        seed: u64,
        device: &Device,
    ) -> Result<Batches> {
        if batch == 0 {
            return Err(Error::invalid("Batches", "the batch size is 0; use at least one sample per batch"));
        }
        let samples: Vec<i64> = samples.into_iter().collect();
        let count = samples.len();
        let positions = |n: usize| Tensor::arange(0.0, n as f64, 1.0, DType::I64, device);
        Ok(Batches {
            seed,
            batch,
            order: Tensor::from_slice(&samples, count, device)?,
            samples: Tensor::from_slice(&samples, count, device)?,
            // At the end, so that a first batch without `begin` is an error and not one in the order of the samples.
            cursor: Tensor::full([1], count as f64, DType::I64, device)?,
            positions: [positions(batch.min(count))?, positions(count % batch)?],
        })
    }

    /// The number of steps of an epoch, one for each batch.
    pub fn steps(&self) -> usize {
        self.samples.numel().div_ceil(self.batch)
    }

    /// How many steps of an epoch have a full batch; these come first.
    pub fn full_steps(&self) -> usize {
        self.samples.numel() / self.batch
    }

    /// Starts an epoch (counted from 0) in its shuffled order, at a step: 0, or where the epoch was left.
    ///
    /// # Errors
    /// If the device fails.
    pub fn begin(&self, epoch: u64, step: usize) -> Result<()> {
        let count = self.samples.numel();
        // A number of 53 random bits takes half a block of the generator, so epochs do not share blocks.
        let offset = epoch.wrapping_mul(count as u64);
        let generator = Generator::from_state(self.order.device(), self.seed, offset)?;
        // The order stays on the device: nothing passes through the host, however many samples there are.
        self.samples.index_select_into(0, &generator.permutation(count)?, &self.order)?;
        self.start(step)
    }

    /// Starts an epoch in the order in which the samples were given, at a step.
    ///
    /// # Errors
    /// If the device fails.
    pub fn begin_in_order(&self, step: usize) -> Result<()> {
        self.order.copy_from(&self.samples)?;
        self.start(step)
    }

    fn start(&self, step: usize) -> Result<()> {
        Ok(self.cursor.fill(step.saturating_mul(self.batch).min(self.order.numel()) as f64)?)
    }

    /// The argument of [`Batches::next`] at a step, i64 `[B]`: the positions of its samples in the batch. Pass it to a
    /// recorded step as an input, because its shape tells the step the size of the batch.
    pub fn positions(&self, step: usize) -> &Tensor {
        &self.positions[usize::from(step >= self.full_steps())]
    }

    /// The numbers of the next samples, i64 `[B]`, as many as there are positions. Advances the cursor.
    ///
    /// # Errors
    /// If the epoch has fewer samples left, or was not begun: on the CPU here, or from the call of a recorded step; on a GPU a later call
    /// on the device returns it ([`Device::synchronize`]).
    pub fn next(&self, positions: &Tensor) -> Result<Tensor> {
        let numbers = self.peek(positions)?;
        self.skip(positions.numel())?;
        Ok(numbers)
    }

    /// The numbers of the samples at these positions, counted from the cursor (i64 `[N]`), which stays where it is.
    ///
    /// # Errors
    /// As [`Batches::next`].
    pub fn peek(&self, positions: &Tensor) -> Result<Tensor> {
        const ADVICE: &str =
            "pass `positions(step)` of this step, and call `begin` before the first batch of each epoch";
        Ok(self.order.index_select_for("Batches", ADVICE, 0, &positions.add(&self.cursor)?)?)
    }

    /// Advances the cursor by so many samples.
    ///
    /// # Errors
    /// If the device fails.
    pub fn skip(&self, samples: usize) -> Result<()> {
        Ok(self.cursor.add_scalar_assign(samples as f64)?)
    }
}
