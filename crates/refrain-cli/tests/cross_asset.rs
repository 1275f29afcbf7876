//! Cross-asset attention through the real binary: folds, the files of a run, bad panels, Ctrl-C.

mod common;

use std::time::Duration;

use common::{Place, Said, said, same_table, tells_of_no_replays, tells_of_replays};
use serde_json::Value;

/// Settings of a model that trains within a second.
const TINY: &[&str] = &[
    "train",
    "--model",
    "cross-asset",
    "--data",
    "panel.csv",
    "--d-model",
    "8",
    "--heads",
    "2",
    "--ffn",
    "16",
    "--layers",
    "1",
    "--batch-size",
    "16",
    "--folds",
    "2",
    "--embargo",
    "3",
];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    TINY.iter().chain(more).copied().collect()
}

/// The close of a source, a wave.
fn close(row: usize, source: usize) -> f64 {
    50.0 + 5.0 * ((row + 9 * source) as f64 * 0.4).sin()
}

/// Hours of two sources whose close follows a wave and its value an hour before.
fn panel(rows: usize) -> String {
    let mut csv = "time,source,before,noise,close\n".to_owned();
    for row in 0..rows {
        let (day, hour) = (row / 24 + 1, row % 24);
        for (source, name) in ["A", "B"].iter().enumerate() {
            let (before, noise) = (close(row.saturating_sub(1), source), (row * 7919 + 13 * source) % 101);
            csv += &format!("2020-01-{day:02} {hour:02}:00,{name},{before},{noise},{}\n", close(row, source));
        }
    }
    csv
}

const LABELS: &[&str] =
    &["--price", "close", "--label-horizon", "2", "--label-threshold", "0.05", "--label-change", "relative"];

#[test]
fn a_run_tells_of_every_fold_and_leaves_a_model_of_each() {
    let place = Place::new();
    place.write("panel.csv", panel(300));
    let run = [LABELS, &["--epochs", "2", "--out", "run"]].concat();
    let said = place.refrain(&tiny(&run)).succeeded();
    for words in [
        "300 time steps of 2 sources, 2 features each",
        "made from prices 2 rows ahead: ",
        "4 labels missing",
        "2 tested on 30 time steps each, an embargo of 3",
        "a change of more than 0.0500 in 2 rows",
        "fold 1/2  epoch   2/2",
        "1 from 2020-01-11 00:00:00",
        "majority",
        "fold 2: true class",
        "predicted flat",
    ] {
        assert!(said.out.contains(words), "no {words:?} in {}", said.out);
    }
    for fold in ["fold-1", "fold-2"] {
        for file in ["model.safetensors", "config.json", "metrics.jsonl", "loss.svg"] {
            assert!(place.path("run").join(fold).join(file).is_file(), "no {fold}/{file}");
        }
        let config = std::fs::read_to_string(place.path("run").join(fold).join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["config"]["data"]["sources"], serde_json::json!(["A", "B"]));
        assert_eq!(config["config"]["scaler"]["mean"].as_array().map(Vec::len), Some(4));
    }
    let folds = std::fs::read_to_string(place.path("run/folds.json")).unwrap();
    let folds: Value = serde_json::from_str(&folds).unwrap();
    // The last two moments of the second fold have no labels.
    let cells = |fold: usize| {
        folds[fold]["confusion"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap())
    };
    let totals = [0, 1].map(|fold| cells(fold).map(|cell| cell.as_u64().unwrap()).sum::<u64>());
    assert_eq!(totals, [60, 56]);

    // A run with gradient accumulation gives nearly the same results, but not the same bits.
    let json = place.refrain(&tiny(&[LABELS, &["--epochs", "2", "--accumulate", "4", "--json"]].concat()));
    let json = json.succeeded().json();
    let loss = |value: &Value| value["loss"].as_f64().unwrap();
    assert!((loss(&json["folds"][0]) - loss(&folds[0])).abs() < 1e-3, "{json} and {folds}");
    assert!(json["majority_accuracy"].as_f64() > Some(0.2) && json["recorded"] == true, "{json}");
}

