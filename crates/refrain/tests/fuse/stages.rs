//! Two products of which the second multiplies the rows of the first, in one kernel with what follows each of them, have the bits of
//! the single launches.

use refrain::{Activation, DType, Device, Generator, Precision, Result, Step, Tensor, with_precision};

use super::common::{devices, sanitized};
use super::{Numbers, compare, filled, fusing, launches};

/// Rows, and the columns of the factors and results of both products: full tiles and others, several tiles along k, and rows that
/// are computed in parts.
const SIZES: [[usize; 4]; 16] = [
    [96, 16, 128, 16],
    [37, 16, 64, 24],
    [300, 32, 128, 32],
    [65, 48, 32, 24],
    [1, 24, 96, 16],
    [200, 64, 64, 32],
    [130, 40, 16, 16],
    [31, 8, 160, 24],
    [500, 16, 256, 16],
    [64, 72, 192, 8],
    [1000, 32, 128, 32],
    [33, 16, 128, 32],
    // Results that are too wide.
    [120, 16, 64, 48],
    // Products that are not cut along k alone, but would be in the tiles of one kernel.
    [100, 192, 64, 16],
    [100, 16, 160, 32],
    [48, 8, 192, 24],
];

const ACTIVATIONS: [Activation; 5] =
    [Activation::None, Activation::Gelu, Activation::Gelu, Activation::Relu, Activation::Silu];

/// The feed-forward half of a block, of random sizes and with random work behind both products.
#[derive(Debug)]
struct Case {
    seed: u64,
    sizes: [usize; 4],
    precision: Precision,
    dtype: DType,
    device: Device,
}

impl Case {
    /// Operands from outside of the step.
    fn state(&self) -> Vec<Tensor> {
        let [m, k, hidden, n] = self.sizes;
        let shapes: [&[usize]; 10] = [
            &[m, k],
            &[hidden, k],
            &[hidden],
            &[n, hidden],
            &[n],
            &[m, n],
            &[n],
            &[n],
            &[m, hidden],
            &[hidden],
        ];
        // Under bf16, biases and the parameters of norms are f32.
        let dtype = |i: usize| match self.precision {
            Precision::Bf16 if ![2, 4, 6, 7].contains(&i) => DType::BF16,
            _ => self.dtype,
        };
        shapes.iter().enumerate().map(|(i, shape)| filled(shape, dtype(i), i, &self.device)).collect()
    }

    fn run(&self, state: &[Tensor], random: &Generator) -> Result<Vec<Tensor>> {
        let mut numbers = Numbers(self.seed);
        let [x, up, up_bias, down, down_bias, residual, weight, shift, beside, row] = state else {
            unreachable!()
        };
        let leaves = [x, up, up_bias, down, down_bias, weight, shift].map(Tensor::detach);
        let trains = numbers.below(2) == 0;
        leaves.iter().try_for_each(|leaf| leaf.set_requires_grad(trains))?;
        let [x, up, up_bias, down, down_bias, weight, shift] = &leaves;
        let up_bias = (numbers.below(2) == 0).then_some(up_bias);
        let down_bias = (numbers.below(2) == 0).then_some(down_bias);
        let residual = (numbers.below(2) == 0).then_some(residual);
        let mut hidden = x.linear(up, up_bias, *numbers.pick(&ACTIVATIONS), None)?;
        let mut results = Vec::new();
        for _ in 0..numbers.below(3) {
            hidden = match numbers.below(5) {
                0 | 1 => hidden.dropout(0.3, random)?,
                2 => hidden.mul_scalar(1.7)?,
                3 => hidden.mul(beside)?,
                _ => hidden.add(row)?,
            };
        }
        if numbers.below(4) == 0 {
            results.push(hidden.clone());
        }
        let mut y = hidden.linear(down, down_bias, *numbers.pick(&ACTIVATIONS), residual)?;
        for _ in 0..numbers.below(3) {
            y = match numbers.below(3) {
                0 => y.dropout(0.2, random)?,
                1 => y.silu()?,
                _ => y.add_scalar(0.3)?,
            };
        }
        if numbers.below(2) == 0 {
            results.push(y.clone());
            let wide = [weight.to_dtype(DType::F32)?, shift.to_dtype(DType::F32)?];
            y = match numbers.below(2) {
                0 => y.rms_norm(&wide[0], 1e-5)?,
                _ => y.layer_norm(&wide[0], &wide[1], 1e-5)?,
            };
        }
        if trains {
            y.backward_with(&y.detach().mul_scalar(0.5)?)?;
            results.extend(leaves.iter().filter_map(Tensor::grad));
        }
        results.push(y);
        Ok(results)
    }
}

/// How many launches of a program have two products.
fn of_two_products(program: &str) -> usize {
    let is_of_two = |line: &&str| {
        let name = line.split_once("fused(").and_then(|(_, rest)| rest.split_once(')')).map(|(name, _)| name);
        let parts = name.into_iter().flat_map(|name| name.split(", "));
        parts.filter(|part| ["linear", "linear_input_gradient", "matmul"].contains(part)).count() == 2
    };
    program.lines().filter(is_of_two).count()
}

