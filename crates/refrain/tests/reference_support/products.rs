//! Matrix products, layers, attention.

use refrain::{Activation, Result, SdpaOptions, Tensor};

use super::bound::{Bound, Bounds};
use super::case::Case;
use super::nd::Nd;
use super::{Entry, none, one};

pub fn entries() -> Vec<Entry> {
    vec![
        Entry {
            op: "matmul",
            run: |_, x| one(x[0].matmul(&x[1])),
            into: |_, x, y| Some(x[0].matmul_into(&x[1], &y[0])),
            bounds: matmul_bounds,
        },
        Entry {
            op: "linear",
            run: |c, x| {
                let (bias, activation, residual) = linear_arguments(c, x);
                one(x[0].linear(&x[1], bias, activation, residual))
            },
            into: |c, x, y| {
                let (bias, activation, residual) = linear_arguments(c, x);
                Some(x[0].linear_into(&x[1], bias, activation, residual, &y[0]))
            },
            bounds: linear_bounds,
        },
        Entry {
            op: "gru",
            run: |_, x| one(x[0].gru(&x[1], &x[2], &x[3])),
            into: |_, x, y| Some(x[0].gru_into(&x[1], &x[2], &x[3], &y[0])),
            bounds: gru_bounds,
        },
        Entry {
            op: "sdpa",
            run: |c, x| one(x[0].scaled_dot_product_attention(&x[1], &x[2], scale(c), c.b("causal"))),
            into: |c, x, y| {
                let (scale, causal) = (scale(c), c.b("causal"));
                Some(x[0].scaled_dot_product_attention_into(&x[1], &x[2], scale, causal, &y[0]))
            },
            bounds: sdpa_bounds,
        },
        Entry { op: "sdpa_with", run: masked, into: none, bounds: sdpa_bounds },
        Entry {
            op: "einsum",
            run: |c, x| one(Tensor::einsum(c.s("equation"), &x.iter().collect::<Vec<_>>())),
            into: none,
            // Linear in each operand.
            bounds: |_| Bounds::Linear { exact_outs: false },
        },
        Entry {
            op: "eye",
            run: |c, x| one(Tensor::eye(c.u("n"), x[0].dtype(), x[0].device())),
            into: none,
            bounds: Bounds::exact,
        },
        Entry {
            op: "linspace",
            run: |c, x| {
                let (start, end, count) = (c.f("start"), c.f("end"), c.u("count"));
                one(Tensor::linspace(start, end, count, x[0].dtype(), x[0].device()))
            },
            into: none,
            bounds: |c| {
                let largest = c.f("start").abs() + c.f("end").abs();
                Bounds::of(Bound::Terms(c.outputs[0].nd.map(|_| largest), 1.0), [c.operand(0)])
            },
        },
        Entry {
            op: "hadamard",
            run: |_, x| one(x[0].hadamard_transform()),
            into: |_, x, y| Some(x[0].hadamard_transform_into(&y[0])),
            bounds: hadamard_bounds,
        },
    ]
}

fn scale(c: &Case) -> Option<f64> {
    c.has("scale").then(|| c.f("scale"))
}

/// Attention with a mask.
fn masked(c: &Case, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let keys = x[1].dims()[2];
    let mask = match c.s("kind") {
        "lengths" => x[3].sequence_mask(keys)?.reshape([x[3].numel(), 1, 1, keys])?,
        _ => x[3].clone(),
    };
    let options =
        SdpaOptions { causal: c.b("causal"), past: c.u("past"), mask: Some(&mask), ..SdpaOptions::default() };
    Ok(vec![x[0].scaled_dot_product_attention_with(&x[1], &x[2], &options)?.0])
}

/// What a case adds to its scores `[B, H, N, M]`: its mask, by the kind of it.
fn added(c: &Case, dims: &[usize]) -> Nd {
    if c.inputs.len() < 4 {
        return Nd::full(dims, 0.0);
    }
    let mask = c.operand(3);
    let hidden = |is_seen: bool| if is_seen { 0.0 } else { f64::NEG_INFINITY };
    match c.s("kind") {
        "lengths" => {
            let keys = dims[dims.len() - 1];
            let places = Nd { dims: vec![keys], data: (0..keys).map(|i| i as f64).collect() };
            places.zip(&mask.reshape(&[dims[0], 1, 1, 1]), |at, length| hidden(at < length)).expand(dims)
        }
        "bool" => mask.map(|seen| hidden(seen != 0.0)).expand(dims),
        _ => mask.expand(dims),
    }
}

fn linear_arguments<'a>(c: &Case, x: &'a [Tensor]) -> (Option<&'a Tensor>, Activation, Option<&'a Tensor>) {
    let activation = match c.s("activation") {
        "none" => Activation::None,
        "relu" => Activation::Relu,
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "silu" => Activation::Silu,
        other => panic!("activation {other}"),
    };
    (c.b("bias").then(|| &x[2]), activation, c.b("residual").then(|| &x[x.len() - 1]))
}

