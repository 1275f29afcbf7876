//! The library's predictor beside the command, on the same run folders.

mod common;

use std::path::Path;

use common::{Place, TINY, series};
use refrain::Device;
use refrain_forecast::tasks::forecasting::Predictor;
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
    let forecast = predictor.forecast(context).unwrap();
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
