//! Comma-separated values, in UTF-8.

use super::{Format, Row, Rows};
use crate::{Error, Result};

pub(super) struct Csv;

impl Format for Csv {
    fn endings(&self) -> &'static [&'static str] {
        &["csv"]
    }

    fn open<'a>(&self, bytes: &'a [u8], file: &'a str) -> Result<Rows<'a>> {
        separated(bytes, b',', file)
    }
}

/// Rows of cells between separators.
pub(super) fn separated<'a>(bytes: &'a [u8], separator: u8, file: &'a str) -> Result<Rows<'a>> {
    let text = std::str::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
        file: file.to_owned(),
        line: 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() as u64,
    })?;
    let mut builder = csv::ReaderBuilder::new();
    let mut reader = builder.delimiter(separator).trim(csv::Trim::All).from_reader(text.as_bytes());
    let header: Vec<String> =
        reader.headers().map_err(|error| broken(error, file))?.iter().map(str::to_owned).collect();
    if header.is_empty() || text.trim().is_empty() {
        return Err(Error::Empty { file: file.to_owned() });
    }
    let row = move |cells: csv::Result<csv::StringRecord>| {
        let cells = cells.map_err(|error| broken(error, file))?;
        let line = cells.position().map_or(0, |position| position.line());
        Ok(Row { line, cells })
    };
    Ok(Rows { header, rows: Box::new(reader.into_records().map(row)) })
}

fn broken(error: csv::Error, file: &str) -> Error {
    let file = file.to_owned();
    match error.into_kind() {
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            Error::Ragged { file, line: pos.map_or(0, |pos| pos.line()), expected: expected_len, found: len }
        }
        // The text is UTF-8 and in memory, so reading can't fail in another way.
        kind => Error::Header { file, problem: format!("not a CSV file ({kind:?})"), fix: "write it as CSV" },
    }
}
