//! Convolutions of many channels of f32 on CUDA, in TF32 only the gradients of weights of 1 x 1: the windows of some images are laid
//! out as a matrix in the working memory and multiplied as any other matrix. The kernels that gather windows while they multiply have
//! small tiles, and read each number of a window anew for every 64 channels of the result.

use super::cuda::{ConvSizes, FACTOR, GATHER, Plan, TAPS, check, forms, pack_weights};
use super::weight_gradient::WeightGradient;
use super::{Convolution, Direction};
use crate::device::cuda::{
    CudaArgs, Gpu, Grid, KernelSpec, MMA, MatrixOperand, Pointer, Product, Source, View, params,
};
use crate::error::Result;
use crate::kernels::products::cuda::{self as products, FORMS};
use crate::tensor::{DType, Layout, Shape};
use crate::types::Precision;

static COLUMNS: Source =
    Source { name: "conv_columns", parts: &[MMA, FORMS, TAPS, FACTOR, GATHER, include_str!("columns.cu")] };
static PLANES: Source =
    Source { name: "conv_planes", parts: &[MMA, FORMS, FACTOR, include_str!("planes.cu")] };
static WEIGHT: Source = Source { name: "conv_weight", parts: &[include_str!("unfolded_weight.cu")] };

/// The dtype of what is multiplied, and of the sums.
const FACTORS: DType = DType::F32;
/// The most bytes of a matrix of windows and its result, but those of at least one image; and the most of one image. In unit tests few
/// images have several matrices.
const MATRIX_BYTES: usize = if cfg!(test) { 16 << 20 } else { 128 << 20 };
const LARGEST_IMAGE: usize = 256 << 20;
/// Fewer channels of the result, numbers of a sum, or multiplications are not worth the matrix. Measured on an H200 with products of 16-bit
/// numbers, layers of 64 channels took 135 us without it and 197 with it, those of 128 135 and 101, those of 512 218 and 60; the
/// gradient of a weight of 64 channels 217 and 206.
const LEAST_CHANNELS: usize = 96;
const LEAST_CHANNELS_OF_WEIGHT: usize = 48;
const LEAST_SUM: usize = 64;
const LEAST_WORK: usize = 1 << 28;
/// The most numbers of the weight.
const MOST_WEIGHTS: usize = 1 << 30;
/// Bytes of a piece that a thread stores, and at whose multiples parts of the working memory begin.
pub(super) const PIECE_BYTES: usize = 16;
const ALIGNMENT: usize = 256;
const THREADS: usize = 256;
/// Pieces of a row that a thread lays out.
const PIECES_OF_A_THREAD: usize = 4;
const MOST_BLOCKS: usize = 132 * 16;

params! {
    struct ConvColumns {
        x: Pointer = "const X_TYPE*",
        y: Pointer = "IN*",
        rows: i64,
        /// From one row to the next.
        step: i64,
        /// Of a row, a block for each.
        parts: i64,
        sizes: ConvSizes,
    }

    struct ConvPlanes {
        x: Pointer,
        y: Pointer,
        bias: Pointer,
        images: i64,
        channels: i64,
        /// Pixels of a channel of an image.
        plane: i64,
        step: i64,
        add: i64,
    }

    struct ConvUnfoldedWeight {
        sums: Pointer = "const float*",
        dw: Pointer = "DW_TYPE*",
        db: Pointer,
        /// Of the result.
        channels: i64,
        /// Of a row of the weight.
        from_channels: i64,
        taps: i64,
        step: i64,
        add: i64,
        add_bias: i64,
    }
}

/// The matrix of the windows of so many images.
#[derive(Clone, Copy)]
struct Matrix {
    images: usize,
    /// Pixels of a channel of an image.
    plane: usize,
    /// Numbers of the sums, whether a row of ones is behind them, and all rows, with zeros behind these.
    sum: usize,
    with_ones: bool,
    rows: usize,
    channels: usize,
    precision: Precision,
}

