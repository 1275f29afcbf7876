//! What one element of a factor stands for: a number, or two numbers of bf16.

use half::bf16;
use pulp::Simd;

use super::block::{Block, InRegisters};
use super::{BLOCK_M, Matrix, in_tiles};
use crate::device::cpu::bf16_pairs::{Avx512Bf16, Bf16Pairs, TILE};
use crate::device::cpu::numeric::{Number, Real, Stored, convert};
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::{arch, simd};
use crate::device::cpu::widen::convert_all;

/// How elements of factors are made of numbers, multiplied and added.
pub(crate) trait Terms<T: Real>: Copy + Send + Sync {
    /// Numbers in an element.
    const COUNT: usize;
    /// The elements that a row of so many numbers becomes.
    fn of_numbers(self, numbers: usize) -> usize;
    /// Blocks with a multiple of so many rows leave no row of a tile of a full panel empty.
    fn rows_of_blocks(self) -> usize;
    /// Rows and columns of the rectangles of a result of `m` by `n` that several threads compute. The columns are a multiple of the width
    /// of a panel.
    fn rectangle(self, threads: usize, size: [usize; 2], width: usize) -> [usize; 2];
    /// `sum` plus the numbers of `x`.
    fn add(self, sum: T, x: T) -> T;
    /// A matrix whose rows are divided into elements.
    fn elements<'a, A: Stored>(self, x: Matrix<'a, A>) -> Elements<'a, T>;
    /// The same for contiguous rows of numbers. `to` has room for the elements.
    fn elements_of_rows<'a>(self, x: Matrix<'a, T>, to: &'a mut [T]) -> Matrix<'a, T>;
    /// A matrix whose columns are divided into elements. Its rows are contiguous. `to` has room for the elements.
    fn elements_of_columns<'a, A: Stored>(self, x: Matrix<'a, A>, to: &'a mut [T]) -> Matrix<'a, T>;
    /// Divides the columns of `count` rows, each of `width` numbers, into elements, in place. Returns the number of rows of elements.
    /// There may be more rows than half of `count`: those behind become zeros, as many as the elements need.
    fn pack_columns(self, rows: &mut [T], count: usize, width: usize) -> usize;
    /// Computes a block of a product.
    fn compute(self, block: Block<'_, T>);
}

/// How tiles of registers multiply and add.
pub(crate) trait MulAdd<T: Real>: Copy {
    /// `a b + c` for each lane, with the products of all numbers of an element.
    fn mul_add<S: Simd>(self, simd: S, a: T::Vector<S>, b: T::Vector<S>, c: T::Vector<S>) -> T::Vector<S>;
}

/// Elements that a thread makes at a time.
const PIECE: usize = 1 << 12;

/// A multiple of the heights of the tiles of full panels.
const ROWS_OF_REGISTERS: usize = 12;

/// [`Terms::rectangle`] with which all threads are done as soon as possible.
fn rectangle_in_registers(threads: usize, [m, n]: [usize; 2], width: usize) -> [usize; 2] {
    /// To load a number from the cache of another core takes as long as so many multiplications.
    const LOAD: usize = 32;
    let all_columns = [1, 2, 4, 8, 16].map(|parts| n.div_ceil(parts).next_multiple_of(width));
    let all_rows = [12, 8, 6, 4, 3, 2, 1].map(|units| units * ROWS_OF_REGISTERS);
    let sizes = all_columns.into_iter().flat_map(|columns| all_rows.map(|rows| [rows, columns]));
    let time = |&[rows, columns]: &[usize; 2]| {
        let count = m.div_ceil(rows) * n.div_ceil(columns);
        let (rows, columns) = (rows.min(m), columns.min(n));
        // The last one begins when all others are under way, and some threads are slower than others.
        (count + threads) * (rows * columns + LOAD * (rows + columns))
    };
    sizes.min_by_key(time).unwrap_or([BLOCK_M, n.next_multiple_of(width)])
}

