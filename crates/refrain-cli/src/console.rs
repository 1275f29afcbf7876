//! What the user reads: lines, tables, numbers.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Error, Result};

/// Where lines go: to standard output, or to standard error if standard output is reserved for JSON.
#[derive(Debug, Clone, Copy)]
pub struct Console {
    json: bool,
    goes_on: bool,
    silent: bool,
}

/// How much is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// Warnings, errors and results.
    Quiet,
    /// Also what is read, planned and reached.
    #[default]
    Normal,
    /// Also what the engine does.
    Verbose,
}

static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();

/// Says how much this process prints from now on.
pub fn set_verbosity(verbosity: Verbosity) {
    let _ = VERBOSITY.set(verbosity);
}

/// How much this process prints.
pub fn verbosity() -> Verbosity {
    VERBOSITY.get().copied().unwrap_or_default()
}

/// What stands before each line on standard error, of a process that is not the first of its job.
static NAME: OnceLock<String> = OnceLock::new();

/// The first error of writing to standard output in a command that continued.
static LOST: OnceLock<io::Error> = OnceLock::new();

impl Console {
    /// For a command whose result is what it prints: it ends when nobody reads its output any more.
    pub fn new(json: bool) -> Console {
        Console { json, goes_on: false, silent: false }
    }

    /// For a command whose result is files: it continues when standard output can't be written.
    pub fn of_files(json: bool) -> Console {
        Console { json, goes_on: true, silent: false }
    }

    /// Says nothing.
    pub fn silent() -> Console {
        Console { json: false, goes_on: false, silent: true }
    }

    /// The error of a command that continued although standard output could not be written.
    pub fn lost() -> Option<&'static io::Error> {
        LOST.get()
    }

    /// Prints a line for the user. With --quiet, only a command whose result is these lines does so: neither files nor JSON.
    pub fn line(self, text: impl Display) -> Result<()> {
        if self.silent || ((self.goes_on || self.json) && verbosity() == Verbosity::Quiet) {
            return Ok(());
        }
        if self.json {
            note(text);
            return Ok(());
        }
        self.written(writeln!(io::stdout(), "{text}"))
    }

    /// Writes the bytes of the command's result to standard output.
    pub fn product(self, bytes: &[u8]) -> Result<()> {
        let mut out = io::stdout();
        self.written(out.write_all(bytes).and_then(|()| out.flush()))
    }

    fn written(self, result: io::Result<()>) -> Result<()> {
        match result {
            Err(error) if self.goes_on => {
                let _ = LOST.set(error);
                Ok(())
            }
            result => result.map_err(Error::Stdout),
        }
    }

    /// Prints a line about the engine, with --verbose.
    pub fn detail(self, text: impl Display) -> Result<()> {
        match verbosity() {
            Verbosity::Verbose => self.line(text),
            _ => Ok(()),
        }
    }

    /// Prints a warning, which the user might overlook among other lines.
    pub fn warn(self, text: impl Display) -> Result<()> {
        if verbosity() == Verbosity::Quiet && !self.silent {
            note(format!("warning: {text}"));
            return Ok(());
        }
        self.line(format!("warning     {text}"))
    }

    /// Prints the result as JSON, if the user asked for it.
    pub fn result(self, result: &impl serde::Serialize) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let text = serde_json::to_string(result).map_err(Error::Json)?;
        self.product((text + "\n").as_bytes())
    }
}

/// Says from now on which of several processes prints on standard error.
pub fn call_this_process(name: String) {
    let _ = NAME.set(name);
}

/// Whether another process speaks for this one, which then prints errors only.
pub fn another_speaks() -> bool {
    NAME.get().is_some()
}

/// Prints a line on standard error. Errors are ignored.
pub fn note(text: impl Display) {
    let _ = match NAME.get() {
        None => writeln!(io::stderr(), "{text}"),
        Some(name) => writeln!(io::stderr(), "{name}: {text}"),
    };
}

/// Rows of cells under a header. The first column is aligned left, the others right.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
        cells.chain(header.get(column).copied()).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let rule = widths.iter().map(|&width| "-".repeat(width)).collect::<Vec<_>>().join("  ");
    let body = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    [line(header.to_vec()), rule].into_iter().chain(body).collect::<Vec<_>>().join("\n")
}

/// `1234567` as `1,234,567`.
pub fn count(value: impl TryInto<u64>) -> String {
    let digits = value.try_into().unwrap_or(u64::MAX).to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `2 h 05 min`, `3 min 07 s`, `12.3 s`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let whole = seconds.round() as u64;
    match whole {
        3600.. => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        100.. => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{seconds:.1} s"),
    }
}

/// Formats a number of seconds like [`duration`]. Any number is valid.
pub fn seconds(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// About four significant digits, for errors in any unit.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() || size == 0.0 => format!("{value}"),
        size if !(1e-3..1e6).contains(&size) => format!("{value:.3e}"),
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "1.5".to_owned()], vec!["longer".to_owned(), "10.25".to_owned()]];
        let expected = "name    error\n------  -----\na         1.5\nlonger  10.25";
        assert_eq!(table(&["name", "error"], &rows), expected);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(count(0usize), "0");
        assert_eq!(count(999usize), "999");
        assert_eq!(count(1_234_567usize), "1,234,567");
        assert_eq!(duration(Duration::from_millis(12_340)), "12.3 s");
        assert_eq!(duration(Duration::from_secs(187)), "3 min 07 s");
        assert_eq!(duration(Duration::from_secs(7500)), "2 h 05 min");
        assert_eq!(seconds(187.2), "3 min 07 s");
        assert!(seconds(1e308).ends_with(" min"));
        assert_eq!(number(0.37512), "0.3751");
        assert_eq!(number(1234.5), "1234.5");
        assert_eq!(number(1e-9), "1.000e-9");
        assert_eq!(number(f64::NAN), "NaN");
    }
}
