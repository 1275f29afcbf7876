//! Standard input and output, files that are not regular, and signals, through the real binary.
#![cfg(unix)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{Place, SMALL_STEPS, said, series, tiny};

/// A folder with a series and a finished run in `run`.
fn trained() -> Place {
    let place = Place::new();
    place.write("a.csv", series(300));
    place.refrain(&tiny(&["--data", "a.csv", "--out", "run"])).succeeded();
    place
}

fn piped(place: &Place, arguments: &[&str]) -> Child {
    let mut command = place.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits a little for a running process.
#[track_caller]
fn still_runs(child: &mut Child) {
    assert_eq!(child.try_wait().unwrap(), None, "it has ended already");
    std::thread::sleep(Duration::from_millis(1));
}

/// Runs with this on standard input.
fn fed(place: &Place, arguments: &[&str], input: &[u8]) -> common::Said {
    let mut child = piped(place, arguments);
    // A command that rejects its input closes its end of the pipe.
    let _ = child.stdin.take().unwrap().write_all(input);
    said(child.wait_with_output().unwrap())
}

#[test]
fn a_training_whose_output_nobody_reads_any_more_goes_on_to_its_end() {
    let place = Place::new();
    place.write("a.csv", series(300));
    for more in [&["--out", "run"][..], &["--out", "json", "--json"]] {
        let mut child = piped(&place, &tiny(&[&["--data", "a.csv"], more].concat()));
        let mut first = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        if more.len() == 2 {
            out.read_line(&mut first).unwrap();
            assert!(first.starts_with("series"), "{first}");
        }
        drop(out);
        let said = said(child.wait_with_output().unwrap());
        assert_eq!(said.status, 0, "{}", said.err);
        let metrics = std::fs::read_to_string(place.path(more[1]).join("metrics.jsonl")).unwrap();
        assert_eq!(metrics.lines().count(), 2, "{metrics}");
        assert!(place.path(more[1]).join("forecast.svg").is_file());
    }
    let mut child = piped(&place, &["forecast", "--model", "run", "--out", "next.csv"]);
    drop(child.stdout.take());
    assert_eq!(said(child.wait_with_output().unwrap()).status, 0);
    assert!(place.path("next.csv").is_file());
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_told_at_the_end_and_not_with_status_0() {
    let place = Place::new();
    place.write("a.csv", series(300));
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let output = place.command(&tiny(&["--data", "a.csv", "--out", "run"])).stdout(full()).output().unwrap();
    said(output).failed(&["the work is done", "standard output cannot be written"]);
    assert!(place.path("run/forecast.svg").is_file());
    // A message that cannot be written does not panic either.
    let output = place.command(&["train", "--data", "none.csv"]).stderr(full()).output().unwrap();
    assert_eq!(said(output).status, 1);
}

#[test]
fn a_dash_is_standard_input_and_standard_output() {
    let place = trained();
    place.refrain(&["forecast", "--model", "run", "--out", "next.csv"]).succeeded();
    let expected = std::fs::read_to_string(place.path("next.csv")).unwrap();
    let data = std::fs::read(place.path("a.csv")).unwrap();
    let said = fed(&place, &["forecast", "--model", "run", "--data", "-", "--out", "-"], &data).succeeded();
    assert_eq!(said.out, expected);
    assert!(said.err.contains("standard input: 300 rows") && said.err.contains("written to standard output"));
    assert!(!place.path("-").exists());

    let arguments = tiny(&["--data", "-", "--out", "fed", "--json"]);
    let said = fed(&place, &arguments, &data).succeeded();
    let evaluated = fed(&place, &["evaluate", "--model", "fed", "--json"], &data).succeeded();
    assert_eq!(evaluated.json()["test_mse"], said.json()["test_mse"]);
    fed(&place, &["train", "--resume", "fed"], &data).succeeded();
    fed(&place, &["train", "--resume", "fed"], series(301).as_bytes()).failed(&["the data has changed"]);
    fed(&place, &["evaluate", "--model", "run", "--data", "-"], b"").failed(&["standard input has no rows"]);
}

#[cfg(target_os = "linux")]
#[test]
fn what_has_no_end_is_refused() {
    let place = trained();
    for arguments in [
        &["train", "--data", "/dev/zero"][..],
        &["train", "--model", "cross-asset", "--data", "/dev/zero"],
        &["evaluate", "--model", "run", "--data", "/dev/zero"],
        &["forecast", "--model", "run", "--data", "/dev/urandom", "--out", "-"],
    ] {
        place.refrain(arguments).failed(&[
            arguments[arguments.len() - 1 - usize::from(arguments.contains(&"-")) * 2],
            "not UTF-8 text",
        ]);
    }
    place.refrain(&["train", "--config", "/dev/zero"]).failed(&["/dev/zero", "larger than"]);
    std::fs::remove_file(place.path("run/model.safetensors")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", place.path("run/model.safetensors")).unwrap();
    place.refrain(&["evaluate", "--model", "run"]).failed(&["run"]);
}

#[test]
fn a_forecast_overwrites_no_file_of_a_run_and_not_its_data() {
    let place = trained();
    place.write("b.csv", series(280));
    std::os::unix::fs::symlink(place.path("run/config.json"), place.path("link")).unwrap();
    let before = place.snapshot();
    let forecast = |out: &str, more: &[&str]| {
        place.refrain(&[&["forecast", "--model", "run", "--out", out], more].concat())
    };
    for file in ["model.safetensors", "config.json", "metrics.jsonl", "checkpoint/model.safetensors"] {
        forecast(&format!("run/{file}"), &[]).failed(&[file, "a file of a run", "choose another file"]);
    }
    forecast("link", &[]).failed(&["a file of a run"]);
    // The series that is read, and the series of the training.
    forecast("b.csv", &["--data", "b.csv"]).failed(&["b.csv", "is an input"]);
    forecast("a.csv", &["--data", "b.csv"]).failed(&["a.csv", "is an input"]);
    assert_eq!(place.snapshot(), before);
    forecast("run/next.csv", &[]).succeeded();
}

#[test]
fn names_that_a_spreadsheet_would_run_are_written_as_text() {
    let place = Place::new();
    place.write("a.csv", series(300).replacen("time,a,b", "time,=cmd|' /C calc'!A0,b", 1));
    place.refrain(&tiny(&["--data", "a.csv", "--out", "run"])).succeeded();
    let said = place.refrain(&["forecast", "--model", "run", "--out", "-"]).succeeded();
    assert_eq!(said.out.lines().next(), Some("\"time\",\"'=cmd|' /C calc'!A0\",\"b\""));
}

/// A signal finishes the step and saves; the resumed run ends with the weights of an uninterrupted one.
#[cfg(target_os = "linux")]
#[test]
fn a_request_to_end_saves_and_ends_with_the_status_of_its_signal() {
    let place = Place::new();
    place.write("a.csv", series(300));
    place.write("small.toml", SMALL_STEPS);
    // Enough epochs that a fast machine is not done before the signal comes.
    let small = ["train", "--config", "small.toml", "--epochs", "10", "--data", "a.csv", "--json", "--out"];
    let whole = place.refrain(&[&small[..], &["whole"]].concat()).succeeded().json();
    for (signal, status, name) in [("INT", 130, "Ctrl-C"), ("TERM", 143, "SIGTERM"), ("HUP", 129, "SIGHUP")] {
        // As if the tests did not run under nohup.
        let mut command = std::process::Command::new("env");
        command.args(["--default-signal=INT,TERM,HUP"]).arg(place.command(&[]).get_program());
        command.current_dir(place.path("")).args(small).arg(signal);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while !place.path(signal).join("checkpoint/config.json").is_file() {
            still_runs(&mut child);
        }
        std::thread::sleep(Duration::from_millis(20));
        let kill = ["-s", signal, &child.id().to_string()].map(str::to_owned);
        assert!(std::process::Command::new("kill").args(kill).status().unwrap().success());
        let said = said(child.wait_with_output().unwrap());
        assert_eq!(said.status, status, "{}", said.err);
        assert!(said.err.contains(&format!("interrupted by {name}")), "{}", said.err);
        assert!(said.err.contains(&format!("refrain train --resume {signal}")), "{}", said.err);
        let resumed = place.refrain(&["train", "--resume", signal, "--json"]).succeeded().json();
        assert_eq!(resumed["weights_sha256"], whole["weights_sha256"]);
        assert_eq!(resumed["steps"], whole["steps"]);
    }
}

/// A killed run resumes from its last checkpoint in the middle of an epoch.
#[test]
fn checkpoints_within_an_epoch_are_what_a_killed_run_goes_on_from() {
    let place = Place::new();
    place.write("a.csv", series(300));
    place.write("small.toml", SMALL_STEPS);
    let small = ["train", "--config", "small.toml", "--data", "a.csv", "--json"];
    let whole = place.refrain(&[&small[..], &["--out", "whole"]].concat()).succeeded().json();
    let steps_of = |folder: &str| -> u64 {
        let text = std::fs::read_to_string(place.path(folder).join("checkpoint/config.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["steps"].as_u64().unwrap()
    };
    for (every, multiple) in [("7steps", 7), ("20ms", 1)] {
        let cut = [&small[..], &["--out", every, "--checkpoint-every", every]].concat();
        let mut child = place.command(&cut).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = |folder: &str| place.path(folder).join("checkpoint/config.json").is_file();
        while !begun(every) || steps_of(every) == 0 {
            still_runs(&mut child);
        }
        child.kill().unwrap();
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(!child.wait().unwrap().success(), "{err}");
        let steps = steps_of(every);
        assert!(steps.is_multiple_of(multiple) && steps > 0, "{steps}");
        let resumed = place.refrain(&["train", "--resume", every, "--json"]).succeeded().json();
        for key in ["weights_sha256", "test_mse", "steps", "best_epoch"] {
            assert_eq!(resumed[key], whole[key], "{key} after {every}");
        }
        let losses = |folder: &str| {
            let text = std::fs::read_to_string(place.path(folder).join("metrics.jsonl")).unwrap();
            let of =
                |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["train_loss"].clone();
            text.lines().map(of).collect::<Vec<_>>()
        };
        assert_eq!(losses(every), losses("whole"));
    }
    place
        .refrain(&[&small[..], &["--checkpoint-every", "5"]].concat())
        .failed(&["--checkpoint-every", "5min"]);
}
