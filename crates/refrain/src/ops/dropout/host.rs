//! Dropout on the CPU.

use rayon::prelude::*;

use super::{Dropout, scale, threshold};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real, Stored, with_float};
use crate::device::cpu::{parallel, simd::simd};
use crate::error::Result;
use crate::kernels::elementwise::{self, FloatTile};
use crate::ops::random::{host::position, philox};

/// Elements per iteration: a whole number of random blocks.
const TILE: usize = 1024;

pub(super) fn forward(op: &Dropout, args: &HostArgs<'_>) -> Result<()> {
    let (seed, first) = position(args, 1 + usize::from(op.adds), op.place.block())?;
    let (skip, threshold) = (op.place.skip(), threshold(op.p));
    with_float!(args, args.write_dtype(0), T, R => {
        let x = if args.in_place(0).is_some() { None } else { Some(args.read::<T>(0)?) };
        let residual = if op.adds { Some(args.read::<T>(1)?) } else { None };
        let y = args.write::<T>(0)?;
        let scale = R::c(scale(op.p));
        let tile = |i: usize, y: &mut [T], mask: &mut [u8]| {
            let mut words = [0u32; TILE + philox::WORDS];
            let words = &mut words[..skip + y.len()];
            philox::fill(seed, first.wrapping_add((i * TILE / philox::WORDS) as u64), words);
            let words = &words[skip..];
            if let Some(x) = x {
                y.copy_from_slice(&x[i * TILE..][..y.len()]);
            }
            let residual = residual.map(|residual| &residual[i * TILE..][..y.len()]);
            simd(
                #[inline(always)]
                || {
                    match residual {
                        None => {
                            for (y, &w) in y.iter_mut().zip(words.iter()) {
                                let kept = y.to::<R>() * scale;
                                *y = T::from_number(if u64::from(w) >= threshold { kept } else { R::ZERO });
                            }
                        }
                        Some(residual) => {
                            for ((y, &w), r) in y.iter_mut().zip(words.iter()).zip(residual) {
                                let kept = y.to::<R>() * scale;
                                let branch = if u64::from(w) >= threshold { kept } else { R::ZERO };
                                *y = T::from_number(r.to::<R>() + branch);
                            }
                        }
                    }
                    for (m, &w) in mask.iter_mut().zip(words.iter()) {
                        *m = (u64::from(w) >= threshold) as u8;
                    }
                },
            );
        };
        if !op.keeps_mask {
            parallel::pieces(y, TILE, |i, y| tile(i, y, &mut []));
            return Ok(());
        }
        let mask = args.write::<u8>(1)?;
        let tiles = y.par_chunks_mut(TILE).zip(mask.par_chunks_mut(TILE)).enumerate();
        parallel::for_each(tiles.len() > 8, tiles, |(i, (y, m))| tile(i, y, m));
        Ok(())
    })
}

struct Masked(f64);

impl FloatTile for Masked {
    fn tile<R: Real>(&self, x: &[&[R]], dx: &mut [R]) {
        let (dy, mask, scale) = (x[0], x[1], R::c(self.0));
        simd(
            #[inline(always)]
            || {
                for ((dx, &dy), &m) in dx.iter_mut().zip(dy).zip(mask) {
                    *dx = if m == R::ZERO { R::ZERO } else { dy * scale };
                }
            },
        );
    }
}

pub(super) fn backward(scale: f64, args: &HostArgs<'_>) -> Result<()> {
    elementwise::float(args, args.write_dtype(0), &Masked(scale))
}
