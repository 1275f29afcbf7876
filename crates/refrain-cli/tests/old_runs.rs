//! Runs that version 0.1.0 wrote before run folders had a version number: they are used, and go on. `old_runs` has one of
//! each task, stopped by SIGTERM, what they were trained on by standard input, and the settings of the first.

mod common;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{Place, Said, said, without_checksum};
use serde_json::json;

fn stored(name: &str) -> PathBuf {
    // Found when the test runs, since programs are also copied to other machines.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&folder).join("tests/old_runs").join(name)
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().flatten() {
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        std::fs::copy(from, to).unwrap();
    }
}

/// A place with a stored run in `run`.
fn place(name: &str) -> Place {
    let place = Place::new();
    copy(&stored(name), &place.path("run"));
    place
}

/// The command with a stored file as its standard input.
fn fed(place: &Place, arguments: &[&str], file: &str) -> Said {
    let file = std::fs::File::open(stored(file)).unwrap();
    said(place.command(arguments).stdin(Stdio::from(file)).output().unwrap())
}

#[track_caller]
fn near(value: &serde_json::Value, expected: f64, part: f64) {
    let value = value.as_f64().unwrap();
    assert!((value - expected).abs() <= part * expected, "{value} for {expected}");
}

#[test]
fn an_old_forecaster_is_evaluated_and_forecasts() {
    let place = place("patchtst");
    let json = fed(&place, &["evaluate", "--model", "run", "--json"], "series.csv").succeeded().json();
    let sha256 = "c67c54da586ca363396cd3231c74a400981deaec6d4d7213df0634dc36dcde2a";
    assert_eq!((json["parameters"].as_u64(), json["weights_sha256"].as_str()), (Some(606), Some(sha256)));
    near(&json["test_mse"], 0.465_938_424_402, 1e-4);
    near(&json["linear_mse"], 0.007_488_421_090, 1e-4);
    fed(&place, &["forecast", "--model", "run", "--out", "next.csv"], "series.csv").succeeded();
    let csv = std::fs::read_to_string(place.path("next.csv")).unwrap();
    assert!(csv.lines().count() == 3 && csv.contains("\n2020-01-06 00:00:00,"), "{csv}");
}

#[test]
fn an_old_forecaster_goes_on_and_its_folder_is_of_this_version_then() {
    let place = place("patchtst");
    let json = fed(&place, &["train", "--resume", "run", "--json"], "series.csv").succeeded().json();
    assert_eq!((json["epochs"].as_u64(), json["steps"].as_u64()), (Some(60), Some(960)));
    // Version 0.1.0 came to this; rounding differs from one processor to another.
    near(&json["test_mse"], 0.029_361_885, 0.1);
    let config = std::fs::read_to_string(place.path("run/config.json")).unwrap();
    let config = &serde_json::from_str::<serde_json::Value>(&config).unwrap()["config"];
    assert_eq!((&config["version"], &config["task"]), (&json!(3), &json!("forecasting")));
    assert_eq!((&config["model"]["name"], &config["loss"]), (&json!("patchtst"), &json!({ "name": "mse" })));
    assert_eq!(config["written_by"], "refrain 0.1.0");
    fed(&place, &["evaluate", "--model", "run", "--json"], "series.csv").succeeded();
}

#[test]
fn an_old_job_that_is_started_again_with_its_settings_goes_on() {
    let place = place("patchtst");
    std::fs::copy(stored("settings.toml"), place.path("settings.toml")).unwrap();
    let again = [
        "train",
        "--config",
        "settings.toml",
        "--data",
        "-",
        "--out",
        "run",
        "--resume-if-possible",
        "--json",
    ];
    let done = fed(&place, &again, "series.csv").succeeded();
    assert!(done.err.contains("resumed "), "{}", done.err);
    let other = [&again[..], &["--heads", "1"]].concat();
    fed(&place, &other, "series.csv").failed(&["started with other settings", "model.heads 2 (now 1)"]);
    // It has a setting now that its first version did not know.
    assert!(fed(&place, &again, "series.csv").succeeded().err.contains("resumed "));
    let other = [&again[..], &["--loss", "mae"]].concat();
    fed(&place, &other, "series.csv").failed(&["started with other settings", "loss.name"]);
}

#[test]
fn an_old_classifier_goes_on_and_is_evaluated() {
    let place = place("cross-asset");
    fed(&place, &["evaluate", "--model", "run"], "panel.csv").failed(&["not every fold"]);
    let fold = fed(&place, &["evaluate", "--model", "run/fold-1", "--json"], "panel.csv").succeeded().json();
    assert_eq!(fold["folds"].as_array().map(Vec::len), Some(1));
    let json = fed(&place, &["train", "--resume", "run", "--json"], "panel.csv").succeeded().json();
    let folds = json["folds"].as_array().unwrap();
    assert_eq!((folds.len(), folds[0]["epochs"].as_u64()), (2, Some(40)));
    near(&folds[0]["loss"], 0.998_987_570, 0.05);
    near(&folds[1]["loss"], 1.029_060_637, 0.05);
    let evaluated = fed(&place, &["evaluate", "--model", "run", "--json"], "panel.csv").succeeded().json();
    assert_eq!(evaluated["folds"][1]["loss"], folds[1]["loss"]);
    let next = fed(&place, &["forecast", "--model", "run", "--json"], "panel.csv").succeeded().json();
    assert_eq!(next["rows"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_newer_version_and_another_task_are_refused() {
    let changed = |value: fn(&mut serde_json::Value)| {
        let place = place("patchtst");
        without_checksum(&place.path("run/model.safetensors"), |state, _| value(&mut state["config"]));
        fed(&place, &["evaluate", "--model", "run"], "series.csv")
    };
    let newer = |c: &mut serde_json::Value| {
        (c["version"], c["written_by"]) = (json!(4), json!("refrain 9.0.0"));
    };
    changed(newer).failed(&["of version 4", "written by refrain 9.0.0", "reads 1 to 3"]);
    let student_t = |c: &mut serde_json::Value| {
        (c["version"], c["loss"]) = (json!(2), json!({ "name": "student-t", "levels": "none" }));
    };
    changed(student_t).failed(&["older version", "Student-t", "train again"]);
    changed(|c| c["version"] = json!(null)).failed(&["does not say its version"]);
    let task = |c: &mut serde_json::Value| (c["version"], c["task"]) = (json!(2), json!("classification"));
    changed(task).failed(&["its configuration cannot be read"]);
    let model = |c: &mut serde_json::Value| {
        let (task, loss) = (json!("forecasting"), json!({ "name": "mse" }));
        (c["version"], c["written_by"], c["task"], c["loss"]) = (json!(2), json!("refrain"), task, loss);
        c["model"]["name"] = json!("arima");
    };
    changed(model).failed(&["cannot be read", "unknown variant `arima`", "`nlinear`"]);
}
