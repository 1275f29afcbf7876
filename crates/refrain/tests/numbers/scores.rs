//! Softmax within other operations, of scores so large that the logarithm of a sum of exponentials has no digits left
//! beside them.

use refrain::{DType, Device, Precision, Tensor, with_precision};

use crate::common::{FLOATS, devices, tensor, values};
use crate::{epsilon, leaf, numbers};

#[test]
fn equal_logits_share_the_gradient_however_large_they_are() {
    for device in devices() {
        for dtype in FLOATS {
            for logit in [0.0, 1e4, 1.7e7, 1e30] {
                if dtype == DType::F16 && logit > 1e4 {
                    continue;
                }
                let x = leaf(&[logit, logit], [1, 2], dtype, &device);
                let y = x.cross_entropy(&Tensor::from_slice(&[0i64], 1, &device).unwrap()).unwrap();
                y.backward_with(&tensor(&[1.5], (), dtype, &device)).unwrap();
                assert_eq!(values(&x.grad().unwrap()), [-0.75, 0.75], "{logit} in {dtype} on {device}");
            }
        }
    }
}

#[test]
fn the_gradient_of_cross_entropy_does_not_depend_on_a_common_offset() {
    // Rows that a GPU has in registers, and wider ones; an offset to which f32 and f64 can add such numbers exactly.
    for (classes, dtype, offset) in
        [(7, DType::F32, 1048576.0), (5000, DType::F32, 1048576.0), (7, DType::F64, 2f64.powi(45))]
    {
        for device in devices() {
            let rows = 3;
            let logits: Vec<f64> =
                numbers(rows * classes, 1).iter().map(|v| (v * 32.0).round() / 8.0).collect();
            let ids = Tensor::from_slice(&[0i32, 3, 6], rows, &device).unwrap();
            let gradient = |offset: f64| {
                let x: Vec<f64> = logits.iter().map(|v| v + offset).collect();
                let x = leaf(&x, [rows, classes], dtype, &device);
                x.cross_entropy_smoothed(&ids, 0.1).unwrap().backward().unwrap();
                values(&x.grad().unwrap())
            };
            assert_eq!(gradient(offset), gradient(0.0), "{classes} classes in {dtype} on {device}");
        }
    }
}

/// Attention of equal keys: every weight is 1 / keys, so the gradients are sums of few terms.
struct Equal {
    device: Device,
    dtype: DType,
    queries: usize,
    keys: usize,
    dim: usize,
    /// How large queries and keys are.
    size: f64,
}