impl Matrix {
    /// `None` if the windows are better gathered while they are multiplied.
    fn of(op: &Convolution, least_channels: usize, with_ones: bool) -> Option<Matrix> {
        let (window, images) = (op.places.window, op.places.images[0]);
        let [(from, _), (channels, size)] = op.sides();
        let has_phases = op.direction == Direction::Transposed && window.stride != [1, 1];
        if op.places.groups != 1 || op.factors != FACTORS || has_phases {
            return None;
        }
        let sum = from * window.kernel[0] * window.kernel[1];
        let plane = size[0] * size[1];
        // The library is slow for sums that do not end with a piece.
        let rows = (sum + usize::from(with_ones)).next_multiple_of(PIECE_BYTES / FACTORS.size());
        let work = [sum, channels, plane].iter().try_fold(images, |work, &x| work.checked_mul(x))?;
        let bytes = (rows + channels).checked_mul(plane)?.checked_mul(FACTORS.size())?;
        let is_small = channels < least_channels || sum < LEAST_SUM || work < LEAST_WORK;
        if is_small || bytes > LARGEST_IMAGE || rows.checked_mul(channels)? > MOST_WEIGHTS {
            return None;
        }
        let parts = images.div_ceil((MATRIX_BYTES / bytes).max(1));
        let images = images.div_ceil(parts);
        Some(Matrix { images, plane, sum, with_ones, rows, channels, precision: op.precision })
    }

    /// Numbers of a row.
    fn step(&self) -> usize {
        (self.images * self.plane).next_multiple_of(PIECE_BYTES / FACTORS.size())
    }

    fn bytes(&self) -> usize {
        (self.rows * self.step() * FACTORS.size()).next_multiple_of(ALIGNMENT)
    }

    /// Those of all images: of the first image each, and the matrix.
    fn all(self, images: usize) -> impl Iterator<Item = (usize, Matrix)> {
        let each = self.images;
        (0..images)
            .step_by(each)
            .map(move |first| (first, Matrix { images: each.min(images - first), ..self }))
    }

    /// The same without those that are like the second one.
    fn different(self, images: usize) -> impl Iterator<Item = (usize, Matrix)> {
        let each = self.images;
        self.all(images).filter(move |(first, matrix)| *first <= each || matrix.images != each)
    }

    /// Pixels that a thread moves between the images and rows of channels, if both begin at such addresses.
    fn pixels_at_once(&self, alignment: usize, dtype: DType) -> usize {
        let most = PIECE_BYTES / FACTORS.size().min(dtype.size());
        let fits = |&n: &usize| self.plane.is_multiple_of(n) && alignment.is_multiple_of(n * dtype.size());
        std::iter::successors(Some(most), |n| Some(n / 2)).find(fits).unwrap_or(1)
    }

    /// Lays out the windows of the images that begin at `x`.
    fn launch(
        &self,
        op: &Convolution,
        x: Pointer,
        to: Pointer,
        args: &mut CudaArgs<'_>,
        of: usize,
    ) -> Result<()> {
        let sizes = ConvSizes::of(&op.places, op.direction).of_images(self.images);
        let pieces = self.step() * FACTORS.size() / PIECE_BYTES;
        let parts = pieces.div_ceil(THREADS * PIECES_OF_A_THREAD).max(1);
        let spec = forms(&COLUMNS, "conv_columns", op)
            .dtype("X_TYPE", args.read_dtype(of))
            .flag("ONES", self.with_ones);
        let told = ConvColumns {
            x,
            y: to,
            rows: self.rows as i64,
            step: self.step() as i64,
            parts: parts as i64,
            sizes,
        };
        args.kernel(spec, Grid::line(self.rows * parts, THREADS as u32), &told)
    }
}

fn grid(threads: usize) -> Grid {
    Grid::line(threads.div_ceil(THREADS).clamp(1, MOST_BLOCKS), THREADS as u32)
}

/// A matrix in the working memory, whose rows are `step` apart.
pub(super) fn rows_of(
    pointer: Pointer,
    dtype: DType,
    [rows, columns]: [usize; 2],
    step: usize,
) -> MatrixOperand {
    let layout = Layout::contiguous(Shape::from([rows, step]));
    let whole = MatrixOperand::row_major(&View { pointer, layout: &layout, dtype }, rows, step);
    MatrixOperand { dense: [rows <= 1, true], col: usize::from(columns > 1), ..whole }
}

fn product(
    precision: Precision,
    sizes: [usize; 3],
    (a, b): (MatrixOperand, MatrixOperand),
    (c, dtype): (Pointer, DType),
) -> Product {
    let layout = Layout::contiguous(Shape::from([sizes[0], sizes[1]]));
    Product::new(precision, sizes, a, b, &View { pointer: c, layout: &layout, dtype })
}