/// At least one in so many steps has two products in a launch.
fn random_halves(precision: Precision, dtype: DType, one_in: usize) {
    let (mut fused, mut all) = (0, 0);
    // Under a sanitizer, each kernel takes long.
    let seeds = if sanitized() { 4 } else { 3 * SIZES.len() as u64 };
    for device in devices() {
        let fuses = fusing().any(|fusing| fusing == device);
        for seed in 0..seeds {
            let sizes = SIZES[seed as usize % SIZES.len()];
            let case = Case { seed, sizes, precision, dtype, device: device.clone() };
            let is_fused = |program: &str| of_two_products(program) > 0;
            fused += with_precision(precision, || {
                compare(&case, &device, || case.state(), |s, random| case.run(s, random), is_fused)
            });
            all += 2 * usize::from(fuses);
        }
    }
    // Those that are cut along k where they run stay apart.
    assert!(one_in * fused >= all, "only {fused} of {all} steps had two products in a launch");
}

#[test]
fn random_pairs_of_products_of_bf16_have_the_bits_of_eager_code() {
    random_halves(Precision::F32, DType::BF16, 3);
}

#[test]
fn random_pairs_of_products_of_f16_have_the_bits_of_eager_code() {
    random_halves(Precision::F32, DType::F16, 3);
}

#[test]
fn random_pairs_of_products_of_f32_have_the_bits_of_eager_code() {
    // GPUs that have `wgmma` compute f32 in larger tiles, which take no tail: what follows a first product there keeps the second apart.
    random_halves(Precision::F32, DType::F32, 8);
}

#[test]
fn random_pairs_of_products_of_tf32_have_the_bits_of_eager_code() {
    random_halves(Precision::Tf32, DType::F32, 3);
}

#[test]
fn random_pairs_of_products_in_mixed_precision_have_the_bits_of_eager_code() {
    random_halves(Precision::Bf16, DType::F32, 3);
}

#[test]
fn products_of_row_major_factors_have_the_bits_of_eager_code() {
    // Both in one tile along k, in several, and in a last one that is not full.
    let sizes = [[200, 16, 64, 32], [100, 16, 128, 16], [70, 40, 64, 32], [33, 72, 32, 24]];
    for device in fusing() {
        let mut fused = 0;
        let cases =
            [Precision::F32, Precision::Tf32].into_iter().flat_map(|precision| sizes.map(|s| (precision, s)));
        for case in cases {
            let (precision, [m, k, hidden, n]) = case;
            let shapes: [&[usize]; 3] = [&[m, k], &[k, hidden], &[hidden, n]];
            let state = || [0, 1, 2].map(|i| filled(shapes[i], DType::F32, i, &device)).to_vec();
            let run =
                |state: &[Tensor], _: &Generator| Ok(vec![state[0].matmul(&state[1])?.matmul(&state[2])?]);
            let is_fused = |program: &str| of_two_products(program) == 1;
            fused += with_precision(precision, || compare(&case, &device, state, run, is_fused));
        }
        // GPUs that have `wgmma` compute some in tiles too large for others to follow.
        assert!(fused > 0, "none of them in one launch on {device}");
    }
}

/// `x`, two weights, and a residual.
fn operands([m, k, hidden, n]: [usize; 4], dtype: DType, device: &Device) -> [Tensor; 4] {
    let shapes: [&[usize]; 4] = [&[m, k], &[hidden, k], &[n, hidden], &[m, n]];
    [0, 1, 2, 3].map(|i| filled(shapes[i], dtype, i, device))
}

fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    x.linear(w, None, Activation::None, None)
}

#[test]
fn rows_that_only_the_second_product_reads_are_not_stored() {
    for device in fusing() {
        for dtype in [DType::BF16, DType::F16] {
            let [x, up, down, residual] = operands([70, 16, 64, 32], dtype, &device);
            let (count, temporaries, table) =
                launches(&device, || Ok(vec![linear(&linear(&x, &up)?.silu()?, &down)?.add(&residual)?]));
            assert_eq!((count, temporaries), (1, 1), "{table}");
            assert!(table.contains("fused(linear, silu, linear, add)"), "{table}");
            // By the caller, and by another launch.
            let (count, temporaries, table) = launches(&device, || {
                let hidden = linear(&x, &up)?.silu()?;
                Ok(vec![linear(&hidden, &down)?, hidden])
            });
            assert_eq!((count, temporaries), (1, 2), "{table}");
            let (count, temporaries, table) = launches(&device, || {
                let hidden = linear(&x, &up)?.silu()?;
                Ok(vec![linear(&hidden, &down)?, hidden.softmax(1)?])
            });
            assert_eq!((count, temporaries), (2, 3), "{table}");
        }
    }
}

