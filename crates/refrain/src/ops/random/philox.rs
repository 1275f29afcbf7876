//! Philox 4x32-10: turns a counter into four random words, without any state (Salmon, Moraes, Dror and Shaw,
//! "Parallel random numbers: as easy as 1, 2, 3", 2011).

use crate::device::cpu::simd::simd;

/// The factors of the first and the third word in a round.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// The increment of the key per round: the golden ratio and sqrt(3) - 1.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
/// Counters that are processed in parallel, for SIMD registers.
const LANES: usize = 8;

/// Words per counter.
pub(crate) const WORDS: usize = 4;

/// A word is the lower half of a number, which is multiplied as a whole. The upper half is of no meaning.
#[inline(always)]
fn word(v: u64) -> u64 {
    v & 0xffff_ffff
}

/// The words of `L` counters: `counter[word][lane]`.
#[inline(always)]
fn philox<const L: usize>(mut counter: [[u64; L]; WORDS], key: [u32; 2]) -> [[u64; L]; WORDS] {
    let mut k = key;
    for _ in 0..ROUNDS {
        let [c0, c1, c2, c3] = &mut counter;
        for i in 0..L {
            let a = word(c0[i]) * u64::from(MULTIPLIERS[0]);
            let b = word(c2[i]) * u64::from(MULTIPLIERS[1]);
            c0[i] = b >> 32 ^ c1[i] ^ u64::from(k[0]);
            c1[i] = b;
            c2[i] = a >> 32 ^ c3[i] ^ u64::from(k[1]);
            c3[i] = a;
        }
        k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// Two words as they follow each other in memory.
#[inline(always)]
fn pair(first: u64, second: u64) -> u64 {
    if cfg!(target_endian = "little") { word(first) | second << 32 } else { first << 32 | word(second) }
}

/// Fills `out` with the words of the blocks from `block` on, four words per block. The number of the block is the
/// lower half of the counter; the seed is the key.
pub(crate) fn fill(seed: u64, block: u64, out: &mut [u32]) {
    let key = [seed as u32, (seed >> 32) as u32];
    simd(
        #[inline(always)]
        || {
            for (chunk, out) in out.chunks_mut(LANES * WORDS).enumerate() {
                let first = block.wrapping_add((chunk * LANES) as u64);
                let (mut low, mut high) = ([0; LANES], [0; LANES]);
                for i in 0..LANES {
                    let n = first.wrapping_add(i as u64);
                    (low[i], high[i]) = (n, n >> 32);
                }
                let words = philox([low, high, [0; LANES], [0; LANES]], key);
                let mut pairs = [[0; 2]; LANES];
                for i in 0..LANES {
                    pairs[i] = [pair(words[0][i], words[1][i]), pair(words[2][i], words[3][i])];
                }
                let words: [u32; LANES * WORDS] = bytemuck::cast(pairs);
                match out.as_chunks_mut().0 {
                    [out] => *out = words,
                    _ => out.copy_from_slice(&words[..out.len()]),
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_answers_come_out() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, words) in cases {
            assert_eq!(philox(counter.map(|c: u32| [u64::from(c)]), key).map(|[w]| w as u32), words);
        }
    }

    #[test]
    fn words_lie_in_the_order_of_the_blocks_wherever_one_begins() {
        let (seed, block) = (0x0123_4567_89ab_cdef_u64, (1 << 32) - 20);
        let mut words = [0; 4 * 45 + 3];
        fill(seed, block, &mut words);
        for (i, words) in words.chunks(4).enumerate() {
            let n = block + i as u64;
            let expected = philox([[n], [n >> 32], [0], [0]], [seed as u32, (seed >> 32) as u32]);
            let expected = expected.map(|[w]| w as u32);
            assert_eq!(words, &expected[..words.len()], "block {i}");
        }
    }
}
