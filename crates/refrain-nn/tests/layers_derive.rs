//! The derive of `Layers`, on all shapes of types, and every layer of the crate as it prints.

mod common;

use common::device;
use refrain::{
    Activation, Conv1dOptions, Conv2dOptions, ConvTranspose1dOptions, ConvTranspose2dOptions, DType,
    Generator, Interpolation, PadMode, Pool1dOptions, Pool2dOptions, Tensor,
};
use refrain_nn::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AttentionOptions, AvgPool1d, AvgPool2d, BatchNorm, Conv1d, Conv2d,
    ConvTranspose1d, ConvTranspose2d, CrossAttention, CrossAttentionOptions, Dropout, Embedding,
    EncoderDropout, Flatten, GroupNorm, Gru, GruCell, Init, Lambda, LayerNorm, LayerTree, Layers, Linear,
    Lstm, LstmCell, MaxPool1d, MaxPool2d, Mlp, Mode, Module, MultiHeadAttention, NormKind, Parameter,
    ParameterBuilder, Result, RmsNorm, Rotary, Sequential, TransformerEncoderLayer,
    TransformerEncoderOptions, Upsample,
};

fn builder() -> ParameterBuilder {
    ParameterBuilder::new(&device(), DType::F32)
}

/// What has no tree.
struct Plain;

#[derive(Layers)]
struct Residual<M>(M, #[layers(skip)] Plain);

impl<M: Module> Module for Residual<M> {
    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        Ok((x + self.0.forward(x, mode)?)?)
    }
}

#[derive(Layers)]
enum Choice {
    Full(Linear),
    Low { down: Linear, r#in: Linear },
    Scaled(#[layers(show)] f64),
    Nothing,
}

#[derive(Layers)]
struct Model<'a, const N: usize> {
    choices: [Choice; N],
    shared: &'a Linear,
    scale: Option<Parameter>,
    body: Sequential,
    #[layers(show)]
    width: usize,
    steps: usize,
    #[layers(skip)]
    plain: Plain,
}

#[derive(Layers)]
struct Unit;

/// A chain of layers of any type.
#[derive(Layers)]
struct Chain<M> {
    layer: M,
    next: Option<Box<Chain<M>>>,
}

mod elsewhere {
    pub use refrain_nn as nn;
}

#[derive(Layers)]
#[layers(crate = elsewhere::nn)]
struct Renamed<M>(M);

#[test]
fn a_type_may_hold_itself_and_the_crate_may_have_another_name() {
    let builder = builder();
    let layer = |i: usize| Linear::new(&builder.scope(i), 2, 3).unwrap();
    let chain = Chain { layer: layer(0), next: Some(Box::new(Chain { layer: layer(1), next: None })) };
    let chain = Renamed(chain);
    assert_eq!(
        chain.to_string(),
        "\
Renamed(  # 18 parameters
  (0): Chain(  # 18
    (layer): Linear(in_features=2, out_features=3, bias=true)  # 9
    (next): Chain(  # 9
      (layer): Linear(in_features=2, out_features=3, bias=true)  # 9
    )
  )
)"
    );
    assert_eq!(chain.layers().parameters().len(), 4);
}

#[test]
fn parameters_of_a_layer_without_a_name_and_of_one_too_large_for_memory_are_counted() {
    struct Nameless(Parameter);
    impl Layers for Nameless {
        fn layers(&self) -> LayerTree {
            LayerTree::new("").parameter(&self.0)
        }
    }
    let builder = builder();
    let inner = Nameless(builder.parameter("weight", [3], Init::Constant(0.0)).unwrap());
    assert_eq!(LayerTree::new("Outer").part("inner", &inner).parameters().len(), 1);
    let large = |i: usize| Linear::new(&builder.scope(i), 1 << 40, 1 << 40).unwrap();
    let text = Renamed(vec![large(0), large(1)]).to_string();
    assert!(text.contains(&format!("# {} parameters", usize::MAX)), "{text}");
}

#[test]
fn the_derive_shows_structs_enums_and_what_they_hold() {
    let builder = builder();
    let linear = |name: &str, outputs| Linear::new(&builder.scope(name), 4, outputs).unwrap();
    let shared = linear("shared", 4);
    let model = Model {
        choices: [
            Choice::Full(linear("full", 2)),
            Choice::Low { down: linear("down", 1), r#in: linear("in", 3) },
            Choice::Scaled(0.5),
            Choice::Nothing,
        ],
        shared: &shared,
        scale: Some(builder.parameter("scale", 4, Init::Constant(1.0)).unwrap()),
        body: Sequential::new().then(Residual(linear("residual", 4), Plain)).then(Activation::Relu),
        width: 4,
        steps: 3,
        plain: Plain,
    };
    let Plain = model.plain;
    assert_eq!(model.steps, 3);
    assert_eq!(
        model.to_string(),
        "\
Model(width=4  # 74 parameters
  (choices): List(  # 30
    (0): Linear(in_features=4, out_features=2, bias=true)  # 10
    (1): Low(  # 20
      (down): Linear(in_features=4, out_features=1, bias=true)  # 5
      (in): Linear(in_features=4, out_features=3, bias=true)  # 15
    )
    (2): Scaled(0=0.5)
    (3): Nothing()
  )
  (shared): Linear(in_features=4, out_features=4, bias=true)  # 20
  (scale): Parameter([4])  # 4
  (body): Sequential(  # 20
    (0): Residual(  # 20
      (0): Linear(in_features=4, out_features=4, bias=true)  # 20
    )
    (1): Relu()
  )
)"
    );
    assert_eq!(Unit.to_string(), "Unit()");
    let parameters = builder.build(&Generator::new(&device(), 1).unwrap()).unwrap();
    assert_eq!(model.layers().count(), parameters.count());
    let x = Tensor::ones([2, 4], DType::F32, &device()).unwrap();
    assert_eq!(model.body.forward(&x, Mode::Eval).unwrap().dims(), [2, 4]);
}

