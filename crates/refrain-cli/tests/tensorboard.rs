//! Event files: their records are intact, and hold the metrics of `metrics.jsonl`. The reader here is written apart from the code
//! that writes them. `.ci/event_file.py` compares a run with what TensorBoard's own reader reads.

mod common;

use common::{Place, series, tiny};
use serde_json::Value;

/// CRC-32C by a table, as the reader of a TFRecord computes it.
fn crc32c(bytes: &[u8]) -> u32 {
    let entry = |index: u32| {
        (0..8).fold(index, |crc, _| if crc % 2 == 1 { 0x82f6_3b78 ^ (crc / 2) } else { crc / 2 })
    };
    let table: Vec<u32> = (0..256).map(entry).collect();
    !bytes.iter().fold(u32::MAX, |crc, &byte| (crc >> 8) ^ table[(crc as u8 ^ byte) as usize])
}

/// What a stored checksum stands for: see the format of TFRecord.
fn unmasked(stored: &[u8]) -> u32 {
    let rotated = u32::from_le_bytes(stored.try_into().unwrap()).wrapping_sub(0xa282_ead8);
    rotated.rotate_left(15)
}

fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_at(8);
        assert_eq!(unmasked(&rest[..4]), crc32c(length), "the length of record {}", all.len());
        let size = u64::from_le_bytes(length.try_into().unwrap()) as usize;
        let (record, rest) = rest[4..].split_at(size);
        assert_eq!(unmasked(&rest[..4]), crc32c(record), "record {}", all.len());
        all.push(record.to_vec());
        bytes = &rest[4..];
    }
    all
}

/// A field of a message of Protocol Buffers.
#[derive(Debug)]
enum Field {
    Integer(u64),
    Double(f64),
    Float(f32),
    Bytes(Vec<u8>),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (&byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let mut take = |count: usize| {
            let (taken, rest) = bytes.split_at(count);
            bytes = rest;
            taken.to_vec()
        };
        let field = match key % 8 {
            1 => Field::Double(f64::from_le_bytes(take(8).try_into().unwrap())),
            5 => Field::Float(f32::from_le_bytes(take(4).try_into().unwrap())),
            0 => Field::Integer(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (taken, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(taken.to_vec())
            }
            kind => panic!("a field of kind {kind}"),
        };
        all.push((key / 8, field));
    }
    all
}

/// The scalars of an event file: step, wall time, tag, value. The first record names the version.
fn scalars(place: &Place, folder: &str) -> Vec<(u64, f64, String, f32)> {
    let bytes = std::fs::read(place.path(folder).join("events.out.tfevents.refrain")).unwrap();
    let records = records(&bytes);
    let first = fields(&records[0]);
    assert!(matches!(&first[1], (3, Field::Bytes(version)) if version == b"brain.Event:2"), "{first:?}");
    let mut all = Vec::new();
    for record in &records[1..] {
        let (mut step, mut time) = (0, 0.0);
        for (number, field) in fields(record) {
            match (number, field) {
                (1, Field::Double(wall)) => time = wall,
                (2, Field::Integer(value)) => step = value,
                (5, Field::Bytes(summary)) => {
                    for (_, value) in fields(&summary) {
                        let Field::Bytes(value) = value else { panic!("{value:?}") };
                        let [(1, Field::Bytes(tag)), (2, Field::Float(number))] = &fields(&value)[..] else {
                            panic!("{value:?}")
                        };
                        all.push((step, time, String::from_utf8(tag.clone()).unwrap(), *number));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    all
}

/// The same from `metrics.jsonl`.
fn expected(place: &Place, folder: &str) -> Vec<(u64, String, f32)> {
    let text = std::fs::read_to_string(place.path(folder).join("metrics.jsonl")).unwrap();
    let mut all = Vec::new();
    for line in text.lines() {
        let report: Value = serde_json::from_str(line).unwrap();
        let step = report["epoch"].as_u64().unwrap();
        let mut add = |tag: &str, value: &Value| {
            if let Some(number) = value.as_f64() {
                all.push((step, tag.to_owned(), number as f32));
            }
        };
        add("loss/train", &report["train_loss"]);
        add("learning_rate", &report["learning_rate"]);
        add("seconds_per_epoch", &report["seconds"]);
        for (key, value) in report.as_object().unwrap() {
            match key.strip_prefix("validation_") {
                Some("loss") => add("loss/validation", value),
                Some(metric) => add(&format!("validation/{metric}"), value),
                None => {}
            }
        }
    }
    all
}

fn check(place: &Place, folder: &str, epochs: u64) {
    let found = scalars(place, folder);
    let without_time: Vec<_> =
        found.iter().map(|(step, _, tag, value)| (*step, tag.clone(), *value)).collect();
    assert_eq!(without_time, expected(place, folder));
    assert_eq!(found.last().unwrap().0, epochs);
    assert!(found.iter().any(|(.., tag, _)| tag == "validation/mse"), "{found:?}");
    let times: Vec<f64> = found.iter().map(|(_, time, ..)| *time).collect();
    assert!(times.is_sorted() && times[0] > 1.6e9, "{times:?}");
}

#[test]
fn the_event_file_has_the_metrics_of_every_epoch() {
    let place = Place::new();
    place.write("a.csv", series(300));
    let run = |out: &str, more: &[&str]| {
        place
            .refrain(&tiny(&[&["--data", "a.csv", "--loss", "mae", "--out", out], more].concat()))
            .succeeded()
    };
    run("without", &[]);
    assert!(!place.path("without/events.out.tfevents.refrain").exists());
    run("run", &["--tensorboard", "--epochs", "3"]);
    check(&place, "run", 3);
    // A run that is resumed keeps its file, from the first epoch on, as one that begins to have one gets it.
    place.refrain(&["train", "--resume", "run"]).succeeded();
    check(&place, "run", 3);
    place.refrain(&["train", "--resume", "without", "--tensorboard"]).succeeded();
    check(&place, "without", 2);
    let compare = [
        "compare",
        "--models",
        "nlinear",
        "--data",
        "a.csv",
        "--context",
        "24",
        "--horizon",
        "6",
        "--epochs",
        "1",
    ];
    place.refrain(&[&compare[..], &["--tensorboard", "--out", "all"]].concat()).succeeded();
    check(&place, "all/nlinear", 1);
}
