//! Cells with separators between them, in UTF-8.

use std::io::Read;

use super::{Format, Row, Rows, Source};
use crate::data::dialect::{Comment, Dialect};
use crate::data::text::{Progress, Text, error_of};
use crate::{Error, Result};

pub(super) struct Csv;

impl Format for Csv {
    fn endings(&self) -> &'static [&'static str] {
        &["csv"]
    }

    fn open<'a>(&self, text: Text<'a>, dialect: &Dialect, file: &str) -> Result<Rows<'a>> {
        let comment = match dialect.comment {
            Comment::Sign(sign) => Some(sign),
            Comment::Auto | Comment::None => None,
        };
        let separator = dialect.separator.of_header(&text.header);
        let mut builder = csv::ReaderBuilder::new();
        builder.delimiter(separator).comment(comment).buffer_capacity(1 << 16);
        let mut records = Records {
            reader: builder.from_reader(text.stream),
            file: file.to_owned(),
            lines_above: text.lines,
            progress: text.progress,
        };
        let header: Vec<String> = match records.reader.headers() {
            Ok(header) => header.iter().map(|name| name.trim().to_owned()).collect(),
            Err(error) => return Err(records.broken(error)),
        };
        if header.iter().all(String::is_empty) && header.len() < 2 {
            return Err(Error::Empty { file: file.to_owned() });
        }
        Ok(Rows::new(header, Box::new(records), false, file))
    }
}

struct Records<'a> {
    reader: csv::Reader<Box<dyn Read + 'a>>,
    file: String,
    lines_above: u64,
    progress: Progress,
}

impl Source for Records<'_> {
    fn read(&mut self, row: &mut Row) -> Result<bool> {
        match self.reader.read_record(&mut row.cells) {
            Ok(more) => {
                if let Some(position) = row.cells.position() {
                    row.line = position.line() + self.lines_above;
                    self.progress.row_at(position.byte());
                }
                Ok(more)
            }
            Err(error) => Err(self.broken(error)),
        }
    }
}

impl Records<'_> {
    fn broken(&self, error: csv::Error) -> Error {
        let file = self.file.clone();
        let line = |position: Option<csv::Position>| position.map_or(0, |at| at.line()) + self.lines_above;
        match error.into_kind() {
            csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
                Error::Ragged { file, line: line(pos), expected: expected_len, found: len }
            }
            csv::ErrorKind::Utf8 { pos, .. } => Error::NotUtf8 { file, line: line(pos) },
            csv::ErrorKind::Io(error) => error_of(error, &file),
            kind => {
                let problem = format!("not a CSV file ({kind:?})");
                Error::Header { file, problem, fix: "write it as CSV" }
            }
        }
    }
}