/// A convolution by matrices of windows.
pub(super) struct Unfolded<'a> {
    op: &'a Convolution,
    plan: Plan,
    matrix: Matrix,
}

impl<'a> Unfolded<'a> {
    pub(super) fn of(op: &'a Convolution) -> Option<Unfolded<'a>> {
        let matrix = Matrix::of(op, LEAST_CHANNELS, false)?;
        Some(Unfolded { op, plan: Plan::of(op), matrix })
    }

    /// Where the packed weight, the matrix and the products begin, and where they end.
    fn places(&self) -> [usize; 4] {
        let weights = (self.plan.weights(1) * FACTORS.size()).next_multiple_of(ALIGNMENT);
        let matrix = weights + self.matrix.bytes();
        let products = self.matrix.channels * self.matrix.step() * FACTORS.size();
        [0, weights, matrix, matrix + products.next_multiple_of(ALIGNMENT)]
    }

    fn product(&self, matrix: &Matrix, first: usize) -> Product {
        let [weights, columns, products, _] = self.places().map(|at| Pointer::WORKSPACE.plus(first + at));
        let (m, n, k) = (matrix.channels, matrix.step(), matrix.rows);
        let a = rows_of(weights, FACTORS, [m, k], self.plan.columns);
        let b = rows_of(columns, FACTORS, [k, n], n);
        product(matrix.precision, [m, n, k], (a, b), (products, FACTORS))
    }

    pub(super) fn workspace(&self, op: &'static str, gpu: &dyn Gpu) -> Result<usize> {
        let mut most = 0;
        for (_, matrix) in self.matrix.different(self.op.places.images[0]) {
            most = most.max(products::workspace(gpu, op, &self.product(&matrix, 0))?);
        }
        Ok(most.next_multiple_of(ALIGNMENT) + self.places()[3])
    }

    pub(super) fn run(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let op = self.op;
        check(args.op(), &op.places)?;
        let first = behind_products(args, self.places()[3]);
        let [weights, columns, products, _] = self.places().map(|at| args.workspace().plus(first + at));
        pack_weights(op, &self.plan, weights, args)?;
        let [(from, source), _] = op.sides();
        let image = from * source[0] * source[1] * args.read_dtype(0).size();
        let result = self.matrix.channels * self.matrix.plane * args.write_dtype(0).size();
        for (at, matrix) in self.matrix.all(op.places.images[0]) {
            matrix.launch(op, args.read(0).plus(at * image), columns, args, 0)?;
            products::run(args, &self.product(&matrix, first))?;
            let y = args.write(0).plus(at * result);
            let alignment = args.alignment(y);
            let each = matrix.pixels_at_once(alignment, args.write_dtype(0));
            let spec = planes(op, "conv_to_planes", FACTORS, args.write_dtype(0), each)
                .dtype("BIAS_TYPE", if op.bias { args.read_dtype(2) } else { DType::F32 });
            let told = ConvPlanes {
                x: products,
                y,
                bias: if op.bias { args.read(2) } else { Pointer::NOTHING },
                images: matrix.images as i64,
                channels: matrix.channels as i64,
                plane: matrix.plane as i64,
                step: matrix.step() as i64,
                add: args.accumulate(0).into(),
            };
            args.kernel(spec, grid(matrix.channels * matrix.images * matrix.plane / each), &told)?;
        }
        Ok(())
    }
}

/// Where so many bytes begin that lie at the end of the working memory, whose beginning is that of the products.
fn behind_products(args: &CudaArgs<'_>, bytes: usize) -> usize {
    match args.runs() {
        true => args.workspace_bytes().saturating_sub(bytes) / ALIGNMENT * ALIGNMENT,
        false => 0,
    }
}

fn planes(op: &Convolution, entry: &'static str, from: DType, to: DType, each: usize) -> KernelSpec {
    forms(&PLANES, entry, op).dtype("FROM", from).dtype("TO", to).int("VEC", each as i64)
}

/// The gradient of a weight by matrices of windows.
pub(super) struct UnfoldedWeight<'a> {
    op: &'a WeightGradient,
    /// The convolution whose windows these are.
    windows: Convolution,
    matrix: Matrix,
}

