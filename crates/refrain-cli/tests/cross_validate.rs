//! `refrain cross-validate`: origins, forecasts, metrics, and that nothing after an origin is ever seen.

mod common;

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{Place, Said};

const HORIZON: usize = 3;

fn value(id: usize, at: usize) -> f64 {
    let noise = ((id * 7919 + at * 104_729 + at * at * 31) % 1009) as f64 / 1009.0;
    (10 * (id + 1)) as f64 + (at as f64 * 0.9).sin() * (id + 1) as f64 + noise
}

/// A day of March or April of 2024.
fn day(at: usize) -> String {
    format!("2024-{:02}-{:02}", 3 + at / 31, 1 + at % 31)
}

/// Series of these lengths; each begins a day later than the one before. `change` is added to the last `changed` rows.
fn long(lengths: &[usize], (changed, change): (usize, f64)) -> String {
    let row = |id: usize, at: usize| {
        let more = if at + changed >= lengths[id] { change } else { 0.0 };
        format!("s{id},{},{}\n", day(at + id), value(id, at) + more)
    };
    let rows = lengths.iter().enumerate().flat_map(|(id, &rows)| (0..rows).map(move |at| (id, at)));
    format!("unique_id,ds,y\n{}", rows.map(|(id, at)| row(id, at)).collect::<String>())
}

const SMALL: [&str; 16] = [
    "--data",
    "a.csv",
    "--model",
    "nlinear",
    "--context",
    "6",
    "--horizon",
    "3",
    "--season",
    "2",
    "--epochs",
    "2",
    "--batch-size",
    "8",
    "--device",
    "cpu",
];

fn cross_validate(place: &Place, more: &[&str]) -> Said {
    place.refrain(&[&["cross-validate"], &SMALL[..], more].concat())
}

/// The rows of the forecasts: by cutoff and id, the time, the true value and the rest.
type Forecasts = BTreeMap<(String, String), Vec<(String, String, Vec<f64>)>>;

fn forecasts(place: &Place, folder: &str) -> (String, Forecasts) {
    let text = std::fs::read_to_string(place.path(folder).join("forecasts.csv")).unwrap();
    let mut all = Forecasts::new();
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let numbers = cells[4..].iter().map(|cell| cell.parse().unwrap()).collect();
        let key = (cells[2].to_owned(), cells[0].to_owned());
        all.entry(key).or_default().push((cells[1].to_owned(), cells[3].to_owned(), numbers));
    }
    (text.lines().next().unwrap().to_owned(), all)
}

#[test]
fn forecasts_of_all_origins_stand_beside_what_came_true() {
    let lengths = [40, 33, 12];
    let place = Place::new();
    place.write("a.csv", long(&lengths, (0, 0.0)));
    let own =
        ["--windows", "3", "--step", "2", "--loss", "quantile", "--levels", "80", "--out", "cv", "--json"];
    let said = cross_validate(&place, &own).succeeded();
    let (header, all) = forecasts(&place, "cv");
    assert_eq!(header, "unique_id,ds,cutoff,y,forecast,lo-80,hi-80");
    // Three rows from the end, five, and seven; the shortest series is left out where it has too few rows before.
    for (id, &rows) in lengths.iter().enumerate() {
        for back in [3, 5, 7] {
            let cutoff = format!("{} 00:00:00", day(rows - back - 1 + id));
            let found = all.get(&(cutoff.clone(), format!("s{id}")));
            let found = found.unwrap_or_else(|| panic!("no forecast of s{id} after {cutoff}"));
            assert_eq!(found.len(), HORIZON);
            for (step, (ds, y, numbers)) in found.iter().enumerate() {
                let at = rows - back + step;
                assert_eq!(*ds, format!("{} 00:00:00", day(at + id)));
                assert_eq!(y.parse::<f32>().unwrap(), value(id, at) as f32, "s{id} at {at}");
                assert!(numbers[1] <= numbers[0] && numbers[0] <= numbers[2]);
            }
        }
    }
    assert_eq!(all.len(), 9);
    let json = said.json();
    let windows = json["windows"].as_array().unwrap();
    let of = |key: &str| windows.iter().map(|window| window[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("window"), [1, 2, 3]);
    // Trained once, for the first origin.
    assert_eq!(of("model"), ["window-1"; 3]);
    assert_eq!(of("count"), [9; 3]);
    assert_eq!((json["count"].as_u64(), of("left_out")), (Some(27), vec![0.into(); 3]));
    let total = |key: &str| windows.iter().map(|window| window[key].as_f64().unwrap()).sum::<f64>() / 3.0;
    assert!((total("mse") - json["mse"].as_f64().unwrap()).abs() < 1e-12);
    let kept = std::fs::read_to_string(place.path("cv/cross-validation.json")).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&kept).unwrap(), json);
    // The mean absolute percentage error by hand, from the forecasts.
    let smape = |y: f64, f: f64| 200.0 * (y - f).abs() / (y.abs() + f.abs());
    let cells = all.values().flatten().map(|(_, y, numbers)| smape(y.parse().unwrap(), numbers[0]));
    let by_hand = cells.sum::<f64>() / 27.0;
    assert!((by_hand - json["smape"].as_f64().unwrap()).abs() < 1e-3, "{by_hand} for {}", json["smape"]);
}

