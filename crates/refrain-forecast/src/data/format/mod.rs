//! File formats. A format turns the bytes of a file into rows of cells; what the cells mean is the same in every format.

mod binary;
#[cfg(feature = "parquet")]
mod columnar;

use self::binary::Columnar;
use super::text::{read_file, shorten};
use crate::{Error, Result};
use std::collections::HashSet;
use std::path::Path;

/// A file format.
trait Format: Sync {
    /// The endings of file names, in lower case and without a dot.
    fn endings(&self) -> &'static [&'static str];

    /// The header and the rows of a file; `file` is its name in messages.
    ///
    /// # Errors
    /// What is wrong with the file; [`Error::Empty`] if it has no header.
    fn open<'a>(&self, bytes: &'a [u8], file: &'a str) -> Result<Rows<'a>>;
}

/// The rows of a file after its header.
pub(crate) struct Rows<'a> {
    pub(crate) header: Vec<String>,
    pub(crate) rows: Box<dyn Iterator<Item = Result<Row>> + 'a>,
}

/// A row: as many cells as the header has.
pub(crate) struct Row {
    /// The line of the file, for messages.
    pub(crate) line: u64,
    cells: ::csv::StringRecord,
}

impl Row {
    /// A cell, without blanks around it; empty if there is none.
    pub(crate) fn cell(&self, column: usize) -> &str {
        self.cells.get(column).unwrap_or_default()
    }

    /// All cells.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &str> {
        self.cells.iter()
    }
}

/// Lists the formats, one line each: its file and its type. The first is also used for unknown endings.
macro_rules! formats {
    ($($module:ident::$type:ident;)*) => {
        $(mod $module;)*

        static ALL: &[&dyn Format] = &[$(&$module::$type),*];
    };
}

formats! {
    csv::Csv;
}

/// Calls `work` with the rows of a file and its name. The first bytes tell formats of columns, otherwise the ending says the
/// format.
pub(crate) fn read<T>(path: &Path, work: impl FnOnce(Rows<'_>, &str) -> Result<T>) -> Result<T> {
    let file = path.display().to_string();
    if let Some(format) = Columnar::of_file(path)? {
        return work(checked(open_columns(path, format, &file)?, &file)?, &file);
    }
    let bytes = read_file(path)?;
    work(open(&bytes, &file)?, &file)
}

#[cfg(feature = "parquet")]
fn open_columns(path: &Path, format: Columnar, file: &str) -> Result<Rows<'static>> {
    columnar::open(path, format, file)
}

#[cfg(not(feature = "parquet"))]
fn open_columns(_: &Path, format: Columnar, file: &str) -> Result<Rows<'static>> {
    Err(Error::NoParquet { file: file.to_owned(), format: format.name() })
}

/// Opens a text in the format of its ending; an unknown ending means CSV.
fn open<'a>(bytes: &'a [u8], file: &'a str) -> Result<Rows<'a>> {
    let ending = Path::new(file).extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    let is_named = |format: &&&dyn Format| ending.as_deref().is_some_and(|it| format.endings().contains(&it));
    match ALL.iter().find(is_named) {
        Some(format) => checked(format.open(bytes, file)?, file),
        None => open_csv(bytes, file),
    }
}

/// Opens a CSV file, whatever its name.
pub(crate) fn open_csv<'a>(bytes: &'a [u8], file: &'a str) -> Result<Rows<'a>> {
    checked(csv::Csv.open(bytes, file)?, file)
}

/// Refuses a header with an empty name, or with the same name twice.
fn checked<'a>(rows: Rows<'a>, file: &str) -> Result<Rows<'a>> {
    let header = &rows.header;
    let wrong = |problem, fix| Err(Error::Header { file: file.to_owned(), problem, fix });
    if header.len() == 1 {
        let fix = match header[0].contains([';', '\t']) {
            true => "it looks separated by semicolons or tabs; write it with commas between the cells",
            false => "a series needs a time column and one or more columns of numbers, separated by commas",
        };
        return wrong(format!("only one column, {:?}", shorten(&header[0])), fix);
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
