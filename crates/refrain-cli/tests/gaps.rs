//! Filled values are inputs only, through the real binary: they are reported, warned about, excluded from targets,
//! and refused where they matter.

mod common;

use common::{Place, series, tiny};
use serde_json::{Value, json};

/// The rows of a good series, `a` missing in some of them; `row` counts from 0.
fn with_gaps(rows: usize, missing: impl Fn(usize) -> bool) -> String {
    let good = series(rows);
    let cell = |(line, text): (usize, &str)| match text.split(',').collect::<Vec<_>>()[..] {
        [time, _, b] if line > 0 && missing(line - 1) => format!("{time},,{b}\n"),
        _ => format!("{text}\n"),
    };
    good.lines().enumerate().map(cell).collect()
}

#[test]
fn a_part_in_which_nothing_was_observed_is_refused_and_nothing_is_written() {
    let place = Place::new();
    place.write("a.csv", with_gaps(300, |row| row >= 240));
    let blank: String = series(300).lines().take(241).map(|line| format!("{line}\n")).collect();
    place.write(
        "blank.csv",
        (240..300).fold(blank, |csv, row| {
            csv + &format!("2020-01-{:02} {:02}:00:00,NA,NA\n", row / 24 + 1, row % 24)
        }),
    );
    let before = place.snapshot();
    for file in ["a.csv", "blank.csv"] {
        for limit in ["season", "1000"] {
            place.refrain(&tiny(&["--data", file, "--max-gap", limit])).failed(&[
                file,
                "no value of channel `a` is observed in the test part, 2020-01-11 00:00:00 to 2020-01-13 11:00:00",
                "choose another split",
            ]);
        }
    }
    assert_eq!(place.snapshot(), before);
    // No model is measured there either.
    place.write("good.csv", series(300));
    place.refrain(&tiny(&["--data", "good.csv", "--out", "run", "--epochs", "1"])).succeeded();
    place.refrain(&["evaluate", "--model", "run", "--data", "a.csv"]).failed(&["observed in the test part"]);
}

#[test]
fn train_and_evaluate_tell_what_was_filled_and_warn_of_much() {
    let place = Place::new();
    // Two of 210, 3 of 30 and 3 of 60 rows.
    let missing = [50, 150, 215, 216, 217, 250, 265, 269];
    place.write("a.csv", with_gaps(300, |row| missing.contains(&row)));
    let trained = place.refrain(&tiny(&["--data", "a.csv", "--out", "run"])).succeeded();
    let evaluated = place.refrain(&["evaluate", "--model", "run"]).succeeded();
    for said in [&trained.out, &evaluated.out] {
        for words in [
            "share filled  training  validation   test\n",
            "a                1.0 %      10.0 %  5.0 %\n",
            "warning     more than 5.0 % filled: `a` (10.0 % of the validation part)",
            "of 2 channels, over observed values",
            "as inputs only",
        ] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
        assert!(!said.contains("left out "), "{said}");
    }
    let json = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    let of = |part: &str, filled: usize, rows: usize| json!({"part": part, "channel": "a", "filled": filled, "rows": rows, "share": filled as f64 / rows as f64});
    assert_eq!(json["filled"], json!([of("training", 2, 210), of("validation", 3, 30), of("test", 3, 60)]));
    assert_eq!((json["max_gap"].as_u64(), json["test_windows"].as_u64()), (Some(24), Some(55)));

    // The plot begins at row 267; row 269 was not observed, so the black line of the true values is broken there.
    let plot = std::fs::read_to_string(place.path("run/forecast.svg")).unwrap();
    let truths = |plot: &str| plot.matches("stroke=\"#000000\" stroke-width=\"1.3\"").count();
    place.write("good.csv", series(300));
    place.refrain(&tiny(&["--data", "good.csv", "--out", "good"])).succeeded();
    let good = std::fs::read_to_string(place.path("good/forecast.svg")).unwrap();
    assert_eq!((truths(&plot), truths(&good)), (4, 3));
}

