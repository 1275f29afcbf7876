//! Attention layers: masks, another sequence, and the key-value cache.

mod common;

use common::{assert_close, device, values};
use refrain::optim::{AdamWOptions, Schedule};
use refrain::{Activation, DType, Generator, Precision, Step, Tensor, gradcheck, no_grad, with_precision};
use refrain_nn::{
    AdamW, AttentionContext, AttentionOptions, CrossAttention, CrossAttentionOptions, EncoderDropout,
    KeyValueCache, Mode, MultiHeadAttention, NormKind, Optimizer, ParameterBuilder, Parameters, Result,
    Rotary, RotaryOptions, TransformerEncoderLayer, TransformerEncoderOptions,
};

/// Dtypes, and how far sums may be apart that are added in another order.
const KINDS: [(DType, f64); 4] =
    [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::F16, 1e-2), (DType::BF16, 6e-2)];

const ROTARY: Option<RotaryOptions> = Some(RotaryOptions { positions: 10, base: 100.0 });

fn generator(seed: u64) -> Generator {
    Generator::new(&device(), seed).unwrap()
}

fn attention(options: &AttentionOptions, dtype: DType) -> MultiHeadAttention {
    let builder = ParameterBuilder::new(&device(), dtype);
    let attention = MultiHeadAttention::new(&builder, options).unwrap();
    builder.build(&generator(1)).unwrap();
    attention
}

fn masked(mask: &Tensor) -> AttentionContext<'_> {
    AttentionContext { mask: Some(mask), ..AttentionContext::default() }
}

fn cached(cache: &mut KeyValueCache) -> AttentionContext<'_> {
    AttentionContext { cache: Some(cache), ..AttentionContext::default() }
}

/// Tokens of a batch from `from` to `to`.
fn tokens(x: &Tensor, from: usize, to: usize) -> Tensor {
    x.i((.., from..to)).unwrap()
}

fn lengths(lengths: &[i64]) -> Tensor {
    Tensor::from_slice(lengths, lengths.len(), &device()).unwrap()
}

fn encoder_options(attention: AttentionOptions) -> TransformerEncoderOptions {
    TransformerEncoderOptions {
        attention,
        ffn: 12,
        ffn_bias: true,
        channel_attention: false,
        norm_first: true,
        norm: NormKind::Layer,
        eps: 1e-5,
        activation: Activation::Gelu,
        dropout: EncoderDropout::all(0.0),
    }
}

#[test]
fn padded_sequences_give_what_they_give_alone() {
    let each = [7usize, 3, 1];
    for (dtype, bound) in KINDS {
        for (causal, qk_norm) in [(false, None), (true, None), (false, Some(2.0))] {
            let options = AttentionOptions { causal, qk_norm, ..AttentionOptions::new(8, 2) };
            let builder = ParameterBuilder::new(&device(), dtype);
            let layer = TransformerEncoderLayer::new(&builder, &encoder_options(options)).unwrap();
            builder.build(&generator(1)).unwrap();
            let x = generator(2).normal([3, 7, 8], dtype).unwrap();
            let mask = lengths(&each.map(|n| n as i64)).sequence_mask(7).unwrap();
            let mask = mask.reshape([3, 1, 1, 7]).unwrap();
            let y = layer.forward_with(&x, masked(&mask), Mode::Eval).unwrap();
            for (i, n) in each.into_iter().enumerate() {
                let alone = layer.forward(&x.i((i..i + 1, ..n)).unwrap(), Mode::Eval).unwrap();
                let found = y.i((i..i + 1, ..n)).unwrap().contiguous().unwrap();
                let context = format!("{n} tokens in {dtype}, causal {causal}, {qk_norm:?}");
                assert_close(&found, &values(&alone), bound, &context);
            }
        }
    }
}

