//! Layers compared with PyTorch, and their own guarantees.

mod common;

use std::collections::BTreeSet;

use common::{Case, Reference, assert_close, assert_within, device, gradcheck, sanitized, shortened, values};
use refrain::{
    Activation, Communicator, Conv2dOptions, DType, Device, Generator, Interpolation, PadMode, Tensor,
    no_grad,
};
use refrain_nn::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AttentionContext, AttentionOptions, BatchNorm, Conv2d, Dropout,
    EncoderDropout, GroupNorm, Init, Linear, Mode, MultiHeadAttention, NormKind, ParameterBuilder,
    Parameters, Result, TransformerEncoderLayer, TransformerEncoderOptions, Upsample,
};

fn reference() -> Reference {
    Reference::new(include_bytes!("reference/layers.safetensors"))
}

fn generator(seed: u64) -> Generator {
    Generator::new(&device(), seed).unwrap()
}

fn options(case: &Case<'_>) -> TransformerEncoderOptions {
    TransformerEncoderOptions {
        attention: AttentionOptions::new(case.count("d_model"), case.count("heads")),
        ffn: case.count("ffn"),
        ffn_bias: true,
        channel_attention: false,
        norm_first: case.flag("norm_first"),
        norm: NormKind::Layer,
        eps: case.number("eps"),
        activation: match case.attrs["activation"].as_str().unwrap() {
            "relu" => Activation::Relu,
            "gelu" => Activation::Gelu,
            "gelu_tanh" => Activation::GeluTanh,
            other => panic!("activation {other}"),
        },
        dropout: EncoderDropout::default(),
    }
}

/// Loads the case's parameters, runs forward and backward, compares results and all gradients.
/// The part of a parameter that is a separate parameter in PyTorch's reference: the projections to queries, keys and
/// values are rows of one parameter here.
fn part(name: &str) -> (String, Option<usize>) {
    const APART: [&str; 3] = ["attn.q.", "attn.k.", "attn.v."];
    match APART.iter().position(|p| name.contains(p)) {
        None => (name.to_string(), None),
        Some(i) => (name.replace(APART[i], "attn.qkv."), Some(i)),
    }
}

fn cut(t: &Tensor, part: Option<usize>) -> Tensor {
    part.map_or_else(|| t.clone(), |i| t.chunk(3, 0).unwrap()[i].clone())
}

fn check(
    case: &Case<'_>,
    dtype: DType,
    bound: f64,
    parameters: &Parameters,
    forward: impl Fn(&Tensor) -> Result<Tensor>,
) {
    let stored = case.keys("param/");
    let names: BTreeSet<String> = parameters.names().map(String::from).collect();
    assert_eq!(names, stored.iter().map(|name| part(name).0).collect(), "{}", case.name);
    for name in &stored {
        let (whole, part) = part(name);
        let t = cut(&parameters.get(&whole).unwrap().detach(), part);
        no_grad(|| t.copy_from(&case.tensor(&format!("param/{name}"), dtype))).unwrap();
    }
    let x = case.tensor("in0", dtype);
    x.set_requires_grad(true).unwrap();
    let y = forward(&x).unwrap();
    y.backward_with(&case.tensor("grad_out0", dtype)).unwrap();
    let what = |of: &str| format!("{}, {dtype}, {of}", case.name);
    assert_eq!(y.dims(), case.shape("out0"));
    assert_close(&y, &case.values("out0"), bound, &what("result"));
    assert_close(&x.grad().unwrap(), &case.values("grad_in0"), bound, &what("gradient of the input"));
    for name in &stored {
        let (whole, part) = part(name);
        let gradient = cut(&parameters.get(&whole).unwrap().grad().unwrap(), part);
        let expected = case.values(&format!("grad/{name}"));
        // The gradients of queries and keys are differences of the gradients of the values, and 0 for the bias of the
        // keys and for a single token. So their rounding errors are compared with the values' gradient.
        let beside =
            case.values(&format!("grad/{}", name.replace("attn.q", "attn.v").replace("attn.k", "attn.v")));
        let scale = |v: &[f64]| v.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        let bound = bound * scale(&beside).max(scale(&expected));
        assert_within(&gradient, &expected, bound, &what(&format!("gradient of {name}")));
    }
}

