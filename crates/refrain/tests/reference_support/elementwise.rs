//! Functions of one and of two numbers, comparisons, casts.

use refrain::{DType, Tensor};

use super::bound::{Bound, Bounds};
use super::case::Case;
use super::nd::Nd;
use super::{Entry, none, one};

macro_rules! unary {
    ($($name:ident, $into:ident;)*) => {
        [$(Entry {
            op: stringify!($name),
            run: |_, x| one(x[0].$name()),
            into: |_, x, y| Some(x[0].$into(&y[0])),
            bounds: unary_bounds,
        }),*]
    };
}

macro_rules! binary {
    ($($name:ident, $into:ident, $scalar:ident, $scalar_into:ident, $reversed:ident, $reversed_into:ident;)*) => {
        [$(Entry {
            op: stringify!($name),
            run: |c, x| match x {
                [x, y] => one(x.$name(y)),
                _ if c.b("reverse") => one(x[0].$reversed(c.f("scalar"))),
                _ => one(x[0].$scalar(c.f("scalar"))),
            },
            into: |c, x, y| Some(match x {
                [a, b] => a.$into(b, &y[0]),
                _ if c.b("reverse") => x[0].$reversed_into(c.f("scalar"), &y[0]),
                _ => x[0].$scalar_into(c.f("scalar"), &y[0]),
            }),
            bounds: binary_bounds,
        }),*]
    };
}

pub fn entries() -> Vec<Entry> {
    let mut all = Vec::new();
    all.extend(unary! {
        neg, neg_into;
        abs, abs_into;
        sign, sign_into;
        exp, exp_into;
        exp2, exp2_into;
        log2, log2_into;
        log10, log10_into;
        log, log_into;
        log1p, log1p_into;
        expm1, expm1_into;
        sqrt, sqrt_into;
        rsqrt, rsqrt_into;
        reciprocal, reciprocal_into;
        square, square_into;
        sin, sin_into;
        cos, cos_into;
        tan, tan_into;
        asin, asin_into;
        acos, acos_into;
        atan, atan_into;
        sinh, sinh_into;
        cosh, cosh_into;
        asinh, asinh_into;
        acosh, acosh_into;
        atanh, atanh_into;
        tanh, tanh_into;
        sigmoid, sigmoid_into;
        relu, relu_into;
        erf, erf_into;
        erfc, erfc_into;
        erfinv, erfinv_into;
        lgamma, lgamma_into;
        digamma, digamma_into;
        floor, floor_into;
        ceil, ceil_into;
        round, round_into;
        trunc, trunc_into;
        log_sigmoid, log_sigmoid_into;
        mish, mish_into;
        hardswish, hardswish_into;
        hardsigmoid, hardsigmoid_into;
        silu, silu_into;
        softplus, softplus_into;
        logical_not, logical_not_into;
    });
    all.extend(binary! {
        add, add_into, add_scalar, add_scalar_into, add_scalar, add_scalar_into;
        sub, sub_into, sub_scalar, sub_scalar_into, scalar_sub, scalar_sub_into;
        mul, mul_into, mul_scalar, mul_scalar_into, mul_scalar, mul_scalar_into;
        div, div_into, div_scalar, div_scalar_into, scalar_div, scalar_div_into;
        remainder, remainder_into, remainder_scalar, remainder_scalar_into, remainder_scalar, remainder_scalar_into;
        atan2, atan2_into, atan2_scalar, atan2_scalar_into, atan2_scalar, atan2_scalar_into;
        hypot, hypot_into, hypot_scalar, hypot_scalar_into, hypot_scalar, hypot_scalar_into;
        logaddexp, logaddexp_into, logaddexp_scalar, logaddexp_scalar_into, logaddexp_scalar, logaddexp_scalar_into;
        pow, pow_into, pow_scalar, pow_scalar_into, scalar_pow, scalar_pow_into;
        minimum, minimum_into, minimum_scalar, minimum_scalar_into, minimum_scalar, minimum_scalar_into;
        maximum, maximum_into, maximum_scalar, maximum_scalar_into, maximum_scalar, maximum_scalar_into;
        eq, eq_into, eq_scalar, eq_scalar_into, eq_scalar, eq_scalar_into;
        ne, ne_into, ne_scalar, ne_scalar_into, ne_scalar, ne_scalar_into;
        lt, lt_into, lt_scalar, lt_scalar_into, gt_scalar, gt_scalar_into;
        le, le_into, le_scalar, le_scalar_into, ge_scalar, ge_scalar_into;
        gt, gt_into, gt_scalar, gt_scalar_into, lt_scalar, lt_scalar_into;
        ge, ge_into, ge_scalar, ge_scalar_into, le_scalar, le_scalar_into;
        logical_and, logical_and_into, logical_and_scalar, logical_and_scalar_into, logical_and_scalar, logical_and_scalar_into;
        logical_or, logical_or_into, logical_or_scalar, logical_or_scalar_into, logical_or_scalar, logical_or_scalar_into;
        logical_xor, logical_xor_into, logical_xor_scalar, logical_xor_scalar_into, logical_xor_scalar, logical_xor_scalar_into;
    });
    all.push(Entry {
        op: "gelu",
        run: |c, x| match c.s("approximate") {
            "tanh" => one(x[0].gelu_tanh()),
            _ => one(x[0].gelu()),
        },
        into: |c, x, y| {
            Some(match c.s("approximate") {
                "tanh" => x[0].gelu_tanh_into(&y[0]),
                _ => x[0].gelu_into(&y[0]),
            })
        },
        bounds: unary_bounds,
    });
    all.push(Entry {
        op: "clamp",
        run: |c, x| {
            let (min, max) = clamp_bounds(c);
            one(x[0].clamp(min, max))
        },
        into: |c, x, y| {
            let (min, max) = clamp_bounds(c);
            Some(x[0].clamp_into(min, max, &y[0]))
        },
        bounds: unary_bounds,
    });
    all.push(Entry {
        op: "elu",
        run: |c, x| one(x[0].elu(c.f("alpha"))),
        into: |c, x, y| Some(x[0].elu_into(c.f("alpha"), &y[0])),
        bounds: unary_bounds,
    });
    all.push(Entry {
        op: "leaky_relu",
        run: |c, x| one(x[0].leaky_relu(c.f("negative_slope"))),
        into: |c, x, y| Some(x[0].leaky_relu_into(c.f("negative_slope"), &y[0])),
        bounds: unary_bounds,
    });
    all.push(Entry { op: "isnan", run: |_, x| one(x[0].isnan()), into: none, bounds: Bounds::exact });
    all.push(Entry { op: "isinf", run: |_, x| one(x[0].isinf()), into: none, bounds: Bounds::exact });
    all.push(Entry { op: "isfinite", run: |_, x| one(x[0].isfinite()), into: none, bounds: Bounds::exact });
    all.push(Entry {
        op: "nan_to_num",
        run: |_, x| one(x[0].nan_to_num(0.5, 8.0, -16.0)),
        into: none,
        bounds: unary_bounds,
    });
    all.push(Entry { op: "selu", run: |_, x| one(x[0].selu()), into: none, bounds: unary_bounds });
    all.push(Entry {
        op: "cast",
        run: |c, x| one(x[0].to_dtype(cast_target(c, x))),
        into: |_, x, y| Some(x[0].to_dtype_into(&y[0])),
        bounds: Bounds::exact,
    });
    all
}

