//! An error says where it happened: in which layer, and at which line of the caller.

mod common;

use common::device;
use refrain::{
    Conv1dOptions, Conv2dOptions, ConvTranspose1dOptions, ConvTranspose2dOptions, DType, Generator, Step,
    Tensor,
};
use refrain_nn::{
    AttentionOptions, BatchNorm, Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d, CrossAttention,
    CrossAttentionOptions, Embedding, Error, GroupNorm, Gru, GruCell, LayerNorm, Linear, Lstm, LstmCell,
    LstmState, Mlp, Mode, Module, MultiHeadAttention, ParameterBuilder, Result, RmsNorm, RotaryOptions,
    Sequential, TransformerEncoderLayer, TransformerEncoderOptions,
};

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, DType::F32, &device()).unwrap()
}

#[test]
fn an_error_says_in_which_layer_it_happened() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let scope = |name| builder.scope("body").scope(name);
    let linear = Linear::new(&scope("linear"), 3, 2).unwrap();
    let embedding = Embedding::new(&scope("table"), 3, 2).unwrap();
    let mlp = Mlp::new(&scope("mlp"), &[3, 3, 2], refrain::Activation::Relu).unwrap();
    let conv1 = Conv1d::new(&scope("conv1"), 3, 2, 1, Conv1dOptions::default()).unwrap();
    let conv2 = Conv2d::new(&scope("conv2"), 3, 2, [1, 1], Conv2dOptions::default()).unwrap();
    let back1 = ConvTranspose1d::new(&scope("back1"), 3, 2, 1, ConvTranspose1dOptions::default()).unwrap();
    let back2 =
        ConvTranspose2d::new(&scope("back2"), 3, 2, [1, 1], ConvTranspose2dOptions::default()).unwrap();
    let layer_norm = LayerNorm::new(&scope("layer_norm"), 3, 1e-5).unwrap();
    let rms_norm = RmsNorm::new(&scope("rms_norm"), 3, 1e-5).unwrap();
    let batch_norm = BatchNorm::new(&scope("batch_norm"), 3, 1, 1e-5, 0.1).unwrap();
    let group_norm = GroupNorm::new(&scope("group_norm"), 1, 3, 1e-5).unwrap();
    let gru = Gru::new(&scope("gru"), 3, 2, 1).unwrap();
    let lstm = Lstm::new(&scope("lstm"), 3, 2, 1).unwrap();
    let gru_cell = GruCell::new(&scope("gru_cell"), 3, 2).unwrap();
    let lstm_cell = LstmCell::new(&scope("lstm_cell"), 3, 2).unwrap();
    let rotary = Some(RotaryOptions::new(2));
    let options = AttentionOptions { rotary, ..AttentionOptions::new(4, 2) };
    let attention = MultiHeadAttention::new(&scope("attention"), &options).unwrap();
    let cross = CrossAttention::new(&scope("cross"), &CrossAttentionOptions::new(4, 2)).unwrap();
    let encoder =
        TransformerEncoderOptions { norm_first: true, ..TransformerEncoderOptions::new(options, 8) };
    let layer = TransformerEncoderLayer::new(&scope("layer"), &encoder).unwrap();
    let inner = Linear::new(&scope("sequence").scope(0), 3, 2).unwrap();
    let sequence = Sequential::new().then(inner).then(refrain_nn::Flatten::default());
    builder.build(&Generator::new(&device(), 1).unwrap()).unwrap();

    let (row, wrong) = (zeros(&[2, 4]), zeros(&[2, 3, 5]));
    let state = LstmState { h: zeros(&[2, 2]), c: zeros(&[2, 2]) };
    let failures: Vec<(&str, Result<()>)> = vec![
        ("linear", linear.forward(&row).map(drop)),
        ("table", embedding.forward(&row).map(drop)),
        ("mlp.0", mlp.forward(&row).map(drop)),
        ("conv1", conv1.forward(&row).map(drop)),
        ("conv2", conv2.forward(&row).map(drop)),
        ("back1", back1.forward(&row).map(drop)),
        ("back2", back2.forward(&row).map(drop)),
        ("layer_norm", layer_norm.forward(&row).map(drop)),
        ("rms_norm", rms_norm.forward(&row).map(drop)),
        ("batch_norm", batch_norm.forward(&row, Mode::Eval).map(drop)),
        ("group_norm", group_norm.forward(&row).map(drop)),
        ("gru", gru.forward(&wrong, None).map(drop)),
        ("lstm", lstm.forward(&wrong, None).map(drop)),
        ("gru_cell", gru_cell.forward(&row, &state.h).map(drop)),
        ("lstm_cell", lstm_cell.forward(&row, &state).map(drop)),
        // What the attention computes itself; a layer in it; and rotary positions, which have no parameters.
        ("attention", attention.forward(&row, Mode::Eval).map(drop)),
        ("attention.qkv", attention.forward(&wrong, Mode::Eval).map(drop)),
        ("attention", attention.forward(&zeros(&[2, 3, 4]), Mode::Eval).map(drop)),
        ("cross", cross.forward(&row, &row, None, Mode::Eval).map(drop)),
        ("cross.kv", cross.forward(&zeros(&[2, 3, 4]), &wrong, None, Mode::Eval).map(drop)),
        ("layer.norm1", layer.forward(&wrong, Mode::Eval).map(drop)),
        ("layer.attn", layer.forward(&zeros(&[2, 3, 4]), Mode::Eval).map(drop)),
        ("sequence.0", sequence.forward(&row, Mode::Eval).map(drop)),
    ];
    for (name, failure) in failures {
        let error = failure.expect_err(name);
        let message = error.to_string();
        assert!(message.starts_with(&format!("in `body.{name}`: ")), "{name}: {message}");
        assert_eq!(message, format!("in `body.{name}`: {}", error.root()));
        assert!(!matches!(error.root(), Error::Layer { .. }), "{name}");
        // The line is one of the layer, which says nothing to its user.
        assert_eq!(format!("{error:?}"), message);
    }
    // Layers without parameters have no name.
    let error = sequence.forward(&zeros(&[3]), Mode::Eval).unwrap_err();
    assert!(error.to_string().starts_with("flatten: "), "{error}");
}

