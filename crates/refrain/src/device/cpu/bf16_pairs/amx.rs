//! Products by tiles of AMX (`tdpbf16ps`), which Intel's server processors have since Sapphire Rapids.
#![allow(unsafe_code)] // Instructions that Rust has no functions for, and not every processor has.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod instructions;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use instructions::{Amx, Tiles};
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) use missing::{Amx, Tiles};

/// Rows of a tile, and elements of 32 bits in a row.
pub(crate) const TILE: usize = 16;

/// Other systems and processors have no tiles: there are no values.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod missing {
    use crate::device::cpu::rectangle::RectangleMut;

    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Amx {}

    pub(crate) struct Tiles(());

    impl Amx {
        pub(crate) fn get() -> Option<Amx> {
            None
        }

        pub(crate) fn tiles(self) -> Tiles {
            match self {}
        }
    }

    impl Tiles {
        pub(crate) fn multiply<const R: usize, const C: usize>(
            &self,
            _: (&[f32], usize),
            _: (&[f32], usize),
            _: usize,
            _: RectangleMut<'_, f32>,
        ) {
            unreachable!("there is no `Amx` to get tiles from")
        }
    }
}
