//! Gradients that are in the range of their dtype, of operands whose squares, products or powers are not.

use refrain::{DType, Device, Result, Tensor};

use crate::common::{devices, tensor, values};
use crate::{epsilon, leaf, numbers};

type Function = fn(&[Tensor]) -> Result<Tensor>;

/// The gradients of leaves of one element, with `d` as that of the result.
fn gradients(f: Function, x: &[f64], d: f64, dtype: DType, device: &Device) -> Vec<f64> {
    let x: Vec<Tensor> = x.iter().map(|&v| leaf(&[v], 1, dtype, device)).collect();
    f(&x).unwrap().backward_with(&tensor(&[d], 1, dtype, device)).unwrap();
    x.iter().map(|t| values(&t.grad().unwrap())[0]).collect()
}

#[track_caller]
fn assert_near(what: &str, found: f64, expected: f64, dtype: DType, ulps: f64) {
    let near = (found - expected).abs() <= ulps * epsilon(dtype) * expected.abs();
    assert!(near, "{what}: {found:e}, not {expected:e}");
}

/// Function, operands, gradient of the result, which operand's gradient, its value.
const CASES: [(&str, Function, &[f64], f64, usize, f64); 20] = [
    ("div", |t| t[0].div(&t[1]), &[3e38, 2e19], 1.5, 1, -1.125),
    ("div", |t| t[0].div(&t[1]), &[1e20, 1e20], 1.5, 1, -1.5e-20),
    ("div", |t| t[0].div(&t[1]), &[1e-23, 1e-23], 1.5, 1, -1.5e23),
    ("div", |t| t[0].div(&t[1]), &[1e30, 1e20], 1e25, 1, -1e15),
    ("div", |t| t[0].div(&t[1]), &[1e-30, 1e-20], 1e-25, 1, -1e-15),
    ("div", |t| t[0].div(&t[1]), &[1e-20, 1e20], 1e30, 1, -1e-30),
    ("scalar_div", |t| t[0].scalar_div(3e38), &[2e19], 1.5, 0, -1.125),
    ("scalar_div", |t| t[0].scalar_div(1e-23), &[1e-23], 1.5, 0, -1.5e23),
    ("rsqrt", |t| t[0].rsqrt(), &[1e-30], 1e-10, 0, -0.5e35),
    ("rsqrt", |t| t[0].rsqrt(), &[1e30], 1e10, 0, -0.5e-35),
    ("reciprocal", |t| t[0].reciprocal(), &[1e-20], 1e-10, 0, -1e30),
    ("reciprocal", |t| t[0].reciprocal(), &[1e25], 1e20, 0, -1e-30),
    ("sqrt", |t| t[0].sqrt(), &[1e-30], 1e20, 0, 0.5e35),
    ("square", |t| t[0].square(), &[2e38], 0.5, 0, 2e38),
    ("pow", |t| t[0].pow_scalar(3.0), &[1e20], 1e-10, 0, 3e30),
    ("pow", |t| t[0].pow_scalar(-3.0), &[-1e10], 1e10, 0, -3e-30),
    ("pow", |t| t[0].pow_scalar(4.0), &[-1e13], 1e-10, 0, -4e29),
    ("pow", |t| t[0].pow_scalar(0.25), &[1e-30], 2e16, 0, 0.5e16 * 3.162_277_660_168_379_5e22),
    ("pow by the exponent", |t| t[0].pow(&t[1]), &[1e20, 2.0], 1e-10, 1, 1e30 * 46.051_701_859_880_914),
    ("scalar_pow", |t| t[0].scalar_pow(1e20), &[-2.0], 1e10, 0, 1e-30 * 46.051_701_859_880_914),
];

#[test]
fn a_gradient_in_range_is_right_whatever_its_parts_are() {
    for device in devices() {
        for (name, f, x, d, by, expected) in CASES {
            for dtype in [DType::F64, DType::F32, DType::BF16] {
                // bf16 has not these numbers: the power of another number is another one, and some would be infinite.
                if dtype == DType::BF16 && (name.contains("pow") || expected.abs() > 1e37) {
                    continue;
                }
                let found = gradients(f, x, d, dtype, &device)[by];
                // Each operand is off by half a unit, and so is the scalar; a cube has three times as much.
                let ulps = if dtype == DType::F64 { 8.0 } else { 12.0 };
                assert_near(&format!("{name} of {x:?} in {dtype} on {device}"), found, expected, dtype, ulps);
            }
        }
    }
}