/// Sums of as many terms as the axis is long that goes away.
fn matmul_bounds(c: &Case) -> Bounds {
    let (a, b, d) = (c.operand(0).abs(), c.operand(1).abs(), c.cotangent(0).abs());
    // Vectors as matrices.
    let left = if a.dims.len() == 1 { a.reshape(&[1, a.dims[0]]) } else { a.clone() };
    let right = if b.dims.len() == 1 { b.reshape(&[b.dims[0], 1]) } else { b.clone() };
    let product = left.matmul(&right);
    let full = d.reshape(&product.dims);
    let k = left.dims[left.dims.len() - 1] as f64;
    let (m, n) = (left.dims[left.dims.len() - 2] as f64, right.dims[right.dims.len() - 1] as f64);
    let da = full.matmul(&right.t());
    let db = left.t().matmul(&full);
    let reduced = |g: Nd, like: &Nd, to: &Nd, k: f64| {
        let times = (g.data.len().max(1) / like.data.len().max(1)).max(1) as f64;
        Bound::Terms(g.sum_to(&like.dims).reshape(&to.dims), k * times)
    };
    Bounds::Formula {
        outs: vec![Bound::Terms(product.reshape(&c.outputs[0].nd.dims), k)],
        grads: vec![reduced(da, &left, &a, n), reduced(db, &right, &b, m)],
    }
}

/// `y = f(z) + r` with `z = x w^T + b`. No activation is steeper than 1.13, nor its derivative than 1:
/// so what `z` is off by adds at most that to `y`, and `|dy|` times that to the gradient at `z`.
fn linear_bounds(c: &Case) -> Bounds {
    let (x, w, d) = (c.operand(0).abs(), c.operand(1).abs(), c.cotangent(0).abs());
    let (features, outputs) = (w.dims[1], w.dims[0]);
    let rows = x.data.len() / features;
    let x2 = x.reshape(&[rows, features]);
    let d2 = d.reshape(&[rows, outputs]);
    let mut z = x2.matmul(&w.t());
    if c.b("bias") {
        z = z.add(&c.operand(2).abs());
    }
    let mut out = z.scale(1.13);
    if c.b("residual") {
        out = out.add(&c.operand(c.inputs.len() - 1).abs().reshape(&[rows, outputs]));
    }
    let steepness = if c.s("activation") == "none" || c.s("activation") == "relu" { 0.0 } else { 1.0 };
    let g = d2.mul(&z.scale(steepness).map(|z| z + 1.13));
    let mut grads = vec![
        Bound::Terms(g.matmul(&w).reshape(&x.dims), outputs as f64),
        Bound::Terms(g.t().matmul(&x2), rows as f64),
    ];
    if c.b("bias") {
        grads.push(Bound::Terms(g.sum(&[0]).reshape(&[outputs]), rows as f64));
    }
    if c.b("residual") {
        grads.push(Bound::Terms(d.clone(), 1.0));
    }
    Bounds::Formula { outs: vec![Bound::Terms(out.reshape(&c.outputs[0].nd.dims), features as f64)], grads }
}

