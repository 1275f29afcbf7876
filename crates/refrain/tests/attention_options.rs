//! Attention with dropout of its weights, and with scores that are handed from layer to layer.

mod common;

use common::{FLOATS, devices, gradcheck, shortened, simulators, values};
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
struct Case {
    /// Batch, heads, queries and keys.
    shape: [usize; 4],
    dim: usize,
    causal: bool,
    scale: f64,
    dropout: f64,
    adds: bool,
    returns: bool,
    /// The first row of the batch, which has two more rows than those before and those of the case.
    first: usize,
}

/// Where the generator of a case stands.
const POSITION: (u64, u64) = (5, (1 << 32) - 7);

impl Case {
    fn generator(&self, device: &Device) -> Result<Generator> {
        let end = self.first + self.shape[0];
        Generator::from_state(device, POSITION.0, POSITION.1)?.for_batch_rows(self.first..end, end + 2)
    }

    /// Queries, keys and values as projections leave them, scores, and the weights of the results in the loss.
    fn inputs(&self, device: &Device) -> [Tensor; 6] {
        let [batch, heads, queries, keys] = self.shape;
        let projected = |tokens, step| numbers(&[batch, tokens, heads, self.dim], step, device);
        let scores = |step| numbers(&self.shape, step, device);
        [
            projected(queries, 0.7),
            projected(keys, 1.3),
            projected(keys, 0.4),
            scores(0.31),
            projected(queries, 0.9),
            scores(0.77),
        ]
    }

    /// Output and scores by the operation.
    fn fused(&self, [q, k, v, scores]: [&Tensor; 4]) -> Result<(Tensor, Option<Tensor>)> {
        let generator = self.generator(q.device())?;
        let options = SdpaOptions {
            scale: Some(self.scale),
            causal: self.causal,
            dropout: Some((self.dropout, &generator)),
            scores: self.adds.then_some(scores),
            returns_scores: self.returns,
            ..SdpaOptions::default()
        };
        let [q, k, v] = [q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?];
        let (o, scores) = q.scaled_dot_product_attention_with(&k, &v, &options)?;
        // Whatever else draws from the generator, the backward pass has the mask of the forward pass.
        generator.set_state(99, 1)?;
        Ok((o.transpose(1, 2)?, scores))
    }

    /// The same, composed of single operations.
    fn composed(&self, [q, k, v, scores]: [&Tensor; 4]) -> Result<(Tensor, Option<Tensor>)> {
        let generator = self.generator(q.device())?;
        let [_, _, queries, keys] = self.shape;
        let [q, k, v] = [q.transpose(1, 2)?, k.transpose(1, 2)?, v.transpose(1, 2)?];
        let mut sum = q.matmul(&k.transpose(2, 3)?)?.mul_scalar(self.scale)?;
        if self.adds {
            sum = sum.add(scores)?;
        }
        let seen: Vec<bool> = (0..queries * keys).map(|i| !self.causal || i % keys <= i / keys).collect();
        let seen = Tensor::from_slice(&seen, [queries, keys], q.device())?;
        let constant = |x: f64| Tensor::full((), x, DType::F64, q.device());
        let weights = seen.where_cond(&sum, &constant(f64::NEG_INFINITY)?)?.softmax(-1)?;
        let o = weights.dropout(self.dropout, &generator)?.matmul(&v)?.transpose(1, 2)?;
        Ok((o, self.returns.then(|| seen.where_cond(&sum, &constant(0.0)?)).transpose()?))
    }

