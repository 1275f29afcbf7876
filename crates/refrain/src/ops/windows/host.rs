//! Windows on the CPU.

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, with_float, with_stored};
use crate::device::cpu::{parallel, scratch::Scratch};
use crate::error::Result;
use crate::kernels::positions::{Position, check_range, missing};

/// Channels that are transposed together, so that each cache line of the series is read once.
const CHANNELS: usize = 16;

fn check_starts<I: Position>(args: &HostArgs<'_>, starts: &[I], time: usize, length: usize) -> Result<()> {
    check_range(args, 1, starts, time - length + 1, || {
        format!("the starts of windows of {length} time steps in a series of {time}")
    })
}

pub(super) fn forward<I: Position>(length: usize, starts: &[I], args: &HostArgs<'_>) -> Result<()> {
    let series = args.read_layout(0);
    let (time, channels) = (series.shape()[0], series.shape()[1]);
    let (step, side) = (series.strides()[0], series.strides()[1]);
    check_starts(args, starts, time, length)?;
    with_stored!(args.write_dtype(0), T => {
        let x = args.read::<T>(0)?;
        parallel::pieces(args.write::<T>(0)?, channels * length, |b, window| {
            let Some(start) = starts[b].within(time - length + 1) else { return window.fill(missing()) };
            let first = start * step;
            for (group, rows) in window.chunks_mut(CHANNELS * length).enumerate() {
                let first = first + group * CHANNELS * side;
                if step == 1 {
                    for (c, row) in rows.chunks_mut(length).enumerate() {
                        row.copy_from_slice(&x[first + c * side..][..length]);
                    }
                    continue;
                }
                let count = rows.len() / length;
                for l in 0..length {
                    let at = first + l * step;
                    for c in 0..count {
                        rows[c * length + l] = x[at + c * side];
                    }
                }
            }
        });
    });
    Ok(())
}

pub(super) fn backward<I: Position>(time: usize, starts: &[I], args: &HostArgs<'_>) -> Result<()> {
    let (channels, length) = (args.read_shape(0)[1], args.read_shape(0)[2]);
    check_starts(args, starts, time, length)?;
    let accumulate = args.accumulate(0);
    with_float!(args, args.write_dtype(0), T, R => {
        let dy = args.read::<T>(0)?;
        let dx = args.write::<T>(0)?;
        let mut sum = Scratch::filled(dx.len(), <R as Number>::ZERO);
        if channels * length > 0 {
            for (start, window) in starts.iter().zip(dy.chunks_exact(channels * length)) {
                let Some(start) = start.within(time - length + 1) else { continue };
                for (c, row) in window.chunks_exact(length).enumerate() {
                    let first = start * channels + c;
                    for (sum, &d) in sum[first..].iter_mut().step_by(channels).zip(row) {
                        *sum += d.to::<R>();
                    }
                }
            }
        }
        for (dx, &sum) in dx.iter_mut().zip(&*sum) {
            *dx = T::from_number(if accumulate { dx.to::<R>() + sum } else { sum });
        }
        Ok(())
    })
}
