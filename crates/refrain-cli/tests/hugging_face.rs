//! Checkpoints of Hugging Face's PatchTST on the command line. `hugging_face/make.py` says what is stored.

mod common;

use std::path::{Path, PathBuf};

use common::{Place, series, tiny};
use serde_json::Value;

/// A file of this crate, or of the repository. Found when the test runs, since programs are also copied to other machines.
fn stored(name: &str) -> PathBuf {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&folder).join(name)
}

/// A place with the checkpoint in `checkpoint`, the series that it is for, and another with three channels.
fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("checkpoint")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        let from = stored("tests/hugging_face/checkpoint").join(name);
        std::fs::copy(from, place.path("checkpoint").join(name)).unwrap();
    }
    place.write("series.csv", series(300));
    let third = |(at, line): (usize, &str)| match at {
        0 => format!("{line},c\n"),
        _ => format!("{line},{}\n", at % 24),
    };
    place.write("other.csv", series(400).lines().enumerate().map(third).collect::<String>());
    place
}

/// The forecasts in a CSV file, by rows, without the times.
fn forecasts(place: &Place, name: &str) -> Vec<Vec<f64>> {
    let text = std::fs::read_to_string(place.path(name)).unwrap();
    let row = |line: &str| line.split(',').skip(1).map(|cell| cell.parse().unwrap()).collect();
    text.lines().skip(1).map(row).collect()
}

#[test]
fn an_imported_checkpoint_forecasts_what_transformers_forecasts() {
    let place = place();
    let import = ["import", "checkpoint", "--data", "series.csv", "--out", "run", "--json"];
    let json = place.refrain(&import).succeeded().json();
    assert_eq!((json["horizon"].as_u64(), json["new_head"].as_bool()), (Some(6), Some(false)));
    place.refrain(&["forecast", "--model", "run", "--out", "next.csv"]).succeeded();
    let text = std::fs::read_to_string(stored("tests/hugging_face/forecast.json")).unwrap();
    let expected: Vec<Vec<f64>> = serde_json::from_str(&text).unwrap();
    let found = forecasts(&place, "next.csv");
    assert_eq!((found.len(), found[0].len()), (6, 2));
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        // The 1e-5 that is added to a variance is another part of a standardised one.
        assert!((found - expected).abs() < 2e-4 * expected.abs().max(1.0), "{found} for {expected}");
    }
    let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    assert_eq!(evaluated["weights_sha256"], json["weights_sha256"]);
    place.refrain(&import).failed(&["not empty"]);
}

#[test]
fn an_exported_run_is_imported_with_the_same_weights() {
    let place = place();
    let import = |from: &str, out: &str| {
        let json = place.refrain(&["import", from, "--data", "series.csv", "--out", out, "--json"]);
        json.succeeded().json()["weights_sha256"].clone()
    };
    let first = import("checkpoint", "run");
    place.refrain(&["export", "run", "--out", "again"]).succeeded();
    assert_eq!(import("again", "run-2"), first);
    place.refrain(&["export", "run", "--out", "again"]).failed(&["again", "not empty"]);
}

#[test]
fn a_head_that_forecasts_a_distribution_is_exported_imported_and_has_intervals() {
    let place = place();
    let flags = ["--end-padding", "false", "--revin-affine", "false", "--patches-from", "end"];
    let student_t = ["--loss", "student-t", "--levels", "50", "--json"];
    let train = [&["--data", "series.csv", "--out", "own"], &flags[..], &student_t].concat();
    let trained = place.refrain(&tiny(&train)).succeeded().json();
    place.refrain(&["export", "own", "--out", "exported"]).succeeded();
    let text = std::fs::read_to_string(place.path("exported/config.json")).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&config["loss"], &config["distribution_output"]), (&"nll".into(), &"student_t".into()));
    let import = |levels: &[&str], out: &str| {
        let import = ["import", "exported", "--data", "series.csv", "--json", "--out", out];
        let json = place.refrain(&[&import[..], levels].concat()).succeeded().json();
        assert_eq!(json["weights_sha256"], trained["weights_sha256"]);
        place.refrain(&["forecast", "--model", out, "--out", &format!("{out}.csv")]).succeeded();
        std::fs::read_to_string(place.path(&format!("{out}.csv"))).unwrap()
    };
    place.refrain(&["forecast", "--model", "own", "--out", "own.csv"]).succeeded();
    assert_eq!(import(&["--levels", "50"], "same"), std::fs::read_to_string(place.path("own.csv")).unwrap());
    let header = import(&[], "wider").lines().next().unwrap().to_owned();
    assert!(header.starts_with("time,a,a-lo-80,a-hi-80,a-lo-90,a-hi-90,b,"), "{header}");
    // Its head is a start for the same loss, and another loss gets a new one.
    let init = ["--data", "series.csv", "--init", "exported", "--epochs", "1"];
    let first = place.refrain(&[&["train", "--out", "tuned"], &init[..]].concat()).succeeded();
    assert!(!first.out.contains("head "), "{}", first.out);
    let other =
        place.refrain(&[&["train", "--out", "other", "--loss", "mse"], &init[..]].concat()).succeeded();
    assert!(other.out.contains("head        new"), "{}", other.out);
    let one_value = ["import", "checkpoint", "--data", "series.csv", "--levels", "80", "--out", "no"];
    place.refrain(&one_value).failed(&["one value in each row", "leave --levels out"]);
    assert!(!place.path("no").exists());
}

