//! The library's predictor beside the command, on the same run folders.

mod common;

use std::path::Path;

use common::{Place, TINY, series};
use rayon::prelude::*;
use refrain::Device;
use refrain_forecast::tasks::forecasting::{CovariateValues, Forecast, Predictor};
use serde_json::{Value, json};

/// The rows of `series(..)` as a predictor takes them.
fn rows(text: &str) -> Vec<f64> {
    let cells =
        |line: &str| -> Vec<f64> { line.split(',').skip(1).map(|cell| cell.parse().unwrap()).collect() };
    text.lines().skip(1).flat_map(cells).collect()
}

fn load(folder: &Path, workers: usize) -> Predictor {
    Predictor::load(folder, &Device::cpu(), workers).unwrap()
}

/// The numbers of a forecast in the order of the command's table.
fn table(predictor: &Predictor, context: &[f64]) -> Vec<Vec<f32>> {
    table_of(predictor, &predictor.forecast(context).unwrap())
}

fn table_of(predictor: &Predictor, forecast: &Forecast) -> Vec<Vec<f32>> {
    let channels = predictor.channels().len();
    let cells = |row: usize| {
        let of_channel = |channel: usize| {
            let at = row * channels + channel;
            let bounds = forecast.intervals.iter().flat_map(move |of| [of.low[at], of.high[at]]);
            std::iter::once(forecast.values[at]).chain(bounds).map(|value| value as f32)
        };
        (0..channels).flat_map(of_channel).collect()
    };
    (0..predictor.window().horizon).map(cells).collect()
}

fn told(json: &Value) -> Vec<Vec<f32>> {
    let numbers = |row: &Value| -> Vec<f32> {
        row.as_array().unwrap().iter().skip(1).map(|cell| cell.as_f64().unwrap() as f32).collect()
    };
    json["rows"].as_array().unwrap().iter().map(numbers).collect()
}

#[test]
fn a_predictor_forecasts_what_the_command_forecasts_from_any_thread_again_and_again() {
    let nlinear = ["--model", "nlinear", "--context", "24", "--horizon", "6", "--epochs", "2"];
    let quantiles = ["--loss", "quantile", "--levels", "80,90", "--calibrate"];
    for settings in [
        TINY.to_vec(),
        [TINY, &quantiles[..]].concat(),
        [TINY, &["--precision", "bf16"][..]].concat(),
        [&nlinear[..], &quantiles[2..]].concat(),
    ] {
        let place = Place::new();
        let text = series(300);
        place.write("a.csv", &text);
        let train = [&["train", "--data", "a.csv", "--out", "run"][..], &settings].concat();
        place.refrain(&train).succeeded();
        let json =
            place.refrain(&["forecast", "--model", "run", "--json", "--device", "cpu"]).succeeded().json();
        let values = rows(&text);
        let predictor = load(&place.path("run"), 2);
        assert_eq!(predictor.channels(), ["a", "b"]);
        let last = &values[values.len() - 2 * 24..];
        assert_eq!(table(&predictor, last), told(&json), "{settings:?}");
        // Each thread forecasts from other rows; the first forecasts are those of a predictor with one worker.
        let alone = load(&place.path("run"), 1);
        let contexts: Vec<&[f64]> = (0..40).map(|row| &values[2 * row..2 * (row + 24)]).collect();
        let expected: Vec<_> = contexts.iter().map(|context| table(&alone, context)).collect();
        assert_ne!(expected[0], expected[1]);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (predictor, contexts, expected) = (&predictor, &contexts, &expected);
                scope.spawn(move || {
                    for at in (0..40).map(|at| (at * 7 + thread) % 40) {
                        assert_eq!(table(predictor, contexts[at]), expected[at], "thread {thread}, row {at}");
                    }
                });
            }
        });
        // No step can be called in a worker of a thread pool, so the predictor must compute elsewhere.
        let of_pool: Vec<_> = contexts.par_iter().map(|context| table(&predictor, context)).collect();
        assert_eq!(of_pool, expected);
        let message = predictor.forecast(&last[1..]).unwrap_err().to_string();
        assert!(message.contains("47 values") && message.contains("24 rows of 2"), "{message}");
        let mut broken = last.to_vec();
        broken[5] = f64::NAN;
        assert!(predictor.forecast(&broken).unwrap_err().to_string().contains("not finite"));
        assert_eq!(table(&predictor, last), told(&json), "{settings:?}, after an error");
    }
}