    /// Output, scores, and the gradients of queries, keys, values and scores.
    fn results(
        &self,
        inputs: &[Tensor; 6],
        attend: impl Fn([&Tensor; 4]) -> Result<(Tensor, Option<Tensor>)>,
    ) -> Vec<(&'static str, Vec<f64>)> {
        let [q, k, v, scores, of_o, of_scores] = inputs;
        let leaves = [q, k, v, scores].map(Tensor::detach);
        leaves.iter().for_each(|t| t.set_requires_grad(true).unwrap());
        let (o, handed) = attend(leaves.each_ref()).unwrap();
        let weighted = |x: &Tensor, weight: &Tensor| {
            x.mul(&weight.to_dtype(x.dtype()).unwrap()).unwrap().sum(()).unwrap()
        };
        let mut loss = weighted(&o, of_o);
        if let Some(handed) = &handed {
            loss = loss.add(&weighted(handed, of_scores)).unwrap();
        }
        loss.backward().unwrap();
        let mut all = vec![("o", o)];
        all.extend(handed.map(|t| ("scores", t)));
        for (name, leaf) in ["dq", "dk", "dv", "dscores"].into_iter().zip(&leaves) {
            all.extend(leaf.grad().map(|grad| (name, grad)));
        }
        all.iter().map(|(name, t)| (*name, values(&t.contiguous().unwrap()))).collect()
    }
}

/// Lengths, widths and strides that do and do not fill what kernels divide attention into.
fn cases() -> Vec<Case> {
    let plain = |shape: [usize; 4], dim| Case {
        shape,
        dim,
        causal: false,
        scale: 1.0 / (dim as f64).sqrt(),
        dropout: 0.3,
        adds: true,
        returns: true,
        first: 0,
    };
    let causal = |shape, dim| Case { causal: true, ..plain(shape, dim) };
    vec![
        plain([2, 4, 42, 42], 4),
        Case { dropout: 0.0, ..plain([2, 4, 42, 42], 4) },
        Case { dropout: 0.0, ..plain([2, 4, 42, 42], 16) },
        Case { dropout: 0.0, adds: false, ..plain([3, 2, 12, 12], 16) },
        Case { dropout: 0.0, returns: false, ..plain([3, 2, 41, 41], 8) },
        Case { adds: false, returns: false, ..plain([2, 3, 41, 41], 8) },
        Case { adds: false, returns: false, ..causal([2, 3, 41, 41], 4) },
        Case { scale: -0.6, ..causal([2, 3, 41, 41], 8) },
        Case { scale: 0.0, ..plain([1, 5, 64, 64], 16) },
        // Scores whose rows, or those of all heads of a block, do and do not begin where long runs can be moved.
        plain([1, 5, 43, 43], 4),
        Case { dropout: 0.0, ..causal([3, 3, 42, 42], 4) },
        Case { dropout: 0.0, ..plain([3, 3, 16, 48], 8) },
        Case { dropout: 0.0, returns: false, ..plain([1, 7, 37, 32], 16) },
        plain([5, 7, 5, 5], 16),
        plain([2, 3, 1, 1], 3),
        plain([3, 2, 6, 1], 8),
        causal([2, 2, 7, 50], 12),
        plain([1, 2, 63, 9], 33),
        plain([1, 3, 30, 64], 64),
        plain([1, 3, 70, 17], 33),
        // One block for all gradients of a head.
        plain([2, 3, 63, 63], 64),
        causal([1, 2, 64, 60], 48),
        Case { adds: false, returns: false, ..causal([2, 1, 40, 64], 64) },
        plain([2, 3, 64, 64], 32),
        Case { adds: false, returns: false, ..plain([2, 1, 64, 64], 32) },
        causal([1, 2, 42, 46], 30),
        Case { dropout: 0.0, adds: false, ..plain([1, 2, 64, 40], 28) },
        // Short tiles, which leave less of the last one empty.
        causal([1, 2, 83, 90], 20),
        // Many queries pass by one tile of keys.
        plain([1, 2, 130, 40], 20),
        causal([1, 2, 130, 46], 30),
        plain([1, 2, 9, 300], 8),
        causal([1, 1, 130, 130], 20),
        Case { dropout: 0.9, ..causal([1, 2, 150, 97], 40) },
        plain([1, 2, 33, 70], 100),
        // Parts of batches, whose first weight is in the middle of a block of random words.
        Case { first: 1, adds: false, returns: false, ..plain([2, 1, 41, 41], 8) },
        Case { first: 1, adds: false, returns: false, ..plain([2, 1, 43, 43], 4) },
        Case { first: 2, ..causal([2, 3, 7, 5], 16) },
        Case { first: 3, ..plain([2, 1, 1, 1], 3) },
        Case { first: 1, ..plain([1, 2, 63, 9], 33) },
        Case { first: 1, ..plain([1, 1, 31, 63], 64) },
        Case { first: 3, adds: false, returns: false, ..plain([1, 1, 63, 61], 64) },
        Case { first: 3, adds: false, returns: false, ..plain([1, 1, 47, 37], 25) },
        Case { first: 1, ..causal([1, 1, 129, 131], 20) },
        Case { first: 2, ..plain([1, 1, 33, 71], 100) },
    ]
}

