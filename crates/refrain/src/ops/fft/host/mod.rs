//! Fourier transforms on the CPU. Several are computed side by side, as lanes, so that the compiler vectorises all stages.

mod bins;
mod roots;
mod stages;

use rayon::prelude::*;

use self::roots::Roots;
use super::plan::Plan;
use super::{Fft, Form};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::{parallel, scratch::Scratch, simd::simd};
use crate::error::Result;
use crate::kernels::elementwise::{Lines, LinesMut, transpose};

/// Transforms side by side, at most.
const LANES: usize = 16;
/// The complex points that are transformed at a time, about, so that they stay in the cache.
const POINTS_AT_A_TIME: usize = 1 << 13;

pub(super) fn transform(op: &Fft, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.write_dtype(0), T, R => of::<T, R>(op, args))
}

fn of<T: Stored, R: Real>(op: &Fft, args: &HostArgs<'_>) -> Result<()> {
    let plan = op.plan(stages::LARGEST_POWER)?;
    let inner = op.extent(args.write_shape(0)).inner;
    let lanes = (POINTS_AT_A_TIME / plan.points).clamp(1, LANES);
    // A task is a slice, or rows that lie one behind the other.
    let at_once = if inner == 1 { lanes } else { inner };
    let (from, to) = op.sizes();
    let (from, to) = (from * at_once, (to * at_once).max(1));
    let x = match op.form {
        Form::Forward { .. } => [args.read::<T>(0)?, &[]],
        _ => [args.read::<T>(0)?, args.read::<T>(1)?],
    };
    let of_task = |task: usize| x.map(|x| x.get(task * from..).unwrap_or_default());
    let (re, roots) = (args.write::<T>(0)?, Roots::new(plan.n));
    let worthwhile = parallel::worthwhile(re.len());
    let re = re.par_chunks_mut(to).enumerate();
    let job = Job::<R> { op, plan: &plan, roots: &roots, lanes, inner };
    match op.form {
        Form::Inverse { .. } => {
            let add = [args.accumulate(0), false];
            parallel::for_each(worthwhile, re, |(task, re)| job.run(of_task(task), [re, &mut []], add));
        }
        _ => {
            let add = [args.accumulate(0), args.accumulate(1)];
            let both = re.zip(args.write::<T>(1)?.par_chunks_mut(to));
            parallel::for_each(worthwhile, both, |((task, re), im)| job.run(of_task(task), [re, im], add));
        }
    }
    Ok(())
}

/// Real and imaginary parts: `lanes` numbers for each point.
struct Planes<'a, R> {
    re: &'a mut [R],
    im: &'a mut [R],
}

impl<R> Planes<'_, R> {
    fn swap(&mut self) {
        std::mem::swap(&mut self.re, &mut self.im);
    }
}

/// What all tasks of a launch know.
struct Job<'a, R> {
    op: &'a Fft,
    plan: &'a Plan,
    roots: &'a Roots<R>,
    /// Transforms side by side, at most.
    lanes: usize,
    inner: usize,
}

