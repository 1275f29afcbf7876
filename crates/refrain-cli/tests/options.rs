//! What all commands share: how much they print, settings from the folder of a run, dry runs, completions, manual pages.

mod common;

use common::{Place, SMALL_STEPS, series, tiny};
use serde_json::Value;

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
    assert!(planned["profile"].is_null());
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
fn a_dry_run_with_profile_says_where_the_time_of_a_step_goes() {
    let place = place();
    place.write("panel.csv", panel());
    let operation = "linear_weight_gradient";
    for arguments in [
        tiny(&["--data", "a.csv"]),
        tiny(&["--data", "a.csv", "--accumulate", "2"]),
        tiny(&["--data", "a.csv", "--task", "pretrain", "--stride", "6"]),
        [&["train"], CROSS_ASSET].concat(),
    ] {
        let before = place.snapshot();
        let out = place.refrain(&[&arguments[..], &["--dry-run", "--profile"]].concat()).succeeded().out;
        assert!(out.contains(operation), "no {operation} in {out}");
        let of_parts = arguments.contains(&"--accumulate");
        assert_eq!(out.contains("of one of the 2 micro-batches of a step"), of_parts, "{out}");
        let json = place.refrain(&[&arguments[..], &["--dry-run", "--profile", "--json"]].concat());
        let lines = json.succeeded().json()["profile"].as_array().unwrap().clone();
        let of = |line: &Value, key: &str| line[key].as_f64().unwrap();
        let found = lines.iter().find(|line| line["operation"].as_str().unwrap().starts_with(operation));
        let found = found.unwrap_or_else(|| panic!("no {operation} in {lines:?}"));
        assert!(of(found, "us") > 0.0 && of(found, "launches") >= 1.0 && of(found, "bytes") > 0.0, "{found}");
        assert_eq!(place.snapshot(), before);
    }
    place.refrain(&tiny(&["--data", "a.csv", "--profile"])).failed(&["--dry-run"]);
    place.refrain(&tiny(&["--data", "a.csv", "--dry-run", "--profile", "--eager"])).failed(&["--eager"]);
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
    for command in ["evaluate", "forecast"] {
        let said = place.refrain(&[command, "--model", "a", "-q", "--json"]).succeeded();
        assert!(said.json().is_object() && said.err.is_empty(), "{command}: {}", said.err);
    }
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

/// A wide file with a plan that is known ahead, and a long one.
fn with_covariates(place: &Place) {
    let noise = |at: usize| ((at * 7919 + at * at * 31) % 1009) as f64 / 1009.0 - 0.5;
    let time = |row: usize| format!("2020-01-{:02} {:02}:00:00", row / 24 + 1, row % 24);
    let row = |row: usize| {
        let y = if row < 200 { noise(row).to_string() } else { String::new() };
        format!("{},{y},{}\n", time(row), noise(3 * row))
    };
    place.write("plan.csv", format!("time,y,plan\n{}", (0..206).map(row).collect::<String>()));
    let of = |id: usize| {
        let row = |row: usize| format!("s{id},{},{},{id}\n", time(row), noise(row + 999 * id));
        (0..90 + 10 * id).map(row).collect::<String>()
    };
    place.write("long.csv", format!("unique_id,ds,y,size\n{}", (0..3).map(of).collect::<String>()));
}

#[test]
fn a_run_from_the_configuration_of_another_has_the_same_bits_whatever_it_is() {
    let place = place();
    with_covariates(&place);
    let small = ["--context", "24", "--horizon", "6", "--batch-size", "32", "--epochs", "1", "--json"];
    let mixer = ["--model", "tsmixer", "--d-model", "8", "--ffn", "8", "--layers", "1"];
    let patches =
        ["--patch", "6", "--stride", "6", "--d-model", "8", "--heads", "2", "--ffn", "8", "--layers", "1"];
    let runs: [&[&[&str]]; 5] = [
        &[
            &["--data", "plan.csv", "--future", "plan", "--calendar", "hour,weekday"],
            &mixer,
            &["--strict", "true"],
        ],
        &[
            &["--data", "long.csv", "--static", "size", "--loss", "student-t", "--levels", "80,90"],
            &mixer,
            &["--scaling", "none"],
        ],
        &[&[
            "--data",
            "a.csv",
            "--model",
            "nlinear",
            "--individual",
            "--loss",
            "quantile",
            "--levels",
            "80",
            "--calibrate",
            "--adaptive",
            "0.05",
            "--split",
            "60,60",
        ]],
        &[
            &["--data", "a.csv", "--task", "pretrain", "--mask-ratio", "0.5", "--end-padding", "false"],
            &patches,
        ],
        &[
            &[
                "--data",
                "a.csv",
                "--schedule",
                "constant",
                "--accumulate",
                "2",
                "--seed",
                "7",
                "--max-gap",
                "3",
            ],
            &patches,
        ],
    ];
    for (number, settings) in runs.into_iter().enumerate() {
        let out = |what: &str| format!("{what}-{number}");
        let train = |more: &[&str]| place.refrain(&[&["train", "--json"], more].concat()).succeeded().json();
        let first = train(&[&small[..], &settings.concat(), &["--out", &out("run")]].concat());
        let json = format!("{}/config.json", out("run"));
        let kept = std::fs::read_to_string(place.path(&json)).unwrap();
        // The same as TOML, which has no null.
        let table: toml::Table =
            serde_json::from_str(&without_null(serde_json::from_str(&kept).unwrap()).to_string()).unwrap();
        place.write("config.toml", table.to_string());
        for (config, name) in [(json.as_str(), "json"), ("config.toml", "toml")] {
            let again = train(&["--config", config, "--out", &out(name)]);
            assert_eq!(again["weights_sha256"], first["weights_sha256"], "{settings:?} as {name}");
            let own = std::fs::read_to_string(place.path(&out(name)).join("config.json")).unwrap();
            assert_eq!(own, kept, "{settings:?} as {name}");
        }
    }
}

fn without_null(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(all) => all
            .into_iter()
            .filter(|(_, of)| !of.is_null())
            .map(|(name, of)| (name, without_null(of)))
            .collect(),
        other => other,
    }
}

