//! File formats. A format turns the bytes of a file into rows of cells; what the cells mean is the same in every format. Rows are
//! read one at a time, so that of a file only what is kept of its rows is in memory.

mod binary;
#[cfg(feature = "parquet")]
mod columnar;

use self::binary::{Columnar, Content};
use super::dialect::{Dialect, EpochUnit, Separator};
use super::series::{table, time};
use super::text::{Text, shorten};
use crate::{Error, Result};
use refrain::Device;
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A file format.
trait Format: Sync {
    /// The endings of file names, in lower case and without a dot.
    fn endings(&self) -> &'static [&'static str];

    /// The header and the rows of a file; `file` is its name in messages.
    ///
    /// # Errors
    /// What is wrong with the file; [`Error::Empty`] if it has no header.
    fn open<'a>(&self, text: Text<'a>, dialect: &Dialect, file: &str) -> Result<Rows<'a>>;
}

/// How a file is read.
#[derive(Clone, Copy)]
pub(crate) struct Form<'a> {
    pub(crate) dialect: &'a Dialect,
    /// The name of the column of time stamps, beside the usual ones.
    pub(crate) time: &'a str,
}

/// The rows of a file after its header.
pub(crate) struct Rows<'a> {
    pub(crate) header: Vec<String>,
    pub(crate) rows: RowReader<'a>,
    /// Whether the file says the types of its columns, so that numbers and times are in one form whatever the dialect.
    pub(crate) typed: bool,
}

impl<'a> Rows<'a> {
    fn new(header: Vec<String>, source: Box<dyn Source + 'a>, typed: bool, file: &str) -> Rows<'a> {
        let most = most_rows(header.len());
        let rows = RowReader { source, row: Row::default(), read: 0, most, file: file.to_owned() };
        Rows { header, rows, typed }
    }
}

/// Where rows come from.
trait Source {
    /// Reads the next row into `row`; `false` if there is none.
    fn read(&mut self, row: &mut Row) -> Result<bool>;
}

/// Reads one row after another.
pub(crate) struct RowReader<'a> {
    source: Box<dyn Source + 'a>,
    row: Row,
    read: u64,
    /// The most rows whose numbers fit into memory.
    most: u64,
    file: String,
}

impl RowReader<'_> {
    /// The next row. There are none after an error.
    pub(crate) fn next(&mut self) -> Result<Option<&Row>> {
        if !self.source.read(&mut self.row)? {
            return Ok(None);
        }
        self.read += 1;
        match self.read > self.most {
            true => Err(Error::TooLarge { file: self.file.clone(), rows: self.most }),
            false => Ok(Some(&self.row)),
        }
    }
}

/// The most rows of so many columns whose numbers fit into the free memory of this machine.
fn most_rows(columns: usize) -> u64 {
    /// Bytes that a value needs, as 8-byte values that exist at the same time.
    const BYTES_A_VALUE: usize = 24;
    let bytes = BYTES_A_VALUE * columns.max(1);
    Device::cpu().free_bytes().map_or(u64::MAX, |free| (free / bytes) as u64)
}

/// A row: as many cells as the header has.
#[derive(Default)]
pub(crate) struct Row {
    /// The line of the file, for messages.
    pub(crate) line: u64,
    cells: ::csv::StringRecord,
    /// Cells before the first one of the header.
    skipped: usize,
}

impl Row {
    /// A cell, without blanks around it; empty if there is none.
    pub(crate) fn cell(&self, column: usize) -> &str {
        self.cells.get(column + self.skipped).unwrap_or_default().trim()
    }

    /// All cells.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &str> {
        self.cells.iter().skip(self.skipped).map(str::trim)
    }
}

/// Lists the formats of text, one line each: its file and its type. The first is also used for unknown endings.
macro_rules! formats {
    ($($module:ident::$type:ident;)*) => {
        $(mod $module;)*

        static ALL: &[&dyn Format] = &[$(&$module::$type),*];
    };
}

formats! {
    csv::Csv;
}

/// Calls `work` with the rows of a file and its name. The first bytes tell formats of columns and packed files, otherwise the
/// ending says the format.
pub(crate) fn read<T>(
    path: &Path,
    form: Form<'_>,
    work: impl FnOnce(Rows<'_>, &str) -> Result<T>,
) -> Result<T> {
    let file = path.display().to_string();
    let stream = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    match Content::of(stream, &file)? {
        Content::Columns(format) => work(checked(open_columns(path, format, &file)?, form, &file)?, &file),
        Content::Text(stream) => work(open_text(stream, form, &file)?, &file),
    }
}

/// The rows of a stream, which may be packed. An unknown ending of its name means CSV.
pub(crate) fn open<'a>(stream: impl Read + 'a, form: Form<'_>, file: &str) -> Result<Rows<'a>> {
    match Content::of(stream, file)? {
        Content::Text(stream) => open_text(stream, form, file),
        Content::Columns(format) => Err(Error::Binary {
            file: file.to_owned(),
            what: format.what(),
            fix: "pass it by its name, because it is not read from the first byte to the last",
        }),
    }
}

#[cfg(feature = "parquet")]
fn open_columns(path: &Path, format: Columnar, file: &str) -> Result<Rows<'static>> {
    columnar::open(path, format, file)
}