// Sums of up to about 60 products through six layers of operations, relative to the largest element.
const DTYPES: [(DType, f64); 2] =
    [(DType::F64, 64.0 * f64::EPSILON), (DType::F32, 64.0 * f32::EPSILON as f64)];

#[test]
fn attention_agrees_with_pytorch() {
    for case in reference().of("attention") {
        for (dtype, bound) in DTYPES {
            let builder = ParameterBuilder::new(&device(), dtype);
            let (d_model, heads) = (case.count("d_model"), case.count("heads"));
            let options =
                AttentionOptions { causal: case.flag("causal"), ..AttentionOptions::new(d_model, heads) };
            let attention = MultiHeadAttention::new(&builder.scope("attn"), &options).unwrap();
            let parameters = builder.build(&generator(0)).unwrap();
            check(&case, dtype, bound, &parameters, |x| attention.forward(x, Mode::Eval));
        }
    }
}

#[test]
fn encoder_layers_agree_with_pytorch() {
    for case in reference().of("encoder") {
        for (dtype, bound) in DTYPES {
            let builder = ParameterBuilder::new(&device(), dtype);
            let layer = TransformerEncoderLayer::new(&builder, &options(&case)).unwrap();
            let parameters = builder.build(&generator(0)).unwrap();
            check(&case, dtype, bound, &parameters, |x| layer.forward(x, Mode::Eval));
        }
    }
}

#[test]
fn group_norms_agree_with_pytorch() {
    for case in reference().of("group_norm") {
        let halves = [DType::F16, DType::BF16].map(|dtype| (dtype, 8.0 * dtype.epsilon().unwrap()));
        for (dtype, bound) in DTYPES.into_iter().chain(halves) {
            let builder = ParameterBuilder::new(&device(), dtype);
            let (groups, channels) = (case.count("groups"), case.count("channels"));
            let norm = GroupNorm::new(&builder, groups, channels, case.number("eps")).unwrap();
            let parameters = builder.build(&generator(0)).unwrap();
            check(&case, dtype, bound, &parameters, |x| norm.forward(x));
        }
    }
}

#[test]
fn with_dropout_a_layer_is_the_same_in_evaluation_and_varies_in_training() {
    let reference = reference();
    let case = reference.of("encoder").next().unwrap();
    let layer_with = |dropout: f64| {
        let builder = ParameterBuilder::new(&device(), DType::F64);
        let options = TransformerEncoderOptions { dropout: EncoderDropout::all(dropout), ..options(&case) };
        let layer = TransformerEncoderLayer::new(&builder, &options).unwrap();
        builder.build(&generator(5)).unwrap();
        layer
    };
    let (plain, dropping) = (layer_with(0.0), layer_with(0.4));
    let x = case.tensor("in0", DType::F64);
    let run = |layer: &TransformerEncoderLayer, mode: Mode<'_>| values(&layer.forward(&x, mode).unwrap());
    let expected = run(&plain, Mode::Eval);
    assert_eq!(run(&dropping, Mode::Eval), expected);
    assert_eq!(run(&plain, Mode::Train(&generator(1))), expected);
    let masks = generator(1);
    let (first, second) = (run(&dropping, Mode::Train(&masks)), run(&dropping, Mode::Train(&masks)));
    assert_ne!(first, second);
    assert_eq!(first, run(&dropping, Mode::Train(&generator(1))));
    // Dropout keeps the mean: the average of the layer's training results over many masks differs from the result
    // without dropout only by the effect of the nonlinear parts.
    let rounds = if sanitized() { 2 } else { 400 };
    let mut mean = vec![0.0; expected.len()];
    for _ in 0..rounds {
        let y = run(&dropping, Mode::Train(&masks));
        mean.iter_mut().zip(y).for_each(|(m, y)| *m += y / rounds as f64);
    }
    let distance = mean.iter().zip(&expected).map(|(m, e)| (m - e).abs()).sum::<f64>() / mean.len() as f64;
    assert!(sanitized() || distance < 0.15, "{distance}");
}

