//! Softmax and the losses.

use refrain::{CrossEntropyOptions, Reduction, Tensor};

use super::bound::{Bound, Bounds};
use super::case::Case;
use super::nd::Nd;
use super::{Entry, none, one};

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
    all.extend([
        Entry {
            op: "bce_with_logits",
            run: |_, x| one(x[0].bce_with_logits(&x[1])),
            into: |_, x, y| Some(x[0].bce_with_logits_into(&x[1], &y[0])),
            bounds: bce_bounds,
        },
        Entry {
            op: "bce_with_logits_reduced",
            run: |c, x| one(x[0].bce_with_logits_reduced(&x[1], reduction(c))),
            into: none,
            bounds: bce_bounds,
        },
        Entry {
            op: "kl_div_reduced",
            run: |c, x| one(x[0].kl_div_reduced(&x[1], reduction(c))),
            into: none,
            bounds: kl_bounds,
        },
        Entry {
            op: "quantile_loss_reduced",
            run: |c, x| one(x[0].quantile_loss_reduced(&x[1], &levels(c), reduction(c))),
            into: none,
            bounds: quantile_bounds,
        },
        Entry {
            op: "mse_loss_reduced",
            run: |c, x| one(x[0].mse_loss_reduced(&x[1], reduction(c))),
            into: none,
            bounds: loss_bounds,
        },
        Entry {
            op: "l1_loss_reduced",
            run: |c, x| one(x[0].l1_loss_reduced(&x[1], reduction(c))),
            into: none,
            bounds: loss_bounds,
        },
        Entry {
            op: "huber_loss_reduced",
            run: |c, x| one(x[0].huber_loss_reduced(&x[1], c.f("delta"), reduction(c))),
            into: none,
            bounds: loss_bounds,
        },
        Entry { op: "kl_div", run: |_, x| one(x[0].kl_div(&x[1])), into: none, bounds: kl_bounds },
        Entry {
            op: "cosine_similarity",
            run: |c, x| one(x[0].cosine_similarity(&x[1], c.i("axis"), c.f("eps"))),
            into: none,
            bounds: cosine_bounds,
        },
        Entry {
            op: "cross_entropy_with",
            run: |c, x| one(x[0].cross_entropy_with(&x[1], &entropy_options(c, x))),
            into: none,
            bounds: weighted_bounds,
        },
    ]);
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

fn reduction(c: &Case) -> Reduction {
    match c.s("reduction") {
        "sum" => Reduction::Sum,
        "none" => Reduction::None,
        _ => Reduction::Mean,
    }
}

/// Bounds of losses by the terms of each element's loss and of its slopes by the operands: of their mean (over `n`), or with the
/// reduction of the case.
fn loss(c: &Case, losses: Nd, slopes: [Nd; 2], n: f64) -> Bounds {
    let k = losses.data.len().max(1) as f64;
    let (of, d) = (if c.has("reduction") { reduction(c) } else { Reduction::Mean }, c.cotangent(0).abs());
    let by = if of == Reduction::Mean { n } else { 1.0 };
    let grads = slopes.map(|slope| Bound::Terms(slope.mul(&d).scale(1.0 / by), 1.0)).into();
    let all: Vec<usize> = (0..losses.dims.len()).collect();
    let out = match of {
        Reduction::None => losses,
        _ => losses.sum(&all).scale(1.0 / by).reshape(&[]),
    };
    Bounds::Formula { outs: vec![Bound::Terms(out, k)], grads }
}

/// A mean of terms without cancellation but the difference of the operands, which is exact up to a
/// rounding; the gradients are products of few factors.
fn loss_bounds(c: &Case) -> Bounds {
    let (p, t) = (c.operand(0), c.operand(1));
    let n = p.data.len().max(1) as f64;
    let e = p.zip(&t, |p, t| (p - t).abs());
    let delta = if c.has("delta") { c.f("delta") } else { 0.0 };
    let (value, slope): (Nd, Nd) = match c.op.trim_end_matches("_reduced") {
        "mse_loss" => (e.map(|e| e * e), e.scale(2.0)),
        "l1_loss" => (e.clone(), e.map(|_| 1.0)),
        _ => (
            e.map(|e| if e <= delta { 0.5 * e * e } else { delta * (e + 0.5 * delta) }),
            e.map(|e| e.min(delta)),
        ),
    };
    loss(c, value, [slope.clone(), slope], n)
}

