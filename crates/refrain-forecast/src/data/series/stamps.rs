//! The column of time stamps.

use super::time::{self, Stamp};
use crate::data::text::shorten;
use crate::{Error, Result};
use jiff::civil::DateTime;

/// Parses the time column and checks that all its time stamps use one convention.
pub(crate) struct Stamps<'a> {
    file: &'a str,
    column: String,
    pub(crate) zoned: Option<bool>,
}

impl<'a> Stamps<'a> {
    pub(crate) fn new(file: &'a str, column: String) -> Self {
        Stamps { file, column, zoned: None }
    }

    pub(crate) fn parse(&mut self, cell: &str, line: u64) -> Result<DateTime> {
        let file = self.file.to_owned();
        let Some(Stamp { time, zoned }) = time::parse(cell) else {
            return Err(Error::Time { file, line, column: self.column.clone(), text: shorten(cell) });
        };
        if *self.zoned.get_or_insert(zoned) != zoned {
            return Err(Error::MixedZones { file, line, text: shorten(cell), zoned });
        }
        Ok(time)
    }

    pub(crate) fn check_order(
        &self,
        previous: Option<(DateTime, u64)>,
        (time, line): (DateTime, u64),
        id: Option<&str>,
    ) -> Result<()> {
        let Some((previous, first)) = previous else {
            return Ok(());
        };
        let format = |time| time::format(time, self.zoned == Some(true));
        let (file, series) = (self.file.to_owned(), id.map(str::to_owned));
        match time.cmp(&previous) {
            std::cmp::Ordering::Greater => Ok(()),
            std::cmp::Ordering::Equal => {
                Err(Error::Duplicate { file, line, first, time: format(time), series })
            }
            std::cmp::Ordering::Less => {
                Err(Error::Order { file, line, time: format(time), previous: format(previous), series })
            }
        }
    }
}
