//! A norm of the rows of a product's result, in the product's kernel, has the bits of the single launches.

use refrain::{Activation, DType, Device, Generator, Precision, Result, Step, Tensor, with_precision};

use super::common::{devices, sanitized};
use super::{Numbers, compare, filled, fusing, launches};

/// Rows, columns and the length of sums: tiles that are full and others, and rows of which lanes hold vectors of each size.
const SIZES: [[usize; 3]; 14] = [
    [200, 64, 64],
    [130, 16, 16],
    [37, 45, 33],
    [300, 16, 128],
    [70, 24, 40],
    [64, 60, 64],
    [500, 32, 32],
    [96, 20, 16],
    [65, 36, 72],
    [129, 64, 256],
    [90, 17, 8],
    [2000, 64, 64],
    [33, 54, 24],
    [1100, 48, 48],
];

/// A product of random sizes, what follows it, and a norm.
#[derive(Debug)]
struct Case {
    seed: u64,
    sizes: [usize; 3],
    precision: Precision,
    dtype: DType,
    device: Device,
}

impl Case {
    /// Operands from outside of the step.
    fn state(&self) -> Vec<Tensor> {
        let [m, n, k] = self.sizes;
        let shapes: [&[usize]; 7] = [&[m, k], &[n, k], &[n], &[m, n], &[n], &[n], &[3, m, k]];
        let dtype = |i: usize| match self.precision {
            // Under bf16, a residual has the dtype of the result.
            Precision::Bf16 if i == 3 => DType::BF16,
            _ => self.dtype,
        };
        shapes.iter().enumerate().map(|(i, shape)| filled(shape, dtype(i), i, &self.device)).collect()
    }

    fn run(&self, state: &[Tensor], random: &Generator) -> Result<Vec<Tensor>> {
        let mut numbers = Numbers(self.seed);
        let [x, w, bias, residual, weight, shift, xs] = state else { unreachable!() };
        let leaves = [x, w, bias, weight, shift].map(Tensor::detach);
        let trains = numbers.below(2) == 0;
        leaves.iter().try_for_each(|leaf| leaf.set_requires_grad(trains))?;
        let [x, w, bias, weight, shift] = &leaves;
        let wide = [weight.to_dtype(DType::F32)?, shift.to_dtype(DType::F32)?];
        let activation =
            *numbers.pick(&[Activation::None, Activation::None, Activation::Gelu, Activation::Silu]);
        let bias = (numbers.below(2) == 0).then_some(bias);
        let beside = (numbers.below(2) == 0).then_some(residual);
        let mut y = match numbers.below(5) {
            0 => xs.matmul(&w.transpose(0, 1)?)?,
            1 => x.matmul(&w.transpose(0, 1)?)?,
            _ => x.linear(w, bias, activation, beside)?,
        };
        let mut results = Vec::new();
        if numbers.below(3) == 0 {
            results.push(y.clone());
        }
        for _ in 0..numbers.below(3) {
            y = match numbers.below(6) {
                0 => y.dropout(0.3, random)?,
                1 if y.shape() == residual.shape() && y.dtype() == residual.dtype() => {
                    y.dropout_add(0.4, random, residual)?
                }
                2 => y.silu()?,
                3 => y.to_dtype(if y.dtype() == DType::F32 { DType::BF16 } else { DType::F32 })?,
                4 => y.add_scalar(0.3)?,
                _ => y.mul_scalar(1.7)?,
            };
        }
        if numbers.below(2) == 0 {
            results.push(y.clone());
        }
        // Parameters of a norm are of its dtype, or f32.
        let [weight, shift] = match y.dtype() == weight.dtype() && numbers.below(2) == 0 {
            true => [weight, shift],
            false => [&wide[0], &wide[1]],
        };
        let normal = match numbers.below(3) {
            0 => y.rms_norm(weight, 1e-5)?,
            _ => y.layer_norm(weight, shift, 1e-5)?,
        };
        if trains {
            normal.backward_with(&normal.detach().mul_scalar(0.5)?)?;
            results.extend(leaves.iter().filter_map(Tensor::grad));
        }
        results.push(if numbers.below(2) == 0 { normal } else { normal.tanh()? });
        Ok(results)
    }
}

/// Whether a norm is the last part of a product's launch.
fn ends_with_a_norm(program: &str) -> bool {
    program.lines().any(|line| {
        let is_fused = ["fused(linear", "fused(matmul"].iter().any(|name| line.contains(name));
        is_fused && ["layer_norm)", "rms_norm)"].iter().any(|name| line.contains(name))
    })
}

/// Compares random products of one dtype, with a norm behind them, with eager code.
fn random_norms(precision: Precision, dtype: DType) {
    let (mut fused, mut all) = (0, 0);
    // Under a sanitizer, each kernel takes long.
    let seeds = if sanitized() { 4 } else { 3 * SIZES.len() as u64 };
    for device in devices() {
        let fuses = fusing().any(|fusing| fusing == device);
        for seed in 0..seeds {
            let sizes = SIZES[seed as usize % SIZES.len()];
            let case = Case { seed, sizes, precision, dtype, device: device.clone() };
            fused += with_precision(precision, || {
                compare(&case, &device, || case.state(), |s, random| case.run(s, random), ends_with_a_norm)
            });
            all += 2 * usize::from(fuses);
        }
    }
    // GPUs that have `wgmma` compute wide rows of f32 in tiles that take no tail, so that a norm behind it stays apart.
    assert!(3 * fused >= all, "only {fused} of {all} steps had a product with a norm");
}

