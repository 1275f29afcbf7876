//! Files in other dialects through the real binary: options of training are kept with the run, and flags override them.

mod common;

use common::{Place, series, tiny};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::process::Stdio;

const GERMAN: [&str; 4] = ["--decimal", "comma", "--date-format", "dd.mm.yyyy"];

/// A file with semicolons, decimal commas and days before months.
fn german(plain: &str) -> String {
    let line = |line: &str| {
        let mut cells = line.split(',');
        let time = cells.next().unwrap();
        let time = match time.split_once(' ') {
            Some((day, clock)) => {
                let parts: Vec<&str> = day.split('-').collect();
                format!("{}.{}.{} {clock}", parts[2], parts[1], parts[0])
            }
            None => time.to_owned(),
        };
        cells.fold(time, |all, cell| all + ";" + &cell.replace('.', ",")) + "\n"
    };
    plain.lines().map(line).collect()
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_run_reads_other_data_as_that_of_its_training() {
    let place = Place::new();
    place.write("plain.csv", series(300));
    place.write("german.csv", german(&series(300)));
    place.write("new.csv.gz", packed(&german(&series(280))));
    place.write("new-plain.csv", series(280));
    let json = |arguments: &[&str]| place.refrain(arguments).succeeded().json();
    let plain = json(&tiny(&["--data", "plain.csv", "--out", "plain", "--json"]));
    let arguments = [&["--data", "german.csv", "--out", "german", "--json"], &GERMAN[..]].concat();
    let trained = json(&tiny(&arguments));
    assert_eq!(trained["weights_sha256"], plain["weights_sha256"]);

    let forecast = |model: &str, data: &str, more: &[&str]| {
        let arguments = ["forecast", "--model", model, "--data", data, "--out", "-"];
        place.refrain(&[&arguments[..], more].concat()).succeeded().out
    };
    let expected = forecast("plain", "new-plain.csv", &[]);
    assert_eq!(forecast("german", "new.csv.gz", &[]), expected);
    // Flags override what the run keeps.
    let as_plain = ["--decimal", "point", "--date-format", "auto"];
    assert_eq!(forecast("german", "new-plain.csv", &as_plain), expected);
    assert_eq!(forecast("plain", "new.csv.gz", &GERMAN), expected);
    place.refrain(&["evaluate", "--model", "german", "--data", "new-plain.csv"]).failed(&[
        "new-plain.csv, line 2",
        "not a time stamp of the form dd.mm.yyyy",
        "--date-format",
    ]);
    let evaluated = |model: &str, data: &str| json(&["evaluate", "--model", model, "--data", data, "--json"]);
    assert_eq!(
        evaluated("german", "new.csv.gz")["test_mse"],
        evaluated("plain", "new-plain.csv")["test_mse"]
    );
    // A run that is resumed, or whose configuration is used again, needs no flags either.
    let again = place.refrain(&["train", "--config", "german/config.json", "--dry-run"]).succeeded();
    assert!(again.out.contains("german.csv: 300 rows"), "{}", again.out);
    place.refrain(&["train", "--resume", "german", "--epochs", "3"]).succeeded();
}

#[test]
fn a_run_with_a_time_zone_keeps_days_of_utc_in_utc() {
    let place = Place::new();
    // The seconds since 1970 of days from 2024-01-01 on. In Berlin they begin at 01:00, and from 31 March on at 02:00.
    let days = |rows: u64, first: u64| {
        let row = |row: u64| format!("{},{}\n", first + 86_400 * row, (row * 7919) % 101);
        format!("time,a\n{}", (0..rows).map(row).collect::<String>())
    };
    let first = 1_704_067_200;
    place.write("a.csv", days(200, first));
    place.write("winter.csv", days(60, first));
    let arguments = ["--data", "a.csv", "--tz", "Europe/Berlin", "--out", "run", "--json"];
    let trained = place.refrain(&tiny(&arguments)).succeeded().json();
    let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    assert_eq!(evaluated["test_mse"], trained["test_mse"]);
    let forecast = |more: &[&str]| {
        let arguments = [&["forecast", "--model", "run", "--out", "-"], more].concat();
        place.refrain(&arguments).succeeded().out
    };
    let of_winter = forecast(&["--data", "winter.csv"]);
    let times: Vec<&str> = of_winter.lines().skip(1).map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(times[..2], ["2024-03-01T00:00:00Z", "2024-03-02T00:00:00Z"]);
    assert_eq!(forecast(&["--from", "2024-03-01"]), of_winter);
    place.refrain(&["train", "--resume", "run", "--epochs", "3"]).succeeded();
    // The next training decides by its own data, here the days of a winter in Berlin.
    place.write("a.csv", days(90, first - 3600));
    place.refrain(&["train", "--config", "run/config.json", "--out", "next"]).succeeded();
    for (run, local_days) in [("run", false), ("next", true)] {
        let kept = std::fs::read_to_string(place.path(run).join("config.json")).unwrap();
        let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
        assert_eq!(kept["config"]["data"]["dialect"]["local_days"], local_days, "{run}");
    }
}

#[test]
fn a_forecast_from_a_time_reads_it_as_the_data() {
    let place = Place::new();
    place.write("a.csv", german(&series(300)));
    place.write("early.csv", german(&series(200)));
    let zone = ["--tz", "America/New_York", "--data", "a.csv", "--out", "run"];
    place.refrain(&tiny(&[&zone[..], &GERMAN].concat())).succeeded();
    let forecast = |more: &[&str]| {
        let arguments = [&["forecast", "--model", "run", "--out", "-"], more].concat();
        place.refrain(&arguments).succeeded().out
    };
    let expected = forecast(&["--data", "early.csv"]);
    for from in ["09.01.2020 08:00", "2020-01-09 08:00", "2020-01-09T13:00Z"] {
        assert_eq!(forecast(&["--from", from]), expected, "{from}");
    }
}

#[test]
fn standard_input_may_be_packed() {
    let place = Place::new();
    place.write("a.csv", series(300));
    place.refrain(&tiny(&["--data", "a.csv", "--out", "run"])).succeeded();
    let arguments = ["forecast", "--model", "run", "--out", "-", "--data"];
    let expected = place.refrain(&[&arguments[..], &["a.csv"]].concat()).succeeded().out;
    let fed = |input: &[u8]| {
        let mut command = place.command(&[&arguments[..], &["-"]].concat());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input);
        common::said(child.wait_with_output().unwrap())
    };
    let whole = packed(&series(300));
    assert_eq!(fed(&whole).succeeded().out, expected);
    fed(&whole[..whole.len() / 2]).failed(&["standard input", "not a gzip file", "ends too early"]);
    fed(b"PAR1 and so on").failed(&["standard input looks like a Parquet file", "pass it by its name"]);
}

