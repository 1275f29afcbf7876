//! The commands of the book's pages, run as they stand in them.

mod common;

use std::process::Command;

use common::book::commands;
use common::{Place, series};

/// Runs the commands of a page in a folder. Returns what they printed.
#[cfg(unix)]
fn run(page: &str, place: &Place) -> String {
    // The folder of the binary comes first on the path, so that `refrain` is the one that is tested.
    let binary = std::path::PathBuf::from(place.command(&[]).get_program());
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let script = format!("set -e\n{}", commands(page));
    let done = Command::new("sh")
        .args(["-c", &script])
        .env("PATH", path)
        .current_dir(place.path("."))
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    format!("{out}{err}")
}

#[test]
#[cfg(unix)]
fn the_commands_on_covariates_do_what_the_page_says() {
    let place = Place::new();
    let said = run("covariates.md", &place);
    for told in
        ["40 independent series of 101 to 140 rows", "1 past, 2 future (given for 14 rows", "1 static"]
    {
        assert!(said.contains(told), "no {told:?} in {said}");
    }
    let forecast = std::fs::read_to_string(place.path("forecast.csv")).unwrap();
    assert_eq!(forecast.lines().next(), Some("unique_id,ds,forecast,lo-80,hi-80"));
    assert_eq!(forecast.lines().count(), 1 + 40 * 7);
    assert!(said.contains("2 past, 0 future, 0 static"), "{said}");
}

#[test]
#[cfg(unix)]
fn the_commands_on_ragged_series_do_what_the_page_says() {
    let place = Place::new();
    let said = run("ragged-series.md", &place);
    for told in [
        "1,000 independent series of 20 to 139 rows",
        "rows of padding for short series",
        "seasonal naive (7 rows)",
        "last value",
    ] {
        assert!(said.contains(told), "no {told:?} in {said}");
    }
    let json = place.refrain(&["evaluate", "--model", "runs/shops", "--json"]).succeeded().json();
    assert_eq!(json["channels"].as_array().unwrap().len(), 1000);
    let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    let forecast = read("forecast.csv");
    assert_eq!(forecast.lines().next(), Some("unique_id,ds,forecast,lo-80,hi-80,lo-90,hi-90"));
    assert_eq!(forecast.lines().count(), 1 + 1000 * 7);
    // The chosen rows are those of the whole forecast, each after the last day of its own shop.
    let two = read("two.csv");
    let of = |text: &str, shop: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with(&format!("{shop},"))).map(str::to_owned).collect()
    };
    for shop in ["shop1", "shop999"] {
        assert_eq!(of(&two, shop).len(), 7);
        assert_eq!(of(&two, shop), of(&forecast, shop));
        let last = of(&read("shops.csv"), shop).last().unwrap().split(',').nth(1).unwrap().to_owned();
        let first = of(&two, shop)[0].split(',').nth(1).unwrap().to_owned();
        let date = |text: &str| text[..10].parse::<jiff::civil::Date>().unwrap();
        assert_eq!(date(&first), date(&last).tomorrow().unwrap());
    }
    assert_eq!(two.lines().count(), 15);
    // Each shop has a forecast after each of three origins, if it has days enough.
    let validated = read("runs/shops-cv/forecasts.csv");
    assert!(validated.starts_with("unique_id,ds,cutoff,y,forecast\n"), "{validated}");
    let enough = |back: usize| {
        let days = |id: usize| 20 + id * 37 % 120;
        (1..=1000).filter(|&id| days(id) > back + 7).count()
    };
    let expected = [21, 14, 7].map(enough);
    assert_eq!(validated.lines().count(), 1 + 7 * expected.iter().sum::<usize>());
    let json: serde_json::Value = serde_json::from_str(&read("runs/shops-cv/cross-validation.json")).unwrap();
    for (window, expected) in json["windows"].as_array().unwrap().iter().zip(expected) {
        let [forecast, left_out] = ["forecast", "left_out"].map(|of| window[of].as_u64().unwrap() as usize);
        assert_eq!((forecast, left_out), (expected, 1000 - expected), "{window}");
    }
    // Of the shop of ten days, the model knows the size.
    let new = read("new-forecast.csv");
    assert_eq!(new.lines().count(), 8);
    assert!(new.contains("new,2024-06-11 00:00:00,"), "{new}");
    for line in new.lines().skip(1) {
        let forecast: f64 = line.split(',').nth(2).unwrap().parse().unwrap();
        assert!((25.0..50.0).contains(&forecast), "{new}");
    }
}

