//! For every wrong input, the message says what is wrong, where, and what to do; the exit status is not zero, and
//! nothing is written.

mod common;

use common::{Place, series, tiny};

/// `train` with this file fails with these words and leaves the folder unchanged.
#[track_caller]
fn refused(csv: impl AsRef<[u8]>, words: &[&str]) {
    refused_with(csv, &[], words);
}

#[track_caller]
fn refused_with(csv: impl AsRef<[u8]>, more: &[&str], words: &[&str]) {
    let place = Place::new();
    place.write("a.csv", csv);
    let before = place.snapshot();
    let arguments = [&["--data", "a.csv"], more].concat();
    place.refrain(&tiny(&arguments)).failed(words);
    assert_eq!(place.snapshot(), before);
    assert!(!place.path("runs").exists());
}

/// The rows of a good file, one line changed.
fn with_line(line: usize, text: &str) -> String {
    let good = series(300);
    let mut lines: Vec<&str> = good.lines().collect();
    lines[line - 1] = text;
    lines.join("\n")
}

#[test]
fn files_that_cannot_be_read() {
    let place = Place::new();
    place.refrain(&tiny(&["--data", "none.csv"])).failed(&["none.csv", "check the path"]);
    place
        .refrain(&tiny(&["--data", "nyc"]))
        .failed(&["no bundled series and no file \"nyc\"", "nyc-weather"]);
    place.refrain(&tiny(&["--data", "."])).failed(&["cannot read .", "check the path"]);
    assert!(place.snapshot().is_empty());
    refused("", &["a.csv", "has no rows"]);
    refused("time,a\n", &["a.csv", "has no rows"]);
    refused(b"time,a\n2020-01-01,\xff\n", &["line 2", "UTF-8", "iconv"]);
}

#[test]
fn rows_that_are_broken() {
    refused(with_line(7, "2020-01-01 05:00:00,1"), &["line 7", "2 fields where the header has 3"]);
    refused(with_line(7, "yesterday,1,2"), &["line 7", "`time`", "not a time stamp"]);
    refused(with_line(7, "2020-01-01 04:00:00,1,2"), &["line 7", "already in line 6", "duplicate"]);
    refused(with_line(7, "2019-01-01 03:00:00,1,2"), &["line 7", "earlier", "sort"]);
    refused(with_line(7, "2020-01-01 05:00:00,1,2.5.1"), &["line 7", "`b`", "2.5.1", "decimal point"]);
}

#[test]
fn columns_that_are_no_channels() {
    let constant: String = series(300).lines().map(|line| format!("{line},1\n")).collect();
    refused(
        constant.replacen(",1\n", ",c\n", 1),
        &["`c`", "constant", "remove the channel", "--layout independent"],
    );
    let text: String = series(300).lines().map(|line| format!("{line},x\n")).collect();
    refused(text.replacen(",x\n", ",c\n", 1), &["`c`", "the whole column has none"]);
    let missing: String = series(300).lines().map(|line| format!("{line},NA\n")).collect();
    refused(missing.replacen(",NA\n", ",c\n", 1), &["`c`", "missing", "remove the channel"]);
}

#[test]
fn series_that_do_not_fit_the_settings() {
    refused(series(40), &["part has", "window", "shorter context"]);
    refused_with(
        with_line(7, "2020-01-01 05:00:00,,2"),
        &["--strict"],
        &["1 value missing (a: 1)", "--strict"],
    );
    refused_with(series(300), &["--split", "0.5,0.5,0.5"], &["fractions 0.5, 0.5 and 0.5"]);
    refused_with(series(300), &["--split", "ett"], &["20 months", "fractions"]);
    refused_with(series(300), &["--season", "25"], &["season of 25", "context of 24"]);
}

#[test]
fn settings_that_make_no_model() {
    refused_with(series(300), &["--heads", "3"], &["3 heads do not divide d_model 8"]);
    refused_with(series(300), &["--patch", "25"], &["longer than the context of 24"]);
    refused_with(series(300), &["--dropout", "1"], &["dropout is 1"]);
    refused_with(series(300), &["--epochs", "0"], &["epochs is 0"]);
    refused_with(series(300), &["--lr", "-1"], &["learning rate is -1"]);
}

#[cfg(target_os = "linux")]
#[test]
fn models_and_batches_that_no_memory_holds() {
    let words = ["parameters, about", "of activations per step", "choose"];
    for more in [
        &["--layers", "16777216"][..],
        &["--layers", "65536"],
        &["--d-model", "16777216", "--heads", "1", "--ffn", "16777216"],
        &["--d-model", "65536", "--ffn", "262144", "--positions", "sinusoidal"],
    ] {
        refused_with(series(300), more, &words);
    }
    let place = Place::new();
    let cross = ["train", "--model", "cross-asset", "--d-model", "1048576", "--out", "run"];
    place.refrain(&cross).failed(&words);
    assert!(!place.path("run").exists());
}

#[test]
fn arguments_that_are_none() {
    let place = Place::new();
    for (arguments, words) in [
        (&["trian"][..], &["trian", "train"][..]),
        (&["train", "--epoch", "3"], &["--epoch", "--epochs"]),
        (&["train", "--epochs", "many"], &["many"]),
        (&["train", "--norm", "group"], &["group", "batch"]),
        (&["train", "--device", "gpu"], &["gpu", "cpu"]),
        (&["train", "--threads", "0"], &["--threads"]),
        (&["train", "--threads", "1025"], &["--threads 1025", "1024", "every core"]),
        (&["train", "--preset", "etth1"], &["--data", "ETTh1.csv"]),
        (&["train", "--config", "none.toml"], &["none.toml"]),
        (&["bench", "patchtst", "--samples", "0", "--channels", "1", "--epochs", "1"], &["1 or more"]),
        (&["bench", "step"], &["--config"]),
        (&["evaluate"], &["--model"]),
    ] {
        place.refrain(arguments).failed(words);
    }
    place.write("a.toml", "epochs = 3\nepoch = 4\n");
    place.refrain(&["train", "--config", "a.toml"]).failed(&[
        "a.toml",
        "line 2",
        "unknown setting `epoch`",
        "--help",
    ]);
    assert_eq!(place.snapshot().len(), 1);
}

#[test]
fn folders_that_cannot_be_written() {
    let place = Place::new();
    place.write("a.csv", series(300));
    std::fs::create_dir(place.path("full")).unwrap();
    place.write("full/notes.txt", "mine");
    let before = place.snapshot();
    // A file cannot contain a folder, not even for root.
    place
        .refrain(&tiny(&["--data", "a.csv", "--out", "a.csv/run"]))
        .failed(&["a.csv/run", "choose a folder"]);
    place.refrain(&tiny(&["--data", "a.csv", "--out", "full"])).failed(&["full", "not empty", "--resume"]);
    assert_eq!(place.snapshot(), before);
}
