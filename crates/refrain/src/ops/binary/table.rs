//! What the table of functions becomes: an enumeration, its loops on the CPU, its expressions for CUDA, and methods.

use super::slopes::Slopes;
use crate::device::cpu::narrow::HalfLoops;
use crate::device::cpu::numeric::Number;
use crate::device::cpu::simd::simd;
use crate::kernels::elementwise::{Runs, RunsMut, are_bytes, map_bytes};

/// What a function takes and makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    /// Floats and integers, and what it takes.
    Arithmetic,
    /// Floats, and what it takes.
    Floats,
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

// Loops, not `for_each`: that is a call where the function is long, and then there are no SIMD instructions. What they read is moved
// into them: behind a reference, it would be loaded again for each row.

/// `y = f(a, b)`
#[inline(always)]
pub(super) fn of_both<N: Number, Y: Copy>(
    a: Runs<'_, N>,
    b: Runs<'_, N>,
    y: RunsMut<'_, Y>,
    f: impl Fn(N, N) -> Y,
) {
    simd(
        #[inline(always)]
        move || {
            y.each(
                #[inline(always)]
                move |r, y| {
                    let (a, b) = (a.row(r, y.len()), b.row(r, y.len()));
                    if are_bytes::<N, Y>() {
                        map_bytes(
                            [a, b],
                            y,
                            #[inline(always)]
                            |[a, b]| f(a, b),
                        );
                    } else {
                        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                            *y = f(a, b);
                        }
                    }
                },
            );
        },
    );
}

/// `y = f(x, s)`, or `f(s, x)` where `reverse`, with a number `s` for each row.
#[inline(always)]
pub(super) fn of_scalar<N: Number, Y: Copy>(
    x: Runs<'_, N>,
    s: Runs<'_, N>,
    reverse: bool,
    y: RunsMut<'_, Y>,
    f: impl Fn(N, N) -> Y,
) {
    simd(
        #[inline(always)]
        move || {
            y.each(
                #[inline(always)]
                move |r, y| {
                    let (x, s) = (x.row(r, y.len()), s.row(r, 1)[0]);
                    if are_bytes::<N, Y>() && reverse {
                        map_bytes(
                            [x],
                            y,
                            #[inline(always)]
                            |[x]| f(s, x),
                        );
                    } else if are_bytes::<N, Y>() {
                        map_bytes(
                            [x],
                            y,
                            #[inline(always)]
                            |[x]| f(x, s),
                        );
                    } else if reverse {
                        for (y, &x) in y.iter_mut().zip(x) {
                            *y = f(s, x);
                        }
                    } else {
                        for (y, &x) in y.iter_mut().zip(x) {
                            *y = f(x, s);
                        }
                    }
                },
            );
        },
    );
}

/// `y = quick(a, b)`, but `exact(a, b)` where the first one says that it is not exact.
#[inline(always)]
pub(super) fn of_both_checked<N: Number>(
    a: Runs<'_, N>,
    b: Runs<'_, N>,
    y: RunsMut<'_, N>,
    quick: impl Fn(N, N) -> (N, bool),
    exact: impl Fn(N, N) -> N,
) {
    y.each(|r, y| {
        let (a, b) = (a.row(r, y.len()), b.row(r, y.len()));
        let pairs = || a.iter().copied().zip(b.iter().copied());
        checked(y, pairs, &quick, &exact);
    });
}

/// The same of a row and a number, as in [`of_scalar`].
#[inline(always)]
pub(super) fn of_scalar_checked<N: Number>(
    x: Runs<'_, N>,
    s: Runs<'_, N>,
    reverse: bool,
    y: RunsMut<'_, N>,
    quick: impl Fn(N, N) -> (N, bool),
    exact: impl Fn(N, N) -> N,
) {
    y.each(|r, y| {
        let (x, s) = (x.row(r, y.len()), s.row(r, 1)[0]);
        match reverse {
            true => checked(y, || x.iter().map(|&x| (s, x)), &quick, &exact),
            false => checked(y, || x.iter().map(|&x| (x, s)), &quick, &exact),
        }
    });
}

