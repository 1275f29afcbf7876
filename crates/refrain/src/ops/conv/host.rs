//! Convolutions on the CPU: products of some images and a group, with windows packed from the images ([`Phases`],
//! [`PaddedGradient`]) or, of each image, as a matrix. Groups of few channels are summed directly ([`Direct`]).
//! In f16 or bf16, operands are rounded to that dtype and multiplied in f32, pairs of bf16 by the instructions for them, if the
//! processor has some.

use rayon::prelude::*;

use super::direct::host::Direct;
use super::padded_gradient::PaddedGradient;
use super::phases::Phases;
use super::places::Places;
use super::weight_gradient::WeightGradient;
use super::windows::Windows;
use super::{Convolution, Direction};
use crate::device::HostArgs;
use crate::device::cpu::bf16_pairs::Bf16Pairs;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::device::cpu::widen::{Widened, output};
use crate::error::Result;
use crate::kernels::products::host::{self as gemm, Accumulate, Epilogue, Matrix, MatrixMut, Single, Terms};
use crate::kernels::rows;
use crate::kernels::window::Window;
use crate::tensor::DType;

/// Parts of the images of a weight's gradient, at most, which threads sum side by side.
const MOST_PARTS: usize = 16;

/// Numbers of a weight's gradient that a thread sums at a time.
const PIECE: usize = 1 << 12;

/// With fewer images and groups, threads share the rows of each.
const FEW_IMAGES: usize = 8;

/// `c (+)= a b`.
fn product<R: Real, M: Terms<R>>(
    terms: M,
    a: Matrix<'_, R>,
    b: Matrix<'_, R>,
    c: MatrixMut<'_, R>,
    mode: Accumulate,
) {
    let (a, b) = (terms.elements(a), terms.elements(b.t()));
    gemm::gemm(terms, a.matrix(), b.matrix().t(), c, mode, Epilogue::default());
}

/// Calls `$run` with the elements of the products and the factors.
macro_rules! with_factors {
    ($args:expr, $factors:expr, $run:expr) => {
        match $factors {
            DType::F64 => {
                let (a, b) = (Widened::<f64>::operand($args, 0)?, Widened::<f64>::operand($args, 1)?);
                $run(Single, a.get(), b.get())
            }
            dtype => {
                let a = Widened::<f32>::rounded($args, 0, dtype)?;
                let b = Widened::<f32>::rounded($args, 1, dtype)?;
                match Bf16Pairs::for_product(dtype, 2, 2) {
                    Some(pairs) => $run(pairs, a.get(), b.get()),
                    None => $run(Single, a.get(), b.get()),
                }
            }
        }
    };
}

pub(super) fn convolve(op: &Convolution, args: &HostArgs<'_>) -> Result<()> {
    if let Some(direct) = Direct::of(&op.places, op.direction) {
        return match op.factors {
            DType::F64 => direct.convolve::<f64>(op, args),
            _ => direct.convolve::<f32>(op, args),
        };
    }
    with_factors!(args, op.factors, |terms, x, weight| {
        let planes = Planes::of(&op.places, op.sides()[0], x);
        Sums { terms, op, x: planes.get(), weight }.write(args)
    })
}

/// Images as planes of their channels: as they are, or a copy of those that have their channels last.
enum Planes<'a, E> {
    Borrowed(&'a [E]),
    Turned(Scratch<E>),
}

