//! Optimisers, clipping and schedules compared with PyTorch.

mod common;

use common::{Case, Reference, assert_close, device, values};
use refrain::optim::{self, AdamOptions, AdamWOptions, LionOptions, RmsPropOptions, Schedule, SgdOptions};
use refrain::{DType, Generator, Step, Tensor, no_grad};
use refrain_nn::checkpoint::{self, Checkpoint, Snapshot};
use refrain_nn::{Adam, AdamW, Group, Init, Lion, Optimizer, ParameterBuilder, Parameters, RmsProp, Sgd};

fn reference() -> Reference {
    Reference::new(include_bytes!("reference/optim.safetensors"))
}

/// The case's parameters in one store.
fn store(case: &Case<'_>, dtype: DType) -> Parameters {
    let builder = ParameterBuilder::new(&device(), dtype);
    for i in 0..case.count("params") {
        let key = if case.has("param0") { format!("param{i}") } else { format!("grad{i}") };
        builder.parameter(format!("p{i}"), case.shape(&key), Init::Constant(0.0)).unwrap();
    }
    let parameters = builder.build(&Generator::new(&device(), 0).unwrap()).unwrap();
    for (i, (_, t)) in parameters.iter().enumerate() {
        if case.has("param0") {
            no_grad(|| t.copy_from(&case.tensor(&format!("param{i}"), dtype))).unwrap();
        }
    }
    parameters
}

/// Runs the case's steps. Each step has its own learning rate, so the base rate is set through the group.
fn run(case: &Case<'_>, dtype: DType, bound: f64, make: &dyn Fn(&Parameters) -> Box<dyn Optimizer>) {
    let mut parameters = store(case, dtype);
    let optimizer = make(&parameters);
    for (t, rate) in case.values("lr").into_iter().enumerate() {
        let t = t + 1;
        let group = Group { rate_factor: rate, ..Group::default() };
        parameters.set_group(|_, _| true, |own| *own = group).unwrap();
        for (i, (_, p)) in parameters.iter().enumerate() {
            p.grad().unwrap().copy_from(&case.tensor(&format!("step{t}/grad{i}"), dtype)).unwrap();
        }
        optimizer.step().unwrap();
        assert!(values(parameters.gradients()).iter().all(|&g| g == 0.0));
        let flat = optimizer.buffers();
        let mut offset = 0;
        for (i, (name, p)) in parameters.iter().enumerate() {
            let what = |of: &str| format!("{}, {dtype}, step {t}, {of} of {name}", case.name);
            assert_close(p, &case.values(&format!("step{t}/param{i}")), bound, &what("value"));
            for (buffer, flat) in &flat {
                let key = format!("step{t}/{buffer}{i}");
                let run = flat.narrow(0, offset, p.numel()).unwrap();
                assert_close(&run, &case.values(&key), bound, &what(buffer));
            }
            offset = (offset + p.numel()).next_multiple_of(256 / dtype.size());
        }
        assert_eq!(optimizer.step_state().step().to_vec::<i64>().unwrap(), [t as i64]);
    }
}

// A step has about ten roundings of numbers no larger than the parameter; five steps.
const DTYPES: [(DType, f64); 2] =
    [(DType::F64, 50.0 * f64::EPSILON), (DType::F32, 50.0 * f32::EPSILON as f64)];

#[test]
fn adamw_agrees_with_pytorch() {
    for case in reference().of("adamw") {
        let betas = case.attrs["betas"].as_array().unwrap();
        let options = AdamWOptions {
            betas: (betas[0].as_f64().unwrap(), betas[1].as_f64().unwrap()),
            eps: case.number("eps"),
            weight_decay: case.number("weight_decay"),
        };
        for (dtype, bound) in DTYPES {
            run(&case, dtype, bound, &|p| {
                Box::new(AdamW::new(p, options, Schedule::Constant { lr: 1.0 }).unwrap())
            });
        }
    }
}

