//! Running sums and products, and elements in another order.

use refrain::{Result, Tensor};

use super::bound::{Bound, Bounds};
use super::case::Case;
use super::nd::{Nd, strides};
use super::{Entry, one};

fn moved(_: &Case) -> Bounds {
    Bounds::Linear { exact_outs: true }
}

fn signed(c: &Case, key: &str) -> Vec<isize> {
    c.list(key, |v| v.as_i64().map(|n| n as isize))
}

fn both((values, positions): (Tensor, Tensor)) -> Result<Vec<Tensor>> {
    Ok(vec![values, positions])
}

/// Into two destinations: the values, and the positions.
fn into_both(pair: Result<(Tensor, Tensor)>, y: &[Tensor]) -> Result<()> {
    let (_, positions) = pair?;
    y[1].copy_from(&positions)
}

pub fn entries() -> Vec<Entry> {
    vec![
        Entry {
            op: "cumsum",
            run: |c, x| one(x[0].cumsum(c.i("axis"))),
            into: |c, x, y| Some(x[0].cumsum_into(c.i("axis"), &y[0])),
            bounds: |_| Bounds::Linear { exact_outs: false },
        },
        Entry {
            op: "cumprod",
            run: |c, x| one(x[0].cumprod(c.i("axis"))),
            into: |c, x, y| Some(x[0].cumprod_into(c.i("axis"), &y[0])),
            bounds: cumprod_bounds,
        },
        Entry {
            op: "linear_recurrence",
            run: |c, x| one(x[0].linear_recurrence(&x[1], c.i("axis"), x.get(2))),
            into: |c, x, y| Some(x[0].linear_recurrence_into(&x[1], c.i("axis"), x.get(2), &y[0])),
            bounds: recurrence_bounds,
        },
        Entry {
            op: "flip",
            run: |c, x| one(x[0].flip(&signed(c, "axes")[..])),
            into: |c, x, y| Some(x[0].flip_into(&signed(c, "axes")[..], &y[0])),
            bounds: moved,
        },
        Entry {
            op: "roll",
            run: |c, x| one(x[0].roll(&signed(c, "shifts"), &signed(c, "axes"))),
            into: |c, x, y| Some(x[0].roll_into(&signed(c, "shifts"), &signed(c, "axes"), &y[0])),
            bounds: moved,
        },
        Entry {
            op: "tril",
            run: |c, x| one(x[0].tril(c.i("diagonal") as i64)),
            into: |c, x, y| Some(x[0].tril_into(c.i("diagonal") as i64, &y[0])),
            bounds: moved,
        },
        Entry {
            op: "triu",
            run: |c, x| one(x[0].triu(c.i("diagonal") as i64)),
            into: |c, x, y| Some(x[0].triu_into(c.i("diagonal") as i64, &y[0])),
            bounds: moved,
        },
        Entry {
            op: "masked_fill",
            run: |c, x| one(x[0].masked_fill(&x[1], c.f("value"))),
            into: |c, x, y| Some(x[0].masked_fill_into(&x[1], c.f("value"), &y[0])),
            bounds: moved,
        },
        Entry {
            op: "scatter",
            run: |c, x| one(x[0].scatter(c.i("axis"), &x[1], &x[2])),
            into: |c, x, y| Some(x[0].scatter_into(c.i("axis"), &x[1], &x[2], &y[0])),
            bounds: moved,
        },
        Entry {
            op: "sort",
            run: |c, x| both(x[0].sort(c.i("axis"), c.b("descending"))?),
            into: |c, x, y| {
                let (axis, descending) = (c.i("axis"), c.b("descending"));
                let values = x[0].sort_into(axis, descending, &y[0]);
                Some(values.and_then(|()| into_both(x[0].sort(axis, descending), y)))
            },
            bounds: moved,
        },
        Entry {
            op: "argsort",
            run: |c, x| one(x[0].argsort(c.i("axis"), c.b("descending"))),
            into: |c, x, y| Some(x[0].argsort_into(c.i("axis"), c.b("descending"), &y[0])),
            bounds: Bounds::exact,
        },
        Entry {
            op: "topk",
            run: |c, x| both(x[0].topk(c.u("k"), c.i("axis"), c.b("largest"))?),
            into: |c, x, y| {
                let (k, axis, largest) = (c.u("k"), c.i("axis"), c.b("largest"));
                let values = x[0].topk_into(k, axis, largest, &y[0]);
                Some(values.and_then(|()| into_both(x[0].topk(k, axis, largest), y)))
            },
            bounds: moved,
        },
    ]
}

