//! What the table of functions becomes: an enumeration, its loops on the CPU, its expressions for CUDA, and methods.

use super::slopes::Slopes;
use crate::device::cpu::numeric::Number;
use crate::device::cpu::simd::simd;

/// What a function takes and makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    /// Floats and integers, and what it takes.
    Arithmetic,
    /// Any dtype, and bool.
    Truth,
}

/// The gradient of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gradient {
    /// There is none.
    None,
    /// That of the result.
    Same,
    Negated,
    /// Of a function that is linear in the operand: it reads the other one.
    Linear,
    /// It reads both.
    Other,
}

/// `y = f(a, b)`
#[inline(always)]
pub(super) fn of_both<N: Number>(a: &[N], b: &[N], y: &mut [N], f: impl Fn(N, N) -> N) {
    simd(
        #[inline(always)]
        || y.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = f(a, b)),
    );
}

/// `y = f(x, s)`, or `f(s, x)` where `reverse`.
#[inline(always)]
pub(super) fn of_scalar<N: Number>(x: &[N], s: N, reverse: bool, y: &mut [N], f: impl Fn(N, N) -> N) {
    simd(
        #[inline(always)]
        || match reverse {
            false => y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(x, s)),
            true => y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(s, x)),
        },
    );
}

/// Says to a closure what it takes.
#[inline(always)]
pub(super) fn with<R>(slopes: Slopes<'_, R>, f: impl FnOnce(Slopes<'_, R>)) {
    f(slopes);
}

/// Makes [`Binary`](super::Binary) of the table in `functions.rs`.
macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        $method:ident, $into:ident, $scalar:ident, $scalar_into:ident => $name:ident: $domain:ident {
            value: ($value:expr, $text:literal),
            $(left: $left:ident $(($left_slope:expr, $left_text:literal))?,)?
            $(right: $right:ident $(($right_slope:expr, $right_text:literal))?,)?
        }
    )*) => {
        /// A binary function.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Binary {
            $($name,)*
        }

        impl Binary {
            pub(super) fn label(self) -> &'static str {
                match self {
                    $(Binary::$name => stringify!($method),)*
                }
            }

            pub(super) fn domain(self) -> $crate::ops::binary::table::Domain {
                match self {
                    $(Binary::$name => $crate::ops::binary::table::Domain::$domain,)*
                }
            }

            /// The gradients of both operands.
            pub(super) fn gradients(self) -> [$crate::ops::binary::table::Gradient; 2] {
                match self {
                    $(Binary::$name => [functions!(@gradient $($left)?), functions!(@gradient $($right)?)],)*
                }
            }

            /// The function, for CUDA.
            pub(super) fn text(self) -> &'static str {
                match self {
                    $(Binary::$name => $text,)*
                }
            }

            /// The gradients of both operands, for CUDA, as far as they are computed.
            pub(super) fn slope_texts(self) -> [Option<&'static str>; 2] {
                match self {
                    $(Binary::$name => [
                        functions!(@text $($($left_text)?)?),
                        functions!(@text $($($right_text)?)?),
                    ],)*
                }
            }

            /// The function of two operands.
            pub(super) fn of_both<N: $crate::device::cpu::numeric::Number>(self, a: &[N], b: &[N], y: &mut [N]) {
                match self {
                    $(Binary::$name => $crate::ops::binary::table::of_both(a, b, y, $value),)*
                }
            }

            /// The function of an operand and a number, which comes first where `reverse`.
            pub(super) fn of_scalar<N: $crate::device::cpu::numeric::Number>(
                self,
                x: &[N],
                s: N,
                reverse: bool,
                y: &mut [N],
            ) {
                match self {
                    $(Binary::$name => $crate::ops::binary::table::of_scalar(x, s, reverse, y, $value),)*
                }
            }

            /// The gradient of the first operand (`by` is 0) or of the second, where it is computed.
            pub(super) fn slopes<R: $crate::device::cpu::numeric::Real>(
                self,
                by: usize,
                slopes: $crate::ops::binary::slopes::Slopes<'_, R>,
            ) {
                match self {
                    $(Binary::$name => match by {
                        0 => { $($($crate::ops::binary::table::with(slopes, $left_slope))?)? }
                        _ => { $($($crate::ops::binary::table::with(slopes, $right_slope))?)? }
                    })*
                }
            }
        }

        impl $crate::tensor::Tensor {$(
            $(#[$doc])*
            ///
            /// Both operands must have one dtype. Their shapes broadcast as in NumPy.
            pub fn $method(&self, other: &$crate::tensor::Tensor) -> $crate::error::Result<$crate::tensor::Tensor> {
                let (a, b) = $crate::ops::binary::broadcast(stringify!($method), self, other)?;
                $crate::operation::apply(Binary::$name, &[&a, &b])
            }

            #[doc = concat!("[`Tensor::", stringify!($method), "`](crate::tensor::Tensor::", stringify!($method), ") into the memory of `dst` (which may be an operand of the result's shape).")]
            pub fn $into(&self, other: &$crate::tensor::Tensor, dst: &$crate::tensor::Tensor) -> $crate::error::Result<()> {
                let (a, b) = $crate::ops::binary::broadcast(stringify!($method), self, other)?;
                $crate::operation::apply_into(Binary::$name, &[&a, &b], dst)
            }

            #[doc = concat!("[`Tensor::", stringify!($method), "`](crate::tensor::Tensor::", stringify!($method), ") with a number as the second operand. The number is first rounded to the dtype of the tensor; for an integer dtype it must be a whole number in its range.")]
            pub fn $scalar(&self, scalar: f64) -> $crate::error::Result<$crate::tensor::Tensor> {
                $crate::operation::apply($crate::ops::binary::WithScalar::new(Binary::$name, self, scalar, false), &[self])
            }

            #[doc = concat!("[`Tensor::", stringify!($scalar), "`](crate::tensor::Tensor::", stringify!($scalar), ") into the memory of `dst` (which may be this tensor).")]
            pub fn $scalar_into(&self, scalar: f64, dst: &$crate::tensor::Tensor) -> $crate::error::Result<()> {
                let op = $crate::ops::binary::WithScalar::new(Binary::$name, self, scalar, false);
                $crate::operation::apply_into(op, &[self], dst)
            }
        )*}
    };
    (@gradient) => { $crate::ops::binary::table::Gradient::None };
    (@gradient $gradient:ident) => { $crate::ops::binary::table::Gradient::$gradient };
    (@text) => { None };
    (@text $text:literal) => { Some($text) };
}
pub(super) use functions;