#[test]
fn sgd_agrees_with_pytorch() {
    for case in reference().of("sgd") {
        let options =
            SgdOptions { momentum: case.number("momentum"), weight_decay: case.number("weight_decay") };
        for (dtype, bound) in DTYPES {
            run(&case, dtype, bound, &|p| {
                Box::new(Sgd::new(p, options, Schedule::Constant { lr: 1.0 }).unwrap())
            });
        }
    }
}

#[test]
fn adam_agrees_with_pytorch() {
    for case in reference().of("adam") {
        let betas = case.attrs["betas"].as_array().unwrap();
        let options = AdamOptions {
            betas: (betas[0].as_f64().unwrap(), betas[1].as_f64().unwrap()),
            eps: case.number("eps"),
            weight_decay: case.number("weight_decay"),
        };
        for (dtype, bound) in DTYPES {
            run(&case, dtype, bound, &|p| {
                Box::new(Adam::new(p, options, Schedule::Constant { lr: 1.0 }).unwrap())
            });
        }
    }
}

#[test]
fn rmsprop_agrees_with_pytorch() {
    for case in reference().of("rmsprop") {
        let options = RmsPropOptions {
            alpha: case.number("alpha"),
            eps: case.number("eps"),
            weight_decay: case.number("weight_decay"),
            momentum: case.number("momentum"),
            centered: case.flag("centered"),
        };
        // A variance that is a difference has fewer digits.
        let factor = if options.centered { 100.0 } else { 1.0 };
        for (dtype, bound) in DTYPES {
            run(&case, dtype, factor * bound, &|p| {
                Box::new(RmsProp::new(p, options, Schedule::Constant { lr: 1.0 }).unwrap())
            });
        }
    }
}

/// One of each kind, with a rate that changes and a small decay.
fn all(parameters: &Parameters) -> Vec<Box<dyn Optimizer>> {
    let schedule = Schedule::Warmup { lr: 0.05, warmup_steps: 4, start_factor: 0.2 };
    let rms = RmsPropOptions { momentum: 0.5, centered: true, ..RmsPropOptions::default() };
    let sgd = SgdOptions { momentum: 0.9, weight_decay: 0.01 };
    let lion = LionOptions { weight_decay: 0.1, ..LionOptions::default() };
    vec![
        Box::new(
            AdamW::new(parameters, AdamWOptions::default(), schedule).unwrap().skip_non_finite().unwrap(),
        ),
        Box::new(Adam::new(parameters, AdamOptions::default(), schedule).unwrap().skip_non_finite().unwrap()),
        Box::new(Sgd::new(parameters, sgd, schedule).unwrap().skip_non_finite().unwrap()),
        Box::new(
            RmsProp::new(parameters, rms, schedule)
                .and_then(|o| o.clip_grad_norm(0.5))
                .and_then(RmsProp::skip_non_finite)
                .unwrap(),
        ),
        Box::new(Lion::new(parameters, lion, schedule).unwrap().skip_non_finite().unwrap()),
    ]
}

/// A model of some numbers, and its optimiser of kind `i`.
fn model(i: usize, dtype: DType) -> (Parameters, Box<dyn Optimizer>) {
    let builder = ParameterBuilder::new(&device(), dtype);
    for (name, size) in [("a", 7), ("b", 300)] {
        builder.parameter(name, size, Init::Normal { mean: 0.0, std: 1.0 }).unwrap();
    }
    let parameters = builder.build(&Generator::new(&device(), 5).unwrap()).unwrap();
    let optimizer = all(&parameters).swap_remove(i);
    (parameters, optimizer)
}

/// Everything that a step changes, in bits of f64.
fn state((parameters, optimizer): &(Parameters, Box<dyn Optimizer>)) -> Vec<u64> {
    let buffers = optimizer.buffers();
    let all = std::iter::once(parameters.values())
        .chain(buffers.into_iter().map(|(_, t)| t))
        .chain([optimizer.step_state().step()]);
    all.flat_map(|t| values(&t.detach())).map(f64::to_bits).collect()
}