impl<'a, E: Real> Planes<'a, E> {
    fn of(places: &Places, (channels, [height, width]): (usize, [usize; 2]), x: &'a [E]) -> Planes<'a, E> {
        if !places.channels_last {
            return Planes::Borrowed(x);
        }
        let mut planes = Scratch::new(x.len());
        turn(x, [height * width, channels], &mut planes);
        Planes::Turned(planes)
    }

    fn get(&self) -> &[E] {
        match self {
            Planes::Borrowed(x) => x,
            Planes::Turned(planes) => planes,
        }
    }
}

/// Turns rows of `columns` numbers, `rows` of each image, to columns.
fn turn<E: Copy>(x: &[E], [rows, columns]: [usize; 2], y: &mut [E]) {
    let image = (rows * columns).max(1);
    for (x, y) in x.chunks_exact(image).zip(y.chunks_exact_mut(image)) {
        for (row, x) in x.chunks_exact(columns).enumerate() {
            x.iter().enumerate().for_each(|(column, &x)| y[column * rows + row] = x);
        }
    }
}

/// Writes the result of a convolution by planes of its channels.
fn by_planes<R: Real>(op: &Convolution, args: &HostArgs<'_>, write: impl FnOnce(&mut [R])) -> Result<()> {
    let (channels, [height, width]) = op.sides()[1];
    output(args, 0, |y: &mut [R]| {
        if !op.places.channels_last {
            return write(y);
        }
        // Nothing is added to such results.
        let mut planes = Scratch::<R>::new(y.len());
        write(&mut planes);
        turn(&planes, [channels, height * width], y);
    })
}

/// A convolution of a source.
struct Sums<'a, R, M> {
    terms: M,
    op: &'a Convolution,
    x: &'a [R],
    weight: &'a [R],
}