#[test]
fn dropout_alone_scales_what_it_keeps() {
    let x = Tensor::ones([1000], DType::F32, &device()).unwrap();
    let dropout = Dropout::new(0.25).unwrap();
    let y = values(&dropout.forward(&x, Mode::Train(&generator(3))).unwrap());
    let kept = y.iter().filter(|&&v| v != 0.0).count();
    assert!((700..800).contains(&kept), "{kept}");
    assert!(y.iter().all(|&v| v == 0.0 || (v - 1.0 / 0.75).abs() < 1e-6));
    assert_eq!(values(&dropout.forward(&x, Mode::Eval).unwrap()), values(&x));
    for p in [-0.1, 1.0, f64::NAN] {
        assert!(Dropout::new(p).unwrap_err().to_string().contains("p is"));
    }
}

#[test]
fn initial_values_have_the_spread_that_their_names_promise() {
    let fill = |init: Init| {
        let t = Tensor::zeros([200, 100], DType::F64, &device()).unwrap();
        init.fill(&t, &generator(9)).unwrap();
        values(&t)
    };
    let std = |v: &[f64]| {
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64).sqrt()
    };
    // fan_in 100, fan_out 200; a uniform distribution within b of 0 has standard deviation b / sqrt(3).
    let normals = [
        (Init::XavierNormal { gain: 1.0 }, (2.0f64 / 300.0).sqrt()),
        (Init::KaimingNormal { gain: 2f64.sqrt() }, (2.0f64 / 100.0).sqrt()),
        (Init::Normal { mean: 3.0, std: 0.5 }, 0.5),
    ];
    for (init, expected) in normals {
        let spread = std(&fill(init));
        assert!((spread / expected - 1.0).abs() < 0.02, "{init:?}: {spread}, expected {expected}");
    }
    let uniforms = [
        (Init::XavierUniform { gain: 1.0 }, (6.0f64 / 300.0).sqrt()),
        (Init::KaimingUniform { gain: 2f64.sqrt() }, (6.0f64 / 100.0).sqrt()),
        (Init::torch_linear(), 0.1),
        (Init::torch_bias(100), 0.1),
    ];
    for (init, bound) in uniforms {
        let v = fill(init);
        let largest = v.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        assert!(largest <= bound && largest > 0.99 * bound, "{init:?}: {largest}, expected {bound}");
        assert!((std(&v) / (bound / 3f64.sqrt()) - 1.0).abs() < 0.02, "{init:?}");
    }
    assert!(fill(Init::Constant(2.0)).iter().all(|&v| v == 2.0));
    assert_eq!(fill(normals[0].0), fill(normals[0].0));
}

#[test]
fn convolutions_with_a_padding_mode_are_those_of_the_padded_input() {
    let device = device();
    let random = generator(5);
    let options = Conv2dOptions { padding: [1, 2], stride: [2, 1], ..Conv2dOptions::default() };
    let bare = Conv2dOptions { padding: [0, 0], ..options };
    let weight = Init::Uniform { low: -1.0, high: 1.0 };
    for mode in [PadMode::Reflect, PadMode::Replicate, PadMode::Circular, PadMode::Constant(0.5)] {
        let builder = ParameterBuilder::new(&device, DType::F32);
        let conv = Conv2d::with_init(&builder, 2, 3, [3, 3], options, weight, None).unwrap();
        let conv = conv.padding_mode(mode);
        builder.build(&random).unwrap();
        let x = random.normal([2, 2, 5, 6], DType::F32).unwrap();
        let padded = x.pad(&[(0, 0), (0, 0), (1, 1), (2, 2)], mode).unwrap();
        let expected = padded.conv2d(conv.weight().tensor().unwrap(), None, &bare).unwrap();
        assert_eq!(values(&conv.forward(&x).unwrap()), values(&expected));
    }
}

