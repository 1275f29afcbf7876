//! Learning rates on the device, against their formulas on the host.

mod common;

use common::device;
use refrain::optim::{AdamWOptions, Schedule, SgdOptions};
use refrain::{DType, Generator, Step, Tensor};
use refrain_nn::checkpoint::{self, Checkpoint};
use refrain_nn::{
    AdamW, Init, LearningRate, Optimizer, ParameterBuilder, Parameters, Plateau, PlateauOptions,
    PlateauState, Sgd, Snapshot,
};
use tempfile::tempdir;

fn parameters() -> Parameters {
    let builder = ParameterBuilder::new(&device(), DType::F64);
    builder.parameter("w", 1, Init::Constant(0.0)).unwrap();
    builder.build(&Generator::new(&device(), 0).unwrap()).unwrap()
}

/// The rates of the first steps: as the optimiser says, and as a weight moves that has gradient 1. In a recorded step the
/// same.
fn rates(rate: &LearningRate, steps: usize) -> Vec<f64> {
    let run = |recorded: bool| {
        let parameters = parameters();
        let optimizer =
            Sgd::new(&parameters, SgdOptions { momentum: 0.0, weight_decay: 0.0 }, rate.clone()).unwrap();
        let w = parameters.get("w").unwrap();
        let train = || -> refrain_nn::Result<()> {
            w.sum(())?.backward()?;
            optimizer.step()
        };
        let mut step = Step::new(w.device(), |_| {
            train()?;
            Ok(vec![])
        });
        let mut rates = vec![optimizer.step_state().learning_rate().to_scalar::<f64>().unwrap()];
        let mut before = 0.0;
        for _ in 0..steps {
            if recorded {
                step.call(&[]).map(drop).unwrap()
            } else {
                train().unwrap()
            }
            let rate = optimizer.step_state().learning_rate().to_scalar::<f64>().unwrap();
            let now = w.to_scalar::<f64>().unwrap();
            assert!((before - now - rate).abs() < 1e-12, "the weight moved by {}, not {rate}", before - now);
            before = now;
            rates.push(rate);
        }
        step.finish().unwrap();
        // The rate of the first step is known before it.
        assert_eq!(rates.remove(0).to_bits(), rates[0].to_bits());
        rates
    };
    let eager = run(false);
    assert_eq!(eager, run(true));
    eager
}

#[track_caller]
fn close(found: &[f64], expected: impl Fn(i32) -> f64) {
    for (i, (found, step)) in found.iter().zip(0..).enumerate() {
        let expected = expected(step);
        assert!(
            (found - expected).abs() <= 4.0 * f64::EPSILON * expected,
            "step {i}: {found}, not {expected}"
        );
    }
}

#[test]
fn rates_follow_their_formulas() {
    close(&rates(&LearningRate::step_decay(0.3, 3, 0.5).unwrap(), 10), |step| 0.3 * 0.5f64.powi(step / 3));
    close(&rates(&LearningRate::exponential(0.3, 0.9).unwrap(), 10), |step| 0.3 * 0.9f64.powi(step));
    let table = [0.5, 0.25, 0.125];
    let found = rates(&LearningRate::table(&table, &device()).unwrap(), 6);
    assert_eq!(found, [0.5, 0.25, 0.125, 0.125, 0.125, 0.125]);
    // A function of the user's, in f32.
    let own = LearningRate::custom("1 / (step + 2)", |step| {
        step.to_dtype(DType::F32)?.add_scalar(2.0)?.reciprocal()
    });
    assert_eq!(rates(&own, 5), (0..5).map(|step| f64::from(1.0 / (step as f32 + 2.0))).collect::<Vec<_>>());
    let schedule = Schedule::Cosine { lr: 0.1, eta_min: 0.01, t_max: 4 };
    let found = rates(&schedule.into(), 6);
    close(&found, |step| schedule.at(step as u64));
    assert_eq!(LearningRate::from(schedule).schedule(), Some(schedule));
    assert_eq!(own.schedule(), None);
}