/// `y[i] = x[0] .. x[i]`; backward `y[i - 1] s[i]` with `s[i] = dy[i] + x[i + 1] s[i + 1]`, in absolute values.
fn cumprod_bounds(c: &Case) -> Bounds {
    let x = c.operand(0);
    let axis = c.i("axis").rem_euclid(x.dims.len() as isize) as usize;
    let (n, stride) = (x.dims[axis], strides(&x.dims)[axis]);
    let y = c.outputs[0].nd.abs();
    let k = 3.0 * n.max(1) as f64;
    let d = c.cotangent(0).abs();
    let (mut s, mut grad) = (d.clone(), Nd::full(&x.dims, 0.0));
    for at in (0..x.data.len()).rev() {
        let i = at / stride % n;
        if i + 1 < n {
            s.data[at] += x.data[at + stride].abs() * s.data[at + stride];
        }
        grad.data[at] = s.data[at] * if i > 0 { y.data[at - stride] } else { 1.0 };
    }
    // Each factor passes its rounding on to all products behind it.
    Bounds::Formula { outs: vec![Bound::Terms(y, k)], grads: vec![Bound::Terms(grad, k)] }
}

/// `y[i] = decay[i] y[i - 1] + x[i]`; backward `g[i] = dy[i] + decay[i + 1] g[i + 1]`, which is the gradient of `x`, `g[i] y[i - 1]`
/// and `g[0] decay[0]`, in absolute values.
fn recurrence_bounds(c: &Case) -> Bounds {
    let x = c.operand(0).abs();
    let decay = c.operand(1).abs().expand(&x.dims);
    let axis = c.i("axis").rem_euclid(x.dims.len() as isize) as usize;
    let (n, stride) = (x.dims[axis], strides(&x.dims)[axis]);
    let with_axis: Vec<usize> =
        x.dims.iter().enumerate().map(|(i, &n)| if i == axis { 1 } else { n }).collect();
    let first = match c.inputs.len() {
        3 => c.operand(2).abs().reshape(&with_axis).expand(&x.dims),
        _ => Nd::full(&x.dims, 0.0),
    };
    let (mut y, mut before) = (x.clone(), first);
    for at in 0..x.data.len() {
        if at / stride % n > 0 {
            before.data[at] = y.data[at - stride];
        }
        y.data[at] += decay.data[at] * before.data[at];
    }
    let mut g = c.cotangent(0).abs();
    for at in (0..x.data.len()).rev() {
        if at / stride % n + 1 < n {
            g.data[at] += decay.data[at + stride] * g.data[at + stride];
        }
    }
    let k = 3.0 * n.max(1) as f64;
    let mut grads = vec![Bound::Terms(g.clone(), k), Bound::Terms(g.mul(&before), k)];
    if c.inputs.len() == 3 {
        let mut at_first = g.mul(&decay);
        (0..x.data.len()).filter(|at| at / stride % n > 0).for_each(|at| at_first.data[at] = 0.0);
        let dims: Vec<usize> =
            x.dims.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, &n)| n).collect();
        grads.push(Bound::Terms(at_first.sum(&[axis]).reshape(&dims), k));
    }
    Bounds::Formula { outs: vec![Bound::Terms(y, k)], grads }
}
