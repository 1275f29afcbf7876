//! Parquet and Arrow IPC: rows of cells from typed columns, a batch at a time.
//!
//! A cell becomes the text that it would be in a CSV file: the shortest that is read back as the same number. So a table gives
//! the same bits in every format.

use std::fmt::Write;
use std::fs::File;
use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Decimal128Type, DecimalType, Float16Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchReader};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, DataType, Schema, TimeUnit};
use jiff::tz::TimeZone;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::binary::Columnar;
use super::{Row, Rows, Source, most_rows};
use crate::{Error, Result};

/// The rows of a batch that is read from a Parquet file.
const ROWS_AT_ONCE: usize = 8192;

/// The header and the rows of a file.
pub(super) fn open(path: &Path, format: Columnar, file: &str) -> Result<Rows<'static>> {
    let handle = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let name = file.to_owned();
    let broken = |problem: String| Error::Columns { file: file.to_owned(), format: format.what(), problem };
    let batches = guarded(|| batches(handle, format)).map_err(broken)?;
    let schema = batches.reader.schema();
    if let Some(rows) = batches.rows {
        check_size(rows, schema.fields().len(), file)?;
    }
    let columns = columns(&schema, file)?;
    let header = columns.iter().map(|(_, name)| name.clone()).collect();
    let places = columns.into_iter().map(|(place, _)| place).collect();
    let cells = Cells { reader: batches.reader, places, batch: None, line: 1, format, file: name };
    Ok(Rows::new(header, Box::new(cells), true, file))
}

/// What reads a file.
struct Batches {
    reader: Box<dyn RecordBatchReader>,
    /// The number of rows, if the file says it.
    rows: Option<u64>,
}

fn batches(handle: File, format: Columnar) -> Result<Batches, String> {
    let text = |error: ArrowError| error.to_string();
    Ok(match format {
        Columnar::Parquet => {
            let builder =
                ParquetRecordBatchReaderBuilder::try_new(handle).map_err(|error| error.to_string())?;
            let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).ok();
            let reader = builder.with_batch_size(ROWS_AT_ONCE).build().map_err(|error| error.to_string())?;
            Batches { reader: Box::new(reader), rows }
        }
        Columnar::ArrowFile => {
            let reader = FileReader::try_new(BufReader::new(handle), None).map_err(text)?;
            Batches { reader: Box::new(reader), rows: None }
        }
        Columnar::ArrowStream => {
            let reader = StreamReader::try_new(BufReader::new(handle), None).map_err(text)?;
            Batches { reader: Box::new(reader), rows: None }
        }
    })
}

/// Calls a reader. A broken file may make it panic, which is an error here, as any other.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let quiet = catch_unwind(AssertUnwindSafe(read));
    quiet.unwrap_or_else(|_| Err("its content contradicts itself".to_owned()))
}

/// Refuses a table whose numbers do not fit into memory, before any of them is read.
fn check_size(rows: u64, columns: usize, file: &str) -> Result<()> {
    let most = most_rows(columns);
    match rows > most {
        true => Err(Error::TooLarge { file: file.to_owned(), rows: most }),
        false => Ok(()),
    }
}

/// The column in which pandas keeps an index without a name.
const INDEX: &str = "__index_level_0__";

/// The places and names of the columns that are read. An index of time stamps without a name is `time`; other indices without
/// a name number the rows, and are left out.
fn columns(schema: &Schema, file: &str) -> Result<Vec<(usize, String)>> {
    let mut columns = Vec::new();
    for (place, field) in schema.fields().iter().enumerate() {
        let (name, of) = (field.name().trim(), field.data_type());
        let is_time = matches!(of, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64);
        if name == INDEX && !is_time {
            continue;
        }
        if !is_read(of) {
            let fix = "leave the column out, or make it numbers, times or text";
            let problem = format!("the column `{name}` has the type {of}");
            return Err(Error::Header { file: file.to_owned(), problem, fix });
        }
        columns.push((place, if name == INDEX { "time".to_owned() } else { name.to_owned() }));
    }
    match columns.is_empty() {
        true => Err(Error::Empty { file: file.to_owned() }),
        false => Ok(columns),
    }
}

