//! Event files, which TensorBoard reads: the metrics of each epoch as scalars.
//!
//! A file is a list of records, as TFRecord frames them: the length, its checksum, the bytes, their checksum. The bytes are a
//! message `Event` of Protocol Buffers. It is so simple that its few fields are written here.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;

use crate::error::Result;
use crate::folder::RunFolder;
use crate::run::EVENTS;
use crate::tasks::as_json;

/// The event file of a run.
pub struct EventFile<'a> {
    folder: &'a RunFolder,
}

impl<'a> EventFile<'a> {
    /// Whether a run has one.
    pub fn is_in(folder: &RunFolder) -> bool {
        folder.path().join(EVENTS).is_file()
    }

    /// Writes the file anew, with the epochs that are finished.
    pub fn begin<R: Serialize>(folder: &'a RunFolder, history: &[R]) -> Result<EventFile<'a>> {
        let mut bytes = record(&version(now()));
        let reports = history.iter().map(as_json).collect::<Result<Vec<Value>>>()?;
        let seconds = |report: &Value| report["seconds"].as_f64().unwrap_or(0.0);
        // Epochs of an earlier process were over before this one began.
        let mut time = now() - reports.iter().map(seconds).sum::<f64>();
        for report in &reports {
            time += seconds(report);
            bytes.extend(record(&scalars(report, time)));
        }
        folder.write(EVENTS, &bytes)?;
        Ok(EventFile { folder })
    }

    /// Adds an epoch.
    pub fn add(&self, report: &impl Serialize) -> Result<()> {
        self.folder.append(EVENTS, &record(&scalars(&as_json(report)?, now())))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The first event of a file.
fn version(time: f64) -> Vec<u8> {
    let mut event = Message::default();
    event.double(1, time);
    event.bytes(3, b"brain.Event:2");
    event.0
}

/// The event of an epoch: a scalar for each number of its report.
fn scalars(report: &Value, time: f64) -> Vec<u8> {
    let mut summary = Message::default();
    for (tag, number) in tags(report) {
        let mut value = Message::default();
        value.bytes(1, tag.as_bytes());
        value.float(2, number as f32);
        summary.bytes(1, &value.0);
    }
    let mut event = Message::default();
    event.double(1, time);
    event.integer(2, report["epoch"].as_u64().unwrap_or(0));
    event.bytes(5, &summary.0);
    event.0
}

/// The names of scalars: those with a slash are drawn in one group.
fn tags(report: &Value) -> Vec<(String, f64)> {
    let own =
        [("train_loss", "loss/train"), ("learning_rate", "learning_rate"), ("seconds", "seconds_per_epoch")];
    let of = |(key, tag): (&str, &str)| Some((tag.to_owned(), report[key].as_f64()?));
    let of_validation = |(key, value): (&String, &Value)| {
        let tag = match key.strip_prefix("validation_")? {
            "loss" => "loss/validation".to_owned(),
            metric => format!("validation/{metric}"),
        };
        Some((tag, value.as_f64()?))
    };
    let all = report.as_object().into_iter().flatten();
    own.into_iter().filter_map(of).chain(all.filter_map(of_validation)).collect()
}

/// A message of Protocol Buffers: fields, each with its number and its kind.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn integer(&mut self, field: u8, value: u64) {
        self.0.push(field << 3);
        self.varint(value);
    }

    fn double(&mut self, field: u8, value: f64) {
        self.0.push(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u8, value: f32) {
        self.0.push(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.0.push(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    /// Seven bits a byte, the lowest first; the highest bit says whether more follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// A record of TFRecord.
fn record(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let parts =
        [&length[..], &masked(crc32c(&length)).to_le_bytes(), bytes, &masked(crc32c(bytes)).to_le_bytes()];
    parts.concat()
}

/// Checksums that are stored beside their data are rotated, so that the checksum of both is none that means something.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C, Castagnoli's polynomial, from the lowest bit on.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let bit = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
    let byte = |crc: u32, &byte: &u8| (0..8).fold(crc ^ u32::from(byte), |crc, _| bit(crc));
    !bytes.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of RFC 3720, appendix B.4.
    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
