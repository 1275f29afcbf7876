//! Products with elementwise launches behind them, in one kernel, have the bits of the single launches.

use refrain::{Activation, DType, Device, Generator, Precision, Result, Step, Tensor, with_precision};

use super::common::{devices, sanitized};
use super::{Numbers, bits, compare, filled, fusing, launches};

/// Rows, columns and the length of sums: of one row, odd ones, narrow ones, large tiles, and sums that are split.
const SIZES: [[usize; 3]; 9] = [
    [96, 128, 16],
    [1, 40, 24],
    [37, 45, 33],
    [130, 16, 64],
    [200, 2, 48],
    [24, 20, 4096],
    [300, 136, 72],
    [17, 31, 2000],
    [70, 66, 16],
];

const ACTIVATIONS: [Activation; 4] = [Activation::None, Activation::Gelu, Activation::Relu, Activation::Silu];

/// A product of random sizes and what follows it.
#[derive(Debug)]
struct Case {
    seed: u64,
    sizes: [usize; 3],
    precision: Precision,
    dtype: DType,
    device: Device,
}

impl Case {
    fn new(seed: u64, precision: Precision, dtype: DType, device: &Device) -> Case {
        let sizes = SIZES[seed as usize % SIZES.len()];
        Case { seed, sizes, precision, dtype, device: device.clone() }
    }

    /// Operands from outside of the step.
    fn state(&self) -> Vec<Tensor> {
        let [m, n, k] = self.sizes;
        let shapes: [&[usize]; 11] = [
            &[m, k],
            &[n, k],
            &[n],
            &[m, n],
            &[m, n],
            &[n],
            &[1],
            &[3, m, k],
            &[3, n, k],
            &[3, m, n],
            &[24, n],
        ];
        // Under bf16, what meets a product's result has its dtype.
        let is_beside = |i: usize| [3, 4, 5, 6, 9].contains(&i);
        let dtype = |i: usize| match self.precision {
            Precision::Bf16 if is_beside(i) => DType::BF16,
            _ => self.dtype,
        };
        shapes.iter().enumerate().map(|(i, shape)| filled(shape, dtype(i), i, &self.device)).collect()
    }

    fn run(&self, state: &[Tensor], random: &Generator) -> Result<Vec<Tensor>> {
        let mut numbers = Numbers(self.seed);
        let [x, w, bias, other, second, row, one, xs, ws, others, back] = state else { unreachable!() };
        let kind = numbers.below(5);
        let mut results = Vec::new();
        let (product, beside) = match kind {
            0 | 1 => {
                let residual = (numbers.below(2) == 0).then_some(other);
                let bias = (numbers.below(2) == 0).then_some(bias);
                (x.linear(w, bias, *numbers.pick(&ACTIVATIONS), residual)?, second)
            }
            2 => (x.matmul(&w.transpose(0, 1)?)?, second),
            3 => (xs.matmul(&ws.transpose(1, 2)?)?, others),
            _ => {
                // Forward and backward: an input gradient is followed by those of dropout and of the activation.
                let x = x.detach();
                let [w, bias] = [w, bias].map(Tensor::detach);
                [&x, &w, &bias].into_iter().try_for_each(|t| t.set_requires_grad(true))?;
                let hidden = x.linear(&w, Some(&bias), *numbers.pick(&ACTIVATIONS), None)?;
                let hidden = hidden.dropout(0.2, random)?;
                let y = hidden.linear(back, None, Activation::None, None)?;
                y.backward_with(&y.detach().mul_scalar(0.5)?)?;
                for leaf in [&x, &w, &bias] {
                    results.push(leaf.grad().ok_or_else(|| unreachable!("a leaf"))?);
                }
                return Ok(results);
            }
        };
        if numbers.below(3) == 0 {
            results.push(product.clone());
        }
        if numbers.below(3) == 0 {
            results.push(product.softmax(-1)?);
        }
        let mut y = product.clone();
        for _ in 0..1 + numbers.below(4) {
            let has_rows = y.dtype() == row.dtype();
            let same = if beside.dtype() == y.dtype() { beside } else { &product };
            y = match numbers.below(11) {
                0 | 1 => y.dropout(0.3, random)?,
                2 if same.dtype() == y.dtype() => y.dropout_add(0.4, random, same)?,
                3 if same.dtype() == y.dtype() => same.add(&y)?,
                4 if has_rows => y.mul(row)?,
                5 if has_rows => y.add(one)?,
                6 => y.mul_scalar(1.7)?,
                7 => y.silu()?,
                8 if same.dtype() == y.dtype() => y.mul(same)?.add(&y)?,
                9 => y.to_dtype(if y.dtype() == DType::F32 { DType::BF16 } else { DType::F32 })?,
                _ => y.gt_scalar(0.1)?.where_cond(&y, &y.neg()?)?,
            };
        }
        results.push(y);
        Ok(results)
    }
}

