//! Layers made of operations and of layers, and averages of weights: against arithmetic of the host.

mod common;

use common::{assert_close, assert_within, device, values};
use refrain::optim::{Schedule, SgdOptions};
use refrain::{Activation, DType, Generator, Step, Tensor, gradcheck, no_grad};
use refrain_nn::{
    Dropout, Ema, Embedding, Flatten, GroupNorm, Init, Lambda, Linear, Mlp, Mode, Module, Optimizer,
    ParameterBuilder, Parameters, Sequential, Sgd,
};

fn build(builder: &ParameterBuilder) -> Parameters {
    builder.build(&Generator::new(&device(), 3).unwrap()).unwrap()
}

fn numbers(n: usize) -> Vec<f64> {
    (0..n).map(|i| (i as f64 * 0.618_033_988_75 + 0.1).fract() * 3.0 - 1.0).collect()
}

fn tensor(shape: &[usize], dtype: DType) -> Tensor {
    let n = shape.iter().product();
    Tensor::from_slice(&numbers(n), shape, &device()).unwrap().to_dtype(dtype).unwrap()
}

#[test]
fn group_norm_normalises_each_group_of_each_sample() {
    let (batch, channels, places, groups, eps) = (2, 6, 5, 3, 1e-3);
    for (dtype, bound) in [(DType::F64, 1e-14), (DType::F32, 1e-6), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let builder = ParameterBuilder::new(&device(), dtype);
        let norm = GroupNorm::new(&builder, groups, channels, eps).unwrap();
        let parameters = build(&builder);
        let (weight, bias) = (tensor(&[6], dtype), tensor(&[6], dtype).mul_scalar(0.5).unwrap());
        no_grad(|| {
            parameters.get("weight").unwrap().copy_from(&weight).unwrap();
            parameters.get("bias").unwrap().copy_from(&bias).unwrap();
        });
        let x = tensor(&[batch, channels, places], dtype);
        let (numbers, w, b) = (values(&x), values(&weight), values(&bias));
        let size = channels / groups * places;
        let mut expected = Vec::new();
        for (i, v) in numbers.iter().enumerate() {
            let group = &numbers[i / size * size..][..size];
            let mean = group.iter().sum::<f64>() / size as f64;
            let var = group.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / size as f64;
            let channel = i / places % channels;
            expected.push((v - mean) / (var + eps).sqrt() * w[channel] + b[channel]);
        }
        assert_close(&norm.forward(&x).unwrap(), &expected, bound, &format!("{dtype}"));
        // As an image, and transposed.
        let image = x.reshape([batch, channels, places, 1]).unwrap();
        assert_close(&norm.forward(&image).unwrap(), &expected, bound, "image");
        assert!(
            norm.forward(&x.transpose(1, 2).unwrap()).unwrap_err().to_string().contains("[batch, 6, ..]")
        );
    }
    let builder = ParameterBuilder::new(&device(), DType::F64);
    let norm = GroupNorm::new(&builder, 2, 4, 1e-5).unwrap();
    let parameters = build(&builder);
    let x = tensor(&[2, 4, 3], DType::F64);
    let weight = parameters.get("weight").unwrap().clone();
    x.set_requires_grad(true).unwrap();
    let run = |t: &[Tensor]| {
        norm.forward(&t[0]).map_err(|e| match e {
            refrain_nn::Error::Tensor { error, .. } => error,
            other => panic!("{other}"),
        })
    };
    gradcheck(run, &[x, weight], 1e-6).unwrap();
    let refused = GroupNorm::new(&builder.scope("other"), 4, 6, 1e-5).err().unwrap();
    assert!(refused.to_string().contains("4 groups for 6 channels"), "{refused}");
}

