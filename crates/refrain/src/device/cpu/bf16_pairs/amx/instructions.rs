//! The instructions, in assembly.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use pulp::Arch;

use super::TILE;
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::simd::{arch, tiles_allowed};

/// Permission to use tiles: there is a value only if the processor has them, the system lets this process use them, and
/// `REFRAIN_CPU` chooses no lower instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx(());

impl Amx {
    pub(crate) fn get() -> Option<Amx> {
        static USABLE: OnceLock<bool> = OnceLock::new();
        // What is around the tiles uses AVX-512, which all these processors have.
        let usable = || tiles_allowed() && matches!(arch(), Arch::V4(_)) && has_amx() && asks_the_system();
        USABLE.get_or_init(usable).then_some(Amx(()))
    }

    /// The tiles of this thread, until they are dropped.
    ///
    /// # Panics
    ///
    /// If they are in use.
    pub(crate) fn tiles(self) -> Tiles {
        assert!(!IN_USE.replace(true), "the tiles of a thread are taken once at a time");
        // SAFETY: the processor and the system have tiles, because there is a `self`. The setting is a valid one, and nobody uses another.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &SETTING, options(nostack, readonly, preserves_flags)) }
        Tiles(PhantomData)
    }
}

thread_local! {
    /// Whether there is a [`Tiles`]: the first of two that is dropped would release the other's.
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// Bits of `edx` of leaf 7 of `cpuid`: tiles, and products of bf16.
const FEATURES: u32 = 1 << 24 | 1 << 22;

fn has_amx() -> bool {
    #[allow(unused_unsafe)] // Newer versions of Rust call it safe.
    // SAFETY: every x86-64 processor has this instruction, which only reads. There may be fewer leaves.
    let (leaves, features) =
        unsafe { (std::arch::x86_64::__cpuid(0), std::arch::x86_64::__cpuid_count(7, 0)) };
    leaves.eax >= 7 && features.edx & FEATURES == FEATURES
}

/// Linux gives a process the memory to save tiles only if it asks. The answer is for all its threads.
fn asks_the_system() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call has numbers as arguments and changes what this process may do, nothing else. Systems that do not know it
    // answer an error.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// What `ldtilecfg` reads: eight tiles of 16 rows with 64 bytes each.
#[repr(C, align(64))]
struct Setting {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static SETTING: Setting = {
    let (mut row_bytes, mut rows, mut tile) = ([0; 16], [0; 16], 0);
    while tile < 8 {
        (row_bytes[tile], rows[tile]) = (64, TILE as u8);
        tile += 1;
    }
    Setting { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// The tiles of a thread, all of 16 rows with 16 elements.
pub(crate) struct Tiles(PhantomData<*const ()>);

impl Drop for Tiles {
    /// A thread whose tiles have numbers takes longer to be interrupted.
    fn drop(&mut self) {
        // SAFETY: the processor has tiles, because there is a `self`. Nobody else uses them.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) }
        IN_USE.set(false);
    }
}

/// The assembly of a product: load the starting values, in each step load tiles of the factors and add their products, and store.
macro_rules! product {
    ($of:ident, [$($start:literal),*], [$($step:literal),*], [$($store:literal),*]) => {
        asm!(
            $($start,)*
            "test {steps}, {steps}",
            "jz 3f",
            "2:",
            $($step,)*
            "add {a}, 64",
            "add {a_low}, 64",
            "add {b}, {b_step}",
            "dec {steps}",
            "jnz 2b",
            "3:",
            $($store,)*
            // Names the operands that some products do not use.
            "/* {zero} {a_low} {c_low} */",
            start = in(reg) $of.start,
            zero = in(reg) 0usize,
            a = inout(reg) $of.a => _,
            a_low = inout(reg) $of.a_low => _,
            a_stride = in(reg) $of.a_stride,
            b = inout(reg) $of.b => _,
            b_stride = in(reg) $of.b_stride,
            b_step = in(reg) TILE * $of.b_stride,
            steps = inout(reg) $of.steps => _,
            c = in(reg) $of.c,
            c_low = in(reg) $of.c_low,
            c_stride = in(reg) $of.c_stride,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Addresses of a product, and strides in bytes. Tiles of the lower 16 rows are at `a_low` and `c_low`.
struct Addresses {
    start: *const f32,
    a: *const f32,
    a_low: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    steps: usize,
    c: *mut f32,
    c_low: *mut f32,
    c_stride: usize,
}

impl Tiles {
    /// `c = start + a b` for 16 `R` rows and 16 `C` columns, both one or two tiles.
    ///
    /// `a` has `steps` tiles of pairs in a row. The first row of `panel` are the starting values, and the others the pairs of `b`, 16 for
    /// each step. Behind each slice stands the distance between its rows, in elements.
    ///
    /// In each step, the products of the first numbers of 16 pairs are added to each other, with one rounding each, and so are those of
    /// the second numbers; then these two sums are added, and then they to `c`. Subnormal numbers and results count as zero (Intel's
    /// manual, TDPBF16PS).
    ///
    /// # Panics
    ///
    /// If a slice is shorter than that.
    pub(crate) fn multiply<const R: usize, const C: usize>(
        &self,
        (a, a_stride): (&[f32], usize),
        (panel, width): (&[f32], usize),
        steps: usize,
        mut c: RectangleMut<'_, f32>,
    ) {
        let last_row = R * TILE - 1;
        assert!(steps == 0 || last_row * a_stride + steps * TILE <= a.len(), "rows of the first factor");
        assert!(steps * TILE * width + C * TILE <= panel.len(), "rows of the second factor");
        let ([c_rows, c_columns], c_stride) = (c.size(), c.row_stride());
        assert!(last_row < c_rows && C * TILE <= c_columns, "rows of the result");
        let bytes = size_of::<f32>();
        let (from, to) = (a.as_ptr(), c.as_mut_ptr());
        let of = Addresses {
            start: panel.as_ptr(),
            a: from,
            a_low: from.wrapping_add(TILE * a_stride),
            a_stride: bytes * a_stride,
            b: panel.as_ptr().wrapping_add(width),
            b_stride: bytes * width,
            steps,
            c: to,
            c_low: to.wrapping_add(TILE * c_stride),
            c_stride: bytes * c_stride,
        };
        // SAFETY: the processor and the system have tiles, and they are set to 16 rows of 64 bytes, because there is a `self`. What is read
        // and written lies in the slices and in the rectangle, as the assertions say; with `R` or `C` of 1, addresses of second tiles are not used.
        unsafe {
            match (R, C) {
                (1, 1) => product!(
                    of,
                    ["tileloadd tmm0, [{start} + {zero}]"],
                    [
                        "tileloadd tmm4, [{a} + {a_stride}]",
                        "tileloadd tmm6, [{b} + {b_stride}]",
                        "tdpbf16ps tmm0, tmm4, tmm6"
                    ],
                    ["tilestored [{c} + {c_stride}], tmm0"]
                ),
                (1, 2) => product!(
                    of,
                    ["tileloadd tmm0, [{start} + {zero}]", "tileloadd tmm1, [{start} + {zero} + 64]"],
                    [
                        "tileloadd tmm4, [{a} + {a_stride}]",
                        "tileloadd tmm6, [{b} + {b_stride}]",
                        "tileloadd tmm7, [{b} + {b_stride} + 64]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tdpbf16ps tmm1, tmm4, tmm7"
                    ],
                    ["tilestored [{c} + {c_stride}], tmm0", "tilestored [{c} + {c_stride} + 64], tmm1"]
                ),
                (2, 1) => product!(
                    of,
                    ["tileloadd tmm0, [{start} + {zero}]", "tileloadd tmm2, [{start} + {zero}]"],
                    [
                        "tileloadd tmm4, [{a} + {a_stride}]",
                        "tileloadd tmm6, [{b} + {b_stride}]",
                        "tileloadd tmm5, [{a_low} + {a_stride}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tdpbf16ps tmm2, tmm5, tmm6"
                    ],
                    ["tilestored [{c} + {c_stride}], tmm0", "tilestored [{c_low} + {c_stride}], tmm2"]
                ),
                (2, 2) => product!(
                    of,
                    [
                        "tileloadd tmm0, [{start} + {zero}]",
                        "tileloadd tmm1, [{start} + {zero} + 64]",
                        "tileloadd tmm2, [{start} + {zero}]",
                        "tileloadd tmm3, [{start} + {zero} + 64]"
                    ],
                    [
                        "tileloadd tmm4, [{a} + {a_stride}]",
                        "tileloadd tmm6, [{b} + {b_stride}]",
                        "tileloadd tmm7, [{b} + {b_stride} + 64]",
                        "tileloadd tmm5, [{a_low} + {a_stride}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tdpbf16ps tmm1, tmm4, tmm7",
                        "tdpbf16ps tmm2, tmm5, tmm6",
                        "tdpbf16ps tmm3, tmm5, tmm7"
                    ],
                    [
                        "tilestored [{c} + {c_stride}], tmm0",
                        "tilestored [{c} + {c_stride} + 64], tmm1",
                        "tilestored [{c_low} + {c_stride}], tmm2",
                        "tilestored [{c_low} + {c_stride} + 64], tmm3"
                    ]
                ),
                _ => unreachable!("one or two tiles"),
            }
        }
    }
}
