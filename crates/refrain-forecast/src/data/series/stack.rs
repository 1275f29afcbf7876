//! Independent series one after another in one table, so that a window of any of them is a range of rows.

use super::split::{self, TEST, TRAINING, VALIDATION};
use super::{Filled, LeftOut, Part, Scaler, Series, SeriesSet, Split, SplitRule, coverage};
use crate::{Error, Result};
use std::ops::Range;

/// Where the series of a set lie in one table, and the parts of each.
///
/// A window is a range of rows of the table. Between two series there are as many rows of padding as the windows need that
/// begin before a series or end after it; no model sees values of them and no loss counts them. Windows of series with future
/// covariates do not share padding: the rows after a series have covariates of their own. A grid is a table of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    places: Vec<Place>,
    rows: usize,
    /// Whether the table is a grid, all of whose windows lie inside of it.
    grid: bool,
}

/// Where a series lies.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// The row of the table that its first row is.
    first: usize,
    /// Number of its rows.
    rows: usize,
    /// Rows of padding after it that its windows reach.
    tail: usize,
    /// Its rows in which the training, the validation and the test part end.
    ends: [usize; 3],
}

/// A mark of a row of the table: what follows 0 are the parts that count it as a target.
pub(crate) const PADDING: u8 = 4;
/// It was filled, or belongs to no part.
const NOT_COUNTED: u8 = 0;

impl Stack {
    /// Number of rows of the table, including padding.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of rows of padding.
    pub fn padding(&self) -> usize {
        self.rows - self.places.iter().map(|place| place.rows).sum::<usize>()
    }

    /// The rows of a series in its training part.
    ///
    /// # Panics
    /// If there is no such series.
    pub fn training(&self, series: usize) -> Range<usize> {
        0..self.places[series].ends[0]
    }

    /// The series that a row of the table belongs to, or that was before it.
    pub fn series_at(&self, row: usize) -> usize {
        self.places.partition_point(|place| place.first <= row).saturating_sub(1)
    }

    /// The first rows of the series, ascending.
    pub(crate) fn firsts(&self) -> Vec<usize> {
        self.places.iter().map(|place| place.first).collect()
    }

    /// The rows of the table that each series has: its own, and those after them that its windows reach.
    pub(crate) fn reaches(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.places.iter().map(|place| place.first..place.first + place.rows + place.tail)
    }

    /// For each series that has windows in a part: its number, the first rows of the horizons, counted in its own rows, and the
    /// row where the part ends.
    pub fn origins<'a>(
        &'a self,
        part: &'a Part,
        context: usize,
    ) -> impl Iterator<Item = (usize, Vec<Range<usize>>, usize)> + 'a {
        let mut runs = part.runs().iter().peekable();
        std::iter::from_fn(move || {
            let series = self.series_at(runs.peek()?.start + context - 1);
            let place = &self.places[series];
            let next = self.places.get(series + 1).map_or(usize::MAX, |place| place.first);
            let mut own = Vec::new();
            while let Some(run) = runs.next_if(|run| run.start + context - 1 < next) {
                own.push(run.start + context - place.first..run.end + context - place.first);
            }
            let end = match part.mark() {
                mark @ 1..=3 if !self.grid => place.ends[usize::from(mark) - 1],
                _ => place.rows,
            };
            Some((series, own, end))
        })
    }

    /// The values of the table, scaled, in f32, and the mark of each. Rows of padding are 0.
    pub(crate) fn table(&self, set: &SeriesSet, scaler: &Scaler) -> Result<(Vec<f32>, Vec<u8>)> {
        let mut values = vec![0.0; self.rows];
        let mut marks = vec![PADDING; self.rows];
        for (number, (series, place)) in set.series().iter().zip(&self.places).enumerate() {
            let scale = scaler.of(number..number + 1);
            let rows = &mut values[place.first..place.first + place.rows];
            for (row, (to, value)) in rows.iter_mut().zip(scale.transform(series.values())).enumerate() {
                *to = value as f32;
                if !to.is_finite() {
                    let name = &series.names()[0];
                    let what = format!("the scaled value in row {row} (from 0) of `{name}`");
                    return Err(Error::NotFinite { what, value });
                }
            }
            for row in 0..place.rows {
                let part = place.ends.iter().position(|&end| row < end);
                marks[place.first + row] = match (part, series.grid().is_observed(row, 0)) {
                    (Some(part), true) => part as u8 + 1,
                    _ => NOT_COUNTED,
                };
            }
        }
        Ok((values, marks))
    }
}