#[test]
fn files_that_are_no_text_are_named_by_what_they_look_like() {
    let place = Place::new();
    let utf16: Vec<u8> =
        "\u{feff}time;a\n".encode_utf16().flat_map(u16::to_le_bytes).chain([b'1', 0]).collect();
    for (bytes, expected) in [
        (&utf16[..], &["UTF-16 text", "iconv"][..]),
        (b"PK\x03\x04\x14\0\x06\0", &["Excel workbook", "save the sheet as CSV"]),
        (&packed("PK\u{3}\u{4}..."), &["Excel workbook"]),
        (b"<!DOCTYPE html><html>", &["a web page"]),
        (b"<!doctype html>\n<html>", &["a web page"]),
        (b"{\n  \"a\": [1, 2]\n}\n", &["JSON", "write its table as CSV"]),
        (b"[\n  {\"a\": 1}\n]\n", &["JSON"]),
        (b"time:a\n2020-01-01:1\n", &["only one column", "--separator"]),
        (b"2020-01-01,1\n2020-01-02,2\n", &["the header is missing"]),
    ] {
        place.write("a.csv", bytes);
        place.refrain(&tiny(&["--data", "a.csv"])).failed(&[&["a.csv"], expected].concat());
    }
}

#[test]
fn rows_out_of_order_and_rows_that_come_twice() {
    let place = Place::new();
    let text = series(300);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.push(lines[7]);
    lines[1..].reverse();
    place.write("a.csv", lines.join("\n"));
    place.write("sorted.csv", &text);
    place.refrain(&tiny(&["--data", "a.csv"])).failed(&["line 4", "--sort"]);
    place.refrain(&tiny(&["--data", "a.csv", "--sort"])).failed(&[
        "line 296",
        "already in line 2",
        "--duplicates mean, first or last",
    ]);
    // How much memory is free and what a step takes differ from run to run.
    let plan = |arguments: &[&str]| -> Vec<String> {
        let out = place.refrain(&tiny(&[arguments, &["--dry-run"]].concat())).succeeded().out;
        let lines = out.lines().filter(|line| !line.starts_with("memory") && !line.starts_with("time"));
        lines.map(|line| line.replace("sorted.csv", "a.csv")).collect()
    };
    let joined = plan(&["--data", "a.csv", "--sort", "--duplicates", "mean"]);
    let expected = plan(&["--data", "sorted.csv"]);
    assert!(expected.len() > 2, "{expected:?}");
    assert_eq!(joined, expected);

    // The rows of a panel, too.
    let row = |at: usize| {
        format!("2020-01-{:02} {:02}:00,s{},{},{}", at / 48 + 1, at / 2 % 24, at % 2, at % 11, at % 7)
    };
    let mut rows: Vec<String> = (0..600).map(row).collect();
    rows.push(rows[5].clone());
    rows.reverse();
    place.write("panel.csv", format!("time,source,x,price\n{}\n", rows.join("\n")));
    let cross = [
        "train",
        "--model",
        "cross-asset",
        "--data",
        "panel.csv",
        "--price",
        "price",
        "--label-horizon",
        "1",
        "--label-threshold",
        "1",
        "--embargo",
        "2",
        "--dry-run",
    ];
    place.refrain(&cross).failed(&["panel.csv, line 5", "--sort"]);
    let planned = place.refrain(&[&cross[..], &["--sort", "--duplicates", "first"]].concat()).succeeded();
    assert!(planned.out.contains("300 time steps of 2 sources"), "{}", planned.out);
}
