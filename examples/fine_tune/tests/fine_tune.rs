//! Weights of PyTorch give PyTorch's features; the model learns from there; and the recorded step has the bits of the eager one, on
//! the CPU and on simulated GPUs.

use fine_tune::{Training, load_body, pretrained};
use refrain::no_grad;
use refrain_nn::Weights;
use refrain_test::devices_of_equal_bits as devices;

fn bits(x: Vec<f32>) -> Vec<u32> {
    x.into_iter().map(f32::to_bits).collect()
}

#[test]
fn weights_of_pytorch_under_other_names_give_the_features_of_pytorch() {
    for device in devices() {
        let training = Training::new(true, &device).unwrap();
        let weights = Weights::open(pretrained()).unwrap();
        let input = weights.tensor("check.input", &device).unwrap();
        let expected = weights.tensor("check.features", &device).unwrap().to_vec::<f32>().unwrap();
        let found = no_grad(|| training.model.features(&input)).unwrap().to_vec::<f32>().unwrap();
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(found.len() == expected.len() && worst < 1e-4, "{worst} on {device}");
        let unmatched = load_body(&training.parameters, pretrained()).unwrap();
        assert_eq!(unmatched.missing, ["head.weight", "head.bias"]);
        assert_eq!(
            unmatched.unused,
            ["check.features", "check.input", "classifier.bias", "classifier.weight"]
        );
    }
}

#[test]
fn eager_recorded_and_simulated_training_agree_bit_for_bit() {
    let mut all = Vec::new();
    for device in devices() {
        let run = |recorded: bool| {
            let mut training = Training::new(true, &device).unwrap();
            let mut losses = training.run(5, recorded).unwrap();
            training.unfreeze().unwrap();
            losses.extend(training.run(5, recorded).unwrap());
            [bits(losses), bits(training.parameters.values().to_vec().unwrap())]
        };
        let eager = run(false);
        assert_eq!(eager, run(true), "{device}");
        all.push(eager);
    }
    assert!(all.iter().all(|other| *other == all[0]), "devices differ");
}

#[test]
fn accumulated_gradients_are_those_of_one_large_batch() {
    for device in devices() {
        let mut training = Training::new(true, &device).unwrap();
        training.unfreeze().unwrap();
        let (images, classes) = training.draw(32).unwrap();
        let gradients = || training.parameters.gradients().to_vec::<f32>().unwrap();
        training.accumulate(&images, &classes, 1).unwrap();
        let whole = gradients();
        training.parameters.zero_gradients().unwrap();
        for part in 0..4 {
            let (images, classes) = (images.narrow(0, 8 * part, 8), classes.narrow(0, 8 * part, 8));
            training.accumulate(&images.unwrap(), &classes.unwrap(), 4).unwrap();
        }
        let most = whole.iter().fold(0.0, |most: f32, g| most.max(g.abs()));
        let worst = whole.iter().zip(gradients()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most > 1e-3 && worst < 1e-5 * most.max(1.0), "{worst} of {most} on {device}");
    }
}

#[test]
fn a_new_head_learns_on_the_frozen_body_and_then_all_layers_learn() {
    let mut training = Training::new(true, &devices().remove(0)).unwrap();
    let body = |t: &Training| bits(t.parameters.get("body.0.weight").unwrap().to_vec().unwrap());
    let (before, by_chance) = (body(&training), training.accuracy().unwrap());
    training.run(12, true).unwrap();
    let by_head = training.accuracy().unwrap();
    assert!(by_chance < 0.8 && by_head > 0.95, "{by_chance}, then {by_head}");
    assert_eq!(body(&training), before, "a frozen body changed");
    training.unfreeze().unwrap();
    training.run(12, true).unwrap();
    assert_ne!(body(&training), before, "the body did not learn");
    assert!(training.accuracy().unwrap() > 0.97);
}
