//! Softmax and the losses.

use super::bound::{Bound, Bounds};
use super::case::Case;
use super::nd::Nd;
use super::{Entry, one};

macro_rules! losses {
    ($($name:ident, $into:ident $(, $key:literal)?;)*) => {
        [$(Entry {
            op: stringify!($name),
            run: |_c, x| one(x[0].$name(&x[1] $(, _c.f($key))?)),
            into: |_c, x, y| Some(x[0].$into(&x[1] $(, _c.f($key))?, &y[0])),
            bounds: loss_bounds,
        }),*]
    };
}

fn levels(c: &Case) -> Vec<f64> {
    c.list("q", |v| v.as_f64())
}

pub fn entries() -> Vec<Entry> {
    let mut all = vec![
        Entry {
            op: "softmax",
            run: |c, x| one(x[0].softmax(c.i("axis"))),
            into: |c, x, y| Some(x[0].softmax_into(c.i("axis"), &y[0])),
            bounds: softmax_bounds,
        },
        Entry {
            op: "log_softmax",
            run: |c, x| one(x[0].log_softmax(c.i("axis"))),
            into: |c, x, y| Some(x[0].log_softmax_into(c.i("axis"), &y[0])),
            bounds: softmax_bounds,
        },
        Entry {
            op: "quantile_loss",
            run: |c, x| one(x[0].quantile_loss(&x[1], &levels(c))),
            into: |c, x, y| Some(x[0].quantile_loss_into(&x[1], &levels(c), &y[0])),
            bounds: quantile_bounds,
        },
        Entry {
            op: "cross_entropy",
            run: |c, x| match c.f("label_smoothing") {
                0.0 => one(x[0].cross_entropy(&x[1])),
                smoothing => one(x[0].cross_entropy_smoothed(&x[1], smoothing)),
            },
            into: |c, x, y| {
                Some(match c.f("label_smoothing") {
                    0.0 => x[0].cross_entropy_into(&x[1], &y[0]),
                    smoothing => x[0].cross_entropy_smoothed_into(&x[1], smoothing, &y[0]),
                })
            },
            bounds: cross_entropy_bounds,
        },
    ];
    all.extend(losses! {
        mse_loss, mse_loss_into;
        l1_loss, l1_loss_into;
        huber_loss, huber_loss_into, "delta";
    });
    all
}

/// Probabilities along an axis, and by how much of itself each may be off, in eps: what the exponent
/// `x - max` is rounded by, and the sum's terms are.
fn probabilities(x: &Nd, axis: usize) -> (Nd, Nd) {
    let max = x.max(&[axis]);
    let far = x.zip(&max, |x, m| if m - x < 700.0 { m - x } else { 0.0 });
    let e = x.zip(&max, |x, m| (x - m).exp());
    let p = e.zip(&e.sum(&[axis]), |e, s| e / s);
    // The sum is dominated by terms that are off little: weighted with the probabilities.
    let of_sum = p.mul(&far).sum(&[axis]);
    (p, far.add(&of_sum).map(|f| 2.0 + f))
}

/// `p = exp(x - max) / sum`; backward `p (dy - sum(p dy))`. The logarithm: `x - max - log(sum)`;
/// backward `dy - p sum(dy)`.
fn softmax_bounds(c: &Case) -> Bounds {
    let x = c.operand(0);
    let axis = c.i("axis").rem_euclid(x.dims.len() as isize) as usize;
    let n = x.dims[axis] as f64;
    if x.data.is_empty() {
        return Bounds::of(Bound::Exact, [x]);
    }
    let (p, off) = probabilities(&x, axis);
    let log = c.op == "log_softmax";
    let finite = |v: f64| if v.is_finite() { v.abs() } else { 0.0 };
    let out = match log {
        true => x.map(finite).add(&x.max(&[axis]).map(finite)).map(|v| v + n.ln() + 1.0),
        false => p.mul(&off),
    };
    let out = Bound::Terms(out, n);
    let Some(d) = &c.cotangents[0] else {
        return Bounds::Formula { outs: vec![out], grads: vec![Bound::Exact] };
    };
    let d = d.abs();
    let p = p.mul(&off);
    let grad = match log {
        true => d.add(&p.mul(&d.sum(&[axis]))),
        false => p.mul(&d.add(&p.mul(&d).sum(&[axis]))),
    };
    Bounds::Formula { outs: vec![out], grads: vec![Bound::Terms(grad, n)] }
}

/// A mean of terms without cancellation but the difference of the operands, which is exact up to a
/// rounding; the gradients are products of few factors.
fn loss_bounds(c: &Case) -> Bounds {
    let (p, t) = (c.operand(0), c.operand(1));
    let n = p.data.len().max(1) as f64;
    let e = p.zip(&t, |p, t| (p - t).abs());
    let delta = if c.has("delta") { c.f("delta") } else { 0.0 };
    let (value, slope): (Nd, Nd) = match c.op.as_str() {
        "mse_loss" => (e.map(|e| e * e), e.scale(2.0)),
        "l1_loss" => (e.clone(), e.map(|_| 1.0)),
        _ => (
            e.map(|e| if e <= delta { 0.5 * e * e } else { delta * (e + 0.5 * delta) }),
            e.map(|e| e.min(delta)),
        ),
    };
    let all: Vec<usize> = (0..p.dims.len()).collect();
    let total = value.sum(&all).scale(1.0 / n).reshape(&[]);
    let d = c.cotangent(0).abs().data[0];
    let grad = Bound::Terms(slope.scale(d / n), 1.0);
    Bounds::Formula { outs: vec![Bound::Terms(total, n)], grads: vec![grad.clone(), grad] }
}

/// `max(q e, (q - 1) e)` with `e = target - prediction`.
fn quantile_bounds(c: &Case) -> Bounds {
    let (p, t) = (c.operand(0), c.operand(1));
    let n = p.data.len().max(1) as f64;
    let t1 = t.reshape(&[&t.dims[..], &[1]].concat());
    let q = levels(c);
    let q = Nd { dims: vec![q.len()], data: q };
    let slope = t1.zip(&p, |t, p| t - p).zip(&q, |e, q| if e > 0.0 { q } else { 1.0 - q });
    let all: Vec<usize> = (0..p.dims.len()).collect();
    let e = t1.zip(&p, |t, p| (t - p).abs());
    let total = e.mul(&slope).sum(&all).scale(1.0 / n).reshape(&[]);
    let d = c.cotangent(0).abs().data[0];
    Bounds::Formula {
        outs: vec![Bound::Terms(total, n)],
        grads: vec![Bound::Terms(slope.scale(d / n), 1.0), Bound::Exact],
    }
}

/// The mean of `log(sum(exp(x - max))) + max - x[id]`; backward `(p - onehot) / n`. Smoothing mixes with
/// the mean of all classes: the same terms.
fn cross_entropy_bounds(c: &Case) -> Bounds {
    let x = c.operand(0);
    let (n, classes) = (x.dims[0] as f64, x.dims[1] as f64);
    let (p, off) = probabilities(&x, 1);
    let total = x.abs().max(&[1]).scale(2.0).map(|v| v + classes.ln() + 1.0).sum(&[0]).scale(1.0 / n);
    let d = c.cotangent(0).abs().data[0];
    // exp(x - log-sum-exp): what is subtracted is rounded, too.
    let off = off.add(&x.max(&[1]).abs());
    let grad = p.mul(&off).map(|p| (p + 1.0) * d / n);
    Bounds::Formula {
        outs: vec![Bound::Terms(total.reshape(&[]), n + classes)],
        grads: vec![Bound::Terms(grad, classes), Bound::Exact],
    }
}
