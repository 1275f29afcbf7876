//! The cells of channels.

use crate::data::dialect::Decimal;
use crate::data::text::shorten;
use crate::{Error, Result};

/// Parses the cells of channels, and remembers which are neither numbers nor missing.
pub(crate) struct Numbers {
    columns: Vec<Column>,
    decimal: Decimal,
    /// A cell with a point in place of the comma.
    pointed: String,
}

#[derive(Default, Clone)]
struct Column {
    numbers: usize,
    /// Line and text of the first bad cell, and the number of bad cells.
    bad: Option<(u64, String, usize)>,
}

impl Numbers {
    pub(crate) fn new(columns: usize, decimal: Decimal) -> Self {
        Numbers { columns: vec![Column::default(); columns], decimal, pointed: String::new() }
    }

    pub(crate) fn add_column(&mut self) {
        self.columns.push(Column::default());
    }

    /// The value of a cell. NaN if it is missing (or bad; [`Numbers::check`] reports those).
    pub(crate) fn parse(&mut self, channel: usize, cell: &str, line: u64) -> f64 {
        if is_missing(cell) {
            return f64::NAN;
        }
        let number = self.number(cell);
        let column = &mut self.columns[channel];
        match number {
            // The engine computes in f32, so what overflows there counts as infinite.
            Some(value) if (value as f32).is_finite() => {
                column.numbers += 1;
                value
            }
            _ => {
                column.bad.get_or_insert_with(|| (line, shorten(cell), 0)).2 += 1;
                f64::NAN
            }
        }
    }

    fn number(&mut self, cell: &str) -> Option<f64> {
        match self.decimal {
            Decimal::Point => cell.parse().ok(),
            // A point would stand between thousands.
            Decimal::Comma if cell.contains('.') => None,
            Decimal::Comma => {
                self.pointed.clear();
                self.pointed.extend(cell.chars().map(|sign| if sign == ',' { '.' } else { sign }));
                self.pointed.parse().ok()
            }
        }
    }

    pub(crate) fn check<'a>(self, names: impl Iterator<Item = &'a str>, file: &str) -> Result<()> {
        for (column, name) in self.columns.into_iter().zip(names) {
            let Some((line, text, count)) = column.bad else {
                continue;
            };
            let (file, name) = (file.to_owned(), name.to_owned());
            let has_comma = self.decimal == Decimal::Point && is_with_comma(&text);
            return Err(match (column.numbers, self.decimal) {
                (0, _) => {
                    let fix = match has_comma {
                        true => "pass --decimal comma if the comma is the decimal sign",
                        false => "remove the column or encode it as numbers",
                    };
                    Error::TextColumn { file, line, column: name, text, fix }
                }
                (_, decimal) => {
                    let fix = match decimal {
                        _ if has_comma => {
                            "pass --decimal comma if the comma is the decimal sign of this file"
                        }
                        Decimal::Point => "write it with a decimal point and no thousands separator",
                        Decimal::Comma => {
                            "write it with a decimal comma, as --decimal says, and no thousands separator"
                        }
                    };
                    Error::Number { file, line, column: name, text, more: count - 1, fix }
                }
            });
        }
        Ok(())
    }
}

/// Whether a text is a number with one comma, and no point.
fn is_with_comma(text: &str) -> bool {
    let is_part = |sign: char| sign.is_ascii_digit() || ",+-".contains(sign);
    text.chars().all(is_part) && text.matches(',').count() == 1
}

/// Whether a cell says that its value is missing.
pub(crate) fn is_missing(cell: &str) -> bool {
    const SIGNS: [&str; 4] = ["", "-", "?", "."];
    const WORDS: [&str; 10] = ["na", "nan", "-nan", "null", "none", "nil", "n/a", "<na>", "#n/a", "#na"];
    // Nearly every cell is a number.
    if cell.as_bytes().first().is_some_and(u8::is_ascii_digit) {
        return false;
    }
    SIGNS.contains(&cell) || WORDS.iter().any(|word| cell.eq_ignore_ascii_case(word))
}