#[inline(always)]
fn checked<N: Number, P: Iterator<Item = (N, N)>>(
    y: &mut [N],
    pairs: impl Fn() -> P,
    quick: &impl Fn(N, N) -> (N, bool),
    exact: &impl Fn(N, N) -> N,
) {
    let all_exact = simd(
        #[inline(always)]
        || {
            let mut all_exact = true;
            for (y, (a, b)) in y.iter_mut().zip(pairs()) {
                let (value, is_exact) = quick(a, b);
                *y = value;
                all_exact &= is_exact;
            }
            all_exact
        },
    );
    if !all_exact {
        for (y, (a, b)) in y.iter_mut().zip(pairs()) {
            if !quick(a, b).1 {
                *y = exact(a, b);
            }
        }
    }
}

/// [`of_both`] of numbers of 16 bits.
#[inline(always)]
pub(super) fn of_both_halves<N: Number, L: HalfLoops>(
    loops: L,
    a: Runs<'_, L::Half>,
    b: Runs<'_, L::Half>,
    y: RunsMut<'_, L::Half>,
    f: impl Fn(N, N) -> N,
) {
    y.each_by(
        loops,
        #[inline(always)]
        |r, y| {
            loops.map_both(
                a.row(r, y.len()),
                b.row(r, y.len()),
                y,
                #[expect(clippy::redundant_closure, reason = "a call through a reference is not inlined")]
                #[inline(always)]
                |a, b| f(a, b),
            )
        },
    );
}

/// [`of_scalar`] of numbers of 16 bits, with the number `s(r)` for row `r`.
#[inline(always)]
pub(super) fn of_scalar_halves<N: Number, L: HalfLoops>(
    loops: L,
    x: Runs<'_, L::Half>,
    s: impl Fn(usize) -> N,
    reverse: bool,
    y: RunsMut<'_, L::Half>,
    f: impl Fn(N, N) -> N,
) {
    y.each_by(
        loops,
        #[inline(always)]
        |r, y| {
            let (x, s) = (x.row(r, y.len()), s(r));
            if reverse {
                loops.map(
                    x,
                    y,
                    #[inline(always)]
                    |x| f(s, x),
                );
            } else {
                loops.map(
                    x,
                    y,
                    #[inline(always)]
                    |x| f(x, s),
                );
            }
        },
    );
}

/// The larger (or smaller) of two numbers of 16 bits, by their bits: as in f32, without converting them.
pub(super) fn extremes_of_halves<L: HalfLoops, const SMALLER: bool>(
    loops: L,
    a: Runs<'_, L::Half>,
    b: Runs<'_, L::Half>,
    y: RunsMut<'_, L::Half>,
) {
    let size = |v: i16| v & i16::MAX;
    // In the order of the numbers; both zeros are 0.
    let key = |v: i16| (size(v) ^ v >> 15).wrapping_sub(v >> 15);
    let is_nan = |v: i16| size(v) > L::INFINITY as i16;
    let of = |a: i16, b: i16| {
        let is_beyond = if SMALLER { key(a) < key(b) } else { key(a) > key(b) };
        let number = if (is_beyond & !is_nan(b)) | is_nan(a) { a } else { b };
        number | if is_nan(number) { L::QUIET as i16 } else { 0 }
    };
    y.each_by(
        loops,
        #[inline(always)]
        |r, y| {
            let rows = [a.row(r, y.len()), b.row(r, y.len())];
            let [a, b]: [&[i16]; 2] = rows.map(bytemuck::cast_slice);
            let y: &mut [i16] = bytemuck::cast_slice_mut(y);
            for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                *y = of(a, b);
            }
        },
    );
}