#[test]
fn layers_resize_series_and_images_and_name_an_input_that_does_not_fit() {
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 5.0], [1, 1, 2, 2], &device()).unwrap();
    let wider = Upsample::new(&[1, 2], Interpolation::Nearest);
    assert_eq!(values(&wider.forward(&x).unwrap()), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 5.0, 5.0]);
    assert_eq!(values(&AdaptiveAvgPool2d([2, 1]).forward(&x).unwrap()), [1.5, 4.0]);
    let series = x.flatten(2, 3).unwrap();
    assert_eq!(values(&AdaptiveAvgPool1d(2).forward(&series).unwrap()), [1.5, 4.0]);
    for (factors, x) in [(&[2, 3][..], &series), (&[2], &x), (&[2, 3], &x.flatten(0, 3).unwrap())] {
        let error = Upsample::new(factors, Interpolation::Nearest).forward(x).unwrap_err().to_string();
        assert!(error.contains("Upsample") && error.contains(&format!("{:?}", x.dims())), "{error}");
    }
    assert!(Upsample::new(&[0, 1], Interpolation::Nearest).forward(&x).is_err());
}

#[test]
fn wrong_arguments_are_named() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let error = MultiHeadAttention::new(&builder.scope("a"), &AttentionOptions::new(10, 3))
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("3 heads for d_model 10"), "{error}");
    let attention = MultiHeadAttention::new(&builder.scope("b"), &AttentionOptions::new(10, 2)).unwrap();
    let layer = Linear::new(&builder.scope("c"), 10, 4).unwrap();
    let flat = Tensor::zeros([3, 10], DType::F32, &device()).unwrap();
    let early = layer.forward(&flat).unwrap_err().to_string();
    assert!(early.contains("`c.bias`") && early.contains("build"), "{early}");
    builder.build(&generator(0)).unwrap();
    let error = attention.forward(&flat, Mode::Eval).unwrap_err().to_string();
    assert!(error.contains("[3, 10]") && error.contains("[batch, tokens, d_model]"), "{error}");
    assert_eq!(layer.forward(&flat).unwrap().dims(), [3, 4]);
    assert!(layer.forward(&Tensor::zeros([3, 9], DType::F32, &device()).unwrap()).is_err());
}

#[test]
fn batch_norm_takes_the_batch_in_training_and_what_it_gathered_in_evaluation() {
    let builder = ParameterBuilder::new(&device(), DType::F64);
    let norm = BatchNorm::new(&builder, 2, -1, 0.0, 0.1).unwrap();
    let parameters = builder.build(&generator(0)).unwrap();
    // Mean 2.5 and 10, variance 1.25 and 9, unbiased 5/3 and 12.
    let x = [1.0, 13.0, 2.0, 7.0, 3.0, 13.0, 4.0, 7.0];
    let x = Tensor::from_slice(&x, [2, 2, 2], &device()).unwrap();
    let root = 1.25f64.sqrt();
    let expected = [-1.5 / root, 1.0, -0.5 / root, -1.0, 0.5 / root, 1.0, 1.5 / root, -1.0];
    let y = values(&norm.forward(&x, Mode::Train(&generator(0))).unwrap());
    y.iter().zip(expected).for_each(|(y, e)| assert!((y - e).abs() < 1e-12, "{y} {e}"));
    let gathered = |name: &str| values(parameters.get(name).unwrap());
    let (mean, var) = (gathered("running_mean"), gathered("running_var"));
    assert!((mean[0] - 0.25).abs() < 1e-12 && (mean[1] - 1.0).abs() < 1e-12, "{mean:?}");
    assert!((var[0] - (0.9 + 0.5 / 3.0)).abs() < 1e-12 && (var[1] - 2.1).abs() < 1e-12, "{var:?}");
    let y = values(&norm.forward(&x, Mode::Eval).unwrap());
    assert!((y[1] - 12.0 / 2.1f64.sqrt()).abs() < 1e-12, "{y:?}");
    assert_eq!(gathered("running_mean"), mean);
}