#[test]
fn what_was_filled_is_not_scored() {
    let place = Place::new();
    place.write("a.csv", with_gaps(300, |row| [295, 297, 298].contains(&row)));
    let json = place.refrain(&tiny(&["--data", "a.csv", "--json", "--epochs", "1"])).succeeded().json();
    // Naive forecasts of the last value, computed by hand; the missing rows are in no context.
    let csv = series(300);
    let cells: Vec<f64> =
        csv.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect();
    let b: Vec<f64> =
        csv.lines().skip(1).map(|line| line.split(',').nth(2).unwrap().parse().unwrap()).collect();
    let scale = |values: &[f64]| {
        let train = &values[..210];
        let mean = train.iter().sum::<f64>() / 210.0;
        (train.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 210.0).sqrt()
    };
    let (mut squared, mut count) = (0.0, 0.0);
    for origin in 240..=294 {
        for target in origin..origin + 6 {
            for (values, skip) in [(&cells, true), (&b, false)] {
                if skip && [295, 297, 298].contains(&target) {
                    continue;
                }
                squared += ((values[target] - values[origin - 1]) / scale(values)).powi(2);
                count += 1.0;
            }
        }
    }
    let got = json["last_value_mse"].as_f64().unwrap();
    assert!((got - squared / count).abs() < 1e-9, "{got} and {}", squared / count);
}

#[test]
fn windows_across_long_gaps_are_left_out_and_counted() {
    let place = Place::new();
    // 30 hours: more than the default limit of a day; and 10 hours, which are not.
    place.write("a.csv", with_gaps(600, |row| (100..130).contains(&row) || (500..510).contains(&row)));
    let train = |more: &[&str]| {
        let said = place.refrain(&tiny(&[&["--data", "a.csv", "--json", "--epochs", "1"], more].concat()));
        let said = said.succeeded();
        (said.json(), said.err)
    };
    let (json, said) = train(&["--out", "run"]);
    let left_out = |across: u64, unobserved: u64| json!({"across_gaps": across, "unobserved": unobserved});
    // Windows of 30 rows that hold any of 30 rows.
    assert_eq!(json["left_out"]["training"], left_out(59, 0));
    assert_eq!(json["left_out"]["test"], left_out(0, 0));
    assert!(
        said.contains("left out    59 training windows across gaps, 0 without an observed value"),
        "{said}"
    );
    assert!(said.contains("gaps of more than 24 rows are not filled (--max-gap)"), "{said}");
    assert!(said.contains("split       training 332 windows"), "{said}");
    let (json, said) = train(&["--max-gap", "30"]);
    assert_eq!(json["left_out"]["training"], left_out(0, 0));
    assert!(!said.contains("left out"), "{said}");
    place.write("a.toml", "max-gap = 9\n");
    let (json, _) = train(&["--config", "a.toml"]);
    assert_eq!(
        (&json["left_out"]["training"], &json["left_out"]["test"]),
        (&left_out(59, 0), &left_out(39, 0))
    );
    assert_eq!(json["max_gap"], 9);

    // The limit is stored with the run and applies to all of its commands.
    let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    assert_eq!(evaluated["left_out"]["training"], left_out(59, 0));
    place.write("end.csv", with_gaps(300, |row| row >= 274));
    let forecast = &["forecast", "--model", "run", "--data", "end.csv", "--out", "next.csv"];
    place.refrain(forecast).failed(&[
        "end.csv",
        "the 24 rows before the forecast have a gap longer than 24 rows",
        "26 rows of `a`",
    ]);
    assert!(!place.path("next.csv").exists());
    place.write("end.csv", with_gaps(300, |row| row >= 290));
    place.refrain(forecast).succeeded();

    place.write("a.csv", with_gaps(300, |row| row % 20 < 3));
    place.refrain(&tiny(&["--data", "a.csv", "--max-gap", "2"])).failed(&[
        "none of the 181 windows of the training part can be used",
        "3 rows of `a`",
        "--max-gap",
    ]);
    place
        .refrain(&tiny(&["--data", "a.csv", "--max-gap", "-1"]))
        .failed(&["neither a number of rows nor `season`"]);
}