#[test]
fn parts_of_a_text_with_a_cache_give_what_the_whole_text_gives() {
    let parts = [(0, 3), (3, 4), (4, 9), (9, 10)];
    for (dtype, bound) in KINDS {
        for (qk_norm, rotary) in [(None, None), (Some(2.0), None), (None, ROTARY), (Some(2.0), ROTARY)] {
            let options = AttentionOptions { causal: true, qk_norm, rotary, ..AttentionOptions::new(8, 2) };
            let builder = ParameterBuilder::new(&device(), dtype);
            let layers = [0, 1]
                .map(|i| TransformerEncoderLayer::new(&builder.scope(i), &encoder_options(options)).unwrap());
            builder.build(&generator(1)).unwrap();
            let mut caches = [KeyValueCache::new(12), KeyValueCache::new(12)];
            // A second text in the same memory.
            for text in 0..2 {
                let x = generator(2 + text).normal([2, 10, 8], dtype).unwrap();
                let whole = layers.iter().fold(x.clone(), |x, layer| layer.forward(&x, Mode::Eval).unwrap());
                for (from, to) in parts {
                    let mut y = tokens(&x, from, to);
                    for (layer, cache) in layers.iter().zip(&mut caches) {
                        assert_eq!(cache.len(), from);
                        y = no_grad(|| layer.forward_with(&y, cached(cache), Mode::Eval)).unwrap();
                    }
                    let expected = values(&tokens(&whole, from, to).contiguous().unwrap());
                    assert_close(&y, &expected, bound, &format!("tokens {from} to {to} in {dtype}"));
                }
                caches.iter_mut().for_each(KeyValueCache::clear);
                assert!(caches.iter().all(KeyValueCache::is_empty));
            }
        }
    }
}

#[test]
fn a_cache_goes_with_masks_and_with_scores_of_the_layer_before() {
    let options = AttentionOptions { causal: true, residual_scores: true, ..AttentionOptions::new(8, 2) };
    let attention = attention(&options, DType::F64);
    let x = generator(2).normal([2, 6, 8], DType::F64).unwrap();
    let mask = lengths(&[6, 4]).sequence_mask(6).unwrap().reshape([2, 1, 1, 6]).unwrap();
    let before = generator(3).normal([2, 2, 6, 6], DType::F64).unwrap();
    let mut scores = Some(before.clone());
    let context = AttentionContext { mask: Some(&mask), scores: Some(&mut scores), cache: None };
    let whole = attention.forward_with(&x, context, Mode::Eval).unwrap();
    let mut cache = KeyValueCache::new(6);
    for (from, to) in [(0, 4), (4, 6)] {
        let mask = mask.i((.., .., .., ..to)).unwrap();
        let mut scores = Some(before.i((.., .., from..to, ..to)).unwrap().contiguous().unwrap());
        let context =
            AttentionContext { mask: Some(&mask), scores: Some(&mut scores), cache: Some(&mut cache) };
        let y = no_grad(|| attention.forward_with(&tokens(&x, from, to), context, Mode::Eval)).unwrap();
        assert_close(&y, &values(&tokens(&whole, from, to).contiguous().unwrap()), 1e-12, "a part");
        assert_eq!(scores.unwrap().dims(), [2, 2, to - from, to]);
    }
}

#[test]
fn a_cache_that_is_used_wrongly_says_so() {
    let options = AttentionOptions { causal: true, ..AttentionOptions::new(8, 2) };
    let layer = attention(&options, DType::F32);
    let x = generator(2).normal([1, 4, 8], DType::F32).unwrap();
    let mut cache = KeyValueCache::new(5);
    let message = |r: Result<Tensor>| r.unwrap_err().to_string();
    let error = message(layer.forward_with(&x, cached(&mut cache), Mode::Eval));
    assert!(error.contains("no_grad"), "{error}");
    no_grad(|| layer.forward_with(&x, cached(&mut cache), Mode::Eval)).unwrap();
    let error = message(no_grad(|| layer.forward_with(&x, cached(&mut cache), Mode::Eval)));
    assert!(error.contains("4 tokens do not fit behind the 4 that it has; its capacity is 5"), "{error}");
    let other = generator(2).normal([2, 1, 8], DType::F32).unwrap();
    let error = message(no_grad(|| layer.forward_with(&other, cached(&mut cache), Mode::Eval)));
    assert!(error.contains("one cache for each layer"), "{error}");
    assert_eq!((cache.len(), cache.capacity()), (4, 5));
    cache.clear();
    no_grad(|| layer.forward_with(&other, cached(&mut cache), Mode::Eval)).unwrap();
    assert_eq!(cache.len(), 1);
}