/// Compares random products of one dtype, with what follows them, with eager code.
fn random_products(precision: Precision, dtype: DType) {
    let mut fused = 0;
    // Under a sanitizer, each kernel takes long.
    let seeds = if sanitized() { 4 } else { 2 * SIZES.len() as u64 };
    for device in devices() {
        for seed in 0..seeds {
            let case = Case::new(seed, precision, dtype, &device);
            fused += with_precision(precision, || {
                compare(
                    &case,
                    &device,
                    || case.state(),
                    |s, random| case.run(s, random),
                    starts_with_a_product,
                )
            });
        }
    }
    // Large tiles take no tail.
    let all = fusing().count() as u64 * seeds * 2;
    assert!(2 * fused as u64 >= all, "only {fused} of {all} steps had a product with a tail");
}

#[test]
fn random_products_of_bf16_have_the_bits_of_eager_code() {
    random_products(Precision::F32, DType::BF16);
}

#[test]
fn random_products_of_f16_have_the_bits_of_eager_code() {
    random_products(Precision::F32, DType::F16);
}

#[test]
fn random_products_of_f32_have_the_bits_of_eager_code() {
    random_products(Precision::F32, DType::F32);
}

#[test]
fn random_products_of_tf32_have_the_bits_of_eager_code() {
    random_products(Precision::Tf32, DType::F32);
}

#[test]
fn random_products_in_mixed_precision_have_the_bits_of_eager_code() {
    random_products(Precision::Bf16, DType::F32);
}

#[test]
fn random_products_of_f64_have_the_bits_of_eager_code() {
    random_products(Precision::F32, DType::F64);
}

fn starts_with_a_product(program: &str) -> bool {
    ["fused(linear", "fused(matmul"].iter().any(|name| program.contains(name))
}

#[test]
fn what_only_a_tail_reads_is_not_stored() {
    for device in fusing() {
        let [x, r] = [0, 1].map(|salt| filled(&[48, 32], DType::F32, salt, &device));
        let w = filled(&[32, 32], DType::F32, 2, &device);
        let linear = || x.linear(&w, None, Activation::None, None);
        let (count, temporaries, table) = launches(&device, || Ok(vec![linear()?.silu()?.mul(&r)?]));
        assert_eq!((count, temporaries), (1, 1), "{table}");
        assert!(table.contains("fused(linear, silu, mul)"), "{table}");
        // By the caller, and by another launch.
        let (count, temporaries, table) = launches(&device, || {
            let y = linear()?;
            Ok(vec![y.silu()?, y])
        });
        assert_eq!((count, temporaries), (1, 2), "{table}");
        let (count, temporaries, table) = launches(&device, || {
            let y = linear()?;
            Ok(vec![y.softmax(1)?, y.silu()?])
        });
        assert_eq!((count, temporaries), (2, 3), "{table}");
    }
}

#[test]
fn a_tail_has_one_product_and_never_changes_its_factors() {
    for device in fusing() {
        let x = filled(&[32, 32], DType::F32, 0, &device);
        let w = filled(&[32, 32], DType::F32, 1, &device);
        let product = |x: &Tensor| x.linear(&w, None, Activation::None, None);
        // A gate: each product gets what follows it.
        let (count, _, table) = launches(&device, || Ok(vec![product(&x)?.silu()?.mul(&product(&w)?)?]));
        assert_eq!(count, 2, "{table}");
        // What computes a factor, or reads another element of the result, stays apart.
        let (count, _, table) = launches(&device, || Ok(vec![product(&x.tanh()?)?]));
        assert_eq!(count, 2, "{table}");
        let (count, _, table) = launches(&device, || Ok(vec![product(&x)?.transpose(0, 1)?.mul(&x)?]));
        assert_eq!(count, 2, "{table}");
        // The result goes where a factor is.
        let state = filled(&[32, 32], DType::F32, 2, &device);
        let (count, _, table) = launches(&device, || {
            state.copy_from(&x)?;
            state.copy_from(&product(&state)?.tanh()?)?;
            Ok(vec![state.copy()?])
        });
        assert!(!table.contains("fused(linear, tanh, copy"), "{table}");
        assert!(count >= 3, "{table}");
    }
}

