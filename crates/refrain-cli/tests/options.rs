//! What all commands share: how much they print, settings from the folder of a run, dry runs, completions, manual pages.

mod common;

use common::{Place, SMALL_STEPS, series, tiny};

fn place() -> Place {
    let place = Place::new();
    place.write("a.csv", series(300));
    place
}

/// Hours of two sources.
fn panel() -> String {
    let label = |at: usize| ["up", "down", "flat"][at * 7 % 3];
    let row = |at: usize| {
        format!("2020-01-{:02} {:02}:00,s{},{},{}\n", at / 48 + 1, at / 2 % 24, at % 2, at % 11, label(at))
    };
    format!("time,source,x,label\n{}", (0..600).map(row).collect::<String>())
}

/// Settings of a small classifier.
const CROSS_ASSET: &[&str] = &[
    "--model",
    "cross-asset",
    "--data",
    "panel.csv",
    "--d-model",
    "8",
    "--ffn",
    "16",
    "--heads",
    "2",
    "--epochs",
    "1",
    "--folds",
    "2",
    "--embargo",
    "2",
];

#[test]
fn a_dry_run_says_what_a_run_would_be_and_writes_nothing() {
    let place = place();
    let before = place.snapshot();
    let planned = place.refrain(&tiny(&["--data", "a.csv", "--dry-run", "--json"])).succeeded();
    assert_eq!(place.snapshot(), before);
    assert!(!place.path("runs").exists());
    for part in [
        "series      a.csv: 300 rows",
        "split       training",
        "model       PatchTST",
        "memory      ",
        "time        about",
    ] {
        assert!(planned.err.contains(part), "no {part:?} in {}", planned.err);
    }
    let planned = planned.json();
    let run = place.refrain(&tiny(&["--data", "a.csv", "--out", "run", "--json"])).succeeded().json();
    for key in ["parameters", "test_windows", "device"] {
        assert_eq!(planned[key], run[key], "{key}");
    }
    let number = |key: &str| planned[key].as_f64().unwrap();
    assert_eq!(2.0 * number("steps_per_epoch"), run["steps"].as_f64().unwrap());
    assert!(number("seconds_per_step") > 0.0);
    assert!((number("seconds") - 2.0 * number("steps_per_epoch") * number("seconds_per_step")).abs() < 1e-9);
    place.refrain(&["train", "--resume", "run", "--dry-run"]).failed(&["--dry-run"]);
    // What is impossible is refused as in a run.
    place.refrain(&tiny(&["--data", "a.csv", "--dry-run", "--patch", "25"])).failed(&["patch"]);
    place.write("panel.csv", panel());
    let cross = [&["train", "--dry-run"], CROSS_ASSET].concat();
    let before = place.snapshot();
    let said = place.refrain(&cross).succeeded();
    assert!(
        said.out.contains("model       cross-asset") && said.out.contains("time        about"),
        "{}",
        said.out
    );
    assert_eq!(place.snapshot(), before);
}

#[test]
fn what_the_engine_does_is_said_with_verbose_and_nothing_with_quiet() {
    let place = place();
    let run = |out: &str, more: &[&str]| {
        place.refrain(&tiny(&[&["--data", "a.csv", "--out", out], more].concat())).succeeded()
    };
    let (quiet, normal, verbose) = (run("a", &["-q"]), run("b", &[]), run("c", &["--verbose"]));
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("", ""));
    assert!(normal.out.contains("epoch   2/2") && !normal.out.contains("launches"), "{}", normal.out);
    assert!(verbose.out.contains("launches per step, replayed"), "{}", verbose.out);
    // What was asked for is printed.
    assert!(run("d", &["-q", "--json"]).json()["test_mse"].is_number());
    let table = place.refrain(&["evaluate", "--model", "a", "-q"]).succeeded();
    assert!(table.out.contains("seasonal naive"), "{}", table.out);
    place.refrain(&["devices", "-q", "-v"]).failed(&["--verbose"]);
}

#[test]
fn without_a_terminal_there_is_a_line_now_and_then() {
    let place = place();
    place.write("small.toml", SMALL_STEPS);
    let lines = |every: &str, more: &[&str]| {
        let arguments = [
            &["train", "--config", "small.toml", "--data", "a.csv", "--epochs", "1", "--device", "cpu"],
            more,
        ]
        .concat();
        let output = place.command(&arguments).env("REFRAIN_PROGRESS", every).output().unwrap();
        let said = common::said(output).succeeded();
        said.err.lines().filter(|line| line.contains("samples/s")).map(str::to_owned).collect::<Vec<_>>()
    };
    let often = lines("0.01", &[]);
    assert!(!often.is_empty());
    for line in &often {
        assert!(
            line.starts_with("epoch   1/1  step ") && line.contains("loss ") && line.ends_with(" left"),
            "{line}"
        );
    }
    assert_eq!(lines("3600", &[]), [""; 0]);
    assert_eq!(lines("0", &[]), [""; 0]);
    assert_eq!(lines("0.01", &["-q"]), [""; 0]);
}

