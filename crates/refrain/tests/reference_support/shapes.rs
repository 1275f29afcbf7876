//! Reductions and views.

use super::bound::{Bound, Bounds};
use super::case::Case;
use super::nd::Nd;
use super::{Entry, none, one};

macro_rules! reduction {
    ($($name:ident, $keepdim:ident, $into:ident;)*) => {
        [$(Entry {
            op: stringify!($name),
            run: |c, x| match c.b("keepdim") {
                true => one(x[0].$keepdim(&c.axes()[..])),
                false => one(x[0].$name(&c.axes()[..])),
            },
            into: |c, x, y| Some(x[0].$into(&c.axes()[..], &y[0])),
            bounds: |_| Bounds::Linear { exact_outs: false },
        }),*]
    };
}

macro_rules! extremes {
    ($($name:ident, $keepdim:ident, $into:ident, $bounds:expr;)*) => {
        [$(Entry {
            op: stringify!($name),
            run: |c, x| match c.b("keepdim") {
                true => one(x[0].$keepdim(&c.axes()[..])),
                false => one(x[0].$name(&c.axes()[..])),
            },
            into: |c, x, y| Some(x[0].$into(&c.axes()[..], &y[0])),
            bounds: $bounds,
        }),*]
    };
}

macro_rules! without_into {
    ($($name:ident, $keepdim:ident, $bounds:expr;)*) => {
        [$(Entry {
            op: stringify!($name),
            run: |c, x| match c.b("keepdim") {
                true => one(x[0].$keepdim(&c.axes()[..])),
                false => one(x[0].$name(&c.axes()[..])),
            },
            into: none,
            bounds: $bounds,
        }),*]
    };
}

macro_rules! views {
    ($($name:ident => |$c:ident, $x:ident| $view:expr;)*) => {
        [$(Entry {
            op: stringify!($name),
            run: |$c, x| { let $x = &x[0]; one($view) },
            into: none,
            bounds: |_| Bounds::Linear { exact_outs: true },
        }),*]
    };
}