#[test]
fn layers_of_layers_run_them_in_order() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let table = Embedding::new(&builder.scope("table"), 7, 4).unwrap();
    let mlp = Mlp::new(&builder.scope("mlp"), &[4, 8, 3], Activation::Gelu).unwrap();
    let first = Linear::new(&builder.scope("other.0"), 4, 8).unwrap();
    let second = Linear::new(&builder.scope("other.2"), 8, 3).unwrap();
    let parameters = build(&builder);
    assert_eq!(parameters.names().filter(|n| n.starts_with("mlp")).count(), 4);
    no_grad(|| {
        for name in ["0.weight", "0.bias", "2.weight", "2.bias"] {
            let (from, to) = (format!("mlp.{name}"), format!("other.{name}"));
            parameters.get(&to).unwrap().copy_from(parameters.get(&from).unwrap()).unwrap();
        }
    });
    let ids = Tensor::from_slice(&[5i64, 0, 5], [3], &device()).unwrap();
    let x = table.forward(&ids).unwrap();
    let rows = values(&x);
    assert_eq!((x.dims(), &rows[..4]), (&[3, 4][..], &rows[8..]));
    assert_eq!(rows[..4], values(parameters.get("table.weight").unwrap())[20..24]);
    let by_hand = second.forward(&first.forward(&x).unwrap().gelu().unwrap()).unwrap();
    assert_close(&mlp.forward(&x).unwrap(), &values(&by_hand), 1e-6, "mlp");
    let apart = Sequential::new().then(table).then(first).then(Activation::Gelu).then(second);
    let all = apart.forward(&ids, Mode::Eval).unwrap();
    assert_eq!(values(&all), values(&by_hand));
    // The mode reaches every layer.
    let dropping = Sequential::new().then(Sequential::new().then(Dropout::new(0.5).unwrap()));
    let ones = Tensor::ones([1000], DType::F32, &device()).unwrap();
    let masks = Generator::new(&device(), 1).unwrap();
    assert_eq!(values(&dropping.forward(&ones, Mode::Eval).unwrap()), values(&ones));
    let dropped = values(&dropping.forward(&ones, Mode::Train(&masks)).unwrap());
    assert!(dropped.contains(&0.0) && dropped.contains(&2.0));
    for activation in
        [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu]
    {
        let builder = ParameterBuilder::new(&device(), DType::F32);
        let linear = Linear::with_init(&builder, 4, 4, Init::torch_linear(), None).unwrap();
        build(&builder);
        let x = tensor(&[3, 4], DType::F32);
        let fused = linear.forward_with(&x, activation, None).unwrap();
        let apart = activation.forward(&linear.forward(&x).unwrap(), Mode::Eval).unwrap();
        assert_close(&apart, &values(&fused), 1e-6, &format!("{activation:?}"));
    }
    let refused = Mlp::new(&builder.scope("short"), &[4], Activation::Relu).err().unwrap();
    assert!(refused.to_string().contains("at least two"), "{refused}");
}

#[test]
fn any_function_is_a_layer_that_trains_eagerly_and_recorded() {
    let run = |recorded: bool| {
        let builder = ParameterBuilder::new(&device(), DType::F64);
        let slope = 0.2;
        let model = Sequential::new()
            .then(Flatten::default())
            .then(Linear::new(&builder.scope(0), 6, 4).unwrap())
            .then(Lambda::new("LeakyRelu", move |x| x.leaky_relu(slope)))
            .then(Linear::new(&builder.scope(1), 4, 2).unwrap())
            .then(Lambda::new("Sigmoid", Tensor::sigmoid));
        let parameters = build(&builder);
        let x = tensor(&[5, 2, 3], DType::F64);
        let affine = |x: &[f64], layer: usize| -> Vec<f64> {
            let of = |part: &str| values(&parameters.get(&format!("{layer}.{part}")).unwrap().detach());
            let (weight, bias) = (of("weight"), of("bias"));
            let row =
                |i: usize| weight[i * x.len()..][..x.len()].iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
            (0..bias.len()).map(|i| bias[i] + row(i)).collect()
        };
        let by_hand: Vec<f64> = values(&x)
            .chunks(6)
            .flat_map(|x| {
                let hidden = affine(x, 0).into_iter().map(|h| if h < 0.0 { slope * h } else { h });
                affine(&hidden.collect::<Vec<_>>(), 1)
            })
            .map(|y| 1.0 / (1.0 + (-y).exp()))
            .collect();
        assert_close(&model.forward(&x, Mode::Eval).unwrap(), &by_hand, 1e-14, "by hand");
        let options = SgdOptions { momentum: 0.0, weight_decay: 0.0 };
        let optimizer = Sgd::new(&parameters, options, Schedule::Constant { lr: 0.5 }).unwrap();
        let train = || -> refrain_nn::Result<()> {
            model.forward(&x, Mode::Eval)?.square()?.sum(())?.backward()?;
            optimizer.step()
        };
        let mut step = Step::new(&device(), |_| {
            train()?;
            Ok(vec![])
        });
        let before = values(parameters.values());
        for _ in 0..3 {
            if recorded { step.call(&[]).map(drop).unwrap() } else { train().unwrap() }
        }
        step.finish().unwrap();
        let after = values(parameters.values());
        assert_ne!(before, after);
        after
    };
    assert_eq!(run(false), run(true));
    let failing = Lambda::new("Two", |x| x.reshape([7]));
    let refused = failing.forward(&tensor(&[2, 3], DType::F32)).unwrap_err().to_string();
    assert!(refused.contains("reshape"), "{refused}");
}

