//! Attention with masks: bool and float, broadcast, causal with keys ahead of the queries, and rows that see no key.

mod common;

use common::{devices, gradcheck, shortened, simulators, values};
use refrain::{
    DType, Device, Error, Generator, Precision, Result, SdpaOptions, Step, Tensor, with_precision,
};

/// Numbers between -1 and 1.
fn numbers(shape: &[usize], step: f64, device: &Device) -> Tensor {
    let n = shape.iter().product();
    let v: Vec<f64> = (0..n).map(|i| ((i as f64 * step + 0.3) * 1.7).sin()).collect();
    Tensor::from_slice(&v, shape, device).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// True where a query sees a key.
    Bool,
    /// Added to the scores: finite numbers, and minus infinity where a query does not see a key.
    Float,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Batch, heads, queries and keys.
    shape: [usize; 4],
    dim: usize,
    /// How many keys are ahead of the first query, if the attention is causal.
    past: Option<usize>,
    kind: Kind,
    /// The shape of the mask.
    mask: [usize; 4],
    dropout: f64,
}

impl Case {
    /// Whether a place of the mask is open. Some rows have none.
    fn open(&self, i: usize) -> bool {
        let keys = self.mask[3];
        let row = i / keys;
        // The row before the last is closed if there are several.
        let rows = self.mask[..3].iter().product::<usize>();
        if rows > 2 && row == rows - 2 {
            return false;
        }
        keys == 1 || i % keys <= (row * 7 + 1) % keys || i.is_multiple_of(5)
    }

    /// Queries, keys and values as projections leave them, the mask in f64, and the weights of the result in the loss.
    fn inputs(&self, device: &Device) -> [Tensor; 5] {
        let [batch, heads, queries, keys] = self.shape;
        let projected = |tokens, step| numbers(&[batch, tokens, heads, self.dim], step, device);
        let count = self.mask.iter().product();
        let added = |i| if self.open(i) { (i as f64 * 0.31).sin() } else { f64::NEG_INFINITY };
        let mask: Vec<f64> = (0..count).map(added).collect();
        let mask = Tensor::from_slice(&mask, self.mask, device).unwrap();
        [projected(queries, 0.7), projected(keys, 1.3), projected(keys, 0.4), mask, projected(queries, 0.9)]
    }

    fn bools(&self, device: &Device) -> Tensor {
        let open: Vec<bool> = (0..self.mask.iter().product()).map(|i| self.open(i)).collect();
        Tensor::from_slice(&open, self.mask, device).unwrap()
    }

    fn generator(device: &Device) -> Result<Generator> {
        Generator::from_state(device, 5, 11)
    }

    fn fused(&self, [q, k, v, mask]: [&Tensor; 4]) -> Result<Tensor> {
        let generator = Case::generator(q.device())?;
        let bools = self.bools(q.device());
        let options = SdpaOptions {
            causal: self.past.is_some(),
            past: self.past.unwrap_or(0),
            mask: Some(match self.kind {
                Kind::Bool => &bools,
                Kind::Float => mask,
            }),
            dropout: Some((self.dropout, &generator)),
            ..SdpaOptions::default()
        };
        let [q, k, v] = [q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?];
        q.scaled_dot_product_attention_with(&k, &v, &options)?.0.transpose(1, 2)
    }

    /// The same, composed of single operations. Rows that see no key are zeros.
    fn composed(&self, [q, k, v, mask]: [&Tensor; 4]) -> Result<Tensor> {
        let generator = Case::generator(q.device())?;
        let [batch, heads, queries, keys] = self.shape;
        let [q, k, v] = [q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?];
        let mut sum = q.matmul(&k.transpose(2, 3)?)?.mul_scalar(1.0 / (self.dim as f64).sqrt())?;
        let open = self.bools(q.device());
        if matches!(self.kind, Kind::Float) {
            let zero = Tensor::zeros((), DType::F64, q.device())?;
            sum = sum.add(&open.where_cond(mask, &zero)?)?;
        }
        let open = values(&open.broadcast_to(self.shape)?.contiguous()?);
        let seen: Vec<bool> = (0..batch * heads * queries * keys)
            .map(|i| {
                let (query, key) = (i / keys % queries, i % keys);
                open[i] != 0.0 && self.past.is_none_or(|past| key <= query + past)
            })
            .collect();
        let any: Vec<bool> = seen.chunks(keys).map(|row| row.contains(&true)).collect();
        let seen = Tensor::from_slice(&seen, self.shape, q.device())?;
        let any = Tensor::from_slice(&any, [batch, heads, queries, 1], q.device())?;
        let constant = |x: f64| Tensor::full((), x, DType::F64, q.device());
        let sum = seen.where_cond(&sum, &constant(f64::NEG_INFINITY)?)?;
        let weights = any.where_cond(&sum, &constant(0.0)?)?.softmax(-1)?;
        let weights = any.where_cond(&weights, &constant(0.0)?)?;
        weights.dropout(self.dropout, &generator)?.matmul(&v)?.transpose(1, 2)
    }