#[test]
fn a_folder_that_is_no_finished_forecaster_is_refused() {
    let place = Place::new();
    place.write("a.csv", series(300));
    let train = ["train", "--data", "a.csv", "--out", "run", "--model", "nlinear", "--context", "24"];
    let more = ["--horizon", "6", "--epochs", "1", "--levels", "80", "--calibrate"];
    place.refrain(&[&train[..], &more[..]].concat()).succeeded();
    let refused = |parts: &[&str]| {
        let message = Predictor::load(&place.path("run"), &Device::cpu(), 1).unwrap_err().to_string();
        parts.iter().for_each(|part| assert!(message.contains(part), "no {part:?} in {message}"));
    };
    std::fs::rename(place.path("run/calibration.json"), place.path("kept.json")).unwrap();
    refused(&["no calibration.json", "train --resume"]);
    std::fs::rename(place.path("kept.json"), place.path("run/calibration.json")).unwrap();
    load(&place.path("run"), 1);
    common::without_checksum(&place.path("run/model.safetensors"), |state, _| {
        state["config"]["model"]["name"] = json!("arima");
    });
    refused(&["no forecaster", "arima"]);
    std::fs::write(place.path("run/model.safetensors"), "hello").unwrap();
    refused(&["model.safetensors"]);
}

#[test]
fn a_run_of_an_older_version_is_loaded() {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let old = Path::new(&folder).join("tests/old_runs");
    let predictor = load(&old.join("patchtst"), 1);
    let text = std::fs::read_to_string(old.join("series.csv")).unwrap();
    let values = rows(&text);
    let window = predictor.window();
    let last = &values[values.len() - window.context * window.channels..];
    let forecast = predictor.forecast(last).unwrap();
    assert_eq!(forecast.values.len(), window.horizon * window.channels);
}

#[test]
fn a_model_of_independent_series_forecasts_any_series_by_all_its_values() {
    let place = Place::new();
    let row = |id: &str, at: usize, level: f64| {
        format!("{id},2024-01-{:02},{}\n", 1 + at, level + (at * at % 7) as f64 * level / 20.0)
    };
    let rows = |id: &str, of: std::ops::Range<usize>, level: f64| -> String {
        of.map(|at| row(id, at, level)).collect()
    };
    place.write("a.csv", format!("unique_id,ds,y\n{}{}", rows("a", 0..30, 10.0), rows("b", 4..29, 300.0)));
    let own = ["--model", "dlinear", "--context", "8", "--horizon", "3", "--season", "7", "--epochs", "3"];
    let more = ["--loss", "quantile", "--levels", "80", "--batch-size", "4", "--out", "run"];
    place.refrain(&[&["train", "--data", "a.csv"], &own[..], &more].concat()).succeeded();
    // One of these is shorter than the context.
    place.write("b.csv", format!("unique_id,ds,y\n{}{}", rows("x", 0..20, 5.0), rows("y", 3..8, 7000.0)));
    let arguments = ["forecast", "--model", "run", "--data", "b.csv", "--json", "--device", "cpu"];
    let json = place.refrain(&arguments).succeeded().json();
    let predictor = load(&place.path("run"), 1);
    for (id, of, level) in [("x", 0..20, 5.0), ("y", 3..8, 7000.0)] {
        let known: Vec<f64> = of.map(|at| level + (at * at % 7) as f64 * level / 20.0).collect();
        let forecast = predictor.forecast_series(&known).unwrap();
        let interval = &forecast.intervals[0];
        let cells =
            |at: usize| [forecast.values[at], interval.low[at], interval.high[at]].map(|value| value as f32);
        let told: Vec<[f32; 3]> = json["rows"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row[0] == id)
            .map(|row| [2, 3, 4].map(|at| row[at].as_f64().unwrap() as f32))
            .collect();
        assert_eq!((0..3).map(cells).collect::<Vec<_>>(), told, "{id}");
    }
    let refused = |error: refrain_forecast::Error, expected: &str| {
        assert!(error.to_string().contains(expected), "{error}");
    };
    refused(predictor.forecast(&[1.0; 8]).unwrap_err(), "forecast_series");
    refused(predictor.forecast_series(&[]).unwrap_err(), "no values");
    refused(predictor.forecast_series(&[1.0, f64::NAN]).unwrap_err(), "not finite");
    // A model of one table has channels.
    let grid = Place::new();
    grid.write("a.csv", series(300));
    grid.refrain(&[&["train", "--data", "a.csv", "--out", "run"][..], TINY].concat()).succeeded();
    refused(load(&grid.path("run"), 1).forecast_series(&[1.0; 8]).unwrap_err(), "pass a context");
}