impl<R: Real, M: Terms<R>> Sums<'_, R, M> {
    fn write(&self, args: &HostArgs<'_>) -> Result<()> {
        let bias = if self.op.bias { Some(Widened::<R>::operand(args, 2)?) } else { None };
        let bias = bias.as_ref().map(Widened::get);
        let groups = self.op.places.groups;
        let [from, to] = self.op.sides().map(|(channels, size)| (channels / groups, size));
        let [plane, from_plane] = [to, from].map(|(_, [height, width])| height * width);
        let keep = args.accumulate(0);
        let window = match self.op.direction {
            Direction::Forward => Some(self.op.places.window),
            Direction::Transposed => turned(&self.op.places.window),
        };
        if let Some(phases) = Phases::of(&self.op.places, self.op.direction) {
            return by_planes(self.op, args, |y: &mut [R]| self.by_phases(&phases, bias, keep, y));
        }
        let windows = window.map(|window| Windows::new(window, from.0, from.1, to.1));
        let weights = windows.map(|windows| self.weights(&windows, [from.0, to.0]));
        by_planes(self.op, args, |y: &mut [R]| {
            if y.is_empty() {
                return;
            }
            parallel::for_each(true, y.par_chunks_mut(to.0 * plane).enumerate(), |(at, y)| {
                let group = at % groups;
                let bias = bias.map(|bias| &bias[group * to.0..][..to.0]);
                let x = &self.x[at * from.0 * from_plane..][..from.0 * from_plane];
                if let (Some(windows), Some(weights)) = (&windows, &weights) {
                    return self.by_windows(windows, weights, (x, group), (to, bias), keep, y);
                }
                if !keep {
                    y.fill(R::ZERO);
                }
                self.by_parts((x, group), (from, to), y);
                for (y, &bias) in y.chunks_exact_mut(plane).zip(bias.into_iter().flatten()) {
                    y.iter_mut().for_each(|y| *y += bias);
                }
            });
        })
    }

    /// The weight as a row for each result channel of each group, in the order of windows.
    fn weights(&self, windows: &Windows, [from, to]: [usize; 2]) -> Scratch<R> {
        let ([height, width], depth) = (self.op.places.window.kernel, windows.depth());
        let mut weights = Scratch::new(self.op.places.groups * to * depth);
        for (row, weights) in weights.chunks_exact_mut(depth.max(1)).enumerate() {
            for channel in 0..from {
                let (group, m) = (row / to, row % to);
                let pair = match self.op.direction {
                    Direction::Forward => row * from + channel,
                    Direction::Transposed => (group * from + channel) * to + m,
                };
                let elements = &self.weight[pair * height * width..][..height * width];
                for (at, &v) in elements.iter().enumerate() {
                    let at = match self.op.direction {
                        Direction::Forward => at,
                        Direction::Transposed => height * width - 1 - at,
                    };
                    weights[windows.place(channel, at / width, at % width)] = v;
                }
            }
        }
        weights
    }

    /// Writes an image of a group, or adds it, as a product with its windows.
    fn by_windows(
        &self,
        windows: &Windows,
        weights: &[R],
        (x, group): (&[R], usize),
        ((to, [rows, columns]), bias): ((usize, [usize; 2]), Option<&[R]>),
        keep: bool,
        y: &mut [R],
    ) {
        let (depth, begin) = (windows.depth(), windows.begin);
        let mut matrix = Scratch::new(windows.len());
        windows.write(x, R::ZERO, &mut matrix);
        let weights = Matrix::row_major(&weights[group * to * depth..], to, depth);
        let mut sums = Scratch::<R>::new(to * rows * begin);
        let c = MatrixMut::row_major(&mut sums, to, rows * begin);
        product(self.terms, weights, windows.matrix(&matrix).t(), c, Accumulate::Replace);
        simd(
            #[inline(always)]
            || {
                for (line, (y, sums)) in y.chunks_exact_mut(columns).zip(sums.chunks_exact(begin)).enumerate()
                {
                    let of_y = |y: R| if keep { y } else { R::ZERO };
                    match bias.map(|bias| bias[line / rows]) {
                        Some(bias) => y.iter_mut().zip(sums).for_each(|(y, &sum)| *y = of_y(*y) + sum + bias),
                        None => y.iter_mut().zip(sums).for_each(|(y, &sum)| *y = of_y(*y) + sum),
                    }
                }
            },
        );
    }

    /// Adds an image of a group of a transposed convolution: for each pixel of the source a window, whose elements are added
    /// where they lie, in the order of the pixels.
    fn by_parts(
        &self,
        (x, group): (&[R], usize),
        ((from, [rows, columns]), (to, [height, width])): ((usize, [usize; 2]), (usize, [usize; 2])),
        y: &mut [R],
    ) {
        let window = &self.op.places.window;
        let [kernel_h, kernel_w] = window.kernel;
        let (pixels, depth) = (rows * columns, to * kernel_h * kernel_w);
        let mut parts = Scratch::<R>::new(pixels * depth);
        let weight = Matrix::row_major(&self.weight[group * from * depth..], from, depth);
        let c = MatrixMut::row_major(&mut parts, pixels, depth);
        product(self.terms, Matrix::row_major(x, from, pixels).t(), weight, c, Accumulate::Replace);
        let parts = &*parts;
        parallel::pieces(y, height * width, |channel, y| {
            for at in 0..pixels {
                let (row, column) = (at / columns, at % columns);
                let part = &parts[at * depth + channel * kernel_h * kernel_w..][..kernel_h * kernel_w];
                for (k, line) in part.chunks_exact(kernel_w).enumerate() {
                    let Some(i) = window.place(0, row, k, height) else { continue };
                    for (k, &v) in line.iter().enumerate() {
                        if let Some(j) = window.place(1, column, k, width) {
                            y[i * width + j] += v;
                        }
                    }
                }
            }
        });
    }

    /// Writes the results of all phases, or adds them.
    fn by_phases(&self, phases: &Phases, bias: Option<&[R]>, keep: bool, y: &mut [R]) {
        if y.is_empty() {
            return;
        }
        let (groups, [(from, size), (to, result)]) = (phases.groups, phases.sides);
        let [from_plane, plane] = [size, result].map(|[height, width]| height * width);
        let (x, weights) = (self.x, phases.weights(self.weight));
        let mut made = Scratch::new(phases.elements_len(self.terms));
        let weights = phases.elements(self.terms, &weights, &mut made);
        let images_and_groups = y.len() / (to * plane);
        let few = images_and_groups < FEW_IMAGES && parallel::allowed();
        let at_once = if few { 1 } else { phases.images_at_once(images_and_groups) };
        parallel::for_each(true, y.par_chunks_mut(at_once * to * plane).enumerate(), |(task, y)| {
            let (first, n) = (task * at_once, y.len() / (to * plane));
            let group = first % groups;
            let bias = bias.map(|bias| &bias[group * to..][..to]);
            let images = (first..first + n).map(|image| &x[image * from * from_plane..][..from * from_plane]);
            let images = phases.padded.images(images);
            let block =
                if few { to.div_ceil(16).next_multiple_of(self.terms.rows_of_blocks()) } else { n * to };
            parallel::for_each(few, y.par_chunks_mut(block * plane).enumerate(), |(at, y)| {
                let (first, rows) = (at * block, y.len() / (n * plane));
                let bias = bias.map(|bias| &bias[first..]);
                let weights = (&weights, group * to + first, rows);
                phases.multiply(self.terms, &images, weights, bias, keep, y);
            });
        });
    }
}