/// The same by tiles of AMX, which compute so fast that only the number of rectangles counts: whole rows, unless there are few of them.
/// Two tiles are above each other, so that each one of the second factor is used twice.
fn rectangle_in_tiles(threads: usize, [m, n]: [usize; 2], width: usize) -> [usize; 2] {
    let rows = BLOCK_M.min(m.div_ceil(16).next_multiple_of(2 * TILE));
    let parts = threads.div_ceil(m.div_ceil(rows)).max(1);
    [rows, n.div_ceil(parts).next_multiple_of(width)]
}

/// An element is a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single;

impl<T: Real> MulAdd<T> for Single {
    #[inline(always)]
    fn mul_add<S: Simd>(self, simd: S, a: T::Vector<S>, b: T::Vector<S>, c: T::Vector<S>) -> T::Vector<S> {
        T::mul_add(simd, a, b, c)
    }
}

impl<T: Real> Terms<T> for Single {
    const COUNT: usize = 1;

    fn of_numbers(self, numbers: usize) -> usize {
        numbers
    }

    fn rows_of_blocks(self) -> usize {
        ROWS_OF_REGISTERS
    }

    fn rectangle(self, threads: usize, size: [usize; 2], width: usize) -> [usize; 2] {
        rectangle_in_registers(threads, size, width)
    }

    #[inline(always)]
    fn add(self, sum: T, x: T) -> T {
        sum + x
    }

    fn elements<'a, A: Stored>(self, x: Matrix<'a, A>) -> Elements<'a, T> {
        match T::same(x.data) {
            Some(same) => Elements { data: Data::Same(same), layout: x.with_data(&[]) },
            None => {
                let mut copy = Scratch::new(x.data.len());
                convert_all(x.data, &mut copy);
                Elements { data: Data::Made(copy), layout: x.with_data(&[]) }
            }
        }
    }

    fn elements_of_rows<'a>(self, x: Matrix<'a, T>, _: &'a mut [T]) -> Matrix<'a, T> {
        x
    }

    fn elements_of_columns<'a, A: Stored>(self, x: Matrix<'a, A>, to: &'a mut [T]) -> Matrix<'a, T> {
        if let Some(same) = T::same(x.data) {
            return x.with_data(same);
        }
        assert_eq!(x.col_stride, 1, "rows of a factor that is converted");
        let to = &mut to[..x.rows * x.cols];
        if x.row_stride == x.cols {
            convert(&x.data[..to.len()], to);
        } else {
            let rows = to.chunks_exact_mut(x.cols).enumerate();
            rows.for_each(|(i, to)| convert(&x.data[i * x.row_stride..][..x.cols], to));
        }
        Matrix::row_major(to, x.rows, x.cols)
    }

    fn pack_columns(self, _: &mut [T], count: usize, _: usize) -> usize {
        count
    }

    fn compute(self, block: Block<'_, T>) {
        arch().dispatch(InRegisters { terms: self, block });
    }
}

impl MulAdd<f32> for Avx512Bf16 {
    #[inline(always)]
    fn mul_add<S: Simd>(self, _simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
        Avx512Bf16::mul_add::<S>(self, a, b, c)
    }
}

/// Gives `$body` the matrix as one of bf16, or of f32 whose numbers are those of bf16.
macro_rules! with_halves {
    ($matrix:expr, $x:ident => $body:expr) => {
        match (bf16::same($matrix.data), f32::same($matrix.data)) {
            (Some(data), _) => {
                let $x = $matrix.with_data(data);
                $body
            }
            (_, Some(data)) => {
                let $x = $matrix.with_data(data);
                $body
            }
            _ => unreachable!("pairs are those of bf16"),
        }
    };
}

/// An element of 32 bits is two numbers of bf16. The first one is in the upper half, which AVX-512 multiplies first: so the products
/// of numbers that are not subnormal are added in the order of [`Single`], with the same bits.
impl Terms<f32> for Bf16Pairs {
    const COUNT: usize = 2;