/// Whether values of a type are cells.
fn is_read(of: &DataType) -> bool {
    use DataType::*;
    match of {
        Null | Boolean | Utf8 | LargeUtf8 | Utf8View | Timestamp(..) | Date32 | Date64 | Decimal128(..) => {
            true
        }
        Dictionary(_, values) => !matches!(**values, Dictionary(..)) && is_read(values),
        of => of.is_integer() || of.is_floating(),
    }
}

/// The rows of a file, from one batch after another.
struct Cells {
    reader: Box<dyn RecordBatchReader>,
    places: Vec<usize>,
    batch: Option<Batch>,
    /// The line of the row before in a CSV file of the same table.
    line: u64,
    format: Columnar,
    file: String,
}

struct Batch {
    columns: Vec<Column>,
    rows: usize,
    at: usize,
    text: String,
}

/// A column of a batch. The values of a dictionary stand once, and each row has the place of its own.
struct Column {
    values: ArrayRef,
    keys: Option<(ArrayRef, Vec<usize>)>,
}

impl Source for Cells {
    fn read(&mut self, row: &mut Row) -> Result<bool> {
        match guarded(|| self.next_row(row)) {
            Ok(more) => Ok(more),
            Err(problem) => {
                // Nothing is read after an error.
                self.batch = None;
                Err(Error::Columns { file: self.file.clone(), format: self.format.what(), problem })
            }
        }
    }
}

impl Cells {
    /// Reads and decodes the next row. Arrays with broken content may panic in both.
    fn next_row(&mut self, row: &mut Row) -> Result<bool, String> {
        loop {
            if let Some(batch) = self.batch.as_mut().filter(|batch| batch.at < batch.rows) {
                self.line += 1;
                row.line = self.line;
                batch.read(&mut row.cells);
                return Ok(true);
            }
            match self.reader.next().transpose().map_err(|error| error.to_string())? {
                None => return Ok(false),
                Some(batch) => self.batch = Some(Batch::of(&batch, &self.places)),
            }
        }
    }
}

impl Batch {
    fn of(batch: &RecordBatch, places: &[usize]) -> Batch {
        let columns = places.iter().map(|&place| Column::of(batch.column(place))).collect();
        Batch { columns, rows: batch.num_rows(), at: 0, text: String::new() }
    }

    fn read(&mut self, cells: &mut ::csv::StringRecord) {
        cells.clear();
        for column in &self.columns {
            self.text.clear();
            column.write(self.at, &mut self.text);
            cells.push_field(&self.text);
        }
        self.at += 1;
    }
}

impl Column {
    fn of(array: &ArrayRef) -> Column {
        match array.as_any_dictionary_opt() {
            None => Column { values: array.clone(), keys: None },
            Some(dictionary) => {
                let values = dictionary.values().clone();
                // Without values, all rows are missing.
                let keys = if values.is_empty() { Vec::new() } else { dictionary.normalized_keys() };
                Column { values, keys: Some((array.clone(), keys)) }
            }
        }
    }

    fn write(&self, row: usize, text: &mut String) {
        match &self.keys {
            None => write(&*self.values, row, text),
            Some((array, _)) if array.is_null(row) => {}
            Some((_, keys)) => {
                if let Some(&key) = keys.get(row) {
                    write(&*self.values, key, text);
                }
            }
        }
    }
}

/// Writes a value as the text of a cell; nothing if it is missing.
fn write(array: &dyn Array, at: usize, text: &mut String) {
    macro_rules! number {
        ($of:ty) => {
            write!(text, "{}", array.as_primitive::<$of>().value(at))
        };
    }
    if array.is_null(at) {
        return;
    }
    // Writing to a String cannot fail.
    let _ = match array.data_type() {
        DataType::Boolean => text.write_char(if array.as_boolean().value(at) { '1' } else { '0' }),
        DataType::Utf8 => text.write_str(array.as_string::<i32>().value(at)),
        DataType::LargeUtf8 => text.write_str(array.as_string::<i64>().value(at)),
        DataType::Utf8View => text.write_str(array.as_string_view().value(at)),
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type),
        DataType::UInt16 => number!(UInt16Type),
        DataType::UInt32 => number!(UInt32Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float16 => write!(text, "{}", array.as_primitive::<Float16Type>().value(at).to_f32()),
        DataType::Float32 => number!(Float32Type),
        DataType::Float64 => number!(Float64Type),
        DataType::Decimal128(precision, scale) => {
            let value = array.as_primitive::<Decimal128Type>().value(at);
            text.write_str(&Decimal128Type::format_decimal(value, *precision, *scale))
        }
        DataType::Date32 => write_date(array.as_primitive::<Date32Type>().value(at), text),
        DataType::Date64 => {
            write_time(array.as_primitive::<Date64Type>().value(at), MILLISECOND, false, text)
        }
        DataType::Timestamp(unit, zone) => {
            write_time(ticks(array, at, *unit), length(*unit), zone.is_some(), text)
        }
        _ => Ok(()),
    };
}