impl<R: Real> Job<'_, R> {
    /// Transforms a slice, or some rows.
    fn run<T: Stored>(&self, from: [&[T]; 2], to: [&mut [T]; 2], add: [bool; 2]) {
        let (of_operand, of_result) = self.op.sizes();
        let rows = to[0].len() / of_result;
        if self.inner > 1 || rows == 1 {
            return self.columns(from, to, self.inner, add);
        }
        // Rows become columns, so that those side by side are neighbours.
        let operands = from.map(|x| transposed(&x[..x.len().min(rows * of_operand)], rows, of_operand));
        let mut results = [0, 1].map(|i| match add[i] {
            true => transposed(to[i], rows, of_result),
            false => Scratch::new(to[i].len()),
        });
        let [re, im] = &mut results;
        self.columns([&operands[0], &operands[1]], [re, im], rows, add);
        for (to, result) in to.into_iter().zip(&results) {
            transpose_rows(result, to, of_result, rows);
        }
    }

    /// Transforms the columns of a slice, some at a time.
    fn columns<T: Stored>(&self, from: [&[T]; 2], mut to: [&mut [T]; 2], inner: usize, add: [bool; 2]) {
        // There may be one bin more than points.
        let plane = (self.plan.points + 1) * self.lanes.min(inner);
        let mut scratch = Scratch::<R>::new(4 * plane);
        let (x, y) = scratch.split_at_mut(2 * plane);
        let planes = |(re, im)| Planes { re, im };
        let (mut x, mut y) = (planes(x.split_at_mut(plane)), planes(y.split_at_mut(plane)));
        for first in (0..inner).step_by(self.lanes) {
            let place = Place { first, point: inner, lanes: self.lanes.min(inner - first) };
            self.load(from, place, &mut x);
            if let Form::Inverse { .. } = self.op.form {
                bins::to_points(self, place.lanes, &x, &mut y);
                std::mem::swap(&mut x, &mut y);
            }
            stages::run(self.plan, self.roots, place.lanes, &mut x, &mut y);
            if let Form::Forward { .. } = self.op.form {
                bins::from_points(self, place.lanes, &x, &mut y);
                std::mem::swap(&mut x, &mut y);
            }
            self.store(&mut x, place, &mut to, add);
        }
    }

    /// The operands as points, or as bins. The parts are swapped for an inverse transform, which is computed as a forward one.
    fn load<T: Stored>(&self, from: [&[T]; 2], place: Place, x: &mut Planes<'_, R>) {
        let Place { point, lanes, .. } = place;
        match self.op.form {
            Form::Forward { .. } if self.plan.is_halved() => {
                let pairs = Place { point: 2 * point, ..place };
                pairs.gather(from[0], self.plan.points, x.re);
                Place { first: place.first + point, ..pairs }.gather(from[0], self.plan.points, x.im);
            }
            Form::Forward { .. } => {
                place.gather(from[0], self.plan.n, x.re);
                x.im[..self.plan.n * lanes].fill(R::ZERO);
            }
            Form::Complex { .. } | Form::Inverse { .. } => {
                let size = self.op.sizes().0;
                place.gather(from[0], size, x.re);
                place.gather(from[1], size, x.im);
                if let Form::Complex { inverse: true, .. } = self.op.form {
                    x.swap();
                }
            }
        }
    }

    fn store<T: Stored>(&self, x: &mut Planes<'_, R>, place: Place, to: &mut [&mut [T]; 2], add: [bool; 2]) {
        let [re, im] = to;
        let Place { point, .. } = place;
        match self.op.form {
            Form::Inverse { .. } if self.plan.is_halved() => {
                let pairs = Place { point: 2 * point, ..place };
                pairs.scatter(x.im, self.plan.points, 1.0, re, add[0]);
                let odd = Place { first: place.first + point, ..pairs };
                odd.scatter(x.re, self.plan.points, 1.0, re, add[0]);
            }
            Form::Inverse { .. } => place.scatter(x.im, self.plan.n, 1.0, re, add[0]),
            Form::Forward { .. } => {
                place.scatter(x.re, self.op.sizes().1, 1.0, re, add[0]);
                place.scatter(x.im, self.op.sizes().1, 1.0, im, add[1]);
            }
            Form::Complex { inverse, scale } => {
                if inverse {
                    x.swap();
                }
                place.scatter(x.re, self.plan.n, scale, re, add[0]);
                place.scatter(x.im, self.plan.n, scale, im, add[1]);
            }
        }
    }
}

/// Makes `rows` rows of `width` numbers, one behind the other, the columns of `to`.
fn transpose_rows<T: Stored>(x: &[T], to: &mut [T], rows: usize, width: usize) {
    // A form may have one operand or one result.
    if !x.is_empty() {
        transpose(Lines { data: x, step: width }, LinesMut { data: to, step: rows }, width, rows);
    }
}

fn transposed<T: Stored>(x: &[T], rows: usize, width: usize) -> Scratch<T> {
    let mut columns = Scratch::new(x.len());
    transpose_rows(x, &mut columns, rows, width);
    columns
}

/// Where lanes lie in memory: from a point to the next. Those of a point are neighbours.
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    point: usize,
    lanes: usize,
}

impl Place {
    fn gather<T: Stored, R: Real>(self, from: &[T], points: usize, to: &mut [R]) {
        let Place { first, point, lanes } = self;
        simd(
            #[inline(always)]
            || {
                for (k, to) in to[..points * lanes].chunks_exact_mut(lanes).enumerate() {
                    let from = &from[first + k * point..][..lanes];
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to());
                }
            },
        );
    }

    fn scatter<T: Stored, R: Real>(self, from: &[R], points: usize, scale: f64, to: &mut [T], add: bool) {
        let Place { first, point, lanes } = self;
        let scale = R::c(scale);
        simd(
            #[inline(always)]
            || {
                for (k, from) in from[..points * lanes].chunks_exact(lanes).enumerate() {
                    let to = &mut to[first + k * point..][..lanes];
                    for (to, &from) in to.iter_mut().zip(from) {
                        let value = from * scale;
                        *to = T::from_number(if add { to.to::<R>() + value } else { value });
                    }
                }
            },
        );
    }
}
