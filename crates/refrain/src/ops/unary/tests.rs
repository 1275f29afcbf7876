use half::{bf16, f16};

use crate::testing::{assert_close, devices, gradcheck, leaf, values};
use refrain::{DType, Device, Element, Error, Tensor};

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let x = Tensor::from_slice(&[0.3f64, 1.7, 0.9, 2.2, 0.05, 1.1], [2, 3], &device).unwrap();
        x.set_requires_grad(true).unwrap();
        let functions: [fn(&Tensor) -> refrain::Result<Tensor>; 47] = [
            Tensor::neg,
            Tensor::abs,
            Tensor::exp,
            Tensor::log,
            Tensor::log1p,
            Tensor::expm1,
            Tensor::sqrt,
            Tensor::rsqrt,
            Tensor::reciprocal,
            Tensor::square,
            Tensor::sin,
            Tensor::cos,
            Tensor::tanh,
            Tensor::sigmoid,
            Tensor::relu,
            Tensor::gelu,
            Tensor::gelu_tanh,
            Tensor::silu,
            Tensor::erf,
            |x| x.sub_scalar(1.0)?.erfc(),
            |x| x.mul_scalar(-0.4)?.erfinv(),
            Tensor::lgamma,
            Tensor::digamma,
            Tensor::softplus,
            Tensor::exp2,
            Tensor::log2,
            Tensor::log10,
            |x| x.sub_scalar(1.0)?.tan(),
            |x| x.mul_scalar(0.4)?.asin(),
            |x| x.mul_scalar(-0.4)?.acos(),
            Tensor::atan,
            |x| x.sub_scalar(1.0)?.sinh(),
            |x| x.sub_scalar(1.0)?.cosh(),
            |x| x.sub_scalar(1.0)?.asinh(),
            |x| x.add_scalar(1.2)?.acosh(),
            |x| x.mul_scalar(-0.4)?.atanh(),
            |x| x.sub_scalar(1.0)?.log_sigmoid(),
            |x| x.sub_scalar(1.0)?.mish(),
            |x| x.sub_scalar(1.0)?.hardswish(),
            |x| x.mul_scalar(4.0)?.sub_scalar(5.1)?.hardswish(),
            |x| x.mul_scalar(4.0)?.sub_scalar(5.1)?.hardsigmoid(),
            |x| x.sub_scalar(1.0)?.selu(),
            |x| x.sub_scalar(1.0)?.nan_to_num(0.0, 1.0, -1.0),
            |x| x.sub_scalar(1.0)?.elu(0.7),
            |x| x.sub_scalar(1.0)?.leaky_relu(0.3),
            |x| x.clamp(0.2, 2.0),
            |x| x.transpose(0, 1)?.exp()?.square(),
        ];
        for (i, f) in functions.into_iter().enumerate() {
            gradcheck(|t| f(&t[0]), std::slice::from_ref(&x), 1e-6)
                .unwrap_or_else(|e| panic!("function {i}: {e}"));
        }
    }
}

/// Where a square, a power or an infinity on the way would make them 0 or NaN.
#[test]
fn gradients_of_large_numbers_are_finite_and_exact() {
    type Function = fn(&Tensor) -> refrain::Result<Tensor>;
    let cases: [(&str, Function, f32, f32); 13] = [
        ("atan", Tensor::atan, 1e18, 1e-16),
        ("asinh", Tensor::asinh, -3e20, 1e20 / 3e20),
        ("acosh", Tensor::acosh, 3e20, 1e20 / 3e20),
        ("mish", Tensor::mish, 100.0, 1e20),
        ("mish", Tensor::mish, -200.0, 0.0),
        ("log_sigmoid", Tensor::log_sigmoid, -200.0, 1e20),
        ("mish", Tensor::mish, 1e30, 1e20),
        ("exp2", Tensor::exp2, -100.0, 1e20 * 7.888_609e-31 * std::f32::consts::LN_2),
        // At the ends, and where values are replaced.
        ("hardswish", Tensor::hardswish, 3.0, 1e20),
        ("hardswish", Tensor::hardswish, -3.0, 0.0),
        ("nan_to_num", |x| x.nan_to_num(2.0, 1.0, -1.0), f32::NAN, 0.0),
        ("nan_to_num", |x| x.nan_to_num(2.0, 1.0, -1.0), f32::INFINITY, 0.0),
        ("log2", Tensor::log2, 1e-30, f32::INFINITY),
    ];
    for device in devices() {
        for (name, function, at, expected) in cases {
            let x = Tensor::from_slice(&[at], [1], &device).unwrap();
            x.set_requires_grad(true).unwrap();
            function(&x).unwrap().mul_scalar(1e20).unwrap().sum(()).unwrap().backward().unwrap();
            let found = x.grad().unwrap().to_scalar::<f32>().unwrap();
            let close = (found - expected).abs() <= 1e-5 * expected.abs() + 1e-30 || found == expected;
            assert!(close, "{name} at {at:e}: {found:e}, not {expected:e}");
        }
    }
}