#[test]
fn a_checkpoint_with_weights_for_each_channel_needs_its_channels() {
    let place = place();
    let flags =
        ["--individual-head", "--end-padding", "false", "--revin-affine", "false", "--patches-from", "end"];
    place.refrain(&tiny(&[&["--data", "series.csv", "--out", "own"], &flags[..]].concat())).succeeded();
    place.refrain(&["export", "own", "--out", "exported"]).succeeded();
    let import = |data: &str| place.refrain(&["import", "exported", "--data", data, "--out", "run"]);
    import("other.csv").failed(&["3 channels", "is for 2"]);
    import("series.csv").succeeded();
    // The weights of a file are a start, too.
    let init = ["--data", "series.csv", "--out", "tuned", "--init", "own/model.safetensors"];
    let said = place.refrain(&tiny(&[&init[..], &flags[..]].concat())).succeeded();
    assert!(said.out.contains("weights     from own/model.safetensors"), "{}", said.out);
}

/// Every command of the tutorial, in its order.
#[test]
fn the_tutorial_works() {
    let text = common::book::commands("hugging-face.md");
    let place = place();
    let commands: Vec<&str> = text.lines().collect();
    assert_eq!(commands.len(), 7, "{commands:?}");
    let mut errors = Vec::new();
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(words[0], "refrain");
        let said = place.refrain(&words[1..]).succeeded();
        if words[1] == "evaluate" {
            let json = [&words[1..], &["--json"]].concat();
            errors.push(place.refrain(&json).succeeded().json()["test_mse"].as_f64().unwrap());
        }
        if words.contains(&"--horizon") {
            assert!(said.out.contains("head        new"), "{}", said.out);
        } else if words.contains(&"--init") {
            assert!(
                said.out.contains("weights     from checkpoint") && !said.out.contains("head "),
                "{}",
                said.out
            );
        }
    }
    let config: Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("tuned/config.json")).unwrap()).unwrap();
    assert_eq!(
        (config["num_input_channels"].as_u64(), config["path_dropout"].as_f64()),
        (Some(3), Some(0.1))
    );
    // The checkpoint has random weights: what was learned of this series is better.
    place.refrain(&["import", "checkpoint", "--data", "other.csv", "--out", "before"]).succeeded();
    let before = place.refrain(&["evaluate", "--model", "before", "--json"]).succeeded().json();
    assert!(errors[1] < before["test_mse"].as_f64().unwrap(), "{errors:?} and {before}");
}

#[test]
fn weights_of_another_model_and_runs_without_such_a_model_are_refused() {
    let place = place();
    let nlinear =
        ["train", "--model", "nlinear", "--context", "24", "--horizon", "6", "--epochs", "1", "--out", "run"];
    place.refrain(&[&nlinear[..], &["--data", "series.csv"]].concat()).succeeded();
    place.refrain(&["export", "run", "--out", "out"]).failed(&["NLinear", "PatchTST"]);
    assert!(!place.path("out").exists());
    let init = ["--data", "series.csv", "--out", "tuned", "--init"];
    place
        .refrain(&tiny(&[&init[..], &["run", "--model", "patchtst"]].concat()))
        .failed(&["of the model \"nlinear\""]);
    place
        .refrain(&tiny(&[&init[..], &["checkpoint"]].concat()))
        .failed(&["`embed.weight`", "initial weights"]);
    place.refrain(&tiny(&[&init[..], &["absent"]].concat())).failed(&["absent"]);
    let classifier = ["train", "--model", "cross-asset", "--init", "checkpoint", "--out", "tuned"];
    place.refrain(&classifier).failed(&["of the model \"patchtst\"", "cross-asset"]);
    let of_file = [&classifier[..3], &["--init", "checkpoint/model.safetensors", "--out", "tuned"]].concat();
    place.refrain(&of_file).failed(&["--init is for forecasters"]);
    assert!(!place.path("tuned").exists());
    // This model has an affine map of each channel.
    place.refrain(&tiny(&["--data", "series.csv", "--out", "own"])).succeeded();
    place.refrain(&["export", "own", "--out", "out"]).failed(&["--end-padding false"]);
    let import = ["import", "own", "--data", "series.csv", "--out", "run-2"];
    place.refrain(&import).failed(&["`model_type` is null"]);
}