#[test]
fn rotary_positions_turn_queries_and_keys_before_the_scores() {
    for device in refrain_test::devices() {
        for (dtype, bound) in KINDS {
            let options = AttentionOptions { causal: true, rotary: ROTARY, ..AttentionOptions::new(8, 2) };
            let builder = ParameterBuilder::new(&device, dtype);
            let layer = MultiHeadAttention::new(&builder, &options).unwrap();
            let random = Generator::new(&device, 1).unwrap();
            let parameters = builder.build(&random).unwrap();
            let x = random.normal([2, 6, 8], dtype).unwrap();
            let linear = |x: &Tensor, name: &str| {
                let of = |part: &str| parameters.get(&format!("{name}.{part}")).unwrap();
                x.linear(of("weight"), Some(of("bias")), Activation::None, None).unwrap()
            };
            let rotary = Rotary::new(4, 10, 100.0, dtype, &device).unwrap();
            let qkv = linear(&x, "qkv").view([2, 6, 3, 2, 4]).unwrap();
            let [q, k, v] = [0, 1, 2].map(|i| qkv.select(2, i).unwrap().transpose(1, 2).unwrap());
            let [q, k] = [q, k].map(|t| rotary.forward(&t, 0).unwrap());
            let scores = q.matmul(&k.transpose(-1, -2).unwrap()).unwrap().mul_scalar(0.5).unwrap();
            let ones = Tensor::ones([6, 6], DType::F32, &device).unwrap();
            let later = ones.triu(1).unwrap().gt_scalar(0.0).unwrap();
            let weights = scores.masked_fill(&later, f64::NEG_INFINITY).unwrap().softmax(-1).unwrap();
            let heads = weights.matmul(&v).unwrap().transpose(1, 2).unwrap().reshape([2, 6, 8]).unwrap();
            let y = layer.forward(&x, Mode::Eval).unwrap();
            assert_close(&y, &values(&linear(&heads, "o")), bound, &format!("{dtype} on {device}"));
        }
    }
}

#[test]
fn rotary_positions_without_angles_are_refused() {
    let new = |positions, base| {
        Rotary::new(4, positions, base, DType::F32, &device()).map(|_| ()).unwrap_err().to_string()
    };
    for base in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(new(8, base).contains(&format!("no base {base}; use a positive number")), "{}", new(8, base));
    }
    assert!(new(0, 100.0).contains("0 positions"), "{}", new(0, 100.0));
}