#[test]
fn bad_rates_are_refused() {
    let says = |rate: refrain_nn::Result<LearningRate>, part: &str| {
        let message = rate.err().unwrap().to_string();
        assert!(message.contains(part), "{message}");
    };
    says(LearningRate::step_decay(-0.1, 3, 0.5), "lr is -0.1");
    says(LearningRate::step_decay(0.1, 0, 0.5), "step_size is 0");
    says(LearningRate::exponential(0.1, f64::NAN), "gamma is NaN");
    says(LearningRate::table(&[], &device()), "no rates");
    says(LearningRate::table(&[0.1, f64::INFINITY], &device()), "a rate is inf");
    let make = |rate: LearningRate| Sgd::new(&parameters(), SgdOptions::default(), rate).map(drop);
    let shape = make(LearningRate::custom("two", |step| Tensor::zeros([2], DType::F64, step.device())));
    assert!(shape.unwrap_err().to_string().contains("a float of shape [1]"));
    let dtype = make(LearningRate::custom("whole", |step| Ok(step.clone())));
    assert!(dtype.unwrap_err().to_string().contains("i64"));
    for options in [
        PlateauOptions { factor: 1.0, ..PlateauOptions::default() },
        PlateauOptions { threshold: -0.1, ..PlateauOptions::default() },
        PlateauOptions { min_lr: f64::NAN, ..PlateauOptions::default() },
    ] {
        assert!(Plateau::new(0.1, options, &device()).is_err());
    }
}

#[test]
fn a_plateau_lowers_the_rate_when_the_loss_no_longer_improves() {
    let options = PlateauOptions { factor: 0.5, patience: 2, threshold: 0.1, min_lr: 0.03 };
    let plateau = Plateau::new(0.1, options, &device()).unwrap();
    let parameters = parameters();
    let optimizer = Sgd::new(&parameters, SgdOptions::default(), plateau.learning_rate()).unwrap();
    let mut step = Step::new(parameters.values().device(), |_| {
        optimizer.step()?;
        Ok(vec![optimizer.step_state().learning_rate().copy()?])
    });
    // 9.5 is not 10 % below 10. Infinity and NaN do not improve. After two without improvement, the third lowers the rate.
    let losses = [f64::INFINITY, 10.0, 9.5, f64::NAN, 9.2, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0];
    let expected = [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.03, 0.03, 0.03, 0.03];
    for (loss, expected) in losses.into_iter().zip(expected) {
        plateau.observe(loss).unwrap();
        assert_eq!(step.call(&[]).unwrap().to_scalar::<f64>(0).unwrap(), expected, "after {loss}");
    }
    step.finish().unwrap();
    let state = plateau.state();
    assert_eq!(state, PlateauState { lr: 0.03, best: Some(8.0), without_improvement: 0 });
    let resumed = Plateau::new(0.1, options, &device()).unwrap();
    resumed.set_state(state).unwrap();
    assert_eq!(rates(&resumed.learning_rate(), 2), [0.03, 0.03]);
    for lr in [-0.1, f64::NAN] {
        assert!(resumed.set_state(PlateauState { lr, ..state }).is_err());
    }
    assert_eq!(resumed.state(), state);
}

#[test]
fn a_run_continues_only_with_the_same_rate() {
    let folder = tempdir().unwrap();
    let parameters = parameters();
    let make = |gamma| {
        AdamW::new(&parameters, AdamWOptions::default(), LearningRate::exponential(0.1, gamma).unwrap())
    };
    let optimizer = make(0.9).unwrap();
    let snapshot = Snapshot {
        parameters: &parameters,
        optimizer: Some(&optimizer),
        generators: &[],
        ema: None,
        config: serde_json::Value::Null,
    };
    checkpoint::save(folder.path(), &snapshot).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    checkpoint.resume(&parameters, &make(0.9).unwrap(), &[], None).unwrap();
    let refused = checkpoint.resume(&parameters, &make(0.8).unwrap(), &[], None).unwrap_err().to_string();
    assert!(refused.contains("0.8") && refused.contains("0.9"), "{refused}");
}
