//! Covariates through the real binary: trained with, evaluated, forecast, resumed, and refused where they are of no use.

mod common;

use common::{Place, same_table};

const MIXER: &[&str] =
    &["--model", "tsmixer", "--d-model", "8", "--ffn", "16", "--layers", "1", "--dropout", "0"];
const WINDOWS: &[&str] =
    &["--context", "12", "--horizon", "4", "--batch-size", "16", "--lr", "1e-2", "--json"];

/// A pseudo-random number from -1 to 1.
fn noise(row: usize) -> f64 {
    let mut mixed = (row as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for _ in 0..3 {
        mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    }
    ((mixed >> 40) as f64 / (1u64 << 23) as f64) - 1.0
}

fn stamp(row: usize) -> String {
    format!("2024-{:02}-{:02} {:02}:00:00", 1 + row / (28 * 24), 1 + row / 24 % 28, row % 24)
}

/// `y` is the plan of the same row, and a little of the sensor of the row before. The last rows have the plan alone.
fn factory(rows: usize, ahead: usize) -> String {
    let mut text = "time,y,plan,sensor\n".to_owned();
    for row in 0..rows {
        let y = 3.0 * noise(row) + if row > 0 { 0.5 * noise(row + 9999) } else { 0.0 };
        text += &format!("{},{y},{},{}\n", stamp(row), noise(row), noise(row + 10_000));
    }
    for row in rows..rows + ahead {
        text += &format!("{},,{},\n", stamp(row), noise(row));
    }
    text
}

fn train(place: &Place, more: &[&str]) -> common::Said {
    let arguments = [&["train", "--data", "a.csv"][..], MIXER, WINDOWS, more].concat();
    place.refrain(&arguments)
}

#[test]
fn what_is_known_ahead_makes_forecasts_better() {
    let place = Place::new();
    place.write("a.csv", factory(600, 4));
    let roles = ["--future", "plan", "--past", "sensor", "--calendar", "hour,weekday"];
    let with = train(&place, &[&roles[..], &["--epochs", "12", "--out", "run"]].concat()).succeeded();
    assert!(
        with.err.contains("covariates  1 past, 3 future (given for 4 rows after the last one), 0 static"),
        "{}",
        with.err
    );
    let with = with.json();
    place.write("b.csv", factory(600, 0));
    let without = ["train", "--data", "b.csv", "--future", "none", "--epochs", "3", "--out", "blind"];
    let without = place.refrain(&[&without[..], MIXER, WINDOWS].concat()).succeeded().json();
    // Of three channels; the first is the one that follows its plan.
    let of_y = place.refrain(&["evaluate", "--model", "blind", "--json"]).succeeded().json();
    let blind = of_y["channels"][0]["standardised"]["mse"].as_f64().unwrap();
    let seeing = with["test_mse"].as_f64().unwrap();
    assert!(seeing < 0.3 && blind > 0.8, "{seeing} with covariates, {blind} without; {without}");
    let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    assert_eq!(
        (&evaluated["test_mse"], &evaluated["weights_sha256"]),
        (&with["test_mse"], &with["weights_sha256"])
    );
    // A finished run goes on to nothing.
    let resumed = place.refrain(&["train", "--resume", "run", "--json"]).succeeded().json();
    assert_eq!(resumed["weights_sha256"], with["weights_sha256"]);
    place.refrain(&["forecast", "--model", "run", "--out", "next.csv"]).succeeded();
    let csv = std::fs::read_to_string(place.path("next.csv")).unwrap();
    assert_eq!((csv.lines().count(), csv.lines().next()), (5, Some("time,y")));
    same_table(&csv, &place.refrain(&["forecast", "--model", "run", "--json"]).succeeded().json());
    for (line, row) in csv.lines().skip(1).zip(600..) {
        let (time, y) = line.split_once(',').unwrap();
        let y: f64 = y.parse().unwrap();
        assert!(
            time == stamp(row) && (y - 3.0 * noise(row)).abs() < 1.5,
            "{line}, planned {}",
            3.0 * noise(row)
        );
    }
    let short = ["forecast", "--model", "run", "--data", "b.csv", "--out", "-"];
    place.refrain(&short).failed(&["4 rows of `y` after", "gives 0", "future covariates"]);
}

#[test]
fn ids_bring_their_covariates_along() {
    let place = Place::new();
    let mut text = "unique_id,ds,y,plan,size\n".to_owned();
    for id in 0..6 {
        let size = [1, 5][id % 2];
        for row in 0..80 + 10 * id {
            let plan = noise(1000 * id + row);
            text += &format!(
                "s{id},{},{},{plan},{size}\n",
                stamp(row),
                10 * size + id + (3.0 * plan * size as f64) as usize
            );
        }
        for row in 80 + 10 * id..84 + 10 * id {
            text += &format!("s{id},{},,{},\n", stamp(row), noise(1000 * id + row));
        }
    }
    place.write("a.csv", &text);
    let roles = ["--future", "plan", "--static", "size", "--loss", "quantile", "--levels", "80"];
    let said = train(&place, &[&roles[..], &["--epochs", "2", "--out", "run"]].concat()).succeeded();
    assert!(said.err.contains("0 past, 1 future") && said.err.contains("1 static"), "{}", said.err);
    let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    assert_eq!(evaluated["test_mse"], said.json()["test_mse"]);
    place.refrain(&["forecast", "--model", "run", "--ids", "s1,s4", "--out", "next.csv"]).succeeded();
    let csv = std::fs::read_to_string(place.path("next.csv")).unwrap();
    assert_eq!(csv.lines().count(), 9, "{csv}");
    assert_eq!(csv.lines().next(), Some("unique_id,ds,forecast,lo-80,hi-80"));
    let rolling = [
        "cross-validate",
        "--data",
        "a.csv",
        "--windows",
        "2",
        "--future",
        "plan",
        "--static",
        "size",
        "--epochs",
        "1",
        "--out",
        "cv",
    ];
    place.refrain(&[&rolling[..], MIXER, WINDOWS].concat()).succeeded();
}

#[test]
fn a_series_whose_last_horizon_ends_beyond_what_is_known_is_trained_and_drawn() {
    let place = Place::new();
    let mut text = "unique_id,ds,y,plan\n".to_owned();
    for id in 0..3 {
        // The test part of 30 rows is 6 rows, the horizon 8, and no row of the plan lies ahead.
        for row in 0..30 {
            let plan = noise(1000 * id + row);
            text += &format!("s{id},{},{},{plan}\n", stamp(row), id + (3.0 * plan) as usize);
        }
    }
    place.write("a.csv", &text);
    let arguments = [
        "train",
        "--data",
        "a.csv",
        "--model",
        "tsmixer",
        "--context",
        "12",
        "--horizon",
        "8",
        "--future",
        "plan",
        "--split",
        "0.6,0.2,0.2",
        "--epochs",
        "1",
        "--out",
        "run",
    ];
    place.refrain(&arguments).succeeded();
    assert!(place.path("run/forecast.svg").is_file() && place.path("run/report.html").is_file());
    place.refrain(&["forecast", "--model", "run", "--out", "next.csv"]).failed(&["future covariates"]);
}

#[test]
fn covariates_that_nothing_can_use_are_refused() {
    let place = Place::new();
    place.write("a.csv", factory(300, 0));
    let wrong = |more: &[&str], words: &[&str]| {
        let arguments = [&["train", "--data", "a.csv", "--out", "run"][..], WINDOWS, more].concat();
        place.refrain(&arguments).failed(words);
        assert!(!place.path("run").exists());
    };
    wrong(
        &["--model", "nlinear", "--past", "sensor"],
        &["NLinear takes no past covariates", "patchtst, tsmixer"],
    );
    let small = ["--patch", "4", "--stride", "4", "--d-model", "8", "--heads", "2", "--ffn", "8"];
    wrong(&[&small[..], &["--past", "sensor"]].concat(), &["would change nothing", "--channel-attention"]);
    wrong(
        &[&small[..], &["--calendar", "hour"]].concat(),
        &["PatchTST takes no future covariates", "tsmixer"],
    );
    wrong(&["--model", "tsmixer", "--past", "sensors"], &["no column `sensors`"]);
    wrong(&["--model", "tsmixer", "--past", "plan", "--future", "plan"], &["`plan` is named twice"]);
    wrong(&["--model", "tsmixer", "--static", "plan"], &["this file is wide"]);
    wrong(&["--model", "tsmixer", "--calendar", "minute"], &["--calendar", "minute"]);
    let seen =
        [&small[..], &["--past", "sensor", "--channel-attention", "--epochs", "1", "--out", "seen"]].concat();
    place.refrain(&[&["train", "--data", "a.csv"][..], WINDOWS, &seen].concat()).succeeded();
    place.refrain(&["forecast", "--model", "seen", "--out", "-"]).succeeded();
}
