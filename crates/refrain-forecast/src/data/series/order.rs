//! The order of rows in time, and rows with the same time.

use super::time;
use crate::data::dialect::{Dialect, Duplicates};
use crate::{Error, Result};
use jiff::civil::DateTime;
use std::cmp::Ordering;

/// Checks or makes the order of the rows of a table, or of one id.
#[derive(Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) file: &'a str,
    pub(crate) sort: bool,
    pub(crate) duplicates: Duplicates,
}

/// A row: its time and its line.
pub(crate) type Place = (DateTime, u64);

impl<'a> Order<'a> {
    pub(crate) fn new(file: &'a str, dialect: &Dialect) -> Order<'a> {
        Order { file, sort: dialect.sort, duplicates: dialect.duplicates }
    }

    /// Refuses a row that may not follow another one, while rows are read. What only the whole table shows is left to
    /// [`Order::arrange`].
    pub(crate) fn check(&self, before: Option<Place>, row: Place, id: Option<&str>, utc: bool) -> Result<()> {
        let Some(before) = before.filter(|_| !self.sort) else { return Ok(()) };
        match row.0.cmp(&before.0) {
            Ordering::Greater => Ok(()),
            Ordering::Equal if self.duplicates != Duplicates::Refuse => Ok(()),
            Ordering::Equal => Err(self.twice(before, row, id, utc)),
            Ordering::Less => Err(Error::Order {
                file: self.file.to_owned(),
                line: row.1,
                time: time::format(row.0, utc),
                previous: time::format(before.0, utc),
                series: id.map(str::to_owned),
            }),
        }
    }

    /// Refuses two rows of one source at one time, unless the dialect joins them.
    pub(crate) fn check_same(&self, before: Place, row: Place, id: &str, utc: bool) -> Result<()> {
        match self.duplicates {
            Duplicates::Refuse => Err(self.twice(before, row, Some(id), utc)),
            _ => Ok(()),
        }
    }

    fn twice(&self, before: Place, row: Place, id: Option<&str>, utc: bool) -> Error {
        Error::Duplicate {
            file: self.file.to_owned(),
            line: row.1,
            first: before.1,
            time: time::format(row.0, utc),
            series: id.map(str::to_owned),
        }
    }

    /// Sorts rows and joins those with the same time, as the dialect says. Each of the tables has a number of columns.
    pub(crate) fn arrange(
        &self,
        times: &mut Vec<DateTime>,
        lines: &mut Vec<u64>,
        tables: &mut [(&mut Vec<f64>, usize)],
        id: Option<&str>,
        utc: bool,
    ) -> Result<()> {
        if self.sort && !times.is_sorted() {
            let mut rows: Vec<usize> = (0..times.len()).collect();
            rows.sort_by_key(|&row| times[row]);
            *times = rows.iter().map(|&row| times[row]).collect();
            *lines = rows.iter().map(|&row| lines[row]).collect();
            for (values, width) in tables.iter_mut() {
                let sorted: Vec<f64> =
                    rows.iter().flat_map(|&row| &values[row * *width..][..*width]).copied().collect();
                **values = sorted;
            }
        }
        let twice = |row: &usize| times[*row] == times[row - 1];
        let Some(row) = (1..times.len()).find(twice) else { return Ok(()) };
        if self.duplicates == Duplicates::Refuse {
            return Err(self.twice((times[row - 1], lines[row - 1]), (times[row], lines[row]), id, utc));
        }
        let ends = group_ends(times);
        for (values, width) in tables.iter_mut() {
            let joined = self.joined(&values[..], *width, &ends);
            **values = joined;
        }
        let mut begin = 0;
        let firsts = ends.iter().map(|&end| std::mem::replace(&mut begin, end)).collect::<Vec<_>>();
        *times = firsts.iter().map(|&row| times[row]).collect();
        *lines = firsts.iter().map(|&row| lines[row]).collect();
        Ok(())
    }

    /// The rows of a table with one row in place of each group of rows, which end at `ends`.
    fn joined(&self, values: &[f64], width: usize, ends: &[usize]) -> Vec<f64> {
        let mut joined = Vec::with_capacity(ends.len() * width);
        let mut begin = 0;
        for &end in ends {
            let row = |row: usize| &values[row * width..][..width];
            match self.duplicates {
                Duplicates::Last => joined.extend_from_slice(row(end - 1)),
                Duplicates::Mean if end > begin + 1 => {
                    joined.extend((0..width).map(|column| mean((begin..end).map(|at| row(at)[column]))));
                }
                _ => joined.extend_from_slice(row(begin)),
            }
            begin = end;
        }
        joined
    }
}

/// The ends of groups of equal times.
fn group_ends(times: &[DateTime]) -> Vec<usize> {
    (1..=times.len()).filter(|&end| end == times.len() || times[end] != times[end - 1]).collect()
}

/// The mean of the values that are not missing; missing (NaN) if all are.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values
        .filter(|value| !value.is_nan())
        .fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { f64::NAN } else { sum / f64::from(count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    /// Days of January and values of two columns.
    fn arranged(sort: bool, duplicates: Duplicates, days: &[i8]) -> Result<(Vec<i8>, Vec<u64>, Vec<f64>)> {
        let mut times: Vec<_> = days.iter().map(|&day| date(2020, 1, day).at(0, 0, 0, 0)).collect();
        let mut lines: Vec<u64> = (2..2 + days.len() as u64).collect();
        let mut values: Vec<f64> = lines.iter().flat_map(|&line| [line as f64, f64::NAN]).collect();
        Order { file: "a.csv", sort, duplicates }.arrange(
            &mut times,
            &mut lines,
            &mut [(&mut values, 2)],
            None,
            false,
        )?;
        assert!(values.iter().skip(1).step_by(2).all(|value| value.is_nan()));
        let days = times.iter().map(|time| time.day()).collect();
        Ok((days, lines, values.into_iter().step_by(2).collect()))
    }

    #[test]
    fn rows_are_sorted_and_those_of_one_time_joined() {
        use Duplicates::{First, Last, Mean, Refuse};
        let days = [3, 1, 3, 2, 3];
        for (rule, third) in [(Mean, (2.0 + 4.0 + 6.0) / 3.0), (First, 2.0), (Last, 6.0)] {
            let expected = (vec![1, 2, 3], vec![3, 5, 2], vec![3.0, 5.0, third]);
            assert_eq!(arranged(true, rule, &days).unwrap(), expected, "{rule:?}");
        }
        let error = arranged(true, Refuse, &days).unwrap_err();
        assert!(matches!(error, Error::Duplicate { line: 4, first: 2, .. }), "{error}");
        assert_eq!(arranged(true, Refuse, &[2, 1]).unwrap(), (vec![1, 2], vec![3, 2], vec![3.0, 2.0]));
        assert_eq!(arranged(false, Last, &[1, 1, 2]).unwrap(), (vec![1, 2], vec![2, 4], vec![3.0, 4.0]));
        assert_eq!(arranged(true, Mean, &[]).unwrap(), (vec![], vec![], vec![]));
    }

    #[test]
    fn a_mean_leaves_out_what_is_missing() {
        assert_eq!(mean([1.0, f64::NAN, 4.0].into_iter()), 2.5);
        assert!(mean([f64::NAN; 2].into_iter()).is_nan());
    }
}