fn clamp_bounds(c: &Case) -> (f64, f64) {
    let or = |key: &str, missing: f64| if c.has(key) { c.f(key) } else { missing };
    (or("min", f64::NEG_INFINITY), or("max", f64::INFINITY))
}

/// "f64" stands for the dtype that the test runs in; where no operand tells, it is f64.
fn cast_target(c: &Case, x: &[Tensor]) -> DType {
    match c.s("dtype") {
        "i64" => DType::I64,
        "i32" => DType::I32,
        "bool" => DType::Bool,
        _ if x[0].dtype().is_float() => x[0].dtype(),
        _ => DType::F64,
    }
}

/// Functions of one number. Of the gradient the terms are `|dy| D(x)`, with D the derivative's formula
/// in absolute values. gelu is x/2 (1 + erf ..): a sum that may cancel, its terms at most |x|.
fn unary_bounds(c: &Case) -> Bounds {
    let x = c.operand(0);
    let y = &c.outputs[0].nd;
    let approximate = if c.op == "gelu" { c.s("approximate") } else { "" };
    let out = match c.op.as_str() {
        "gelu" => Bound::Terms(x.abs(), 1.0),
        // Sums that cancel near their zeros. The largest terms are those of the series at 10 or above, and of the reflection.
        "lgamma" | "digamma" => Bound::Terms(x.zip(y, |x, y| 16.0 + x.abs() + y.abs()), 1.0),
        "neg" | "abs" | "sign" | "relu" | "floor" | "ceil" | "round" | "trunc" | "clamp" | "nan_to_num"
        | "logical_not" => Bound::Exact,
        _ => Bound::Ulp(4.0),
    };
    if c.cotangents[0].is_none() {
        return Bounds::Formula { outs: vec![out], grads: vec![Bound::Exact] };
    }
    let derivative = |x: f64, y: f64| -> f64 {
        let s = 1.0 / (1.0 + (-x).exp());
        match c.op.as_str() {
            "exp" => y,
            "log" => 1.0 / x,
            "log1p" => 1.0 / (1.0 + x),
            "expm1" => 1.0 + y.abs(),
            "sqrt" => 0.5 / y,
            "rsqrt" => 0.5 * y * y * y,
            "reciprocal" => y * y,
            "square" => 2.0 * x,
            "exp2" => y,
            "log2" => std::f64::consts::LOG2_E / x,
            "log10" => std::f64::consts::LOG10_E / x,
            "sin" => x.cos(),
            "cos" => x.sin(),
            "tan" => 1.0 + y * y,
            "asin" | "acos" => 1.0 / (1.0 - x * x).sqrt(),
            "atan" => 1.0 / (1.0 + x * x),
            "sinh" => x.cosh(),
            "cosh" => x.sinh(),
            "asinh" => 1.0 / (1.0 + x * x).sqrt(),
            "acosh" => 1.0 / (x * x - 1.0).sqrt(),
            "atanh" => 1.0 / (1.0 - x * x),
            "log_sigmoid" => 1.0 / (1.0 + x.exp()),
            "mish" => 1.0 + x.abs() * s,
            "hardswish" => 0.5 + x.abs() / 3.0,
            "selu" => 1.8 * x.min(0.0).exp(),
            "tanh" => 1.0 + y * y,
            "sigmoid" => y + y * y,
            "softplus" => s,
            "elu" => {
                if x > 0.0 {
                    1.0
                } else {
                    c.f("alpha") * x.exp()
                }
            }
            "leaky_relu" => {
                if x > 0.0 {
                    1.0
                } else {
                    c.f("negative_slope")
                }
            }
            "silu" => s * (1.0 + x.abs() * (1.0 + s)),
            // e^(-x^2) passes the rounding of x^2 on with the factor x^2.
            "erf" | "erfc" => std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * (1.0 + x * x),
            // So does e^(y^2), of the rounded result.
            "erfinv" => (y * y).exp() * (1.0 + 4.0 * y * y),
            "gelu" if approximate == "tanh" => {
                let c = (2.0 / std::f64::consts::PI).sqrt();
                let inner = c * x * (1.0 + 0.044715 * x * x);
                let slope = c * (1.0 + 3.0 * 0.044715 * x * x);
                // tanh passes the rounding of its argument on with the factor (1 - t^2) |inner|.
                let sech2 = 1.0 / inner.cosh().powi(2);
                1.0 + (0.5 * x * slope).abs()
                    * (1.0 + inner.tanh().powi(2))
                    * (1.0 + 2.0 * sech2 * inner.abs())
            }
            // Near a pole they fall with the square and the cube of the distance, and so does what they make of the rounding of x.
            "lgamma" => 16.0 + y.abs() + pole(x),
            "digamma" => 16.0 + y * y + pole(x) * pole(x),
            "gelu" => 1.0 + x.abs() * (-0.5 * x * x).exp() * 0.4 * (1.0 + 0.5 * x * x),
            _ => 1.0,
        }
        .abs()
    };
    let d = x.zip(y, derivative).mul(&c.cotangent(0).abs());
    Bounds::of(out, [d])
}

