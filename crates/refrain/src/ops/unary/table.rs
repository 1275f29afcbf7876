//! What the table of functions becomes: an enumeration, its loops on the CPU, its expressions for CUDA, and methods.

use smallvec::SmallVec;

use crate::device::cpu::narrow::HalfLoops;
use crate::device::cpu::numeric::Number;
use crate::device::cpu::simd::simd;
use crate::kernels::elementwise::{Runs, RunsMut, are_bytes, map_bytes};

/// What a derivative is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Input,
    Output,
    /// The gradient alone: the function is its own derivative's.
    Linear,
}

/// A function's parameters.
pub(super) type Scalars = SmallVec<[f64; 2]>;

// Loops, not `for_each`: that is a call where the function is long, and then there are no SIMD instructions. The function is moved
// into them, with its parameters: behind a reference, each of these would be loaded again after each number that is stored.

#[inline(always)]
pub(super) fn map<N: Number>(x: Runs<'_, N>, y: RunsMut<'_, N>, f: impl Fn(N) -> N) {
    simd(
        #[inline(always)]
        move || {
            y.each(
                #[inline(always)]
                |r, y| {
                    let x = x.row(r, y.len());
                    if are_bytes::<N, N>() {
                        map_bytes(
                            [x],
                            y,
                            #[inline(always)]
                            |[x]| f(x),
                        );
                    } else {
                        for (y, &x) in y.iter_mut().zip(x) {
                            *y = f(x);
                        }
                    }
                },
            );
        },
    );
}

/// [`map`] of numbers of 16 bits.
#[inline(always)]
pub(super) fn map_halves<R: Number, L: HalfLoops>(
    loops: L,
    x: Runs<'_, L::Half>,
    y: RunsMut<'_, L::Half>,
    f: impl Fn(R) -> R,
) {
    y.each_by(
        loops,
        #[inline(always)]
        move |r, y| {
            // Not a reference to the function, whose call would not be inlined.
            loops.map(
                x.row(r, y.len()),
                y,
                #[expect(clippy::redundant_closure, reason = "a call through a reference is not inlined")]
                #[inline(always)]
                |x| f(x),
            )
        },
    );
}

/// A function of all elements of a row.
#[inline(always)]
pub(super) fn map_rows<N: Number>(x: Runs<'_, N>, y: RunsMut<'_, N>, f: impl Fn(&[N], &mut [N])) {
    y.each(|r, y| f(x.row(r, y.len()), y));
}

#[inline(always)]
pub(super) fn map2<N: Number>(v: &[N], dy: &[N], dx: &mut [N], f: impl Fn(N, N) -> N) {
    simd(
        #[inline(always)]
        move || {
            for ((dx, &v), &dy) in dx.iter_mut().zip(v).zip(dy) {
                *dx = f(v, dy);
            }
        },
    );
}