#[test]
fn every_layer_prints_its_settings_and_holds_all_that_it_declared() {
    let (pool1, pool2) = (Pool1dOptions::new(2), Pool2dOptions::new([2, 3]));
    let strided = Conv2dOptions { stride: [2, 1], groups: 2, ..Conv2dOptions::default() };
    let wide = ConvTranspose2dOptions { groups: 2, ..ConvTranspose2dOptions::default() };
    let narrow = Conv1dOptions { padding: 1, ..Conv1dOptions::default() };
    let encoder = |norm, channel_attention| TransformerEncoderOptions {
        attention: AttentionOptions { causal: true, qk_norm: Some(2.0), ..AttentionOptions::new(8, 2) },
        ffn: 16,
        ffn_bias: false,
        channel_attention,
        norm_first: true,
        norm,
        eps: 1e-5,
        activation: Activation::Gelu,
        dropout: EncoderDropout::all(0.1),
    };
    type Make = Box<dyn Fn(&ParameterBuilder) -> Result<Box<dyn Layers>>>;
    fn made<T: Layers + std::fmt::Display + std::fmt::Debug + 'static>(
        make: impl Fn(&ParameterBuilder) -> Result<T> + 'static,
    ) -> Make {
        Box::new(move |builder| {
            let layer = make(builder)?;
            assert_eq!(format!("{layer}"), layer.layers().to_string());
            assert_eq!(format!("{layer:?}"), layer.layers().to_string());
            Ok(Box::new(layer))
        })
    }
    let cases: Vec<(&str, Make)> = vec![
        (
            "Linear(in_features=3, out_features=8, bias=false)  # 24 parameters",
            made(|b| Linear::without_bias(b, 3, 8)),
        ),
        ("Embedding(count=5, features=2)  # 10 parameters", made(|b| Embedding::new(b, 5, 2))),
        ("LayerNorm(size=8, eps=0.00001)  # 16 parameters", made(|b| LayerNorm::new(b, 8, 1e-5))),
        ("RmsNorm(size=8, eps=0.00001)  # 8 parameters", made(|b| RmsNorm::new(b, 8, 1e-5))),
        (
            "GroupNorm(groups=2, channels=8, eps=0.00001)  # 16 parameters",
            made(|b| GroupNorm::new(b, 2, 8, 1e-5)),
        ),
        (
            "BatchNorm(channels=8, axis=-1, eps=0.00001, momentum=0.1)  # 16 parameters",
            made(|b| BatchNorm::new(b, 8, -1, 1e-5, 0.1)),
        ),
        (
            "Conv1d(inputs=2, outputs=4, kernel=[3], stride=1, padding=1, dilation=1, groups=1, bias=true)  # 28 parameters",
            made(move |b| Conv1d::new(b, 2, 4, 3, narrow)),
        ),
        (
            "Conv2d(inputs=2, outputs=4, kernel=[3, 5], stride=[2, 1], padding=[0, 0], dilation=[1, 1], groups=2, bias=true)  # 64 parameters",
            made(move |b| Conv2d::new(b, 2, 4, [3, 5], strided)),
        ),
        (
            "ConvTranspose1d(inputs=2, outputs=4, kernel=[3], stride=1, padding=0, dilation=1, groups=1, bias=true)  # 28 parameters",
            made(|b| ConvTranspose1d::new(b, 2, 4, 3, ConvTranspose1dOptions::default())),
        ),
        (
            "ConvTranspose2d(inputs=2, outputs=4, kernel=[1, 3], stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2, bias=true)  # 16 parameters",
            made(move |b| ConvTranspose2d::new(b, 2, 4, [1, 3], wide)),
        ),
        (
            "Conv1d(inputs=2, outputs=4, kernel=[3], stride=1, padding=1, padding_mode=Circular, dilation=1, groups=1, bias=true)  # 28 parameters",
            made(move |b| Ok(Conv1d::new(b, 2, 4, 3, narrow)?.padding_mode(PadMode::Circular))),
        ),
        (
            "Upsample(factors=[2, 3], mode=Nearest)",
            made(|_| Ok(Upsample::new(&[2, 3], Interpolation::Nearest))),
        ),
        ("AdaptiveAvgPool1d(size=4)", made(|_| Ok(AdaptiveAvgPool1d(4)))),
        ("AdaptiveAvgPool2d(size=[4, 2])", made(|_| Ok(AdaptiveAvgPool2d([4, 2])))),
        ("MaxPool1d(kernel=2, stride=2, padding=0)", made(move |_| Ok(MaxPool1d(pool1)))),
        ("AvgPool1d(kernel=2, stride=2, padding=0)", made(move |_| Ok(AvgPool1d(pool1)))),
        ("MaxPool2d(kernel=[2, 3], stride=[2, 3], padding=[0, 0])", made(move |_| Ok(MaxPool2d(pool2)))),
        ("AvgPool2d(kernel=[2, 3], stride=[2, 3], padding=[0, 0])", made(move |_| Ok(AvgPool2d(pool2)))),
        ("Flatten(start_dim=1, end_dim=-1)", made(|_| Ok(Flatten::default()))),
        ("Softplus()", made(|_| Ok(Lambda::new("Softplus", Tensor::softplus)))),
        ("Dropout(p=0.1)", made(|_| Dropout::new(0.1))),
        ("GruCell(inputs=3, hidden=2)  # 42 parameters", made(|b| GruCell::new(b, 3, 2))),
        ("LstmCell(inputs=3, hidden=2)  # 56 parameters", made(|b| LstmCell::new(b, 3, 2))),
        ("Gru(inputs=3, hidden=2, layers=2)  # 78 parameters", made(|b| Gru::new(b, 3, 2, 2))),
        ("Lstm(inputs=3, hidden=2, layers=1)  # 56 parameters", made(|b| Lstm::new(b, 3, 2, 1))),
        ("Rotary(width=4, positions=7)", made(|b| Rotary::new(4, 7, 1e4, b.dtype(), &device()))),
        (
            "\
Mlp(  # 41 parameters
  (0): Linear(in_features=3, out_features=8, bias=true)  # 32
  (1): Relu()
  (2): Linear(in_features=8, out_features=1, bias=true)  # 9
)",
            made(|b| Mlp::new(b, &[3, 8, 1], Activation::Relu)),
        ),
        (
            "\
CrossAttention(heads=2  # 288 parameters
  (q): Linear(in_features=8, out_features=8, bias=true)  # 72
  (kv): Linear(in_features=8, out_features=16, bias=true)  # 144
  (o): Linear(in_features=8, out_features=8, bias=true)  # 72
  (dropout): Dropout(p=0)
)",
            made(|b| CrossAttention::new(b, &CrossAttentionOptions::new(8, 2))),
        ),
        (
            "\
MultiHeadAttention(heads=2, causal=false  # 288 parameters
  (qkv): Linear(in_features=8, out_features=24, bias=true)  # 216
  (o): Linear(in_features=8, out_features=8, bias=true)  # 72
  (dropout): Dropout(p=0)
)",
            made(|b| MultiHeadAttention::new(b, &AttentionOptions::new(8, 2))),
        ),
        (
            "\
TransformerEncoderLayer(norm_first=true  # 570 parameters
  (norm1): RmsNorm(size=8, eps=0.00001)  # 8
  (attn): MultiHeadAttention(heads=2, causal=true  # 290
    (qkv): Linear(in_features=8, out_features=24, bias=true)  # 216
    (o): Linear(in_features=8, out_features=8, bias=true)  # 72
    (temperature): Parameter([2])  # 2
    (dropout): Dropout(p=0)
  )
  (attention_output): Dropout(p=0.1)
  (norm_channels): RmsNorm(size=8, eps=0.00001)  # 8
  (norm2): RmsNorm(size=8, eps=0.00001)  # 8
  (ffn.0): Linear(in_features=8, out_features=16, bias=false)  # 128
  (activation): Gelu()
  (ffn_hidden): Dropout(p=0.1)
  (ffn.2): Linear(in_features=16, out_features=8, bias=false)  # 128
  (ffn_output): Dropout(p=0.1)
)",
            made(move |b| TransformerEncoderLayer::new(b, &encoder(NormKind::Rms, true))),
        ),
    ];
    for (expected, make) in cases {
        let builder = builder();
        let layer = make(&builder).unwrap();
        let tree = layer.layers();
        assert_eq!(tree.to_string(), expected);
        let parameters = builder.build(&Generator::new(&device(), 1).unwrap()).unwrap();
        let names = |all: Vec<Parameter>| {
            let mut names: Vec<String> = all.iter().map(|p| p.name().to_owned()).collect();
            names.sort();
            names
        };
        let sorted = |names: Vec<&str>| {
            let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(names(tree.parameters()), sorted(parameters.names().collect()), "{expected}");
        let buffers = parameters.buffers().map(|(name, _)| name).collect();
        assert_eq!(names(tree.buffers()), sorted(buffers), "{expected}");
    }
}
