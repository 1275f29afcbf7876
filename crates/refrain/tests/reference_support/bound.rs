//! The tolerance of a result in a dtype, compared with the reference.
//!
//! Elementary functions: 4 units in the last place of the correctly rounded result. Contractions: `4 eps sqrt(k)
//! sum|terms|`. Composed operations: the same form, with the terms of their formula. Each term has the factor by
//! which it passes on the rounding errors of its inputs; the formulas are beside the operations in the tables of this
//! folder. The reference itself is a double.

use refrain::DType;

use super::case::Case;
use super::nd::Nd;

/// The tolerance of one tensor.
#[derive(Clone, Debug)]
pub enum Bound {
    /// Equal, after rounding the reference.
    Exact,
    /// Units in the last place.
    Ulp(f64),
    /// `4 eps sqrt(k) terms`.
    Terms(Nd, f64),
}

/// The tolerances of a case: of its outputs, and of the gradients with respect to its operands (in their layouts,
/// before the gradient reaches the bases).
pub enum Bounds {
    Formula {
        outs: Vec<Bound>,
        grads: Vec<Bound>,
    },
    /// For operations that are linear with factors that are not negative: the terms are the operation's result for
    /// the operands' and cotangents' absolute values, and `k` is its result for ones. With `exact_outs` the operation
    /// only moves values.
    Linear {
        exact_outs: bool,
    },
}

impl Bounds {
    pub fn of(out: Bound, grads: impl IntoIterator<Item = Nd>) -> Bounds {
        let grads = grads.into_iter().map(|t| Bound::Terms(t, 1.0)).collect();
        Bounds::Formula { outs: vec![out], grads }
    }

    /// Every output exact; no gradients.
    pub fn exact(case: &Case) -> Bounds {
        Bounds::Formula {
            outs: case.outputs.iter().map(|_| Bound::Exact).collect(),
            grads: case.inputs.iter().map(|_| Bound::Exact).collect(),
        }
    }
}

/// The smallest exponent of normal numbers.
fn least_exponent(dtype: DType) -> i32 {
    match dtype {
        DType::F64 => -1022,
        DType::F16 => -14,
        _ => -126,
    }
}

/// The distance between neighbouring numbers at `v`.
pub fn ulp(v: f64, dtype: DType) -> f64 {
    let eps = dtype.epsilon().unwrap();
    let exponent = ((v.abs().to_bits() >> 52) as i32 - 1023).max(least_exponent(dtype));
    2f64.powi(exponent) * eps
}

/// The number of the dtype nearest to `v`.
pub fn rounded(v: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => v,
        DType::F32 => v as f32 as f64,
        DType::F16 | DType::BF16 => {
            if !v.is_finite() || v == 0.0 {
                return v;
            }
            let most = if dtype == DType::F16 { 65504.0 } else { f32::MAX as f64 };
            let unit = ulp(v, dtype);
            let r = (v / unit).round_ties_even() * unit;
            if r.abs() > most { f64::INFINITY.copysign(v) } else { r }
        }
        _ => v,
    }
}

/// Compares results with references; `tolerance(i, rounded reference)` is the tolerance of element `i`.
pub fn compare(
    got: &[f64],
    expected: &Nd,
    dtype: DType,
    tolerance: impl Fn(usize, f64) -> f64,
) -> Result<(), String> {
    assert_eq!(got.len(), expected.data.len());
    for (i, (&got, &reference)) in got.iter().zip(&expected.data).enumerate() {
        let e = rounded(reference, dtype);
        let may = tolerance(i, e);
        let fine = got == e || got.is_nan() && e.is_nan() || (got - e).abs() <= may;
        if !fine {
            return Err(format!(
                "element {i}: {got:e}, reference {reference:e}, off by {:.3e} where {may:.3e} is allowed",
                (got - e).abs()
            ));
        }
    }
    Ok(())
}
