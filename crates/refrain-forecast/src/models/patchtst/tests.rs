use super::*;
use crate::models::testing::{check_gradients, device};

const CHANNELS: usize = 3;

fn config() -> PatchTstConfig {
    PatchTstConfig { channels: CHANNELS, ..PatchTstConfig::small(20, 6, 4, 8, 2, 2, 12, 5) }
}

/// All options that the small variant does not use.
fn paper() -> PatchTstConfig {
    PatchTstConfig {
        end_padding: true,
        norm: NormKind::Batch,
        norm_position: NormPosition::Post,
        activation: FfnActivation::Gelu,
        residual_attention: true,
        revin: true,
        ..config()
    }
}

fn build(config: PatchTstConfig) -> PatchTst {
    PatchTst::new(config, DType::F64, &device(), 7).unwrap()
}

/// `[2, 3, 20]`
fn contexts(seed: u64) -> Tensor {
    let generator = Generator::new(&device(), seed).unwrap();
    generator.normal([2, CHANNELS, 20], DType::F64).unwrap()
}

fn forecast(model: &PatchTst, x: &Tensor) -> Vec<f64> {
    model.forward(x, Mode::Eval).unwrap().to_vec().unwrap()
}

#[track_caller]
fn assert_close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= 1e-9 * (1.0 + b.abs()), "at {index}: {a} for {b}");
    }
}

fn sets_apart(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).any(|(a, b)| (a - b).abs() > 1e-6)
}

#[test]
fn every_setting_changes_the_forecast() {
    let x = contexts(1);
    let base = forecast(&build(config()), &x);
    let changes: [fn(&mut PatchTstConfig); 21] = [
        |c| c.norm = NormKind::Batch,
        |c| c.norm_position = NormPosition::Post,
        |c| c.activation = FfnActivation::Gelu,
        |c| c.activation = FfnActivation::Relu,
        |c| c.positions = Positions::Sinusoidal,
        |c| c.residual_attention = true,
        |c| c.revin = true,
        |c| c.individual_head = true,
        |c| c.end_padding = true,
        |c| c.patches_from = PatchesFrom::End,
        |c| c.norm_eps = 0.1,
        |c| c.activation = FfnActivation::Silu,
        |c| c.ffn_bias = false,
        |c| c.positions = Positions::Stored,
        |c| c.channel_attention = true,
        |c| (c.revin, c.revin_scale) = (true, RevinScale::Mean),
        |c| c.individual_embedding = true,
        |c| c.pooling = Pooling::Mean,
        |c| c.pooling = Pooling::Max,
        |c| c.pooling = Pooling::Cls,
        |c| (c.revin, c.revin_affine) = (true, false),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut config = config();
        change(&mut config);
        let model = build(config);
        assert_eq!(model.forward(&x, Mode::Eval).unwrap().dims(), [2, CHANNELS, 5]);
        // The erf form and the tanh form of GELU differ only a little.
        let other = forecast(&model, &x);
        assert!(base.iter().zip(&other).any(|(a, b)| (a - b).abs() > 1e-7), "setting {index}");
    }
}

/// Compares with central differences of the loss along every kind of parameter, in the mode in which batch norm
/// trains.
#[test]
fn gradients_are_those_of_finite_differences() {
    let generator = Generator::new(&device(), 0).unwrap();
    let other = PatchTstConfig {
        channel_attention: true,
        individual_embedding: true,
        pooling: Pooling::Cls,
        revin: true,
        revin_scale: RevinScale::Mean,
        revin_affine: false,
        ..config()
    };
    for config in [config(), paper(), PatchTstConfig { individual_head: true, ..paper() }, other] {
        let model = build(config);
        let (x, y) = (contexts(2), contexts(3).narrow(2, 0, 5).unwrap());
        check_gradients(model.parameters(), 1e-7, || {
            model.forward(&x, Mode::Train(&generator)).unwrap().mse_loss(&y).unwrap()
        });
    }
}

#[test]
fn a_channel_is_forecast_from_itself_alone() {
    for config in [config(), paper(), PatchTstConfig { individual_head: true, ..config() }] {
        let model = build(config);
        let (x, other) = (contexts(4), contexts(4));
        other.narrow(1, 1, 1).unwrap().fill(3.0).unwrap();
        let (a, b) = (forecast(&model, &x), forecast(&model, &other));
        for (row, (a, b)) in a.chunks_exact(5).zip(b.chunks_exact(5)).enumerate() {
            if row % CHANNELS == 1 {
                assert!(sets_apart(a, b), "row {row}");
            } else {
                assert_close(a, b);
            }
        }
    }
}

