//! Normalisations.

use refrain::{Result, Tensor};

use super::bound::{Bound, Bounds};
use super::case::Case;
use super::nd::Nd;
use super::{Entry, one};

pub fn entries() -> Vec<Entry> {
    vec![
        Entry {
            op: "layer_norm",
            run: |c, x| one(over_last_axes(c, x, |x, w, b| x.layer_norm(w, b, c.f("eps")))),
            into: |c, x, y| {
                let dst = rows(c, &y[0]).ok()?;
                Some(
                    over_last_axes(c, x, |x, w, b| {
                        x.layer_norm_into(w, b, c.f("eps"), &dst).map(|()| dst.clone())
                    })
                    .map(drop),
                )
            },
            bounds: |c| norm_bounds(c, true),
        },
        Entry {
            op: "rms_norm",
            run: |c, x| one(over_last_axes(c, x, |x, w, _| x.rms_norm(w, c.f("eps")))),
            into: |c, x, y| {
                let dst = rows(c, &y[0]).ok()?;
                Some(
                    over_last_axes(c, x, |x, w, _| {
                        x.rms_norm_into(w, c.f("eps"), &dst).map(|()| dst.clone())
                    })
                    .map(drop),
                )
            },
            bounds: |c| norm_bounds(c, false),
        },
        Entry {
            op: "batch_norm",
            run: |c, x| {
                let (weight, bias) = affine(x)?;
                let y = x[0].batch_norm(
                    &weight,
                    &bias,
                    &x[1],
                    &x[2],
                    1,
                    c.b("training"),
                    c.f("momentum"),
                    c.f("eps"),
                )?;
                Ok(if c.b("training") { vec![y, x[1].clone(), x[2].clone()] } else { vec![y] })
            },
            into: |c, x, y| {
                let run = || {
                    let (weight, bias) = affine(x)?;
                    let (training, momentum, eps) = (c.b("training"), c.f("momentum"), c.f("eps"));
                    x[0].batch_norm_into(&weight, &bias, &x[1], &x[2], 1, training, momentum, eps, &y[0])?;
                    // The running statistics change where they lie.
                    y[1..].iter().zip(&x[1..]).try_for_each(|(y, x)| y.copy_from(x))
                };
                Some(run())
            },
            bounds: batch_norm_bounds,
        },
        Entry {
            op: "l2_normalize",
            run: |c, x| one(x[0].l2_normalize(c.i("axis"), c.f("eps"))),
            into: |c, x, y| Some(x[0].l2_normalize_into(c.i("axis"), c.f("eps"), &y[0])),
            bounds: l2_bounds,
        },
        Entry {
            op: "qk_norm",
            run: |c, x| one(x[0].qk_norm(&x[1], c.f("eps"))),
            into: |c, x, y| Some(x[0].qk_norm_into(&x[1], c.f("eps"), &y[0])),
            bounds: qk_bounds,
        },
    ]
}

fn affine(x: &[Tensor]) -> Result<(Tensor, Tensor)> {
    match x {
        [_, _, _, weight, bias] => Ok((weight.clone(), bias.clone())),
        _ => Ok((x[1].detach().ones_like()?, x[1].detach().zeros_like()?)),
    }
}