/// At each time step a state has what is rounded then, and what the state before it is off by. `r` and `z` pass on at most 1/4 of what
/// they are made of, `n` all of it. Backward the same, with each derivative at its largest.
fn gru_bounds(c: &Case) -> Bounds {
    let (x, w, b, h0) = (c.operand(0), c.operand(1), c.operand(2), c.operand(3));
    let &[batch, steps, gates] = &x.dims[..] else { panic!("{}: sizes", c.name) };
    let (hidden, k) = (gates / 3, (gates + steps) as f64);
    let dy = c.cotangent(0);
    let (mut out, mut dx) = (Nd::full(&[batch, steps, hidden], 0.0), Nd::full(&x.dims, 0.0));
    let (mut dw, mut db, mut dh0) = (Nd::full(&w.dims, 0.0), Nd::full(&b.dims, 0.0), Nd::full(&h0.dims, 0.0));
    for s in 0..batch {
        // The largest that a state is and may be off by, after each time step.
        let mut size: Vec<f64> = (0..hidden).map(|j| h0.data[s * hidden + j].abs()).collect();
        let mut off = vec![0.0; hidden];
        let (mut sizes, mut sums) = (vec![size.clone()], vec![]);
        for t in 0..steps {
            let of_state = |gate: usize, j: usize| -> f64 {
                let row = gate * hidden + j;
                let terms = (0..hidden).map(|i| w.data[row * hidden + i].abs() * (size[i] + off[i]));
                terms.sum::<f64>() + b.data[row].abs()
            };
            let part = |gate: usize, j: usize| x.data[(s * steps + t) * gates + gate * hidden + j].abs();
            let q: Vec<f64> = (0..hidden).map(|j| of_state(2, j)).collect();
            let new: Vec<f64> = (0..hidden)
                .map(|j| {
                    let r = 0.25 * q[j] * (part(0, j) + of_state(0, j));
                    let z = 0.25 * (1.0 + size[j]) * (part(1, j) + of_state(1, j));
                    1.0 + size[j] + off[j] + part(2, j) + q[j] + r + z
                })
                .collect();
            off = new;
            size.iter_mut().for_each(|h| *h = h.max(1.0));
            out.data[(s * steps + t) * hidden..][..hidden].copy_from_slice(&off);
            sizes.push(size.clone());
            sums.push(q);
        }
        let worst = 1.0 + off.iter().fold(0.0, |m: f64, &v| m.max(v));
        let mut carried = vec![0.0; hidden];
        for t in (0..steps).rev() {
            let mut slopes = vec![0.0; gates];
            for j in 0..hidden {
                let d = dy.data[(s * steps + t) * hidden + j].abs() + carried[j];
                slopes[j] = 0.25 * d * sums[t][j];
                slopes[hidden + j] = 0.25 * d * (1.0 + sizes[t][j]);
                slopes[2 * hidden + j] = d;
                carried[j] = d;
            }
            for (row, &slope) in slopes.iter().enumerate() {
                dx.data[(s * steps + t) * gates + row] = slope * worst;
                db.data[row] += slope * worst;
                for i in 0..hidden {
                    dw.data[row * hidden + i] += slope * worst * sizes[t][i];
                    carried[i] += slope * w.data[row * hidden + i].abs();
                }
            }
        }
        (0..hidden).for_each(|j| dh0.data[s * hidden + j] = carried[j] * worst);
    }
    let grads = [dx, dw, db, dh0].map(|terms| Bound::Terms(terms, k));
    Bounds::Formula { outs: vec![Bound::Terms(out, k)], grads: grads.into() }
}

/// `o = p v`, `p = softmax(s)`, `s = scale q k^T`. What a score is off by, at most eps times S, the
/// largest sum of a row's terms, changes a probability by that part of itself; so does what all of its
/// row are off by. A mask is one more term. Backward: `dp = do v^T`, `ds = p (dp - sum(p dp))`, `dq = scale ds k`, `dk = scale ds^T q`.
fn sdpa_bounds(c: &Case) -> Bounds {
    let (q, k, v) = (c.operand(0), c.operand(1), c.operand(2));
    let (r, d) = (q.dims.len(), q.dims[q.dims.len() - 1]);
    let keys = k.dims[r - 2] as f64;
    let scale = scale(c).unwrap_or(1.0 / (d as f64).sqrt());
    let s = q.matmul(&k.t()).scale(scale);
    let mask = added(c, &s.dims);
    let mut s = s.add(&mask);
    if c.b("causal") {
        let n = s.dims[r - 1];
        let m = s.dims[r - 2];
        let past = if c.has("past") { c.u("past") } else { 0 };
        for (i, s) in s.data.iter_mut().enumerate() {
            if i % n > (i / n) % m + past {
                *s = f64::NEG_INFINITY;
            }
        }
    }
    let p = s.zip(&s.max(&[r - 1]), |s, m| (s - m).exp());
    let p = p.zip(&p.sum(&[r - 1]), |p, sum| p / sum);
    let terms = q.abs().matmul(&k.abs().t()).scale(scale.abs());
    let terms = terms.zip(&mask, |s, m| if m.is_finite() { s + m.abs() } else { s });
    let off = terms.max(&[r - 1]).map(|s| 2.0 + 2.0 * s);
    let p = p.mul(&off);
    let g = c.cotangent(0).abs();
    let out = p.matmul(&v.abs());
    let dp = g.matmul(&v.abs().t());
    let ds = p.mul(&dp.add(&p.mul(&dp).sum(&[r - 1])));
    let n = keys + d as f64;
    let mut grads = vec![
        Bound::Terms(ds.matmul(&k.abs()).scale(scale.abs()), n),
        Bound::Terms(ds.t().matmul(&q.abs()).scale(scale.abs()), n + q.dims[r - 2] as f64),
        Bound::Terms(p.t().matmul(&g), n + q.dims[r - 2] as f64),
    ];
    grads.extend(c.inputs.get(3).map(|_| Bound::Terms(ds, n)));
    Bounds::Formula { outs: vec![Bound::Terms(out, n)], grads }
}

/// Each result is a sum of all elements of the row, over the square root of their number.
fn hadamard_bounds(c: &Case) -> Bounds {
    let spread = |t: &Nd| {
        let last = t.dims.len() - 1;
        let n = t.dims[last] as f64;
        (t.abs().sum(&[last]).expand(&t.dims).scale(n.sqrt().recip()), n)
    };
    let (out, n) = spread(&c.operand(0));
    let (grad, _) = spread(c.cotangent(0));
    Bounds::Formula { outs: vec![Bound::Terms(out, n)], grads: vec![Bound::Terms(grad, n)] }
}