/// A question whose answer is stored: 0 or 1.
#[inline(always)]
pub(super) fn byte<N: Number>(f: impl Fn(N, N) -> bool) -> impl Fn(N, N) -> u8 {
    #[inline(always)]
    move |a, b| u8::from(f(a, b))
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
            value: ($value:expr, $(else $exact:expr,)? $text:literal),
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

            /// The function of two operands, of those whose values are numbers.
            pub(super) fn of_both<N: $crate::device::cpu::numeric::Number>(
                self,
                a: $crate::kernels::elementwise::Runs<'_, N>,
                b: $crate::kernels::elementwise::Runs<'_, N>,
                y: $crate::kernels::elementwise::RunsMut<'_, N>,
            ) {
                match self {
                    $(Binary::$name => functions!(@of_both Arithmetic $domain, a, b, y, $value $(, $exact)?),)*
                }
            }

            /// The function of two operands, of those that take floats alone.
            pub(super) fn floats_of_both<R: $crate::device::cpu::numeric::Real>(
                self,
                a: $crate::kernels::elementwise::Runs<'_, R>,
                b: $crate::kernels::elementwise::Runs<'_, R>,
                y: $crate::kernels::elementwise::RunsMut<'_, R>,
            ) {
                match self {
                    $(Binary::$name => functions!(@of_both Floats $domain, a, b, y, $value $(, $exact)?),)*
                }
            }

            /// The function of two operands, of those whose values are bools.
            pub(super) fn truth_of_both<N: $crate::device::cpu::numeric::Number>(
                self,
                a: $crate::kernels::elementwise::Runs<'_, N>,
                b: $crate::kernels::elementwise::Runs<'_, N>,
                y: $crate::kernels::elementwise::RunsMut<'_, u8>,
            ) {
                match self {
                    $(Binary::$name => functions!(@of_both Truth $domain, a, b, y, $value $(, $exact)?),)*
                }
            }

            /// [`Binary::of_both`] of an operand and a number for each row, which comes first where `reverse`.
            pub(super) fn of_scalar<N: $crate::device::cpu::numeric::Number>(
                self,
                x: $crate::kernels::elementwise::Runs<'_, N>,
                s: $crate::kernels::elementwise::Runs<'_, N>,
                reverse: bool,
                y: $crate::kernels::elementwise::RunsMut<'_, N>,
            ) {
                match self {
                    $(Binary::$name => functions!(@of_scalar Arithmetic $domain, x, s, reverse, y, $value $(, $exact)?),)*
                }
            }

            /// [`Binary::floats_of_both`], likewise.
            pub(super) fn floats_of_scalar<R: $crate::device::cpu::numeric::Real>(
                self,
                x: $crate::kernels::elementwise::Runs<'_, R>,
                s: $crate::kernels::elementwise::Runs<'_, R>,
                reverse: bool,
                y: $crate::kernels::elementwise::RunsMut<'_, R>,
            ) {
                match self {
                    $(Binary::$name => functions!(@of_scalar Floats $domain, x, s, reverse, y, $value $(, $exact)?),)*
                }
            }

            /// [`Binary::of_both`] of numbers of 16 bits, but for powers and remainders.
            pub(super) fn of_both_halves<
                N: $crate::device::cpu::numeric::Number,
                L: $crate::device::cpu::narrow::HalfLoops,
            >(
                self,
                loops: L,
                a: $crate::kernels::elementwise::Runs<'_, L::Half>,
                b: $crate::kernels::elementwise::Runs<'_, L::Half>,
                y: $crate::kernels::elementwise::RunsMut<'_, L::Half>,
            ) {
                match self {
                    $(Binary::$name => functions!(@of_both_halves $name $domain, loops, a, b, y, $value $(, $exact)?),)*
                }
            }

            /// [`Binary::of_scalar`] of numbers of 16 bits, but for powers and remainders, with the number `s(r)` for row `r`.
            pub(super) fn of_scalar_halves<
                N: $crate::device::cpu::numeric::Number,
                L: $crate::device::cpu::narrow::HalfLoops,
            >(
                self,
                loops: L,
                x: $crate::kernels::elementwise::Runs<'_, L::Half>,
                s: impl Fn(usize) -> N,
                reverse: bool,
                y: $crate::kernels::elementwise::RunsMut<'_, L::Half>,
            ) {
                match self {
                    $(Binary::$name => {
                        functions!(@of_scalar_halves $name $domain, loops, x, s, reverse, y, $value $(, $exact)?)
                    })*
                }
            }

            /// [`Binary::truth_of_both`] of an operand and a number for each row, which comes first where `reverse`.
            pub(super) fn truth_of_scalar<N: $crate::device::cpu::numeric::Number>(
                self,
                x: $crate::kernels::elementwise::Runs<'_, N>,
                s: $crate::kernels::elementwise::Runs<'_, N>,
                reverse: bool,
                y: $crate::kernels::elementwise::RunsMut<'_, u8>,
            ) {
                match self {
                    $(Binary::$name => functions!(@of_scalar Truth $domain, x, s, reverse, y, $value $(, $exact)?),)*
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
            /// Both operands must have one dtype; under [`Precision::Bf16`]($crate::Precision::Bf16) f32 and bf16 may be mixed, which
            /// gives f32. Their shapes broadcast as in NumPy.
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
    (@of_both Truth Truth, $a:ident, $b:ident, $y:ident, $value:expr) => {
        $crate::ops::binary::table::of_both($a, $b, $y, $crate::ops::binary::table::byte($value))
    };
    (@of_both Arithmetic Arithmetic, $($rest:tt)*) => { functions!(@numbers_of_both $($rest)*) };
    (@of_both Floats Floats, $($rest:tt)*) => { functions!(@numbers_of_both $($rest)*) };
    (@of_both $($rest:tt)*) => {{}};
    (@numbers_of_both $a:ident, $b:ident, $y:ident, $value:expr) => {
        $crate::ops::binary::table::of_both($a, $b, $y, #[inline(always)] $value)
    };
    (@numbers_of_both $a:ident, $b:ident, $y:ident, $value:expr, $exact:expr) => {
        $crate::ops::binary::table::of_both_checked($a, $b, $y, #[inline(always)] $value, $exact)
    };
    (@of_scalar Truth Truth, $x:ident, $s:ident, $reverse:ident, $y:ident, $value:expr) => {
        $crate::ops::binary::table::of_scalar($x, $s, $reverse, $y, $crate::ops::binary::table::byte($value))
    };
    (@of_scalar Arithmetic Arithmetic, $($rest:tt)*) => { functions!(@numbers_of_scalar $($rest)*) };
    (@of_scalar Floats Floats, $($rest:tt)*) => { functions!(@numbers_of_scalar $($rest)*) };
    (@of_scalar $($rest:tt)*) => {{}};
    (@numbers_of_scalar $x:ident, $s:ident, $reverse:ident, $y:ident, $value:expr) => {
        $crate::ops::binary::table::of_scalar($x, $s, $reverse, $y, #[inline(always)] $value)
    };
    (@numbers_of_scalar $x:ident, $s:ident, $reverse:ident, $y:ident, $value:expr, $exact:expr) => {
        $crate::ops::binary::table::of_scalar_checked($x, $s, $reverse, $y, #[inline(always)] $value, $exact)
    };
    (@of_both_halves Pow $($rest:tt)*) => {{}};
    (@of_both_halves $name:ident Arithmetic, $loops:ident, $a:ident, $b:ident, $y:ident, $value:expr) => {
        $crate::ops::binary::table::of_both_halves::<N, L>($loops, $a, $b, $y, #[inline(always)] $value)
    };
    (@of_both_halves $($rest:tt)*) => {{}};
    (@of_scalar_halves Pow $($rest:tt)*) => {{}};
    (@of_scalar_halves $name:ident Arithmetic, $loops:ident, $x:ident, $s:ident, $reverse:ident, $y:ident, $value:expr) => {
        $crate::ops::binary::table::of_scalar_halves::<N, L>($loops, $x, $s, $reverse, $y, #[inline(always)] $value)
    };
    (@of_scalar_halves $($rest:tt)*) => {{}};
    (@gradient) => { $crate::ops::binary::table::Gradient::None };
    (@gradient $gradient:ident) => { $crate::ops::binary::table::Gradient::$gradient };
    (@text) => { None };
    (@text $text:literal) => { Some($text) };
}
pub(super) use functions;
