use super::*;

/// The distance of two numbers, in representable numbers.
fn ulps(a: f32, b: f32) -> u64 {
    if a.is_nan() && b.is_nan() {
        return 0;
    }
    if a.is_nan() || b.is_nan() {
        return u64::MAX;
    }
    let order = |x: f32| {
        let bits = i64::from(x.to_bits() as i32);
        if bits < 0 { i64::from(i32::MIN) - bits } else { bits }
    };
    order(a).abs_diff(order(b))
}

/// Every 997th `f32` of either sign, and the special values.
fn samples() -> impl Iterator<Item = f32> {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::MIN,
        1e-45,
        -1e-45,
        88.72284,
        -87.33655,
        -103.97,
        0.625,
        0.92,
    ];
    special.into_iter().chain((0..u32::MAX).step_by(997).map(f32::from_bits))
}

fn check(name: &str, bound: u64, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
    let mut worst = (0, 0.0);
    for x in samples() {
        let (y, want) = (f(x), exact(f64::from(x)) as f32);
        let d = ulps(y, want);
        if d > worst.0 {
            worst = (d, x);
        }
        if want == 0.0 && y == 0.0 {
            assert_eq!(y.is_sign_negative(), want.is_sign_negative(), "{name}({x:e}): sign of zero");
        }
    }
    let (d, x) = worst;
    println!("{name}: {d} ulp at {x:e}");
    let want = exact(f64::from(x));
    assert!(d <= bound, "{name}({x:e}) = {:e}, not {want:e}: {d} ulp", f(x));
}

#[test]
fn elementary_functions_are_within_4_ulp() {
    check("exp", 4, exp, libm::exp);
    check("expm1", 4, expm1, libm::expm1);
    check("log", 4, log, libm::log);
    check("tanh", 4, tanh, libm::tanh);
    check("sigmoid", 4, sigmoid, f64::sigmoid);
    check("erf", 4, erf, libm::erf);
    check("sin", 1, sin, libm::sin);
    check("cos", 1, cos, libm::cos);
    check("exp2", 4, exp2, libm::exp2);
    check("log2", 4, log2, libm::log2);
    check("log10", 4, log10, libm::log10);
    check("sinh", 4, hyperbolic::sinh, libm::sinh);
    check("cosh", 4, hyperbolic::cosh, libm::cosh);
    check("asinh", 4, hyperbolic::asinh, libm::asinh);
    check("acosh", 4, hyperbolic::acosh, acosh);
    check("atanh", 4, hyperbolic::atanh, libm::atanh);
    check("asin", 4, angles::asin, libm::asin);
    check("acos", 4, angles::acos, libm::acos);
    check("atan", 4, angles::atan, libm::atan);
}

/// libm's has other values below 1.
fn acosh(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

#[test]
fn logarithms_of_powers_are_exact() {
    for e in -149..128 {
        let power = 2f64.powi(e) as f32;
        assert_eq!((log2(power), exp2(e as f32)), (e as f32, power), "2^{e}");
    }
    for e in -1074..1024 {
        // As a product, because `powi` makes a subnormal number by way of an infinite one.
        let power = 2f64.powi(e / 2) * 2f64.powi(e - e / 2);
        assert_eq!((f64::log2(power), f64::exp2(f64::from(e))), (f64::from(e), power), "2^{e}");
    }
    for e in 0..=22 {
        let power = format!("1e{e}");
        assert_eq!(f64::log10(power.parse().unwrap()), f64::from(e), "{power}");
        if e <= 10 {
            assert_eq!(log10(power.parse().unwrap()), e as f32, "{power}");
        }
    }
}

/// Of pairs: numbers of all sizes, and special ones.
#[test]
fn functions_of_two_numbers_are_within_4_ulp_and_have_the_special_cases_of_c() {
    let special = [0.0f32, 1.0, 1e-45, 3e-39, 0.4, 0.41, 0.42, 1e19, 3e38, f32::MAX, f32::INFINITY, f32::NAN];
    let both = special.into_iter().flat_map(|v| [v, -v]);
    let spread = (0..400u32).map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9)));
    let near = (0..400).map(|i| (i - 200) as f32 * 0.037);
    let numbers: Vec<f32> = both.chain(spread).chain(near).collect();
    for (&a, &b) in numbers.iter().flat_map(|a| numbers.iter().map(move |b| (a, b))) {
        let (x, y) = (f64::from(a), f64::from(b));
        for (name, got, want) in [
            ("atan2", angles::atan2(a, b), libm::atan2(x, y)),
            ("hypot", angles::hypot(a, b), libm::hypot(x, y)),
        ] {
            assert!(ulps(got, want as f32) <= 4, "{name}({a:e}, {b:e}) = {got:e}, not {want:e}");
            let same_sign = got.is_sign_negative() == want.is_sign_negative();
            assert!(got.is_nan() || same_sign, "{name}({a:e}, {b:e}): sign");
        }
        let (got, want) = (angles::atan2(x, y), libm::atan2(x, y));
        assert!((got - want).abs() <= 8e-16 * want.abs() || got == want || got.is_nan() && want.is_nan());
        let got = hyperbolic::log_add_exp(a, b);
        let (larger, distance) = (x.max(y), (x - y).abs());
        let want = if x == y { x + std::f64::consts::LN_2 } else { larger + (-distance).exp().ln_1p() };
        let is_nan = a.is_nan() || b.is_nan();
        let close = (f64::from(got) - want).abs() <= 2e-7 * (1.0 + larger.abs()) || f64::from(got) == want;
        assert!(
            if is_nan { got.is_nan() } else { close },
            "log_add_exp({a:e}, {b:e}) = {got:e}, not {want:e}"
        );
    }
}

