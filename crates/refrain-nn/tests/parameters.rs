//! The flat parameter buffers: names, memory, groups.

mod common;

use common::device;
use refrain::optim::{AdamWOptions, Schedule, SgdOptions};
use refrain::{DType, Generator, Step, Tensor};
use refrain_nn::{
    AdamW, BatchNorm, Error, Group, Init, LayerNorm, Linear, Optimizer, ParameterBuilder, Parameters, Sgd,
};

fn build(builder: &ParameterBuilder) -> Parameters {
    builder.build(&Generator::new(&device(), 1).unwrap()).unwrap()
}

fn values(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

#[test]
fn an_unknown_name_is_told_with_the_nearest_one() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    Linear::new(&builder.scope("encoder.layers.0"), 3, 2).unwrap();
    BatchNorm::new(&builder.scope("norm"), 2, 1, 1e-5, 0.1).unwrap();
    let parameters = builder.build(&Generator::new(&device(), 0).unwrap()).unwrap();
    let tensor = |name| parameters.get(name).unwrap_err().to_string();
    assert!(tensor("encoder.layer.0.weight").contains("did you mean `encoder.layers.0.weight`?"));
    assert!(tensor("norm.running_men").contains("did you mean `norm.running_mean`?"));
    assert!(tensor("something else").contains("see `names()`"));
    let group = |name| parameters.group(name).unwrap_err().to_string();
    assert!(group("norm.biases").contains("did you mean `norm.bias`?"));
    // A buffer has no group.
    assert!(!group("norm.running_mean").contains("`norm.running_mean`?"));
}

#[test]
fn parameters_are_aligned_views_of_one_buffer_under_dotted_names() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let layers = builder.scope("layers");
    let linear = Linear::new(&layers.scope(0), 5, 3).unwrap();
    LayerNorm::new(&layers.scope(1), 3, 1e-5).unwrap();
    let empty = builder.parameter("empty", [0, 4], Init::Constant(1.0)).unwrap();
    let mean = builder.buffer("mean", 2, Init::Constant(0.5)).unwrap();
    let parameters = build(&builder);
    let names = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "empty"];
    assert_eq!(parameters.names().collect::<Vec<_>>(), names);
    assert_eq!(parameters.count(), 15 + 3 + 3 + 3);
    assert_eq!(empty.tensor().unwrap().dims(), [0, 4]);

    let segments = parameters.segments().segments().unwrap();
    assert!(segments.iter().all(|s| s.offset % 64 == 0), "{segments:?}");
    let mut flat = vec![0.0f32; parameters.values().numel()];
    for ((_, t), s) in parameters.iter().zip(&segments) {
        assert!(t.shares_storage(parameters.values()) && t.requires_grad());
        assert!(t.grad().unwrap().shares_storage(parameters.gradients()));
        flat[s.offset..s.offset + s.length].copy_from_slice(&values(t));
    }
    assert_eq!(values(parameters.values()), flat, "zeros between the parameters");
    assert!(linear.weight().tensor().unwrap().shares_storage(parameters.values()));
    assert_eq!(values(parameters.get("mean").unwrap()), [0.5, 0.5]);
    assert!(
        !mean.tensor().unwrap().requires_grad()
            && !mean.tensor().unwrap().shares_storage(parameters.values())
    );
    assert!(parameters.get("layers.2.bias").unwrap_err().to_string().contains("layers.2.bias"));

    let x = Tensor::ones([2, 5], DType::F32, &device()).unwrap();
    linear.forward(&x).unwrap().sum(()).unwrap().backward().unwrap();
    let gradients = values(parameters.gradients());
    let bias = segments[1];
    assert_eq!(gradients[bias.offset..][..4], [2.0, 2.0, 2.0, 0.0]);
    parameters.zero_gradients().unwrap();
    assert!(values(parameters.gradients()).iter().all(|&g| g == 0.0));
}

#[test]
fn the_same_seed_gives_the_same_model() {
    let make = |seed: u64| {
        let builder = ParameterBuilder::new(&device(), DType::F32);
        Linear::new(&builder, 7, 9).unwrap();
        values(builder.build(&Generator::new(&device(), seed).unwrap()).unwrap().values())
    };
    assert_eq!(make(4), make(4));
    assert_ne!(make(4), make(5));
}