#[test]
fn gradients_behind_an_input_gradient_are_part_of_it() {
    for device in fusing() {
        let [w, back] = [[32usize, 16], [16, 32]].map(|shape| filled(&shape, DType::F32, 1, &device));
        let [x, dy] = [0, 2].map(|salt| filled(&[40, 16], DType::F32, salt, &device));
        let generator = Generator::new(&device, 3).unwrap();
        let mut step = Step::new(&device, |_| {
            let (x, w) = (x.detach(), w.detach());
            [&x, &w].into_iter().try_for_each(|t| t.set_requires_grad(true))?;
            let hidden = x.linear(&w, None, Activation::Gelu, None)?.dropout(0.1, &generator)?;
            hidden.linear(&back, None, Activation::None, None)?.backward_with(&dy)?;
            Ok(vec![x.grad().expect("a leaf"), w.grad().expect("a leaf")])
        });
        step.call(&[]).unwrap();
        let table = step.program().unwrap().to_string();
        assert!(table.contains("fused(linear, dropout)"), "{table}");
        // The next input gradient follows them.
        let name = "fused(linear_input_gradient, dropout_backward, unary_backward, linear_input_gradient)";
        assert!(table.contains(name), "{table}");
        step.finish().unwrap();
    }
}

#[test]
fn a_product_does_not_wait_for_what_it_is_added_to() {
    for device in fusing() {
        let x = filled(&[40, 16], DType::F32, 0, &device);
        let [w, y] = [[32usize, 16], [40, 32]].map(|shape| filled(&shape, DType::F32, 1, &device));
        let (count, _, table) = launches(&device, || {
            let product = x.exp()?.linear(&w, None, Activation::None, None)?;
            Ok(vec![product.add(&y.softmax(1)?)?])
        });
        assert!(count == 4 && !table.contains("fused"), "{table}");
    }
}

#[test]
fn a_product_that_the_library_computes_keeps_its_launch() {
    for device in fusing() {
        let [x, w] = [[2048usize, 128], [256, 128]].map(|shape| filled(&shape, DType::BF16, 0, &device));
        let with = |activation| x.linear(&w, None, activation, None)?.tanh();
        let (count, _, table) = launches(&device, || Ok(vec![with(Activation::None)?]));
        assert_eq!(count, 2, "{table}");
        // It does not compute this activation.
        let (count, _, table) = launches(&device, || Ok(vec![with(Activation::Silu)?]));
        assert_eq!(count, 1, "{table}");
    }
}

/// Compares a step with eager code, bit for bit, and returns the table of its launches.
fn with_the_bits_of_eager_code(device: &Device, closure: impl Fn() -> Result<Vec<Tensor>>) -> String {
    let expected = bits(&closure().unwrap());
    let mut step = Step::new(device, |_| Ok(closure()?));
    let mut table = String::new();
    for _ in 0..2 {
        let outputs = step.call(&[]).unwrap();
        let found: Vec<Tensor> = (0..outputs.len()).map(|i| outputs.copy(i).unwrap()).collect();
        table = step.program().unwrap().to_string();
        assert_eq!(bits(&found), expected, "{table}");
    }
    step.finish().unwrap();
    table
}

/// Views of `[m, n]` that begin one element behind where a vector of 16 bytes does: contiguous, in longer rows, in columns.
fn misaligned([m, n]: [usize; 2], dtype: DType, device: &Device) -> [Tensor; 3] {
    let run = filled(&[m * n + 1], dtype, 3, device).narrow(0, 1, m * n).unwrap();
    let columns = filled(&[n, m + 1], dtype, 5, device).narrow(1, 1, m).unwrap();
    [
        run.view([m, n]).unwrap(),
        filled(&[m, n + 1], dtype, 4, device).narrow(1, 1, n).unwrap(),
        columns.transpose(0, 1).unwrap(),
    ]
}

/// Rows, columns and the length of sums: columns that vectors of 16 bytes divide, in small tiles and in several. With more rows,
/// GPUs that have `wgmma` compute f32 in tiles that take no tail.
const DIVISIBLE: [[usize; 3]; 3] = [[24, 32, 16], [21, 132, 48], [9, 8, 2000]];