#[test]
fn all_options_agree_with_the_operations_that_they_are_made_of_in_every_dtype_and_precision() {
    let kinds = [
        (DType::F64, Precision::F32, 1e-11),
        (DType::F32, Precision::F32, 4e-6),
        (DType::F32, Precision::Tf32, 4e-3),
        (DType::F32, Precision::Bf16, 3e-2),
        (DType::F16, Precision::F32, 4e-3),
        (DType::BF16, Precision::F32, 3e-2),
    ];
    let cpu = Device::cpu();
    for (turn, case) in cases().into_iter().enumerate() {
        let exact = case.inputs(&cpu);
        for (dtype, precision, tolerance) in shortened(kinds, turn, 3) {
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
fn gradients_with_all_options_agree_with_finite_differences() {
    let case = |shape, dim, causal| Case {
        shape,
        dim,
        causal,
        scale: 0.7,
        dropout: 0.25,
        adds: true,
        returns: true,
        first: 0,
    };
    for device in devices() {
        for case in [case([2, 2, 5, 6], 3, false), case([1, 2, 4, 4], 4, true)] {
            let [q, k, v, scores, of_o, of_scores] = case.inputs(&device);
            let leaves = [q, k, v, scores];
            leaves.iter().for_each(|t| t.set_requires_grad(true).unwrap());
            let loss = |t: &[Tensor]| {
                let (o, scores) = case.fused([&t[0], &t[1], &t[2], &t[3]])?;
                let handed = scores
                    .map_or_else(|| Tensor::zeros((), DType::F64, &device), |t| t.mul(&of_scores)?.sum(()))?;
                // The scores take part twice: in the loss, and through the weights.
                o.mul(&of_o)?.sum(())?.add(&handed)
            };
            gradcheck(loss, &leaves, 1e-6).unwrap();
        }
    }
}

#[test]
fn scores_alone_have_a_gradient_too() {
    for device in devices() {
        let case = Case {
            shape: [1, 2, 3, 4],
            dim: 5,
            causal: true,
            scale: 0.5,
            dropout: 0.5,
            adds: true,
            returns: true,
            first: 0,
        };
        let [q, k, v, scores, _, weight] = case.inputs(&device);
        let leaves = [&q, &k, &v, &scores];
        leaves.iter().for_each(|t| t.set_requires_grad(true).unwrap());
        let (_, handed) = case.fused(leaves).unwrap();
        handed.unwrap().mul(&weight).unwrap().sum(()).unwrap().backward().unwrap();
        let expected: Vec<f64> = values(&weight)
            .iter()
            .enumerate()
            .map(|(i, w)| if i % 4 <= i / 4 % 3 { *w } else { 0.0 })
            .collect();
        assert_eq!(values(&scores.grad().unwrap()), expected, "{device}");
        assert!(values(&v.grad().unwrap()).iter().all(|&x| x == 0.0), "{device}");
        assert!(values(&q.grad().unwrap()).iter().any(|&x| x != 0.0), "{device}");
    }
}

#[test]
fn the_mask_is_that_of_dropout_of_the_weights_and_has_its_probability() {
    const P: f64 = 0.3;
    for device in devices() {
        for (dtype, precision) in [
            (DType::F64, Precision::F32),
            (DType::F32, Precision::F32),
            (DType::F32, Precision::Tf32),
            (DType::F32, Precision::Bf16),
            (DType::F16, Precision::F32),
        ] {
            // All scores are 0 and the values the identity, so the output is the weights themselves.
            for (batch, heads, queries, keys) in
                [(3, 5, 37, 16), (40, 3, 20, 41), (2, 3, 64, 64), (2, 1, 300, 70), (1, 2, 33, 321)]
            {
                let zeros = |tokens| Tensor::zeros([batch, heads, tokens, keys], dtype, &device).unwrap();
                let eye = Tensor::eye(keys, dtype, &device)
                    .unwrap()
                    .broadcast_to([batch, heads, keys, keys])
                    .unwrap();
                let generator = || Generator::from_state(&device, POSITION.0, POSITION.1).unwrap();
                let drawn = generator();
                let options = SdpaOptions { dropout: Some((P, &drawn)), ..SdpaOptions::default() };
                let attend =
                    || zeros(queries).scaled_dot_product_attention_with(&zeros(keys), &eye, &options);
                let (o, _) = with_precision(precision, attend).unwrap();
                let ones = Tensor::ones([batch, heads, queries, keys], DType::F32, &device).unwrap();
                let other = generator();
                let mask = values(&ones.dropout(P, &other).unwrap());
                let context = format!("{queries} x {keys} in {dtype} {precision:?} on {device}");
                assert_eq!(drawn.state().unwrap(), other.state().unwrap(), "{context}");
                let weights = values(&o.contiguous().unwrap());
                for (i, (weight, mask)) in weights.iter().zip(&mask).enumerate() {
                    assert_eq!(*weight != 0.0, *mask != 0.0, "weight {i} of {context}");
                    let expected = if *mask == 0.0 { 0.0 } else { 1.0 / (1.0 - P) / keys as f64 };
                    assert!(
                        (weight - expected).abs() < 0.01 * expected + 1e-9,
                        "weight {i} of {context}: {weight}"
                    );
                }
                let (n, kept) = (weights.len() as f64, weights.iter().filter(|w| **w != 0.0).count() as f64);
                assert!(
                    (kept - n * (1.0 - P)).abs() < 5.0 * (n * P * (1.0 - P)).sqrt(),
                    "{kept} of {n} in {context}"
                );
            }
        }
    }
}

#[test]
fn packed_operands_give_what_separate_ones_give() {
    for device in devices() {
        for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 2e-6), (DType::BF16, 3e-2)] {
            for ([batch, tokens, heads, dim], causal) in
                [([2, 42, 4, 4], false), ([3, 5, 3, 16], true), ([1, 70, 2, 5], true)]
            {
                let leaf = numbers(&[batch, tokens, 3, heads, dim], 0.7, &device).to_dtype(dtype).unwrap();
                let scores = numbers(&[batch, heads, tokens, tokens], 0.31, &device).to_dtype(dtype).unwrap();
                let run = |packed: bool| {
                    let [leaf, scores] = [&leaf, &scores].map(|t| t.copy().unwrap());
                    [&leaf, &scores].iter().for_each(|t| t.set_requires_grad(true).unwrap());
                    let generator = Generator::new(&device, 3).unwrap();
                    let options = SdpaOptions {
                        causal,
                        dropout: Some((0.2, &generator)),
                        scores: Some(&scores),
                        returns_scores: true,
                        ..SdpaOptions::default()
                    };
                    let (o, handed) = if packed {
                        leaf.scaled_dot_product_attention_qkvpacked_with(&options).unwrap()
                    } else {
                        let part = |i| leaf.select(2, i).unwrap().transpose(1, 2).unwrap();
                        let (o, handed) =
                            part(0).scaled_dot_product_attention_with(&part(1), &part(2), &options).unwrap();
                        (o.transpose(1, 2).unwrap(), handed)
                    };
                    let handed = handed.unwrap();
                    let loss = o.square().unwrap().sum(()).unwrap();
                    loss.add(&handed.square().unwrap().sum(()).unwrap()).unwrap().backward().unwrap();
                    [o, handed, leaf.grad().unwrap(), scores.grad().unwrap()]
                        .map(|t| values(&t.contiguous().unwrap()))
                };
                for (a, b) in run(true).iter().zip(run(false)) {
                    let most = b.iter().fold(1.0, |most: f64, b| most.max(b.abs()));
                    assert!(
                        a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= tolerance * most),
                        "{tokens} tokens in {dtype} on {device}"
                    );
                }
            }
        }
    }
}

