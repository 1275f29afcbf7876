//! Pooling on the CPU: plane by plane.

use super::{Kind, Pool};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, with_float};
use crate::device::cpu::{parallel, scratch::Scratch};
use crate::error::Result;

impl Pool {
    /// The places of window `at` in its image, as ranges of rows and columns.
    fn ranges(&self, at: usize) -> [std::ops::Range<usize>; 2] {
        let [.., columns] = self.count;
        let range = |axis: usize, i: usize| {
            let begin = i * self.window.stride[axis];
            let (padding, size) = (self.window.padding[axis], self.images[2 + axis]);
            begin.saturating_sub(padding)
                ..(begin + self.window.kernel[axis]).saturating_sub(padding).min(size)
        };
        [range(0, at / columns), range(1, at % columns)]
    }

    /// What the sum of a window is divided by.
    fn divisor(&self, [rows, columns]: &[std::ops::Range<usize>; 2]) -> f64 {
        let all = self.kind == Kind::Mean { all: true };
        let [rows, columns] = if all { self.window.kernel } else { [rows.len(), columns.len()] };
        rows as f64 * columns as f64
    }
}

pub(super) fn forward(pool: &Pool, args: &HostArgs<'_>) -> Result<()> {
    let [.., height, width] = pool.images;
    let [rows, columns] = pool.count;
    with_float!(args, args.read_dtype(0), T, R => {
        let (x, y) = (args.read::<T>(0)?, args.write::<T>(0)?);
        let plane = |i: usize| &x[i * height * width..][..height * width];
        if pool.kind == Kind::Max {
            let places = args.write::<i64>(1)?;
            parallel::pieces(places, rows * columns, |i, places| {
                let x = plane(i);
                for (at, to) in places.iter_mut().enumerate() {
                    let [rows, columns] = pool.ranges(at);
                    let mut best = rows.start * width + columns.start;
                    for i in rows {
                        for place in i * width + columns.start..i * width + columns.end {
                            let (v, most) = (x[place].to::<R>(), x[best].to::<R>());
                            if v > most || (v.is_nan() && !most.is_nan()) {
                                best = place;
                            }
                        }
                    }
                    *to = best as i64;
                }
            });
            let places = &*places;
            parallel::pieces(y, rows * columns, |i, y| {
                let (x, places) = (plane(i), &places[i * rows * columns..]);
                y.iter_mut().zip(places).for_each(|(y, &place)| *y = x[place as usize]);
            });
            return Ok(());
        }
        parallel::pieces(y, rows * columns, |i, y| {
            let x = plane(i);
            for (at, y) in y.iter_mut().enumerate() {
                let ranges = pool.ranges(at);
                let [rows, columns] = &ranges;
                let mut sum = <R as Number>::ZERO;
                for i in rows.clone() {
                    x[i * width..][columns.clone()].iter().for_each(|v| sum += v.to::<R>());
                }
                *y = T::from_number(sum / R::from_f64(pool.divisor(&ranges)));
            }
        });
        Ok(())
    })
}

pub(super) fn backward(pool: &Pool, args: &HostArgs<'_>) -> Result<()> {
    let [.., height, width] = pool.images;
    let windows = pool.count[0] * pool.count[1];
    let accumulate = args.accumulate(0);
    with_float!(args, args.write_dtype(0), T, R => {
        let dy = args.read::<T>(0)?;
        let places = if pool.kind == Kind::Max { args.read::<i64>(1)? } else { &[] };
        parallel::pieces(args.write::<T>(0)?, height * width, |plane, dx| {
            let dy = &dy[plane * windows..][..windows];
            let mut sums = Scratch::filled(dx.len(), <R as Number>::ZERO);
            for (at, d) in dy.iter().enumerate() {
                let d: R = d.to();
                if pool.kind == Kind::Max {
                    // The places are those that the operation wrote; one out of range has no element.
                    if let Some(sum) = sums.get_mut(places[plane * windows + at] as usize) {
                        *sum += d;
                    }
                    continue;
                }
                let ranges = pool.ranges(at);
                let share = d / R::from_f64(pool.divisor(&ranges));
                let [rows, columns] = ranges;
                for i in rows {
                    sums[i * width..][columns.clone()].iter_mut().for_each(|sum| *sum += share);
                }
            }
            for (dx, &sum) in dx.iter_mut().zip(&*sums) {
                *dx = T::from_number(if accumulate { dx.to::<R>() + sum } else { sum });
            }
        });
        Ok(())
    })
}
