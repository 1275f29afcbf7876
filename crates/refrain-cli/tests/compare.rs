//! `refrain compare`: each model is what `refrain train` makes of it, and what is finished survives an interruption.

mod common;

use common::{Place, Said, series};
use serde_json::Value;

const SETTINGS: [&str; 14] = [
    "--data",
    "a.csv",
    "--context",
    "24",
    "--horizon",
    "6",
    "--epochs",
    "2",
    "--batch-size",
    "32",
    "--season",
    "24",
    "--device",
    "cpu",
];

fn place() -> Place {
    let place = Place::new();
    place.write("a.csv", series(300));
    place
}

fn row<'a>(outcome: &'a Value, name: &str) -> &'a Value {
    let rows = outcome["rows"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {outcome}"))
}

#[test]
fn each_model_is_the_one_that_train_makes_and_the_baselines_stand_beside_them() {
    let place = place();
    // --moving-average is a setting of one of the models only, --lr of both.
    let more =
        ["--models", "nlinear,dlinear,nlinear", "--lr", "0.01", "--individual", "--out", "all", "--json"];
    let said = place.refrain(&[&["compare"], &SETTINGS[..], &more].concat()).succeeded();
    let outcome = said.json();
    let names: Vec<&str> =
        outcome["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    let errors: Vec<f64> =
        outcome["rows"].as_array().unwrap().iter().map(|row| row["mse"].as_f64().unwrap()).collect();
    assert!(errors.is_sorted(), "{errors:?}");
    for model in ["nlinear", "dlinear"] {
        let alone = ["--model", model, "--lr", "0.01", "--individual", "--out", model, "--json"];
        let alone = place.refrain(&[&["train"], &SETTINGS[..], &alone].concat()).succeeded().json();
        let of = row(&outcome, model);
        assert_eq!(of["trained"]["parameters"], alone["parameters"], "{model}");
        for (name, key) in [
            (model, "test"),
            ("linear", "linear"),
            ("seasonal naive", "seasonal_naive"),
            ("last value", "last_value"),
        ] {
            for metric in ["mse", "mae", "rmse", "mase", "smape"] {
                let found = &row(&outcome, name)[metric];
                assert_eq!(found, &alone[format!("{key}_{metric}")], "{name}: {metric}");
                assert!(found.as_f64() > Some(0.0), "{name}: {metric} {found}");
            }
        }
        // A run folder like any other.
        let folder = format!("all/{model}");
        let evaluated = place.refrain(&["evaluate", "--model", &folder, "--json"]).succeeded().json();
        assert_eq!(evaluated["weights_sha256"], alone["weights_sha256"], "{model}");
    }
    let table = std::fs::read_to_string(place.path("all/comparison.csv")).unwrap();
    assert_eq!(table.lines().count(), 6, "{table}");
    for (line, name) in table.lines().skip(1).zip(&names) {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!((cells[0], cells[1].parse().ok()), (*name, row(&outcome, name)["mse"].as_f64()), "{line}");
        assert_eq!(cells.len(), 12, "{line}");
        assert_eq!(cells[4].parse().ok(), row(&outcome, name)["mase"].as_f64(), "{line}");
        assert_eq!(cells[6], "", "no intervals: {line}");
    }
    let plot = std::fs::read_to_string(place.path("all/comparison.svg")).unwrap();
    assert!(names.iter().all(|name| plot.contains(&format!(">{name}</text>"))), "{plot}");
    assert!(said.err.contains("model 2 of 2: dlinear"), "{}", said.err);
    // Nothing is left to do.
    let again = place.refrain(&["compare", "--resume", "all", "--json"]).succeeded();
    assert_eq!(again.json()["rows"], outcome["rows"]);
    assert_eq!(again.err.matches("finished    before").count(), 2);
}

#[test]
fn models_with_intervals_are_compared_by_their_crps_too() {
    let place = place();
    let quantiles = ["--models", "nlinear,dlinear", "--loss", "quantile", "--levels", "80", "--out", "all"];
    place.refrain(&[&["compare"], &SETTINGS[..], &quantiles].concat()).succeeded();
    let alone = ["--model", "dlinear", "--loss", "quantile", "--levels", "80", "--out", "alone", "--json"];
    let alone = place.refrain(&[&["train"], &SETTINGS[..], &alone].concat()).succeeded().json();
    let table = std::fs::read_to_string(place.path("all/comparison.csv")).unwrap();
    let crps = |name: &str| -> String {
        let line = table.lines().find(|line| line.starts_with(name)).unwrap();
        line.split(',').nth(6).unwrap().to_owned()
    };
    assert_eq!(crps("dlinear").parse().ok(), alone["test_crps"].as_f64(), "{table}");
    assert_eq!(crps("linear"), "", "{table}");
}

#[test]
fn what_cannot_be_compared_is_refused_before_anything_is_trained() {
    let place = place();
    let compare = |more: &[&str]| -> Said {
        place.refrain(&[&["compare"], &SETTINGS[..], &["--out", "all"], more].concat())
    };
    compare(&["--models", "nlinear,arima"]).failed(&["no model \"arima\"", "itransformer"]);
    compare(&["--models", "nlinear,cross-asset"]).failed(&["cross-asset is a classifier"]);
    compare(&["--models", "nlinear", "--model", "dlinear"]).failed(&["--models"]);
    compare(&["--models", "nlinear,dlinear", "--patch", "8"]).failed(&["patch is a setting of patchtst"]);
    compare(&[]).failed(&["--models"]);
    compare(&["--models", "nlinear,dlinear", "--lr", "-1"]).failed(&["learning rate"]);
    // Independent series are not for a model that mixes channels; the first model alone could be trained.
    compare(&["--models", "nlinear,itransformer", "--layout", "independent"]).failed(&["mixes channels"]);
    assert!(!place.path("all").exists());
    place.refrain(&["compare", "--resume", "all"]).failed(&["all", "refrain compare"]);
    place.refrain(&["compare", "--resume", "all", "--lr", "1"]).failed(&["--resume uses the settings"]);
}

#[test]
#[cfg(unix)]
fn an_interrupted_comparison_keeps_what_is_finished_and_goes_on_to_the_same_figures() {
    use std::process::Stdio;

    let place = place();
    // The second model has thousands of steps.
    let settings = "data = 'a.csv'\ncontext = 24\nhorizon = 6\nbatch-size = 1\nepochs = 3\npatch = 6\nstride = 3\nd-model = 8\n\
                    heads = 2\nffn = 16\nlayers = 2\n";
    place.write("small.toml", settings);
    let compare =
        ["compare", "--config", "small.toml", "--models", "nlinear,patchtst", "--device", "cpu", "--json"];
    let whole = place.refrain(&[&compare[..], &["--out", "whole"]].concat()).succeeded().json();
    let child = place
        .command(&[&compare[..], &["--out", "cut"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !place.path("cut/patchtst/checkpoint/config.json").is_file() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let signal = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signal.success());
    let cut = common::said(child.wait_with_output().unwrap());
    assert_eq!(cut.status, 130, "{}", cut.err);
    assert!(cut.err.contains("refrain compare --resume cut"), "{}", cut.err);
    let finished = std::fs::read(place.path("cut/nlinear/outcome.json")).unwrap();
    assert!(!place.path("cut/patchtst/outcome.json").exists());
    // The folder may be resumed from anywhere: the path of the data is absolute.
    let resumed = place.refrain(&["compare", "--resume", "cut", "--device", "cpu", "--json"]).succeeded();
    assert!(resumed.err.contains("finished    before"), "{}", resumed.err);
    assert_eq!(std::fs::read(place.path("cut/nlinear/outcome.json")).unwrap(), finished);
    for name in ["nlinear", "patchtst"] {
        for key in ["mse", "mae"] {
            assert_eq!(row(&resumed.json(), name)[key], row(&whole, name)[key], "{name}");
        }
    }
    place.write("a.csv", series(301));
    std::fs::remove_file(place.path("cut/patchtst/outcome.json")).unwrap();
    place.refrain(&["compare", "--resume", "cut"]).failed(&["a.csv", "has changed"]);
}

#[test]
fn all_models_of_a_comparison_decay_the_same_parameters() {
    let place = place();
    let compare = [&["compare"], &SETTINGS[..], &["--models", "nlinear,dlinear", "--out", "all", "--json"]];
    place.refrain(&compare.concat()).succeeded();
    let kept = || {
        serde_json::from_slice::<Value>(&std::fs::read(place.path("all/comparison.json")).unwrap()).unwrap()
    };
    let decays = || {
        let config = std::fs::read(place.path("all/dlinear/config.json")).unwrap();
        serde_json::from_slice::<Value>(&config).unwrap()["config"]["training"]["decay_all"].clone()
    };
    assert_eq!(
        (decays(), kept()["models"][1]["settings"]["decay-all"].clone()),
        (false.into(), false.into())
    );
    // A comparison as earlier versions kept it: everything decayed, and they did not say so.
    let mut old = kept();
    for model in old["models"].as_array_mut().unwrap() {
        model["settings"].as_object_mut().unwrap().remove("decay-all");
    }
    std::fs::write(place.path("all/comparison.json"), old.to_string()).unwrap();
    std::fs::remove_dir_all(place.path("all/dlinear")).unwrap();
    place.refrain(&["compare", "--resume", "all", "--device", "cpu"]).succeeded();
    assert_eq!(decays(), true);
}

#[test]
fn a_comparison_is_not_continued_with_other_data() {
    let place = place();
    let compare = [&["compare"], &SETTINGS[..], &["--models", "nlinear,dlinear", "--out", "all", "--json"]];
    let whole = place.refrain(&compare.concat()).succeeded().json();
    let unfinished = || {
        for file in ["comparison.csv", "comparison.svg"] {
            let _ = std::fs::remove_file(place.path("all").join(file));
        }
        let _ = std::fs::remove_dir_all(place.path("all/dlinear"));
    };
    let resume = || place.refrain(&["compare", "--resume", "all", "--device", "cpu", "--json"]);
    for (changed, what) in [
        (series(310), "rows 300 (now 310)"),
        (series(300).replacen(",2", ",3", 1), "names or values are not the same"),
        (series(300).replacen(",b", ",c", 1), "names or values are not the same"),
    ] {
        unfinished();
        place.write("a.csv", changed);
        resume().failed(&["a.csv", "has changed since the comparison began", what, "start a new comparison"]);
        assert!(!place.path("all/dlinear").exists());
    }
    place.write("a.csv", series(300));
    let rows = resume().succeeded().json();
    for name in ["nlinear", "dlinear"] {
        assert_eq!(row(&rows, name)["mse"], row(&whole, name)["mse"], "{name}");
    }
}
