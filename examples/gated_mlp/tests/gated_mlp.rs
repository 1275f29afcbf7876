//! The network learns, the recorded step has the bits of the eager one, and on a GPU it is fewer launches.

use gated_mlp::Training;
use refrain::DeviceKind;
use refrain_test::devices_of_equal_bits as devices;

#[test]
fn eager_recorded_and_simulated_training_agree_bit_for_bit() {
    let bits = |losses: Vec<f32>| losses.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let mut all = Vec::new();
    for device in devices() {
        let [eager, recorded] = [0, 1].map(|_| Training::new(16, 2, &device).unwrap());
        let losses = bits(eager.run(6).unwrap());
        let mut launches = (0, 0);
        let look =
            |program: &refrain::Program| launches = (program.recorded_launches(), program.launch_count());
        assert_eq!(losses, bits(recorded.run_recorded(6, look).unwrap()), "{device}");
        let weights = |t: &Training| bits(t.parameters.values().to_vec().unwrap());
        assert_eq!(weights(&eager), weights(&recorded), "{device}");
        all.push((losses, weights(&eager)));
        println!("{device}: {} launches recorded, {} replayed", launches.0, launches.1);
        let fuses =
            device.kind() != DeviceKind::Cpu && std::env::var("REFRAIN_FUSE").map_or(true, |v| v != "0");
        // Each block has a chain forward before and after its last product, and as many backward.
        assert!(!fuses || launches.1 + 10 <= launches.0, "{device}: {launches:?}");
    }
    assert!(all.iter().all(|other| *other == all[0]), "devices differ");
}

#[test]
fn it_learns_the_function() {
    let training = Training::new(64, 2, &devices().remove(0)).unwrap();
    let losses = training.run_recorded(300, |_| {}).unwrap();
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    let (first, last) = (mean(&losses[..10]), mean(&losses[290..]));
    assert!(last < 0.4 * first, "the loss is {first} at first and {last} at last");
}