/// `max(q e, (q - 1) e)` with `e = target - prediction`.
fn quantile_bounds(c: &Case) -> Bounds {
    let (p, t) = (c.operand(0), c.operand(1));
    let n = p.data.len().max(1) as f64;
    let t1 = t.reshape(&[&t.dims[..], &[1]].concat());
    let q = levels(c);
    let q = Nd { dims: vec![q.len()], data: q };
    let slope = t1.zip(&p, |t, p| t - p).zip(&q, |e, q| if e > 0.0 { q } else { 1.0 - q });
    let e = t1.zip(&p, |t, p| (t - p).abs());
    let all = t1.dims.len() - 1;
    let mut bounds = loss(c, e.mul(&slope), [slope.clone(), slope], n);
    if let Bounds::Formula { grads, .. } = &mut bounds
        && let Bound::Terms(of_target, _) = &mut grads[1]
    {
        *of_target = of_target.sum(&[all]).reshape(&t.dims);
    }
    bounds
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

/// The mean of `max(x, 0) - x t + ln(1 + e^-|x|)`; backward `(sigmoid(x) - t) / n` and `-x / n`.
fn bce_bounds(c: &Case) -> Bounds {
    let (x, t) = (c.operand(0), c.operand(1));
    let n = x.data.len().max(1) as f64;
    // Reductions but the mean are composed: -x is softplus(-x) - softplus(x).
    let composed = if c.has("reduction") { 2.0 * 2f64.ln() } else { 0.0 };
    let losses = x.zip(&t, |x, t| x.abs() * (1.0 + t) + 1.0);
    loss(c, losses, [t.map(|t| 1.0 + t), x.map(|x| x.abs() + composed)], n)
}

/// `sum(p (ln(p) - log_q)) / rows`; backward `-p / rows` and `(ln(p) - log_q + 1) / rows`.
fn kl_bounds(c: &Case) -> Bounds {
    let (log_q, p) = (c.operand(0), c.operand(1));
    let rows = p.dims[0] as f64;
    let far = p.zip(&log_q, |p, l| if p > 0.0 { p.ln().abs() + l.abs() } else { 0.0 });
    loss(c, p.mul(&far), [p, far.map(|f| f + 1.0)], rows)
}

/// The sum of products of normalised elements; backward `(b - a cos) d / |a|` of normalised a and b.
fn cosine_bounds(c: &Case) -> Bounds {
    let (a, b) = (c.operand(0), c.operand(1));
    let axis = c.i("axis").rem_euclid(a.dims.len() as isize) as usize;
    let n = a.dims[axis] as f64;
    let length = |x: &Nd| {
        let last = x.dims.len() + axis - a.dims.len();
        x.mul(x).sum(&[last]).map(f64::sqrt)
    };
    let (of_a, of_b) = (length(&a), length(&b));
    let unit_a = a.zip(&of_a, |x, l| (x / l).abs());
    let unit_b = b.zip(&of_b, |x, l| (x / l).abs());
    let terms = unit_a.mul(&unit_b).sum(&[axis]);
    let d = c.cotangent(0).abs().reshape(&terms.dims);
    let out = terms.scale(3.0).reshape(&c.outputs[0].nd.dims);
    let grad = |own: &Nd, other: &Nd, length: &Nd| {
        own.mul(&terms).scale(3.0).add(&other.scale(3.0)).mul(&d).zip(length, |v, l| v / l)
    };
    Bounds::Formula {
        outs: vec![Bound::Terms(out, n)],
        grads: vec![
            Bound::Terms(grad(&unit_a, &unit_b, &of_a), n),
            Bound::Terms(grad(&unit_b, &unit_a, &of_b), n),
        ],
    }
}

fn entropy_options<'a>(c: &Case, x: &'a [Tensor]) -> CrossEntropyOptions<'a> {
    CrossEntropyOptions {
        label_smoothing: c.f("label_smoothing"),
        weights: x.get(2),
        ignore_index: c.has("ignore_index").then(|| c.i("ignore_index") as i64),
        reduction: match c.s("reduction") {
            "sum" => Reduction::Sum,
            "none" => Reduction::None,
            _ => Reduction::Mean,
        },
    }
}

/// The terms of the cross entropy, weighted, and divided by the weights of the rows that count if it is a mean.
fn weighted_bounds(c: &Case) -> Bounds {
    let x = c.operand(0);
    let (rows, classes) = (x.dims[0], x.dims[1] as f64);
    let most = c.inputs.get(2).map_or(1.0, |w| w.nd.data.iter().copied().fold(0.0, f64::max));
    let ignored = if c.has("ignore_index") { c.f("ignore_index") } else { -1.0 };
    let ids = &c.inputs[1].nd.data;
    let weight = |id: f64| c.inputs.get(2).map_or(1.0, |w| w.nd.data[id as usize]);
    let all: f64 = ids.iter().filter(|&&id| id != ignored).map(|&id| weight(id)).sum();
    let by = if c.s("reduction") == "mean" { all } else { 1.0 };
    let (p, off) = probabilities(&x, 1);
    let of_rows = x.abs().max(&[1]).scale(2.0).map(|v| (v + classes.ln() + 1.0) * most / by);
    let d = Nd { dims: vec![rows, 1], data: c.cotangent(0).abs().expand(&[rows]).data };
    let off = off.add(&x.max(&[1]).abs());
    let grad = p.mul(&off).map(|p| (p + 1.0) * most / by).mul(&d);
    let out = match c.s("reduction") {
        "none" => of_rows.reshape(&[rows]),
        _ => of_rows.sum(&[0]).reshape(&[]),
    };
    let k = rows as f64 + classes;
    Bounds::Formula {
        outs: vec![Bound::Terms(out, k)],
        grads: c.inputs.iter().map(|_| Bound::Terms(grad.clone(), k)).collect(),
    }
}