/// Two layers; the second adds the scores of the first. Returns the loss and the gradients.
fn two_layers(x: &Tensor, generator: &Generator, causal: bool) -> Result<Vec<Tensor>> {
    let leaf = x.copy()?;
    leaf.set_requires_grad(true)?;
    let options = SdpaOptions {
        causal,
        dropout: Some((0.3, generator)),
        returns_scores: true,
        ..SdpaOptions::default()
    };
    let (h, scores) = leaf.scaled_dot_product_attention_qkvpacked_with(&options)?;
    let h = h.unsqueeze(2)?.broadcast_to(leaf.shape().dims())?.add(&leaf)?;
    let options = SdpaOptions { scores: scores.as_ref(), returns_scores: false, ..options };
    let (h, _) = h.scaled_dot_product_attention_qkvpacked_with(&options)?;
    let loss = h.square()?.sum(())?;
    loss.backward()?;
    let grad = leaf.grad().map(|g| g.copy()).transpose()?;
    leaf.set_requires_grad(false)?;
    Ok([Some(loss.detach()), grad].into_iter().flatten().collect())
}

/// The same scores where no vector of 16 bytes begins, with rows of odd length, and with other strides. NaN lies beside them.
fn elsewhere(scores: &Tensor) -> [(&'static str, Tensor); 5] {
    let [batch, heads, queries, keys] = *scores.dims() else { unreachable!() };
    let beside = |shape: &[usize]| Tensor::full(shape, f64::NAN, scores.dtype(), scores.device()).unwrap();
    let odd = beside(&[1 + scores.numel()]).narrow(0, 1, scores.numel()).unwrap();
    let views = [
        ("at an odd offset", odd.view(scores.shape()).unwrap()),
        ("in longer rows", beside(&[batch, heads, queries, keys + 1]).narrow(3, 1, keys).unwrap()),
        ("beside other scores", beside(&[batch, heads, queries, keys, 2]).select(4, 1).unwrap()),
        ("with keys first", beside(&[batch, heads, keys, queries]).transpose(2, 3).unwrap()),
        ("with heads last", beside(&[batch, queries, keys, heads]).permute(&[0, 3, 1, 2]).unwrap()),
    ];
    views.each_ref().map(|(what, view)| {
        view.copy_from(scores).unwrap();
        (*what, view.clone())
    })
}

#[test]
fn scores_and_their_gradients_may_lie_anywhere() {
    for device in devices() {
        for (dtype, shape, dim, causal) in FLOATS.into_iter().flat_map(|dtype| {
            [([2, 4, 42, 42], 4, false), ([1, 3, 40, 64], 16, true), ([2, 2, 33, 31], 8, false)]
                .map(|(shape, dim, causal)| (dtype, shape, dim, causal))
        }) {
            let case =
                Case { shape, dim, causal, scale: 0.5, dropout: 0.3, adds: true, returns: true, first: 0 };
            let inputs = case.inputs(&device).map(|t| t.to_dtype(dtype).unwrap());
            let [q, k, v, scores, of_o, of_scores] = &inputs;
            // Results and gradients, with the scores, their gradient and the cotangent of those returned in given places.
            let run = |scores: &Tensor, gradient: &Tensor, of_scores: &Tensor| {
                let leaves = [q, k, v, scores].map(Tensor::detach);
                leaves.iter().for_each(|t| t.set_requires_grad(true).unwrap());
                gradient.fill(0.0).unwrap();
                leaves[3].set_grad(gradient).unwrap();
                let (o, handed) = case.fused(leaves.each_ref()).unwrap();
                let handed = handed.unwrap();
                // The cotangent of what is transposed has other strides.
                let through =
                    handed.transpose(2, 3).unwrap().mul(&of_scores.transpose(2, 3).unwrap()).unwrap();
                let loss = o.mul(of_o).unwrap().sum(()).unwrap().add(&through.sum(()).unwrap()).unwrap();
                loss.backward().unwrap();
                let mut all = vec![values(&o.contiguous().unwrap()), values(&handed)];
                all.extend(leaves.iter().map(|leaf| values(&leaf.grad().unwrap().contiguous().unwrap())));
                all
            };
            let expected = run(scores, &scores.zeros_like().unwrap(), of_scores);
            assert!(expected.iter().flatten().all(|v| v.is_finite()));
            let gradients = elsewhere(scores);
            let cotangents = elsewhere(of_scores);
            for (((what, scores), (_, gradient)), (_, of_scores)) in
                elsewhere(scores).iter().zip(&gradients).zip(&cotangents)
            {
                let found = run(scores, gradient, of_scores);
                assert_eq!(found, expected, "{case:?} in {dtype}, {what}");
            }
        }
    }
}

#[test]
fn a_recorded_step_draws_the_masks_of_eager_code_bit_for_bit() {
    for device in devices().chain(simulators()) {
        for (dtype, tokens, dim, causal) in [
            (DType::F32, 42, 4, false),
            (DType::F32, 41, 8, true),
            (DType::BF16, 42, 4, false),
            (DType::F64, 70, 5, true),
        ] {
            let x = numbers(&[2, tokens, 3, 2, dim], 0.7, &device).to_dtype(dtype).unwrap();
            let [eager, recorded] = [(); 2].map(|()| Generator::new(&device, 3).unwrap());
            let mut step = Step::new(&device, |x: &[Tensor]| Ok(two_layers(&x[0], &recorded, causal)?));
            for call in 0..4 {
                let expected = two_layers(&x, &eager, causal).unwrap();
                let outputs = step.call(std::slice::from_ref(&x)).unwrap();
                for (o, expected) in expected.iter().enumerate() {
                    let found = outputs.copy(o).unwrap();
                    assert_eq!(
                        values(&found),
                        values(expected),
                        "result {o} of call {call}, {dtype} on {device}"
                    );
                }
            }
            assert_eq!(recorded.state().unwrap(), eager.state().unwrap(), "{device}");
            step.finish().unwrap();
        }
    }
}

#[test]
fn wrong_options_are_errors_that_say_what_to_do() {
    for device in devices() {
        let x = numbers(&[2, 3, 5, 4], 0.7, &device);
        let generator = Generator::new(&device, 0).unwrap();
        for p in [1.0, -0.1, f64::NAN] {
            let options = SdpaOptions { dropout: Some((p, &generator)), ..SdpaOptions::default() };
            let error = x.scaled_dot_product_attention_with(&x, &x, &options).unwrap_err().to_string();
            assert!(error.contains(&p.to_string()) && error.contains("less than 1"), "{error}");
        }
        let wrong = numbers(&[2, 3, 5, 6], 0.1, &device);
        let options = SdpaOptions { scores: Some(&wrong), ..SdpaOptions::default() };
        let error = x.scaled_dot_product_attention_with(&x, &x, &options).unwrap_err();
        assert!(matches!(&error, Error::ShapeMismatch { .. }), "{error}");
        let other = numbers(&[2, 3, 5, 5], 0.1, &device).to_dtype(DType::F32).unwrap();
        let options = SdpaOptions { scores: Some(&other), ..SdpaOptions::default() };
        let error = x.scaled_dot_product_attention_with(&x, &x, &options).unwrap_err();
        assert!(matches!(&error, Error::DTypeMismatch { .. }), "{error}");
        let none = numbers(&[2, 3, 5, 0], 0.1, &device);
        let options = SdpaOptions { returns_scores: true, ..SdpaOptions::default() };
        let error = none.scaled_dot_product_attention_with(&none, &none, &options).unwrap_err();
        assert!(matches!(&error, Error::InvalidArgument { .. }), "{error}");
        assert_eq!(generator.state().unwrap(), (0, 0));
    }
}