/// As for layer_norm, over all axes but 1; in evaluation with the running statistics, which are given.
/// These move to `(1 - momentum) running + momentum new`.
fn batch_norm_bounds(c: &Case) -> Bounds {
    let x = c.operand(0);
    let others: Vec<usize> = (0..x.dims.len()).filter(|&a| a != 1).collect();
    let channels = x.dims[1];
    let mut shape = vec![1; x.dims.len()];
    shape[1] = channels;
    let of_channels = |t: Nd| t.reshape(&shape);
    let n = (x.data.len() / channels) as f64;
    let training = c.b("training");
    let (running_mean, running_var) = (of_channels(c.operand(1)), of_channels(c.operand(2)));
    let (mean, far) = match training {
        true => (x.mean(&others), x.abs().mean(&others)),
        false => (running_mean.clone(), running_mean.abs()),
    };
    let centred = x.zip(&mean, |x, m| (x - m) * (x - m));
    let var = if training { centred.mean(&others) } else { running_var.clone() };
    let r = var.map(|v| 1.0 / (v + c.f("eps")).sqrt());
    let terms = x.abs().add(&far).mul(&r);
    let (weight, bias) = match c.inputs.len() {
        5 => (of_channels(c.operand(3).abs()), of_channels(c.operand(4).abs())),
        _ => (Nd::full(&shape, 1.0), Nd::full(&shape, 0.0)),
    };
    let d = c.cotangent(0).abs();
    let g = d.mul(&weight);
    let mut dx = g.clone();
    if training {
        dx = dx.add(&g.mean(&others)).add(&terms.mul(&g.mul(&terms).mean(&others)));
    }
    let mut outs = vec![Bound::Terms(terms.mul(&weight).add(&bias), n)];
    if training {
        let m = c.f("momentum");
        let squares = x.abs().add(&far).map(|v| v * v).sum(&others).scale(1.0 / (n - 1.0));
        let mixed = |old: &Nd, new: &Nd| old.abs().scale(1.0 - m).add(&new.scale(m)).reshape(&[channels]);
        outs.push(Bound::Terms(mixed(&running_mean, &far), n));
        outs.push(Bound::Terms(mixed(&running_var, &squares), n));
    }
    let mut grads = vec![Bound::Terms(dx.mul(&r), n), Bound::Exact, Bound::Exact];
    if c.inputs.len() == 5 {
        grads.push(Bound::Terms(d.mul(&terms).sum(&others).reshape(&[channels]), n * n));
        grads.push(Bound::Terms(d.sum(&others).reshape(&[channels]), n));
    }
    Bounds::Formula { outs, grads }
}

/// `y = x / max(norm, eps)`; backward `(dy - y sum(dy y)) / norm`.
fn l2_bounds(c: &Case) -> Bounds {
    let x = c.operand(0);
    let axis = c.i("axis").rem_euclid(x.dims.len() as isize) as usize;
    let n = x.dims[axis].max(1) as f64;
    let norm = x.mul(&x).sum(&[axis]).map(|s| s.sqrt().max(c.f("eps")));
    let y = x.zip(&norm, |x, n| (x / n).abs());
    let d = c.cotangent(0).abs();
    let grad = d.add(&y.mul(&d.mul(&y).sum(&[axis]))).zip(&norm, |g, n| g / n);
    Bounds::Formula { outs: vec![Bound::Terms(y, n)], grads: vec![Bound::Terms(grad, n)] }
}

/// As for l2_normalize, queries times their temperature, values as they are; the gradient of a temperature sums the
/// products of unit queries and what arrives there.
fn qk_bounds(c: &Case) -> Bounds {
    let (x, t, d) = (c.operand(0), c.operand(1), c.cotangent(0).abs());
    let [.., heads, dim] = x.dims[..] else { panic!("{}: no heads", c.name) };
    let (mut y, mut dx, mut dt) = (x.abs(), d.clone(), Nd::full(&[heads], 0.0));
    let vectors = x.data.len().checked_div(dim).unwrap_or(0);
    for vector in (0..vectors).filter(|v| v / heads % 3 < 2) {
        let (head, at) = (vector % heads, vector * dim..(vector + 1) * dim);
        let (x, d) = (&x.data[at.clone()], &d.data[at.clone()]);
        let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(c.f("eps"));
        let along: f64 = x.iter().zip(d).map(|(x, d)| (x / norm * d).abs()).sum();
        let query = vector / heads % 3 == 0;
        let scale = if query { t.data[head].abs() } else { 1.0 };
        dt.data[head] += if query { along } else { 0.0 };
        for (i, at) in at.enumerate() {
            let unit = (x[i] / norm).abs();
            y.data[at] = unit * scale;
            dx.data[at] = (d[i] + unit * along) / norm * scale;
        }
    }
    let (n, queries) = (dim.max(1) as f64, (vectors / 3 / heads.max(1)).max(1) as f64);
    let grads = vec![Bound::Terms(dx, n), Bound::Terms(dt, n * queries)];
    Bounds::Formula { outs: vec![Bound::Terms(y, n)], grads }
}