/// Makes [`Unary`](super::Unary) of the table in `functions.rs`.
macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        $method:ident $(, $into:ident)? => $name:ident $(($($scalar:ident),+))? {
            floats $(($by:ident))?: ($float:expr, $float_text:literal),
            $(integers: ($int:expr, $int_text:literal),)?
            $(derivative($from:ident) $($(($slope_by:ident))?: ($slope:expr, $slope_text:literal))?,)?
        }
    )*) => {
        /// A unary function.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) enum Unary {
            $($name $({ $($scalar: f64),+ })?,)*
        }

        impl Unary {
            pub(super) fn label(self) -> &'static str {
                match self {
                    $(Unary::$name { .. } => stringify!($method),)*
                }
            }

            /// The parameters, as its expressions for CUDA know them.
            pub(super) fn scalars(self) -> $crate::ops::unary::table::Scalars {
                match self {
                    $(Unary::$name $({ $($scalar),+ })? => smallvec::smallvec![$($($scalar),+)?],)*
                }
            }

            /// What the derivative is computed from; nothing where it is 0.
            pub(super) fn derivative(self) -> Option<$crate::ops::unary::table::From> {
                match self {
                    $(Unary::$name { .. } => functions!(@from $($from)?),)*
                }
            }

            /// The function of floats, for CUDA.
            pub(super) fn float_text(self) -> &'static str {
                match self {
                    $(Unary::$name { .. } => $float_text,)*
                }
            }

            /// The function of integers, for CUDA, if it takes them.
            pub(super) fn int_text(self) -> Option<&'static str> {
                match self {
                    $(Unary::$name { .. } => functions!(@text $($int_text)?),)*
                }
            }

            /// The gradient by the derivative, for CUDA.
            pub(super) fn slope_text(self) -> Option<&'static str> {
                match self {
                    $(Unary::$name { .. } => functions!(@text $($($slope_text)?)?),)*
                }
            }

            /// The function of floats.
            pub(super) fn floats<R: $crate::device::cpu::numeric::Real>(
                self,
                x: $crate::kernels::elementwise::Runs<'_, R>,
                y: $crate::kernels::elementwise::RunsMut<'_, R>,
            ) {
                match self {
                    $(Unary::$name $({ $($scalar),+ })? => functions!(@floats x, y, $float $(, $by)?),)*
                }
            }

            /// Whether the function of floats is one of each number, and not of slices.
            pub(super) fn is_one_by_one(self) -> bool {
                match self {
                    $(Unary::$name { .. } => functions!(@one_by_one $($by)?),)*
                }
            }

            /// The function of floats, where it is one of each number, in arithmetic of type `R`.
            #[allow(unused_variables)]
            pub(super) fn floats_of_halves<
                R: $crate::device::cpu::numeric::Real,
                L: $crate::device::cpu::narrow::HalfLoops,
            >(
                self,
                loops: L,
                x: $crate::kernels::elementwise::Runs<'_, L::Half>,
                y: $crate::kernels::elementwise::RunsMut<'_, L::Half>,
            ) {
                match self {
                    $(Unary::$name $({ $($scalar),+ })? => functions!(@halves loops, x, y, $float $(, $by)?),)*
                }
            }

            /// The function of integers, if it takes them.
            #[allow(unused_variables)] // Not every function has an expression for them.
            pub(super) fn ints<I: $crate::device::cpu::numeric::Number>(
                self,
                x: $crate::kernels::elementwise::Runs<'_, I>,
                y: $crate::kernels::elementwise::RunsMut<'_, I>,
            ) {
                match self {
                    $(Unary::$name $({ $($scalar),+ })? => {
                        $($crate::ops::unary::table::map(x, y, $int))?
                    })*
                }
            }

            /// The gradient by the derivative, from the operand or the result.
            #[allow(unused_variables)] // Not every function has an expression for them.
            pub(super) fn slopes<R: $crate::device::cpu::numeric::Real>(self, v: &[R], dy: &[R], dx: &mut [R]) {
                match self {
                    $(Unary::$name $({ $($scalar),+ })? => {
                        $($(functions!(@slopes v, dy, dx, $slope $(, $slope_by)?))?)?
                    })*
                }
            }
        }

        $(functions!(@methods [$(#[$doc])*] $method $(, $into)? => $name);)*
    };
    (@floats $x:ident, $y:ident, $float:expr) => { $crate::ops::unary::table::map($x, $y, #[inline(always)] $float) };
    (@floats $x:ident, $y:ident, $float:expr, slices) => { $crate::ops::unary::table::map_rows($x, $y, $float) };
    (@one_by_one) => { true };
    (@one_by_one slices) => { false };
    (@halves $loops:ident, $x:ident, $y:ident, $float:expr) => {
        $crate::ops::unary::table::map_halves::<R, L>($loops, $x, $y, #[inline(always)] $float)
    };
    (@halves $loops:ident, $x:ident, $y:ident, $float:expr, slices) => {{}};
    (@slopes $v:ident, $dy:ident, $dx:ident, $slope:expr) => {
        $crate::ops::unary::table::map2($v, $dy, $dx, #[inline(always)] $slope)
    };
    (@slopes $v:ident, $dy:ident, $dx:ident, $slope:expr, slices) => { $slope($v, $dy, $dx) };
    (@from) => { None };
    (@from $from:ident) => { Some($crate::ops::unary::table::From::$from) };
    (@text) => { None };
    (@text $text:literal) => { Some($text) };
    (@methods [] $method:ident => $name:ident) => {};
    (@methods [$($doc:tt)*] $method:ident, $into:ident => $name:ident) => {
        impl $crate::tensor::Tensor {
            $($doc)*
            pub fn $method(&self) -> $crate::error::Result<$crate::tensor::Tensor> {
                $crate::operation::apply(Unary::$name, &[self])
            }

            #[doc = concat!("[`Tensor::", stringify!($method), "`](crate::tensor::Tensor::", stringify!($method), ") into the memory of `dst` (which may be this tensor).")]
            pub fn $into(&self, dst: &$crate::tensor::Tensor) -> $crate::error::Result<()> {
                $crate::operation::apply_into(Unary::$name, &[self], dst)
            }
        }
    };
}
pub(super) use functions;