#[test]
fn an_average_follows_its_recurrence_eagerly_and_recorded_and_is_lent_for_evaluation() {
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        let run = |recorded: bool| {
            let builder = ParameterBuilder::new(&device(), dtype);
            Linear::new(&builder, 3, 2).unwrap();
            let parameters = build(&builder);
            let options = SgdOptions { momentum: 0.0, weight_decay: 0.0 };
            let optimizer = Sgd::new(&parameters, options, Schedule::Constant { lr: 0.5 }).unwrap();
            let ema = Ema::new(&parameters, 0.9).unwrap();
            let mut by_hand = values(parameters.values());
            let train = || -> refrain_nn::Result<()> {
                parameters.get("weight")?.square()?.sum(())?.backward()?;
                optimizer.step()?;
                ema.update(&parameters)
            };
            let mut step = Step::new(parameters.values().device(), |_| {
                train()?;
                Ok(vec![])
            });
            no_grad(|| parameters.get("weight").unwrap().fill(2.0)).unwrap();
            for _ in 0..6 {
                if recorded {
                    step.call(&[]).map(drop).unwrap()
                } else {
                    train().unwrap()
                }
                by_hand.iter_mut().zip(values(parameters.values())).for_each(|(a, w)| *a += 0.1 * (w - *a));
            }
            step.finish().unwrap();
            (ema, parameters, by_hand)
        };
        let (ema, parameters, by_hand) = run(true);
        let bound = if dtype == DType::F64 { 1e-14 } else { 1e-6 };
        assert_within(ema.average(), &by_hand, bound, &format!("{dtype}"));
        assert_eq!(values(run(false).0.average()), values(ema.average()), "eager and recorded");
        let own = values(parameters.values());
        let seen = ema.with_average(&parameters, || Ok(values(parameters.values()))).unwrap();
        assert_eq!(seen, values(&ema.average().to_dtype(dtype).unwrap()));
        assert_ne!(seen, own);
        let failed = ema.with_average(&parameters, || parameters.get("nothing").map(drop));
        assert!(failed.is_err());
        assert_eq!(values(parameters.values()), own);
    }
    let builder = ParameterBuilder::new(&device(), DType::F32);
    Linear::new(&builder, 3, 2).unwrap();
    let parameters = build(&builder);
    for decay in [-0.1, 1.1, f64::NAN] {
        assert!(Ema::new(&parameters, decay).err().unwrap().to_string().contains("decay"));
    }
}

#[test]
fn an_average_refuses_the_parameters_of_another_model_also_of_the_same_size() {
    let model = || {
        let builder = ParameterBuilder::new(&device(), DType::F32);
        Linear::new(&builder, 3, 2).unwrap();
        build(&builder)
    };
    let (own, other) = (model(), model());
    let ema = Ema::new(&own, 0.5).unwrap();
    let (average, weights) = (values(ema.average()), values(other.values()));
    let lent =
        ema.with_average(&other, || -> refrain_nn::Result<()> { panic!("the other model gets the average") });
    for error in [ema.update(&other).unwrap_err(), lent.unwrap_err()] {
        let message = error.to_string();
        assert!(message.contains("another model") && message.contains("`Ema::new`"), "{message}");
    }
    assert_eq!((values(ema.average()), values(other.values())), (average, weights));
    ema.update(&own).unwrap();
}
