//! The epilogue: what is done to a product while it is still in cache.

use pulp::{Simd, WithSimd};

use super::{Matrix, MatrixMut};
use crate::activation::Activation;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::rectangle::RectangleMut;
use crate::kernels::activations;

/// The steps after a product, in this order: `bias`, `pre_activation`, `activation`, `gradient`, `residual`.
///
/// Every matrix has the shape of the product and contiguous rows.
#[derive(Debug)]
pub(crate) struct Epilogue<'a, T> {
    /// Added to each row.
    pub bias: Option<&'a [T]>,
    /// Stores the input of `activation`.
    pub pre_activation: Option<MatrixMut<'a, T>>,
    /// Applied to each value.
    pub activation: Activation,
    /// Multiplies by the derivative of the activation at the given values: the backward pass through an activation,
    /// from the values that the forward pass stored as `pre_activation`.
    pub gradient: Option<(Activation, Matrix<'a, T>)>,
    /// Added last.
    pub residual: Option<Matrix<'a, T>>,
}

impl<T> Default for Epilogue<'_, T> {
    fn default() -> Self {
        Self {
            bias: None,
            pre_activation: None,
            activation: Activation::None,
            gradient: None,
            residual: None,
        }
    }
}

impl<T> Epilogue<'_, T> {
    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.bias.is_none() && self.is_only_bias()
    }

    /// Whether there is at most a bias to add.
    pub(super) fn is_only_bias(&self) -> bool {
        self.pre_activation.is_none()
            && self.activation == Activation::None
            && self.gradient.is_none()
            && self.residual.is_none()
    }
}

/// The epilogue without the bias, at which the sums started, over some rows and columns of the result.
pub(super) struct Finish<'a, T> {
    pub activation: Activation,
    pub gradient: Option<(Activation, Matrix<'a, T>)>,
    pub residual: Option<Matrix<'a, T>>,
    /// The rows and columns of `c` in it.
    pub pre_activation: Option<RectangleMut<'a, T>>,
    pub c: RectangleMut<'a, T>,
}

// Loops, not `for_each`: that is a call where the function is long, and then there are no SIMD instructions.

#[inline(always)]
fn map<T: Real>(c: &mut [T], f: impl Fn(T) -> T) {
    for c in c {
        *c = f(*c);
    }
}

#[inline(always)]
fn scale<T: Real>(c: &mut [T], x: &[T], f: impl Fn(T, T) -> T) {
    for (c, &x) in c.iter_mut().zip(x) {
        *c = f(*c, x);
    }
}

impl<T: Real> WithSimd for Finish<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _simd: S) {
        // If rows are adjacent, several of them form one run.
        let [m, n] = self.c.size();
        let (i0, j0) = (self.c.rows().start, self.c.columns().start);
        let dense = self.c.row_stride() == n
            && self.gradient.is_none_or(|(_, x)| x.row_stride == n)
            && self.residual.is_none_or(|x| x.row_stride == n)
            && self.pre_activation.as_ref().is_none_or(|x| x.row_stride() == n);
        let rows_per_run = if dense { (2048 / n).max(1) } else { 1 };
        for i in (0..m).step_by(rows_per_run) {
            let rows = rows_per_run.min(m - i);
            let (len, c) = (rows * n, self.c.run(i, rows));
            let run = |x: Matrix<'_, T>| (i0 + i) * x.row_stride + j0;
            if let Some(kept) = &mut self.pre_activation {
                kept.run(i, rows).copy_from_slice(c);
            }
            let zero = T::default();
            match self.activation {
                Activation::None => {}
                Activation::Relu => map(
                    c,
                    #[inline(always)]
                    |x| x.relu(),
                ),
                Activation::Gelu => map(c, activations::gelu),
                Activation::GeluTanh => map(
                    c,
                    #[inline(always)]
                    |x| x.gelu_tanh(),
                ),
                Activation::Silu => map(
                    c,
                    #[inline(always)]
                    |x| x * x.sigmoid(),
                ),
            }
            if let Some((activation, x)) = self.gradient {
                let x = &x.data[run(x)..][..len];
                match activation {
                    Activation::None => {}
                    Activation::Relu => scale(
                        c,
                        x,
                        #[inline(always)]
                        |c, x| if x <= zero { zero } else { c },
                    ),
                    Activation::Gelu => scale(
                        c,
                        x,
                        #[inline(always)]
                        |c, x| c * activations::gelu_derivative(x),
                    ),
                    Activation::GeluTanh => scale(
                        c,
                        x,
                        #[inline(always)]
                        |c, x| c * x.gelu_tanh_grad(),
                    ),
                    Activation::Silu => scale(
                        c,
                        x,
                        #[inline(always)]
                        |c, x| c * activations::silu_derivative(x),
                    ),
                }
            }
            if let Some(x) = self.residual {
                for (c, x) in c.iter_mut().zip(&x.data[run(x)..][..len]) {
                    *c += *x;
                }
            }
        }
    }
}
