//! SIMD instructions, chosen at run time: a binary that is built on one machine runs well on another.
//!
//! The compiler vectorises a loop of plain Rust inside [`simd`]. The blocked kernels use registers explicitly, in the
//! same way for `f32` and `f64`: [`pulp::Simd`] names its operations by element type (`mul_add_e_f32s`,
//! `mul_add_e_f64s`), and [`Vectors`] gives them one name, so that a kernel is written only once.

use std::sync::OnceLock;

use bytemuck::Pod;
use pulp::{Arch, Simd};

/// The environment variable that chooses lower instructions than the machine has.
const LIMIT: &str = "REFRAIN_CPU";
/// Its value for AVX-512 without tiles.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
const NO_TILES: &str = "avx512";

/// The instruction set of the kernels: the best that the machine has. The environment variable `REFRAIN_CPU` chooses
/// a lower one: `avx512` (without the tiles of AMX) or `avx2` on x86, or `scalar`.
pub(crate) fn arch() -> Arch {
    static ARCH: OnceLock<Arch> = OnceLock::new();
    *ARCH.get_or_init(|| match std::env::var(LIMIT).as_deref() {
        Ok("scalar") => Arch::Scalar,
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        Ok("avx2") => pulp::x86::V3::try_new().map_or(Arch::Scalar, Arch::V3),
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        Ok(NO_TILES) => Arch::new(),
        Ok("") | Err(_) => Arch::new(),
        Ok(other) => {
            // Reported once, because no caller could receive an error here.
            eprintln!(
                "refrain: warning: {LIMIT} is {other:?}, which has no effect; use scalar, or avx2 or avx512 on x86"
            );
            Arch::new()
        }
    })
}

/// Whether kernels may use the tiles of AMX, where the machine has them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn tiles_allowed() -> bool {
    std::env::var_os(LIMIT).is_none_or(|limit| limit != NO_TILES)
}

/// The instructions of AVX2, if kernels may use them.
#[cfg(target_arch = "x86_64")]
pub(crate) fn avx2() -> Option<pulp::x86::V3> {
    match arch() {
        Arch::V4(v4) => Some(*v4),
        Arch::V3(v3) => Some(v3),
        _ => None,
    }
}

/// Runs a closure that is compiled for the best instruction set of the machine.
///
/// What is inlined into the closure is compiled for each instruction set and vectorised by the compiler; a call that
/// is not inlined is not. So put loops inside, and mark their helpers `#[inline(always)]`.
#[inline(always)]
pub(crate) fn simd<R>(f: impl FnOnce() -> R) -> R {
    // For unit tests, the library is compiled a second time. `tests/ops` runs these loops with all instructions.
    if cfg!(test) { f() } else { arch().dispatch(f) }
}