#[test]
fn only_the_distance_of_tokens_counts_with_rotary_positions() {
    let rotary = AttentionOptions { rotary: ROTARY, ..AttentionOptions::new(8, 2) };
    let layer = attention(&rotary, DType::F64);
    let x = generator(2).normal([1, 9, 8], DType::F64).unwrap();
    // The last tokens, which do not see the first three, are at the positions 3 and on.
    let (first, last) = (tokens(&x, 0, 3), tokens(&x, 3, 9));
    let seen = Tensor::arange(0.0, 9.0, 1.0, DType::F64, &device()).unwrap().ge_scalar(3.0).unwrap();
    let mask = seen.reshape([1, 1, 1, 9]).unwrap();
    let whole = layer.forward_with(&x, masked(&mask), Mode::Eval).unwrap();
    let alone = layer.forward(&last, Mode::Eval).unwrap();
    assert_close(&alone, &values(&tokens(&whole, 3, 9).contiguous().unwrap()), 1e-12, "moved by three");
    // In another order, the last token has other neighbours, which plain attention does not see.
    let turned = Tensor::concat(&[&last, &first], 1).unwrap();
    for (options, is_same) in [(rotary, false), (AttentionOptions::new(8, 2), true)] {
        let layer = attention(&options, DType::F64);
        let of =
            |x: &Tensor, token| values(&tokens(&layer.forward(x, Mode::Eval).unwrap(), token, token + 1));
        let change = of(&x, 8).iter().zip(of(&turned, 5)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert_eq!(change < 1e-12, is_same, "{change}");
    }
}

#[test]
fn attention_with_rotary_positions_trains_recorded_as_eagerly_in_mixed_precision_too() {
    for (device, precision) in
        refrain_test::devices().flat_map(|d| [(d.clone(), Precision::F32), (d, Precision::Bf16)])
    {
        let losses = |recorded: bool| {
            let builder = ParameterBuilder::new(&device, DType::F32);
            let attention = AttentionOptions { causal: true, rotary: ROTARY, ..AttentionOptions::new(8, 2) };
            let layer = TransformerEncoderLayer::new(&builder, &encoder_options(attention)).unwrap();
            let random = Generator::new(&device, 1).unwrap();
            let parameters = builder.build(&random).unwrap();
            let schedule = Schedule::Constant { lr: 0.01 };
            let optimizer = AdamW::new(&parameters, AdamWOptions::default(), schedule).unwrap();
            let x = random.normal([2, 10, 8], DType::F32).unwrap();
            let train = || -> Result<Tensor> {
                let loss = layer.forward(&x, Mode::Eval)?.to_dtype(DType::F32)?.square()?.mean(())?;
                loss.backward()?;
                optimizer.step()?;
                Ok(loss.detach())
            };
            with_precision(precision, || {
                let mut step = Step::new(&device, |_| Ok(vec![train()?]));
                let one = |_| match recorded {
                    true => step.call(&[]).unwrap().to_scalar::<f32>(0).unwrap().to_bits(),
                    false => train().unwrap().to_scalar::<f32>().unwrap().to_bits(),
                };
                let losses: Vec<u32> = (0..4).map(one).collect();
                step.finish().unwrap();
                losses
            })
        };
        let eager = losses(false);
        assert_eq!(eager, losses(true), "{precision:?} on {device}");
        assert_ne!(eager[0], eager[3]);
    }
}

#[test]
fn gradients_through_rotary_positions_agree_with_finite_differences() {
    let layer = attention(&AttentionOptions { rotary: ROTARY, ..AttentionOptions::new(4, 1) }, DType::F64);
    let x = generator(2).normal([1, 3, 4], DType::F64).unwrap();
    x.set_requires_grad(true).unwrap();
    let run = |t: &[Tensor]| {
        layer.forward(&t[0], Mode::Eval).map_err(|e| match e {
            refrain_nn::Error::Tensor { error, .. } => error,
            other => panic!("{other}"),
        })
    };
    gradcheck(run, &[x], 1e-6).unwrap();
}

#[test]
fn rotary_positions_that_do_not_fit_are_refused() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let rotary = |heads| AttentionOptions { rotary: ROTARY, ..AttentionOptions::new(6, heads) };
    let refused = MultiHeadAttention::new(&builder.scope("odd"), &rotary(2)).err().unwrap().to_string();
    assert!(refused.contains("even"), "{refused}");
    let channels = TransformerEncoderOptions { channel_attention: true, ..encoder_options(rotary(1)) };
    let refused = TransformerEncoderLayer::new(&builder, &channels).err().unwrap().to_string();
    assert!(refused.contains("channels have no positions"), "{refused}");
    // What does not fit leaves the cache as it was.
    let layer = attention(&AttentionOptions { causal: true, ..rotary(1) }, DType::F32);
    let x = generator(2).normal([1, 8, 6], DType::F32).unwrap();
    let mut cache = KeyValueCache::new(20);
    no_grad(|| layer.forward_with(&x, cached(&mut cache), Mode::Eval)).unwrap();
    let refused = no_grad(|| layer.forward_with(&x, cached(&mut cache), Mode::Eval)).unwrap_err().to_string();
    assert!(refused.contains("8 time steps from position 8 go beyond the 10 positions"), "{refused}");
    assert_eq!(cache.len(), 8);
}

fn cross(options: &CrossAttentionOptions, dtype: DType) -> (CrossAttention, Parameters) {
    let builder = ParameterBuilder::new(&device(), dtype);
    let attention = CrossAttention::new(&builder, options).unwrap();
    (attention, builder.build(&generator(1)).unwrap())
}

