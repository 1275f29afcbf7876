//! The forecaster learns, and the recorded step has the bits of the eager one, on the CPU and on simulated GPUs.

use gru_forecaster::Training;
use refrain_test::devices_of_equal_bits as devices;

#[test]
fn eager_recorded_and_simulated_training_agree_bit_for_bit() {
    let bits = |losses: Vec<f32>| losses.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let mut all = Vec::new();
    for device in devices() {
        let (eager, recorded) =
            (Training::new(8, 4, &device).unwrap(), Training::new(8, 4, &device).unwrap());
        let losses = bits(eager.run(5, false).unwrap());
        assert_eq!(losses, bits(recorded.run(5, true).unwrap()), "{device}");
        let weights = |t: &Training| bits(t.parameters.values().to_vec().unwrap());
        assert_eq!(weights(&eager), weights(&recorded), "{device}");
        all.push((losses, weights(&eager)));
    }
    assert!(all.iter().all(|other| *other == all[0]), "devices differ");
}

#[test]
fn it_forecasts_better_than_by_the_last_value() {
    let training = Training::new(16, 32, &devices().remove(0)).unwrap();
    let (before, naive) = training.test().unwrap();
    training.run(120, true).unwrap();
    let (after, _) = training.test().unwrap();
    assert!(
        after < 0.2 * naive && after < 0.2 * before,
        "{before} before, {after} after; the last value: {naive}"
    );
}