    fn of_numbers(self, numbers: usize) -> usize {
        match self {
            Bf16Pairs::Avx512(_) => numbers.div_ceil(2),
            // Zeros behind them fill the last row of a tile.
            Bf16Pairs::Amx(_) => numbers.div_ceil(2).next_multiple_of(TILE),
        }
    }

    fn rows_of_blocks(self) -> usize {
        match self {
            Bf16Pairs::Avx512(_) => ROWS_OF_REGISTERS,
            Bf16Pairs::Amx(_) => TILE,
        }
    }

    fn rectangle(self, threads: usize, size: [usize; 2], width: usize) -> [usize; 2] {
        match self {
            Bf16Pairs::Avx512(_) => rectangle_in_registers(threads, size, width),
            Bf16Pairs::Amx(_) => rectangle_in_tiles(threads, size, width),
        }
    }

    #[inline(always)]
    fn add(self, sum: f32, x: f32) -> f32 {
        let bits = x.to_bits();
        sum + f32::from_bits(bits & 0xffff_0000) + f32::from_bits(bits << 16)
    }

    fn elements<'a, A: Stored>(self, x: Matrix<'a, A>) -> Elements<'a, f32> {
        let (rows, count) = (x.rows, self.of_numbers(x.cols));
        let mut elements = Scratch::new(rows * count);
        // Of contiguous columns, the pairs of a column are contiguous, too.
        let by_columns = x.row_stride == 1 && !elements.is_empty();
        with_halves!(x, x => match by_columns {
            true => {
                let (x, rows_at_once) = (x.t(), (PIECE / rows).max(1));
                parallel::pieces(&mut elements, rows_at_once * rows, |at, to| {
                    pairs_of_columns(x, 2 * at * rows_at_once, to);
                });
            }
            false => {
                let rows_at_once = (PIECE / count.max(1)).max(1);
                parallel::pieces(&mut elements, rows_at_once * count, |at, to| {
                    pairs_of_rows(x.rows_from(at * rows_at_once, to.len() / count), to);
                });
            }
        });
        let layout = Matrix::row_major(&[], rows, count);
        let layout = if by_columns { Matrix { row_stride: 1, col_stride: rows, ..layout } } else { layout };
        Elements { data: Data::Made(elements), layout }
    }

    fn elements_of_rows<'a>(self, x: Matrix<'a, f32>, to: &'a mut [f32]) -> Matrix<'a, f32> {
        let count = self.of_numbers(x.cols);
        let to = &mut to[..x.rows * count];
        pairs_of_rows(x, to);
        Matrix::row_major(to, x.rows, count)
    }

    fn elements_of_columns<'a, A: Stored>(self, x: Matrix<'a, A>, to: &'a mut [f32]) -> Matrix<'a, f32> {
        let count = self.of_numbers(x.rows);
        let to = &mut to[..count * x.cols];
        with_halves!(x, x => pairs_of_columns(x, 0, to));
        Matrix::row_major(to, count, x.cols)
    }

    fn pack_columns(self, rows: &mut [f32], count: usize, width: usize) -> usize {
        let pairs = self.of_numbers(count);
        simd(
            #[inline(always)]
            || {
                for p in 0..count.div_ceil(2) {
                    // The first pair takes the place of its first number, and the others that of numbers before theirs.
                    let (before, from) = rows.split_at_mut(2 * p * width);
                    let (first, from) = from.split_at_mut(width);
                    let second = (2 * p + 1 < count).then(|| &from[..width]);
                    if p == 0 {
                        match second {
                            Some(second) => first.iter_mut().zip(second).for_each(|(a, &b)| *a = pair(*a, b)),
                            None => first.iter_mut().for_each(|a| *a = pair(*a, 0.0)),
                        }
                        continue;
                    }
                    let to = before[p * width..][..width].iter_mut().zip(&*first);
                    match second {
                        Some(second) => to.zip(second).for_each(|((to, &a), &b)| *to = pair(a, b)),
                        None => to.for_each(|(to, &a)| *to = pair(a, 0.0)),
                    }
                }
                rows[count.div_ceil(2) * width..pairs * width].fill(0.0);
            },
        );
        pairs
    }

    fn compute(self, block: Block<'_, f32>) {
        match self {
            Bf16Pairs::Avx512(terms) => terms.run(InRegisters { terms, block }),
            Bf16Pairs::Amx(amx) => arch().dispatch(in_tiles::InTiles { amx, block }),
        }
    }
}