    /// The output, and the gradients of queries, keys, values and the mask.
    fn results(
        &self,
        inputs: &[Tensor; 5],
        attend: impl Fn([&Tensor; 4]) -> Result<Tensor>,
    ) -> Vec<(&'static str, Vec<f64>)> {
        let [q, k, v, mask, weight] = inputs;
        let leaves = [q, k, v, mask].map(Tensor::detach);
        leaves.iter().for_each(|t| t.set_requires_grad(true).unwrap());
        let o = attend(leaves.each_ref()).unwrap();
        o.mul(&weight.to_dtype(o.dtype()).unwrap()).unwrap().sum(()).unwrap().backward().unwrap();
        let mut all = vec![("o", values(&o.contiguous().unwrap()))];
        for (name, leaf) in ["dq", "dk", "dv", "dmask"].into_iter().zip(&leaves) {
            all.extend(leaf.grad().map(|grad| (name, values(&grad))));
        }
        all
    }
}

/// Lengths and widths that every kernel gets, and masks of every kind of broadcasting.
fn cases() -> Vec<Case> {
    let case = |shape: [usize; 4], dim, past, kind, mask| Case { shape, dim, past, kind, mask, dropout: 0.0 };
    vec![
        // Padding.
        case([3, 2, 12, 12], 16, None, Kind::Bool, [3, 1, 1, 12]),
        case([3, 2, 41, 41], 8, Some(0), Kind::Bool, [3, 1, 1, 41]),
        case([3, 2, 41, 41], 8, None, Kind::Float, [3, 2, 41, 41]),
        case([2, 3, 42, 42], 4, None, Kind::Float, [1, 3, 42, 42]),
        // One mask for all.
        case([2, 2, 17, 33], 24, None, Kind::Bool, [1, 1, 17, 33]),
        case([2, 2, 63, 9], 33, None, Kind::Float, [1, 1, 63, 9]),
        case([1, 3, 30, 64], 64, None, Kind::Float, [1, 3, 1, 64]),
        case([4, 2, 5, 5], 3, None, Kind::Bool, [4, 1, 5, 5]),
        case([2, 2, 64, 64], 32, None, Kind::Bool, [2, 1, 1, 64]),
        case([2, 1, 40, 48], 28, Some(8), Kind::Float, [1, 1, 40, 48]),
        // Long sequences.
        case([2, 2, 70, 150], 64, None, Kind::Bool, [2, 1, 1, 150]),
        case([1, 2, 130, 130], 40, Some(0), Kind::Float, [1, 1, 130, 130]),
        case([2, 1, 150, 97], 20, None, Kind::Float, [2, 1, 150, 1]),
        case([1, 2, 33, 70], 200, None, Kind::Bool, [1, 2, 33, 70]),
        case([2, 2, 9, 300], 8, None, Kind::Float, [2, 2, 1, 300]),
        // Keys ahead of the queries, as with a cache.
        case([2, 2, 1, 20], 16, Some(19), Kind::Bool, [2, 1, 1, 20]),
        case([2, 2, 5, 44], 16, Some(39), Kind::Float, [1, 2, 5, 44]),
        case([1, 2, 70, 200], 40, Some(130), Kind::Bool, [1, 1, 70, 200]),
        case([1, 2, 20, 33], 3, Some(7), Kind::Float, [1, 1, 1, 1]),
        case([2, 1, 90, 30], 72, Some(4), Kind::Bool, [2, 1, 90, 1]),
        // Weights are dropped after the mask.
        Case { dropout: 0.3, ..case([2, 2, 41, 42], 8, None, Kind::Bool, [2, 1, 1, 42]) },
        Case { dropout: 0.3, ..case([2, 2, 70, 97], 16, Some(27), Kind::Float, [1, 2, 70, 97]) },
    ]
}

const KINDS: [(DType, Precision, f64); 6] = [
    (DType::F64, Precision::F32, 1e-11),
    (DType::F32, Precision::F32, 4e-6),
    (DType::F32, Precision::Tf32, 4e-3),
    (DType::F32, Precision::Bf16, 3e-2),
    (DType::F16, Precision::F32, 4e-3),
    (DType::BF16, Precision::F32, 3e-2),
];

