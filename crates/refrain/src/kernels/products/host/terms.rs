//! What one element of a factor stands for: a number, or two numbers of bf16.

use half::bf16;
use pulp::{Arch, Simd, WithSimd};

use super::Matrix;
use crate::device::cpu::bf16_pairs::Bf16Pairs;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;

/// How elements of factors are multiplied and added.
pub(crate) trait Terms<T: Real>: Copy + Send + Sync {
    /// Numbers in an element.
    const COUNT: usize;
    /// `a b + c` for each lane, with the products of all numbers of an element.
    fn mul_add<S: Simd>(self, simd: S, a: T::Vector<S>, b: T::Vector<S>, c: T::Vector<S>) -> T::Vector<S>;
    /// `sum` plus the numbers of `x`.
    fn add(self, sum: T, x: T) -> T;
    /// Runs a kernel that is compiled for its instructions.
    fn dispatch<F: WithSimd>(self, arch: Arch, kernel: F) -> F::Output;
}

/// An element is a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Single;

impl<T: Real> Terms<T> for Single {
    const COUNT: usize = 1;

    #[inline(always)]
    fn mul_add<S: Simd>(self, simd: S, a: T::Vector<S>, b: T::Vector<S>, c: T::Vector<S>) -> T::Vector<S> {
        T::mul_add(simd, a, b, c)
    }

    #[inline(always)]
    fn add(self, sum: T, x: T) -> T {
        sum + x
    }

    fn dispatch<F: WithSimd>(self, arch: Arch, kernel: F) -> F::Output {
        arch.dispatch(kernel)
    }
}

/// An element of 32 bits is two numbers of bf16. The first one is in the upper half, which is multiplied first: so the products
/// of numbers that are not subnormal are added in the order of [`Single`], with the same bits.
impl Terms<f32> for Bf16Pairs {
    const COUNT: usize = 2;

    #[inline(always)]
    fn mul_add<S: Simd>(self, _simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
        Bf16Pairs::mul_add::<S>(self, a, b, c)
    }

    #[inline(always)]
    fn add(self, sum: f32, x: f32) -> f32 {
        let bits = x.to_bits();
        sum + f32::from_bits(bits & 0xffff_0000) + f32::from_bits(bits << 16)
    }

    fn dispatch<F: WithSimd>(self, _arch: Arch, kernel: F) -> F::Output {
        self.run(kernel)
    }
}

/// The pairs of neighbours in the rows of a matrix. After the last column of an odd number comes a zero.
pub(crate) struct Paired {
    elements: Scratch<f32>,
    rows: usize,
    pairs: usize,
    /// Whether the pairs of a column are contiguous, instead of those of a row.
    by_columns: bool,
}

#[inline(always)]
fn pair(first: bf16, second: bf16) -> f32 {
    f32::from_bits(u32::from(first.to_bits()) << 16 | u32::from(second.to_bits()))
}

impl Paired {
    pub(crate) fn of(x: Matrix<'_, bf16>) -> Paired {
        let (rows, pairs) = (x.rows, x.cols.div_ceil(2));
        let mut elements = Scratch::new(rows * pairs);
        let by_columns = x.row_stride == 1;
        if elements.is_empty() {
            return Paired { elements, rows, pairs, by_columns };
        }
        simd(
            #[inline(always)]
            || {
                if by_columns {
                    for (p, to) in elements.chunks_exact_mut(rows).enumerate() {
                        let first = &x.data[2 * p * x.col_stride..][..rows];
                        if 2 * p + 1 < x.cols {
                            let second = &x.data[(2 * p + 1) * x.col_stride..][..rows];
                            to.iter_mut().zip(first).zip(second).for_each(|((to, &a), &b)| *to = pair(a, b));
                        } else {
                            to.iter_mut().zip(first).for_each(|(to, &a)| *to = pair(a, bf16::ZERO));
                        }
                    }
                    return;
                }
                for (i, to) in elements.chunks_exact_mut(pairs).enumerate() {
                    let row = &x.data[i * x.row_stride..];
                    if x.col_stride == 1 {
                        let (whole, last) = row[..x.cols].as_chunks::<2>();
                        to.iter_mut().zip(whole).for_each(|(to, &[a, b])| *to = pair(a, b));
                        if let (Some(&a), Some(to)) = (last.first(), to.last_mut()) {
                            *to = pair(a, bf16::ZERO);
                        }
                        continue;
                    }
                    for (p, to) in to.iter_mut().enumerate() {
                        let at = |j: usize| if j < x.cols { row[j * x.col_stride] } else { bf16::ZERO };
                        *to = pair(at(2 * p), at(2 * p + 1));
                    }
                }
            },
        );
        Paired { elements, rows, pairs, by_columns }
    }

    /// The pairs as a matrix of elements.
    pub(crate) fn matrix(&self) -> Matrix<'_, f32> {
        let Paired { rows, pairs, by_columns, .. } = *self;
        let (row_stride, col_stride) = if by_columns { (1, rows) } else { (pairs, 1) };
        Matrix { data: &self.elements, rows, cols: pairs, row_stride, col_stride }
    }
}