/// A factor that is divided into elements.
pub(crate) struct Elements<'a, T> {
    data: Data<'a, T>,
    /// Sizes and strides.
    layout: Matrix<'a, T>,
}

enum Data<'a, T> {
    Same(&'a [T]),
    Made(Scratch<T>),
}

impl<T: Real> Elements<'_, T> {
    pub(crate) fn matrix(&self) -> Matrix<'_, T> {
        let data = match &self.data {
            Data::Same(data) => data,
            Data::Made(data) => &**data,
        };
        self.layout.with_data(data)
    }
}

/// A number of bf16, which may be stored as f32.
trait Half: Copy + Default + Send + Sync {
    /// The number in the upper half, and zeros.
    fn upper(self) -> u32;
}

impl Half for bf16 {
    #[inline(always)]
    fn upper(self) -> u32 {
        u32::from(self.to_bits()) << 16
    }
}

impl Half for f32 {
    #[inline(always)]
    fn upper(self) -> u32 {
        self.to_bits() & 0xffff_0000
    }
}

#[inline(always)]
fn pair<H: Half>(first: H, second: H) -> f32 {
    f32::from_bits(first.upper() | second.upper() >> 16)
}

/// The pairs of neighbours in the rows of a matrix, and zeros behind them.
fn pairs_of_rows<H: Half>(x: Matrix<'_, H>, to: &mut [f32]) {
    if to.is_empty() {
        return;
    }
    simd(
        #[inline(always)]
        || {
            for (i, to) in to.chunks_exact_mut(to.len() / x.rows).enumerate() {
                let row = &x.data[i * x.row_stride..];
                let (to, behind) = to.split_at_mut(x.cols.div_ceil(2));
                behind.fill(0.0);
                if x.col_stride == 1 {
                    let (whole, last) = row[..x.cols].as_chunks::<2>();
                    to.iter_mut().zip(whole).for_each(|(to, &[a, b])| *to = pair(a, b));
                    if let (Some(&a), Some(to)) = (last.first(), to.last_mut()) {
                        *to = pair(a, H::default());
                    }
                    continue;
                }
                for (p, to) in to.iter_mut().enumerate() {
                    let at = |j: usize| if j < x.cols { row[j * x.col_stride] } else { H::default() };
                    *to = pair(at(2 * p), at(2 * p + 1));
                }
            }
        },
    );
}

/// The pairs of neighbours in the columns of a matrix whose rows are contiguous, from row `first` on, and zeros below them.
fn pairs_of_columns<H: Half>(x: Matrix<'_, H>, first: usize, to: &mut [f32]) {
    if to.is_empty() {
        return;
    }
    let row = |i: usize| &x.data[i * x.row_stride..][..x.cols];
    simd(
        #[inline(always)]
        || {
            for (p, to) in to.chunks_exact_mut(x.cols).enumerate() {
                let i = first + 2 * p;
                if i >= x.rows {
                    to.fill(0.0);
                } else if i + 1 < x.rows {
                    let pairs = row(i).iter().zip(row(i + 1));
                    to.iter_mut().zip(pairs).for_each(|(to, (&a, &b))| *to = pair(a, b));
                } else {
                    to.iter_mut().zip(row(i)).for_each(|(to, &a)| *to = pair(a, H::default()));
                }
            }
        },
    );
}
