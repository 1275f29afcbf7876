//! The output file of a command, as CSV or Parquet. It is never a file of a run or an input of the command, and it contains nothing that
//! a spreadsheet would execute.

use std::path::{Path, PathBuf};

use refrain_nn::checkpoint::write_atomic;
use serde::Serialize;

use crate::cli::TableFormat;
use crate::console::Console;
use crate::error::{Error, Result};
use crate::run;
use crate::source;

/// The name of standard output on the command line.
const STDOUT: &str = "-";

/// A place to write to.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
}

impl Output {
    /// The file to write. It must not be one of the inputs (names as on the command line) or belong to a run.
    pub fn new(path: &Path, inputs: &[&str]) -> Result<Output> {
        let refuse = |what: &str| {
            let problem = format!("--out {} is {what}", path.display());
            Err(Error::usage(problem, "choose another file; files of a run and inputs are never overwritten"))
        };
        let output = Output { path: path.to_owned() };
        if output.is_stdout() {
            return Ok(output);
        }
        let place = real(path);
        if inputs.iter().any(|input| !source::is_stdin(input) && real(input.as_ref()) == place) {
            return refuse("an input");
        }
        let name = place.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
        if name.is_some_and(|name| run::is_name_of_run(&name)) && place.parent().is_some_and(run::is_of_run) {
            return refuse("a file of a run");
        }
        Ok(output)
    }

    /// Whether this is standard output, which then must contain nothing else.
    pub fn is_stdout(&self) -> bool {
        self.path.as_os_str() == STDOUT
    }

    /// The format that its name asks for.
    pub fn format(&self) -> TableFormat {
        match self.path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet")) {
            true => TableFormat::Parquet,
            false => TableFormat::Csv,
        }
    }

    /// Writes everything or nothing.
    pub fn write(&self, console: Console, content: &[u8]) -> Result<()> {
        match self.is_stdout() {
            true => console.product(content),
            false => Ok(write_atomic(&self.path, content)?),
        }
    }

    /// Its name for messages.
    pub fn name(&self) -> String {
        match self.is_stdout() {
            true => "standard output".to_owned(),
            false => self.path.display().to_string(),
        }
    }
}

/// The path with links resolved, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let in_folder = || Some(folder.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(in_folder).unwrap_or_else(|| path.to_owned())
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    Text(String),
    /// Computed in f32; more digits would suggest more precision.
    Number(f32),
}

/// A table as the bytes of a file. `file` is its name in messages.
pub fn table(columns: &[String], rows: &[Vec<Cell>], format: TableFormat, file: &str) -> Result<Vec<u8>> {
    if format == TableFormat::Parquet {
        return parquet(columns, rows, file);
    }
    let header: Vec<Cell> = columns.iter().cloned().map(Cell::Text).collect();
    let lines = std::iter::once(&header).chain(rows).map(|cells| line(cells));
    Ok(lines.collect::<Result<Vec<_>>>()?.concat())
}

/// Refuses a format that this program was built without.
pub fn check_format(format: TableFormat) -> Result<()> {
    match format {
        TableFormat::Parquet if cfg!(not(feature = "parquet")) => Err(Error::usage(
            "this program was built without Parquet",
            "build it with `--features parquet`, or write CSV",
        )),
        _ => Ok(()),
    }
}

#[cfg(not(feature = "parquet"))]
fn parquet(_: &[String], _: &[Vec<Cell>], _: &str) -> Result<Vec<u8>> {
    check_format(TableFormat::Parquet)?;
    Ok(Vec::new())
}

