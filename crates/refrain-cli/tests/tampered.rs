//! Runs whose files were changed: inconsistent files are refused quickly and without a panic, and a result that is
//! not finite is never reported.

mod common;

use common::{Place, Tensors, series, tiny, without_checksum};
use serde_json::{Value, json};

/// A folder with a series, a finished run in `run`, and a copy to be changed in `changed`.
fn trained() -> Place {
    let place = Place::new();
    place.write("a.csv", series(300));
    place.refrain(&tiny(&["--data", "a.csv", "--out", "run"])).succeeded();
    place
}

const BEST: &str = "model.safetensors";
const LATEST: &str = "checkpoint/model.safetensors";

/// Makes `changed` a copy of `run` with one file rewritten.
fn change(place: &Place, file: &str, change: impl FnOnce(&mut Value, &mut Tensors)) {
    let _ = std::fs::remove_dir_all(place.path("changed"));
    std::fs::create_dir_all(place.path("changed/checkpoint")).unwrap();
    for file in [BEST, LATEST] {
        std::fs::copy(place.path("run").join(file), place.path("changed").join(file)).unwrap();
    }
    without_checksum(&place.path("changed").join(file), change);
}

#[track_caller]
fn refused(place: &Place, words: &[&str]) {
    place.refrain(&["evaluate", "--model", "changed"]).failed(words);
    place.refrain(&["forecast", "--model", "changed", "--out", "next.csv"]).failed(words);
    assert!(!place.path("next.csv").exists());
}

#[test]
fn a_run_from_before_checksums_is_used_with_a_warning() {
    let place = trained();
    change(&place, BEST, |_, _| {});
    let evaluate = |model| place.refrain(&["evaluate", "--model", model, "--json"]).succeeded();
    let (before, now) = (evaluate("changed"), evaluate("run"));
    assert_eq!(before.json()["test_mse"], now.json()["test_mse"]);
    assert!(
        before.err.contains("warning: changed/model.safetensors: it was written before"),
        "{}",
        before.err
    );
    assert!(!now.err.contains("warning"), "{}", now.err);
    change(&place, LATEST, |_, _| {});
    let said = place.refrain(&["train", "--resume", "changed"]).succeeded();
    assert!(said.err.contains("warning: changed/checkpoint/model.safetensors"), "{}", said.err);
}

#[test]
fn a_byte_that_changed_is_told_from_the_checksum() {
    let place = trained();
    for (file, command) in [(BEST, "evaluate"), (LATEST, "train")] {
        let whole = std::fs::read(place.path("run").join(file)).unwrap();
        let mut changed = whole.clone();
        let last = changed.len() - 3;
        changed[last] ^= 4;
        place.write(&format!("run/{file}"), &changed);
        let model = if command == "train" { "--resume" } else { "--model" };
        place.refrain(&[command, model, "run"]).failed(&[file, "its checksum differs", "earlier checkpoint"]);
        place.write(&format!("run/{file}"), &whole);
    }
}

#[test]
fn a_configuration_that_contradicts_itself_or_the_tensors_is_refused() {
    let place = trained();
    let cases: [(fn(&mut Value), &[&str]); 10] = [
        (|c| c["data"]["season"] = json!(0), &["a season of 0 rows", "context of 24"]),
        (|c| c["data"]["season"] = json!(25), &["a season of 25 rows", "context of 24"]),
        (|c| c["data"]["scaler"]["std"][1] = json!(0.0), &["`b`", "a deviation of 0"]),
        (|c| c["data"]["scaler"]["std"][0] = json!(1e-320), &["`a`", "deviation of"]),
        (|c| c["data"]["scaler"]["std"][0] = json!(-1.0), &["`a`", "a deviation of -1"]),
        (|c| c["data"]["scaler"]["mean"][0] = json!(1e308), &["`a`", "a mean of 1"]),
        (|c| c["model"]["layers"] = json!(1 << 24), &["numbers in", "but the file has"]),
        (|c| c["model"]["layers"] = json!(65536), &["numbers in", "but the file has"]),
        (|c| c["model"]["d_model"] = json!(1 << 24), &["numbers in", "but the file has"]),
        (
            |c| {
                for size in ["context", "horizon", "d_model", "ffn", "layers"] {
                    c["model"][size] = json!(1 << 24);
                }
                (c["model"]["individual_head"], c["model"]["positions"]) = (json!(true), json!("sinusoidal"));
            },
            &["numbers in", "but the file has"],
        ),
    ];
    for (spoil, words) in cases {
        change(&place, BEST, |state, _| spoil(&mut state["config"]));
        refused(&place, words);
        change(&place, LATEST, |state, _| spoil(&mut state["config"]["run"]));
        place.refrain(&["train", "--resume", "changed"]).failed(words);
    }
}