#[test]
fn gradients_of_every_kind_of_encoder_layer_agree_with_finite_differences() {
    let masks = generator(2);
    let plain = AttentionOptions::new(4, 2);
    let attentions = [
        plain,
        AttentionOptions { causal: true, ..plain },
        AttentionOptions { qk_norm: Some(2.0), dropout: 0.2, ..plain },
        AttentionOptions { residual_scores: true, dropout: 0.2, causal: true, ..plain },
    ];
    for (turn, norm) in [NormKind::Layer, NormKind::Batch, NormKind::Rms].into_iter().enumerate() {
        let places = [(true, false), (false, false), (true, true), (false, true)];
        let all = attentions.into_iter().flat_map(|a| places.map(|(first, across)| (first, across, a)));
        for (norm_first, channel_attention, attention) in shortened(all, turn, 5) {
            let options = TransformerEncoderOptions {
                attention,
                ffn: 6,
                ffn_bias: !channel_attention,
                channel_attention,
                norm_first,
                norm,
                eps: 1e-5,
                activation: Activation::Silu,
                dropout: EncoderDropout::all(0.2),
            };
            let builder = ParameterBuilder::new(&device(), DType::F64);
            let layer = |i: usize| TransformerEncoderLayer::new(&builder.scope(i), &options).unwrap();
            let (first, second) = (layer(0), layer(1));
            let parameters = builder.build(&generator(1)).unwrap();
            let x = generator(3).normal([2, 3, 4], DType::F64).unwrap();
            x.set_requires_grad(true).unwrap();
            let weight = parameters.get("0.attn.qkv.weight").unwrap().clone();
            // The same masks at every evaluation.
            let forward = |t: &[Tensor]| {
                masks.set_state(2, 0)?;
                let mut scores = None;
                let h = first.forward_channels(&t[0], 2, passing(&mut scores), Mode::Train(&masks));
                let y =
                    h.and_then(|h| second.forward_channels(&h, 2, passing(&mut scores), Mode::Train(&masks)));
                Ok(y.unwrap_or_else(|e| panic!("{e}")))
            };
            gradcheck(forward, &[x, weight], 1e-6).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        }
    }
}

/// Two channels with the same rows stay alike; the rows of one reach the other only by channel attention.
#[test]
fn channels_see_each_other_by_channel_attention_alone() {
    for channel_attention in [false, true] {
        let options = TransformerEncoderOptions {
            attention: AttentionOptions::new(4, 2),
            ffn: 6,
            ffn_bias: true,
            channel_attention,
            norm_first: true,
            norm: NormKind::Layer,
            eps: 1e-5,
            activation: Activation::Gelu,
            dropout: EncoderDropout::default(),
        };
        let builder = ParameterBuilder::new(&device(), DType::F64);
        let layer = TransformerEncoderLayer::new(&builder, &options).unwrap();
        builder.build(&generator(1)).unwrap();
        let forward = |x: &Tensor| layer.forward_channels(x, 2, AttentionContext::default(), Mode::Eval);
        let first = generator(3).normal([1, 3, 4], DType::F64).unwrap();
        let row = |y: &Tensor, at: usize| values(&y.narrow(0, at, 1).unwrap());
        let same = forward(&Tensor::concat(&[&first, &first], 0).unwrap()).unwrap();
        assert_eq!(row(&same, 0), row(&same, 1));
        let other = first.mul_scalar(-2.0).unwrap();
        let apart = forward(&Tensor::concat(&[&first, &other], 0).unwrap()).unwrap();
        assert_eq!(row(&apart, 0) != row(&same, 0), channel_attention);
        // Another sample has no influence.
        let samples = forward(&Tensor::concat(&[&first, &first, &first, &other], 0).unwrap()).unwrap();
        let differences = row(&samples, 0).into_iter().zip(row(&same, 0)).map(|(a, b)| (a - b).abs());
        assert!(differences.fold(0.0, f64::max) < 1e-12);
        if channel_attention {
            let message = forward(&first).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(message.contains("1 rows of 2 channels"), "{message}");
        }
    }
}