/// The lowest and the highest exponent of normal numbers of a dtype.
fn exponents(dtype: DType) -> (i32, i32) {
    match dtype {
        DType::F64 => (-1022, 1023),
        DType::F16 => (-14, 15),
        _ => (-126, 127),
    }
}

/// Multiplied by powers of two, operands of a quotient make a gradient that is multiplied by one: over all exponents that
/// leave it in range, it must be that of the operands from 1 to 2, but for the roundings on the way.
#[test]
fn the_gradient_by_a_denominator_scales_with_its_operands() {
    const N: usize = 4000;
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        let (low, high) = exponents(dtype);
        let spread = |seed| -> Vec<i32> {
            numbers(N, seed).iter().map(|v| low + ((v + 1.0) / 2.0 * f64::from(high - low)) as i32).collect()
        };
        let (ea, eb, ed) = (spread(1), spread(2), spread(3));
        let power = |e: i32| 2f64.powi(e / 2) * 2f64.powi(e - e / 2);
        for device in devices() {
            let mantissas = |seed| -> Vec<f64> {
                let raw: Vec<f64> = numbers(N, seed).iter().map(|v| (1.5 + v / 2.0).min(1.99)).collect();
                values(&tensor(&raw, N, dtype, &device))
            };
            let (a, b, d) = (mantissas(4), mantissas(5), mantissas(6));
            let by_denominator = |e: Option<[&[i32]; 3]>| {
                let scaled = |x: &[f64], which: usize| -> Vec<f64> {
                    x.iter().enumerate().map(|(i, v)| v * e.map_or(1.0, |e| power(e[which][i]))).collect()
                };
                let x = tensor(&scaled(&a, 0), N, dtype, &device);
                let y = leaf(&scaled(&b, 1), N, dtype, &device);
                x.div(&y).unwrap().backward_with(&tensor(&scaled(&d, 2), N, dtype, &device)).unwrap();
                values(&y.grad().unwrap())
            };
            let (plain, found) = (by_denominator(None), by_denominator(Some([&ea, &eb, &ed])));
            let mut tried = 0;
            for i in 0..N {
                let e = ea[i] + ed[i] - 2 * eb[i];
                if (low + 2..high - 1).contains(&e) {
                    tried += 1;
                    let what = format!("2^{} / 2^{}, 2^{} in {dtype} on {device}", ea[i], eb[i], ed[i]);
                    assert_near(&what, found[i], plain[i] * power(e), dtype, 2.0);
                }
            }
            assert!(tried > N / 10, "{tried} in {dtype}");
        }
    }
}

#[test]
fn at_zero_and_infinity_the_gradient_by_a_denominator_is_that_of_its_formula() {
    let inf = f64::INFINITY;
    // a, b, d
    let cases = [
        ([0.0, 2.0, 3.0], 0.0),
        ([2.0, 3.0, 0.0], 0.0),
        ([0.0, 1e-30, 3.0], 0.0),
        ([1.0, 0.0, 1.0], -inf),
        ([-1.0, 0.0, 1.0], inf),
        ([0.0, 0.0, 1.0], f64::NAN),
        ([1.0, inf, 1.0], 0.0),
        ([inf, 2.0, 1.0], -inf),
        ([f64::NAN, 2.0, 1.0], f64::NAN),
        ([1e30, 1e-30, 1e30], -inf),
        ([1e-30, 1e30, 1e-30], 0.0),
    ];
    for device in devices() {
        for ([a, b, d], expected) in cases {
            let found = gradients(|t| t[0].div(&t[1]), &[a, b], d, DType::F32, &device)[1];
            assert!(
                found == expected || found.is_nan() && expected.is_nan(),
                "{a}, {b}, {d} on {device}: {found}"
            );
        }
    }
}

#[test]
fn the_gradient_of_a_loss_is_scaled_before_it_meets_small_errors() {
    // Loss scaling: d = 65536, of errors whose share of a mean of 4096 is below the range of f32.
    const N: usize = 4096;
    for device in devices() {
        for loss in
            [(|x, t| x.mse_loss(t)) as fn(&Tensor, &Tensor) -> Result<Tensor>, |x, t| x.huber_loss(t, 1.0)]
        {
            let x = leaf(&[3e-38; N], N, DType::F32, &device);
            let t = Tensor::zeros([N], DType::F32, &device).unwrap();
            let y = loss(&x, &t).unwrap();
            y.backward_with(&Tensor::full((), 65536.0, DType::F32, &device).unwrap()).unwrap();
            let found = values(&x.grad().unwrap());
            let unit = f64::from(3e-38f32) * 16.0;
            assert!(found.iter().all(|&g| g == unit || g == 2.0 * unit), "{} on {device}", found[0]);
        }
    }
}