#[test]
fn nothing_after_an_origin_changes_its_forecast() {
    let place = Place::new();
    for refit in [false, true] {
        let run = |changed: (usize, f64)| {
            place.write("a.csv", long(&[40, 33, 30], changed));
            let out = format!("cv-{refit}-{}", changed.0);
            let refit = if refit { &["--refit"][..] } else { &[] };
            cross_validate(&place, &[&["--windows", "3", "--out", &out], refit].concat()).succeeded();
            // The tensors; the header before them lists its entries in any order.
            let model = |window: usize| {
                let path = place.path(&format!("{out}/window-{window}/model.safetensors"));
                let bytes = std::fs::read(path).ok()?;
                let header = u64::from_le_bytes(bytes[..8].try_into().ok()?);
                Some(bytes[8 + header as usize..].to_vec())
            };
            (forecasts(&place, &out).1, (1..=3).map(model).collect::<Vec<_>>())
        };
        let (whole, models) = run((0, 0.0));
        assert_eq!(models.iter().filter(|model| model.is_some()).count(), if refit { 3 } else { 1 });
        // The last nine rows follow the first origin, the last six the second: what was forecast before knows nothing of them.
        for (rows, before) in [(9, 1), (6, 2)] {
            let (changed, others) = run((rows, 500.0));
            assert!(models[0] == others[0], "the model of the first origin, refit {refit}, {rows} rows");
            for (key, expected) in &whole {
                let earlier = whole.keys().filter(|of| of.1 == key.1 && of.0 < key.0).count();
                let of = |rows: &[(String, String, Vec<f64>)]| {
                    rows.iter().map(|row| row.2.clone()).collect::<Vec<_>>()
                };
                let same = of(expected) == of(&changed[key]);
                assert_eq!(same, earlier < before, "{key:?}, refit {refit}, {rows} rows");
            }
        }
        // A leak would be seen: a model that trains up to the end is another one.
        let leak = |changed: (usize, f64)| {
            let place = Place::new();
            place.write("a.csv", long(&[40, 33, 30], changed));
            let train = [&["train"], &SMALL[..], &["--split", "1,1", "--json", "--out", "run"]].concat();
            place.refrain(&train).succeeded().json()["weights_sha256"].clone()
        };
        assert_ne!(leak((0, 0.0)), leak((6, 500.0)));
    }
}

#[test]
fn a_grid_is_forecast_at_common_origins() {
    let place = Place::new();
    let row = |at: usize| format!("{},{},{}\n", day(at), value(0, at), value(1, at));
    place.write("a.csv", format!("time,a,b\n{}", (0..40).map(row).collect::<String>()));
    let said =
        cross_validate(&place, &["--windows", "2", "--validation", "4", "--refit", "--json"]).succeeded();
    let json = said.json();
    let out = json["out"].as_str().unwrap();
    assert!(out.contains("a-cross-validation-1"), "{out}");
    let (_, all) = forecasts(&place, out);
    let keys: Vec<(&str, &str)> = all.keys().map(|(cutoff, id)| (&cutoff[..10], id.as_str())).collect();
    assert_eq!(keys, [("2024-04-03", "a"), ("2024-04-03", "b"), ("2024-04-06", "a"), ("2024-04-06", "b")]);
    assert_eq!(json["windows"][1]["cutoff"], "2024-04-06 00:00:00");
    assert_eq!(json["windows"][1]["model"], "window-2");
}

#[test]
fn what_cannot_be_cross_validated_is_refused() {
    let place = Place::new();
    place.write("a.csv", long(&[40, 33], (0, 0.0)));
    cross_validate(&place, &["--split", "3,3"]).failed(&["no --split"]);
    cross_validate(&place, &["--windows", "20"]).failed(&["a.csv", "needs 64 rows", "has 40"]);
    cross_validate(&place, &["--windows", "0"]).failed(&["choose 1 or more"]);
    place.refrain(&["cross-validate", "--model", "cross-asset"]).failed(&["classifier", "--folds"]);
    cross_validate(&place, &["--windows", "1", "--out", "cv"]).succeeded();
    cross_validate(&place, &["--windows", "1", "--out", "cv"]).failed(&["not empty"]);
}