pub fn entries() -> Vec<Entry> {
    let mut all = Vec::new();
    all.extend(reduction! {
        sum, sum_keepdim, sum_into;
        mean, mean_keepdim, mean_into;
    });
    all.extend(extremes! {
        max, max_keepdim, max_into, extreme_bounds;
        min, min_keepdim, min_into, extreme_bounds;
        argmax, argmax_keepdim, argmax_into, Bounds::exact;
        argmin, argmin_keepdim, argmin_into, Bounds::exact;
    });
    all.push(Entry {
        op: "var",
        run: |c, x| match c.b("keepdim") {
            true => one(x[0].var_keepdim(&c.axes()[..], c.u("correction"))),
            false => one(x[0].var(&c.axes()[..], c.u("correction"))),
        },
        into: |c, x, y| Some(x[0].var_into(&c.axes()[..], c.u("correction"), &y[0])),
        bounds: var_bounds,
    });
    all.push(Entry {
        op: "std",
        run: |c, x| match c.b("keepdim") {
            true => one(x[0].std_keepdim(&c.axes()[..], c.u("correction"))),
            false => one(x[0].std(&c.axes()[..], c.u("correction"))),
        },
        into: none,
        bounds: std_bounds,
    });
    all.extend(without_into! {
        prod, prod_keepdim, prod_bounds;
        any, any_keepdim, Bounds::exact;
        all, all_keepdim, Bounds::exact;
    });
    all.push(Entry {
        op: "logsumexp",
        run: |c, x| match c.b("keepdim") {
            true => one(x[0].logsumexp_keepdim(&c.axes()[..])),
            false => one(x[0].logsumexp(&c.axes()[..])),
        },
        into: |c, x, y| Some(x[0].logsumexp_into(&c.axes()[..], &y[0])),
        bounds: logsumexp_bounds,
    });
    all.push(Entry {
        op: "norm",
        run: |c, x| match c.b("keepdim") {
            true => one(x[0].norm_keepdim(order_of_norm(c), &c.axes()[..])),
            false => one(x[0].norm(order_of_norm(c), &c.axes()[..])),
        },
        into: none,
        bounds: norm_bounds,
    });
    all.extend(views! {
        reshape => |c, x| x.reshape(c.shape("shape"));
        transpose => |c, x| x.transpose(c.i("axis0"), c.i("axis1"));
        permute => |c, x| x.permute(&c.list("axes", |v| v.as_i64().map(|n| n as isize)));
        narrow => |c, x| x.narrow(c.i("axis"), c.u("start"), c.u("length"));
        broadcast_to => |c, x| x.broadcast_to(c.shape("shape"));
        squeeze => |c, x| x.squeeze(c.i("axis"));
        unsqueeze => |c, x| x.unsqueeze(c.i("axis"));
        flatten => |c, x| x.flatten(c.i("start_axis"), c.i("end_axis"));
        unflatten => |c, x| x.unflatten(c.i("axis"), c.shape("sizes"));
        unfold => |c, x| x.unfold(c.i("axis"), c.u("size"), c.u("step"));
    });
    all.push(Entry {
        op: "split",
        run: |c, x| x[0].split(c.u("size"), c.i("axis")),
        into: none,
        bounds: |_| Bounds::Linear { exact_outs: true },
    });
    all.push(Entry {
        op: "split_with_sizes",
        run: |c, x| x[0].split_with_sizes(&c.shape("sizes"), c.i("axis")),
        into: none,
        bounds: |_| Bounds::Linear { exact_outs: true },
    });
    all.push(Entry {
        op: "unbind",
        run: |c, x| x[0].unbind(c.i("axis")),
        into: none,
        bounds: |_| Bounds::Linear { exact_outs: true },
    });
    all.push(Entry {
        op: "chunk",
        run: |c, x| x[0].chunk(c.u("chunks"), c.i("axis")),
        into: none,
        bounds: |_| Bounds::Linear { exact_outs: true },
    });
    all
}

/// The operand, the reduced axes, and the cotangent as it is spread back over them.
fn reduced(c: &Case) -> (Nd, Vec<usize>, Option<Nd>) {
    let x = c.operand(0);
    let rank = x.dims.len() as isize;
    let axes: Vec<usize> = c.axes().into_iter().map(|a| a.rem_euclid(rank) as usize).collect();
    let kept: Vec<usize> =
        x.dims.iter().enumerate().map(|(i, &d)| if axes.contains(&i) { 1 } else { d }).collect();
    let d = c.cotangents[0].as_ref().map(|d| d.abs().reshape(&kept).expand(&x.dims));
    (x, axes, d)
}

/// A choice among elements is exact; equal ones share the gradient.
fn extreme_bounds(c: &Case) -> Bounds {
    let (x, _, d) = reduced(c);
    Bounds::of(Bound::Exact, [d.unwrap_or(x)])
}

/// `sum((x - mean)^2) / (n - correction)`, each distance with the terms `|x| + mean|x|`; backward
/// `2 dy (x - mean) / (n - correction)`.
fn var_bounds(c: &Case) -> Bounds {
    let (x, axes, d) = reduced(c);
    let n: f64 = axes.iter().map(|&a| x.dims[a] as f64).product();
    let divisor = n - c.f("correction");
    let far = x.abs().add(&x.abs().mean(&axes));
    let out = far.mul(&far).sum(&axes).scale(1.0 / divisor).reshape(&c.outputs[0].nd.dims);
    let grad = d.map_or(x, |d| far.mul(&d).scale(2.0 / divisor));
    Bounds::Formula { outs: vec![Bound::Terms(out, n.max(1.0))], grads: vec![Bound::Terms(grad, n.max(1.0))] }
}