#[test]
fn exp_vectors_is_within_4_ulp() {
    struct Exp(f32);
    impl pulp::WithSimd for Exp {
        type Output = f32;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> f32 {
            let y = [exp_vectors(simd, simd.splat_f32s(self.0))];
            bytemuck::cast_slice(&y)[0]
        }
    }
    let arch = crate::device::cpu::simd::arch();
    let smallest = f64::from(f32::MIN_POSITIVE).ln() + 0.05;
    let exact = |x: f64| if x < smallest { 0.0 } else { libm::exp(x) };
    // The range of the test, without numbers below its lower bound.
    let of = |x: f32| if f64::from(x) < smallest || x > 88.0 { f32::NEG_INFINITY } else { x };
    check("exp_vectors", 4, |x| arch.dispatch(Exp(of(x))), |x| exact(f64::from(of(x as f32))));
    assert_eq!(arch.dispatch(Exp(-1e30)), 0.0);
}

/// Also below 0, where the density is that of `e^(-x^2 / 2)`: so many roundings of the exponent.
#[test]
fn gelu_is_as_precise_as_its_tail() {
    let eps = f64::from(f32::EPSILON);
    let near = (0..200_000).map(|i| i as f32 * 6e-5 - 6.0);
    for x in samples().chain(near).filter(|x| !x.is_nan() && *x != f32::NEG_INFINITY) {
        let wide = f64::from(x);
        let want = wide * 0.5 * libm::erfc(-wide * std::f64::consts::FRAC_1_SQRT_2);
        let v = (wide * wide / 2.0).min(20.0);
        // erfc(4) / 2 is left out.
        let bound = want.abs() * eps * (3.0 + v) + wide.abs() * 9e-9 + f64::from(f32::MIN_POSITIVE) * eps;
        let error = (f64::from(gelu(x)) - want).abs();
        assert!(error <= bound || x == f32::INFINITY, "gelu({x:e}): {error:e} > {bound:e}");
    }
    assert!(gelu(f32::NAN).is_nan() && gelu(f32::NEG_INFINITY).is_nan());
    assert_eq!(gelu(f32::INFINITY), f32::INFINITY);
}

/// `x sigmoid(v)` has the relative error of `e^v`: the few roundings of `v` times `|v|`.
#[test]
fn gelu_tanh_is_as_precise_as_its_formula() {
    let eps = f64::from(f32::EPSILON);
    for x in samples().filter(|x| !x.is_nan() && *x != f32::NEG_INFINITY) {
        let wide = f64::from(x);
        let v = 1.6 * (wide.abs() + 0.045 * wide.abs().powi(3)).min(110.0);
        let want = f64::gelu_tanh(wide);
        let error = (f64::from(gelu_tanh(x)) - want).abs();
        let bound =
            want.abs() * eps * 2.0 * (2.0 + v) + f64::from(f32::MIN_POSITIVE) * eps * (1.0 + wide.abs());
        assert!(error <= bound || x == f32::INFINITY, "gelu_tanh({x:e}): {error:e} > {bound:e}");
        let want = f64::gelu_tanh_grad(wide);
        let error = (f64::from(gelu_tanh_grad(x)) - want).abs();
        let bound = eps * 2.0 * (2.0 + v) * want.abs().max(1e-3 + 0.0 * wide);
        assert!(error <= bound.max(2.0 * eps), "gelu_tanh_grad({x:e}): {error:e} > {bound:e}");
    }
    assert!(gelu_tanh(f32::NAN).is_nan() && gelu_tanh_grad(f32::NAN).is_nan());
    assert_eq!(gelu_tanh(f32::INFINITY), f32::INFINITY);
    assert_eq!(gelu_tanh_grad(f32::INFINITY), 1.0);
    assert_eq!(gelu_tanh_grad(f32::NEG_INFINITY), 0.0);
}

