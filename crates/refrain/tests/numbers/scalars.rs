//! A number beside a tensor is the tensor of that dtype which holds it: rounded to the dtype before anything else.

use refrain::{DType, Device, Result, Tensor};

use crate::common::{FLOATS, devices, tensor, values};
use crate::leaf;

type Pair = fn(&Tensor, &Tensor) -> Result<Tensor>;
type Scalar = fn(&Tensor, f64) -> Result<Tensor>;
type Into = fn(&Tensor, f64, &Tensor) -> Result<()>;

macro_rules! functions {
    ($($name:ident, $scalar:ident, $into:ident;)*) => {
        [$((stringify!($scalar), Tensor::$name as Pair, Tensor::$scalar as Scalar, Tensor::$into as Into)),*]
    };
}

const ARITHMETIC: [(&str, Pair, Scalar, Into); 7] = functions! {
    add, add_scalar, add_scalar_into;
    sub, sub_scalar, sub_scalar_into;
    mul, mul_scalar, mul_scalar_into;
    div, div_scalar, div_scalar_into;
    pow, pow_scalar, pow_scalar_into;
    maximum, maximum_scalar, maximum_scalar_into;
    minimum, minimum_scalar, minimum_scalar_into;
};
const REVERSED: [(&str, Pair, Scalar, Into); 3] = [
    ("scalar_sub", |x, s| s.sub(x), Tensor::scalar_sub, Tensor::scalar_sub_into),
    ("scalar_div", |x, s| s.div(x), Tensor::scalar_div, Tensor::scalar_div_into),
    ("scalar_pow", |x, s| s.pow(x), Tensor::scalar_pow, Tensor::scalar_pow_into),
];
const COMPARISONS: [(&str, Pair, Scalar, Into); 9] = functions! {
    eq, eq_scalar, eq_scalar_into;
    ne, ne_scalar, ne_scalar_into;
    lt, lt_scalar, lt_scalar_into;
    le, le_scalar, le_scalar_into;
    gt, gt_scalar, gt_scalar_into;
    ge, ge_scalar, ge_scalar_into;
    logical_and, logical_and_scalar, logical_and_scalar_into;
    logical_or, logical_or_scalar, logical_or_scalar_into;
    logical_xor, logical_xor_scalar, logical_xor_scalar_into;
};

/// Numbers that no binary type has; one that f16 takes for 0.
const SCALARS: [f64; 5] = [0.1, -0.3, 1.7, 2.1, 1e-9];

/// Numbers among which are those that the scalars are rounded to, and their neighbours.
fn around_scalars(dtype: DType, device: &Device) -> Vec<f64> {
    let held = values(&tensor(&SCALARS, SCALARS.len(), dtype, device));
    let step = crate::epsilon(dtype);
    let near = held.iter().flat_map(|&v| [v, v * (1.0 + step), v * (1.0 - step), v + 0.3]);
    values(&tensor(&near.collect::<Vec<_>>(), 4 * SCALARS.len(), dtype, device))
}

fn bits(t: &Tensor) -> Vec<u64> {
    values(t).into_iter().map(f64::to_bits).collect()
}

#[test]
fn a_scalar_is_the_tensor_that_holds_it() {
    for device in devices() {
        for dtype in FLOATS {
            let numbers = around_scalars(dtype, &device);
            for scalar in SCALARS {
                let of = Tensor::full((), scalar, dtype, &device).unwrap();
                for (name, pair, with_scalar, into) in
                    ARITHMETIC.into_iter().chain(REVERSED).chain(COMPARISONS)
                {
                    let [x, y] = [0, 1].map(|_| leaf(&numbers, numbers.len(), dtype, &device));
                    let what = format!("{name}({scalar}) in {dtype} on {device}");
                    let (found, expected) = (with_scalar(&x, scalar).unwrap(), pair(&y, &of).unwrap());
                    assert_eq!(bits(&found.detach()), bits(&expected.detach()), "{what}");
                    let dst = expected.detach().zeros_like().unwrap();
                    into(&x.detach(), scalar, &dst).unwrap();
                    assert_eq!(bits(&dst), bits(&expected.detach()), "{what}, into");
                    if expected.dtype() == dtype {
                        found.backward_with(&found.detach().ones_like().unwrap()).unwrap();
                        expected.backward_with(&expected.detach().ones_like().unwrap()).unwrap();
                        let gradients = [&x, &y].map(|t| bits(&t.grad().unwrap()));
                        assert_eq!(gradients[0], gradients[1], "gradient of {what}");
                    }
                }
            }
        }
    }
}

#[test]
fn bounds_are_numbers_of_the_dtype() {
    for device in devices() {
        for dtype in FLOATS {
            let numbers = around_scalars(dtype, &device);
            let x = leaf(&numbers, numbers.len(), dtype, &device);
            for (low, high) in [(-0.3, 1.7), (0.1, 2.1), (-0.3, 0.1)] {
                let [a, b] = [low, high].map(|v| Tensor::full((), v, dtype, &device).unwrap());
                x.zero_grad().unwrap();
                let y = x.clamp(low, high).unwrap();
                let expected = x.detach().maximum(&a).unwrap().minimum(&b).unwrap();
                assert_eq!(bits(&y.detach()), bits(&expected), "{dtype} on {device}");
                // The gradient is 0 at the bounds, which are among the numbers.
                y.backward_with(&expected.ones_like().unwrap()).unwrap();
                let [a, b] = [a, b].map(|t| values(&t)[0]);
                assert!(numbers.contains(&a) && numbers.contains(&b), "{dtype}");
                let inside: Vec<f64> = numbers.iter().map(|&v| f64::from(u8::from(v > a && v < b))).collect();
                assert_eq!(values(&x.grad().unwrap()), inside, "{low} to {high} in {dtype} on {device}");
            }
        }
    }
}

#[test]
fn bf16_beside_a_scalar_is_what_pytorch_makes_of_it() {
    for device in devices() {
        let x = tensor(&[-0.3, 0.1], 2, DType::BF16, &device);
        assert_eq!(x.eq_scalar(-0.3).unwrap().to_vec::<bool>().unwrap(), [true, false]);
        let x = tensor(&[0.08984375], 1, DType::BF16, &device);
        assert_eq!(values(&x.sub_scalar(0.1).unwrap()), [-0.01025390625]);
    }
}

#[test]
fn the_gradient_of_a_mean_is_divided_by_the_number_of_elements() {
    // Which bf16 does not have, and f16 takes for infinite.
    for (dtype, count) in [(DType::BF16, 257), (DType::F16, 70_000)] {
        for device in devices() {
            let x = Tensor::zeros([count], dtype, &device).unwrap();
            x.set_requires_grad(true).unwrap();
            x.mean(()).unwrap().backward().unwrap();
            let expected = values(&tensor(&[1.0 / count as f64], 1, dtype, &device));
            assert_eq!(values(&x.grad().unwrap()), vec![expected[0]; count], "{dtype} on {device}");
        }
    }
}