const SECOND: i128 = 1_000_000_000;
const MILLISECOND: i128 = SECOND / 1000;
const DAY: i128 = 86_400 * SECOND;

/// The nanoseconds of a unit.
fn length(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => SECOND,
        TimeUnit::Millisecond => MILLISECOND,
        TimeUnit::Microsecond => 1000,
        TimeUnit::Nanosecond => 1,
    }
}

fn ticks(array: &dyn Array, at: usize, unit: TimeUnit) -> i64 {
    use arrow_array::types as of;
    match unit {
        TimeUnit::Second => array.as_primitive::<of::TimestampSecondType>().value(at),
        TimeUnit::Millisecond => array.as_primitive::<of::TimestampMillisecondType>().value(at),
        TimeUnit::Microsecond => array.as_primitive::<of::TimestampMicrosecondType>().value(at),
        TimeUnit::Nanosecond => array.as_primitive::<of::TimestampNanosecondType>().value(at),
    }
}

/// Writes a day since 1970 without a time of day. One beyond the year 9999 is written as its number, which is no time.
fn write_date(day: i32, text: &mut String) -> std::fmt::Result {
    match jiff::Timestamp::from_nanosecond(i128::from(day) * DAY) {
        Ok(time) => write!(text, "{}", time.to_zoned(TimeZone::UTC).date()),
        Err(_) => write!(text, "{day}"),
    }
}

/// Writes a time as ISO 8601, in UTC if it has a zone. One beyond the year 9999 is written as its number, which is no time.
fn write_time(ticks: i64, length: i128, zoned: bool, text: &mut String) -> std::fmt::Result {
    match jiff::Timestamp::from_nanosecond(i128::from(ticks) * length) {
        Ok(time) if zoned => write!(text, "{time}"),
        Ok(time) => write!(text, "{}", time.to_zoned(TimeZone::UTC).datetime()),
        Err(_) => write!(text, "{ticks}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A reader whose batches have fewer columns than its schema says, as no sound file has.
    struct Broken(Arc<Schema>, Option<RecordBatch>);

    impl Iterator for Broken {
        type Item = Result<RecordBatch, ArrowError>;

        fn next(&mut self) -> Option<Self::Item> {
            self.1.take().map(Ok)
        }
    }

    impl RecordBatchReader for Broken {
        fn schema(&self) -> Arc<Schema> {
            self.0.clone()
        }
    }

    #[test]
    fn a_date_has_no_time_of_day() {
        let mut text = String::new();
        write(&arrow_array::Date32Array::from(vec![19_782]), 0, &mut text);
        assert_eq!(text, "2024-02-29");
    }

    #[test]
    fn a_batch_that_cannot_be_decoded_is_an_error() {
        let values: ArrayRef = Arc::new(arrow_array::Int64Array::from(vec![1, 2]));
        let batch = RecordBatch::try_from_iter([("time", values)]).unwrap();
        let reader = Box::new(Broken(batch.schema(), Some(batch)));
        let (format, file) = (Columnar::ArrowStream, "a.arrows".to_owned());
        let mut cells = Cells { reader, places: vec![0, 1], batch: None, line: 1, format, file };
        let mut row = Row::default();
        let message = cells.read(&mut row).unwrap_err().to_string();
        assert!(message.contains("a.arrows") && message.contains("contradicts itself"), "{message}");
        assert!(!cells.read(&mut row).unwrap(), "nothing follows an error");
    }
}
