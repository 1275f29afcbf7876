//! Processes that train one model together, on the loopback interface, through the real binary.
#![cfg(unix)]

mod common;

use std::time::{Duration, Instant};

use common::job::{Job, LONG, both};
use common::{Place, Said, TINY, series};
use serde_json::Value;

fn place() -> Place {
    let place = Place::new();
    place.write("a.csv", series(300));
    place
}

/// `train` of a small model with more arguments.
fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--data", "a.csv", "--device", "cpu", "--json", "--threads", "1"], TINY, more].concat()
}

/// Many small steps, so that a signal arrives during one.
fn small(out: &str) -> Vec<&str> {
    train(&["--batch-size", "2", "--epochs", "3", "--dropout", "0.1", "--out", out, "--resume-if-possible"])
}

/// Two ranks train to their end. What the first prints as JSON; the other prints nothing.
#[track_caller]
fn result(place: &Place, arguments: Vec<&str>) -> Value {
    let [first, other] = <[Said; 2]>::try_from(Job::start(place, &both(arguments)).end()).ok().unwrap();
    assert_eq!((other.status, &*other.out, &*other.err), (0, "", ""));
    first.succeeded().json()
}

/// Waits until the job has saved a run after its first step.
fn wait_for_steps(place: &Place, out: &str) {
    let (file, begun) = (place.path(out).join("checkpoint/config.json"), Instant::now());
    let steps = || {
        let saved: Value = serde_json::from_slice(&std::fs::read(&file).ok()?).ok()?;
        saved["steps"].as_u64()
    };
    while steps().unwrap_or(0) == 0 {
        assert!(begun.elapsed() < LONG, "it does not train");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn metrics(place: &Place, out: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(place.path(out).join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn files(place: &Place, out: &str) -> Vec<std::path::PathBuf> {
    let folder = place.path(out);
    let inside = |path: &std::path::PathBuf| path.strip_prefix(&folder).ok().map(|path| path.to_owned());
    place.snapshot().keys().filter_map(inside).collect()
}

#[test]
fn two_ranks_write_one_run_with_the_losses_of_one_process() {
    let place = place();
    // Batch norm takes the samples that the ranks can't share equally for a batch of their own.
    let of = |out| train(&["--dropout", "0", "--norm", "layer", "--out", out]);
    let one = place.refrain(&of("one")).succeeded().json();
    for device in ["cpu", "sim"] {
        let two = result(&place, [of(device), vec!["--device", device]].concat());
        // Sums over the samples are rounded in another order.
        let close = |a: &Value, b: &Value| {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() < 2e-5 * b.abs(), "{device}: {a} and {b}");
        };
        // Equal bits would mean that each rank trained with the whole batch.
        assert_ne!(two["weights_sha256"], one["weights_sha256"]);
        assert_eq!((&two["steps"], &two["best_epoch"]), (&one["steps"], &one["best_epoch"]));
        close(&two["test_mse"], &one["test_mse"]);
        // Baselines don't depend on ranks or devices.
        for baseline in ["linear_mse", "seasonal_naive_mse", "last_value_mse"] {
            assert!(one[baseline].is_f64(), "{one}");
            assert_eq!(two[baseline], one[baseline], "{baseline}, {device}");
        }
        let (lines, expected) = (metrics(&place, device), metrics(&place, "one"));
        assert_eq!((lines.len(), expected.len()), (2, 2));
        for (line, expected) in lines.iter().zip(&expected) {
            ["train_loss", "validation_mse", "validation_mae"]
                .iter()
                .for_each(|key| close(&line[*key], &expected[*key]));
        }
        assert_eq!(files(&place, device), files(&place, "one"));
    }
}

#[test]
fn ranks_that_nobody_started_meet_where_the_options_say() {
    let place = place();
    let meeting = format!("file://{}", place.path("meet").display());
    let of = |rank| {
        train(&[
            "--rank",
            rank,
            "--world-size",
            "2",
            "--rendezvous",
            &meeting,
            "--out",
            "run",
            "--rendezvous-without-token",
        ])
    };
    let ended = Job::of(["0", "1"].map(|rank| place.command(&of(rank)))).end();
    assert!(ended[0].err.contains("\nranks       2, started by the command line, on "), "{}", ended[0].err);
    assert!(ended.iter().all(|said| said.status == 0), "{}", ended[1].err);
    place.refrain(&train(&["--rank", "1"])).failed(&["--rank is given without --world-size"]);
    place.refrain(&train(&["--rank", "2", "--world-size", "2"])).failed(&["rank 2 does not exist"]);
}

/// The other rank ends with 75, names the one that was killed, and a restarted job ends as one that nobody disturbed.
fn survives_the_death_of(dead: usize) {
    let place = place();
    let whole = result(&place, small("whole"));
    let job = Job::start(&place, &both([small("job"), vec!["--checkpoint-every", "3steps"]].concat()));
    wait_for_steps(&place, "job");
    job.signal(dead, "-KILL");
    let ended = job.end();
    let other = &ended[1 - dead];
    assert_eq!((ended[dead].status, other.status), (-1, 75), "{}", other.err);
    let named = format!("error: rank {dead} on ");
    assert!(other.err.contains(&named) && other.err.contains(" failed at step "), "{}", other.err);
    let line = other.err.lines().find(|line| line.contains(&named)).unwrap();
    assert_eq!(line.starts_with("rank 1 on "), dead == 0, "{line}");
    let again = result(&place, [small("job"), vec!["--checkpoint-every", "3steps"]].concat());
    assert_eq!(again["weights_sha256"], whole["weights_sha256"]);
}

#[test]
fn a_rank_that_is_killed_is_named_and_the_job_can_go_on() {
    survives_the_death_of(1);
}

#[test]
fn the_first_rank_may_be_killed_too() {
    survives_the_death_of(0);
}

#[test]
fn a_signal_to_any_rank_stops_all_of_them_after_one_save() {
    let place = place();
    let whole = result(&place, small("whole"));
    for (rank, out) in [(1, "a"), (0, "b")] {
        let job = Job::start(&place, &both([small(out), vec!["--checkpoint-every", "3steps"]].concat()));
        wait_for_steps(&place, out);
        job.signal(rank, "-TERM");
        let ended = job.end();
        assert_eq!((ended[0].status, ended[1].status), (143, 143), "{}\n{}", ended[0].err, ended[1].err);
        let said = format!("refrain train --resume {out}");
        assert!(ended[0].err.contains("interrupted by SIGTERM after ") && ended[0].err.contains(&said));
        assert_eq!((&*ended[1].out, &*ended[1].err), ("", ""));
        let again = result(&place, [small(out), vec!["--checkpoint-every", "3steps"]].concat());
        assert_eq!(again["weights_sha256"], whole["weights_sha256"], "after a signal to rank {rank}");
    }
}

#[test]
fn a_rank_with_other_options_is_refused_by_name_on_all() {
    let place = place();
    let refused = |other: &[&str], parts: &[&str]| {
        let one = train(&["--out", "run"]);
        let ended = Job::start(&place, &[one.clone(), [&one, other].concat()]).end();
        for (rank, said) in ended.iter().enumerate() {
            assert!([1, 2].contains(&said.status), "{rank} {}: {}", said.status, said.err);
            parts.iter().for_each(|part| assert!(said.err.contains(part), "no {part:?} in: {}", said.err));
        }
        let prefix = ended[1].err.split_once(": ").unwrap().0;
        assert!(prefix.starts_with("rank 1 on ") && !ended[0].err.starts_with("rank "), "{prefix}");
        assert!(!place.path("run").exists(), "after {other:?}");
    };
    refused(&["--lr", "0.5"], &["rank 1 on ", "training.lr 0.001 (on rank 1 0.5)", "the same options"]);
    refused(&["--eager"], &["eager false (on rank 1 true)"]);
    refused(&["--device", "sim"], &["rank 1 on ", "kind of device is Sim"]);
    place.write("b.csv", series(310));
    refused(&["--data", "b.csv"], &["rank 1 on ", "data.sha256"]);
}

#[test]
fn a_launcher_of_one_process_changes_nothing() {
    let place = place();
    let alone = place.refrain(&train(&["--out", "alone"])).succeeded().json();
    let ended = Job::start(&place, &[train(&["--out", "job"])]).end().remove(0).succeeded();
    assert!(!ended.err.contains("ranks "), "{}", ended.err);
    assert_eq!(ended.json()["weights_sha256"], alone["weights_sha256"]);
}
