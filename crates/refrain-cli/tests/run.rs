//! A run from its first step to its forecast, through the real binary.

mod common;

use common::{Place, Said, series, tells_of_no_replays, tells_of_replays, tiny};
use serde_json::Value;

/// A folder with a series and a finished run in `run`.
fn trained() -> (Place, Said) {
    let place = Place::new();
    place.write("a.csv", series(300));
    let said = place.refrain(&tiny(&["--data", "a.csv", "--out", "run", "--json", "-v"])).succeeded();
    (place, said)
}

#[track_caller]
fn numbers(json: &Value, keys: &[&str]) {
    for key in keys {
        assert!(json[key].is_number(), "no number {key} in {json}");
    }
}

#[test]
fn a_run_leaves_what_it_promises() {
    let (place, said) = trained();
    let json = said.json();
    assert_eq!(said.out.lines().count(), 1, "{}", said.out);
    numbers(
        &json,
        &["test_mse", "test_mae", "last_value_mse", "seasonal_naive_mse", "linear_mse", "seconds"],
    );
    assert_eq!((json["epochs"].as_u64(), json["steps"].as_u64()), (Some(2), Some(12)));
    assert_eq!(json["weights_sha256"].as_str().map(str::len), Some(64));
    assert!(json["parameters"].as_u64() > Some(500));
    for file in ["model.safetensors", "config.json", "metrics.jsonl", "loss.svg", "forecast.svg"] {
        assert!(place.path("run").join(file).is_file(), "no {file}");
    }
    let metrics = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let lines: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    lines.iter().for_each(|line| numbers(line, &["epoch", "train_loss", "validation_mse", "seconds"]));
    let config = std::fs::read_to_string(place.path("run/config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["config"]["model"]["d_model"], 8);
    let plot = std::fs::read_to_string(place.path("run/forecast.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.contains("2020-01"), "{}", &plot[..300]);

    // The readable table.
    let again = place.refrain(&tiny(&["--data", "a.csv"])).succeeded();
    for word in [
        "300 rows of 2 channels",
        "gaps        none",
        "parameters, about",
        "of activations per step; ",
        "parameters",
        "seasonal naive",
        "last value",
        "epoch   2/2",
    ] {
        assert!(again.out.contains(word), "no {word:?} in {}", again.out);
    }
    assert!(place.path("runs/a-1/model.safetensors").is_file());
}

#[test]
fn evaluate_finds_the_errors_that_train_told() {
    let (place, said) = trained();
    let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    let told = said.json();
    for key in
        ["test_mse", "test_mae", "last_value_mse", "seasonal_naive_mse", "linear_mse", "weights_sha256"]
    {
        assert_eq!(evaluated[key], told[key], "{key}");
    }
    // Another series of the same channels has other errors.
    place.write("b.csv", series(280));
    let other =
        place.refrain(&["evaluate", "--model", "run", "--data", "b.csv", "--json"]).succeeded().json();
    assert_ne!(other["test_mse"], told["test_mse"]);
}

#[test]
fn forecast_writes_the_rows_after_the_last() {
    let (place, _) = trained();
    place.refrain(&["forecast", "--model", "run", "--out", "next.csv"]).succeeded();
    let csv = std::fs::read_to_string(place.path("next.csv")).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "time,a,b");
    assert_eq!(lines.len(), 1 + 6);
    assert!(
        lines[1].starts_with("2020-01-13 12:00:00,") && lines[6].starts_with("2020-01-13 17:00:00,"),
        "{csv}"
    );
    for line in &lines[1..] {
        let values: Vec<f64> = line.split(',').skip(1).map(|cell| cell.parse().unwrap()).collect();
        // In original units: `a` swings around 0, `b` around 20.
        assert!(values[0].abs() < 3.0 && (5.0..35.0).contains(&values[1]), "{line}");
    }
    let before = place.snapshot();
    place.refrain(&["forecast", "--model", "run", "--out", "a.csv"]).failed(&["a.csv", "is an input"]);
    place.refrain(&["forecast", "--model", "run", "--out", "a.csv/b.csv"]).failed(&["a.csv"]);
    place.write("short.csv", series(20));
    place
        .refrain(&["forecast", "--model", "run", "--data", "short.csv", "--out", "x.csv"])
        .failed(&["20 rows", "24"]);
    std::fs::remove_file(place.path("short.csv")).unwrap();
    assert_eq!(place.snapshot(), before);
}

#[test]
fn the_same_seed_gives_the_same_weights_whatever_the_threads() {
    let (place, said) = trained();
    let sha = |more: &[&str]| {
        let arguments = [&["--data", "a.csv", "--json"], more].concat();
        place.refrain(&tiny(&arguments)).succeeded().json()["weights_sha256"].clone()
    };
    assert_eq!(sha(&["--threads", "1"]), said.json()["weights_sha256"]);
    assert_ne!(sha(&["--seed", "1"]), said.json()["weights_sha256"]);
}

#[test]
fn models_that_cannot_be_used() {
    let (place, _) = trained();
    let before = place.snapshot();
    let evaluate = |model: &str| place.refrain(&["evaluate", "--model", model]);
    evaluate("none").failed(&["none", "no run in this folder", "refrain train"]);
    place.write("b.csv", series(280).replacen("time,a,b", "time,a,c", 1));
    place.refrain(&["evaluate", "--model", "run", "--data", "b.csv"]).failed(&[
        "a, c",
        "a, b",
        "same columns",
    ]);
    std::fs::remove_file(place.path("b.csv")).unwrap();
    place.refrain(&tiny(&["--resume", "run"])).failed(&["--resume", "leave them out"]);
    place.refrain(&["train", "--resume", "none"]).failed(&["no run in this folder"]);
    place.refrain(&["train", "--resume", "run", "--out", "x"]).failed(&["--resume", "--out"]);
    assert_eq!(place.snapshot(), before);

    // Truncated, of another kind, of another model.
    let model = std::fs::read(place.path("run/model.safetensors")).unwrap();
    place.write("run/model.safetensors", &model[..model.len() / 2]);
    evaluate("run").failed(&["model.safetensors", "cut off"]);
    place.write("run/model.safetensors", "hello");
    evaluate("run").failed(&["model.safetensors"]);
    place.write("run/model.safetensors", text_replaced(&model, br#"\"d_model\":8"#, br#"\"d_model\":4"#));
    evaluate("run").failed(&["model.safetensors", "its checksum differs"]);

    place.write("run/model.safetensors", &model);
    let latest = "run/checkpoint/model.safetensors";
    let state = std::fs::read(place.path(latest)).unwrap();
    place.write(latest, &state[..state.len() - 100]);
    place.refrain(&["train", "--resume", "run"]).failed(&[latest, "cut off"]);
    place.write(latest, &state);
    place.write("a.csv", series(301));
    place.refrain(&["train", "--resume", "run"]).failed(&["a.csv", "has changed"]);
}

/// Replaces the first occurrence of some bytes by as many other bytes.
fn text_replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    let mut out = bytes.to_vec();
    out[at..at + to.len()].copy_from_slice(to);
    out
}

#[test]
fn training_tells_of_its_replays_unless_it_is_eager() {
    let (place, said) = trained();
    tells_of_replays(&said, 12);
    tells_of_no_replays(&place.refrain(&tiny(&["--data", "a.csv", "--eager", "--json", "-v"])).succeeded());
    // Each step of several micro-batches is also an update.
    let parts = ["--data", "a.csv", "--accumulate", "2", "--json", "-v"];
    let parts = place.refrain(&tiny(&parts)).succeeded();
    tells_of_replays(&parts, 36);
}

#[test]
fn benchmarks_tell_their_figures() {
    let place = Place::new();
    let arguments = [
        "bench",
        "patchtst",
        "--samples",
        "20",
        "--channels",
        "2",
        "--epochs",
        "3",
        "--batch-size",
        "8",
        "--json",
    ];
    let said = place.refrain(&arguments).succeeded();
    tells_of_replays(&said, 9);
    tells_of_no_replays(&place.refrain(&[&arguments[..], &["--eager"]].concat()).succeeded());
    let json = said.json();
    assert_eq!(json["losses"].as_array().map(Vec::len), Some(3));
    numbers(&json, &["seconds", "us_per_step", "device_allocations_per_step", "peak_device_bytes"]);
    assert_eq!(json["loss_fell"], true);
    let bits = json["loss_bits"][0].as_str().unwrap().strip_prefix("0x").unwrap().to_owned();
    let loss = f64::from_bits(u64::from_str_radix(&bits, 16).unwrap());
    assert_eq!(json["losses"][0].as_f64(), Some(loss));
    let again = place.refrain(&arguments).succeeded().json();
    assert_eq!(again["loss_bits"], json["loss_bits"]);

    let arguments =
        ["bench", "step", "--config", "seed", "--steps", "1", "--repeats", "1", "--warmup", "0", "--json"];
    let json = place.refrain(&arguments).succeeded().json();
    numbers(&json, &["median_us", "min_us", "max_us", "last_loss", "first_step_ms", "recording_ms"]);
    assert!(json["first_step_ms"].as_f64() > json["recording_ms"].as_f64());
    assert_eq!(json["config"], "seed");
}

#[test]
fn a_step_of_ones_own_settings_is_timed() {
    let place = Place::new();
    let write = |text: &str| place.write("settings.toml", text);
    let arguments =
        ["bench", "step", "--config", "settings.toml", "--steps", "1", "--repeats", "1", "--json"];
    let parameters = |text: &str, channels: &str| {
        write(text);
        let said = place.refrain(&[&arguments[..], &["--channels", channels]].concat()).succeeded();
        assert_eq!(said.json()["config"], "settings.toml");
        (said.json()["parameters"].as_u64().unwrap(), said.json()["precision"].clone())
    };
    // A matrix and a bias for each channel; three forecasts of each row for the quantiles.
    let linear = "model = 'nlinear'\nindividual = true\ncontext = 10\nhorizon = 4\nbatch-size = 3\n";
    assert_eq!(parameters(linear, "2"), (2 * 4 * 11, "f32".into()));
    let quantiles = format!("{linear}loss = 'quantile'\nlevels = '80'\nprecision = 'bf16'\n");
    assert_eq!(parameters(&quantiles, "5"), (5 * 3 * 4 * 11, "bf16".into()));
    let dropout =
        "d-model = 8\nheads = 2\ndropout = 0.3\nnorm = 'batch'\nresidual-attention = true\ncontext = 48\n";
    assert!(parameters(dropout, "2").0 > 1000);

    let refused = |text: &str, says: &[&str]| {
        write(text);
        place.refrain(&arguments).failed(says);
    };
    refused("model = 'cross-asset'\n", &["cross-asset", "--config cross"]);
    refused("contexts = 3\n", &["settings.toml", "unknown setting"]);
    refused("context = 8\n", &["patch", "context of 8"]);
    place.refrain(&["bench", "step", "--config", "sed"]).failed(&[
        "sed",
        "seed, small",
        "a file of settings",
    ]);
    place
        .refrain(&["bench", "step", "--config", "seed", "--channels", "3"])
        .failed(&["--channels", "--config"]);
}

#[test]
fn the_weights_of_any_file_are_loaded_for_measurement() {
    let (place, said) = trained();
    let arguments = ["bench", "load", "run/model.safetensors", "--repeats", "3", "--json"];
    let json = place.refrain(&arguments).succeeded().json();
    numbers(&json, &["median_seconds", "bytes_per_second"]);
    assert_eq!(json["seconds"].as_array().map(Vec::len), Some(3));
    assert!(json["bytes"].as_u64() >= said.json()["parameters"].as_u64().map(|n| 4 * n));
    place.refrain(&["bench", "load", "a.csv"]).failed(&["a.csv", "not a whole safetensors file"]);
}

#[test]
fn devices_name_the_processor_and_what_is_missing() {
    let place = Place::new();
    let json = place.refrain(&["devices", "--json"]).succeeded().json();
    let cpu = json["devices"].as_array().unwrap().iter().find(|d| d["name"] == "cpu").unwrap();
    assert_eq!(cpu["usable"], true);
    let said = place.refrain(&["devices"]).succeeded();
    assert!(said.out.contains("cpu") && said.out.contains("threads"), "{}", said.out);
    assert!(said.out.contains("sim     ready"), "{}", said.out);
}