#[test]
fn masks_agree_with_the_operations_that_attention_is_made_of_in_every_dtype_and_precision() {
    let cpu = Device::cpu();
    for (turn, case) in cases().into_iter().enumerate() {
        let exact = case.inputs(&cpu);
        for (dtype, precision, tolerance) in shortened(KINDS, turn, 2) {
            let rounded = exact.each_ref().map(|t| t.to_dtype(dtype).unwrap());
            let wide = rounded.each_ref().map(|t| t.to_dtype(DType::F64).unwrap());
            let expected = case.results(&wide, |x| case.composed(x));
            for device in devices() {
                let inputs = rounded.each_ref().map(|t| t.to_device(&device).unwrap());
                let found = case.results(&inputs, |x| with_precision(precision, || case.fused(x)));
                assert_eq!(found.len(), expected.len());
                for ((name, found), (_, expected)) in found.iter().zip(&expected) {
                    assert_eq!(found.len(), expected.len());
                    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
                    let worst = differences
                        .fold(0.0, |most: f64, d| if d.is_nan() { f64::INFINITY } else { most.max(d) });
                    let most = expected.iter().fold(1.0, |most: f64, b| most.max(b.abs()));
                    let context = format!("{name} in {dtype} {precision:?} on {device}, {case:?}");
                    assert!(worst <= tolerance * most, "{context}: off by {worst} of {most}");
                }
            }
        }
    }
}

#[test]
fn queries_that_see_no_key_have_output_zero_and_give_no_gradient() {
    for device in devices() {
        for (dtype, precision, _) in KINDS {
            // Every kernel: short and long sequences, narrow and wide heads.
            for (tokens, dim) in [(6, 16), (6, 4), (70, 40), (70, 200)] {
                let leaf = |step| {
                    let x = numbers(&[2, 2, tokens, dim], step, &device).to_dtype(dtype).unwrap();
                    x.set_requires_grad(true).unwrap();
                    x
                };
                let [q, k, v] = [leaf(0.7), leaf(1.3), leaf(0.4)];
                // The second sequence is all padding.
                let lengths = Tensor::from_slice(&[tokens as i64, 0], 2, &device).unwrap();
                let mask = lengths.sequence_mask(tokens).unwrap().reshape([2, 1, 1, tokens]).unwrap();
                let options = SdpaOptions { mask: Some(&mask), ..SdpaOptions::default() };
                let o = with_precision(precision, || {
                    let (o, _) = q.scaled_dot_product_attention_with(&k, &v, &options).unwrap();
                    o.sum(()).unwrap().backward().unwrap();
                    o
                });
                let context = format!("{tokens} tokens of {dim} numbers, {dtype} {precision:?} on {device}");
                let half = 2 * tokens * dim;
                let all =
                    [&o.contiguous().unwrap(), &q.grad().unwrap(), &k.grad().unwrap(), &v.grad().unwrap()];
                for (what, t) in ["o", "dq", "dk", "dv"].iter().zip(all) {
                    let x = values(t);
                    assert!(x[half..].iter().all(|&x| x == 0.0), "{what} of {context}");
                    assert!(x[..half].iter().any(|&x| x != 0.0), "{what} of {context}");
                    assert!(x[..half].iter().all(|x| x.is_finite()), "{what} of {context}");
                }
            }
        }
    }
}

