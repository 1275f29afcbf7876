//! Transposed copies on the CPU.

use bytemuck::Pod;

/// Rows and columns of a block that is transposed at a time: some cache lines.
const BLOCK: usize = 16;

/// Memory with the distance of its lines.
pub(crate) struct Lines<'a, U> {
    pub(crate) data: &'a [U],
    pub(crate) step: usize,
}

/// As [`Lines`], to write to.
pub(crate) struct LinesMut<'a, U> {
    pub(crate) data: &'a mut [U],
    pub(crate) step: usize,
}

/// Makes the lines of `from` the columns of `to`: `rows` rows of `columns` elements.
///
/// It goes by blocks, each read by lines and written by rows, so that a cache line is used as a whole, once.
pub(crate) fn transpose<U: Pod>(from: Lines<'_, U>, to: LinesMut<'_, U>, rows: usize, columns: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(v3) = crate::device::cpu::simd::avx2() {
        return shuffled::transpose(v3, from, to, rows, columns);
    }
    plain(&from, to, 0..rows, 0..columns);
}

/// By blocks in memory.
#[inline(always)]
fn plain<U: Pod>(
    from: &Lines<'_, U>,
    to: LinesMut<'_, U>,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) {
    let mut block = [[U::zeroed(); BLOCK]; BLOCK];
    for row in rows.clone().step_by(BLOCK) {
        let height = BLOCK.min(rows.end - row);
        for column in columns.clone().step_by(BLOCK) {
            let width = BLOCK.min(columns.end - column);
            for (j, block) in block[..width].iter_mut().enumerate() {
                let line = &from.data[row + (column + j) * from.step..][..height];
                block.iter_mut().zip(line).for_each(|(to, &from)| *to = from);
            }
            for i in 0..height {
                let to = &mut to.data[(row + i) * to.step + column..][..width];
                to.iter_mut().zip(&block).for_each(|(to, block)| *to = block[i]);
            }
        }
    }
}

/// By squares in registers.
#[cfg(target_arch = "x86_64")]
mod shuffled {
    use std::arch::x86_64::{__m128i, __m256i};

    use bytemuck::{Pod, cast, cast_slice, cast_slice_mut};
    use pulp::x86::V3;

    use super::{BLOCK, Lines, LinesMut, plain};

    pub(super) fn transpose<U: Pod>(
        v3: V3,
        from: Lines<'_, U>,
        to: LinesMut<'_, U>,
        rows: usize,
        columns: usize,
    ) {
        match size_of::<U>() {
            1 => sized::<U, u8, 16>(v3, from, to, [rows, columns]),
            2 => sized::<U, u16, 8>(v3, from, to, [rows, columns]),
            4 => sized::<U, u32, 8>(v3, from, to, [rows, columns]),
            8 => sized::<U, u64, 4>(v3, from, to, [rows, columns]),
            _ => v3.vectorize(
                #[inline(always)]
                || plain(&from, to, 0..rows, 0..columns),
            ),
        }
    }

    /// Numbers of which a square of `W` x `W` is transposed in registers.
    trait Square<const W: usize>: Pod {
        fn transposed(v3: V3, lines: [[Self; W]; W]) -> [[Self; W]; W];
    }

    /// The squares of numbers of the size of `U`.
    #[inline(always)]
    fn sized<U: Pod, N: Square<W>, const W: usize>(
        v3: V3,
        from: Lines<'_, U>,
        to: LinesMut<'_, U>,
        [rows, columns]: [usize; 2],
    ) {
        let from = Lines::<N> { data: cast_slice(from.data), step: from.step };
        let to = LinesMut::<N> { data: cast_slice_mut(to.data), step: to.step };
        // Whole squares, and what is left of them at both ends.
        let (height, width) = (rows / W * W, columns / W * W);
        v3.vectorize(
            #[inline(always)]
            || {
                for rows in (0..height).step_by(BLOCK).map(|row| row..(row + BLOCK).min(height)) {
                    for columns in (0..width).step_by(BLOCK).map(|column| column..(column + BLOCK).min(width))
                    {
                        for row in rows.clone().step_by(W) {
                            for column in columns.clone().step_by(W) {
                                let mut lines = [[N::zeroed(); W]; W];
                                for (j, line) in lines.iter_mut().enumerate() {
                                    line.copy_from_slice(&from.data[row + (column + j) * from.step..][..W]);
                                }
                                for (i, line) in N::transposed(v3, lines).iter().enumerate() {
                                    to.data[(row + i) * to.step + column..][..W].copy_from_slice(line);
                                }
                            }
                        }
                    }
                }
                let step = to.step;
                plain(&from, LinesMut { data: &mut *to.data, step }, 0..height, width..columns);
                plain(&from, LinesMut { data: &mut *to.data, step }, height..rows, 0..columns);
            },
        );
    }

    /// 16 x 16 bytes: each of four rounds interleaves the first half of the lines with the second.
    impl Square<16> for u8 {
        #[inline(always)]
        fn transposed(v3: V3, lines: [[u8; 16]; 16]) -> [[u8; 16]; 16] {
            let mut m: [__m128i; 16] = cast(lines);
            for _ in 0..4 {
                let from = m;
                for i in 0..8 {
                    m[2 * i] = v3.sse2._mm_unpacklo_epi8(from[i], from[i + 8]);
                    m[2 * i + 1] = v3.sse2._mm_unpackhi_epi8(from[i], from[i + 8]);
                }
            }
            cast(m)
        }
    }