#[test]
#[cfg(unix)]
fn the_commands_on_a_csv_file_of_ones_own_do_what_the_page_says() {
    let place = Place::new();
    let said = run("own-csv.md", &place);
    // The dry run, and the errors of the test part.
    for told in [
        "series      load.csv: 1,440 rows of 2 channels",
        "split       training 816 windows",
        "parameters, about",
        "time        about",
        "each channel in its own unit",
        "steps of the horizon",
        "in 80 %",
        "in 90 %",
    ] {
        assert!(said.contains(told), "no {told:?} in {said}");
    }
    let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    let report = read("runs/load/report.html");
    for part in [
        ">Data<",
        ">test<",
        ">Losses<",
        ">Test errors of each channel<",
        ">Test errors by step of the horizon<",
        "Best test window",
        "Median test window",
        "Worst test window",
    ] {
        assert!(report.contains(part), "no {part:?}");
    }
    let header = "time,north,north-lo-80,north-hi-80,north-lo-90,north-hi-90,\
                  south,south-lo-80,south-hi-80,south-lo-90,south-hi-90";
    for (file, first) in [("forecast.csv", "2024-03-01 00:00"), ("then.csv", "2024-02-20 00:00")] {
        let text = read(file);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines.len()), (header, 25), "{file}");
        assert!(lines[1].starts_with(first), "{file}: {}", lines[1]);
        // Each interval lies around the forecast, the wider one outside.
        for line in &lines[1..] {
            let cells: Vec<f64> = line.split(',').skip(1).map(|cell| cell.parse().unwrap()).collect();
            for of in cells.chunks(5) {
                assert!(of[3] <= of[1] && of[1] <= of[0] && of[0] <= of[2] && of[2] <= of[4], "{line}");
            }
        }
    }
    let json = place.refrain(&["evaluate", "--model", "runs/load", "--json"]).succeeded().json();
    let number = |name: &str| json[name].as_f64().unwrap();
    assert!(number("test_mse") < 0.5 * number("seasonal_naive_mse"), "{json}");
    assert!((0.5..2.0).contains(&(number("test_mse") / number("linear_mse"))), "{json}");
    for (at, near) in [(0, 72.0..88.0), (1, 83.0..97.0)] {
        let coverage = json["test_intervals"][at]["coverage"].as_f64().unwrap();
        assert!(near.contains(&coverage), "{coverage} %, not in {near:?}");
    }
}

#[test]
#[cfg(unix)]
fn the_commands_on_forecasting_do_what_the_page_says() {
    let place = Place::new();
    place.write("series.csv", series(720));
    run("forecasting.md", &place);
    let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    for file in
        ["model.safetensors", "config.json", "metrics.jsonl", "loss.svg", "forecast.svg", "report.html"]
    {
        assert!(place.path("runs/mine").join(file).exists(), "{file}");
    }
    assert!(place.path("runs/intervals/calibration.json").exists());
    assert_eq!(read("forecast.csv").lines().next(), Some("time,a,b"));
    let header = "time,a,a-lo-80,a-hi-80,a-lo-90,a-hi-90,b,b-lo-80,b-hi-80,b-lo-90,b-hi-90";
    assert_eq!(read("intervals.csv").lines().next(), Some(header));
    for name in ["comparison.csv", "comparison.json", "comparison.svg", "patchtst", "dlinear", "itransformer"]
    {
        assert!(place.path("runs/all").join(name).exists(), "{name}");
    }
    let validated = read("runs/cv/forecasts.csv");
    assert!(validated.starts_with("unique_id,ds,cutoff,y,forecast\n"), "{validated}");
    assert_eq!(validated.lines().count(), 1 + 5 * 24 * 2);
    assert!(place.path("runs/cv/cross-validation.json").exists());
}

#[test]
#[cfg(unix)]
fn the_commands_on_cross_asset_attention_do_what_the_page_says() {
    let place = Place::new();
    let close = |hour: usize, source: usize| 50.0 + 5.0 * ((hour + 9 * source) as f64 * 0.4).sin();
    let row = |hour: usize, source: usize| {
        let (day, name) = (hour / 24 + 1, ["AAA", "BBB", "CCC"][source]);
        let before = close(hour.saturating_sub(1), source);
        format!("2020-01-{day:02} {:02}:00,{name},{before},{}\n", hour % 24, close(hour, source))
    };
    let rows = (0..400).flat_map(|hour| (0..3).map(move |source| (hour, source)));
    let rows: String = rows.map(|(hour, source)| row(hour, source)).collect();
    place.write("panel.csv", format!("time,source,before,close\n{rows}"));
    let said = run("cross-asset.md", &place);
    assert!(said.contains("balanced accuracy") || said.contains("balanced"), "{said}");
    for file in ["folds.json", "fold-1/model.safetensors", "fold-2/model.safetensors"] {
        assert!(place.path("runs/mine").join(file).exists(), "{file}");
    }
    let next = std::fs::read_to_string(place.path("next.csv")).unwrap();
    assert_eq!(next.lines().next(), Some("source,time,up,down,flat"));
    assert_eq!(next.lines().count(), 4);
    for line in next.lines().skip(1) {
        let sum: f64 = line.split(',').skip(2).map(|cell| cell.parse::<f64>().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-3, "{line}");
    }
}