#[test]
fn nan_stays_and_the_gradient_of_a_step_is_zero() {
    for device in devices() {
        let x = Tensor::from_slice(&[f32::NAN, -1.5, 2.5], [3], &device).unwrap();
        for y in [x.relu(), x.clamp(-1.0, 1.0), x.round()] {
            assert!(y.unwrap().to_vec::<f32>().unwrap()[0].is_nan());
        }
        assert_eq!(x.round().unwrap().to_vec::<f32>().unwrap()[1..], [-2.0, 2.0]);
        x.set_requires_grad(true).unwrap();
        x.floor().unwrap().sum(()).unwrap().backward().unwrap();
        assert!(x.grad().is_none());
    }
}

#[test]
fn integers_take_what_maps_integers_to_integers() {
    for device in devices() {
        let x = Tensor::from_slice(&[-3i32, 0, 5], [3], &device).unwrap();
        assert_eq!(x.neg().unwrap().to_vec::<i32>().unwrap(), [3, 0, -5]);
        assert_eq!(x.clamp(-1.5, 4.5).unwrap().to_vec::<i32>().unwrap(), [-1, 0, 4]);
        assert_eq!(x.clamp(0.5, 9.0).unwrap().to_vec::<i32>().unwrap(), [1, 1, 5]);
        assert!(x.clamp(0.2, 0.8).is_err());
        let e = x.exp().unwrap_err();
        assert!(matches!(e, Error::Unsupported { op: "exp", dtype: DType::I32, .. }), "{e}");
    }
}

#[test]
fn signs_of_halves_change_in_every_layout() {
    // As bits, which tell the zeros apart. All NaN have those of one, because devices may change their signs.
    const NAN: u16 = 0x7fff;
    fn check<T: Element>(device: &Device, of: fn(f32) -> T, bits: fn(T) -> u16) {
        let rare = [0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-7, -1e-7];
        let number = |i: usize| match i % 11 {
            at @ 0..8 => rare[at],
            _ => (i * 37 % 101) as f32 * 0.25 - 12.0,
        };
        let wide: Vec<T> = (0..300 * 75).map(|i| of(number(i))).collect();
        let x = Tensor::from_slice(&wide, [300, 75], device).unwrap();
        for x in [
            x.clone(),
            x.narrow(1, 3, 67).unwrap(),
            x.transpose(0, 1).unwrap(),
            x.narrow(1, 5, 1).unwrap(),
            x.narrow(1, 6, 1).unwrap().broadcast_to([300, 9]).unwrap(),
        ] {
            let bits = |t: &Tensor| t.to_vec::<T>().unwrap().into_iter().map(bits).collect::<Vec<_>>();
            let before = bits(&x);
            let around = Tensor::zeros([x.dims()[0], x.dims()[1] + 2], x.dtype(), device).unwrap();
            let within = around.narrow(1, 1, x.dims()[1]).unwrap();
            let negated: Vec<u16> = before.iter().map(|&b| if b == NAN { b } else { b ^ 0x8000 }).collect();
            x.neg_into(&within).unwrap();
            assert_eq!((bits(&x.neg().unwrap()), bits(&within)), (negated.clone(), negated));
            let absolute: Vec<u16> = before.iter().map(|b| b & 0x7fff).collect();
            x.abs_into(&within).unwrap();
            assert_eq!((bits(&x.abs().unwrap()), bits(&within)), (absolute.clone(), absolute));
        }
    }
    for device in devices() {
        check(&device, f16::from_f32, |v| if v.is_nan() { NAN } else { v.to_bits() });
        check(&device, bf16::from_f32, |v| if v.is_nan() { NAN } else { v.to_bits() });
    }
}

/// Of all numbers of 16 bits: the nearest to the exact result or the next one, nearly always the nearest.
#[test]
fn sines_of_halves_are_nearly_always_the_nearest() {
    fn check<T: Element>(of: fn(u16) -> T, to_f64: fn(T) -> f64, nearest: fn(f64) -> T, bits: fn(T) -> u16) {
        let device = Device::cpu();
        let all: Vec<T> = (0..=u16::MAX).map(of).collect();
        let x = Tensor::from_slice(&all, [all.len()], &device).unwrap();
        let functions: [(Tensor, fn(f64) -> f64); 2] =
            [(x.sin().unwrap(), libm::sin), (x.cos().unwrap(), libm::cos)];
        for (y, exact) in functions {
            let mut others = 0;
            for (&x, y) in all.iter().zip(y.to_vec::<T>().unwrap()) {
                let expected = nearest(exact(to_f64(x)));
                if to_f64(expected).is_nan() {
                    assert!(to_f64(y).is_nan(), "of {:e}", to_f64(x));
                    continue;
                }
                let distance = bits(y).abs_diff(bits(expected));
                assert!(distance <= 1, "of {:e}: {:e}, not {:e}", to_f64(x), to_f64(y), to_f64(expected));
                others += distance;
            }
            assert!(others < 200, "{others} are not the nearest");
        }
    }
    check(bf16::from_bits, bf16::to_f64, bf16::from_f64, bf16::to_bits);
    check(f16::from_bits, f16::to_f64, f16::from_f64, f16::to_bits);
}