#[test]
fn a_state_that_no_run_comes_to_is_refused() {
    let place = trained();
    let cases: [(fn(&mut Value), &[&str]); 8] = [
        (|s| s["history"][0]["seconds"] = json!(-1.0), &["epoch 1", "seconds: -1.0"]),
        (|s| s["history"][1]["seconds"] = json!(1e308), &["epoch 2", "seconds: 1e308"]),
        (|s| s["history"][0]["epoch"] = json!(7), &["epoch 1", "epoch: 7"]),
        (|s| s["seconds"] = json!(-1e308), &["a time of -1"]),
        (|s| s["epoch_steps"] = json!(3), &["its epochs sum to 15"]),
        (
            |s| s["epoch_steps"] = json!(u64::MAX),
            &["is at step 18446744073709551615 of an epoch, which has only 6 steps"],
        ),
        (|s| s["history"] = json!([]), &["its epochs sum to 0"]),
        (|s| s["history"][1]["best"] = json!("yes"), &["another format"]),
    ];
    for (spoil, words) in cases {
        change(&place, LATEST, |state, _| spoil(&mut state["config"]["state"]));
        place.refrain(&["train", "--resume", "changed"]).failed(words);
    }
    change(&place, LATEST, |state, _| state["config"]["loss_sum"] = json!(f64::NAN.to_bits()));
    place.refrain(&["train", "--resume", "changed"]).failed(&["a loss of NaN"]);
    change(&place, LATEST, |state, _| state["config"]["loss_samples"] = json!(1_000_000));
    place.refrain(&["train", "--resume", "changed"]).failed(&["the losses of 1000000 samples"]);
    change(&place, LATEST, |state, _| state["skipped_steps"] = json!(-5));
    place.refrain(&["train", "--resume", "changed"]).failed(&[]);
    change(&place, LATEST, |state, _| state["steps"] = json!(-12));
    place.refrain(&["train", "--resume", "changed"]).failed(&["is at step -12"]);
}

/// Sets an element of a tensor of f32.
fn set(tensors: &mut Tensors, name: &str, value: f32) {
    tensors.get_mut(name).unwrap().2[..4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn nothing_that_is_not_finite_is_taken_or_told() {
    let place = trained();
    for value in [f32::NAN, f32::NEG_INFINITY] {
        change(&place, BEST, |_, tensors| set(tensors, "head.weight", value));
        refused(&place, &["head.weight", &format!("is {value}")]);
        change(&place, LATEST, |_, tensors| set(tensors, "optimizer.exp_avg.head.weight", value));
        place.refrain(&["train", "--resume", "changed"]).failed(&["optimizer.exp_avg.head.weight"]);
    }
    // Finite weights whose forecast is not.
    change(&place, BEST, |_, tensors| {
        tensors
            .get_mut("head.weight")
            .unwrap()
            .2
            .chunks_exact_mut(4)
            .for_each(|b| b.copy_from_slice(&3e38f32.to_le_bytes()));
    });
    place.refrain(&["evaluate", "--model", "changed"]).failed(&["of PatchTST is", "not finite"]);
    place
        .refrain(&["forecast", "--model", "changed", "--out", "-"])
        .failed(&["of the forecast is", "not finite"]);
    place
        .refrain(&["bench", "patchtst", "--samples", "8", "--channels", "2", "--epochs", "9", "--lr", "1e30"])
        .failed(&["in epoch", "no step had finite gradients", "lower the learning rate"]);
}

#[test]
fn a_pretrained_encoder_with_another_size_than_its_tensors_is_refused() {
    let place = Place::new();
    place.write("a.csv", series(300));
    let masked =
        ["--data", "a.csv", "--out", "run", "--task", "pretrain", "--stride", "6", "--end-padding", "false"];
    place.refrain(&tiny(&masked)).succeeded();
    change(&place, LATEST, |state, _| state["config"]["run"]["model"]["layers"] = json!(64));
    place.refrain(&["train", "--resume", "changed"]).failed(&["numbers in", "but the file has"]);
}
