//! Padding with elements of the tensor, resizing, quantiles.

use refrain::{Interpolation, PadMode};

use super::bound::{Bound, Bounds};
use super::case::Case;
use super::index::padding;
use super::nd::Nd;
use super::{Entry, none, one};

fn pad_mode(c: &Case) -> PadMode {
    match c.s("mode") {
        "reflect" => PadMode::Reflect,
        "replicate" => PadMode::Replicate,
        _ => PadMode::Circular,
    }
}

fn interpolation(c: &Case) -> Interpolation {
    let align_corners = c.attrs["align_corners"].as_bool().unwrap_or(false);
    match c.s("mode") {
        "nearest" => Interpolation::Nearest,
        "nearest-exact" => Interpolation::NearestExact,
        "bicubic" => Interpolation::Cubic { align_corners },
        "area" => Interpolation::Area,
        _ => Interpolation::Linear { align_corners },
    }
}

/// So many times the largest absolute value, for each element of another tensor.
fn largest(of: &Nd, times: f64, like: &Nd) -> Nd {
    let most = of.abs().data.iter().copied().fold(0.0, f64::max);
    like.map(|_| most * times)
}

/// Means, and single elements, sum terms of one sign. Weights by distances, up to 2 in total in absolute values, are
/// as exact as the places, which PyTorch rounds.
fn weighted(c: &Case) -> Bounds {
    let by_distance = |mode: &serde_json::Value| {
        mode.as_str().is_some_and(|mode| mode.contains("linear") || mode == "bicubic")
    };
    if !c.attrs.get("mode").is_some_and(by_distance) {
        return Bounds::Linear { exact_outs: false };
    }
    let (x, y, d) = (c.operand(0), &c.outputs[0].nd, c.cotangent(0));
    // As many results as an element is a part of, about.
    let parts = (y.data.len() as f64 / x.data.len() as f64).max(1.0);
    Bounds::of(Bound::Terms(largest(&x, 2.0, y), 1.0), [largest(d, 8.0 * parts, &x)])
}

/// An element, or what lies between two.
fn between(c: &Case) -> Bounds {
    let (x, y) = (c.operand(0), &c.outputs[0].nd);
    let is_element = c.op == "median" || [0.0, 1.0].contains(&c.f("q"));
    let out = if is_element { Bound::Exact } else { Bound::Terms(largest(&x, 1.0, y), 1.0) };
    Bounds::of(out, [largest(c.cotangent(0), 1.0, &x)])
}

pub fn entries() -> Vec<Entry> {
    vec![
        Entry {
            op: "pad_mode",
            run: |c, x| one(x[0].pad(&padding(c), pad_mode(c))),
            into: |c, x, y| Some(x[0].pad_into(&padding(c), pad_mode(c), &y[0])),
            bounds: |_| Bounds::Linear { exact_outs: true },
        },
        Entry {
            op: "interpolate",
            run: |c, x| one(x[0].interpolate(&c.shape("size"), interpolation(c))),
            into: |c, x, y| Some(x[0].interpolate_into(&c.shape("size"), interpolation(c), &y[0])),
            bounds: weighted,
        },
        Entry {
            op: "adaptive_avg_pool1d",
            run: |c, x| one(x[0].adaptive_avg_pool1d(c.u("output_size"))),
            into: |c, x, y| Some(x[0].adaptive_avg_pool1d_into(c.u("output_size"), &y[0])),
            bounds: weighted,
        },
        Entry {
            op: "adaptive_avg_pool2d",
            run: |c, x| one(x[0].adaptive_avg_pool2d(c.shape("output_size").try_into().unwrap())),
            into: |c, x, y| {
                Some(x[0].adaptive_avg_pool2d_into(c.shape("output_size").try_into().unwrap(), &y[0]))
            },
            bounds: weighted,
        },
        Entry {
            op: "quantile",
            run: |c, x| one(x[0].quantile(c.f("q"), c.i("axis"))),
            into: none,
            bounds: between,
        },
        Entry { op: "median", run: |c, x| one(x[0].median(c.i("axis"))), into: none, bounds: between },
    ]
}