/// A pseudo-random number from -0.5 to 0.5.
fn noise(at: usize) -> f64 {
    ((at * 7919 + at * at * 31 + 17) % 1009) as f64 / 1009.0 - 0.5
}

fn stamp(row: usize) -> String {
    format!("2024-01-{:02} {:02}:00:00", 1 + row / 24, row % 24)
}

fn cell(value: f64) -> String {
    if value.is_nan() { String::new() } else { value.to_string() }
}

const MIXER: &[&str] = &["--model", "tsmixer", "--d-model", "8", "--ffn", "16", "--layers", "1"];
const WINDOWS: &[&str] = &["--context", "24", "--horizon", "6", "--epochs", "1", "--out", "run"];

#[test]
fn a_predictor_forecasts_with_covariates_what_the_command_forecasts() {
    let rows = 200;
    // A sensor that fails for a while, and a plan that is known ahead.
    let sensor: Vec<f64> =
        (0..rows).map(|row| if (190..193).contains(&row) { f64::NAN } else { noise(row + 5000) }).collect();
    let plan: Vec<f64> = (0..rows + 6).map(|row| 100.0 * noise(3 * row)).collect();
    let y: Vec<f64> = (0..rows).map(|row| 20.0 + plan[row] / 10.0 + noise(row)).collect();
    let text = |rows: usize| {
        let line = |(row, plan): (usize, &f64)| {
            let of = |column: &[f64]| column.get(row).map_or(String::new(), |&value| cell(value));
            format!("{},{},{plan},{}\n", stamp(row), of(&y), of(&sensor))
        };
        "time,y,plan,sensor\n".to_owned() + &plan[..rows].iter().enumerate().map(line).collect::<String>()
    };
    let begin = rows - 24;
    let first = stamp(begin);
    let all = CovariateValues {
        past: &sensor[begin..],
        future: &plan[begin..],
        first: Some(&first),
        ..CovariateValues::default()
    };
    let roles = ["--future", "plan", "--past", "sensor", "--calendar", "hour,weekday"];
    let mixer = [MIXER, &roles, &["--loss", "quantile", "--levels", "80"]].concat();
    let mut patchtst = TINY.to_vec();
    patchtst.extend(["--past", "sensor,plan", "--channel-attention", "--epochs", "1"]);
    // As past covariates: sensor and plan of each row.
    let both: Vec<f64> = (begin..rows).flat_map(|row| [sensor[row], plan[row]]).collect();
    let of_past = CovariateValues { past: &both, ..CovariateValues::default() };
    for (settings, covariates, rows) in [(mixer, all, rows + 6), (patchtst, of_past, rows)] {
        let place = Place::new();
        place.write("a.csv", text(rows));
        place.refrain(&[&["train", "--data", "a.csv"], &settings[..], WINDOWS].concat()).succeeded();
        let arguments = ["forecast", "--model", "run", "--json", "--device", "cpu"];
        let json = place.refrain(&arguments).succeeded().json();
        let bench = ["bench", "predict", "--model", "run", "--callers", "2", "--forecasts", "3", "--json"];
        let measured = place.refrain(&bench).succeeded().json();
        assert_eq!((measured["callers"].as_u64(), measured["forecasts"].as_u64()), (Some(2), Some(6)));
        let us = ["min_us", "median_us", "max_us"].map(|key| measured[key].as_f64().unwrap());
        assert!(0.0 < us[0] && us.is_sorted(), "{measured}");
        let predictor = load(&place.path("run"), 2);
        let forecast = predictor.forecast_with(&y[begin..], &covariates).unwrap();
        assert_eq!(table_of(&predictor, &forecast), told(&json), "{settings:?}");
        let moved: Vec<f64> = y[begin..].iter().map(|value| value + 1.0).collect();
        assert_ne!(predictor.forecast_with(&moved, &covariates).unwrap(), forecast);
        assert_eq!(predictor.forecast_with(&y[begin..], &covariates).unwrap(), forecast);

        let refused = |covariates: &CovariateValues<'_>, words: &[&str]| {
            let message = predictor.forecast_with(&y[begin..], covariates).unwrap_err().to_string();
            words.iter().for_each(|word| assert!(message.contains(word), "no {word:?} in {message}"));
        };
        refused(&CovariateValues::default(), &["past covariates", "here are 0", "forecast_with"]);
        assert!(predictor.forecast(&y[begin..]).is_err());
        let infinite = vec![f64::INFINITY; covariates.past.len()];
        refused(&CovariateValues { past: &infinite, ..covariates }, &["a covariate", "inf"]);
        if predictor.covariates().future.is_empty() {
            refused(
                &CovariateValues { future: &plan, ..covariates },
                &["0 future covariates", "here are 206"],
            );
            continue;
        }
        assert_eq!(
            (&predictor.covariates().past[..], predictor.covariates().future.len()),
            (&["sensor".to_owned()][..], 1)
        );
        refused(
            &CovariateValues { future: &plan[begin + 1..], ..covariates },
            &["30 values in 30 rows", "here are 29"],
        );
        let mut unknown = plan[begin..].to_vec();
        unknown[29] = f64::NAN;
        refused(&CovariateValues { future: &unknown, ..covariates }, &["of the horizon is NaN"]);
        refused(&CovariateValues { first: None, ..covariates }, &["features of the calendar", "first"]);
        refused(&CovariateValues { first: Some("noon"), ..covariates }, &["\"noon\" is not a time"]);
    }
}