/// A table as Parquet. The columns of times become time stamps, columns with a number and without any other text become numbers.
#[cfg(feature = "parquet")]
fn parquet(columns: &[String], rows: &[Vec<Cell>], file: &str) -> Result<Vec<u8>> {
    use refrain_forecast::data::Column;

    const TIMES: [&str; 3] = ["time", "ds", "cutoff"];
    let text = |cell: Option<&Cell>| match cell {
        Some(Cell::Text(text)) => text.clone(),
        Some(Cell::Number(number)) => number.to_string(),
        None => String::new(),
    };
    let column = |(at, name): (usize, &String)| {
        let cells = || rows.iter().map(move |row| row.get(at));
        let is_text = |cell: Option<&Cell>| matches!(cell, Some(Cell::Text(text)) if !text.is_empty());
        let column = if TIMES.contains(&name.as_str()) {
            Column::Times(cells().map(text).collect())
        } else if cells().any(is_text) {
            Column::Text(cells().map(text).collect())
        } else {
            let number = |cell: Option<&Cell>| match cell {
                Some(Cell::Number(number)) => Some(*number),
                _ => None,
            };
            Column::Numbers(cells().map(number).collect())
        };
        (name.clone(), column)
    };
    let all: Vec<(String, Column)> = columns.iter().enumerate().map(column).collect();
    Ok(refrain_forecast::data::parquet(&all, file)?)
}

/// A line of CSV. Spreadsheets execute a text that begins with one of `=+-@`. Such a text gets an apostrophe, so that they
/// treat it as text, and then all cells of the line are quoted.
pub fn line(cells: &[Cell]) -> Result<Vec<u8>> {
    const RUNS: [char; 10] = ['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠'];
    let runs = |cell: &Cell| matches!(cell, Cell::Text(text) if text.starts_with(RUNS));
    let quote = match cells.iter().any(runs) {
        true => csv::QuoteStyle::Always,
        false => csv::QuoteStyle::Necessary,
    };
    let mut writer = csv::WriterBuilder::new().quote_style(quote).from_writer(Vec::new());
    let texts = cells.iter().map(|cell| match cell {
        Cell::Text(text) if runs(cell) => format!("'{text}"),
        Cell::Text(text) => text.clone(),
        Cell::Number(number) => number.to_string(),
    });
    writer.write_record(texts).map_err(Error::Csv)?;
    writer.into_inner().map_err(|error| Error::Csv(error.into_error().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_spreadsheet_would_run_are_text() {
        let line = |names: &[&str]| {
            let cells: Vec<Cell> = names.iter().map(|name| Cell::Text((*name).to_owned())).collect();
            String::from_utf8(line(&cells).unwrap()).unwrap()
        };
        let number = super::line(&[Cell::Text("a".to_owned()), Cell::Number(-0.5)]).unwrap();
        assert_eq!(number, b"a,-0.5\n");
        assert_eq!(line(&["time", "a b", "c,d"]), "time,a b,\"c,d\"\n");
        assert_eq!(line(&["time", "=cmd|' /C calc'!A0"]), "\"time\",\"'=cmd|' /C calc'!A0\"\n");
        for name in ["+1", "-x", "@sum(a1)", "\tx", "\rx", "＝1"] {
            assert_eq!(line(&[name, "b"]), format!("\"'{name}\",\"b\"\n"));
        }
    }

    #[test]
    fn what_belongs_to_a_run_or_is_read_is_no_place() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("run/checkpoint")).unwrap();
        std::fs::write(at("run/checkpoint/model.safetensors"), "").unwrap();
        std::fs::write(at("a.csv"), "").unwrap();
        let data = at("a.csv").display().to_string();
        let refused = |path: &str| Output::new(&at(path), &[&data]).err().map(|error| error.to_string());
        for path in
            ["run/model.safetensors", "run/Loss.svg", "run/checkpoint/config.json", "run/../run/config.json"]
        {
            assert!(refused(path).unwrap().contains("a file of a run"), "{path}");
        }
        assert!(refused("run/../a.csv").unwrap().contains("an input"));
        for path in ["run/next.csv", "config.json", "b.csv"] {
            assert_eq!(refused(path), None, "{path}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("run/checkpoint/model.safetensors"), at("link.csv")).unwrap();
            std::os::unix::fs::symlink(at("a.csv"), at("data.csv")).unwrap();
            assert!(refused("link.csv").is_some() && refused("data.csv").is_some());
        }
    }
}