impl SeriesSet {
    /// Splits each series by its own rows: its last ones are the test part, those before them the validation part. See
    /// [`Split::new`] for a grid.
    ///
    /// A series with a training part of at least a whole window has the windows that a grid of its own would have. A shorter one
    /// takes part, too: its windows begin before its first row and may end after its part, and what they have of it counts.
    /// The windows of the split are rows of the table of the [`Stack`].
    ///
    /// # Errors
    /// Those of [`Split::new`] for a grid; [`Error::Split`] if no series has a window in some part, or for an invalid rule.
    pub fn split(
        &self,
        rule: &SplitRule,
        context: usize,
        horizon: usize,
        max_gap: usize,
    ) -> Result<(Split, Stack)> {
        if !self.is_independent() {
            let split = Split::new(self.first(), rule, context, horizon, max_gap)?;
            let ends = [&split.train, &split.validation, &split.test].map(|part| part.own.end);
            let rows = self.first().rows();
            let places = vec![Place { first: 0, rows, tail: 0, ends }];
            return Ok((split, Stack { places, rows, grid: true }));
        }
        let refuse = |(problem, fix)| Error::Split { file: self.file().to_owned(), problem, fix };
        split::check_window(context, horizon).map_err(refuse)?;
        let apart = self.covariate_counts().future > 0;
        let mut table =
            Builder { context, horizon, max_gap, apart, rows: 0, tail: 0, parts: Default::default() };
        let mut places = Vec::with_capacity(self.series().len());
        for series in self.series() {
            let [train, validation, test] =
                rule.lengths_of_short(series.rows(), self.step()).map_err(refuse)?;
            places.push(table.add(series, [train, train + validation, train + validation + test]));
        }
        let rows = table.rows + table.tail;
        let [train, validation, test] = table.parts;
        let part = |draft: Draft, name: &str, mark: u8| match draft.windows.is_empty() {
            true => Err(refuse(draft.nothing(name, max_gap))),
            false => Ok(Part::of_stack(0..rows, draft.windows, draft.left_out, draft.partial, mark)),
        };
        let train = part(train, TRAINING, 1)?;
        let (validation, test) = (part(validation, VALIDATION, 2)?, part(test, TEST, 3)?);
        Ok((Split { context, horizon, train, validation, test }, Stack { places, rows, grid: false }))
    }

    /// Takes a part to calibrate intervals on away from the validation part of a split: of a grid its second half
    /// ([`Split::hold_out_calibration`]), of independent series every second one.
    ///
    /// # Errors
    /// [`Error::Split`] if a half has no window.
    pub fn hold_out_calibration(&self, split: &mut Split, stack: &Stack) -> Result<Part> {
        if !self.is_independent() {
            return split.hold_out_calibration(self.first());
        }
        let (mut kept, mut taken) = (Vec::new(), Vec::new());
        let mut last = None;
        for run in split.validation.runs() {
            let series = stack.series_at(run.start + split.context - 1);
            let number = last.map_or(0, |(before, number)| number + usize::from(series != before));
            last = Some((series, number));
            if number % 2 == 0 { kept.push(run.clone()) } else { taken.push(run.clone()) }
        }
        if taken.is_empty() {
            let problem = "only one series has windows in the validation part".to_owned();
            let fix = "use more series, or a longer validation part by --split, or leave --calibrate out";
            return Err(Error::Split { file: self.file().to_owned(), problem, fix });
        }
        let calibration = split.validation.with_runs(taken);
        split.validation = split.validation.with_runs(kept);
        Ok(calibration)
    }

    /// How much of each channel was filled in each part. Parts without any are left out.
    pub fn filled(&self, split: &Split, stack: &Stack) -> Vec<Filled> {
        if !self.is_independent() {
            return split.filled(self.first());
        }
        let of_series = |(series, place): (&Series, &Place)| {
            let [train, validation, test] = place.ends;
            let parts = [(TRAINING, 0..train), (VALIDATION, train..validation), (TEST, validation..test)];
            coverage::filled(series.grid(), series.names(), parts)
        };
        self.series().iter().zip(&stack.places).flat_map(of_series).collect()
    }
}

/// The table so far.
struct Builder {
    context: usize,
    horizon: usize,
    max_gap: usize,
    /// Whether the padding after a series is not that before the next one.
    apart: bool,
    rows: usize,
    /// Rows of padding that the last series needs after it.
    tail: usize,
    parts: [Draft; 3],
}

/// The windows of a part so far.
#[derive(Default)]
struct Draft {
    windows: Vec<Range<usize>>,
    left_out: LeftOut,
    /// Whether some value that a window forecasts does not count.
    partial: bool,
}