#[cfg(not(feature = "parquet"))]
fn open_columns(_: &Path, format: Columnar, file: &str) -> Result<Rows<'static>> {
    Err(Error::NoParquet { file: file.to_owned(), format: format.what() })
}

fn open_text<'a>(stream: Box<dyn Read + 'a>, form: Form<'_>, file: &str) -> Result<Rows<'a>> {
    let name = file.strip_suffix(".gz").unwrap_or(file);
    let ending = Path::new(name).extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    let is_named = |format: &&&dyn Format| ending.as_deref().is_some_and(|it| format.endings().contains(&it));
    let format = ALL.iter().find(is_named).unwrap_or(&ALL[0]);
    let text = Text::of(stream, form.dialect.comment, file)?;
    checked(format.open(text, form.dialect, file)?, form, file)
}

/// Refuses a header with an empty name, or with the same name twice, or that is a row. A first column without a name is the
/// time stamps, or else numbers the rows and is left out: pandas writes its index so.
fn checked<'a>(mut rows: Rows<'a>, form: Form<'_>, file: &str) -> Result<Rows<'a>> {
    let wrong = |problem, fix| Err(Error::Header { file: file.to_owned(), problem, fix });
    let header = &mut rows.header;
    if let [only] = header.as_slice() {
        let found = match form.dialect.separator {
            Separator::Auto => "no comma, semicolon, tab or bar is in it".to_owned(),
            Separator::Sign(sign) => match Separator::Auto.of_header(only.as_bytes()) {
                other if only.contains(char::from(other)) => {
                    format!(
                        "its cells look separated by {}, not {}",
                        Separator::name(other),
                        Separator::name(sign)
                    )
                }
                _ => format!("no {} is in it", Separator::name(sign)),
            },
        };
        let problem = format!("only one column, {:?}: {found}", shorten(only));
        return wrong(
            problem,
            "a series needs a time column and one or more columns of numbers; --separator says what stands between cells",
        );
    }
    let is_time = |name: &String| name == form.time || table::is_time_column(name);
    if header.first().is_some_and(|name| name.is_empty() || name == "Unnamed: 0") {
        if header.iter().skip(1).any(is_time) {
            header.remove(0);
            rows.rows.row.skipped = 1;
        } else {
            header[0] = "time".to_owned();
        }
    }
    let is_stamp = |name: &str| {
        let format = &form.dialect.date_format;
        time::parse(name).or_else(|| time::parse_as(format, name)).is_some() || EpochUnit::of(name).is_some()
    };
    if let Some(stamp) = header.iter().find(|name| is_stamp(name))
        && !header.iter().any(is_time)
    {
        let fix = "write the names of the columns into the first line (one that begins with # is left out; --comment none reads it)";
        return wrong(format!("{stamp:?} is a time stamp, so the header is missing"), fix);
    }
    let mut known = HashSet::with_capacity(header.len());
    for (index, name) in header.iter().enumerate() {
        if name.is_empty() {
            let fix = "name it, or write the file without a row index";
            return wrong(format!("column {} has no name", index + 1), fix);
        }
        if !known.insert(name) {
            return wrong(format!("two columns are named `{name}`"), "rename one of them");
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows<'a>(text: &'a str, dialect: &Dialect, time: &str) -> Result<Rows<'a>> {
        open(text.as_bytes(), Form { dialect, time }, "a.csv")
    }

    #[test]
    fn an_index_without_a_name_is_the_time_or_left_out() {
        for (text, time, expected) in [
            (",time,a\n0, 2020 ,1\n", "ds", &["time=2020", "a=1"][..]),
            ("Unnamed: 0,Tag,a\n0,2020,1\n", "Tag", &["Tag=2020", "a=1"]),
            (",a\n2020,1\n", "ds", &["time=2020", "a=1"]),
            (",a,b\n2020,1,2\n", "Tag", &["time=2020", "a=1", "b=2"]),
        ] {
            let Rows { header, mut rows, .. } = rows(text, &Dialect::default(), time).unwrap();
            let row = rows.next().unwrap().unwrap();
            let cells: Vec<String> =
                header.iter().zip(row.cells()).map(|(name, cell)| format!("{name}={cell}")).collect();
            assert_eq!(cells, expected, "{text}");
            assert_eq!(row.cell(header.len() - 1), row.cells().last().unwrap());
            assert!(rows.next().unwrap().is_none());
        }
    }

    #[test]
    fn rows_that_do_not_fit_into_memory_are_refused() {
        let mut rows = rows("time,a\n1,1\n2,2\n3,3\n", &Dialect::default(), "ds").unwrap().rows;
        rows.most = 2;
        assert_eq!([rows.next().unwrap().unwrap().line, rows.next().unwrap().unwrap().line], [2, 3]);
        let message = rows.next().err().unwrap().to_string();
        assert!(message.contains("a.csv has more than 2 rows") && message.contains("memory"), "{message}");
    }

    #[test]
    fn a_stream_of_columns_is_to_be_passed_by_name() {
        let message =
            open(&b"PAR1rest"[..], Form { dialect: &Dialect::default(), time: "ds" }, "standard input");
        let message = message.err().unwrap().to_string();
        assert!(
            message.contains("standard input looks like a Parquet file; pass it by its name"),
            "{message}"
        );
    }
}