/// The same with some rows left out, and another value in some.
fn changed(lengths: &[usize], without: &[(usize, usize)], huge: std::ops::Range<usize>) -> String {
    let rows = lengths.iter().enumerate().flat_map(|(id, &rows)| (0..rows).map(move |at| (id, at)));
    let row = |(id, at): (usize, usize)| {
        let value = if huge.contains(&at) { 1e30 } else { value(id, at) };
        format!("s{id},{},{value}\n", day(at + id))
    };
    let kept = rows.filter(|place| !without.contains(place));
    format!("unique_id,ds,y\n{}", kept.map(row).collect::<String>())
}

#[test]
fn model_and_baselines_are_judged_on_the_same_values_beside_long_gaps() {
    let place = Place::new();
    // Of the last three rows, s0 lacks one, which is filled; s1 lacks two, which is more than --max-gap.
    place.write("a.csv", changed(&[40, 33, 36], &[(0, 38), (1, 30), (1, 31)], 0..0));
    let own =
        ["--windows", "2", "--step", "3", "--scaling", "none", "--max-gap", "1", "--out", "cv", "--json"];
    let said = cross_validate(&place, &own).succeeded().json();
    let window = &said["windows"][1];
    let (_, all) = forecasts(&place, "cv");
    let (mut model, mut last, mut count) = (0.0, 0.0, 0);
    for (id, rows, judged) in [(0, 40, true), (1, 33, false), (2, 36, true)] {
        let cutoff = format!("{} 00:00:00", day(rows - 4 + id));
        let found = &all[&(cutoff, format!("s{id}"))];
        assert_eq!(found.len(), HORIZON, "every series is forecast");
        for (_, y, numbers) in found.iter().filter(|(_, y, _)| judged && !y.is_empty()) {
            let y: f64 = y.parse().unwrap();
            model += (y - numbers[0]).abs();
            last += (y - value(id, rows - 4)).abs();
            count += 1;
        }
    }
    assert_eq!((count, window["count"].as_u64()), (5, Some(5)), "{window}");
    for (by_hand, told) in [(model / 5.0, &window["mae"]), (last / 5.0, &window["last_value"]["mae"])] {
        assert!((by_hand - told.as_f64().unwrap()).abs() < 1e-4, "{by_hand} for {told}");
    }
}

#[test]
fn an_origin_that_a_long_gap_makes_impossible_is_left_out() {
    let place = Place::new();
    let row = |at: usize| {
        let cell = if (44..47).contains(&at) { String::new() } else { value(0, at).to_string() };
        format!("{},{cell}\n", day(at))
    };
    place.write("a.csv", format!("time,a\n{}", (0..60).map(row).collect::<String>()));
    let own = ["--windows", "4", "--step", "5", "--max-gap", "2", "--out", "cv", "--json"];
    let said = cross_validate(&place, &own).succeeded();
    // The contexts of the second and third lie in the gap. The horizon of the first ends in it: two values are judged.
    let json = said.json();
    assert_eq!(json["windows_left_out"], serde_json::json!([2, 3]));
    let counts = [0, 1].map(|window| json["windows"][window]["count"].as_u64());
    assert_eq!((counts, json["windows"].as_array().map(Vec::len)), ([Some(2), Some(3)], Some(2)));
    assert_eq!(said.err.matches("is left out").count(), 2, "{}", said.err);
    assert_eq!(forecasts(&place, "cv").1.len(), 2);
    let all = ["--windows", "3", "--step", "1", "--max-gap", "0", "--season", "2", "--out", "none"];
    place.write("a.csv", format!("time,a\n{}", (0..50).map(row).collect::<String>()));
    cross_validate(&place, &all).failed(&["every window was left out", "--max-gap"]);
}