/// The numbers on both sides of multiples of a quarter of a turn, where the sine or the cosine is smallest.
fn near_quarters() -> impl Iterator<Item = f32> {
    (-600_000..600_000).step_by(7).map(|n| (f64::from(n) * std::f64::consts::FRAC_PI_2) as f32)
}

/// The results of a function of slices, for all samples.
fn of_slices(f: fn(&[f32], &mut [f32])) -> Vec<f32> {
    let x: Vec<f32> = samples().chain(near_quarters()).collect();
    let mut y = vec![0.0; x.len()];
    f(&x, &mut y);
    y
}

#[test]
fn waves_of_slices_are_those_of_numbers_within_a_few_ulp() {
    for (name, all, one, bound) in [
        ("sin", of_slices(sines), sin as fn(f32) -> f32, 1),
        ("cos", of_slices(cosines), cos, 1),
        ("tan", of_slices(tangents), tan, 3),
    ] {
        for (x, y) in samples().chain(near_quarters()).zip(all) {
            assert!(ulps(y, one(x)) <= bound, "{name}({x:e}) = {y:e}, not {:e}", one(x));
            assert!(
                y != 0.0 || y.is_sign_negative() == one(x).is_sign_negative(),
                "{name}({x:e}): sign of zero"
            );
        }
    }
    // Numbers beyond the reduction between others, which stay as they are.
    let (x, mut y) = ([1.0, 1e30, -2.0, f32::NAN, f32::INFINITY, 3.0], [0.0; 6]);
    sines(&x, &mut y);
    for (x, y) in x.into_iter().zip(y) {
        assert!(ulps(y, sin(x)) <= 1, "sin({x:e}) = {y:e}");
    }
}

mod of_f64 {
    use super::super::f64::{self as math};
    use super::super::{angles, hyperbolic};
    use super::acosh;

    fn ulps(a: f64, b: f64) -> u64 {
        match (a.is_nan(), b.is_nan()) {
            (true, true) => return 0,
            (true, false) | (false, true) => return u64::MAX,
            (false, false) => {}
        }
        let order = |x: f64| {
            let bits = i128::from(x.to_bits() as i64);
            if bits < 0 { i128::from(i64::MIN) - bits } else { bits }
        };
        order(a).abs_diff(order(b)) as u64
    }