/// The cotangent of pi x as the reflection of negative numbers has it.
fn pole(x: f64) -> f64 {
    if x < 0.0 {
        std::f64::consts::PI * (1.0 + 1.0 / (std::f64::consts::PI * x).sin().abs())
    } else {
        1.0 / x.min(1.0)
    }
}

/// Functions of two numbers: the terms of a gradient are the formula of the derivative.
fn binary_bounds(c: &Case) -> Bounds {
    let exact = matches!(
        c.op.as_str(),
        "minimum"
            | "maximum"
            | "eq"
            | "ne"
            | "lt"
            | "le"
            | "gt"
            | "ge"
            | "logical_and"
            | "logical_or"
            | "logical_xor"
    );
    let two = c.inputs.len() == 2;
    let (a, b) = match two {
        true => (c.operand(0), c.operand(1)),
        false => {
            let s = Nd::full(&[], c.f("scalar"));
            if c.b("reverse") { (s, c.operand(0)) } else { (c.operand(0), s) }
        }
    };
    let out = match c.op.as_str() {
        _ if exact => Bound::Exact,
        // A sum that cancels near its zeros.
        "logaddexp" => Bound::Terms(a.zip(&b, |a, b| 1.0 + a.max(b).abs()), 1.0),
        _ => Bound::Ulp(4.0),
    };
    if c.cotangents[0].is_none() {
        return Bounds::Formula { outs: vec![out], grads: c.inputs.iter().map(|_| Bound::Exact).collect() };
    }
    let both = |f: fn(f64, f64) -> f64| a.zip(&b, f).mul(&c.cotangent(0).abs()).abs();
    // A power passes the rounding of its exponent on with the factor |b ln a|.
    let (da, db) = match c.op.as_str() {
        "mul" => (both(|_, b| b), both(|a, _| a)),
        "div" => (both(|_, b| 1.0 / b), both(|a, b| a / (b * b))),
        "remainder" => (both(|_, _| 1.0), both(|a, b| (a / b).floor())),
        "atan2" => (both(|a, b| b / (a * a + b * b)), both(|a, b| a / (a * a + b * b))),
        "hypot" => (both(|a, b| a / a.hypot(b)), both(|a, b| b / a.hypot(b))),
        "pow" => (
            both(|a, b| b * a.abs().powf(b - 1.0) * (1.0 + (b * a.abs().ln()).abs())),
            both(|a, b| a.abs().powf(b) * a.abs().ln() * (1.0 + (b * a.abs().ln()).abs())),
        ),
        _ => (both(|_, _| 1.0), both(|_, _| 1.0)),
    };
    match two {
        true => Bounds::of(out, [da, db]),
        false if c.b("reverse") => Bounds::of(out, [db]),
        false => Bounds::of(out, [da]),
    }
}