#[test]
fn groups_steer_decay_rate_and_training() {
    let device = device();
    let builder = ParameterBuilder::new(&device, DType::F32);
    for name in ["slow", "frozen", "plain"] {
        builder.parameter(name, [1, 2], Init::Constant(1.0)).unwrap();
    }
    builder.parameter("bias", 2, Init::Constant(1.0)).unwrap();
    let mut parameters = build(&builder);
    // The second call keeps what the first one set.
    assert_eq!(parameters.set_group(|name, _| name == "slow", |group| group.rate_factor = 0.5).unwrap(), 1);
    assert_eq!(parameters.set_group(|name, _| name == "slow", |group| group.decay_factor = 0.0).unwrap(), 1);
    let both = Group { rate_factor: 0.5, decay_factor: 0.0, trainable: true };
    assert_eq!(parameters.group("slow").unwrap(), both);
    assert!(parameters.group("fast").unwrap_err().to_string().contains("`fast`"));
    let options = SgdOptions { momentum: 0.0, weight_decay: 1.0 };
    let optimizer = Sgd::new(&parameters, options, Schedule::Constant { lr: 0.25 }).unwrap();
    let loss = |parameters: &Parameters| {
        let of = |name: &str| parameters.get(name).unwrap().sum(()).unwrap();
        of("slow").add(&of("frozen")).unwrap().add(&of("plain")).unwrap()
    };
    // A gradient accumulated before freezing has no effect.
    loss(&parameters).backward().unwrap();
    assert_eq!(parameters.set_group(|name, _| name == "frozen", |group| group.trainable = false).unwrap(), 1);
    let gathered = parameters.get("frozen").unwrap();
    assert!(!gathered.requires_grad() && values(parameters.gradients()).iter().sum::<f32>() == 4.0);
    optimizer.step().unwrap();
    let now = |name: &str| values(parameters.get(name).unwrap())[0];
    assert_eq!([now("slow"), now("frozen"), now("plain"), now("bias")], [0.875, 1.0, 0.5, 1.0]);

    parameters.set_group(|name, _| name == "frozen", |group| group.trainable = true).unwrap();
    loss(&parameters).backward().unwrap();
    optimizer.step().unwrap();
    assert_eq!(values(parameters.get("frozen").unwrap()), [0.5, 0.5]);
    let bad = parameters.set_group(|_, _| true, |group| group.rate_factor = f64::INFINITY).unwrap_err();
    assert!(bad.to_string().contains("rate_factor inf"));
    assert_eq!(parameters.group("slow").unwrap(), both);
}

/// Two layers, trained on one batch: eagerly or by a recorded step, with the stem frozen in the first four steps. A living
/// step refuses the change at once; a new one continues.
fn thaw(is_recorded: bool) -> Vec<f32> {
    let device = device();
    let builder = ParameterBuilder::new(&device, DType::F32);
    let stem = Linear::new(&builder.scope("stem"), 3, 4).unwrap();
    let head = Linear::new(&builder.scope("head"), 4, 2).unwrap();
    let random = Generator::new(&device, 1).unwrap();
    let mut parameters = builder.build(&random).unwrap();
    let schedule = Schedule::Constant { lr: 0.1 };
    let optimizer =
        AdamW::new(&parameters, AdamWOptions::default(), schedule).unwrap().clip_grad_norm(0.5).unwrap();
    let x = random.normal([5, 3], DType::F32).unwrap();
    let closure = |x: &[Tensor]| {
        let loss = head.forward(&stem.forward(&x[0])?.tanh()?)?.square()?.sum(())?;
        loss.backward()?;
        optimizer.step()?;
        Ok(vec![loss.detach()])
    };
    let mut step = is_recorded.then(|| Step::new(&device, closure));
    for i in 0..8 {
        if i == 0 || i == 4 {
            let trains = i == 4;
            let select = parameters.named("stem.*").unwrap();
            assert_eq!(parameters.set_group(select, |group| group.trainable = trains).unwrap(), 2);
        }
        let Some(step) = &mut step else {
            closure(std::slice::from_ref(&x)).unwrap();
            continue;
        };
        if i == 4 {
            let before = values(parameters.values());
            let error = step.call(std::slice::from_ref(&x)).unwrap_err().to_string();
            assert!(
                error.contains("stem.weight (f32 [4, 3]) requires a gradient now (and 1 more"),
                "{error}"
            );
            assert!(error.contains("make a new Step"), "{error}");
            assert_eq!(values(parameters.values()), before);
            *step = Step::new(&device, closure);
        }
        step.call(std::slice::from_ref(&x)).unwrap();
    }
    step.map_or(Ok(()), Step::finish).unwrap();
    values(parameters.values())
}