/// Scores that layers pass on.
fn passing(scores: &mut Option<Tensor>) -> AttentionContext<'_> {
    AttentionContext { scores: Some(scores), ..AttentionContext::default() }
}

#[test]
fn attention_with_scores_at_hand_is_the_fused_attention_and_adds_those_of_the_layer_before() {
    let x = generator(3).normal([2, 5, 6], DType::F64).unwrap();
    for (causal, qk_norm) in [(false, None), (true, None), (true, Some(3.0))] {
        let attention = |residual_scores| {
            let builder = ParameterBuilder::new(&device(), DType::F64);
            let options =
                AttentionOptions { causal, qk_norm, residual_scores, ..AttentionOptions::new(6, 2) };
            let attention = MultiHeadAttention::new(&builder, &options).unwrap();
            builder.build(&generator(1)).unwrap();
            attention
        };
        let (fused, handing) = (attention(false), attention(true));
        let expected = values(&fused.attend(&x, AttentionContext::default(), Mode::Eval).unwrap());
        let mut scores = None;
        let first = handing.attend(&x, passing(&mut scores), Mode::Eval).unwrap();
        assert_close(&first, &expected, 64.0 * f64::EPSILON, "the first layer");
        // Another use of the same layer doubles the scores.
        let (own, before) = (values(scores.as_ref().unwrap()), scores.clone());
        handing.attend(&x, passing(&mut scores), Mode::Eval).unwrap();
        let doubled: Vec<f64> = own.iter().map(|s| 2.0 * s).collect();
        assert_close(
            scores.as_ref().unwrap(),
            &doubled,
            4.0 * f64::EPSILON,
            "the scores of the second layer",
        );
        let none = values(&handing.attend(&x, passing(&mut None), Mode::Eval).unwrap());
        let second = values(&handing.attend(&x, passing(&mut before.clone()), Mode::Eval).unwrap());
        assert_ne!(none, second, "causal {causal}");
    }
}

#[test]
fn attention_with_normalised_queries_and_keys_follows_its_formula_and_its_gradients_finite_differences() {
    let builder = ParameterBuilder::new(&device(), DType::F64);
    let options = AttentionOptions { qk_norm: Some(3.0), ..AttentionOptions::new(4, 2) };
    let attention = MultiHeadAttention::new(&builder, &options).unwrap();
    let parameters = builder.build(&generator(1)).unwrap();
    let x = generator(3).normal([1, 3, 4], DType::F64).unwrap();

    // The formula, number by number.
    let of = |name: &str| values(&parameters.get(name).unwrap().detach());
    let affine = |w: &[f64], b: &[f64], x: &[f64], i: usize| {
        b[i] + w[i * 4..][..4].iter().zip(x).map(|(w, x)| w * x).sum::<f64>()
    };
    let (w, b, tokens) = (of("qkv.weight"), of("qkv.bias"), values(&x));
    let packed: Vec<Vec<f64>> =
        tokens.chunks(4).map(|x| (0..12).map(|i| affine(&w, &b, x, i)).collect()).collect();
    let mut merged = [0.0; 12];
    for (token, head) in (0..3).flat_map(|token| [(token, 0), (token, 1)]) {
        let part = |token: usize, which: usize| &packed[token][which * 4 + head * 2..][..2];
        let dot = |a: &[f64], b: &[f64]| a[0] * b[0] + a[1] * b[1];
        let cosine = |a: &[f64], b: &[f64]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        let scores = [0, 1, 2].map(|key| (3.0 * cosine(part(token, 0), part(key, 1))).exp());
        let sum: f64 = scores.iter().sum();
        for (key, i) in (0..3).flat_map(|key| [(key, 0), (key, 1)]) {
            merged[token * 4 + head * 2 + i] += scores[key] / sum * part(key, 2)[i];
        }
    }
    let (w, b) = (of("o.weight"), of("o.bias"));
    let expected: Vec<f64> = (0..12).map(|at| affine(&w, &b, &merged[at / 4 * 4..][..4], at % 4)).collect();
    assert_close(&attention.forward(&x, Mode::Eval).unwrap(), &expected, 64.0 * f64::EPSILON, "result");

    x.set_requires_grad(true).unwrap();
    let inputs: Vec<Tensor> = [&x].into_iter().chain(parameters.iter().map(|(_, t)| t)).cloned().collect();
    gradcheck(|t| Ok(attention.forward(&t[0], Mode::Eval).unwrap()), &inputs, 1e-6).unwrap();

    let error = attention.forward(&x.flatten(0, 1).unwrap(), Mode::Eval).err().unwrap().to_string();
    assert!(error.contains("[batch, tokens, d_model]"), "{error}");
}