#[test]
fn evaluate_reports_what_train_reported() {
    let place = Place::new();
    place.write("panel.csv", panel(300));
    for precision in ["f32", "bf16"] {
        let run =
            [LABELS, &["--epochs", "2", "--json", "--precision", precision, "--out", precision]].concat();
        let trained = place.refrain(&tiny(&run)).succeeded().json();
        let said = place.refrain(&["evaluate", "--model", precision, "--json"]).succeeded();
        let json = said.json();
        for key in ["accuracy", "balanced_accuracy", "majority_accuracy", "parameters", "device"] {
            assert_eq!(json[key], trained[key], "{precision}: {key}");
        }
        assert_eq!(json["folds"].as_array().map(Vec::len), Some(2));
        for (fold, trained) in
            json["folds"].as_array().unwrap().iter().zip(trained["folds"].as_array().unwrap())
        {
            // Everything except the figures of the training itself.
            for (key, value) in fold.as_object().unwrap() {
                assert_eq!(*value, trained[key], "{precision}: {key}");
            }
            assert!(fold["loss"].is_f64() && fold["confusion"].is_array(), "{fold}");
        }
        let one = format!("{precision}/fold-2");
        let one = place.refrain(&["evaluate", "--model", &one, "--json"]).succeeded().json();
        assert_eq!(one["folds"], serde_json::json!([json["folds"][1]]));
        assert_eq!(one["accuracy"], json["folds"][1]["accuracy"]);
    }
    let table = place.refrain(&["evaluate", "--model", "f32"]).succeeded().out;
    for words in ["panel.csv: 300 time steps", "1 from 2020-01-11 00:00:00", "majority", "fold 2: true class"]
    {
        assert!(table.contains(words), "no {words:?} in {table}");
    }
    assert!(!table.contains("s per epoch"), "{table}");
}

/// Cutting the panel after each moment of the test part and taking the likeliest class gives the confusion matrix that
/// `evaluate` prints, although the cut panels have neither labels nor prices.
#[test]
fn forecasts_of_the_last_moment_are_the_predictions_that_evaluate_counts() {
    let place = Place::new();
    place.write("panel.csv", panel(300));
    let run = [LABELS, &["--epochs", "30", "--lr", "0.01", "--folds", "1", "--out", "run"]].concat();
    place.refrain(&tiny(&run)).succeeded();
    let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    let without_price: Vec<String> = panel(300)
        .lines()
        .map(|line| line.rsplit_once(',').map_or(String::new(), |(features, _)| features.to_owned()))
        .collect();
    let mut confusion = [[0_u64; 3]; 3];
    for row in 270..298 {
        place.write("cut.csv", without_price[..1 + 2 * (row + 1)].join("\n"));
        let said = place.refrain(&["forecast", "--model", "run", "--data", "cut.csv", "--json"]).succeeded();
        let json = said.json();
        assert_eq!(json["columns"], serde_json::json!(["source", "time", "up", "down", "flat"]));
        for (source, cells) in json["rows"].as_array().unwrap().iter().enumerate() {
            let time = format!("2020-01-{:02} {:02}:00:00", row / 24 + 1, row % 24);
            assert_eq!((&cells[0], &cells[1]), (&["A", "B"][source].into(), &time.into()));
            let of_class: Vec<f64> = (2..5).map(|class| cells[class].as_f64().unwrap()).collect();
            let sum: f64 = of_class.iter().sum();
            assert!(
                (sum - 1.0).abs() < 1e-6 && of_class.iter().all(|&p| (0.0..=1.0).contains(&p)),
                "{cells}"
            );
            let likeliest = (0..3).max_by(|&a, &b| of_class[a].total_cmp(&of_class[b])).unwrap();
            let truth = match close(row + 2, source) / close(row, source) - 1.0 {
                change if change > 0.05 => 0,
                change if change < -0.05 => 1,
                _ => 2,
            };
            confusion[truth][likeliest] += 1;
        }
    }
    assert_eq!(evaluated["folds"][0]["confusion"], serde_json::json!(confusion));
    // The model has learned to tell the classes apart, so that the matrix says something.
    let predicted = |class: usize| confusion.iter().map(|of_truth| of_truth[class]).sum::<u64>();
    assert!((0..3).filter(|&class| predicted(class) > 0).count() > 1, "{confusion:?}");

    // The file has the numbers of the JSON.
    let said = place.refrain(&["forecast", "--model", "run", "--json", "--out", "next.csv"]).succeeded();
    let json = said.json();
    let csv = std::fs::read_to_string(place.path("next.csv")).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "source,time,up,down,flat"));
    same_table(&csv, &json);
    assert!(
        said.err.contains("the classes of 2 sources at 2020-01-13 11:00:00, by the model of fold 1"),
        "{}",
        said.err
    );
    let piped = place.refrain(&["forecast", "--model", "run", "--out", "-"]).succeeded();
    assert_eq!(piped.out, csv);
    assert_eq!(json["weights_sha256"], evaluated["folds"][0]["weights_sha256"]);
}