#[test]
fn a_mask_that_is_stored_for_every_head_gives_the_bits_of_one_that_is_broadcast() {
    for device in devices() {
        for case in cases() {
            for dtype in [DType::F32, DType::BF16] {
                let inputs = case.inputs(&device).map(|t| t.to_dtype(dtype).unwrap());
                let [q, k, v, mask, _] = inputs.each_ref();
                let stored = mask.broadcast_to(case.shape).unwrap().copy().unwrap();
                let float = Case { kind: Kind::Float, ..case };
                let [a, b] = [mask, &stored].map(|mask| float.fused([q, k, v, mask]).unwrap());
                let [a, b] = [a, b].map(|t| values(&t.contiguous().unwrap()));
                assert_eq!(a, b, "{dtype} on {device}, {case:?}");
            }
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let [q, k, v] = [(3, 0.7), (5, 1.3), (5, 0.4)].map(|(n, step)| numbers(&[2, 2, n, 4], step, &device));
        for shape in [&[2, 1, 1, 5][..], &[3, 5], &[2, 3, 1], &[1]] {
            let mask = numbers(shape, 0.9, &device);
            let leaves = [q.clone(), k.clone(), v.clone(), mask];
            leaves.iter().for_each(|t| t.set_requires_grad(true).unwrap());
            let f = |t: &[Tensor]| {
                let options =
                    SdpaOptions { causal: true, past: 1, mask: Some(&t[3]), ..SdpaOptions::default() };
                Ok(t[0].scaled_dot_product_attention_with(&t[1], &t[2], &options)?.0)
            };
            gradcheck(f, &leaves, 1e-6).unwrap();
        }
    }
}

#[test]
fn a_mask_and_scores_of_the_layer_before_are_added() {
    for device in devices() {
        let x = numbers(&[2, 2, 5, 4], 0.7, &device);
        let scores = numbers(&[2, 2, 5, 5], 0.3, &device);
        let mask = numbers(&[5], 0.9, &device);
        let sum = (&scores + &mask).unwrap();
        let run = |scores: &Tensor, mask: Option<&Tensor>| {
            let options =
                SdpaOptions { scores: Some(scores), mask, returns_scores: true, ..SdpaOptions::default() };
            let (o, handed) = x.scaled_dot_product_attention_with(&x, &x, &options).unwrap();
            [values(&o.contiguous().unwrap()), values(&handed.unwrap())]
        };
        assert_eq!(run(&scores, Some(&mask)), run(&sum, None), "{device}");
        // Operands without heads have masks without heads.
        let (x, mask) = (x.select(1, 0).unwrap(), numbers(&[2, 1, 5], 0.9, &device));
        let options = SdpaOptions { mask: Some(&mask), ..SdpaOptions::default() };
        let (without, _) = x.scaled_dot_product_attention_with(&x, &x, &options).unwrap();
        let (x, mask) = (x.unsqueeze(1).unwrap(), mask.unsqueeze(1).unwrap());
        let options = SdpaOptions { mask: Some(&mask), ..SdpaOptions::default() };
        let (with, _) = x.scaled_dot_product_attention_with(&x, &x, &options).unwrap();
        assert_eq!(values(&without), values(&with), "{device}");
    }
}

#[test]
fn a_recorded_step_follows_its_mask() {
    for device in devices().chain(simulators()) {
        let x = numbers(&[3, 2, 8, 4], 0.7, &device).to_dtype(DType::F32).unwrap();
        let run = |inputs: &[Tensor]| {
            let leaf = inputs[0].detach();
            leaf.set_requires_grad(true)?;
            let mask = inputs[1].sequence_mask(8)?.reshape([3, 1, 1, 8])?;
            let options = SdpaOptions { mask: Some(&mask), causal: true, ..SdpaOptions::default() };
            let (o, _) = leaf.scaled_dot_product_attention_with(&leaf, &leaf, &options)?;
            o.square()?.sum(())?.backward()?;
            Ok(vec![o.detach().contiguous()?, leaf.grad().expect("a leaf").copy()?])
        };
        let mut step = Step::new(&device, run);
        for lengths in [[8i64, 3, 1], [2, 2, 2], [0, 8, 7]] {
            let lengths = Tensor::from_slice(&lengths, 3, &device).unwrap();
            let inputs = [x.clone(), lengths];
            let eager: Vec<Vec<f64>> = run(&inputs).unwrap().iter().map(values).collect();
            let outputs = step.call(&inputs).unwrap();
            for (o, eager) in eager.iter().enumerate() {
                assert_eq!(values(&outputs.copy(o).unwrap()), *eager, "{device}");
            }
        }
        step.finish().unwrap();
    }
}

#[test]
fn wrong_masks_are_errors_that_say_what_to_do() {
    for device in devices() {
        let x = numbers(&[2, 3, 5, 4], 0.7, &device);
        let attend = |mask: &Tensor| {
            let options = SdpaOptions { mask: Some(mask), ..SdpaOptions::default() };
            x.scaled_dot_product_attention_with(&x, &x, &options).unwrap_err()
        };
        for shape in [&[2, 3, 5, 4][..], &[2, 1, 5], &[1, 2, 1, 1, 5]] {
            let error = attend(&numbers(shape, 0.1, &device));
            assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
            assert!(error.to_string().contains("broadcast to [batch, heads, queries, keys]"), "{error}");
        }
        for dtype in [DType::F32, DType::I64] {
            let error = attend(&Tensor::zeros([5], dtype, &device).unwrap());
            assert!(matches!(error, Error::DTypeMismatch { .. }), "{error}");
        }
        let error = numbers(&[2], 0.1, &device).sequence_mask(3).unwrap_err();
        assert!(error.to_string().contains("lengths must be i64 or i32"), "{error}");
    }
}