/// The root `y` of the variance, which passes half of its relative error on; backward `dy (x - mean) / ((n - correction) y)`.
fn std_bounds(c: &Case) -> Bounds {
    let (x, axes, d) = reduced(c);
    let n: f64 = axes.iter().map(|&a| x.dims[a] as f64).product();
    let divisor = n - c.f("correction");
    let far = x.abs().add(&x.abs().mean(&axes));
    let variance = far.mul(&far).sum(&axes).scale(1.0 / divisor);
    let y = c.outputs[0].nd.reshape(&variance.dims);
    let off = variance.zip(&y, |v, y| 1.0 + v / (y * y));
    let grad = d.map_or(x, |d| far.mul(&d).zip(&y, |g, y| g / (divisor * y)).mul(&off));
    let out = off.mul(&y).reshape(&c.outputs[0].nd.dims);
    Bounds::Formula { outs: vec![Bound::Terms(out, n.max(1.0))], grads: vec![Bound::Terms(grad, n.max(1.0))] }
}

/// As many roundings as factors; backward `dy` times the product of the others.
fn prod_bounds(c: &Case) -> Bounds {
    let (x, axes, d) = reduced(c);
    let n: f64 = axes.iter().map(|&a| x.dims[a] as f64).product();
    let k = 3.0 * n.max(1.0);
    let mut others = Nd::full(&x.dims, 1.0);
    for at in 0..x.data.len() {
        let mut rest = x.abs();
        rest.data[at] = 1.0;
        others.data[at] = rest.fold(&axes, 1.0, |a, b| a * b).expand(&x.dims).data[at];
    }
    let grad = d.map_or(x, |d| others.mul(&d));
    Bounds::Formula { outs: vec![Bound::Terms(c.outputs[0].nd.abs(), k)], grads: vec![Bound::Terms(grad, k)] }
}

/// `max + ln(sum(exp(x - max)))`; backward `dy exp(x - y)`, where x - y is rounded, and y before.
fn logsumexp_bounds(c: &Case) -> Bounds {
    let (x, axes, d) = reduced(c);
    let n: f64 = axes.iter().map(|&a| x.dims[a] as f64).product();
    let finite = |v: f64| if v.is_finite() { v.abs() } else { 0.0 };
    let out = x.map(finite).max(&axes).map(|v| v.max(0.0) + n.ln() + 1.0).reshape(&c.outputs[0].nd.dims);
    let out = Bound::Terms(out, n.max(1.0));
    let Some(d) = d else { return Bounds::Formula { outs: vec![out], grads: vec![Bound::Exact] } };
    let kept: Vec<usize> =
        x.dims.iter().enumerate().map(|(i, &d)| if axes.contains(&i) { 1 } else { d }).collect();
    let y = c.outputs[0].nd.reshape(&kept);
    let share = x.zip(&y, |x, y| (x - y).exp() * (2.0 + (x - y).abs() + y.abs()));
    Bounds::Formula { outs: vec![out], grads: vec![Bound::Terms(share.mul(&d), n.max(1.0))] }
}

fn order_of_norm(c: &Case) -> f64 {
    if c.attrs["p"].is_string() { f64::INFINITY } else { c.f("p") }
}

/// `sum(|x|^p)^(1/p)`: a power passes the rounding of its base on with the factor p; backward `sign(x) (|x| / y)^(p - 1) dy`.
fn norm_bounds(c: &Case) -> Bounds {
    let (x, axes, d) = reduced(c);
    let p = order_of_norm(c);
    if p == f64::INFINITY {
        return Bounds::of(Bound::Exact, [d.unwrap_or(x)]);
    }
    let n: f64 = axes.iter().map(|&a| x.dims[a] as f64).product();
    let out = Bound::Terms(c.outputs[0].nd.scale(1.0 + p), n.max(1.0));
    let grad = d.map_or(x, |d| d.scale(2.0 + p));
    Bounds::Formula { outs: vec![out], grads: vec![Bound::Terms(grad, n.max(1.0))] }
}