impl Draft {
    fn nothing(&self, name: &str, max_gap: usize) -> (String, &'static str) {
        let problem = match self.left_out.total() {
            0 => format!("no series has rows for a window of the {name} part"),
            left => format!(
                "none of the {left} windows of the {name} part can be used: {} cross a gap longer than {max_gap} rows, and \
                 the others have no observed value to forecast",
                self.left_out.across_gaps
            ),
        };
        (problem, "use longer series, another --split, a shorter horizon, or allow longer gaps by --max-gap")
    }
}

impl Builder {
    /// Adds a series whose parts end in these rows.
    fn add(&mut self, series: &Series, ends: [usize; 3]) -> Place {
        let (rows, [train, validation, test]) = (series.rows(), ends);
        let origins = [self.training(train), self.later(train, validation), self.later(validation, test)];
        // What no part trains on has no scale, and what is before the first origin no context.
        let origins = if train == 0 { [const { 1..1 }; 3] } else { origins };
        let reach = |origins: &Range<usize>| match origins.is_empty() {
            true => [0, 0],
            false => [
                self.context.saturating_sub(origins.start),
                (origins.end - 1 + self.horizon).saturating_sub(rows),
            ],
        };
        let reaches = origins.each_ref().map(reach);
        let most = |side: usize| reaches.iter().map(|reach| reach[side]).max().unwrap_or(0);
        let between = if self.apart { self.tail + most(0) } else { self.tail.max(most(0)) };
        let first = self.rows + between;
        let gaps = Gaps::of(series, self.max_gap);
        for ((draft, origins), end) in self.parts.iter_mut().zip(origins).zip(ends) {
            if origins.is_empty() {
                continue;
            }
            // All of these are rows of the table, since the padding before the series is long enough.
            let start = |origin: usize| first + origin - self.context;
            let Some(gaps) = &gaps else {
                draft.partial |= origins.end - 1 + self.horizon > end;
                draft.windows.push(start(origins.start)..start(origins.end));
                continue;
            };
            let from = draft.windows.len();
            for origin in origins {
                let (begin, until) = (origin.saturating_sub(self.context), (origin + self.horizon).min(end));
                if gaps.blocked(begin..until) {
                    draft.left_out.across_gaps += 1;
                } else if gaps.observed(origin..until) == 0 {
                    draft.left_out.unobserved += 1;
                } else {
                    draft.partial |= gaps.observed(origin..until) < self.horizon;
                    let start = start(origin);
                    match draft.windows[from..].last_mut() {
                        Some(run) if run.end == start => run.end += 1,
                        _ => draft.windows.push(start..start + 1),
                    }
                }
            }
        }
        self.rows = first + rows;
        self.tail = most(1);
        Place { first, rows, tail: self.tail, ends }
    }

    /// The rows of a training part in which a horizon may begin.
    fn training(&self, end: usize) -> Range<usize> {
        match end.checked_sub(self.horizon) {
            Some(last) if last >= self.context => self.context..last + 1,
            Some(last) if last >= 1 => 1..last + 1,
            _ if end > 1 => 1..2,
            _ => 1..1,
        }
    }

    /// The same of a later part.
    fn later(&self, begin: usize, end: usize) -> Range<usize> {
        match end > begin {
            true => begin..end.saturating_sub(self.horizon).max(begin) + 1,
            false => begin..begin,
        }
    }
}

/// Counts of rows before each row.
struct Gaps {
    blocked: Vec<u32>,
    observed: Vec<u32>,
}

impl Gaps {
    /// Those of a series of one channel; `None` if every value was observed.
    fn of(series: &Series, max_gap: usize) -> Option<Gaps> {
        let grid = series.grid();
        grid.filled()?;
        let mut inside = vec![false; grid.rows()];
        grid.gaps_to_avoid(max_gap).into_iter().for_each(|gap| inside[gap.rows].fill(true));
        let counts = |of: &dyn Fn(usize) -> bool| {
            let sums = (0..grid.rows()).scan(0_u32, |count, row| {
                *count += u32::from(of(row));
                Some(*count)
            });
            std::iter::once(0).chain(sums).collect()
        };
        Some(Gaps { blocked: counts(&|row| inside[row]), observed: counts(&|row| grid.is_observed(row, 0)) })
    }

    fn blocked(&self, rows: Range<usize>) -> bool {
        self.blocked[rows.end] > self.blocked[rows.start]
    }

    fn observed(&self, rows: Range<usize>) -> usize {
        (self.observed[rows.end] - self.observed[rows.start]) as usize
    }
}
