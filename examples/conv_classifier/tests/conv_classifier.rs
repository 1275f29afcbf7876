//! The network learns, and the recorded step has the bits of the eager one, on the CPU and on simulated GPUs.

use conv_classifier::Training;
use refrain_test::devices_of_equal_bits as devices;

#[test]
fn eager_recorded_and_simulated_training_agree_bit_for_bit() {
    let bits = |losses: Vec<f32>| losses.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let mut all = Vec::new();
    for device in devices() {
        let (eager, recorded) = (Training::new(8, &device).unwrap(), Training::new(8, &device).unwrap());
        let losses = bits(eager.run(6, false).unwrap());
        assert_eq!(losses, bits(recorded.run(6, true).unwrap()), "{device}");
        let weights = |t: &Training| bits(t.parameters.values().to_vec().unwrap());
        assert_eq!(weights(&eager), weights(&recorded), "{device}");
        all.push((losses, weights(&eager)));
    }
    assert!(all.iter().all(|other| *other == all[0]), "devices differ");
}

#[test]
fn it_learns_to_tell_shapes_apart() {
    let training = Training::new(32, &devices().remove(0)).unwrap();
    // By chance, a quarter is right.
    let before = training.accuracy().unwrap();
    let losses = training.run(80, true).unwrap();
    let after = (0..4).map(|_| training.accuracy().unwrap()).sum::<f64>() / 4.0;
    assert!((losses[0] - 4f32.ln()).abs() < 0.4, "{}", losses[0]);
    assert!(
        before < 0.6 && after > 0.9,
        "{before} right before, {after} after; the last loss is {}",
        losses[79]
    );
}