/// Of so many rows, groups of warps compute whole ones, and the last tile is not full.
#[test]
fn norms_behind_layers_of_many_rows_have_the_bits_of_eager_code() {
    // Under a sanitizer, each kernel takes long.
    let seeds = if sanitized() { 0 } else { 3 };
    for device in devices() {
        for (seed, dtype) in (0..seeds).flat_map(|seed| [(seed, DType::BF16), (seed, DType::F16)]) {
            let sizes = [12_300, 128, 72];
            let case = Case { seed, sizes, precision: Precision::F32, dtype, device: device.clone() };
            compare(&case, &device, || case.state(), |s, random| case.run(s, random), ends_with_a_norm);
        }
    }
}

/// Rows of 128 numbers that a block computes for a norm are read in whole vectors. What is added behind the layer may not allow that.
#[test]
fn a_norm_behind_a_long_layer_has_the_bits_of_eager_code_beside_rows_that_are_not_aligned() {
    for device in devices() {
        let [m, n, k] = [12_300, 128, 72];
        let state = || {
            let shapes: [&[usize]; 5] = [&[m, k], &[n, k], &[n], &[n], &[m * n + 1]];
            (0..5).map(|i| filled(shapes[i], DType::BF16, i, &device)).collect()
        };
        compare(
            &"rows that are not aligned",
            &device,
            state,
            |s, _| {
                let beside = s[4].narrow(0, 1, m * n)?.reshape([m, n])?;
                let y = s[0].linear(&s[1], Some(&s[2]), Activation::None, None)?.add(&beside)?;
                Ok(vec![y.layer_norm(&s[2], &s[3], 1e-5)?, y])
            },
            ends_with_a_norm,
        );
    }
}

#[test]
fn norms_behind_random_products_of_bf16_have_the_bits_of_eager_code() {
    random_norms(Precision::F32, DType::BF16);
}

#[test]
fn norms_behind_random_products_of_f16_have_the_bits_of_eager_code() {
    random_norms(Precision::F32, DType::F16);
}

#[test]
fn norms_behind_random_products_of_f32_have_the_bits_of_eager_code() {
    random_norms(Precision::F32, DType::F32);
}

#[test]
fn norms_behind_random_products_of_tf32_have_the_bits_of_eager_code() {
    random_norms(Precision::Tf32, DType::F32);
}

#[test]
fn norms_behind_random_products_in_mixed_precision_have_the_bits_of_eager_code() {
    random_norms(Precision::Bf16, DType::F32);
}

/// A product of `m` rows of `n` numbers, and the parameters of a norm of them.
fn operands([m, n, k]: [usize; 3], dtype: DType, device: &Device) -> [Tensor; 5] {
    let shapes: [&[usize]; 5] = [&[m, k], &[n, k], &[m, n], &[n], &[n]];
    [0, 1, 2, 3, 4].map(|i| filled(shapes[i], dtype, i, device))
}

#[test]
fn a_norm_is_part_of_the_product_that_computes_its_rows() {
    for device in fusing() {
        for (dtype, n) in [(DType::BF16, 64), (DType::F32, 32), (DType::F16, 16), (DType::F32, 16)] {
            let [x, w, residual, weight, shift] = operands([200, n, 48], dtype, &device);
            let linear = || x.linear(&w, None, Activation::None, Some(&residual));
            // The stream and its norm; the norm alone.
            let (count, temporaries, table) = launches(&device, || {
                let y = linear()?;
                Ok(vec![y.layer_norm(&weight, &shift, 1e-5)?, y])
            });
            assert_eq!((count, temporaries), (1, 2), "{table}");
            assert!(table.contains("fused(linear, layer_norm)"), "{table}");
            let (count, temporaries, table) =
                launches(&device, || Ok(vec![linear()?.rms_norm(&weight, 1e-5)?]));
            assert_eq!((count, temporaries), (1, 1), "{table}");
            // Behind elementwise work, and beside some that was recorded later.
            let (count, temporaries, table) = launches(&device, || {
                let y = linear()?.silu()?.add(&residual)?;
                Ok(vec![y.layer_norm(&weight, &shift, 1e-5)?, y.exp()?])
            });
            assert_eq!((count, temporaries), (1, 2), "{table}");
            assert!(table.contains("fused(linear, silu, add, layer_norm, exp)"), "{table}");
        }
    }
}

#[test]
fn tiles_that_take_no_tail_may_take_a_norm() {
    for device in fusing() {
        let [x, w, residual, weight, shift] = operands([1000, 64, 64], DType::F32, &device);
        let (count, _, table) = launches(&device, || {
            let y = x.linear(&w, None, Activation::None, Some(&residual))?;
            Ok(vec![y.layer_norm(&weight, &shift, 1e-5)?, y])
        });
        assert_eq!(count, 1, "{table}");
    }
}