#[test]
fn an_interrupted_run_with_gaps_resumes() {
    let place = Place::new();
    place.write("a.csv", with_gaps(300, |row| row % 7 == 3));
    place.refrain(&tiny(&["--data", "a.csv", "--out", "run"])).succeeded();
    place.refrain(&["train", "--resume", "run"]).succeeded();
    // The same values, now all marked as observed, are another series.
    let filled = std::fs::read_to_string(place.path("a.csv")).unwrap();
    let value = |line: &str| line.split(',').nth(1).and_then(|cell| cell.parse::<f64>().ok());
    let lines: Vec<&str> = filled.lines().collect();
    let complete: String = lines
        .iter()
        .enumerate()
        .map(|(at, line)| {
            match (at > 0 && value(line).is_none()).then(|| [value(lines[at - 1]), value(lines[at + 1])]) {
                Some([Some(before), Some(after)]) => {
                    let cells: Vec<&str> = line.split(',').collect();
                    format!("{},{},{}\n", cells[0], before * 0.5 + after * 0.5, cells[2])
                }
                _ => format!("{line}\n"),
            }
        })
        .collect();
    place.write("a.csv", complete);
    place.refrain(&["train", "--resume", "run"]).failed(&["a.csv", "has changed"]);
}

/// Hours of two sources; `f` of the first is missing in some rows.
fn panel(rows: usize, missing: impl Fn(usize) -> bool) -> String {
    let mut csv = "time,source,f,g,label\n".to_owned();
    for row in 0..rows {
        for source in ["A", "B"] {
            let noise = (row * 7919 + row * row * 31 + source.len()) % 1009;
            let f = if source == "A" && missing(row) { String::new() } else { noise.to_string() };
            let label = ["up", "down", "flat"][noise % 3];
            csv += &format!(
                "2020-01-{:02} {:02}:00,{source},{f},{},{label}\n",
                row / 24 + 1,
                row % 24,
                row % 24
            );
        }
    }
    csv
}

#[test]
fn panels_tell_warn_leave_out_and_refuse_likewise() {
    let place = Place::new();
    let arguments =
        ["train", "--model", "cross-asset", "--data", "panel.csv", "--d-model", "8", "--heads", "2", "--ffn"];
    let more = ["16", "--layers", "1", "--folds", "1", "--embargo", "0", "--epochs", "1", "--json"];
    let tiny = [&arguments[..], &more].concat();
    // Of 300 rows, 240 train, 30 validate, 30 test.
    place.write("panel.csv", panel(300, |row| (100..130).contains(&row) || row >= 297));
    let said = place.refrain(&tiny).succeeded();
    let filled = |json: &Value| json["folds"][0]["filled"].clone();
    let of = |part: &str, filled: usize, rows: usize| json!({"part": part, "channel": "f of A", "filled": filled, "rows": rows, "share": filled as f64 / rows as f64});
    assert_eq!(filled(&said.json()), json!([of("training", 30, 240), of("test", 3, 30)]));
    // A day of hours is carried forward, and no more.
    assert!(
        said.err.contains("6 time steps left out, because a value is older than allowed"),
        "{}",
        said.err
    );
    assert_eq!(said.json()["folds"][0]["train_samples"], 240 - 6);
    assert!(
        said.err.contains("warning     more than 5.0 % filled: `f of A` (12.5 % of the training part)"),
        "{}",
        said.err
    );
    let said = place.refrain(&[&tiny[..], &["--max-gap", "30"]].concat()).succeeded();
    assert_eq!(said.json()["folds"][0]["train_samples"], 240);
    place.write("panel.csv", panel(300, |row| row >= 270));
    let before = place.snapshot();
    place.refrain(&[&tiny[..], &["--max-gap", "100"]].concat()).failed(&[
        "panel.csv",
        "no value of channel `f of A` is observed in the test part of fold 1, 2020-01-12 06:00:00",
    ]);
    assert_eq!(place.snapshot(), before);
}