#[test]
fn the_configuration_of_a_run_is_a_file_of_settings() {
    let place = place();
    let own = [
        "--loss",
        "huber",
        "--huber-delta",
        "0.5",
        "--calibrate",
        "--levels",
        "50",
        "--lr",
        "0.01",
        "--split",
        "0.6,0.2,0.2",
    ];
    let first = place
        .refrain(&tiny(&[&["--data", "a.csv", "--out", "run", "--json"], &own[..]].concat()))
        .succeeded();
    let again = ["train", "--config", "run/config.json", "--json", "--out", "again"];
    let second = place.refrain(&again).succeeded();
    for key in ["weights_sha256", "test_mse", "test_intervals", "steps"] {
        assert_eq!(first.json()[key], second.json()[key], "{key}");
    }
    let kept = |run: &str| std::fs::read_to_string(place.path(run).join("config.json")).unwrap();
    assert_eq!(kept("run"), kept("again"));
    // Flags come first, as with any file.
    let changed = [&again[..5], &["other", "--epochs", "1"]].concat();
    assert_eq!(place.refrain(&changed).succeeded().json()["epochs"], 1);
    // The split of a run was chosen for that run; whoever cross-validates splits otherwise, and is told.
    let cross = [
        "cross-validate",
        "--config",
        "run/config.json",
        "--windows",
        "1",
        "--validation",
        "40",
        "--levels",
        "none",
        "--calibrate",
        "false",
        "--out",
        "cv",
    ];
    let said = place.refrain(&cross).succeeded();
    assert!(said.out.contains("split       by origins"), "{}", said.out);
    place.write("split.toml", "split = '0.6,0.2,0.2'\ndata = 'a.csv'\n");
    place.refrain(&["cross-validate", "--config", "split.toml"]).failed(&["no split in --config"]);
    place.write("broken.json", "{\"version\": 2,");
    place.refrain(&["train", "--config", "broken.json"]).failed(&["broken.json", "not JSON"]);
    place.write("other.json", "{\"epochs\": 2}");
    place.refrain(&["train", "--config", "other.json"]).failed(&["other.json", "version"]);
}

#[test]
fn the_configuration_of_a_classifier_is_a_file_of_settings() {
    let place = Place::new();
    place.write("panel.csv", panel());
    let train = [&["train", "--out", "run", "--json"], CROSS_ASSET].concat();
    let weights = |json: serde_json::Value| [0, 1].map(|fold| json["folds"][fold]["weights_sha256"].clone());
    let first = weights(place.refrain(&train).succeeded().json());
    let again = ["train", "--config", "run/fold-1/config.json", "--out", "again", "--json"];
    assert_eq!(weights(place.refrain(&again).succeeded().json()), first);
}

#[test]
fn shells_complete_every_command_and_every_command_has_a_page() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.refrain(&["completions", shell]).succeeded().out;
        for word in ["cross-validate", "compare", "calibrate", "dry-run"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
    // The script is one that bash accepts.
    #[cfg(unix)]
    if std::process::Command::new("bash").arg("--version").output().is_ok() {
        place.write("refrain.bash", place.refrain(&["completions", "bash"]).out);
        let checked =
            std::process::Command::new("bash").arg("-n").arg(place.path("refrain.bash")).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
    place.refrain(&["completions", "tcsh"]).failed(&["tcsh", "zsh"]);
    place.refrain(&["man", "--out", "man"]).succeeded();
    let pages: Vec<String> = std::fs::read_dir(place.path("man"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for page in ["refrain.1", "refrain-train.1", "refrain-compare.1", "refrain-bench-step.1"] {
        assert!(pages.iter().any(|known| known == page), "no {page} in {pages:?}");
    }
    let page = std::fs::read_to_string(place.path("man/refrain-forecast.1")).unwrap();
    assert!(page.starts_with(".ie") || page.contains(".TH "), "{page}");
    assert!(page.contains("horizon"), "{page}");
    assert!(place.refrain(&["man"]).succeeded().out.contains(".TH refrain"));
}
