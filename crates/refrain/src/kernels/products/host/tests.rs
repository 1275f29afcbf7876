use half::{bf16, f16};

use super::*;
use crate::activation::Activation;
use crate::device::cpu::bf16_pairs::{Amx, Avx512Bf16, Bf16Pairs};

/// Numbers in [-1, 1), the same in each run.
fn numbers<T: From<f32>>(len: usize, seed: u32) -> Vec<T> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next().into()).collect()
}

fn at<T: Copy>(x: Matrix<'_, T>, i: usize, j: usize) -> T {
    x.data[i * x.row_stride + j * x.col_stride]
}

/// The possible layouts of a view: plain, transposed, a window of a larger matrix, every second column.
fn layouts<T>(data: &[T], rows: usize, cols: usize) -> [Matrix<'_, T>; 4] {
    let window = Matrix { data: &data[3..], rows, cols, row_stride: cols + 5, col_stride: 1 };
    let strided = Matrix { data, rows, cols, row_stride: 2 * cols + 1, col_stride: 2 };
    [Matrix::row_major(data, rows, cols), Matrix::row_major(data, cols, rows).t(), window, strided]
}

/// Element `(i, j)` of `a b` in f64, and the bound of its rounding error.
fn exact(a: Matrix<'_, f32>, b: Matrix<'_, f32>, i: usize, j: usize) -> (f64, f64) {
    let terms = (0..a.cols).map(|p| f64::from(at(a, i, p)) * f64::from(at(b, p, j)));
    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
    (sum, 4.0 * f64::from(f32::EPSILON) * (a.cols as f64).sqrt() * (size + 1.0))
}

const SHAPES: [(usize, usize, usize); 17] = [
    (1, 1, 1),
    (1, 70, 3),
    (5, 1, 40),
    (7, 16, 9),
    (6, 64, 8),
    (16, 16, 16),
    (13, 65, 33),
    (100, 48, 300),
    (97, 130, 17),
    (33, 1030, 5),
    (20, 20, 2100),
    (17, 1100, 60),
    (21, 150, 300),
    (3, 5, 0),
    (40, 1, 700),
    (1, 9, 2100),
    (1, 1, 20_000),
];