    /// Numbers all over the range, many of moderate size, and the special values.
    fn samples() -> impl Iterator<Item = f64> {
        let special = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            0.625,
            -0.625,
            709.78,
            709.79,
            -708.4,
            -745.13,
            -745.14,
            1e6,
            1e300,
            5e-324,
            -5e-324,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            f64::MIN_POSITIVE,
            f64::MAX,
            f64::MIN,
        ];
        let all = (0..400_000u64).map(|i| f64::from_bits(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let moderate = (0..400_000).map(|i| (f64::from(i) - 200_000.0) * 0.004_123_456_789);
        let small = (0..100_000).map(|i| (f64::from(i) - 50_000.0) * 0.000_061_234_567_89);
        // Beside multiples of a quarter of a turn.
        let turns = (-40_000..40_000).map(|i| f64::from(i) * std::f64::consts::FRAC_PI_2);
        special.into_iter().chain(all).chain(moderate).chain(small).chain(turns)
    }

    /// The reference is libm's, within 1 ulp of the exact result.
    fn check(name: &str, bound: u64, f: impl Fn(f64) -> f64, reference: impl Fn(f64) -> f64) {
        let mut worst = (0, 0.0);
        for x in samples() {
            let (y, want) = (f(x), reference(x));
            let d = ulps(y, want);
            if d > worst.0 {
                worst = (d, x);
            }
            if want == 0.0 && y == 0.0 {
                assert_eq!(y.is_sign_negative(), want.is_sign_negative(), "{name}({x:e}): sign of zero");
            }
        }
        let (d, x) = worst;
        println!("{name}: {d} ulp at {x:e}");
        assert!(d <= bound, "{name}({x:e}) = {:e}, not {:e}: {d} ulp", f(x), reference(x));
    }

    #[test]
    fn elementary_functions_are_within_4_ulp() {
        check("exp", 3, math::exp, libm::exp);
        check("expm1", 3, math::expm1, libm::expm1);
        check("erf", 2, math::erf, libm::erf);
        check("log", 3, math::log, libm::log);
        check("tanh", 3, math::tanh, libm::tanh);
        let one = |f: fn(&[f64], &mut [f64]), x: f64| {
            let mut y = [0.0];
            f(&[x], &mut y);
            y[0]
        };
        check("sin", 3, |x| one(math::sines, x), libm::sin);
        check("cos", 3, |x| one(math::cosines, x), libm::cos);
        check("tan", 4, |x| one(math::tangents, x), libm::tan);
        check("exp2", 3, math::exp2, libm::exp2);
        check("log2", 4, math::log2, libm::log2);
        check("log10", 4, math::log10, libm::log10);
        check("sinh", 4, hyperbolic::sinh, libm::sinh);
        check("cosh", 4, hyperbolic::cosh, libm::cosh);
        check("asinh", 4, hyperbolic::asinh, libm::asinh);
        check("acosh", 4, hyperbolic::acosh, acosh);
        check("atanh", 4, hyperbolic::atanh, libm::atanh);
        check("asin", 4, angles::asin, libm::asin);
        check("acos", 4, angles::acos, libm::acos);
        check("atan", 3, angles::atan, libm::atan);
    }

    #[test]
    fn powers_are_within_2_ulp_and_have_the_special_cases_of_c() {
        let special = [
            0.0,
            0.5,
            1.0,
            1.0 + f64::EPSILON,
            1.0 - f64::EPSILON / 2.0,
            2.0,
            2.5,
            3.0,
            1e-320,
            1e-17,
            9_007_199_254_740_991.0,
            9_007_199_254_740_992.0,
            1e300,
            f64::MAX,
            f64::INFINITY,
            f64::NAN,
        ];
        let both = special.into_iter().flat_map(|v| [v, -v]);
        let spread = (0..300u64).map(|i| f64::from_bits(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let near = (0..300).map(|i| f64::from(i) * 0.007_123_456);
        // Whose powers come near the ends of the range: there, an error of the logarithm weighs most.
        let beside_1 = (0..300).map(|i| 1.0 + f64::from(i - 150) * 1.234_567e-7);
        let large = (0..300).map(|i| f64::from(i - 150) * 4.712_345_6);
        let numbers: Vec<f64> = both.chain(spread).chain(near).chain(beside_1).chain(large).collect();
        for (&x, &y) in numbers.iter().flat_map(|x| numbers.iter().map(move |y| (x, y))) {
            let (got, want) = (math::pow(x, y), libm::pow(x, y));
            assert!(ulps(got, want) <= 2, "{x:e}^{y:e} = {got:e}, not {want:e}");
            assert!(want.is_nan() || got.is_sign_negative() == want.is_sign_negative(), "{x:e}^{y:e}");
        }
    }
}

#[test]
fn powers_are_rounded_once_and_have_the_special_cases_of_c() {
    let special = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 16_777_217.0, 1e9, 1e30, f32::INFINITY, f32::NAN];
    let both = special.into_iter().flat_map(|v| [v, -v]);
    let spread = (0..200u32).map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9)));
    let near = (0..200).map(|i| i as f32 * 0.037);
    let numbers: Vec<f32> = both.chain(spread).chain(near).collect();
    for (&x, &y) in numbers.iter().flat_map(|x| numbers.iter().map(move |y| (x, y))) {
        let (got, want) = (pow(x, y), f64::from(x).powf(f64::from(y)) as f32);
        assert!(ulps(got, want) <= 1, "{x:e}^{y:e} = {got:e}, not {want:e}");
        assert!(want.is_nan() || got.is_sign_negative() == want.is_sign_negative(), "{x:e}^{y:e}");
    }
}