#[test]
fn panels_and_folders_that_a_classifier_cannot_use_are_refused() {
    let place = Place::new();
    place.write("panel.csv", panel(300));
    place.refrain(&tiny(&[LABELS, &["--epochs", "1", "--out", "run"]].concat())).succeeded();
    place.write("other.csv", panel(300).replace(",A,", ",C,"));
    place.write("columns.csv", panel(300).replace("before", "after"));
    for command in [&["evaluate"][..], &["forecast", "--out", "next.csv"]] {
        let refused = |data: &str, words: &[&str]| {
            place.refrain(&[command, &["--model", "run", "--data", data]].concat()).failed(words);
        };
        refused("other.csv", &["other.csv has the sources C, B", "trained on A, B"]);
        refused("columns.csv", &["features after, noise", "trained on before, noise"]);
    }
    // A value that is missing for more than a day of hours.
    let stale = panel(300).lines().enumerate().fold(String::new(), |csv, (i, line)| {
        let cells: Vec<&str> = line.split(',').collect();
        let noise = if i > 2 * 275 && cells[1] == "B" { "" } else { cells[3] };
        csv + &[cells[0], cells[1], cells[2], noise, cells[4]].join(",") + "\n"
    });
    place.write("stale.csv", stale);
    let said = place.refrain(&["forecast", "--model", "run", "--data", "stale.csv", "--json"]);
    said.failed(&["2020-01-13 11:00:00", "`noise of B`", "more than 24 rows", "--max-gap"]);
    place.refrain(&["forecast", "--model", "run", "--json", "--out", "-"]).failed(&["--json and --out -"]);
    place.refrain(&["forecast", "--model", "run"]).failed(&["--out"]);
    place.refrain(&["forecast", "--model", "run", "--out", "panel.csv"]).failed(&["is an input"]);
    std::fs::remove_dir_all(place.path("run/fold-2")).unwrap();
    // What a run leaves that ends in the first epoch of its second fold.
    std::fs::create_dir(place.path("run/fold-2")).unwrap();
    let part = ["not every fold", "--resume", "fold-1"];
    place.refrain(&["evaluate", "--model", "run"]).failed(&part);
    place.refrain(&["forecast", "--model", "run", "--json"]).failed(&part);
    place.refrain(&["forecast", "--model", "run/fold-1", "--json"]).succeeded();
    assert!(!place.path("next.csv").exists());
}

#[test]
fn labels_of_the_file_come_before_those_made_from_prices_and_the_run_says_so() {
    let place = Place::new();
    let labelled = panel(300).lines().enumerate().fold(String::new(), |csv, (i, line)| {
        csv + line + if i == 0 { ",label\n" } else { [",up\n", ",down\n", ",flat\n"][i % 3] }
    });
    place.write("panel.csv", labelled);
    let said = place.refrain(&tiny(&[LABELS, &["--epochs", "1"]].concat())).succeeded();
    for words in ["2 sources, 3 features each", "from the column of the file: 200 up, 200 down, 200 flat"] {
        assert!(said.out.contains(words), "no {words:?} in {}", said.out);
    }
}

