//! Commands that several processes share, through the real binary.
#![cfg(unix)]

mod common;

use common::job::{Job, both};
use common::{Place, Said, tiny};
use serde_json::Value;

/// Runs a command on two ranks. What the first prints; the other prints nothing.
#[track_caller]
fn on_two(place: &Place, arguments: &[&str]) -> Said {
    let mut ended = Job::start(place, &both(arguments.to_vec())).end();
    let other = ended.remove(1);
    assert_eq!((other.status, &*other.out, &*other.err), (0, "", ""));
    ended.remove(0).succeeded()
}

fn noise(i: usize) -> f64 {
    ((i * 7919 + i * i * 31) % 1009) as f64 / 1009.0 - 0.5
}

fn time(row: usize) -> String {
    format!("2020-01-{:02} {:02}:00:00", row / 24 + 1, row % 24)
}

/// 200 rows of 300 channels: three windows at a time are measured.
fn wide() -> String {
    let header: String = (0..300).map(|channel| format!(",c{channel}")).collect();
    let row = |row: usize| {
        let cell =
            |c: usize| format!(",{:.4}", (row as f64 * 0.26 + c as f64).sin() + 0.2 * noise(row * 300 + c));
        time(row) + &(0..300).map(cell).collect::<String>() + "\n"
    };
    format!("time{header}\n") + &(0..200).map(row).collect::<String>()
}

/// So many series of 40 rows in a long file.
fn long(series: usize) -> String {
    let of = |id: usize| {
        let row = move |row: usize| {
            format!("s{id},{},{:.4}\n", time(row), (row as f64 * 0.3).sin() + noise(row + 99 * id))
        };
        (0..40).map(row).collect::<String>()
    };
    "unique_id,ds,y\n".to_owned() + &(0..series).map(of).collect::<String>()
}

#[test]
fn evaluate_prints_on_two_ranks_what_it_prints_on_one() {
    let place = Place::new();
    place.write("wide.csv", wide());
    let train = ["train", "--model", "nlinear", "--context", "24", "--horizon", "6", "--epochs", "1"];
    let more = ["--data", "wide.csv", "--loss", "quantile", "--levels", "80", "--out", "run"];
    place.refrain(&[&train[..], &more].concat()).succeeded();
    let evaluate = ["evaluate", "--model", "run", "--device", "cpu", "--json"];
    let one = place.refrain(&evaluate).succeeded();
    let files = place.snapshot();
    let two = on_two(&place, &evaluate);
    assert_eq!((two.json(), two.err), (one.json(), one.err));
    assert!(place.snapshot() == files, "a file has changed");
}

#[test]
fn forecasts_of_two_ranks_are_those_of_one_byte_for_byte() {
    let place = Place::new();
    place.write("few.csv", long(4));
    place.write("many.csv", long(1500));
    let train = ["--data", "few.csv", "--epochs", "1", "--layout", "independent", "--out", "run"];
    place.refrain(&tiny(&train)).succeeded();
    let forecast =
        |out| ["forecast", "--model", "run", "--data", "many.csv", "--device", "cpu", "--out", out];
    let one = place.refrain(&forecast("one.csv")).succeeded();
    let two = on_two(&place, &forecast("two.csv"));
    let [a, b] = ["one.csv", "two.csv"].map(|name| std::fs::read(place.path(name)).unwrap());
    assert!(a == b && a.len() > 1500 * 6 * 20, "{} and {} bytes", a.len(), b.len());
    assert_eq!(two.out, one.out.replace("one.csv", "two.csv"));
    let printed = on_two(&place, &["forecast", "--model", "run", "--device", "cpu", "--out", "-"]);
    let alone = place.refrain(&["forecast", "--model", "run", "--device", "cpu", "--out", "-"]).succeeded();
    assert_eq!(printed.out, alone.out);
}

#[test]
fn ranks_with_other_data_are_refused() {
    let place = Place::new();
    place.write("few.csv", long(4));
    place.write("other.csv", long(3));
    let train = ["--data", "few.csv", "--epochs", "1", "--layout", "independent", "--out", "run"];
    place.refrain(&tiny(&train)).succeeded();
    for command in ["evaluate", "forecast"] {
        let of = |data| vec![command, "--model", "run", "--device", "cpu", "--data", data, "--json"];
        for said in Job::start(&place, &[of("few.csv"), of("other.csv")]).end() {
            said.failed(&["rank 1 on ", "differs from rank 0: data "]);
        }
    }
}

#[test]
fn ranks_that_are_asked_for_other_forecasts_are_refused() {
    let place = Place::new();
    place.write("few.csv", long(4));
    let train = ["--data", "few.csv", "--epochs", "1", "--layout", "independent", "--out", "run"];
    place.refrain(&tiny(&train)).succeeded();
    let refused = |name: &str, first: &[&'static str], second: &[&'static str]| {
        let of = |more: &[&'static str]| {
            [&["forecast", "--model", "run", "--device", "cpu", "--json"][..], more].concat()
        };
        for said in Job::start(&place, &[of(first), of(second)]).end() {
            said.failed(&["rank 1 on ", &format!("differs from rank 0: {name} ")]);
        }
    };
    refused("--ids", &["--ids", "s0,s1"], &["--ids", "s1"]);
    refused("--ids", &[], &["--ids", "s1"]);
    refused("--from", &[], &["--from", "2020-01-02 10:00"]);
    refused("--horizon", &["--horizon", "2"], &["--horizon", "3"]);
}