/// The gradients of step `t`.
fn gradients(parameters: &Parameters, t: u64) -> Tensor {
    let generator = Generator::new(&device(), 100 + t).unwrap();
    generator.normal(parameters.values().shape(), parameters.values().dtype()).unwrap()
}

#[test]
fn every_optimiser_is_saved_and_resumed() {
    for i in 0..5 {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let run = |model: &(Parameters, Box<dyn Optimizer>), steps: std::ops::Range<u64>| {
                for t in steps {
                    model.0.gradients().copy_from(&gradients(&model.0, t)).unwrap();
                    model.1.step().unwrap();
                }
            };
            let (whole, first, second) = (model(i, dtype), model(i, dtype), model(i, dtype));
            run(&whole, 0..6);
            run(&first, 0..3);
            let folder = tempfile::tempdir().unwrap();
            let snapshot = Snapshot {
                parameters: &first.0,
                optimizer: Some(first.1.as_ref()),
                generators: &[],
                ema: None,
                config: serde_json::json!({}),
            };
            checkpoint::save(folder.path(), &snapshot).unwrap();
            Checkpoint::open(folder.path()).unwrap().resume(&second.0, second.1.as_ref(), &[], None).unwrap();
            run(&second, 3..6);
            let what = second.1.describe();
            assert_eq!(state(&whole), state(&second), "{what} in {dtype}");
            // Another kind does not continue it.
            let other = model((i + 1) % 5, dtype);
            let error =
                Checkpoint::open(folder.path()).unwrap().resume(&other.0, other.1.as_ref(), &[], None);
            assert!(error.is_err(), "{what} in {dtype}");
        }
    }
}

#[test]
fn steps_with_gradients_that_are_not_finite_are_skipped_and_counted_eager_and_recorded() {
    for i in 0..5 {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            for recorded in [false, true] {
                let (skipping, clean) = (model(i, dtype), model(i, dtype));
                let mut step = Step::new(&device(), |g: &[Tensor]| {
                    skipping.0.gradients().copy_from(&g[0])?;
                    skipping.1.step()?;
                    Ok(vec![])
                });
                let mut call = |g: &Tensor| match recorded {
                    true => drop(step.call(std::slice::from_ref(g)).unwrap()),
                    false => {
                        skipping.0.gradients().copy_from(g).unwrap();
                        skipping.1.step().unwrap();
                    }
                };
                let mut skipped = 0;
                for (t, broken) in
                    [None, Some(f64::NAN), None, Some(f64::INFINITY), Some(f64::NEG_INFINITY), None]
                        .into_iter()
                        .enumerate()
                {
                    let g = gradients(&clean.0, t as u64);
                    if let Some(broken) = broken {
                        let g = g.copy().unwrap();
                        g.narrow(0, 3, 1).unwrap().fill(broken).unwrap();
                        call(&g);
                        skipped += 1;
                    } else {
                        call(&g);
                        clean.0.gradients().copy_from(&g).unwrap();
                        clean.1.step().unwrap();
                    }
                }
                step.finish().unwrap();
                let what = format!("{} in {dtype}, recorded: {recorded}", skipping.1.describe());
                assert_eq!(state(&skipping), state(&clean), "{what}");
                for (name, p) in skipping.0.iter() {
                    assert!(values(&p.grad().unwrap()).iter().all(|&g| g == 0.0), "{name}, {what}");
                }
                let count = |o: &dyn Optimizer| values(o.step_state().skipped().unwrap());
                assert_eq!(count(skipping.1.as_ref()), [f64::from(skipped)], "{what}");
                assert_eq!(count(clean.1.as_ref()), [0.0], "{what}");
            }
        }
    }
}

