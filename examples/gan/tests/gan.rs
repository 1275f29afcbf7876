//! The artist learns, and the recorded step has the bits of the eager one, on the CPU and on simulated GPUs.

use gan::{CENTRE, SPREAD, Training};
use refrain_test::devices_of_equal_bits as devices;

#[test]
fn eager_recorded_and_simulated_training_agree_bit_for_bit() {
    let mut all = Vec::new();
    for device in devices() {
        let (eager, recorded) = (Training::new(8, &device).unwrap(), Training::new(8, &device).unwrap());
        let bits = |losses: Vec<[f32; 2]>| losses.into_iter().flatten().map(f32::to_bits).collect::<Vec<_>>();
        let losses = bits(eager.run(10, false).unwrap());
        assert_eq!(losses, bits(recorded.run(10, true).unwrap()), "{device}");
        let weights = |t: &Training| {
            let players = [&t.artist, &t.critic].map(|p| p.parameters.values().to_vec::<f32>().unwrap());
            players.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(weights(&eager), weights(&recorded), "{device}");
        all.push((losses, weights(&eager)));
    }
    assert!(all.iter().all(|other| *other == all[0]), "devices differ");
}

#[test]
fn a_step_of_the_artist_leaves_no_gradient_in_the_critic() {
    let training = Training::new(8, &devices().remove(0)).unwrap();
    training.run(2, false).unwrap();
    for player in [&training.artist, &training.critic] {
        let gradients = player.parameters.gradients().to_vec::<f32>().unwrap();
        assert!(gradients.iter().all(|&g| g == 0.0));
    }
}

/// The share of points near the centre, and their standard deviation in both directions.
fn summary(points: &[[f32; 2]]) -> (f64, [f64; 2]) {
    let count = points.len() as f64;
    let is_near = |p: &&[f32; 2]| (0..2).all(|i| (f64::from(p[i]) - CENTRE[i]).abs() < 4.0 * SPREAD);
    let spread = [0, 1].map(|i| {
        let mean = points.iter().map(|p| f64::from(p[i])).sum::<f64>() / count;
        (points.iter().map(|p| (f64::from(p[i]) - mean).powi(2)).sum::<f64>() / count).sqrt()
    });
    (points.iter().filter(is_near).count() as f64 / count, spread)
}

#[test]
fn the_artist_learns_to_draw_the_cloud() {
    let training = Training::new(128, &devices().remove(0)).unwrap();
    let (before, _) = summary(&training.draw(1000).unwrap());
    assert!(before < 0.1, "{before}");
    training.run(1200, true).unwrap();
    let (after, spread) = summary(&training.draw(1000).unwrap());
    // The points are where they should be, and they are not all the same.
    assert!(after > 0.9, "{after}");
    assert!(spread.iter().all(|&s| s > 0.1 * SPREAD && s < 2.0 * SPREAD), "{spread:?}");
}
