//! The errors of this crate. Each says what is wrong, where, and what to do.

use std::fmt;
use std::path::PathBuf;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between a file and a forecast. Lines are counted from 1, including the header.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is larger than this machine has memory for.
    #[error(
        "{file} has more than {rows} rows, and their numbers would need more memory than is free on this machine; split the \
         file, leave out columns, or use a machine with more memory"
    )]
    TooLarge {
        /// The file.
        file: String,
        /// The most rows that fit into memory.
        rows: u64,
    },
    /// A row does not end.
    #[error(
        "{file}, line {line}: no row ends within {} MiB; close the quotes, and write one line per row",
        .limit >> 20
    )]
    LongRow {
        /// The file.
        file: String,
        /// The line that was reached.
        line: u64,
        /// The most bytes of a row.
        limit: u64,
    },
    /// The file has no bytes, or a header and no rows.
    #[error("{file} has no rows; it needs a header, a time column and one row per time stamp")]
    Empty {
        /// The file.
        file: String,
    },
    /// The file is not text in UTF-8.
    #[error(
        "{file}, line {line}: not UTF-8 text; save it as an uncompressed CSV file in UTF-8 \
         (`iconv -f latin1 -t utf-8` converts from Latin-1)"
    )]
    NotUtf8 {
        /// The file.
        file: String,
        /// The line of the first bad byte.
        line: u64,
    },
    /// The file is neither text nor a format that is read.
    #[error("{file} looks like {what}; {fix}")]
    Binary {
        /// The file.
        file: String,
        /// What it looks like.
        what: &'static str,
        /// What to do about it.
        fix: &'static str,
    },
    /// The file is Parquet or Arrow IPC, which this program was built without.
    #[error(
        "{file} is {format}, and this program was built without the feature `parquet`; build it with `--features \
         parquet`, take a released binary, or save the table as CSV"
    )]
    NoParquet {
        /// The file.
        file: String,
        /// What it is, such as `a Parquet file`.
        format: &'static str,
    },
    /// A Parquet, Arrow IPC or gzip file is broken, or cannot be written.
    #[error("{file}: not {format} that can be read or written: {problem}; write it again")]
    Columns {
        /// The file.
        file: String,
        /// What it is, such as `a Parquet file`.
        format: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A row has more or fewer fields than the header.
    #[error(
        "{file}, line {line}: {found} fields where the header has {expected}; \
         complete or remove the row (is the file truncated, or a quote not closed?)"
    )]
    Ragged {
        /// The file.
        file: String,
        /// The row's line.
        line: u64,
        /// Number of columns in the header.
        expected: u64,
        /// Number of fields in the row.
        found: u64,
    },
    /// The header does not describe a series.
    #[error("{file}, line 1: {problem}; {fix}")]
    Header {
        /// The file.
        file: String,
        /// What is wrong with the header.
        problem: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// The covariates of a file cannot be used.
    #[error("{file}: {problem}; {fix}")]
    Covariates {
        /// The file.
        file: String,
        /// What is wrong with them.
        problem: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// A forecast needs covariates of rows that are not given.
    #[error(
        "{file}: a forecast of {needed} rows of `{series}` after {last} needs their future covariates, and the file gives \
         {given}; add rows after the last one with their time stamps and future covariates, and nothing in the columns that are \
         forecast"
    )]
    FutureUnknown {
        /// The file.
        file: String,
        /// The series, or its first channel.
        series: String,
        /// The time of the last row before the forecast.
        last: String,
        /// Number of rows of the forecast.
        needed: usize,
        /// Number of these rows that are given.
        given: usize,
    },
    /// A cell of the time column is not a time stamp, or not one moment of its time zone.
    #[error("{file}, line {line}, column `{column}`: {text:?} {problem}")]
    Time {
        /// The file.
        file: String,
        /// The row's line.
        line: u64,
        /// Name of the time column.
        column: String,
        /// The cell.
        text: String,
        /// What is wrong with it, and what to do about it.
        problem: String,
    },
    /// Some time stamps name a zone and others do not.
    #[error(
        "{file}, line {line}: time stamp {text:?} {}, unlike the time stamps before it; \
         give all time stamps a zone or offset, or none of them, or name the zone of the others by --tz",
        if *.zoned { "names a zone or offset" } else { "names no zone or offset" }
    )]
    MixedZones {
        /// The file.
        file: String,
        /// The row's line.
        line: u64,
        /// The cell.
        text: String,
        /// Whether this one names a zone.
        zoned: bool,
    },
    /// Two rows have the same time stamp.
    #[error(
        "{file}, line {line}: time stamp {time}{} is already in line {first}; \
         remove duplicate rows, or pass --duplicates mean, first or last",
        of_series(series)
    )]
    Duplicate {
        /// The file.
        file: String,
        /// The line of the second appearance.
        line: u64,
        /// The line of the first appearance.
        first: u64,
        /// The time stamp.
        time: String,
        /// The series it belongs to, in the long format.
        series: Option<String>,
    },
    /// A time stamp is earlier than the one above it.
    #[error(
        "{file}, line {line}: time stamp {time}{} is earlier than {previous} above it; \
         sort the rows by time, oldest first, or pass --sort",
        of_series(series)
    )]
    Order {
        /// The file.
        file: String,
        /// The row's line.
        line: u64,
        /// The time stamp.
        time: String,
        /// The time stamp of the row before.
        previous: String,
        /// The series it belongs to, in the long format.
        series: Option<String>,
    },
    /// A time stamp does not lie on the calendar of the series.
    #[error(
        "{file}, line {line}: time stamp {time} does not lie on the calendar that {} (every {step} from the first row); \
         resample the series to {}",
        if *.given { "the model was trained on" } else { "most rows follow" },
        if *.given { "that calendar" } else { "a regular step" }
    )]
    OffGrid {
        /// The file.
        file: String,
        /// The row's line.
        line: u64,
        /// The time stamp.
        time: String,
        /// The step, the most common difference of neighbours or the one that was given.
        step: String,
        /// Whether the calendar was given, not found out.
        given: bool,
    },
    /// More rows of the calendar are missing than present.
    #[error(
        "{file}, line {line}: {missing} of {expected} rows are missing at a step of {step}; the longest gap ends at \
         this line; check its time stamp, cut the series there, or resample it"
    )]
    Sparse {
        /// The file.
        file: String,
        /// The line after the longest gap.
        line: u64,
        /// Number of rows that would have to be filled.
        missing: u64,
        /// Number of rows of the whole grid.
        expected: u64,
        /// The step.
        step: String,
    },
    /// Too few rows to infer the step.
    #[error("{file} has {rows} time stamp; a series needs at least two, to infer its step")]
    TooFewRows {
        /// The file.
        file: String,
        /// Number of different time stamps.
        rows: usize,
    },
    /// Most series or sources have no row at most time stamps.
    #[error(
        "{file}: {series} series or sources have {rows} rows at {times} different time stamps, so a table of them would be \
         nearly empty; give them common time stamps, or one file each (is the column of names the right one?)"
    )]
    Scattered {
        /// The file.
        file: String,
        /// Number of rows.
        rows: usize,
        /// Number of different names.
        series: usize,
        /// Number of different time stamps.
        times: usize,
    },
    /// There is no series or channel of a name.
    #[error(
        "{file}: there is no series or channel `{name}` among its {known}; check the spelling, or leave the name out"
    )]
    UnknownName {
        /// The file.
        file: String,
        /// The name.
        name: String,
        /// Number of series or channels.
        known: usize,
    },
    /// A row of the long format, or of a panel, does not name its series or source.
    #[error(
        "{file}, line {line}, column `{column}`: empty; write the name of the series or source of this row"
    )]
    MissingId {
        /// The file.
        file: String,
        /// The row's line.
        line: u64,
        /// The column of names.
        column: String,
    },
    /// A cell of the label column is no label.
    #[error(
        "{file}, line {line}, column `{column}`: {text:?} is not a label; write up, down or flat (or 1, -1, 0), or leave \
         the cell empty (or NA) if there is no label"
    )]
    Label {
        /// The file.
        file: String,
        /// The row's line.
        line: u64,
        /// Name of the label column.
        column: String,
        /// The cell.
        text: String,
    },
    /// A file gives no labelled panel, or the panel cannot be split into the requested folds.
    #[error("cannot make a panel of {file}: {problem}; {fix}")]
    Panel {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// No cell of a column is a number.
    #[error(
        "{file}, line {line}, column `{column}`: {text:?} is not a number, and the whole column has none; {fix}"
    )]
    TextColumn {
        /// The file.
        file: String,
        /// The line of the first text.
        line: u64,
        /// The column, or the series in the long format.
        column: String,
        /// The first cell that is neither a number nor missing.
        text: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// A cell is neither a finite number nor missing.
    #[error(
        "{file}, line {line}, column `{column}`: {text:?} is not a finite 32-bit number{}; {fix}, or leave the cell empty (or NA) \
         if the value is missing",
        more_cells(*.more)
    )]
    Number {
        /// The file.
        file: String,
        /// The row's line.
        line: u64,
        /// The column, or the series in the long format.
        column: String,
        /// The cell.
        text: String,
        /// Number of such cells further down the column.
        more: usize,
        /// What to do about it.
        fix: &'static str,
    },
    /// A channel has no value at all.
    #[error("{file}: every value of channel `{channel}` is missing; remove the channel")]
    AllMissing {
        /// The file.
        file: String,
        /// The channel.
        channel: String,
    },
    /// A channel has no observed value where values are needed.
    #[error(
        "{file}: no value of channel `{channel}` is observed {place}, and filled values are not used for training or scores; \
         cut the series, remove the channel, or choose another split"
    )]
    NothingObserved {
        /// The file.
        file: String,
        /// The channel. In a panel, a feature of a source.
        channel: String,
        /// The rows.
        place: String,
    },
    /// Each window of a part either crosses a long gap or has no observed value to forecast.
    #[error(
        "{file}: none of the {windows} windows of the {part} part can be used: {across_gaps} cross a gap longer than \
         {max_gap} rows{}, and the others have no observed value to forecast; allow longer gaps (--max-gap), use a shorter \
         context or horizon, or cut the series",
        longest.as_ref().map(|gap| format!(" (the longest are {gap})")).unwrap_or_default()
    )]
    NoWindows {
        /// The file.
        file: String,
        /// `training`, `validation` or `test`.
        part: &'static str,
        /// Number of windows.
        windows: usize,
        /// Number of those that cross a long gap.
        across_gaps: usize,
        /// The longest gap that is filled.
        max_gap: usize,
        /// The longest gap, if any is too long.
        longest: Option<String>,
    },
    /// The rows before the forecast have a long gap.
    #[error(
        "{file}: the {context} rows before the forecast have a gap longer than {max_gap} rows: {gap}; fill the gap, cut \
         the series before it, or train with a larger --max-gap"
    )]
    GapInContext {
        /// The file.
        file: String,
        /// Number of rows that the forecast is made from.
        context: usize,
        /// The longest gap that is filled.
        max_gap: usize,
        /// The gap.
        gap: String,
    },
    /// Values are missing and filling them is not allowed.
    #[error(
        "{file}: {missing}; fill them before, or allow carrying the last value forward (without --strict)"
    )]
    MissingRefused {
        /// The file.
        file: String,
        /// How many rows and values are missing, by channel.
        missing: String,
    },
    /// A channel is constant in the rows that its mean and standard deviation are measured on.
    #[error(
        "{file}: channel `{channel}` is constant ({value}) in rows {first} to {last}, on which the scaler is fitted; \
         a constant cannot be standardised, so remove the channel (or, to forecast a series, pass --layout independent or \
         --scaling none)"
    )]
    ConstantChannel {
        /// The file.
        file: String,
        /// The channel.
        channel: String,
        /// The constant.
        value: f64,
        /// First row of the range, from 0, after filling gaps.
        first: usize,
        /// Last row of the range.
        last: usize,
    },
    /// A part of the split is too short for one window.
    #[error(
        "{file}: the {part} part has {rows} rows{}, but a window of context {context} and horizon {horizon} needs \
         {needed}; use a longer series, a shorter context or horizon, or a larger {part} part",
        if *.look_back { " (with the rows before it that it looks back on)" } else { "" }
    )]
    TooShort {
        /// The file.
        file: String,
        /// `training`, `validation` or `test`.
        part: &'static str,
        /// Number of rows in the part, those that it looks back on included.
        rows: usize,
        /// Whether the part looks back on rows of the part before.
        look_back: bool,
        /// Rows before the forecast.
        context: usize,
        /// Rows of the forecast.
        horizon: usize,
        /// Rows of one window.
        needed: usize,
    },
    /// Intervals cannot be calibrated.
    #[error("{problem}; {fix}")]
    Calibration {
        /// What is wrong.
        problem: String,
        /// What to do.
        fix: &'static str,
    },
    /// The rule of the split is wrong in itself or does not suit this series.
    #[error("cannot split {file}: {problem}; {fix}")]
    Split {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// No forecast can begin at a time.
    #[error("{file}: {problem}; {fix}")]
    Origin {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// An argument of a baseline does not fit the windows.
    #[error("{baseline}: {problem}; {fix}")]
    Baseline {
        /// The baseline.
        baseline: &'static str,
        /// What is wrong.
        problem: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// The settings of the model are not possible.
    #[error("no such model: {problem}; {fix}")]
    Model {
        /// What is wrong.
        problem: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// A checkpoint of Hugging Face's transformers cannot become a model, or a model such a checkpoint.
    #[error("{}: {problem}; {fix}", path.display())]
    HuggingFace {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// What to do about it.
        fix: String,
    },
    /// A value of a setting has the wrong type.
    #[error("{name}: {problem}; `refrain train --help` lists the settings")]
    Setting {
        /// The setting.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// The model cannot be trained with these settings, or its training failed.
    #[error("cannot train: {problem}; {fix}")]
    Training {
        /// What is wrong.
        problem: String,
        /// What to do about it.
        fix: &'static str,
    },
    /// Ranks that train together have parameters of different values.
    #[error(
        "{when}, {} other parameters than rank 0, beginning with `{parameter}`; resume all ranks from the last checkpoint; if \
         it happens again, run the same build and the same library versions on GPUs of one kind, and look for a faulty GPU",
        of_ranks(ranks)
    )]
    RanksDiffer {
        /// The moment of the comparison.
        when: String,
        /// The ranks that differ from rank 0.
        ranks: Vec<usize>,
        /// The first parameter (or buffer) that differs.
        parameter: String,
    },
    /// A result is not a finite number.
    #[error(
        "{what} is {value}, which is not finite as a 32-bit number; look for values far out of range in the series, or train again \
         with a lower learning rate"
    )]
    NotFinite {
        /// The result.
        what: String,
        /// Its value.
        value: f64,
    },
    /// Too few rows to forecast from.
    #[error(
        "{file}: there are {rows} rows before the forecast, but the model needs {context}; use a longer series"
    )]
    ShortContext {
        /// The file.
        file: String,
        /// Number of rows there are.
        rows: usize,
        /// Number of rows needed.
        context: usize,
    },
    /// The engine refused an operation.
    #[error(transparent)]
    Engine(#[from] refrain::Error),
    /// A layer, an optimiser or a checkpoint refused.
    #[error(transparent)]
    Nn(#[from] refrain_nn::Error),
}

/// `unwrap` and a `main` that returns an error print this form, so it is the message.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn of_series(series: &Option<String>) -> String {
    series.as_ref().map(|name| format!(" of `{name}`")).unwrap_or_default()
}

/// `rank 1 has`, `ranks 1, 3 have`
fn of_ranks(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let (rank, has) = if ranks.len() == 1 { ("rank", "has") } else { ("ranks", "have") };
    format!("{rank} {} {has}", names.join(", "))
}

fn more_cells(more: usize) -> String {
    match more {
        0 => String::new(),
        1 => " (nor is 1 more cell below it)".to_owned(),
        more => format!(" (nor are {more} more cells below it)"),
    }
}