/// Of all numbers of 16 bits, and of each with many others.
#[test]
fn whole_numbers_and_extremes_of_halves_have_the_bits_of_those_of_f32() {
    fn check<T: Element>(of: fn(u16) -> T, bits: fn(T) -> u16) {
        let device = Device::cpu();
        let all: Vec<T> = (0..=u16::MAX).map(of).collect();
        let x = Tensor::from_slice(&all, [all.len()], &device).unwrap();
        // Zeros of both signs, numbers of one sign and of both, and NaN.
        let others: Vec<T> =
            (0..=u16::MAX).map(|i| of(i.wrapping_mul(40_503).rotate_left(3) ^ 0x8000)).collect();
        let others = Tensor::from_slice(&others, [all.len()], &device).unwrap();
        let zeros = x.mul_scalar(0.0).unwrap();
        for (name, f) in [
            ("floor", &Tensor::floor as &dyn Fn(&Tensor) -> refrain::Result<Tensor>),
            ("ceil", &Tensor::ceil),
            ("round", &Tensor::round),
            ("trunc", &Tensor::trunc),
            ("maximum", &|x| x.maximum(&others.to_dtype(x.dtype())?)),
            ("minimum", &|x| x.minimum(&others.to_dtype(x.dtype())?)),
            ("minimum of neighbours", &|x| x.narrow(0, 1, 65_535)?.minimum(&x.narrow(0, 0, 65_535)?)),
            ("maximum and zero", &|x| x.maximum(&zeros.to_dtype(x.dtype())?)),
            ("zero and minimum", &|x| zeros.to_dtype(x.dtype())?.minimum(x)),
        ] {
            let wide = f(&x.to_dtype(DType::F32).unwrap()).unwrap().to_dtype(x.dtype()).unwrap();
            let found = f(&x).unwrap().to_vec::<T>().unwrap();
            for (i, (found, wide)) in found.into_iter().zip(wide.to_vec::<T>().unwrap()).enumerate() {
                assert_eq!(bits(found), bits(wide), "{name} {i:04x} of {}", x.dtype());
            }
        }
    }
    check(bf16::from_bits, bf16::to_bits);
    check(f16::from_bits, f16::to_bits);
}

/// Computed in registers or in passes, in rows of any length.
#[test]
fn functions_of_halves_are_those_of_f32_rounded_once() {
    let functions: [fn(&Tensor) -> refrain::Result<Tensor>; 13] = [
        Tensor::tanh,
        Tensor::tan,
        Tensor::atan,
        Tensor::mish,
        |x| x.remainder_scalar(0.625),
        Tensor::gelu,
        Tensor::softplus,
        Tensor::erf,
        Tensor::exp,
        Tensor::round,
        |x| x.elu(0.7),
        |x| x.div_scalar(3.0),
        |x| x.maximum(&x.neg()?),
    ];
    let x: Vec<f32> = (0..9 * 53).map(|i| (i * 37 % 101) as f32 * 0.125 - 6.0).collect();
    let x = Tensor::from_slice(&x, [9, 53], &Device::cpu()).unwrap();
    for dtype in [DType::F16, DType::BF16] {
        let x = x.to_dtype(dtype).unwrap();
        for x in [x.clone(), x.narrow(1, 3, 48).unwrap(), x.transpose(0, 1).unwrap()] {
            for (i, f) in functions.iter().enumerate() {
                let once = f(&x.to_dtype(DType::F32).unwrap()).unwrap().to_dtype(dtype).unwrap();
                let bits = |t: Tensor| t.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
                assert_eq!(bits(f(&x).unwrap()), bits(once), "function {i} of {dtype}");
            }
        }
    }
}

#[test]
fn half_of_an_axis_is_gated_by_the_other() {
    for device in devices() {
        let x = leaf(&[3, 4, 6], &device);
        for axis in [1, -1] {
            let at = if axis == 1 { 1 } else { 2 };
            let inner: usize = x.dims()[at + 1..].iter().product();
            let (half, all) = (x.dims()[at] / 2, values(&x));
            let expected: Vec<f64> = (0..all.len() / 2)
                .map(|i| {
                    let (outer, rest) = (i / (half * inner), i % (half * inner));
                    let first = outer * 2 * half * inner + rest;
                    all[first] / (1.0 + (-all[first + half * inner]).exp())
                })
                .collect();
            assert_close(&values(&x.glu(axis).unwrap()), &expected, 1e-12);
            gradcheck(|t| t[0].glu(axis)?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        }
        let error = x.glu(0).unwrap_err().to_string();
        assert!(error.starts_with("glu: axis 0 of a tensor of shape [3, 4, 6] can't be halved"), "{error}");
    }
}