#[test]
fn a_norm_of_other_rows_than_those_of_a_tile_stays_apart() {
    for device in fusing() {
        let apart = |[m, n, k]: [usize; 3], dtype, norm: &dyn Fn(Tensor) -> Result<Tensor>, expected| {
            let [x, w, ..] = operands([m, n, k], dtype, &device);
            let linear = || x.linear(&w, None, Activation::None, None);
            let (count, _, table) = launches(&device, || Ok(vec![norm(linear()?)?]));
            assert!(count == expected && !ends_with_a_norm(&table), "{table}");
        };
        let of_width = |width: usize, dtype| filled(&[width], dtype, 3, &device);
        // Rows of two rows of the product, and rows that two or more blocks compute.
        let [wide, narrow] = [64, 32].map(|width| of_width(width, DType::F32));
        let pairs = |y: Tensor| y.reshape([20, 64])?.rms_norm(&wide, 1e-5);
        apart([40, 32, 16], DType::F32, &pairs, 2);
        let row = of_width(300, DType::BF16);
        apart([40, 300, 16], DType::BF16, &|y| y.rms_norm(&row, 1e-5), 2);
        // Columns; parts of k, which another kernel gathers; f64.
        apart([32, 32, 16], DType::F32, &|y| y.transpose(0, 1)?.contiguous()?.rms_norm(&narrow, 1e-5), 3);
        apart([40, 32, 4096], DType::F32, &|y| y.rms_norm(&narrow, 1e-5), 2);
        let double = of_width(32, DType::F64);
        apart([40, 32, 16], DType::F64, &|y| y.rms_norm(&double, 1e-5), 2);
    }
}

#[test]
fn a_norm_reads_what_was_there_when_it_was_recorded() {
    for device in devices() {
        let [x, w, residual, weight, shift] = operands([100, 32, 32], DType::F32, &device);
        // Its rows change afterwards, its parameters before and afterwards, it is written where the product reads, and a parameter is
        // what others behind the product write.
        type Body<'a> = &'a dyn Fn() -> Result<Vec<Tensor>>;
        let linear = || x.linear(&w, None, Activation::None, Some(&residual));
        let rows: Body<'_> = &|| {
            let y = linear()?;
            let normal = y.layer_norm(&weight, &shift, 1e-5)?;
            y.mul_assign(&residual)?;
            Ok(vec![normal, y])
        };
        let before: Body<'_> = &|| {
            let mine = weight.copy()?;
            let y = linear()?;
            mine.mul_assign(&shift)?;
            Ok(vec![y.layer_norm(&mine, &shift, 1e-5)?, y])
        };
        let afterwards: Body<'_> = &|| {
            let mine = weight.copy()?;
            let y = linear()?;
            let normal = y.layer_norm(&mine, &shift, 1e-5)?;
            mine.mul_assign(&shift)?;
            Ok(vec![normal, mine])
        };
        let factor: Body<'_> = &|| {
            let mine = x.copy()?;
            let y = mine.linear(&w, None, Activation::None, None)?;
            y.layer_norm_into(&weight, &shift, 1e-5, &mine)?;
            Ok(vec![mine, y])
        };
        let state = residual.copy().unwrap();
        let parameter: Body<'_> = &|| {
            let y = linear()?;
            state.copy_from(&y)?;
            Ok(vec![y.layer_norm(&state.select(0, 0)?, &shift, 1e-5)?, y])
        };
        let apart = [
            (rows, "layer_norm, "),
            (before, "layer_norm, "),
            (afterwards, "layer_norm, "),
            (factor, "layer_norm)"),
            (parameter, "layer_norm)"),
        ];
        for (body, name) in apart {
            let (.., table) = launches(&device, body);
            assert!(!table.contains(name), "{table}");
        }
    }
}

#[test]
fn a_block_of_a_transformer_has_its_norms_in_its_products() {
    for device in fusing() {
        let [x, w, _, weight, shift] = operands([320, 32, 32], DType::BF16, &device);
        let generator = Generator::new(&device, 3).unwrap();
        let mut step = Step::new(&device, |_| {
            let (x, w) = (x.detach(), w.detach());
            [&x, &w].into_iter().try_for_each(|t| t.set_requires_grad(true))?;
            let mut stream = x.clone();
            for _ in 0..2 {
                let normal = stream.layer_norm(&weight, &shift, 1e-5)?;
                let y = normal.linear(&w, None, Activation::None, None)?;
                stream = y.dropout_add(0.1, &generator, &stream)?;
            }
            stream.layer_norm(&weight, &shift, 1e-5)?.backward_with(&x)?;
            Ok(vec![x.grad().expect("a leaf"), w.grad().expect("a leaf")])
        });
        step.call(&[]).unwrap();
        let table = step.program().unwrap().to_string();
        // The first norm has no product before it.
        let norms = |line: &&str| line.contains("fused(linear, dropout_add, layer_norm)");
        assert_eq!(table.lines().filter(norms).count(), 2, "{table}");
        step.finish().unwrap();
    }
}
