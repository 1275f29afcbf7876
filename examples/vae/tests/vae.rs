//! The model learns, and the recorded step has the bits of the eager one, on the CPU and on simulated GPUs.

use refrain::Generator;
use refrain_test::devices_of_equal_bits as devices;
use vae::{KINDS, PIXELS, Training, images};

#[test]
fn eager_recorded_and_simulated_training_agree_bit_for_bit() {
    let bits = |losses: Vec<f32>| losses.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let mut all = Vec::new();
    for device in devices() {
        let (eager, recorded) = (Training::new(8, &device).unwrap(), Training::new(8, &device).unwrap());
        let losses = bits(eager.run(12, false).unwrap());
        assert_eq!(losses, bits(recorded.run(12, true).unwrap()), "{device}");
        let weights = |t: &Training| bits(t.parameters.values().to_vec().unwrap());
        assert_eq!(weights(&eager), weights(&recorded), "{device}");
        all.push((losses, weights(&eager)));
    }
    assert!(all.iter().all(|other| *other == all[0]), "devices differ");
}

#[test]
fn it_learns_to_draw_images_of_every_kind() {
    let device = devices().remove(0);
    let training = Training::new(64, &device).unwrap();
    let losses = training.run(600, true).unwrap();
    // At first each pixel is a guess.
    let guess = PIXELS as f32 * 2f32.ln();
    let last = losses[590..].iter().sum::<f32>() / 10.0;
    assert!((losses[0] - guess).abs() < 2.0, "{}, not {guess}", losses[0]);
    assert!(last < 0.4 * guess, "{last} after {guess}");
    // Most new images are, pixel by pixel, one of the images that there are; and not always the same one.
    let known = images(&device).unwrap().to_vec::<f32>().unwrap();
    let drawn = training.model.draw(200, &Generator::new(&device, 7).unwrap()).unwrap();
    let mut seen = [0; KINDS];
    for image in drawn.to_vec::<f32>().unwrap().chunks(PIXELS) {
        let is = |kind: &[f32]| kind.iter().zip(image).all(|(&k, &p)| (k > 0.5) == (p > 0.5));
        if let Some(kind) = known.chunks(PIXELS).position(is) {
            seen[kind] += 1;
        }
    }
    let (right, kinds) = (seen.iter().sum::<i32>(), seen.iter().filter(|&&n| n > 0).count());
    assert!(right > 100 && kinds >= 8, "{right} of 200 images of {kinds} kinds");
}