impl Equal {
    fn check(&self, precision: Precision) {
        let Equal { device, dtype, queries, keys, dim, size } = self;
        let (dtype, heads) = (*dtype, 3);
        let what = format!("{queries} x {keys} x {dim} of {size:e} in {dtype} ({precision:?}) on {device}");
        let spread =
            |n: usize, seed, by: f64| -> Vec<f64> { numbers(n, seed).iter().map(|v| v * by).collect() };
        let q = leaf(&spread(heads * queries * dim, 1, *size), [1, heads, *queries, *dim], dtype, device);
        let key = spread(heads * dim, 2, *size);
        let of_head = |h: usize| key[h * dim..][..*dim].repeat(*keys);
        let same: Vec<f64> = (0..heads).flat_map(of_head).collect();
        let k = leaf(&same, [1, heads, *keys, *dim], dtype, device);
        let v = leaf(&numbers(heads * keys * dim, 3), [1, heads, *keys, *dim], dtype, device);
        let dy = tensor(&numbers(heads * queries * dim, 4), [1, heads, *queries, *dim], dtype, device);
        let o =
            with_precision(precision, || q.scaled_dot_product_attention(&k, &v, Some(0.3), false)).unwrap();
        o.backward_with(&dy).unwrap();

        let (qs, ks, vs, ds) = (values(&q.detach()), values(&k.detach()), values(&v.detach()), values(&dy));
        let (dq, dk, dv) =
            (values(&q.grad().unwrap()), values(&k.grad().unwrap()), values(&v.grad().unwrap()));
        let n = *keys as f64;
        // What operands and weights of products are rounded to; those of f32 are made of two parts.
        let tolerance = match (dtype, precision) {
            (DType::F32, Precision::Tf32) => 4.0 * epsilon(DType::F16),
            (DType::F32 | DType::F64, _) => 16.0 * epsilon(dtype),
            _ => 4.0 * epsilon(dtype),
        };
        let o = values(&o.detach());
        for h in 0..heads {
            let at = |token: usize, tokens: usize, i: usize| (h * tokens + token) * dim + i;
            for i in 0..*dim {
                let column: Vec<f64> = (0..*queries).map(|t| ds[at(t, *queries, i)]).collect();
                let (sum, terms) = (column.iter().sum::<f64>(), column.iter().map(|d| d.abs()).sum::<f64>());
                let mean = (0..*keys).map(|j| vs[at(j, *keys, i)]).sum::<f64>() / n;
                for t in 0..*queries {
                    let found = o[at(t, *queries, i)];
                    assert!((found - mean).abs() <= tolerance, "o, {what}: {found}, not {mean}");
                }
                for j in 0..*keys {
                    let found = dv[at(j, *keys, i)];
                    assert!(
                        (found - sum / n).abs() <= tolerance * terms / n,
                        "dv, {what}: {found}, not {}",
                        sum / n
                    );
                }
            }
            // ds = p (dp - mean(dp)), of each query and key, and the terms that it is made of.
            let mut scores = vec![(0.0, 0.0); queries * keys];
            for t in 0..*queries {
                let row: Vec<(f64, f64)> = (0..*keys)
                    .map(|j| {
                        (0..*dim).fold((0.0, 0.0), |(sum, terms), i| {
                            let term = ds[at(t, *queries, i)] * vs[at(j, *keys, i)];
                            (sum + term, terms + term.abs())
                        })
                    })
                    .collect();
                let mean = row.iter().map(|r| r.0).sum::<f64>() / n;
                let terms = row.iter().map(|r| r.1).sum::<f64>() / n;
                for j in 0..*keys {
                    scores[t * keys + j] = ((row[j].0 - mean) / n, (row[j].1 + terms) / n);
                }
            }
            for i in 0..*dim {
                for j in 0..*keys {
                    let (sum, terms) = (0..*queries).fold((0.0, 0.0), |(sum, terms), t| {
                        let (d, size) = scores[t * keys + j];
                        let q = 0.3 * qs[at(t, *queries, i)];
                        (sum + d * q, terms + size * q.abs())
                    });
                    let found = dk[at(j, *keys, i)];
                    assert!(
                        (found - sum).abs() <= tolerance * terms,
                        "dk, {what}: {found}, not {sum} ({terms})"
                    );
                }
                for t in 0..*queries {
                    // The weights' gradients of a query add up to 0, and the keys are equal.
                    let terms = (0..*keys)
                        .map(|j| scores[t * keys + j].1 * 0.3 * ks[at(j, *keys, i)].abs())
                        .sum::<f64>();
                    let found = dq[at(t, *queries, i)];
                    assert!(found.abs() <= tolerance * terms, "dq, {what}: {found}, not 0 ({terms})");
                }
            }
        }
    }
}

#[test]
fn equal_keys_share_the_gradients_however_large_scores_are() {
    // Lengths of which a GPU computes both ways on tensor cores, only the forward one, or neither.
    let sizes = [(5, 5, 16), (41, 41, 8), (41, 41, 32), (3, 70, 4), (70, 17, 20), (5, 5, 4)];
    for device in devices() {
        for dtype in FLOATS {
            for (queries, keys, dim) in sizes {
                for size in [1.0, 1e2, 3e4, 1e10] {
                    if dtype == DType::F16 && size > 6e4 {
                        continue;
                    }
                    let case = Equal { device: device.clone(), dtype, queries, keys, dim, size };
                    case.check(Precision::F32);
                    if dtype == DType::F32 && size < 1e10 {
                        case.check(Precision::Tf32);
                    }
                }
            }
        }
    }
}