#[test]
fn products_of_all_layouts_match_the_definition() {
    for (m, n, k) in SHAPES {
        let a = numbers::<f32>(2 * (m + 4) * (k + 6) + 8, 1);
        let b = numbers::<f32>(2 * (k + 4) * (n + 6) + 8, 2);
        for a in layouts(&a, m, k) {
            for b in layouts(&b, k, n) {
                for accumulate in [Accumulate::Replace, Accumulate::Add] {
                    let row_stride = n + 2;
                    let before = numbers::<f32>(m * row_stride, 3);
                    let mut c = before.clone();
                    let out = MatrixMut { data: &mut c, rows: m, cols: n, row_stride };
                    gemm(Single, a, b, out, accumulate, Epilogue::default());
                    for i in 0..m {
                        for j in 0..row_stride {
                            let (got, old) = (c[i * row_stride + j], before[i * row_stride + j]);
                            if j >= n {
                                assert_eq!(got, old, "written between the rows");
                                continue;
                            }
                            let (sum, bound) = exact(a, b, i, j);
                            let add = accumulate == Accumulate::Add;
                            let want = sum + if add { f64::from(old) } else { 0.0 };
                            assert!(
                                (f64::from(got) - want).abs() <= bound,
                                "({m}, {k}) x ({k}, {n}), {accumulate:?}, element ({i}, {j}): {got}, not {want}; \
                                 strides of a {:?}, of b {:?}",
                                (a.row_stride, a.col_stride),
                                (b.row_stride, b.col_stride),
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_product_has_the_same_bits_whichever_factor_is_packed() {
    // Several blocks of columns, and of the reduced dimension; `suits` says that the first factor is packed.
    for (m, n, k) in [(17, 1100, 60), (21, 150, 300), (64, 1088, 576)] {
        let (a, b) = (numbers::<f32>(m * k, 1), numbers::<f32>(n * k, 2));
        let a = Matrix::row_major(&a, m, k);
        let turned = Matrix::row_major(&b, n, k).t();
        let plain: Vec<f32> = (0..k * n).map(|at| b[at % n * k + at / n]).collect();
        let plain = Matrix::row_major(&plain, k, n);
        assert!(swapped::suits(a, turned) && !swapped::suits(a, plain), "({m}, {k}) x ({k}, {n})");
        let [c, d] = [turned, plain].map(|b| {
            let mut c = vec![f32::NAN; m * (n + 3)];
            let out = MatrixMut { data: &mut c, rows: m, cols: n, row_stride: n + 3 };
            gemm(Single, a, b, out, Accumulate::Replace, Epilogue::default());
            c.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        });
        assert!(c == d, "({m}, {k}) x ({k}, {n})");
    }
}

#[test]
fn f64_products_match_the_definition() {
    for (m, n, k) in SHAPES {
        let (a, b) = (numbers::<f64>(m * k, 1), numbers::<f64>(k * n, 2));
        let (a, b) = (Matrix::row_major(&a, m, k), Matrix::row_major(&b, k, n));
        let mut c = vec![f64::NAN; m * n];
        gemm(Single, a, b, MatrixMut::row_major(&mut c, m, n), Accumulate::Replace, Epilogue::default());
        for i in 0..m {
            for j in 0..n {
                let want: f64 = (0..k).map(|p| at(a, i, p) * at(b, p, j)).sum();
                let bound = 4.0 * f64::EPSILON * (k as f64).sqrt() * (k + 1) as f64;
                assert!((c[i * n + j] - want).abs() <= bound, "({m}, {k}) x ({k}, {n}) at ({i}, {j})");
            }
        }
    }
}

#[test]
fn an_epilogue_is_applied_once_and_in_order() {
    // Several blocks of rows, of columns and of the reduced dimension.
    for (m, n, k, gap) in [(40, 64, 300, 0), (200, 16, 8, 0), (101, 1100, 3, 2), (7, 5, 600, 1)] {
        let row_stride = n + gap;
        let (a, b) = (numbers::<f32>(m * k, 1), numbers::<f32>(n * k, 2));
        let (a, b) = (Matrix::row_major(&a, m, k), Matrix::row_major(&b, n, k).t());
        let bias = numbers::<f32>(n, 3);
        let residual = numbers::<f32>(m * row_stride, 4);
        let places = numbers::<f32>(m * row_stride, 5);
        let view = |data| Matrix { data, rows: m, cols: n, row_stride, col_stride: 1 };
        let mut c = vec![f32::NAN; m * row_stride];
        let mut kept = vec![f32::NAN; m * row_stride];
        let epilogue = Epilogue {
            bias: Some(&bias),
            pre_activation: Some(MatrixMut { data: &mut kept, rows: m, cols: n, row_stride }),
            activation: Activation::GeluTanh,
            gradient: Some((Activation::Relu, view(&places))),
            residual: Some(view(&residual)),
        };
        let out = MatrixMut { data: &mut c, rows: m, cols: n, row_stride };
        gemm(Single, a, b, out, Accumulate::Replace, epilogue);
        for i in 0..m {
            for (j, bias) in bias.iter().enumerate() {
                let at = i * row_stride + j;
                let (sum, bound) = exact(a, b, i, j);
                let pre = sum + f64::from(*bias);
                assert!((f64::from(kept[at]) - pre).abs() <= bound, "pre-activation at ({i}, {j})");
                let gelu = crate::device::cpu::math::f64::gelu_tanh(pre);
                let want = if places[at] > 0.0 { gelu } else { 0.0 } + f64::from(residual[at]);
                // The absolute value of the derivative of gelu_tanh is below 1.13.
                let bound = 1.2 * bound + 16.0 * f64::from(f32::EPSILON) * (1.0 + gelu.abs());
                assert!(
                    (f64::from(c[at]) - want).abs() <= bound,
                    "({m}, {n}, {k}) at ({i}, {j}): {} {want}",
                    c[at]
                );
            }
        }
    }
}

#[test]
fn a_weight_gradient_has_the_sums_of_the_bias() {
    for (tokens, inputs, outputs) in [(5, 3, 4), (700, 200, 9), (4100, 16, 16), (3000, 20, 70), (1500, 1, 2)]
    {
        let (dy, x) = (numbers::<f32>(tokens * outputs, 1), numbers::<f32>(tokens * inputs, 2));
        let dy = Matrix::row_major(&dy, tokens, outputs);
        let x = Matrix::row_major(&x, tokens, inputs);
        let ones = vec![1.0; tokens];
        for accumulate in [Accumulate::Replace, Accumulate::Add] {
            let base = if accumulate == Accumulate::Add { 0.5 } else { 0.0 };
            let (mut dw, mut db) = (vec![0.5f32; outputs * inputs], vec![0.5f32; outputs]);
            let out = MatrixMut::row_major(&mut dw, outputs, inputs);
            weight_gradient(Single, dy, x, out, Some(&mut db), accumulate);
            for i in 0..outputs {
                let (sum, bound) = exact(dy.t(), Matrix::row_major(&ones, tokens, 1), i, 0);
                assert!((f64::from(db[i]) - sum - base).abs() <= bound, "db[{i}] of {tokens} tokens");
                for j in 0..inputs {
                    let (sum, bound) = exact(dy.t(), x, i, j);
                    let got = f64::from(dw[i * inputs + j]);
                    assert!((got - sum - base).abs() <= bound, "dw[{i}, {j}] of {tokens} tokens");
                }
            }
        }
    }
}

#[test]
fn a_factor_that_is_packed_once_gives_the_bits_of_a_product() {
    // Several blocks of rows, of columns and of the reduced dimension.
    for (m, n, k) in
        [(1, 40, 30), (200, 16, 8), (101, 1100, 3), (97, 30, 600), (3, 2100, 300), (20, 150, 600)]
    {
        let (a, b) = (numbers::<f32>(m * k, 1), numbers::<f32>(n * k, 2));
        let (a, b) = (Matrix::row_major(&a, m, k), Matrix::row_major(&b, n, k).t());
        let (bias, residual) = (numbers::<f32>(n, 3), numbers::<f32>(m * n, 4));
        let packed = Packed::of(Single, b, Some(&bias));
        for accumulate in [Accumulate::Replace, Accumulate::Add] {
            let run = |product: &dyn Fn(MatrixMut<'_, f32>, Epilogue<'_, f32>)| {
                let (mut c, mut kept) = (numbers::<f32>(m * n, 5), vec![f32::NAN; m * n]);
                let epilogue = Epilogue {
                    bias: Some(&bias),
                    pre_activation: Some(MatrixMut::row_major(&mut kept, m, n)),
                    activation: Activation::Relu,
                    residual: Some(Matrix::row_major(&residual, m, n)),
                    ..Epilogue::default()
                };
                product(MatrixMut::row_major(&mut c, m, n), epilogue);
                c.into_iter().chain(kept).map(f32::to_bits).collect::<Vec<_>>()
            };
            let once = run(&|c, epilogue| gemm(Single, a, b, c, accumulate, epilogue));
            let again = run(&|c, epilogue| packed.product(Single, a, c, accumulate, epilogue));
            assert!(once == again, "({m}, {k}) x ({k}, {n}), {accumulate:?}");
        }
    }
}

/// The gradients of factors of 16 bits are those of f32 factors with the same numbers.
fn weight_gradients_are_those_of_f32<A: Stored>() {
    for (tokens, outputs, inputs, gap) in
        [(700, 9, 200, 0), (2100, 130, 20, 0), (4100, 16, 16, 3), (1500, 2, 1, 1), (1300, 3, 310, 0)]
    {
        let matrix = |len: usize, seed: u32| -> (Vec<A>, Vec<f32>) {
            let halves: Vec<A> = numbers::<f32>(len, seed).into_iter().map(A::from_number).collect();
            let wide = halves.iter().map(|x| x.to()).collect();
            (halves, wide)
        };
        let (dy, wide_dy) = matrix(tokens * (outputs + gap), 1);
        let (x, wide_x) = matrix(tokens * (inputs + gap), 2);
        fn view<T>(data: &[T], [rows, cols, gap]: [usize; 3]) -> Matrix<'_, T> {
            Matrix { row_stride: cols + gap, ..Matrix::row_major(data, rows, cols) }
        }
        let (of_dy, of_x) = ([tokens, outputs, gap], [tokens, inputs, gap]);
        let run = |gradient: &dyn Fn(MatrixMut<'_, f32>, &mut [f32])| {
            let (mut dw, mut db) = (numbers::<f32>(outputs * inputs, 3), numbers::<f32>(outputs, 4));
            gradient(MatrixMut::row_major(&mut dw, outputs, inputs), &mut db);
            dw.into_iter().chain(db).map(f32::to_bits).collect::<Vec<_>>()
        };
        for accumulate in [Accumulate::Replace, Accumulate::Add] {
            let narrow = run(&|dw, db| {
                weight_gradient(Single, view(&dy, of_dy), view(&x, of_x), dw, Some(db), accumulate);
            });
            let wide = run(&|dw, db| {
                let (dy, x) = (view(&wide_dy, of_dy), view(&wide_x, of_x));
                weight_gradient(Single, dy, x, dw, Some(db), accumulate);
            });
            assert!(narrow == wide, "{tokens} tokens, {outputs} x {inputs}, {accumulate:?}");
        }
    }
}

#[test]
fn weight_gradients_of_16_bits_have_the_bits_of_those_of_f32() {
    weight_gradients_are_those_of_f32::<bf16>();
    weight_gradients_are_those_of_f32::<f16>();
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let run = || {
        let mut bits = Vec::new();
        for (m, n, k) in [
            (13, 40, 700),
            (50, 1100, 60),
            (97, 130, 17),
            (200, 64, 300),
            (1440, 16, 576),
            (1440, 70, 33),
            (5000, 70, 33),
            // Several blocks are packed at once, more than once; and tiles have wide and narrow panels of several blocks.
            (14, 1030, 1300),
            (500, 330, 700),
        ] {
            let (a, b) = (numbers::<f32>(2 * (m + 4) * (k + 6) + 8, 1), numbers::<f32>(k * n, 2));
            let (bias, residual) = (numbers::<f32>(n, 3), numbers::<f32>(m * n, 4));
            let b = Matrix::row_major(&b, k, n);
            let (mut c, mut kept) = (vec![0.5; m * n], vec![0.0; m * (n + 3)]);
            for a in layouts(&a, m, k) {
                let pre_activation = MatrixMut { data: &mut kept, rows: m, cols: n, row_stride: n + 3 };
                let epilogue = Epilogue {
                    bias: Some(&bias),
                    pre_activation: Some(pre_activation),
                    activation: Activation::GeluTanh,
                    residual: Some(Matrix::row_major(&residual, m, n)),
                    ..Epilogue::default()
                };
                for (accumulate, epilogue) in
                    [(Accumulate::Replace, epilogue), (Accumulate::Add, Epilogue::default())]
                {
                    gemm(Single, a, b, MatrixMut::row_major(&mut c, m, n), accumulate, epilogue);
                    bits.extend(c.iter().map(|x| x.to_bits()));
                }
                bits.extend(kept.iter().map(|x| x.to_bits()));
                let (mut dw, mut db) = (vec![0.0f32; n * k], vec![0.0f32; n]);
                let out = MatrixMut::row_major(&mut dw, n, k);
                let dy = Matrix::row_major(&c, m, n);
                weight_gradient(Single, dy, a, out, Some(&mut db), Accumulate::Replace);
                bits.extend(dw.iter().chain(&db).map(|x| x.to_bits()));
            }
        }
        bits
    };
    let one = run();
    for threads in [1, 2, 3, 8] {
        assert!(parallel::with_threads(threads, run) == one, "{threads} threads");
    }
}

/// Factors of bf16 as such, and as numbers of f32.
fn halves(len: usize, seed: u32) -> (Vec<bf16>, Vec<f32>) {
    let halves: Vec<bf16> = numbers::<f32>(len, seed).into_iter().map(bf16::from_f32).collect();
    let wide = halves.iter().map(|x| x.to_f32()).collect();
    (halves, wide)
}

/// The shapes of products of pairs.
fn shapes_of_pairs() -> impl Iterator<Item = (usize, usize, usize)> {
    let more = [(70, 70, 4095), (9, 1100, 259), (16, 20, 1023), (32, 96, 64), (40, 24, 600)];
    SHAPES.into_iter().chain(more).filter(|&(m, n, _)| m > 1 && n > 1)
}

/// Calls `check` with the factors of a product in all layouts: as pairs, and as numbers of f32.
fn in_all_layouts(
    pairs: Bf16Pairs,
    (m, n, k): (usize, usize, usize),
    check: impl Fn([Matrix<'_, f32>; 2], [Matrix<'_, f32>; 2]),
) {
    let (a, wide_a) = halves(2 * (m + 4) * (k + 6) + 8, 1);
    let (b, wide_b) = halves(2 * (k + 4) * (n + 6) + 8, 2);
    for (a, wide_a) in layouts(&a, m, k).into_iter().zip(layouts(&wide_a, m, k)) {
        for (b, wide_b) in layouts(&b, k, n).into_iter().zip(layouts(&wide_b, k, n)) {
            let (a, b) = (pairs.elements(a), pairs.elements(b.t()));
            check([a.matrix(), b.matrix().t()], [wide_a, wide_b]);
        }
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn pairs_of_bf16_in_registers_give_the_bits_of_f32() {
    let Some(pairs) = Avx512Bf16::get().map(Bf16Pairs::Avx512) else {
        eprintln!("not tested: this processor has no AVX-512 BF16");
        return;
    };
    for (m, n, k) in shapes_of_pairs() {
        in_all_layouts(pairs, (m, n, k), |[a, b], [wide_a, wide_b]| {
            for accumulate in [Accumulate::Replace, Accumulate::Add] {
                let (mut c, mut wide_c) = (numbers::<f32>(m * n, 3), numbers::<f32>(m * n, 3));
                let out = MatrixMut::row_major(&mut c, m, n);
                gemm(pairs, a, b, out, accumulate, Epilogue::default());
                let out = MatrixMut::row_major(&mut wide_c, m, n);
                gemm(Single, wide_a, wide_b, out, accumulate, Epilogue::default());
                assert!(bits(&c) == bits(&wide_c), "({m}, {k}) x ({k}, {n}), {accumulate:?}");
            }
        });
        let (dy, wide_dy) = halves(k * m, 4);
        let (x, wide_x) = halves(k * n, 5);
        for accumulate in [Accumulate::Replace, Accumulate::Add] {
            let (mut dw, mut wide_dw) = (numbers::<f32>(m * n, 3), numbers::<f32>(m * n, 3));
            let (mut db, mut wide_db) = (numbers::<f32>(m, 4), numbers::<f32>(m, 4));
            let (dy, x) = (Matrix::row_major(&dy, k, m), Matrix::row_major(&x, k, n));
            let out = MatrixMut::row_major(&mut dw, m, n);
            weight_gradient(pairs, dy, x, out, Some(&mut db), accumulate);
            let (dy, x) = (Matrix::row_major(&wide_dy, k, m), Matrix::row_major(&wide_x, k, n));
            let out = MatrixMut::row_major(&mut wide_dw, m, n);
            weight_gradient(Single, dy, x, out, Some(&mut wide_db), accumulate);
            assert!(bits(&dw) == bits(&wide_dw), "gradient of ({n}, {m}), {k} tokens, {accumulate:?}");
            assert!(bits(&db) == bits(&wide_db), "gradient of {m} biases, {k} tokens, {accumulate:?}");
        }
    }
}

/// What tiles sum, from `start` on: of 32 products at a time, those at even places, those at odd places, and both together.
fn sum_of_tiles(terms: &[(f32, f32)], start: f32) -> f32 {
    terms.chunks(32).fold(start, |sum, terms| {
        let mut two = [0f32; 2];
        for (p, (a, b)) in terms.iter().enumerate() {
            two[p % 2] = a.mul_add(*b, two[p % 2]);
        }
        sum + (two[0] + two[1])
    })
}

#[test]
fn tiles_sum_in_the_order_of_the_manual() {
    let Some(pairs) = Amx::get().map(Bf16Pairs::Amx) else {
        eprintln!("not tested: AMX is not available");
        return;
    };
    for (m, n, k) in shapes_of_pairs().filter(|&(m, n, k)| !reduction::is_tall([m, n, k])) {
        in_all_layouts(pairs, (m, n, k), |[a, b], [wide_a, wide_b]| {
            for accumulate in [Accumulate::Replace, Accumulate::Add] {
                let row_stride = n + 2;
                let before = numbers::<f32>(m * row_stride, 3);
                let bias = (accumulate == Accumulate::Replace).then(|| numbers::<f32>(n, 4));
                let mut c = before.clone();
                let out = MatrixMut { data: &mut c, rows: m, cols: n, row_stride };
                let epilogue = Epilogue { bias: bias.as_deref(), ..Epilogue::default() };
                gemm(pairs, a, b, out, accumulate, epilogue);
                for (at, (&got, &old)) in c.iter().zip(&before).enumerate() {
                    let (i, j) = (at / row_stride, at % row_stride);
                    let terms: Vec<_> = (0..k)
                        .filter(|_| j < n)
                        .map(|p| (self::at(wide_a, i, p), self::at(wide_b, p, j)))
                        .collect();
                    let start = bias.as_ref().filter(|_| j < n).map_or(0.0, |bias| bias[j]);
                    let mut blocks = terms.chunks(BLOCK_K);
                    let first = sum_of_tiles(blocks.next().unwrap_or_default(), start);
                    let first = if accumulate == Accumulate::Add { old + first } else { first };
                    let want = blocks.fold(first, |sum, terms| sum + sum_of_tiles(terms, 0.0));
                    let want = if j < n { want } else { old };
                    assert_eq!(
                        got.to_bits(),
                        want.to_bits(),
                        "({m}, {k}) x ({k}, {n}), {accumulate:?}, ({i}, {j})"
                    );
                }
            }
        });
    }
}

#[test]
fn gradients_by_tiles_match_the_definition() {
    let Some(pairs) = Amx::get().map(Bf16Pairs::Amx) else {
        eprintln!("not tested: AMX is not available");
        return;
    };
    // Few and many tokens, and an odd number of them.
    for (tokens, outputs, inputs) in [(3, 5, 7), (97, 40, 33), (1023, 9, 20), (4095, 70, 70), (2100, 130, 20)]
    {
        let (dy, wide_dy) = halves(tokens * outputs, 1);
        let (x, wide_x) = halves(tokens * inputs, 2);
        let of_tokens = |cols| move |data| Matrix::row_major(data, tokens, cols);
        let (wide_dy, wide_x) = (of_tokens(outputs)(&wide_dy), of_tokens(inputs)(&wide_x));
        let ones = vec![1.0; tokens];
        for accumulate in [Accumulate::Replace, Accumulate::Add] {
            let base = if accumulate == Accumulate::Add { 0.5 } else { 0.0 };
            let (mut dw, mut db) = (vec![0.5f32; outputs * inputs], vec![0.5f32; outputs]);
            let (dy, x) = (Matrix::row_major(&dy, tokens, outputs), Matrix::row_major(&x, tokens, inputs));
            let out = MatrixMut::row_major(&mut dw, outputs, inputs);
            weight_gradient(pairs, dy, x, out, Some(&mut db), accumulate);
            let close = |got: f32, (sum, bound): (f64, f64)| (f64::from(got) - sum - base).abs() <= bound;
            for i in 0..outputs {
                let of_bias = exact(wide_dy.t(), Matrix::row_major(&ones, tokens, 1), i, 0);
                assert!(close(db[i], of_bias), "db[{i}] of {tokens} tokens");
                for j in 0..inputs {
                    assert!(
                        close(dw[i * inputs + j], exact(wide_dy.t(), wide_x, i, j)),
                        "dw[{i}, {j}] of {tokens} tokens"
                    );
                }
            }
        }
    }
}

#[test]
fn a_factor_of_pairs_that_is_packed_once_gives_the_bits_of_a_product_on_any_number_of_threads() {
    for pairs in every_kind_of_pairs() {
        for (m, n, k) in [(200, 16, 8), (101, 1100, 3), (97, 30, 600), (40, 64, 64)] {
            let ((a, _), (b, _)) = (halves(m * k, 1), halves(n * k, 2));
            let (a, b) =
                (pairs.elements(Matrix::row_major(&a, m, k)), pairs.elements(Matrix::row_major(&b, n, k)));
            let (a, b) = (a.matrix(), b.matrix().t());
            let run = |product: &(dyn Fn(MatrixMut<'_, f32>) + Sync)| {
                let mut c = numbers::<f32>(m * n, 5);
                product(MatrixMut::row_major(&mut c, m, n));
                bits(&c)
            };
            let whole =
                |c: MatrixMut<'_, f32>| gemm(pairs, a, b, c, Accumulate::Replace, Epilogue::default());
            let packed = Packed::of(pairs, b, None);
            let by_parts = |c: MatrixMut<'_, f32>| {
                for (part, c) in c.data.chunks_mut(33 * n).enumerate() {
                    let rows = c.len() / n;
                    let c = MatrixMut::row_major(c, rows, n);
                    packed.product(
                        pairs,
                        a.rows_from(33 * part, rows),
                        c,
                        Accumulate::Replace,
                        Epilogue::default(),
                    );
                }
            };
            let once = run(&whole);
            assert!(run(&by_parts) == once, "({m}, {k}) x ({k}, {n}) by parts, {pairs:?}");
            for threads in [1, 3] {
                assert!(
                    parallel::with_threads(threads, || run(&whole)) == once,
                    "{threads} threads, {pairs:?}"
                );
            }
        }
    }
}

fn every_kind_of_pairs() -> impl Iterator<Item = Bf16Pairs> {
    let all = [Avx512Bf16::get().map(Bf16Pairs::Avx512), Amx::get().map(Bf16Pairs::Amx)];
    for (_, name) in all.iter().zip(["AVX-512 BF16", "AMX"]).filter(|(here, _)| here.is_none()) {
        eprintln!("not tested: {name} is not available");
    }
    all.into_iter().flatten()
}

#[test]
fn subnormal_numbers_of_pairs_count_as_zero() {
    for pairs in every_kind_of_pairs() {
        let (tiny, one) = (bf16::from_bits(1), bf16::ONE);
        let (a, b) = ([tiny, tiny, one, one], [one; 4]);
        let (a, b) =
            (pairs.elements(Matrix::row_major(&a, 2, 2)), pairs.elements(Matrix::row_major(&b, 2, 2)));
        let mut c = [f32::NAN; 4];
        let out = MatrixMut::row_major(&mut c, 2, 2);
        gemm(pairs, a.matrix(), b.matrix().t(), out, Accumulate::Replace, Epilogue::default());
        assert_eq!(c, [0.0, 0.0, 2.0, 2.0], "{pairs:?}");
    }
}
