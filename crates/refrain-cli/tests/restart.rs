//! Runs that are killed, restarted and started twice, through the real binary.
#![cfg(unix)]

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Place, SMALL_STEPS, said, series, tiny};

/// A folder with a series and settings of many small steps.
fn place() -> Place {
    let place = Place::new();
    place.write("a.csv", series(300));
    place.write("small.toml", SMALL_STEPS);
    place
}

const SMALL: [&str; 6] = ["train", "--config", "small.toml", "--data", "a.csv", "--json"];

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], more].concat()
}

fn spawn(place: &Place, arguments: &[&str]) -> Child {
    place.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The names of all temporary files of a folder.
fn temporaries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.path().is_dir() {
        true => temporaries(&entry.path()),
        false => {
            let name = entry.file_name().into_string().unwrap();
            name.ends_with(".tmp").then_some(name).into_iter().collect()
        }
    };
    entries.flat_map(of).collect()
}

#[test]
fn a_folder_is_of_one_process_at_a_time_and_a_second_one_names_it() {
    let place = place();
    let mut child = spawn(&place, &small(&["--out", "run"]));
    while !place.path("run/checkpoint/config.json").is_file() {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended already");
        std::thread::sleep(Duration::from_millis(1));
    }
    // It locks the folder until it is killed, however fast the device is.
    let stopped = Command::new("kill").args(["-STOP", &child.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let holder = format!("run is in use by process {} on ", child.id());
    let resume = ["train", "--resume", "run"];
    let restart = small(&["--out", "run", "--resume-if-possible"]);
    for arguments in [&small(&["--out", "run"])[..], &resume, &restart] {
        place.refrain(arguments).failed(&[&holder, "wait until that process ends"]);
    }
    // The system releases the lock of a killed process.
    child.kill().unwrap();
    child.wait().unwrap();
    place.refrain(&resume).succeeded();
}

#[test]
fn of_two_runs_that_begin_at_once_in_one_folder_one_succeeds() {
    let place = place();
    for round in 0..8 {
        let out = format!("run{round}");
        let arguments = tiny(&["--data", "a.csv", "--out", &out]);
        let both = [spawn(&place, &arguments), spawn(&place, &arguments)];
        let both = both.map(|child| said(child.wait_with_output().unwrap()));
        let [done, refused] = match both {
            [a, b] if a.status == 0 => [a, b],
            [a, b] => [b, a],
        };
        done.succeeded();
        assert!(
            refused.err.contains("in use by process") || refused.err.contains("not empty"),
            "{}",
            refused.err
        );
        assert_eq!(refused.status, 1, "{}", refused.err);
    }
}

#[test]
fn a_run_that_died_before_it_was_saved_can_begin_again_and_leaves_nothing() {
    let place = place();
    let dead = |name: &str| {
        std::fs::create_dir_all(place.path(name).join("fold-1/checkpoint")).unwrap();
        std::fs::create_dir_all(place.path(name).join("checkpoint")).unwrap();
        for file in ["run.lock", ".refrain-Ab12Cd.tmp", "checkpoint/.refrain-model.safetensors-x1y2z3.tmp"] {
            place.write(&format!("{name}/{file}"), "half");
        }
    };
    dead("run");
    place.refrain(&["train", "--resume", "run"]).failed(&["ended before it was saved", "--out"]);
    place.refrain(&["evaluate", "--model", "run"]).failed(&["ended before it was saved"]);
    place.refrain(&tiny(&["--data", "a.csv", "--out", "run"])).succeeded();
    assert_eq!(temporaries(&place.path("run")), [""; 0]);
    assert!(!place.path("run/fold-1").exists());
    place.refrain(&["train", "--resume", "run"]).succeeded();
    dead("again");
    place.refrain(&tiny(&["--data", "a.csv", "--out", "again", "--resume-if-possible"])).succeeded();

    // Files that somebody else put there are not leftovers.
    dead("mine");
    place.write("mine/checkpoint/notes.txt", "mine");
    place.write("mine/.refrain-notes.txt-x1y2z3.tmp", "being written");
    place.refrain(&tiny(&["--data", "a.csv", "--out", "mine"])).failed(&["mine", "not empty"]);
    assert!(place.path("mine/checkpoint/notes.txt").is_file());
    assert!(place.path("mine/.refrain-notes.txt-x1y2z3.tmp").is_file());
}

/// The command line of a pod that is killed and restarted unchanged.
#[test]
fn a_job_that_is_killed_again_and_again_ends_with_the_weights_of_one_that_was_not() {
    let place = place();
    let whole = place.refrain(&small(&["--out", "whole"])).succeeded().json();
    let job = small(&["--out", "job", "--resume-if-possible", "--checkpoint-every", "20ms"]);
    for pause in [20, 60, 120, 180, 240, 300] {
        let mut child = spawn(&place, &job);
        std::thread::sleep(Duration::from_millis(pause));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for _ in 0..2 {
        // The second time nothing is left to do.
        let done = place.refrain(&job).succeeded().json();
        for key in ["weights_sha256", "test_mse", "steps", "best_epoch"] {
            assert_eq!(done[key], whole[key], "{key}");
        }
    }
    assert_eq!(temporaries(&place.path("job")), [""; 0]);
    let lines = std::fs::read_to_string(place.path("job/metrics.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 3, "{lines}");

    let other = [&job[..], &["--lr", "0.5", "--layers", "1"]].concat();
    place.refrain(&other).failed(&[
        "job",
        "other settings",
        "model.layers 2 (now 1)",
        "training.lr 0.001 (now 0.5)",
    ]);
    let cross = ["train", "--model", "cross-asset", "--out", "job", "--resume-if-possible"];
    place.refrain(&cross).failed(&["job", "for another model"]);
    place.refrain(&small(&["--resume-if-possible"])).failed(&["--out"]);
    place.write("a.csv", series(301));
    place.refrain(&job).failed(&["a.csv", "has changed"]);
}
