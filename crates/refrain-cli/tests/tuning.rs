//! Training goes on: runs with more epochs, and initial weights of which a part is kept.

mod common;

use std::collections::BTreeMap;

use common::{Place, Said, series};
use safetensors::SafeTensors;

const SMALL: &[&str] = &[
    "--model",
    "patchtst",
    "--patch",
    "6",
    "--stride",
    "3",
    "--d-model",
    "8",
    "--heads",
    "2",
    "--ffn",
    "16",
    "--layers",
    "1",
];
const WINDOWS: &[&str] = &["--context", "24", "--horizon", "6", "--batch-size", "32", "--json"];

fn train(place: &Place, more: &[&[&str]]) -> Said {
    place.refrain(&[&["train", "--data", "a.csv"][..], SMALL, WINDOWS, &more.concat()].concat())
}

fn weights(place: &Place, run: &str) -> BTreeMap<String, Vec<u8>> {
    let bytes = std::fs::read(place.path(run).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter();
    tensors.map(|(name, view)| (name, view.data().to_vec())).collect()
}

#[test]
fn a_finished_run_with_more_epochs_is_the_run_that_had_them_from_the_beginning() {
    let place = Place::new();
    place.write("a.csv", series(300));
    let constant = ["--schedule", "constant", "--patience", "9"];
    let whole = train(&place, &[&constant, &["--epochs", "4", "--out", "whole"]]).succeeded().json();
    train(&place, &[&constant, &["--epochs", "2", "--out", "run"]]).succeeded();
    let resume = |more: &[&str]| place.refrain(&[&["train", "--resume", "run", "--json"][..], more].concat());
    resume(&["--epochs", "1"]).failed(&["the run has 2 epochs, and 1 are fewer"]);
    resume(&["--epochs", "4", "--lr", "1"])
        .failed(&["--resume uses the settings of the run", "--epochs and --patience"]);
    let extended = resume(&["--epochs", "4"]).succeeded().json();
    for key in ["weights_sha256", "epochs", "steps", "test_mse", "best_epoch"] {
        assert_eq!(extended[key], whole[key], "{key}");
    }
    // It is kept: the run has four epochs now.
    resume(&["--epochs", "3"]).failed(&["the run has 4 epochs"]);
    let metrics = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 4, "{metrics}");
}

#[test]
fn a_run_that_stopped_early_says_what_more_epochs_need() {
    let place = Place::new();
    place.write("a.csv", series(300));
    let hasty = [
        "--schedule",
        "constant",
        "--lr",
        "3",
        "--clip",
        "0",
        "--decay-all",
        "true",
        "--patience",
        "1",
        "--epochs",
        "6",
        "--out",
        "run",
    ];
    let told = train(&place, &[&hasty]).succeeded().json();
    assert!(told["epochs"].as_u64() < Some(6), "{told}");
    let resume = |more: &[&str]| place.refrain(&[&["train", "--resume", "run", "--json"][..], more].concat());
    resume(&["--epochs", "8"]).failed(&["stopped early", "--patience"]);
    let more = resume(&["--epochs", "8", "--patience", "8"]).succeeded().json();
    assert_eq!(more["epochs"].as_u64(), Some(8), "{more}");
}

#[test]
fn a_frozen_encoder_keeps_the_weights_that_it_began_with() {
    let place = Place::new();
    place.write("a.csv", series(300));
    train(&place, &[&["--epochs", "1", "--norm", "layer", "--out", "first"]]).succeeded();
    let tune = |more: &[&str]| {
        let begun = ["train", "--data", "a.csv", "--init", "first", "--epochs", "2"];
        place.refrain(&[&begun[..], &["--batch-size", "32", "--json"], more].concat())
    };
    tune(&["--freeze", "encoder", "--out", "head"]).succeeded();
    tune(&["--out", "all"]).succeeded();
    let [first, head, all] = ["first", "head", "all"].map(|run| weights(&place, run));
    let (mut kept, mut trained) = (0, 0);
    for (name, before) in &first {
        let is_head = name.contains("head.");
        assert_eq!(&head[name] != before, is_head, "{name} with a frozen encoder");
        assert_ne!(&all[name], before, "{name} without");
        if is_head { trained += 1 } else { kept += 1 }
    }
    assert!(kept > 10 && trained == 2, "{kept} and {trained} of {:?}", first.keys());
    // The run says so, and goes on so.
    let config = std::fs::read_to_string(place.path("head/config.json")).unwrap();
    assert!(config.contains("\"freeze\": \"encoder\""), "{config}");
    place.refrain(&["train", "--resume", "head", "--epochs", "3"]).succeeded();
    let later = weights(&place, "head");
    assert!(first.iter().all(|(name, before)| name.contains("head.") || &later[name] == before));
    train(&place, &[&["--freeze", "encoder", "--out", "none"]])
        .failed(&["--freeze keeps initial weights", "--init"]);
    let linear = ["train", "--data", "a.csv", "--model", "nlinear", "--epochs", "1"];
    place.refrain(&[&linear[..], WINDOWS, &["--out", "linear"]].concat()).succeeded();
    let frozen = ["train", "--data", "a.csv", "--init", "linear", "--freeze", "encoder", "--out", "none"];
    place.refrain(&frozen).failed(&["NLinear has no head"]);
}