#[test]
fn batches_are_shared_once_and_batch_norm_checks_its_input_then_too() {
    let ranks = Communicator::in_process(&[Device::cpu(), Device::cpu()]).unwrap();
    let model = |device: &Device| {
        let builder = ParameterBuilder::new(device, DType::F32);
        let norm = BatchNorm::new(&builder, 3, 1, 1e-5, 0.1).unwrap();
        let generator = Generator::new(device, 1).unwrap();
        (norm, builder.build(&generator).unwrap(), generator)
    };
    let (norm, parameters, generator) = model(ranks[0].device());
    parameters.share_batches(&ranks[0]).unwrap();
    let error = parameters.share_batches(&ranks[0]).unwrap_err().to_string();
    assert!(error.contains("shares its batches already; make a new model"), "{error}");
    let x = Tensor::ones([4, 2], DType::F32, ranks[0].device()).unwrap();
    let error = norm.forward(&x, Mode::Train(&generator)).unwrap_err().to_string();
    assert!(error.contains("shape [4, 2], but the layer is for 3 channels along axis 1"), "{error}");
    let elsewhere: Device = "sim".parse().unwrap();
    let error = model(&elsewhere).1.share_batches(&ranks[0]).unwrap_err().to_string();
    assert!(error.contains("on cpu and the parameters on sim"), "{error}");
}

#[test]
fn batch_norm_of_several_ranks_keeps_the_statistics_of_a_channel_that_is_not_finite() {
    // Huge numbers have a mean, but no finite variance in f32.
    for broken in [f32::NAN, f32::INFINITY, 1e30] {
        let one_rank = |rank: Communicator| {
            let builder = ParameterBuilder::new(rank.device(), DType::F32);
            let norm = BatchNorm::new(&builder, 3, 1, 1e-5, 0.5).unwrap();
            let generator = Generator::new(rank.device(), 1).unwrap();
            let parameters = builder.build(&generator).unwrap();
            parameters.share_batches(&rank).unwrap();
            let of_channel_1 = if rank.rank() == 0 { broken } else { 2.0 };
            let x = [1.0, of_channel_1, -2.0, 5.0, 3.0, 2.0];
            let x = Tensor::from_slice(&x, [2, 3], rank.device()).unwrap();
            norm.forward(&x, Mode::Train(&generator)).unwrap();
            ["running_mean", "running_var"].map(|name| values(parameters.get(name).unwrap()))
        };
        let ranks = Communicator::in_process(&[Device::cpu(), Device::cpu()]).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| one_rank(rank))).collect();
            for thread in threads {
                let [mean, var] = thread.join().unwrap();
                assert_eq!(mean, [1.5, 0.0, 0.0], "{broken}");
                // The unbiased variance of 1, 5, 1, 5 is 16 / 3.
                let moved = 0.5 + 8.0 / 3.0;
                assert!((var[0] - moved).abs() < 1e-6 && (var[2] - moved).abs() < 1e-6, "{var:?}");
                assert_eq!(var[1], 1.0, "{broken}");
            }
        });
    }
}