#[test]
fn a_part_that_trains_again_is_found_by_the_living_step_and_a_new_one_continues() {
    assert_eq!(thaw(true), thaw(false));
}

#[test]
fn a_step_allocates_nothing_and_reads_nothing_back() {
    let device = device();
    let builder = ParameterBuilder::new(&device, DType::F32);
    Linear::new(&builder, 50, 30).unwrap();
    let parameters = build(&builder);
    let schedule = Schedule::Cosine { lr: 1e-3, eta_min: 0.0, t_max: 10 };
    let optimizer =
        AdamW::new(&parameters, AdamWOptions::default(), schedule).unwrap().clip_grad_norm(1.0).unwrap();
    let before = values(parameters.values());
    parameters.gradients().fill(1.0).unwrap();
    // Tests of this file run in parallel on the same device. Other tests only increase the counts, so the smallest
    // difference of many tries belongs to this test.
    let cost = |stats: refrain::Stats| [stats.allocations, stats.uploads, stats.downloads];
    let least = (0..200)
        .map(|_| {
            let start = cost(device.stats());
            optimizer.step().unwrap();
            let end = cost(device.stats());
            end.iter().zip(start).map(|(e, s)| e - s).sum::<u64>()
        })
        .min();
    assert_eq!(least, Some(0));
    assert_ne!(values(parameters.values()), before);
}

#[test]
fn wrong_declarations_are_named() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let declare = |name: &str| builder.scope("a").parameter(name, 1, Init::Constant(0.0));
    let early = declare("w").unwrap();
    assert!(early.tensor().unwrap_err().to_string().contains("`a.w`"));
    let twice = declare("w").err().unwrap();
    assert!(matches!(&twice, Error::Parameter { name, .. } if name == "a.w"), "{twice}");
    assert!(declare("").is_err());
    let reserved = builder.scope("optimizer").parameter("step", 1, Init::Constant(0.0));
    assert!(reserved.err().unwrap().to_string().contains("optimizer"));
    let parameters = build(&builder);
    assert!(early.tensor().is_ok());
    assert!(declare("late").err().unwrap().to_string().contains("declare all parameters before it"));
    assert!(builder.build(&Generator::new(&device(), 1).unwrap()).is_err());
    let integers = ParameterBuilder::new(&device(), DType::I64);
    assert!(integers.build(&Generator::new(&device(), 1).unwrap()).is_err());
    let schedule = Schedule::Constant { lr: 0.1 };
    let negative = AdamW::new(&parameters, AdamWOptions::default(), schedule).unwrap().clip_grad_norm(-1.0);
    assert!(negative.err().unwrap().to_string().contains("max_norm"));
    let options = AdamWOptions { betas: (0.9, 1.5), ..AdamWOptions::default() };
    let error = AdamW::new(&parameters, options, schedule).unwrap().step().unwrap_err();
    assert!(error.to_string().contains("betas.1 is 1.5"), "{error}");
}

#[test]
fn a_model_without_parameters_builds_and_steps() {
    let parameters = build(&ParameterBuilder::new(&device(), DType::F32));
    assert_eq!(parameters.count(), 0);
    let optimizer = AdamW::new(&parameters, AdamWOptions::default(), Schedule::Constant { lr: 0.1 }).unwrap();
    optimizer.step().unwrap();
}