/// An element type that CPU kernels compute in: `f32` or `f64`.
pub(crate) trait Vectors:
    Pod
    + Default
    + PartialOrd
    + Send
    + Sync
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::AddAssign
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    /// A register of this element type, on the instruction set `S`.
    type Vector<S: Simd>: Pod + Send + Sync;

    /// How many elements a [`Vector`](Self::Vector) has.
    fn lanes<S: Simd>() -> usize {
        size_of::<Self::Vector<S>>() / size_of::<Self>()
    }
    /// A register with `x` in every lane.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// `a + b` for each lane.
    fn add_vectors<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a * b + c` for each lane, fused if the machine has the instruction.
    fn mul_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// `a * b` for each lane.
    fn mul_vectors<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The larger of `a` and `b` for each lane.
    fn max_vectors<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `e^x` for each lane, for `x` up to 88. 0 if the result is subnormal in `f32`.
    fn exp_vectors<S: Simd>(simd: S, x: Self::Vector<S>) -> Self::Vector<S>;
    /// The last `by` lanes of `before`, and then the first ones of `x`.
    fn shifted<S: Simd>(simd: S, before: Self::Vector<S>, x: Self::Vector<S>, by: usize) -> Self::Vector<S>;
    /// The slice as whole registers and the rest.
    fn as_vectors<S: Simd>(slice: &[Self]) -> (&[Self::Vector<S>], &[Self]);
    /// The slice as whole registers and the rest, to write to.
    fn as_vectors_mut<S: Simd>(slice: &mut [Self]) -> (&mut [Self::Vector<S>], &mut [Self]);
    /// A register whose first lanes are `slice` (shorter than a register) and whose others are zero.
    fn load_partial<S: Simd>(simd: S, slice: &[Self]) -> Self::Vector<S>;
    /// Stores the first lanes of `x` to `slice` (shorter than a register).
    fn store_partial<S: Simd>(simd: S, slice: &mut [Self], x: Self::Vector<S>);
}

macro_rules! real {
    ($t:ident, $vector:ident, $as_vectors:ident, $as_vectors_mut:ident, $store_partial:ident, $exp_vectors:path,
     $rotate:ident, $select:ident, $mask_between:ident,
     $($name:ident($($arg:ident: $arg_type:ty),*) -> $result:ty = $method:ident;)*) => {
        impl Vectors for $t {
            type Vector<S: Simd> = S::$vector;
            $(
                #[inline(always)]
                fn $name<S: Simd>(simd: S, $($arg: $arg_type),*) -> $result {
                    simd.$method($($arg),*)
                }
            )*
            #[inline(always)]
            fn exp_vectors<S: Simd>(simd: S, x: S::$vector) -> S::$vector {
                $exp_vectors(simd, x)
            }
            #[inline(always)]
            fn shifted<S: Simd>(simd: S, before: S::$vector, x: S::$vector, by: usize) -> S::$vector {
                let of_before = simd.$mask_between(0, by as _).mask();
                simd.$select(of_before, simd.$rotate(before, by), simd.$rotate(x, by))
            }
            #[inline(always)]
            fn as_vectors<S: Simd>(slice: &[Self]) -> (&[S::$vector], &[Self]) {
                S::$as_vectors(slice)
            }
            #[inline(always)]
            fn as_vectors_mut<S: Simd>(slice: &mut [Self]) -> (&mut [S::$vector], &mut [Self]) {
                S::$as_vectors_mut(slice)
            }
            #[inline(always)]
            fn store_partial<S: Simd>(simd: S, slice: &mut [Self], x: S::$vector) {
                simd.$store_partial(slice, x);
            }
        }
    };
}

real! {
    f32, f32s, as_simd_f32s, as_mut_simd_f32s, partial_store_f32s, super::math::exp_vectors,
    rotate_right_f32s, select_f32s, mask_between_m32s,
    splat(x: Self) -> S::f32s = splat_f32s;
    add_vectors(a: S::f32s, b: S::f32s) -> S::f32s = add_f32s;
    mul_vectors(a: S::f32s, b: S::f32s) -> S::f32s = mul_f32s;
    max_vectors(a: S::f32s, b: S::f32s) -> S::f32s = max_f32s;
    mul_add(a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s = mul_add_e_f32s;
    load_partial(slice: &[Self]) -> S::f32s = partial_load_f32s;
}

real! {
    f64, f64s, as_simd_f64s, as_mut_simd_f64s, partial_store_f64s, super::math::f64::exp_vectors,
    rotate_right_f64s, select_f64s, mask_between_m64s,
    splat(x: Self) -> S::f64s = splat_f64s;
    add_vectors(a: S::f64s, b: S::f64s) -> S::f64s = add_f64s;
    mul_vectors(a: S::f64s, b: S::f64s) -> S::f64s = mul_f64s;
    max_vectors(a: S::f64s, b: S::f64s) -> S::f64s = max_f64s;
    mul_add(a: S::f64s, b: S::f64s, c: S::f64s) -> S::f64s = mul_add_e_f64s;
    load_partial(slice: &[Self]) -> S::f64s = partial_load_f64s;
}