#[test]
fn ranks_with_other_rows_ahead_are_refused() {
    let place = Place::new();
    let file = |ahead: f64| {
        let row = |row: usize| match row {
            0..80 => format!("{},{:.3},{:.3}\n", time(row), noise(row), noise(2 * row)),
            _ => format!("{},,{ahead}\n", time(row)),
        };
        "time,y,plan\n".to_owned() + &(0..86).map(row).collect::<String>()
    };
    place.write("a.csv", file(0.1));
    place.write("b.csv", file(0.2));
    let train = ["train", "--data", "a.csv", "--model", "tsmixer", "--context", "12", "--horizon", "6"];
    let more = [
        "--d-model",
        "8",
        "--ffn",
        "8",
        "--layers",
        "1",
        "--future",
        "plan",
        "--epochs",
        "1",
        "--out",
        "run",
    ];
    place.refrain(&[&train[..], &more].concat()).succeeded();
    let of = |data| vec!["forecast", "--model", "run", "--device", "cpu", "--data", data, "--json"];
    for said in Job::start(&place, &[of("a.csv"), of("b.csv")]).end() {
        said.failed(&["rank 1 on ", "differs from rank 0: data "]);
    }
}

const PANEL: &[&str] = &[
    "train",
    "--model",
    "cross-asset",
    "--data",
    "panel.csv",
    "--d-model",
    "8",
    "--heads",
    "2",
    "--ffn",
    "16",
    "--layers",
    "1",
    "--batch-size",
    "16",
    "--folds",
    "2",
    "--embargo",
    "3",
    "--price",
    "close",
    "--label-horizon",
    "2",
    "--label-threshold",
    "0.05",
    "--label-change",
    "relative",
    "--epochs",
    "3",
    "--device",
    "cpu",
    "--threads",
    "1",
    "--json",
    "--dropout",
    "0",
];

/// Hours of two sources whose close follows a wave and its value an hour before.
fn panel() -> String {
    let close = |row: usize, source: usize| 50.0 + 5.0 * ((row + 9 * source) as f64 * 0.4).sin();
    let row = |row: usize| {
        let of = |source: usize| {
            let before = close(row.saturating_sub(1), source);
            format!("{},S{source},{before},{},{}\n", time(row), noise(row + 7 * source), close(row, source))
        };
        of(0) + &of(1)
    };
    "time,source,before,noise,close\n".to_owned() + &(0..300).map(row).collect::<String>()
}

fn fold_files(place: &Place, out: &str) -> Vec<std::path::PathBuf> {
    let folder = place.path(out);
    place.snapshot().keys().filter_map(|path| Some(path.strip_prefix(&folder).ok()?.to_owned())).collect()
}

#[test]
fn a_cross_asset_model_trains_on_two_ranks_as_on_one() {
    let place = Place::new();
    place.write("panel.csv", panel());
    let of = |out| [PANEL, &["--out", out]].concat();
    let one = place.refrain(&of("one")).succeeded().json();
    let two = on_two(&place, &of("two")).json();
    let (ours, theirs) = (two["folds"].as_array().unwrap(), one["folds"].as_array().unwrap());
    assert_eq!((ours.len(), theirs.len()), (2, 2));
    for (a, b) in ours.iter().zip(theirs) {
        let loss = |fold: &Value| fold["loss"].as_f64().unwrap();
        // Sums over the samples are rounded in another order; equal bits would mean that each rank had all samples.
        assert!((loss(a) - loss(b)).abs() < 1e-4 * loss(b), "{a} and {b}");
        assert_ne!(a["weights_sha256"], b["weights_sha256"]);
        assert_eq!(a["steps"], b["steps"]);
    }
    assert_eq!(fold_files(&place, "two"), fold_files(&place, "one"));
    // What was trained by two is evaluated by one and by two alike.
    let evaluate = ["evaluate", "--model", "two", "--device", "cpu", "--json"];
    let (alone, shared) = (place.refrain(&evaluate).succeeded(), on_two(&place, &evaluate));
    assert_eq!((shared.json(), shared.err), (alone.json(), alone.err));
    let forecast = ["forecast", "--model", "two", "--device", "cpu", "--out", "-"];
    assert_eq!(on_two(&place, &forecast).out, place.refrain(&forecast).succeeded().out);
}

#[test]
fn a_signal_stops_a_cross_asset_job_in_a_later_fold_and_it_goes_on() {
    let place = Place::new();
    place.write("panel.csv", panel());
    fn of(out: &str) -> Vec<&str> {
        let more =
            ["--batch-size", "2", "--epochs", "4", "--checkpoint-every", "20steps", "--resume-if-possible"];
        [PANEL, &["--out", out], &more].concat()
    }
    let weights = |json: &Value| -> Vec<Value> {
        json["folds"].as_array().unwrap().iter().map(|fold| fold["weights_sha256"].clone()).collect()
    };
    let whole = on_two(&place, &of("whole")).json();
    let first_fold = whole["folds"][0]["steps"].as_u64().unwrap();
    for (rank, signal, statuses) in
        [(1, "-TERM", [143, 143]), (0, "-TERM", [143, 143]), (1, "-KILL", [75, -1])]
    {
        let out = format!("{rank}{signal}");
        let job = Job::start(&place, &both(of(&out)));
        job.wait_for(|| place.path(&out).join("fold-2/checkpoint/config.json").exists());
        job.signal(rank, signal);
        let ended = job.end();
        assert_eq!([ended[0].status, ended[1].status], statuses, "{}\n{}", ended[0].err, ended[1].err);
        // The steps of a job go on from fold to fold: ranks that agree where to stop may be in different folds.
        if let Some((_, step)) = ended[0].err.split_once(" failed at step ") {
            let step = step.split(':').next().unwrap().parse::<u64>().unwrap();
            assert!(step > first_fold, "step {step} after a fold of {first_fold}");
        }
        let again = on_two(&place, &of(&out)).json();
        assert_eq!(weights(&again), weights(&whole), "after {signal} to rank {rank}");
    }
}