#[test]
fn operands_of_a_tail_may_begin_anywhere() {
    for device in devices() {
        for (dtype, [m, n, k]) in [DType::F32, DType::BF16, DType::F16, DType::F64]
            .into_iter()
            .flat_map(|d| DIVISIBLE.map(|s| (d, s)))
        {
            let [x, w] = [[m, k], [n, k]].map(|shape| filled(&shape, dtype, 0, &device));
            for (other, dst) in
                misaligned([m, n], dtype, &device).iter().zip(misaligned([m, n], dtype, &device))
            {
                let table = with_the_bits_of_eager_code(&device, || {
                    let y = x.linear(&w, None, Activation::None, None)?;
                    y.mul(other)?.silu_into(&dst)?;
                    Ok(vec![y.add(other)?, dst.copy()?])
                });
                // What is not contiguous stays apart.
                let is_fused = other.is_contiguous() && fusing().any(|fusing| fusing == device);
                assert_eq!(starts_with_a_product(&table), is_fused, "{table}");
            }
        }
    }
}

#[test]
fn a_tail_may_follow_a_gradient_that_a_product_is_added_to() {
    for device in devices() {
        for (dtype, [m, n, k]) in
            [DType::F32, DType::BF16, DType::F64].into_iter().flat_map(|d| DIVISIBLE.map(|s| (d, s)))
        {
            // `[m, k] [k, n]`: the gradient of the input of a layer with `n` inputs and `k` outputs.
            let [dy, w, start] = [[m, k], [k, n], [m, n]].map(|shape| filled(&shape, dtype, 1, &device));
            for (other, gradient) in
                misaligned([m, n], dtype, &device).iter().zip(misaligned([m, n], dtype, &device))
            {
                with_the_bits_of_eager_code(&device, || {
                    gradient.copy_from(&start)?;
                    let x = start.detach();
                    x.set_requires_grad(true)?;
                    x.set_grad(&gradient)?;
                    x.linear(&w, None, Activation::None, None)?.backward_with(&dy)?;
                    Ok(vec![gradient.mul(other)?.tanh()?, gradient.copy()?])
                });
            }
        }
    }
}

#[test]
fn only_a_tail_may_read_what_a_product_keeps_for_its_gradient() {
    for device in devices() {
        for (dtype, [m, n, k]) in
            [DType::F32, DType::BF16, DType::F64].into_iter().flat_map(|d| DIVISIBLE.map(|s| (d, s)))
        {
            let [x, w] = [[m, k], [n, k]].map(|shape| filled(&shape, dtype, 2, &device));
            for dy in misaligned([m, n], dtype, &device) {
                let table = with_the_bits_of_eager_code(&device, || {
                    let (x, w) = (x.detach(), w.detach());
                    w.set_requires_grad(true)?;
                    // The gradient of the activation reads its operand, which the product keeps beside its result.
                    x.linear(&w, None, Activation::Gelu, None)?.backward_with(&dy)?;
                    Ok(vec![w.grad().expect("a leaf")])
                });
                let is_fused = dy.is_contiguous() && fusing().any(|fusing| fusing == device);
                assert_eq!(table.contains("fused(linear, unary_backward"), is_fused, "{table}");
            }
        }
    }
}

#[test]
fn a_tail_may_read_rows_that_repeat() {
    for device in devices() {
        for (dtype, n) in
            [(DType::F32, 32), (DType::BF16, 32), (DType::F16, 36), (DType::F64, 7), (DType::F32, 45)]
        {
            let [x, w] = [vec![4, 5, 16], vec![n, 16]].map(|shape| filled(&shape, dtype, 0, &device));
            let positions = filled(&[5, n], dtype, 1, &device);
            let columns = filled(&[5, 1], dtype, 2, &device);
            let linear = || x.linear(&w, None, Activation::None, None);
            let table = with_the_bits_of_eager_code(&device, || Ok(vec![linear()?.add(&positions)?.tanh()?]));
            let fuses = fusing().any(|fusing| fusing == device);
            assert_eq!(table.contains("fused(linear, add, tanh)"), fuses, "{table}");
            // One number for each row, and rows of which each repeats before the next one.
            let table = with_the_bits_of_eager_code(&device, || Ok(vec![linear()?.add(&columns)?]));
            assert!(!starts_with_a_product(&table), "{table}");
            let slow = filled(&[4, 1, n], dtype, 3, &device);
            let table = with_the_bits_of_eager_code(&device, || Ok(vec![linear()?.add(&slow)?]));
            assert!(!starts_with_a_product(&table), "{table}");
        }
    }
}
