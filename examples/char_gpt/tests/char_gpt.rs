//! The model learns, and the recorded step has the bits of the eager one, on the CPU and on simulated GPUs.

use char_gpt::{Config, Training, Vocabulary, text};
use refrain::{Device, Tensor};
use refrain_nn::Mode;
use refrain_test::{devices_of_equal_bits as devices, sanitized, shortened};

fn training(dropout: f64, steps: u64, device: &Device) -> (Training, Vocabulary) {
    let text = text();
    let vocabulary = Vocabulary::of(&text);
    let config =
        Config { vocabulary: vocabulary.size(), context: 16, d_model: 32, heads: 2, layers: 1, dropout };
    let training = Training::new(&vocabulary.encode(&text), config, 16, steps, device).unwrap();
    (training, vocabulary)
}

#[test]
fn eager_recorded_and_simulated_training_agree_bit_for_bit() {
    let bits = |losses: Vec<f32>| losses.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let mut all = Vec::new();
    for device in devices() {
        let eager = training(0.1, 12, &device).0;
        let recorded = training(0.1, 12, &device).0;
        let losses = bits(eager.run(12, false).unwrap());
        assert_eq!(losses, bits(recorded.run(12, true).unwrap()), "{device}");
        let weights = |t: &Training| bits(t.parameters.values().to_vec().unwrap());
        assert_eq!(weights(&eager), weights(&recorded), "{device}");
        all.push((losses, weights(&eager)));
    }
    assert!(all.iter().all(|other| *other == all[0]), "devices differ");
}

#[test]
fn it_learns_to_spell() {
    let device = devices().remove(0);
    let steps = if sanitized() { 3 } else { 150 };
    let (training, vocabulary) = training(0.0, steps as u64, &device);
    let losses = training.run(steps, true).unwrap();
    let text = training.model.complete(&vocabulary, "two an", &device).unwrap();
    if sanitized() {
        return;
    }
    // At first all characters are alike; afterwards few are possible.
    let alike = (vocabulary.size() as f32).ln();
    let (first, last) = (losses[0], losses[140..].iter().sum::<f32>() / 10.0);
    assert!((first - alike).abs() < 0.2, "{first}, not {alike}");
    assert!(last < 0.5 * alike, "{last} after {first}");
    assert!(text.starts_with("d "), "two an|{text}");
}

#[test]
fn a_character_sees_none_after_it() {
    let device = devices().remove(0);
    let (training, _) = training(0.0, 1, &device);
    let logits = |ids: &[i64]| {
        let ids = Tensor::from_slice(ids, [1, ids.len()], &device).unwrap();
        training.model.forward(&ids, Mode::Eval).unwrap().i((0, ..4)).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(logits(&[3, 1, 4, 1, 5, 2]), logits(&[3, 1, 4, 1, 0, 0]));
    assert_ne!(logits(&[3, 1, 4, 1, 5, 2]), logits(&[3, 2, 4, 1, 5, 2]));
}

#[test]
fn generation_by_the_cache_is_the_generation_without_one() {
    for device in devices() {
        let steps = if sanitized() { 3 } else { 60 };
        let (training, vocabulary) = training(0.0, steps as u64, &device);
        training.run(steps, true).unwrap();
        let model = &training.model;
        // The second prompt is longer than the context, and its continuation moves on.
        for prompt in shortened(["two and", "one and two are three.\nfour and", "f"], 1, 3) {
            let mut ids = vocabulary.encode(prompt);
            let begin = ids.len();
            for _ in 0..32 {
                let seen = &ids[ids.len().saturating_sub(16)..];
                let input = Tensor::from_slice(seen, [1, seen.len()], &device).unwrap();
                let logits = model.forward(&input, Mode::Eval).unwrap().i((0, seen.len() - 1)).unwrap();
                let next = logits.argmax(()).unwrap().to_scalar::<i64>().unwrap();
                ids.push(next);
                if vocabulary.decode(&[next]) == "\n" {
                    break;
                }
            }
            let expected = vocabulary.decode(&ids[begin..]);
            assert_eq!(
                model.complete(&vocabulary, prompt, &device).unwrap(),
                expected,
                "{prompt} on {device}"
            );
        }
        // Not only the most likely character is the same.
        let ids = vocabulary.encode("two and four");
        let tensor = |ids: &[i64]| Tensor::from_slice(ids, [1, ids.len()], &device).unwrap();
        let whole = model.forward(&tensor(&ids), Mode::Eval).unwrap().to_vec::<f32>().unwrap();
        let mut caches = model.caches();
        let mut parts = Vec::new();
        for part in [&ids[..5], &ids[5..6], &ids[6..]] {
            parts.extend(model.forward_cached(&tensor(part), &mut caches).unwrap().to_vec::<f32>().unwrap());
        }
        let worst = whole.iter().zip(&parts).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(parts.len() == whole.len() && worst < 1e-4, "{worst} on {device}");
    }
}
