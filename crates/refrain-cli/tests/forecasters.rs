//! Every forecaster and every loss through the real binary, from training to forecast.

mod common;

use std::process::Stdio;
use std::time::Duration;

use common::{Place, Said, same_table, series, tells_of_replays};

const MODELS: [(&str, &[&str]); 3] = [
    (
        "patchtst",
        &["--patch", "6", "--stride", "3", "--d-model", "8", "--heads", "2", "--ffn", "16", "--layers", "1"],
    ),
    ("nlinear", &[]),
    ("nlinear", &["--individual"]),
];
const BATCHES: &[&str] =
    &["--context", "24", "--horizon", "6", "--batch-size", "32", "--epochs", "2", "--json"];

fn train(place: &Place, model: &str, more: &[&[&str]]) -> Said {
    let arguments = [&["train", "--data", "a.csv", "--model", model][..], BATCHES, &more.concat()].concat();
    place.refrain(&arguments)
}

fn place() -> Place {
    let place = Place::new();
    place.write("a.csv", series(300));
    place
}

#[test]
fn every_forecaster_is_trained_evaluated_and_forecasts() {
    for (model, own) in MODELS {
        let place = place();
        let said = train(&place, model, &[own, &["--out", "run"]]).succeeded();
        let told = said.json();
        assert_eq!(told["replays"].as_u64(), Some(12), "{model}: {told}");
        assert_eq!(told["allocations_per_step"].as_f64(), Some(0.0), "{model}: {told}");
        let eager = train(&place, model, &[own, &["--eager", "--out", "eager"]]).succeeded().json();
        assert_eq!(eager["weights_sha256"], told["weights_sha256"], "{model}");
        let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
        for key in ["test_mse", "test_mae", "linear_mse", "parameters", "weights_sha256"] {
            assert_eq!(evaluated[key], told[key], "{model}: {key}");
        }
        place.refrain(&["forecast", "--model", "run", "--out", "next.csv"]).succeeded();
        let csv = std::fs::read_to_string(place.path("next.csv")).unwrap();
        assert_eq!((csv.lines().count(), csv.lines().next()), (7, Some("time,a,b")), "{model}");
        let json = place.refrain(&["forecast", "--model", "run", "--json"]).succeeded().json();
        assert_eq!(json["weights_sha256"], told["weights_sha256"], "{model}");
        same_table(&csv, &json);
        let config = std::fs::read_to_string(place.path("run/config.json")).unwrap();
        assert!(config.contains(&format!("\"name\": \"{model}\"")), "{config}");
        assert!(place.path("run/forecast.svg").is_file());
    }
    let place = place();
    let said = train(&place, "nlinear", &[&["--accumulate", "2"]]).succeeded();
    tells_of_replays(&said, 36);
    assert_eq!(said.json()["parameters"].as_u64(), Some(24 * 6 + 6));
    assert!(
        said.err.contains("NLinear: context 24 -> horizon 6, a linear layer for all channels"),
        "{}",
        said.err
    );
}

#[test]
fn a_stopped_run_of_every_forecaster_goes_on_to_the_same_weights() {
    for (model, own) in MODELS {
        for precision in ["f32", "bf16"] {
            let place = place();
            let settings = [own, &["--precision", precision, "--loss", "huber", "--huber-delta", "0.5"]];
            let whole = train(&place, model, &[settings[0], settings[1], &["--out", "whole"]]);
            let whole = whole.succeeded().json();
            // Killed right after it was saved in the middle of its second epoch.
            let stop = ["--checkpoint-every", "8steps", "--out", "run"];
            let stopped =
                [&["train", "--data", "a.csv", "--model", model][..], BATCHES, own, settings[1], &stop];
            let mut child =
                place.command(&stopped.concat()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            while !place.path("run/checkpoint/model.safetensors").is_file() {
                std::thread::sleep(Duration::from_millis(1));
                assert!(child.try_wait().unwrap().is_none_or(|status| status.success()));
            }
            let _ = child.kill();
            child.wait().unwrap();
            let again = [&stopped.concat()[..], &["--resume-if-possible"]].concat();
            let resumed = place.refrain(&again).succeeded().json();
            for key in ["weights_sha256", "test_mse", "steps", "best_epoch"] {
                assert_eq!(resumed[key], whole[key], "{model} in {precision}: {key}");
            }
            let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
            assert_eq!(evaluated["test_mse"], whole["test_mse"], "{model} in {precision}");
        }
    }
}

#[test]
fn every_loss_trains_another_model_and_is_kept_with_the_run() {
    let place = place();
    let mut weights = Vec::new();
    for (name, more) in
        [("mse", &[][..]), ("mae", &[]), ("huber", &[]), ("huber", &["--huber-delta", "0.25"])]
    {
        let out = format!("run-{}", weights.len());
        let said = train(&place, "nlinear", &[&["--loss", name, "--out", &out], more]).succeeded();
        let json = said.json();
        assert!(!weights.contains(&json["weights_sha256"]), "{name}");
        weights.push(json["weights_sha256"].clone());
        let metrics = std::fs::read_to_string(place.path(&out).join("metrics.jsonl")).unwrap();
        assert_eq!(metrics.contains("validation_loss"), name != "mse", "{metrics}");
        place.refrain(&["train", "--resume", &out]).succeeded();
        let svg = std::fs::read_to_string(place.path(&out).join("loss.svg")).unwrap();
        let title = [("mse", "MSE by epoch"), ("mae", "MAE by epoch"), ("huber", "Huber loss by epoch")];
        assert!(title.iter().any(|(of, title)| *of == name && svg.contains(title)), "{name}");
    }
    // The default.
    let default = train(&place, "nlinear", &[&["--out", "run"]]).succeeded().json();
    assert_eq!(default["weights_sha256"], weights[0]);
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let place = place();
    for (model, more, words) in [
        ("nlinear", &["--patch", "8"][..], &["patch is a setting of patchtst", "the model is nlinear"][..]),
        ("patchtst", &["--individual"], &["individual is a setting of nlinear"]),
        ("nlinear", &["--loss", "l3"], &["l3", "`mse`", "`huber`"]),
        ("nlinear", &["--huber-delta", "2"], &["huber-delta", "the loss is mse"]),
        ("nlinear", &["--loss", "huber", "--huber-delta", "0"], &["delta of the Huber loss is 0"]),
        ("arima", &[], &["no model \"arima\"", "patchtst, nlinear, cross-asset"]),
        ("cross-asset", &["--loss", "mae"], &["is a setting of patchtst and nlinear"]),
    ] {
        train(&place, model, &[more, &["--out", "run"]]).failed(words);
        assert!(!place.path("run").exists());
    }
}