#[test]
fn a_predictor_forecasts_any_series_with_its_covariates() {
    let size = |id: usize| (1 + id % 3) as f64;
    let plan = |id: usize, row: usize| noise(999 * id + row);
    let y = |id: usize, row: usize| 10.0 * size(id) + plan(id, row) + noise(333 * id + 7 * row);
    let text = |ids: &[(usize, usize)]| {
        let mut text = "unique_id,ds,y,plan,size\n".to_owned();
        for &(id, rows) in ids {
            for row in 0..rows + 6 {
                let known = if row < rows { cell(y(id, row)) } else { String::new() };
                text += &format!("s{id},{},{known},{},{}\n", stamp(row + id), plan(id, row), size(id));
            }
        }
        text
    };
    let place = Place::new();
    place.write("a.csv", text(&[(0, 120), (1, 90), (2, 100)]));
    // Others, one of them shorter than a context.
    let ids = [(3, 60), (4, 5), (1, 90)];
    place.write("b.csv", text(&ids));
    let roles = ["--future", "plan", "--static", "size", "--calendar", "hour"];
    place.refrain(&[&["train", "--data", "a.csv"], MIXER, &roles, WINDOWS].concat()).succeeded();
    let arguments = ["forecast", "--model", "run", "--data", "b.csv", "--json", "--device", "cpu"];
    let json = place.refrain(&arguments).succeeded().json();
    place.refrain(&["bench", "predict", "--model", "run", "--forecasts", "2"]).succeeded();
    let predictor = load(&place.path("run"), 1);
    for (id, rows) in ids {
        let known: Vec<f64> = (0..rows).map(|row| y(id, row)).collect();
        let future: Vec<f64> = (0..rows + 6).map(|row| plan(id, row)).collect();
        let (first, statics) = (stamp(id), [size(id)]);
        let covariates =
            CovariateValues { past: &[], future: &future, statics: &statics, first: Some(&first) };
        let forecast = predictor.forecast_series_with(&known, &covariates).unwrap();
        let name = format!("s{id}");
        let told = json["rows"].as_array().unwrap().iter().filter(|row| row[0] == name);
        let told: Vec<f32> = told.map(|row| row[2].as_f64().unwrap() as f32).collect();
        assert_eq!(forecast.values.iter().map(|&value| value as f32).collect::<Vec<_>>(), told, "{name}");
        let message = predictor.forecast_series(&known).unwrap_err().to_string();
        assert!(message.contains("future covariates"), "{message}");
    }
}