#[test]
fn the_sources_of_an_error_lead_to_the_operation() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let linear = Linear::new(&builder.scope("head"), 3, 2).unwrap();
    builder.build(&Generator::new(&device(), 1).unwrap()).unwrap();
    let error: Box<dyn std::error::Error> = linear.forward(&zeros(&[2, 4])).unwrap_err().into();
    let layers = std::iter::successors(Some(&*error), |error| error.source());
    let of_tensor: Vec<_> = layers.filter_map(|error| error.downcast_ref::<refrain::Error>()).collect();
    assert!(matches!(of_tensor[..], [refrain::Error::ShapeMismatch { op: "linear", .. }]), "{of_tensor:?}");
}

#[test]
fn an_error_of_an_operation_knows_the_line_that_it_came_from() {
    let pairs = |x: &Tensor| -> Result<Tensor> { Ok(x.reshape((-1, 2))?) };
    let line = line!() - 1;
    let error = pairs(&zeros(&[3])).unwrap_err();
    let Error::Tensor { error: inner, at } = &error else { panic!("{error}") };
    assert_eq!((at.file(), at.line()), (file!(), line));
    assert_eq!(error.to_string(), inner.to_string());
    assert_eq!(format!("{error:?}"), format!("{inner} (at {at})"));

    // Also if it happens while a step is recorded.
    let mut step = Step::new(&device(), |x| Ok(vec![pairs(&x[0])?]));
    let failed = step.call(&[zeros(&[3])]).err().unwrap();
    let text = format!("the closure of a step failed: {inner}");
    assert_eq!(failed.to_string(), text);
    assert_eq!(format!("{failed:?}"), format!("{text} (at {at})"));
    let outer = Error::from(failed);
    assert_eq!(format!("{outer:#}"), format!("{text} (at {at}) (at {}:{}:17)", file!(), line!() - 1));
}