/// The results of a cross-attention by loops on the host.
fn by_hand(parameters: &Parameters, x: &Tensor, memory: &Tensor, heads: usize, seen: &[usize]) -> Vec<f64> {
    let (batch, n, d) = (x.dims()[0], x.dims()[1], x.dims()[2]);
    let (m, features) = (memory.dims()[1], memory.dims()[2]);
    let of = |name: &str| values(&parameters.get(name).unwrap().detach());
    let affine = |layer: &str, x: &[f64]| -> Vec<f64> {
        let (w, b) = (of(&format!("{layer}.weight")), of(&format!("{layer}.bias")));
        let row = |i: usize| w[i * x.len()..][..x.len()].iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        (0..b.len()).map(|i| b[i] + row(i)).collect()
    };
    let (x, memory, dim) = (values(x), values(memory), d / heads);
    let mut result = Vec::new();
    for b in 0..batch {
        let kv: Vec<Vec<f64>> =
            (0..m).map(|j| affine("kv", &memory[(b * m + j) * features..][..features])).collect();
        for i in 0..n {
            let q = affine("q", &x[(b * n + i) * d..][..d]);
            let mut merged = vec![0.0; d];
            for h in 0..heads {
                let score = |j: usize| {
                    (0..dim).map(|c| q[h * dim + c] * kv[j][h * dim + c]).sum::<f64>() / (dim as f64).sqrt()
                };
                let weights: Vec<f64> = (0..seen[b]).map(|j| score(j).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (j, weight) in weights.iter().enumerate() {
                    (0..dim).for_each(|c| merged[h * dim + c] += weight / total * kv[j][d + h * dim + c]);
                }
            }
            result.extend(affine("o", &merged));
        }
    }
    result
}

#[test]
fn cross_attention_is_its_formula_in_every_dtype() {
    let options = CrossAttentionOptions { memory: 5, ..CrossAttentionOptions::new(8, 2) };
    for (dtype, bound) in KINDS {
        let (attention, parameters) = cross(&options, dtype);
        let x = generator(2).normal([2, 3, 8], dtype).unwrap();
        let memory = generator(3).normal([2, 6, 5], dtype).unwrap();
        let y = attention.forward(&x, &memory, None, Mode::Eval).unwrap();
        assert_close(&y, &by_hand(&parameters, &x, &memory, 2, &[6, 6]), bound, &format!("{dtype}"));
        let mask = lengths(&[6, 2]).sequence_mask(6).unwrap().reshape([2, 1, 1, 6]).unwrap();
        let y = attention.forward(&x, &memory, Some(&mask), Mode::Eval).unwrap();
        assert_close(&y, &by_hand(&parameters, &x, &memory, 2, &[6, 2]), bound, &format!("masked, {dtype}"));
    }
    // f32 parameters under mixed precision.
    let (attention, parameters) = cross(&options, DType::F32);
    let x = generator(2).normal([2, 3, 8], DType::F32).unwrap();
    let memory = generator(3).normal([2, 6, 5], DType::F32).unwrap();
    let y = with_precision(Precision::Bf16, || attention.forward(&x, &memory, None, Mode::Eval)).unwrap();
    assert_eq!(y.dtype(), DType::BF16);
    assert_close(&y, &by_hand(&parameters, &x, &memory, 2, &[6, 6]), 6e-2, "mixed precision");
}

#[test]
fn gradients_of_cross_attention_agree_with_finite_differences() {
    let options = CrossAttentionOptions { memory: 3, dropout: 0.2, ..CrossAttentionOptions::new(4, 2) };
    let (attention, parameters) = cross(&options, DType::F64);
    let leaf = |seed, shape: [usize; 3]| {
        let x = generator(seed).normal(shape, DType::F64).unwrap();
        x.set_requires_grad(true).unwrap();
        x
    };
    let mask = lengths(&[4, 2]).sequence_mask(4).unwrap().reshape([2, 1, 1, 4]).unwrap();
    let masks = generator(7);
    let weights = ["q.weight", "kv.weight", "kv.bias"].map(|name| parameters.get(name).unwrap().clone());
    let leaves: Vec<Tensor> = [leaf(2, [2, 3, 4]), leaf(3, [2, 4, 3])].into_iter().chain(weights).collect();
    let forward = |t: &[Tensor]| {
        masks.set_state(2, 0)?;
        let y = attention.forward(&t[0], &t[1], Some(&mask), Mode::Train(&masks));
        Ok(y.unwrap_or_else(|e| panic!("{e}")))
    };
    gradcheck(forward, &leaves, 1e-6).unwrap();
}

/// A decoder layer on padded sequences, trained for some steps. Returns losses and weights.
fn train(recorded: bool) -> (Vec<f64>, Vec<f64>) {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let own = AttentionOptions { causal: true, dropout: 0.1, ..AttentionOptions::new(8, 2) };
    let layer = TransformerEncoderLayer::new(&builder.scope("own"), &encoder_options(own)).unwrap();
    let other = CrossAttentionOptions { dropout: 0.1, ..CrossAttentionOptions::new(8, 2) };
    let other = CrossAttention::new(&builder.scope("other"), &other).unwrap();
    let parameters = builder.build(&generator(1)).unwrap();
    let schedule = Schedule::Constant { lr: 1e-2 };
    let optimizer = AdamW::new(&parameters, AdamWOptions::default(), schedule).unwrap();
    let masks = generator(9);
    let body = |t: &[Tensor]| -> Result<Vec<Tensor>> {
        let mask = t[2].sequence_mask(5)?.reshape([3, 1, 1, 5])?;
        let x = layer.forward_with(&t[0], masked(&mask), Mode::Train(&masks))?;
        let y = (&x + &other.forward(&x, &t[1], Some(&mask), Mode::Train(&masks))?)?;
        let loss = y.square()?.mean(())?;
        loss.backward()?;
        optimizer.step()?;
        Ok(vec![loss.detach()])
    };
    let mut step = Step::new(&device(), |t: &[Tensor]| Ok(body(t)?));
    let mut losses = Vec::new();
    for (i, each) in [[5, 3, 1], [2, 5, 4], [0, 1, 5], [5, 5, 5]].into_iter().enumerate() {
        let x = generator(20 + i as u64).normal([3, 5, 8], DType::F32).unwrap();
        let memory = generator(30 + i as u64).normal([3, 5, 8], DType::F32).unwrap();
        let inputs = [x, memory, lengths(&each)];
        losses.push(match recorded {
            true => f64::from(step.call(&inputs).unwrap().to_scalar::<f32>(0).unwrap()),
            false => values(&body(&inputs).unwrap()[0])[0],
        });
    }
    step.finish().unwrap();
    (losses, values(&parameters.values().detach()))
}

#[test]
fn a_recorded_step_with_masks_and_another_sequence_has_the_bits_of_eager_code() {
    let (losses, weights) = train(false);
    assert!(losses.iter().chain(&weights).all(|x| x.is_finite()));
    assert_eq!((losses, weights), train(true));
}

#[test]
fn wrong_arguments_are_errors_that_say_what_to_do() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let message = |options: &CrossAttentionOptions| {
        CrossAttention::new(&builder, options).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(message(&CrossAttentionOptions::new(8, 3)).contains("must divide d_model"));
    assert!(
        message(&CrossAttentionOptions { dropout: 1.0, ..CrossAttentionOptions::new(8, 2) })
            .contains("p is 1")
    );
    let (attention, _) = cross(&CrossAttentionOptions::new(8, 2), DType::F32);
    let x = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device()).unwrap();
    let message = |x: &Tensor, memory: &Tensor, mask: Option<&Tensor>| {
        attention.forward(x, memory, mask, Mode::Eval).unwrap_err().to_string()
    };
    assert!(message(&x(&[3, 8]), &x(&[2, 3, 8]), None).contains("[batch, n, d_model]"));
    assert!(message(&x(&[2, 3, 8]), &x(&[1, 3, 8]), None).contains("2 sequences attend to 1"));
    assert!(attention.forward(&x(&[2, 3, 8]), &x(&[2, 3, 7]), None, Mode::Eval).is_err());
    let mask = Tensor::ones([2, 4], DType::Bool, &device()).unwrap();
    assert!(message(&x(&[2, 3, 8]), &x(&[2, 3, 8]), Some(&mask)).contains("broadcast"));
}