#[test]
fn a_late_error_loses_no_earlier_window() {
    let place = Place::new();
    let good = ["--windows", "2", "--step", "8", "--scaling", "none", "--refit"];
    place.write("a.csv", changed(&[60], &[], 0..0));
    cross_validate(&place, &[&good[..], &["--out", "whole"]].concat()).succeeded();
    // Only the second model sees the huge values, and fails.
    place.write("a.csv", changed(&[60], &[], 52..54));
    let said = cross_validate(&place, &[&good[..], &["--out", "cv"]].concat()).failed(&["loss"]);
    assert!(said.out.contains("1 windows are finished, and kept in cv"), "{}", said.out);
    let (header, found) = forecasts(&place, "cv");
    assert!(header.starts_with("unique_id,ds,cutoff"), "{header}");
    let (_, whole) = forecasts(&place, "whole");
    assert_eq!(found, whole.into_iter().take(1).collect());
    let kept = std::fs::read_to_string(place.path("cv/cross-validation.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert_eq!((kept["windows"].as_array().map(Vec::len), kept["count"].as_u64()), (Some(1), Some(3)));
}

#[test]
fn windows_trained_in_processes_of_their_own_are_those_of_one_process() {
    let place = Place::new();
    place.write("a.csv", long(&[40, 33, 30], (0, 0.0)));
    let own = ["--windows", "3", "--refit", "--loss", "quantile", "--levels", "80"];
    cross_validate(&place, &[&own[..], &["--out", "one"]].concat()).succeeded();
    let said =
        cross_validate(&place, &[&own[..], &["--processes", "2", "--out", "two"]].concat()).succeeded();
    assert_eq!(said.out.matches("trained     window").count(), 3, "{}", said.out);
    assert_eq!(forecasts(&place, "two"), forecasts(&place, "one"));
    for window in 1..=3 {
        let log = std::fs::read_to_string(place.path(&format!("two/window-{window}.log"))).unwrap();
        assert!(log.contains("epoch   2/2"), "{log}");
        assert!(place.path(&format!("two/window-{window}/report.html")).is_file());
    }
    // Without refitting there is one model only.
    cross_validate(&place, &["--processes", "2"]).failed(&["--refit"]);
    let stdin = [&own[..], &["--processes", "2", "--data", "-", "--out", "three"]].concat();
    cross_validate(&place, &stdin).failed(&["standard input"]);
    // A process that fails says why.
    let bad = [&own[..], &["--processes", "3", "--out", "bad", "--scaling", "none", "--lr", "1e30"]].concat();
    let said = cross_validate(&place, &bad).failed(&["ended with exit status: 1", "loss", "bad/window-"]);
    assert!(!said.err.contains("panicked"), "{}", said.err);
}

#[test]
fn processes_leave_out_the_windows_that_one_process_leaves_out() {
    let place = Place::new();
    let row = |at: usize| {
        let cell = if (44..47).contains(&at) { String::new() } else { value(0, at).to_string() };
        format!("{},{cell}\n", day(at))
    };
    place.write("a.csv", format!("time,a\n{}", (0..60).map(row).collect::<String>()));
    let run = |more: &[&str]| {
        let own = ["--windows", "4", "--step", "5", "--max-gap", "2", "--refit", "--json"];
        let said = cross_validate(&place, &[&own[..], more].concat()).succeeded();
        let mut json = said.json();
        json["out"].take();
        let left: Vec<String> =
            said.err.lines().filter(|line| line.contains("is left out")).map(str::to_owned).collect();
        (json, left)
    };
    let (one, two) = (run(&["--out", "one"]), run(&["--out", "two", "--processes", "2"]));
    assert_eq!(one.0["windows_left_out"], serde_json::json!([2, 3]));
    assert_eq!(two, one);
    assert_eq!(forecasts(&place, "two"), forecasts(&place, "one"));
}

#[test]
fn a_window_that_fails_stops_the_processes_of_the_others() {
    let place = Place::new();
    // Only the second model sees the huge values, and fails. The first would train for long.
    place.write("a.csv", changed(&[60], &[], 52..54));
    let own =
        ["--windows", "2", "--step", "8", "--scaling", "none", "--refit", "--processes", "2", "--out", "cv"];
    let long = ["--epochs", "4000", "--patience", "4000"];
    let words = ["window 2 ended with exit status: 1", "loss", "window-2.log", "were stopped"];
    cross_validate(&place, &[&own[..], &long].concat()).failed(&words);
    assert!(!place.path("cv/window-1/report.html").exists());
}

#[test]
fn processes_end_with_the_one_that_started_them_also_if_it_is_killed() {
    let place = Place::new();
    place.write("a.csv", long(&[40, 33, 30], (0, 0.0)));
    let own = ["--windows", "2", "--refit", "--processes", "2", "--out", "cv"];
    let long = ["--epochs", "100000", "--patience", "100000"];
    let arguments = [&["cross-validate"], &SMALL[..], &own, &long].concat();
    let mut command = place.command(&arguments);
    /// Stops the processes that the first one started, also if an assertion fails before it is killed.
    struct First(Child);
    impl Drop for First {
        fn drop(&mut self) {
            self.0.kill().and_then(|()| self.0.wait()).expect("it can be killed");
        }
    }
    let first = First(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let wait_for = |words: &str| {
        let begun = Instant::now();
        let log = |window| std::fs::read_to_string(place.path(&format!("cv/window-{window}.log")));
        while ![1, 2].iter().all(|window| log(window).is_ok_and(|log| log.contains(words))) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no {words:?} in a log");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for("epoch ");
    drop(first);
    wait_for("interrupted by SIGTERM");
}