    // Functions, not closures or arguments: what is not inlined has no such instructions.
    macro_rules! interleave {
        ($($name:ident: $t:ty, $set:ident, $low:ident, $high:ident $(<$a:literal, $b:literal>)?;)*) => {$(
            #[inline(always)]
            fn $name(v3: V3, a: $t, b: $t) -> ($t, $t) {
                (v3.$set.$low$(::<$a>)?(a, b), v3.$set.$high$(::<$b>)?(a, b))
            }
        )*};
    }
    interleave! {
        pairs_by_one: __m128i, sse2, _mm_unpacklo_epi16, _mm_unpackhi_epi16;
        pairs_by_two: __m128i, sse2, _mm_unpacklo_epi32, _mm_unpackhi_epi32;
        pairs_by_four: __m128i, sse2, _mm_unpacklo_epi64, _mm_unpackhi_epi64;
        words_by_one: __m256i, avx2, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32;
        words_by_two: __m256i, avx2, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64;
        words_by_four: __m256i, avx2, _mm256_permute2x128_si256, _mm256_permute2x128_si256<0x20, 0x31>;
    }

    /// 8 x 8 numbers of 16 bits: neighbours, pairs of them and halves of lines are interleaved.
    impl Square<8> for u16 {
        #[inline(always)]
        fn transposed(v3: V3, lines: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
            let m: [__m128i; 8] = cast(lines);
            let ((a0, a1), (a2, a3)) = (pairs_by_one(v3, m[0], m[1]), pairs_by_one(v3, m[2], m[3]));
            let ((a4, a5), (a6, a7)) = (pairs_by_one(v3, m[4], m[5]), pairs_by_one(v3, m[6], m[7]));
            let ((b0, b1), (b2, b3)) = (pairs_by_two(v3, a0, a2), pairs_by_two(v3, a1, a3));
            let ((b4, b5), (b6, b7)) = (pairs_by_two(v3, a4, a6), pairs_by_two(v3, a5, a7));
            let ((c0, c1), (c2, c3)) = (pairs_by_four(v3, b0, b4), pairs_by_four(v3, b1, b5));
            let ((c4, c5), (c6, c7)) = (pairs_by_four(v3, b2, b6), pairs_by_four(v3, b3, b7));
            cast([c0, c1, c2, c3, c4, c5, c6, c7])
        }
    }

    /// 8 x 8 numbers of 32 bits, likewise.
    impl Square<8> for u32 {
        #[inline(always)]
        fn transposed(v3: V3, lines: [[u32; 8]; 8]) -> [[u32; 8]; 8] {
            let m: [__m256i; 8] = cast(lines);
            let ((a0, a1), (a2, a3)) = (words_by_one(v3, m[0], m[1]), words_by_one(v3, m[2], m[3]));
            let ((a4, a5), (a6, a7)) = (words_by_one(v3, m[4], m[5]), words_by_one(v3, m[6], m[7]));
            let ((b0, b1), (b2, b3)) = (words_by_two(v3, a0, a2), words_by_two(v3, a1, a3));
            let ((b4, b5), (b6, b7)) = (words_by_two(v3, a4, a6), words_by_two(v3, a5, a7));
            let ((c0, c4), (c1, c5)) = (words_by_four(v3, b0, b4), words_by_four(v3, b1, b5));
            let ((c2, c6), (c3, c7)) = (words_by_four(v3, b2, b6), words_by_four(v3, b3, b7));
            cast([c0, c1, c2, c3, c4, c5, c6, c7])
        }
    }

    /// 4 x 4 numbers of 64 bits: neighbours and halves of lines are interleaved.
    impl Square<4> for u64 {
        #[inline(always)]
        fn transposed(v3: V3, lines: [[u64; 4]; 4]) -> [[u64; 4]; 4] {
            let m: [__m256i; 4] = cast(lines);
            let ((a0, a1), (a2, a3)) = (words_by_two(v3, m[0], m[1]), words_by_two(v3, m[2], m[3]));
            let ((b0, b2), (b1, b3)) = (words_by_four(v3, a0, a2), words_by_four(v3, a1, a3));
            cast([b0, b1, b2, b3])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<U: Pod + PartialEq + std::fmt::Debug>(number: impl Fn(usize) -> U) {
        for (rows, columns) in [(1, 1), (16, 16), (8, 24), (33, 17), (7, 40), (50, 3), (16, 131)] {
            let (from_step, to_step) = (rows + 3, columns + 5);
            let from: Vec<U> = (0..from_step * columns).map(&number).collect();
            let mut to = vec![U::zeroed(); to_step * rows];
            let lines = Lines { data: &from, step: from_step };
            transpose(lines, LinesMut { data: &mut to, step: to_step }, rows, columns);
            for (i, row) in to.chunks(to_step).enumerate() {
                let expected: Vec<U> = (0..columns).map(|j| from[j * from_step + i]).collect();
                assert_eq!(row[..columns], expected, "row {i} of {rows} x {columns}");
                assert!(
                    row[columns..].iter().all(|v| *v == U::zeroed()),
                    "beside row {i} of {rows} x {columns}"
                );
            }
        }
    }

    #[test]
    fn lines_become_columns_for_every_size_of_elements() {
        check(|i| (i * 7 + i / 251) as u8);
        check(|i| i as u16);
        check(|i| i as u32);
        check(|i| i as u64);
    }
}
