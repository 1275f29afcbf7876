//! The cells of channels.

use crate::data::text::shorten;
use crate::{Error, Result};

/// Parses the cells of channels, and remembers which are neither numbers nor missing.
pub(crate) struct Numbers {
    columns: Vec<Column>,
}

#[derive(Default, Clone)]
struct Column {
    numbers: usize,
    /// Line and text of the first bad cell, and the number of bad cells.
    bad: Option<(u64, String, usize)>,
}

impl Numbers {
    pub(crate) fn new(columns: usize) -> Self {
        Numbers { columns: vec![Column::default(); columns] }
    }

    pub(crate) fn add_column(&mut self) {
        self.columns.push(Column::default());
    }

    /// The value of a cell. NaN if it is missing (or bad; [`Numbers::check`] reports those).
    pub(crate) fn parse(&mut self, channel: usize, cell: &str, line: u64) -> f64 {
        if is_missing(cell) {
            return f64::NAN;
        }
        let column = &mut self.columns[channel];
        match cell.parse::<f64>() {
            // The engine computes in f32, so what overflows there counts as infinite.
            Ok(value) if (value as f32).is_finite() => {
                column.numbers += 1;
                value
            }
            _ => {
                column.bad.get_or_insert_with(|| (line, shorten(cell), 0)).2 += 1;
                f64::NAN
            }
        }
    }

    pub(crate) fn check<'a>(self, names: impl Iterator<Item = &'a str>, file: &str) -> Result<()> {
        for (column, name) in self.columns.into_iter().zip(names) {
            let Some((line, text, count)) = column.bad else {
                continue;
            };
            let (file, name) = (file.to_owned(), name.to_owned());
            return Err(if column.numbers == 0 {
                Error::TextColumn { file, line, column: name, text }
            } else {
                Error::Number { file, line, column: name, text, more: count - 1 }
            });
        }
        Ok(())
    }
}

pub(crate) fn is_missing(cell: &str) -> bool {
    cell.is_empty() || ["na", "n/a", "nan", "null"].iter().any(|word| cell.eq_ignore_ascii_case(word))
}