#[test]
fn an_encoder_is_pretrained_resumed_and_taught_to_forecast() {
    let place = Place::new();
    place.write("a.csv", series(300));
    let masked = ["--task", "pretrain", "--mask-ratio", "0.5", "--stride", "6", "--end-padding", "false"];
    let patches: Vec<&str> = SMALL.iter().copied().filter(|word| !["--stride", "3"].contains(word)).collect();
    let pretrain = |more: &[&str]| {
        let begun = ["train", "--data", "a.csv"];
        place.refrain(
            &[&begun[..], &patches, WINDOWS, &masked, &["--schedule", "constant", "--patience", "9"], more]
                .concat(),
        )
    };
    let told = pretrain(&["--epochs", "3", "--out", "whole"]).succeeded();
    assert!(told.err.contains("fills in 50 % of the patches"), "{}", told.err);
    let told = told.json();
    assert!(told["validation_mse"].as_f64() < Some(2.0) && told["replays"].as_u64() > Some(0), "{told}");
    let before = place.snapshot();
    let planned = pretrain(&["--epochs", "3", "--dry-run"]).succeeded();
    assert_eq!(place.snapshot(), before);
    assert!(!place.path("runs").exists());
    for part in
        ["split       training", "fills in 50 %", "memory      ", "training    3 epochs", "time        about"]
    {
        assert!(planned.err.contains(part), "no {part:?} in {}", planned.err);
    }
    let planned = planned.json();
    assert_eq!((&planned["parameters"], &planned["device"]), (&told["parameters"], &told["device"]));
    assert_eq!(planned["steps_per_epoch"].as_u64().map(|steps| 3 * steps), told["steps"].as_u64());
    pretrain(&["--loss", "quantile", "--levels", "80", "--out", "run"])
        .failed(&["the loss is quantile", "leave --loss out here"]);
    let forecasts = ["train", "--data", "a.csv", "--mask-ratio", "0.5", "--out", "run"];
    place.refrain(&forecasts).failed(&["--mask-ratio", "the task is to forecast", "--task pretrain"]);
    pretrain(&["--levels", "80", "--calibrate", "--out", "run"]).failed(&[
        "no intervals to calibrate",
        "leave --calibrate out here",
        "--init",
    ]);
    pretrain(&["--epochs", "1", "--out", "run"]).succeeded();
    let resumed = place.refrain(&["train", "--resume", "run", "--epochs", "3", "--json"]).succeeded().json();
    assert_eq!(resumed["weights_sha256"], told["weights_sha256"]);
    let hasty = ["--lr", "0.3", "--clip", "0", "--patience", "1", "--epochs", "9", "--out", "hasty"];
    assert!(pretrain(&hasty).succeeded().json()["epochs"].as_u64() < Some(9));
    place.refrain(&["train", "--resume", "hasty", "--epochs", "12"]).failed(&["stopped early", "--patience"]);
    for command in ["evaluate", "forecast"] {
        place.refrain(&[command, "--model", "run", "--json"]).failed(&["pretrained encoder", "train --init"]);
    }
    let tuned = [
        "train", "--data", "a.csv", "--init", "run", "--freeze", "encoder", "--epochs", "1", "--json",
        "--out", "tuned",
    ];
    let tuned = place.refrain(&tuned).succeeded();
    assert!(tuned.err.contains("head        new"), "{}", tuned.err);
    let [run, own] = ["run", "tuned"].map(|run| weights(&place, run));
    assert!(run.iter().all(|(name, values)| {
        // Statistics of batch norms go on.
        name.contains("head.") || name.contains("running_") || &own[name] == values
    }));
    place.refrain(&["forecast", "--model", "tuned", "--out", "-"]).succeeded();
    let linear = ["train", "--data", "a.csv", "--model", "nlinear", "--task", "pretrain"];
    place.refrain(&[&linear[..], WINDOWS].concat()).failed(&["NLinear has none", "--model patchtst"]);
}