impl<'a> UnfoldedWeight<'a> {
    pub(super) fn of(op: &'a WeightGradient) -> Option<UnfoldedWeight<'a>> {
        let windows = Convolution {
            name: "conv2d",
            places: op.places,
            direction: Direction::Forward,
            bias: false,
            is_laid_out: false,
            precision: op.precision,
            factors: op.factors,
            dtype: op.factors,
        };
        let matrix = Matrix::of(&windows, LEAST_CHANNELS_OF_WEIGHT, true)?;
        Some(UnfoldedWeight { op, windows, matrix })
    }

    /// Where the rows of channels, the matrix and the sums begin, and where they end.
    fn places(&self) -> [usize; 4] {
        let Matrix { channels, rows, .. } = self.matrix;
        let planes = (channels * self.matrix.step() * FACTORS.size()).next_multiple_of(ALIGNMENT);
        let sums = planes + self.matrix.bytes();
        [0, planes, sums, sums + (channels * rows * FACTORS.size()).next_multiple_of(ALIGNMENT)]
    }

    fn product(&self, matrix: &Matrix, is_first: bool, first: usize) -> Product {
        let [planes, columns, sums, _] = self.places().map(|at| Pointer::WORKSPACE.plus(first + at));
        let (m, n, k) = (matrix.channels, matrix.rows, matrix.step());
        let a = rows_of(planes, FACTORS, [m, k], k);
        let b = rows_of(columns, FACTORS, [n, k], k).t();
        let product = product(matrix.precision, [m, n, k], (a, b), (sums, FACTORS));
        Product { add: !is_first, ..product }
    }

    pub(super) fn workspace(&self, op: &'static str, gpu: &dyn Gpu) -> Result<usize> {
        let mut most = 0;
        for (at, matrix) in self.matrix.different(self.op.places.images[0]) {
            most = most.max(products::workspace(gpu, op, &self.product(&matrix, at == 0, 0))?);
        }
        Ok(most.next_multiple_of(ALIGNMENT) + self.places()[3])
    }

    pub(super) fn run(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let op = self.op;
        check(args.op(), &op.places)?;
        let first = behind_products(args, self.places()[3]);
        let [planes_at, columns, sums, _] = self.places().map(|at| args.workspace().plus(first + at));
        let [n, channels, height, width] = op.places.images;
        let image = channels * height * width * args.read_dtype(1).size();
        let result = self.matrix.channels * self.matrix.plane * args.read_dtype(0).size();
        for (at, matrix) in self.matrix.all(n) {
            let dy = args.read(0).plus(at * result);
            let each = matrix.pixels_at_once(args.alignment(dy), args.read_dtype(0));
            let spec = planes(&self.windows, "conv_from_planes", args.read_dtype(0), FACTORS, each)
                .dtype("BIAS_TYPE", DType::F32);
            let told = ConvPlanes {
                x: dy,
                y: planes_at,
                bias: Pointer::NOTHING,
                images: matrix.images as i64,
                channels: matrix.channels as i64,
                plane: matrix.plane as i64,
                step: matrix.step() as i64,
                add: 0,
            };
            args.kernel(spec, grid(matrix.channels * matrix.step() / each), &told)?;
            matrix.launch(&self.windows, args.read(1).plus(at * image), columns, args, 1)?;
            products::run(args, &self.product(&matrix, at == 0, first))?;
        }
        let has_bias = op.bias.is_some();
        let spec = KernelSpec::new(&WEIGHT, "conv_unfolded_weight")
            .dtype("DW_TYPE", args.write_dtype(0))
            .dtype("DB_TYPE", args.write_dtype(usize::from(has_bias)));
        let taps = op.places.window.kernel.iter().product::<usize>();
        let told = ConvUnfoldedWeight {
            sums,
            dw: args.write(0),
            db: if has_bias { args.write(1) } else { Pointer::NOTHING },
            channels: self.matrix.channels as i64,
            from_channels: channels as i64,
            taps: taps as i64,
            step: self.matrix.rows as i64,
            add: args.accumulate(0).into(),
            add_bias: (has_bias && args.accumulate(1)).into(),
        };
        args.kernel(spec, grid(self.matrix.channels * (self.matrix.sum + 1)), &told)
    }
}