/// The windows of the convolution that a transposed one is, if its stride is 1 and its padding not too wide.
fn turned(window: &Window) -> Option<Window> {
    let reach = [0, 1].map(|axis| window.dilation[axis] * (window.kernel[axis] - 1));
    let padding = [0, 1].map(|axis| reach[axis].checked_sub(window.padding[axis]));
    match (window.stride, padding) {
        ([1, 1], [Some(top), Some(left)]) => Some(Window { padding: [top, left], ..*window }),
        _ => None,
    }
}

pub(super) fn weight_gradient(op: &WeightGradient, args: &HostArgs<'_>) -> Result<()> {
    match (Direct::of(&op.places, Direction::Forward), op.factors) {
        (Some(direct), DType::F64) => direct.weight_gradient::<f64>(op, args)?,
        (Some(direct), _) => direct.weight_gradient::<f32>(op, args)?,
        (None, factors) => {
            with_factors!(args, factors, |terms, dy, x| {
                let Places { images: [_, channels, height, width], count, out, .. } = op.places;
                let dy = Planes::of(&op.places, (out, count), dy);
                let x = Planes::of(&op.places, (channels, [height, width]), x);
                gradient_in(terms, op, args, dy.get(), x.get())
            })?;
        }
    }
    match op.factors {
        _ if op.bias.is_none() => Ok(()),
        DType::F64 => bias_gradient::<f64>(op, args),
        _ => bias_gradient::<f32>(op, args),
    }
}