#[test]
fn eager_training_comes_to_the_same_bits_without_a_replay() {
    let place = Place::new();
    place.write("panel.csv", panel(300));
    let train = |more: &[&str]| {
        place.refrain(&tiny(&[LABELS, &["--epochs", "2", "--json", "-v"], more].concat())).succeeded()
    };
    let weights_of = |said: &Said| {
        said.json()["folds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|fold| fold["weights_sha256"].clone())
            .collect::<Vec<_>>()
    };
    let (recorded, eager) = (train(&[]), train(&["--eager"]));
    let weights = weights_of(&recorded);
    assert_eq!(weights.len(), 2);
    assert_ne!(weights[0], weights[1]);
    assert_eq!(weights_of(&eager), weights);
    let json = recorded.json();
    let steps = json["folds"].as_array().unwrap().iter().map(|fold| fold["steps"].as_u64().unwrap());
    tells_of_replays(&recorded, steps.sum());
    tells_of_no_replays(&eager);
}

#[test]
fn panels_and_settings_that_do_not_fit_are_refused_and_nothing_is_written() {
    let place = Place::new();
    place.write("panel.csv", panel(300));
    place.write("no-source.csv", "time,a\n2020-01-01,1\n");
    let before = place.snapshot();
    for (more, words) in [
        (&["--data", "none.csv"][..], &["none.csv", "check the path"][..]),
        (&["--data", "no-source.csv"], &["line 1", "names the source", "name it `source`"]),
        (&[], &["neither a column `label` nor a price column `temp`"]),
        (&["--price", "close"], &["--price needs", "--label-horizon"]),
        (&["--patch", "8"], &["patch is a setting of patchtst"]),
        (&["--accumulate", "3"], &["a batch of 16 cannot be split into 3"]),
        (&["--heads", "3"], &["3 heads do not divide d_model 8"]),
    ] {
        let more = if more.contains(&"--accumulate") || more.contains(&"--heads") {
            [LABELS, more].concat()
        } else {
            more.to_vec()
        };
        place.refrain(&tiny(&more)).failed(words);
    }
    let embargo = [LABELS, &["--label-horizon", "9"]].concat();
    place.refrain(&tiny(&embargo)).failed(&["the embargo is 3 rows, but labels look 9 rows ahead"]);
    place.refrain(&tiny(&[LABELS, &["--folds", "99"]].concat())).failed(&["too few for 99 folds"]);
    place.refrain(&["train", "--folds", "2"]).failed(&["folds is a setting of cross-asset"]);
    assert_eq!(place.snapshot(), before);
}

/// Ctrl-C finishes the step and saves; the resumed run ends with the weights of an uninterrupted one.
#[cfg(unix)]
#[test]
fn an_interrupted_run_resumes_to_the_same_weights() {
    let place = Place::new();
    place.write("panel.csv", panel(400));
    let more = [LABELS, &["--epochs", "4", "--batch-size", "1", "--json"]].concat();
    let whole = place.refrain(&tiny(&[&more[..], &["--out", "whole"]].concat())).succeeded().json();

    let child = place
        .command(&tiny(&[&more[..], &["--out", "cut"]].concat()))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The second fold starts when the first is done.
    while !place.path("cut/fold-2").is_dir() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(20));
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let said = said(child.wait_with_output().unwrap());
    assert_eq!(said.status, 130, "{}", said.err);
    assert!(said.err.contains("refrain train --resume cut"), "{}", said.err);
    let resumed = place.refrain(&["train", "--resume", "cut", "--json"]).succeeded().json();
    let results = |json: &Value| {
        let folds = json["folds"].as_array().unwrap().iter();
        folds
            .map(|fold| (fold["weights_sha256"].clone(), fold["confusion"].clone(), fold["steps"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(results(&resumed), results(&whole));
    // Like a job that is restarted unchanged.
    let job = [&more[..], &["--out", "cut", "--resume-if-possible"]].concat();
    assert_eq!(results(&place.refrain(&tiny(&job)).succeeded().json()), results(&whole));
    let other = [&job[..], &["--folds", "1"]].concat();
    place.refrain(&tiny(&other)).failed(&["cut", "other settings", "data.folds.folds 2 (now 1)"]);
    place.refrain(&["train", "--resume", "cut", "--epochs", "3"]).failed(&["--resume uses the settings"]);
    place.write("panel.csv", panel(401));
    place.refrain(&["train", "--resume", "cut"]).failed(&["panel.csv", "has changed"]);
}

#[test]
fn the_benchmark_tells_its_figures() {
    let place = Place::new();
    let arguments =
        ["bench", "cross-asset", "--samples", "8", "--epochs", "3", "--batch-size", "4", "--json"];
    let said = place.refrain(&arguments).succeeded();
    tells_of_replays(&said, 6);
    let json = said.json();
    assert_eq!((json["losses"].as_array().map(Vec::len), json["steps"].as_u64()), (Some(3), Some(6)));
    assert_eq!(
        (json["device_allocations_per_step"].as_f64(), json["parameters"].as_u64()),
        (Some(0.0), Some(1_682_187))
    );
    let eager = place.refrain(&[&arguments[..], &["--eager"]].concat()).succeeded();
    tells_of_no_replays(&eager);
    let eager = eager.json();
    assert_eq!(eager["loss_bits"], json["loss_bits"]);
    let parts = place.refrain(&[&arguments[..], &["--accumulate", "4"]].concat()).succeeded().json();
    let close = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-3;
    assert!(close(&parts["losses"][2], &json["losses"][2]), "{parts} and {json}");
    place.refrain(&[&arguments[..], &["--accumulate", "3"]].concat()).failed(&["cannot be split into 3"]);
}