#[test]
fn clipping_agrees_with_pytorch() {
    for case in reference().of("clip_grad_norm") {
        for (dtype, bound) in [(DType::F64, 8.0 * f64::EPSILON), (DType::F32, 2.0 * f32::EPSILON as f64)] {
            let parameters = store(&case, dtype);
            let optimizer = Sgd::new(&parameters, SgdOptions::default(), Schedule::Constant { lr: 1.0 })
                .unwrap()
                .clip_grad_norm(case.number("max_norm"))
                .unwrap();
            for (i, (_, p)) in parameters.iter().enumerate() {
                p.grad().unwrap().copy_from(&case.tensor(&format!("grad{i}"), dtype)).unwrap();
            }
            // From zero, with rate 1 and no momentum or decay, a step results in minus the clipped gradient.
            optimizer.step().unwrap();
            let norm = optimizer.step_state().gradient_norm();
            assert_close(norm, &case.values("total_norm"), bound, &format!("{}, norm", case.name));
            for (i, (_, p)) in parameters.iter().enumerate() {
                let expected = case.values(&format!("clipped{i}"));
                assert_close(&p.neg().unwrap(), &expected, bound, &format!("{}, p{i}", case.name));
            }
        }
    }
}

fn schedule(case: &Case<'_>) -> Schedule {
    match case.attrs["kind"].as_str().unwrap() {
        "constant" => Schedule::Constant { lr: case.number("base_lr") },
        "cosine" => Schedule::Cosine {
            lr: case.number("base_lr"),
            eta_min: case.number("eta_min"),
            t_max: case.count("t_max") as u64,
        },
        "one_cycle" => Schedule::OneCycle {
            max_lr: case.number("max_lr"),
            total_steps: case.count("total_steps") as u64,
            pct_start: case.number("pct_start"),
            div_factor: case.number("div_factor"),
            final_div_factor: case.number("final_div_factor"),
        },
        "warmup_cosine" => Schedule::WarmupCosine {
            lr: case.number("base_lr"),
            warmup_steps: case.count("warmup_steps") as u64,
            total_steps: case.count("total_steps") as u64,
            start_factor: case.number("start_factor"),
            eta_min: case.number("eta_min"),
        },
        other => panic!("schedule {other}"),
    }
}

#[test]
fn schedules_agree_with_pytorch() {
    for case in reference().of("schedule") {
        let schedule = schedule(&case);
        let step = Tensor::zeros([1], DType::I64, &device()).unwrap();
        for expected in case.values("lr") {
            let rate = values(&optim::learning_rate(schedule, &step).unwrap())[0];
            assert!(
                (rate - expected).abs() <= 1e-13 * expected + 1e-18,
                "{}, step {}: {rate}, expected {expected}",
                case.name,
                values(&step)[0]
            );
            step.add_scalar_assign(1.0).unwrap();
        }
    }
}

#[test]
fn an_optimizer_takes_the_rate_of_its_schedule_at_each_step() {
    let builder = ParameterBuilder::new(&device(), DType::F64);
    let w = builder.parameter("w", 1, Init::Constant(0.0)).unwrap();
    let parameters = builder.build(&Generator::new(&device(), 0).unwrap()).unwrap();
    let schedule =
        Schedule::WarmupCosine { lr: 0.5, warmup_steps: 2, total_steps: 5, start_factor: 0.1, eta_min: 0.0 };
    let optimizer = Sgd::new(&parameters, SgdOptions::default(), schedule).unwrap();
    let mut expected = 0.0;
    for t in 0..7 {
        w.tensor().unwrap().sum(()).unwrap().backward().unwrap();
        optimizer.step().unwrap();
        expected -= schedule.at(t);
        assert!((values(w.tensor().unwrap())[0] - expected).abs() < 1e-15);
        assert_eq!(values(optimizer.step_state().learning_rate()), [schedule.at(t)]);
    }
}