/// The normalised axes as one; an error where that would copy.
fn rows(c: &Case, t: &Tensor) -> Result<Tensor> {
    match c.shape("normalized_shape").len() {
        1 => Ok(t.clone()),
        n => t.view(merged(t, n)),
    }
}

fn merged(t: &Tensor, n: usize) -> Vec<usize> {
    let (lead, last) = t.dims().split_at(t.rank() - n);
    lead.iter().copied().chain([last.iter().product()]).collect()
}

/// Calls `f` with several normalised axes as one, and with ones and zeros for missing parameters.
fn over_last_axes(
    c: &Case,
    x: &[Tensor],
    f: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let axes = c.shape("normalized_shape");
    let width: usize = axes.iter().product();
    let t = x[0].reshape(merged(&x[0], axes.len()))?;
    let weight = match x.get(1) {
        Some(w) => w.reshape([width])?,
        None => Tensor::ones([width], t.dtype(), t.device())?,
    };
    let bias = match x.get(2) {
        Some(b) => b.reshape([width])?,
        None => Tensor::zeros([width], t.dtype(), t.device())?,
    };
    f(&t, &weight, &bias)?.reshape(x[0].shape())
}

/// `y = X w + b` with `X = (x - mean) r`, `r = 1 / sqrt(var + eps)`: the terms of X are
/// `(|x| + mean|x|) r`. Backward, with `g = dy w`: `dx = r (g - mean(g) - X mean(g X))`,
/// `dw = sum(dy X)`, `db = sum(dy)`. Root mean square: the same without means.
fn norm_bounds(c: &Case, centred: bool) -> Bounds {
    let axes = c.shape("normalized_shape");
    let width: usize = axes.iter().product();
    let full = c.operand(0);
    let rows = full.data.len() / width;
    let x = full.reshape(&[rows, width]);
    let d = c.cotangent(0).abs().reshape(&[rows, width]);
    let weight = match c.inputs.len() {
        1 => Nd::full(&[width], 1.0),
        _ => c.operand(1).abs().reshape(&[width]),
    };
    let mean = if centred { x.mean(&[1]) } else { Nd::full(&[rows, 1], 0.0) };
    let far = if centred { x.abs().mean(&[1]) } else { Nd::full(&[rows, 1], 0.0) };
    let r = x.zip(&mean, |x, m| (x - m) * (x - m)).mean(&[1]).map(|v| 1.0 / (v + c.f("eps")).sqrt());
    let terms = x.abs().add(&far).mul(&r);
    let mut out = terms.mul(&weight);
    if c.inputs.len() > 2 {
        out = out.add(&c.operand(2).abs().reshape(&[width]));
    }
    let g = d.mul(&weight);
    let mut dx = g.add(&terms.mul(&g.mul(&terms).mean(&[1])));
    if centred {
        dx = dx.add(&g.mean(&[1]));
    }
    let (n, count) = (width as f64, rows.max(1) as f64);
    let mut grads = vec![Bound::Terms(dx.mul(&r).reshape(&full.dims), n)];
    if c.inputs.len() > 1 {
        grads.push(Bound::Terms(d.mul(&terms).sum(&[0]).reshape(&c.inputs[1].nd.dims), count * n));
    }
    if c.inputs.len() > 2 {
        grads.push(Bound::Terms(d.sum(&[0]).reshape(&c.inputs[2].nd.dims), count));
    }
    Bounds::Formula { outs: vec![Bound::Terms(out.reshape(&full.dims), n)], grads }
}