fn gradient_in<R: Real, M: Terms<R>>(
    terms: M,
    op: &WeightGradient,
    args: &HostArgs<'_>,
    dy: &[R],
    x: &[R],
) -> Result<()> {
    let (places, keep) = (&op.places, args.accumulate(0));
    if let Some(padded) = PaddedGradient::of(terms, places) {
        return output(args, 0, |dw: &mut [R]| {
            if !dw.is_empty() {
                padded.write(dy, x, keep, dw);
            }
        });
    }
    let ([n, channels, height, width], [rows, columns]) = (places.images, places.count);
    let (m, from) = (places.out / places.groups, channels / places.groups);
    let windows = Windows::new(places.window, from, [height, width], places.count);
    let (depth, begin, zero) = (windows.depth(), windows.begin, R::ZERO);
    let parts = parts_of(n);
    output(args, 0, |dw: &mut [R]| {
        if dw.is_empty() {
            return;
        }
        let mut sums = Scratch::<R>::filled(parts * dw.len(), R::ZERO);
        let each = m * depth;
        let piece = |(at, sums): (usize, &mut [R])| {
            let (part, group) = (at / places.groups, at % places.groups);
            let images = part * n / parts..(part + 1) * n / parts;
            let of_x = |image: usize| {
                let at = (image * places.groups + group) * from * height * width;
                at..at + from * height * width
            };
            let of_dy = |image: usize| {
                let at = (image * places.groups + group) * m * rows * columns;
                at..at + m * rows * columns
            };
            let mut matrix = Scratch::new(windows.len());
            let mut turned = Scratch::filled(m * rows * begin, zero);
            for image in images {
                let x = &x[of_x(image)];
                windows.write(x, zero, &mut matrix);
                for (to, dy) in turned.chunks_exact_mut(begin).zip(dy[of_dy(image)].chunks_exact(columns)) {
                    to[..columns].copy_from_slice(dy);
                }
                let dy = Matrix::row_major(&turned, m, rows * begin);
                let sums = MatrixMut::row_major(sums, m, depth);
                // Windows of no use have a `dy` of zero, which times an infinity or NaN would be NaN.
                if begin == columns || all_finite(x) {
                    product(terms, dy, windows.matrix(&matrix), sums, Accumulate::Add);
                    continue;
                }
                let mut used = Scratch::new(rows * begin * depth);
                windows.copy_used(&matrix, zero, &mut used);
                product(terms, dy, Matrix::row_major(&used, rows * begin, depth), sums, Accumulate::Add);
            }
        };
        parallel::for_each(true, sums.par_chunks_mut(each).enumerate(), piece);
        add_parts(&mut sums, dw.len());
        let all = &sums[..dw.len()];
        let [kernel_h, kernel_w] = places.window.kernel;
        parallel::pieces(dw, depth, |row, dw| {
            let all = &all[row / m * each + row % m * depth..];
            for (at, dw) in dw.iter_mut().enumerate() {
                let (channel, i, j) = (at / kernel_w / kernel_h, at / kernel_w % kernel_h, at % kernel_w);
                let sum = all[windows.place(channel, i, j)];
                *dw = if keep { *dw + sum } else { sum };
            }
        });
    })
}

/// The parts of so many images, whose sums are added. Each part sums its images in their order. Their number depends on the shape
/// alone.
pub(super) fn parts_of(images: usize) -> usize {
    images.clamp(1, MOST_PARTS)
}

/// Adds the sums of all parts, each of `len` numbers, to those of the first one.
pub(super) fn add_parts<R: Real>(sums: &mut [R], len: usize) {
    let (all, others) = sums.split_at_mut(len);
    let others = &*others;
    parallel::pieces(all, PIECE, |at, all| {
        simd(
            #[inline(always)]
            || {
                for part in others.chunks_exact(len) {
                    all.iter_mut().zip(&part[at * PIECE..]).for_each(|(all, &sum)| *all += sum);
                }
            },
        );
    });
}

/// Whether no number is an infinity or NaN.
pub(super) fn all_finite<R: Real>(x: &[R]) -> bool {
    simd(
        #[inline(always)]
        || {
            // Zero times an infinity or NaN is NaN. Without a branch, so that the loop becomes SIMD code.
            x.iter().fold(true, |all, &x| all & (x * R::ZERO == R::ZERO))
        },
    )
}

/// The sums of the channels of `dy`: of planes first, then over the images.
fn bias_gradient<R: Real>(op: &WeightGradient, args: &HostArgs<'_>) -> Result<()> {
    let (out, [height, width]) = (op.places.out, op.places.count);
    let (dy, keep) = (Widened::<R>::operand(args, 0)?, args.accumulate(1));
    let dy = Planes::of(&op.places, (out, [height, width]), dy.get());
    let dy = dy.get();
    output(args, 1, |db: &mut [R]| {
        parallel::pieces(db, 1, |channel, db| {
            let planes = dy.chunks_exact(height * width).skip(channel).step_by(out);
            let mut all = R::ZERO;
            simd(
                #[inline(always)]
                || {
                    for plane in planes {
                        all += rows::sum([plane], |[v]| v);
                    }
                },
            );
            db[0] = if keep { db[0] + all } else { all };
        });
    })
}
