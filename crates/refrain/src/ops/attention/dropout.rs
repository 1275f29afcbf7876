//! Dropout of softmax weights: which of them are kept.

use crate::device::HostArgs;
use crate::device::cpu::parallel;
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::ops::dropout::threshold;
use crate::ops::random::DrawPlace;
use crate::ops::random::host::position;
use crate::ops::random::philox::{self, WORDS};
use crate::ops::{Op, Spec, Specs};
use crate::tensor::{DType, Tensor};

/// Keys of a word of [`KeptWeights`].
pub(super) const KEYS_OF_WORD: usize = 64;

static DRAW: Source = Source { name: "attention", parts: &[include_str!("draw.cu")] };

/// Random words that the CPU draws at a time.
const TILE: usize = 1024;
/// Threads of a block of the kernel, and its blocks for each multiprocessor at most.
const THREADS: usize = 256;
const BLOCKS: usize = 32;

params! {
    /// The random words begin at the block that the generator's state and the offset say, without the first ones, which belong to
    /// no weight.
    struct DrawJob {
        state: Pointer = "const i64*",
        offset: u64,
        skip: i64,
        threshold: i64,
        kept: Pointer = "u64*",
        rows: i64,
        keys: i64,
        words: i64,
    }
}

/// Which softmax weights `[batch, heads, queries, keys]` dropout keeps: the mask of `dropout` on them. Operand: the state of the
/// generator. Result: for each row of weights a bit for each key, the lowest bit of a word first. It needs nothing but the generator, so
/// in a recorded step it runs beside what comes before the attention.
#[derive(Clone, Debug)]
pub(super) struct KeptWeights {
    pub(super) p: f64,
    pub(super) place: DrawPlace,
    pub(super) shape: [usize; 4],
}

impl KeptWeights {
    /// The rows of weights, and the words of each.
    fn size(&self) -> [usize; 2] {
        let [batch, heads, queries, keys] = self.shape;
        [batch * heads * queries, keys.div_ceil(KEYS_OF_WORD)]
    }
}

impl Op for KeptWeights {
    const NAME: &'static str = "attention_dropout";

    fn infer(&self, _: &[&Tensor]) -> Result<Specs> {
        let [batch, heads, queries, keys] = self.shape;
        Ok(Spec::new([batch, heads, queries, keys.div_ceil(KEYS_OF_WORD)], DType::I64).one())
    }

    fn words_before(&self) -> u64 {
        self.place.words_before()
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let (seed, first) = position(args, 0, self.place.block())?;
        let words = WeightWords { seed, first, skip: self.place.skip() };
        words.draw(threshold(self.p), self.shape[3], args.write::<i64>(0)?);
        Ok(())
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let [rows, words] = self.size();
        let count = rows * words;
        if count == 0 {
            return Ok(());
        }
        let job = DrawJob {
            state: args.read(0),
            offset: self.place.block(),
            skip: self.place.skip() as i64,
            threshold: threshold(self.p) as i64,
            kept: args.write(0),
            rows: rows as i64,
            keys: self.shape[3] as i64,
            words: words as i64,
        };
        let index = if count < 1 << 31 { "u32" } else { "u64" };
        let blocks = count.div_ceil(THREADS).min(args.multiprocessors() * BLOCKS);
        let spec = KernelSpec::new(&DRAW, "attention_draw").word("INDEX", index);
        args.kernel(spec, Grid::line(blocks, THREADS as u32), &job)
    }
}

/// The random words of the weights `[batch, heads, queries, keys]`, one after the other.
pub(super) struct WeightWords {
    pub(super) seed: u64,
    /// The first block of random words.
    pub(super) first: u64,
    /// The words of this block that belong to no weight.
    pub(super) skip: usize,
}

impl WeightWords {
    /// Draws which weights are kept: those whose word is at least `threshold`.
    pub(super) fn draw(&self, threshold: u64, keys: usize, kept: &mut [i64]) {
        let words = keys.div_ceil(KEYS_OF_WORD);
        if words == 0 {
            return;
        }
        let rows = (TILE / keys).max(1);
        parallel::pieces(kept, rows * words, |i, kept| {
            kept.fill(0);
            let (mut row, mut key) = (0, 0);
            self.for_each(i * rows * keys, kept.len() / words * keys, |word| {
                let is_kept = u64::from(word) >= threshold;
                kept[row * words + key / KEYS_OF_WORD] |= i64::from(is_kept) << (key % KEYS_OF_WORD);
                key += 1;
                if key == keys {
                    (row, key) = (row + 1, 0);
                }
            });
        });
    }

    /// Calls `f` with the word of each weight from `start` on.
    fn for_each(&self, start: usize, count: usize, mut f: impl FnMut(u32)) {
        let start = self.skip + start;
        let (mut tile, mut skip) = (self.first.wrapping_add((start / WORDS) as u64), start % WORDS);
        let mut words = [0u32; TILE];
        let mut left = count;
        while left > 0 {
            let count = left.min(TILE - skip);
            let words = &mut words[..skip + count];
            philox::fill(self.seed, tile, words);
            words[skip..].iter().for_each(|&word| f(word));
            (left, skip) = (left - count, 0);
            tile = tile.wrapping_add((TILE / WORDS) as u64);
        }
    }
}
