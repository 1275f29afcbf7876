//! Writes tables as Parquet.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use super::series::time;
use crate::{Error, Result};

/// A column of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    /// Names.
    Text(Vec<String>),
    /// Numbers, some of which may be missing.
    Numbers(Vec<Option<f32>>),
    /// Times as this crate writes them. They become time stamps in microseconds, with the time zone UTC if they end in `Z`.
    Times(Vec<String>),
}

/// The bytes of a Parquet file with these columns, compressed with Snappy. `file` is its name in messages.
///
/// # Errors
/// [`Error::Columns`] if the columns have different lengths.
pub fn parquet(columns: &[(String, Column)], file: &str) -> Result<Vec<u8>> {
    let broken =
        |problem: String| Error::Columns { file: file.to_owned(), format: "a Parquet file", problem };
    let arrays = columns.iter().map(|(name, column)| (name.as_str(), array(column), true));
    let batch =
        RecordBatch::try_from_iter_with_nullable(arrays).map_err(|error| broken(error.to_string()))?;
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut bytes = Vec::new();
    let written =
        ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).and_then(|mut writer| {
            writer.write(&batch)?;
            writer.close()
        });
    written.map_err(|error| broken(error.to_string()))?;
    Ok(bytes)
}

fn array(column: &Column) -> ArrayRef {
    match column {
        Column::Text(cells) => Arc::new(StringArray::from_iter_values(cells)),
        Column::Numbers(cells) => Arc::new(Float32Array::from(cells.clone())),
        Column::Times(cells) => match times(cells) {
            Some((times, false)) => Arc::new(TimestampMicrosecondArray::from(times)),
            Some((times, true)) => Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC")),
            None => Arc::new(StringArray::from_iter_values(cells)),
        },
    }
}

/// Times in microseconds since 1970, and whether they are in UTC. `None` if one is no time.
fn times(cells: &[String]) -> Option<(Vec<i64>, bool)> {
    let stamps = cells.iter().map(|cell| time::parse(cell)).collect::<Option<Vec<_>>>()?;
    let microseconds = |time: DateTime| Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_microsecond());
    let all = stamps.iter().map(|stamp| microseconds(stamp.time)).collect::<Option<Vec<_>>>()?;
    Some((all, stamps.first().is_some_and(|stamp| stamp.zoned)))
}
