//! Every forecaster and every loss through the real binary, from training to forecast.

mod common;

use std::process::Stdio;
use std::time::Duration;

use common::{Place, Said, same_table, series, tells_of_replays};

const MODELS: [(&str, &[&str]); 6] = [
    (
        "patchtst",
        &["--patch", "6", "--stride", "3", "--d-model", "8", "--heads", "2", "--ffn", "16", "--layers", "1"],
    ),
    ("nlinear", &[]),
    ("nlinear", &["--individual"]),
    ("dlinear", &["--moving-average", "5"]),
    ("itransformer", &["--d-model", "8", "--heads", "2", "--ffn", "16", "--layers", "1"]),
    ("tsmixer", &["--ffn", "8", "--layers", "1", "--dropout", "0.1"]),
];
const BATCHES: &[&str] =
    &["--context", "24", "--horizon", "6", "--batch-size", "32", "--epochs", "2", "--json"];

const HUBER: &[&str] = &["--loss", "huber", "--huber-delta", "0.5"];
const QUANTILE: &[&str] = &["--loss", "quantile", "--levels", "90,80"];

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
    let said = train(&place, "nlinear", &[&["--accumulate", "2", "-v"]]).succeeded();
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
        for (precision, loss) in [("f32", HUBER), ("bf16", QUANTILE)] {
            let place = place();
            let of_run = [&["--precision", precision], loss].concat();
            let settings = [own, &of_run];
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
fn every_forecaster_learns_a_distribution_and_forecasts_its_intervals() {
    for (model, own) in MODELS {
        let place = place();
        let student_t = &["--loss", "student-t", "--levels", "80", "--out", "run"];
        let told = train(&place, model, &[own, student_t]).succeeded().json();
        let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
        for key in ["test_mse", "test_mae", "test_crps", "weights_sha256"] {
            assert!(!told[key].is_null(), "{model}: {key} of {told}");
            assert_eq!(evaluated[key], told[key], "{model}: {key}");
        }
        let forecast = |data: &str| {
            let said = place.refrain(&["forecast", "--model", "run", "--data", data, "--out", "-"]);
            said.succeeded().out
        };
        let both = forecast("a.csv");
        let header = "time,a,a-lo-80,a-hi-80,b,b-lo-80,b-hi-80";
        assert_eq!(both.lines().next(), Some(header), "{model}");
        if ["nlinear", "dlinear"].contains(&model) && own != ["--individual"] {
            // One channel of the two is forecast by the same weights. It has the scale of training by its name.
            let cells = |text: &str, of: usize| -> String {
                text.lines()
                    .map(|line| line.split(',').take(of).collect::<Vec<_>>().join(",") + "\n")
                    .collect()
            };
            place.write("one.csv", cells(&series(300), 2));
            near(&forecast("one.csv"), &cells(&both, 4));
        }
    }
}

#[test]
fn every_forecaster_learns_quantiles_and_forecasts_intervals() {
    for (model, own) in MODELS {
        let place = place();
        let told = train(&place, model, &[own, QUANTILE, &["--out", "run"]]).succeeded().json();
        let cells = told["test_windows"].as_u64().unwrap() * 2 * 6;
        assert_eq!(told["quantile_crossings"]["of"].as_u64(), Some(cells), "{model}: {told}");
        let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
        for key in ["test_mse", "test_mae", "quantile_crossings", "parameters", "weights_sha256"] {
            assert_eq!(evaluated[key], told[key], "{model}: {key}");
        }
        let forecast = |place: &Place| {
            place.refrain(&["forecast", "--model", "run", "--out", "next.csv"]).succeeded();
            std::fs::read_to_string(place.path("next.csv")).unwrap()
        };
        let csv = forecast(&place);
        same_table(&csv, &place.refrain(&["forecast", "--model", "run", "--json"]).succeeded().json());
        let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
        let header = "time,a,a-lo-80,a-hi-80,a-lo-90,a-hi-90,b,b-lo-80,b-hi-80,b-lo-90,b-hi-90";
        assert_eq!((lines.len(), lines[0].join(",")), (7, header.to_owned()), "{model}");
        for line in &lines[1..] {
            let values: Vec<f64> = line[1..].iter().map(|cell| cell.parse().unwrap()).collect();
            for channel in values.chunks(5) {
                let ascending = [channel[3], channel[1], channel[0], channel[2], channel[4]];
                assert!(ascending.is_sorted() && channel[3] < channel[4], "{model}: {line:?}");
            }
        }
        let plot = std::fs::read_to_string(place.path("run/forecast.svg")).unwrap();
        assert_eq!(plot.matches("<polygon").count(), 4, "{model}");
        let metrics = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
        assert!(metrics.contains("validation_loss"), "{metrics}");

        // A long file gives the same numbers in the long form.
        let rows = std::fs::read_to_string(place.path("a.csv")).unwrap();
        let row = |line: &str| {
            let cells: Vec<&str> = line.split(',').collect();
            format!("b,{0},{2}\na,{0},{1}\n", cells[0], cells[1], cells[2])
        };
        let long = Place::new();
        long.write("a.csv", format!("unique_id,ds,y\n{}", rows.lines().skip(1).map(row).collect::<String>()));
        train(&long, model, &[own, QUANTILE, &["--out", "run"]]).succeeded();
        let table = forecast(&long);
        let mut expected = "unique_id,ds,forecast,lo-80,hi-80,lo-90,hi-90\n".to_owned();
        if model == "nlinear" && own.is_empty() {
            // The channels have another order, which changes nothing in a model that treats them alike but the rounding.
            for (id, first) in [("b", 6), ("a", 1)] {
                for line in &lines[1..] {
                    expected += &format!("{id},{},{}\n", line[0], line[first..first + 5].join(","));
                }
            }
            near(&table, &expected);
        }
        let header: Vec<&str> = table.lines().map(|line| &line[..2]).collect();
        assert_eq!(header[1..], [["b,"; 6], ["a,"; 6]].concat(), "{model}: {table}");
        assert!(table.starts_with(expected.lines().next().unwrap()), "{table}");
    }
}

#[test]
fn evaluate_tells_the_metrics_of_every_channel_and_step() {
    let place = place();
    train(&place, "nlinear", &[QUANTILE, &["--calibrate", "--out", "run"]]).succeeded();
    let json = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    let of = |value: &serde_json::Value, name: &str| {
        value[name].as_f64().unwrap_or_else(|| panic!("no number {name} in {value}"))
    };
    let parts = [json["steps"].as_array().unwrap(), json["channels"].as_array().unwrap()];
    assert_eq!(parts.map(Vec::len), [6, 2]);
    for (name, total) in
        [("mse", "test_mse"), ("mae", "test_mae"), ("mase", "test_mase"), ("crps", "test_crps")]
    {
        // All cells were observed, so the whole is the mean of its parts.
        let mean = |parts: Vec<f64>| parts.iter().sum::<f64>() / parts.len() as f64;
        let steps = mean(parts[0].iter().map(|step| of(step, name)).collect());
        let channels = mean(parts[1].iter().map(|channel| of(&channel["standardised"], name)).collect());
        for whole in [steps, channels] {
            assert!((whole - of(&json, total)).abs() < 1e-9, "{name}: {whole} and {}", of(&json, total));
        }
    }
    assert!((of(&json, "test_rmse") - of(&json, "test_mse").sqrt()).abs() < 1e-12);
    let config = std::fs::read_to_string(place.path("run/config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    for (channel, name) in ["a", "b"].into_iter().enumerate() {
        let OfChannel { standardised, original } = serde_json::from_value(parts[1][channel].clone()).unwrap();
        let std = config["config"]["data"]["scaler"]["std"][channel].as_f64().unwrap();
        assert_eq!(parts[1][channel]["name"], name);
        for (metric, unit) in [("mse", std * std), ("mae", std), ("rmse", std), ("crps", std), ("mase", 1.0)]
        {
            let (one, other) = (of(&standardised, metric) * unit, of(&original, metric));
            assert!((one - other).abs() < 1e-9 * other, "{metric} of {name}: {one} and {other}");
        }
        let intervals = original["intervals"].as_array().unwrap();
        assert_eq!([0, 1].map(|at| of(&intervals[at], "level")), [80.0, 90.0]);
        assert!(of(&intervals[0], "coverage") <= of(&intervals[1], "coverage"));
        assert!(of(&intervals[0], "width") < of(&intervals[1], "width"));
    }
    let said = place.refrain(&["evaluate", "--model", "run"]).succeeded().out;
    for word in [
        "each channel in its own unit",
        "MASE",
        "sMAPE",
        "CRPS",
        "in 90 %",
        "width 80 %",
        "steps of the horizon",
    ] {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
}

/// A channel as `evaluate --json` tells it.
#[derive(serde::Deserialize)]
struct OfChannel {
    standardised: serde_json::Value,
    original: serde_json::Value,
}

#[test]
fn intervals_are_calibrated_after_training_for_any_forecaster_and_loss() {
    let point: &[&str] = &["--levels", "80,90"];
    for (model, own, loss) in [("nlinear", &[][..], point), (MODELS[0].0, MODELS[0].1, QUANTILE)] {
        let place = place();
        let train = |out: &str, more: &[&str]| {
            train(&place, model, &[own, loss, &["--calibrate", "--out", out], more]).succeeded()
        };
        let said = train("run", &[]);
        assert!(said.err.contains(", calibration 10 windows from "), "{}", said.err);
        train("other", &["--seed", "1"]);
        let forecast = || place.refrain(&["forecast", "--model", "run", "--out", "-"]);
        let csv = forecast().succeeded().out;
        let header = "time,a,a-lo-80,a-hi-80,a-lo-90,a-hi-90,b,b-lo-80,b-hi-80,b-lo-90,b-hi-90";
        assert_eq!(csv.lines().next(), Some(header), "{model}");
        let plot = std::fs::read_to_string(place.path("run/forecast.svg")).unwrap();
        assert_eq!(plot.matches("<polygon").count(), 4, "{model}");

        // A run that has none yet, one of other weights, a damaged one.
        let file = place.path("run/calibration.json");
        let kept = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        forecast().failed(&["no calibration.json", "train --resume"]);
        place.refrain(&["evaluate", "--model", "run"]).failed(&["no calibration.json"]);
        place.refrain(&["train", "--resume", "run"]).succeeded();
        assert_eq!(std::fs::read(&file).unwrap(), kept, "{model}");
        assert_eq!(forecast().succeeded().out, csv, "{model}");
        std::fs::copy(place.path("other/calibration.json"), &file).unwrap();
        forecast().failed(&["belongs to other weights"]);
        std::fs::write(&file, &kept[..kept.len() / 2]).unwrap();
        forecast().failed(&["calibration.json", "cannot be read"]);
    }
}

/// Two tables with the same texts and nearly the same numbers.
#[track_caller]
fn near(table: &str, expected: &str) {
    assert_eq!(table.lines().count(), expected.lines().count());
    let cells =
        |text: &str| text.lines().flat_map(|line| line.split(',')).map(str::to_owned).collect::<Vec<_>>();
    for (got, expected) in cells(table).iter().zip(&cells(expected)) {
        match (got.parse::<f64>(), expected.parse::<f64>()) {
            (Ok(got), Ok(expected)) => {
                assert!((got - expected).abs() < 1e-3 * expected.abs().max(1.0), "{got} for {expected}")
            }
            _ => assert_eq!(got, expected),
        }
    }
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
        ("nlinear", &["--loss", "quantile"], &["the quantile loss has no levels", "--levels 80,90"]),
        ("nlinear", &["--calibrate"], &["no intervals to calibrate", "--levels 80,90"]),
        ("nlinear", &["--calibrate", "--levels", "99"], &["10 windows are too few", "need 99"]),
        ("nlinear", &["--levels", "80,90"], &["intervals of 80,90 %", "the loss is mse", "--calibrate"]),
        ("nlinear", &["--levels", "80,120"], &["--levels", "120 is not between 0 and 100"]),
        (
            "arima",
            &[],
            &["no model \"arima\"", "patchtst, nlinear, dlinear, itransformer, tsmixer, cross-asset"],
        ),
        ("cross-asset", &["--loss", "mae"], &["is a setting of patchtst and nlinear"]),
    ] {
        train(&place, model, &[more, &["--out", "run"]]).failed(words);
        assert!(!place.path("run").exists());
    }
}

#[test]
fn adaptive_intervals_follow_their_coverage_in_files_with_other_columns_too() {
    let place = place();
    let own = ["--levels", "80,90", "--calibrate"];
    train(&place, "nlinear", &[&own, &["--adaptive", "0.2", "--out", "run"]]).succeeded();
    train(&place, "nlinear", &[&own, &["--out", "static"]]).succeeded();
    let text = std::fs::read_to_string(place.path("a.csv")).unwrap();
    let columns = |places: &[usize]| -> String {
        let line = |line: &str| {
            let cells: Vec<&str> = line.split(',').collect();
            places.iter().map(|&place| cells[place]).collect::<Vec<_>>().join(",") + "\n"
        };
        text.lines().map(line).collect()
    };
    place.write("swapped.csv", columns(&[0, 2, 1]));
    place.write("b.csv", columns(&[0, 2]));
    let of_b = |model: &str, data: &str| {
        let said = place.refrain(&["evaluate", "--model", model, "--data", data, "--json"]).succeeded();
        let channels = said.json()["channels"].as_array().unwrap().clone();
        channels.into_iter().find(|channel| channel["name"] == "b").unwrap()
    };
    let expected = of_b("run", "a.csv");
    assert_ne!(expected["standardised"]["intervals"], of_b("static", "a.csv")["standardised"]["intervals"]);
    for data in ["swapped.csv", "b.csv"] {
        assert_eq!(of_b("run", data), expected, "{data}");
    }
}