#[test]
fn a_key_that_the_configuration_of_a_run_does_not_have_is_refused_by_name() {
    let place = place();
    place.refrain(&tiny(&["--data", "a.csv", "--out", "run"])).succeeded();
    let kept = std::fs::read_to_string(place.path("run/config.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    for (pointer, key) in
        [("", "batches"), ("/data", "data.batches"), ("/model", "batches"), ("/training", "batches")]
    {
        let mut changed = kept.clone();
        let config =
            if kept["config"].is_object() { format!("/config{pointer}") } else { pointer.to_owned() };
        changed.pointer_mut(&config).unwrap()["batches"] = 3.into();
        place.write("changed.json", changed.to_string());
        let said = place.refrain(&["train", "--config", "changed.json", "--out", "other"]);
        said.failed(&["changed.json", "unknown", &format!("`{key}`")]);
        assert!(!place.path("other").exists());
    }
}

#[test]
fn the_command_line_may_choose_another_model_than_the_configuration_of_a_run() {
    let place = place();
    place
        .refrain(&tiny(&["--data", "a.csv", "--out", "run", "--split", "0.6,0.2,0.2", "--lr", "0.01"]))
        .succeeded();
    let other = ["train", "--config", "run/config.json", "--model", "nlinear", "--json", "--out", "other"];
    let other = place.refrain(&other).succeeded().json();
    let own = ["train", "--data", "a.csv", "--model", "nlinear", "--context", "24", "--horizon", "6"];
    let more = ["--split", "0.6,0.2,0.2", "--lr", "0.01", "--epochs", "2", "--batch-size", "32", "--json"];
    let expected = place.refrain(&[&own[..], &more].concat()).succeeded().json();
    assert_eq!(other["weights_sha256"], expected["weights_sha256"]);
    let both =
        ["compare", "--config", "run/config.json", "--models", "nlinear,dlinear", "--out", "all", "--json"];
    let compared = place.refrain(&both).succeeded().json();
    let rows = compared["rows"].as_array().unwrap();
    let nlinear = rows.iter().find(|row| row["name"] == "nlinear").unwrap();
    assert_eq!(nlinear["mse"], expected["test_mse"]);
    // The width of the PatchTST is not that of another model that has one, unless a flag says so.
    let widths = |more: &[&str], out: &str| {
        let both =
            ["compare", "--config", "run/config.json", "--models", "patchtst,itransformer", "--out", out];
        place.refrain(&[&both[..], &["--epochs", "1"], more].concat()).succeeded();
        ["patchtst", "itransformer"].map(|model| {
            let kept = std::fs::read_to_string(place.path(out).join(model).join("config.json")).unwrap();
            serde_json::from_str::<serde_json::Value>(&kept).unwrap()["config"]["model"]["d_model"]
                .as_u64()
                .unwrap()
        })
    };
    assert_eq!(widths(&[], "own"), [8, 128]);
    assert_eq!(widths(&["--d-model", "16"], "same"), [16, 16]);
}