/// With RevIN, a window in other units (factor and offset) is forecast in those units.
#[test]
fn revin_carries_units_through() {
    let model = build(paper());
    let x = contexts(5);
    let base = forecast(&model, &x);
    let moved = forecast(&model, &x.mul_scalar(40.0).unwrap().add_scalar(1000.0).unwrap());
    for (a, b) in base.iter().zip(moved) {
        // Only approximately, because eps is added to the variance.
        assert!((a * 40.0 + 1000.0 - b).abs() < 1e-2, "{b} for {}", a * 40.0 + 1000.0);
    }
    // Its affine map is undone exactly.
    model.parameters().get("revin.bias").unwrap().detach().fill(0.5).unwrap();
    let with_bias = forecast(&model, &x);
    assert!(sets_apart(&base, &with_bias));
}

/// A padded model sees the repeated last value: its last patch consists of it.
#[test]
fn end_padding_repeats_the_last_value() {
    let padded = build(PatchTstConfig { end_padding: true, ..config() });
    let longer = build(PatchTstConfig { context: 24, ..config() });
    assert_eq!(padded.config().patches(), longer.config().patches());
    for (name, tensor) in padded.parameters().iter() {
        longer.parameters().get(name).unwrap().detach().copy_from(&tensor.detach()).unwrap();
    }
    let x = contexts(6);
    let last = x.narrow(2, 19, 1).unwrap().broadcast_to([2, CHANNELS, 4]).unwrap();
    let by_hand = Tensor::concat(&[&x, &last], 2).unwrap();
    assert_close(&forecast(&padded, &x), &forecast(&longer, &by_hand));
}

#[test]
fn individual_heads_with_the_shared_weights_forecast_alike() {
    let shared = build(config());
    let individual = build(PatchTstConfig { individual_head: true, ..config() });
    for (name, tensor) in shared.parameters().iter() {
        let target = individual.parameters().get(name).unwrap().detach();
        let source = match name {
            "head.weight" => tensor.detach().transpose(0, 1).unwrap().broadcast_to(target.shape()).unwrap(),
            "head.bias" => tensor.detach().broadcast_to(target.shape()).unwrap(),
            _ => tensor.detach(),
        };
        target.copy_from(&source).unwrap();
    }
    let x = contexts(7);
    assert_close(&forecast(&individual, &x), &forecast(&shared, &x));
    // Each channel has its own head: changing one does not affect another channel.
    individual.parameters().get("head.bias").unwrap().detach().narrow(0, 1, 1).unwrap().fill(9.0).unwrap();
    let (a, b) = (forecast(&individual, &x), forecast(&shared, &x));
    let changed: Vec<bool> =
        a.chunks_exact(5).zip(b.chunks_exact(5)).map(|(a, b)| sets_apart(a, b)).collect();
    assert_eq!(changed, [false, true, false, false, true, false]);
}

/// The fused attention and the one that keeps its scores give the same result in the first layer.
#[test]
fn the_first_layer_attends_alike_with_and_without_residual_attention() {
    let one = PatchTstConfig { layers: 1, ..config() };
    let with = build(PatchTstConfig { residual_attention: true, ..one.clone() });
    let x = contexts(8);
    assert_close(&forecast(&with, &x), &forecast(&build(one), &x));
}

/// Dropout with probability `p` does not change the mean, and does nothing outside training.
#[test]
fn dropout_acts_in_training_only() {
    let x = contexts(9);
    let plain = forecast(&build(config()), &x);
    let generator = Generator::new(&device(), 1).unwrap();
    let places: [fn(&mut PatchTstConfig); 7] = [
        |c| c.dropout = 0.3,
        |c| c.attention_dropout = 0.3,
        |c| c.head_dropout = 0.3,
        |c| c.head_input_dropout = 0.3,
        |c| c.positional_dropout = DropoutRate::Of(0.3),
        |c| c.path_dropout = DropoutRate::Of(0.3),
        |c| c.ffn_dropout = DropoutRate::Of(0.3),
    ];
    for place in places {
        let mut config = config();
        place(&mut config);
        let model = build(config);
        assert_close(&forecast(&model, &x), &plain);
        let train =
            |model: &PatchTst| model.forward(&x, Mode::Train(&generator)).unwrap().to_vec::<f64>().unwrap();
        assert!(sets_apart(&train(&model), &plain));
        assert!(sets_apart(&train(&model), &train(&model)));
    }
}

#[test]
fn contexts_of_another_shape_are_refused() {
    let model = build(config());
    for shape in [vec![2, 3, 21], vec![2, 4, 20], vec![3, 20]] {
        let x = Tensor::zeros(&shape[..], DType::F64, &device()).unwrap();
        let message = model.forward(&x, Mode::Eval).unwrap_err().to_string();
        assert!(message.contains("3 channels and a context of 20"), "{message}");
    }
}

