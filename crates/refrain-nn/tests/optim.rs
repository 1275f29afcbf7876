//! Optimisers, clipping and schedules compared with PyTorch.

mod common;

use common::{Case, Reference, assert_close, device, values};
use refrain::optim::{self, AdamWOptions, Schedule, SgdOptions};
use refrain::{DType, Generator, Tensor, no_grad};
use refrain_nn::{AdamW, Init, Optimizer, ParameterBuilder, Parameters, Sgd};

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
        parameters.set_group(|_, _| true, |group| group.rate_factor = rate).unwrap();
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