#[test]
fn both_passes_of_a_feed_forward_half_are_two_products_in_one_launch() {
    for device in fusing() {
        let [x, up, down, residual] = operands([120, 16, 128, 16], DType::BF16, &device);
        let [weight, shift] = [4, 5].map(|i| filled(&[16], DType::BF16, i, &device));
        let generator = Generator::new(&device, 3).unwrap();
        let mut step = Step::new(&device, |_| {
            let leaves = [&x, &up, &down].map(Tensor::detach);
            leaves.iter().try_for_each(|leaf| leaf.set_requires_grad(true))?;
            let [x, up, down] = &leaves;
            let hidden = x.linear(up, None, Activation::Gelu, None)?.dropout(0.1, &generator)?;
            let y = linear(&hidden, down)?.dropout_add(0.1, &generator, &residual)?;
            y.layer_norm(&weight, &shift, 1e-5)?.backward_with(&residual)?;
            Ok(leaves.iter().filter_map(Tensor::grad).collect())
        });
        step.call(&[]).unwrap();
        let table = step.program().unwrap().to_string();
        for name in [
            "fused(linear, dropout, linear, dropout_add, layer_norm)",
            "fused(linear_input_gradient, dropout_backward, unary_backward, linear_input_gradient)",
        ] {
            assert!(table.contains(name), "{name}\n{table}");
        }
        step.finish().unwrap();
    }
}

#[test]
fn a_launch_has_two_products_at_most() {
    for device in fusing() {
        let [x, up, down, _] = operands([50, 32, 64, 32], DType::BF16, &device);
        let (count, _, table) = launches(&device, || {
            let y = linear(&linear(&x, &up)?, &down)?;
            Ok(vec![linear(&linear(&linear(&y, &up)?, &down)?, &up)?])
        });
        assert_eq!((count, of_two_products(&table)), (3, 2), "{table}");
    }
}

#[test]
fn products_stay_apart_where_others_come_between() {
    for device in devices() {
        let [x, up, down, residual] = operands([60, 32, 32, 32], DType::BF16, &device);
        let mine = down.copy().unwrap();
        type Body<'a> = &'a dyn Fn() -> Result<Vec<Tensor>>;
        // Somebody writes the second weight behind the first product, with its rows or without them.
        let weight: Body<'_> = &|| {
            mine.copy_from(&down)?;
            let hidden = linear(&x, &up)?;
            mine.mul_assign(&hidden.narrow(0, 0, 32)?.contiguous()?)?;
            Ok(vec![linear(&hidden, &mine)?])
        };
        let elsewhere: Body<'_> = &|| {
            let hidden = linear(&x, &up)?;
            up.softmax_into(1, &mine)?;
            Ok(vec![linear(&hidden, &mine)?])
        };
        // The second reads the rows once more, or another window of them; it multiplies others; it writes where the first reads.
        let twice: Body<'_> = &|| {
            let hidden = linear(&x, &up)?;
            Ok(vec![hidden.linear(&down, None, Activation::None, Some(&hidden))?])
        };
        let factor: Body<'_> = &|| {
            let hidden = linear(&x, &up)?;
            Ok(vec![linear(&hidden, &hidden.narrow(0, 0, 32)?)?])
        };
        let turned: Body<'_> = &|| {
            let hidden = linear(&x.narrow(0, 0, 32)?, &up)?;
            Ok(vec![hidden.transpose(0, 1)?.matmul(&down)?])
        };
        let reshaped: Body<'_> =
            &|| Ok(vec![linear(&linear(&x, &up)?.reshape([30, 64])?, &up.reshape([16, 64])?)?]);
        let above: Body<'_> = &|| {
            let stream = x.copy()?;
            let hidden = linear(&stream, &up)?;
            linear(&hidden, &down)?.silu_into(&stream)?;
            Ok(vec![stream])
        };
        for body in [weight, elsewhere, twice, factor, turned, reshaped, above] {
            let (.., table) = launches(&device, body);
            assert_eq!(of_two_products(&table), 0, "{table}");
        }
        // What the second adds comes from elsewhere, so it may.
        let (.., table) = launches(&device, || {
            linear(&x, &up)?.linear(&down, None, Activation::None, Some(&residual)).map(|y| vec![y])
        });
        let fuses = fusing().any(|fusing| fusing == device);
        assert_eq!(of_two_products(&table), usize::from(fuses), "{table}");
    }
}

#[test]
fn products_stay_apart_where_one_kernel_would_not_do() {
    for device in fusing() {
        // f64; long rows; a wide result; weights that leave little room; sums in parts; few columns; a last tile that is not full.
        let cases = [
            (DType::F64, [96, 16, 128, 16]),
            (DType::BF16, [96, 16, 512, 16]),
            (DType::BF16, [96, 32, 64, 48]),
            (DType::BF16, [96, 200, 256, 32]),
            (DType::BF16, [96, 1024, 32, 16]),
            (DType::BF16, [96, 16, 128, 2]),
            (DType::BF16, [96, 16, 48, 16]),
        ];
        for (dtype, sizes) in cases {
            let [x, up, down, _] = operands(sizes, dtype, &device);
            let (.., table) = launches(&device, || Ok(vec![linear(&linear(&x, &up)?, &down)?]));
            assert_eq!(of_two_products(&table), 0, "{sizes:?}: {table}");
        }
    }
}