#[test]
fn the_size_that_is_told_before_is_that_of_the_model() {
    let sizes: [fn(&mut PatchTstConfig); 6] = [
        |_| {},
        |c| c.layers = 5,
        |c| (c.layers, c.individual_head) = (1, true),
        |c| (c.positions, c.revin) = (Positions::Sinusoidal, false),
        |c| (c.positions, c.pooling, c.ffn_bias) = (Positions::Stored, Pooling::Cls, false),
        |c| (c.channel_attention, c.individual_embedding, c.revin_affine) = (true, true, false),
    ];
    for (change, base) in sizes.into_iter().flat_map(|change| [(change, config()), (change, paper())]) {
        let mut config = base;
        change(&mut config);
        let size = config.size().unwrap();
        let model = build(config);
        let (parameters, buffers) = (model.parameters().iter().count(), model.parameters().buffers());
        assert_eq!(size.parameters, model.parameter_count() as u128);
        assert_eq!(size.buffers, buffers.map(|(_, t)| t.numel() as u128).sum());
        assert_eq!(size.tensors, (parameters + model.parameters().buffers().count()) as u64);
    }
    let absurd = PatchTstConfig { layers: 1 << 24, individual_head: true, horizon: 1 << 24, ..paper() };
    assert!(absurd.size().unwrap().parameters > 1 << 30);
}

/// A probability of its own takes the place of `dropout` in its place alone.
#[test]
fn separate_dropouts_take_the_place_of_the_common_one() {
    let none = PatchTstConfig {
        dropout: 0.5,
        positional_dropout: DropoutRate::Of(0.0),
        path_dropout: DropoutRate::Of(0.0),
        ffn_dropout: DropoutRate::Of(0.0),
        ..config()
    };
    let (x, generator) = (contexts(9), Generator::new(&device(), 1).unwrap());
    let train = |config: &PatchTstConfig| {
        let model = build(config.clone());
        model.forward(&x, Mode::Train(&generator)).unwrap().to_vec::<f64>().unwrap()
    };
    assert_close(&train(&none), &forecast(&build(config()), &x));
    for place in [
        |c: &mut PatchTstConfig| c.positional_dropout = DropoutRate::Same,
        |c: &mut PatchTstConfig| c.path_dropout = DropoutRate::Same,
        |c: &mut PatchTstConfig| c.ffn_dropout = DropoutRate::Same,
    ] {
        let mut config = none.clone();
        place(&mut config);
        assert!(sets_apart(&train(&config), &train(&none)));
    }
}

/// Patches from the end see the newest row and leave out the oldest, which those from the start do the other way round.
#[test]
fn patches_from_the_end_leave_out_the_first_rows() {
    for (from, unseen) in [(PatchesFrom::Start, 19), (PatchesFrom::End, 0)] {
        // Patches of 6 every 4 in 20 rows leave out 2.
        let model = build(PatchTstConfig { patches_from: from, ..config() });
        let x = contexts(8);
        let base = forecast(&model, &x);
        let with = |row: usize| {
            let other = x.copy().unwrap();
            other.narrow(2, row, 1).unwrap().fill(9.0).unwrap();
            forecast(&model, &other)
        };
        assert_close(&with(unseen), &base);
        assert!(sets_apart(&with(19 - unseen), &base));
    }
}

#[test]
fn values_that_were_not_observed_have_no_influence_on_the_scale() {
    for scale in [RevinScale::Std, RevinScale::Mean] {
        let revin = PatchTstConfig { revin: true, revin_scale: scale, ..config() };
        // Patches from the start do not see the last two rows, so they can only change the scale.
        let model = build(revin);
        let x = contexts(8);
        let other = x.copy().unwrap();
        other.narrow(2, 18, 2).unwrap().fill(50.0).unwrap();
        let observed = Tensor::ones([2, CHANNELS, 20], DType::F64, &device()).unwrap();
        observed.narrow(2, 18, 2).unwrap().fill(0.0).unwrap();
        let forecast = |x: &Tensor, observed: Option<&Tensor>| {
            model.forward_observed(x, observed, Mode::Eval).unwrap().to_vec::<f64>().unwrap()
        };
        assert_close(&forecast(&x, Some(&observed)), &forecast(&other, Some(&observed)));
        assert!(sets_apart(&forecast(&x, None), &forecast(&other, None)));
    }
}

#[test]
fn settings_of_older_runs_have_the_behaviour_of_their_time() {
    let mut kept = serde_json::to_value(paper()).unwrap();
    let newer = [
        "patches_from",
        "positional_dropout",
        "path_dropout",
        "ffn_dropout",
        "head_input_dropout",
        "norm_eps",
        "ffn_bias",
        "channel_attention",
        "revin_scale",
        "revin_affine",
        "individual_embedding",
        "pooling",
    ];
    for name in newer {
        assert!(kept.as_object_mut().unwrap().remove(name).is_some(), "{name}");
    }
    assert_eq!(serde_json::from_value::<PatchTstConfig>(kept).unwrap(), paper());
}
