//! The series or panel of a run: the bundled one, a file, or standard input.

use std::io::{IsTerminal, StdinLock, stdin};
use std::path::Path;

use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::data::panel::{Class, Panel, PanelOptions, PanelReport};
use refrain_forecast::data::series::{CovariateCounts, Layout, ReadOptions, ReadReport, SeriesSet};
use refrain_forecast::data::{NYC_WEATHER, nyc_weather, nyc_weather_unit};

use crate::console::{Console, count};
use crate::error::{Error, Result};

/// Reads series by their name on the command line.
pub fn read(source: &str, options: &ReadOptions, layout: Layout) -> Result<(SeriesSet, ReadReport)> {
    if source == NYC_WEATHER {
        let options = &ReadOptions { dialect: Dialect::default(), ..options.clone() };
        return Ok(SeriesSet::from_csv(nyc_weather(), NYC_WEATHER, options, layout)?);
    }
    if is_stdin(source) {
        return Ok(SeriesSet::from_csv(open_stdin()?, STDIN_FILE, options, layout)?);
    }
    check_name(source)?;
    Ok(SeriesSet::read(Path::new(source), options, layout)?)
}

/// Reads a panel by its name on the command line.
pub fn read_panel(source: &str, options: &PanelOptions) -> Result<(Panel, PanelReport)> {
    if source == NYC_WEATHER {
        return Ok(Panel::nyc_weather(&options.rule, options.max_gap)?);
    }
    if is_stdin(source) {
        return Ok(Panel::from_csv(open_stdin()?, STDIN_FILE, options)?);
    }
    check_name(source)?;
    Ok(Panel::read(Path::new(source), options)?)
}

/// Reads a panel to classify by a model that was trained on some features; a file needs no labels.
pub fn read_unlabelled_panel(
    source: &str,
    options: &PanelOptions,
    features: &[String],
) -> Result<(Panel, PanelReport)> {
    if source == NYC_WEATHER {
        return read_panel(source, options);
    }
    if is_stdin(source) {
        return Ok(Panel::from_csv_unlabelled(open_stdin()?, STDIN_FILE, options, features)?);
    }
    check_name(source)?;
    Ok(Panel::read_unlabelled(Path::new(source), options, features)?)
}

/// The name of standard input in messages.
const STDIN_FILE: &str = "standard input";

/// Whether a name on the command line means standard input.
pub fn is_stdin(source: &str) -> bool {
    source == "-"
}

/// A name that stays valid when the working folder changes: the name of a file becomes an absolute path.
pub fn lasting(source: &str) -> String {
    if source == NYC_WEATHER || is_stdin(source) {
        return source.to_owned();
    }
    std::path::absolute(source).map_or_else(|_| source.to_owned(), |path| path.display().to_string())
}

fn open_stdin() -> Result<StdinLock<'static>> {
    if stdin().is_terminal() {
        return Err(Error::usage(
            "the data is standard input, but that is a terminal",
            "redirect a file, as in `refrain ... --data - < series.csv`, or pass its name with --data",
        ));
    }
    Ok(stdin().lock())
}

/// Refuses a name that looks like bundled data but is not.
fn check_name(source: &str) -> Result<()> {
    let path = Path::new(source);
    if !path.exists() && path.extension().is_none() && !source.contains(['/', '\\']) {
        return Err(Error::usage(
            format!("there is no bundled series and no file {source:?}"),
            format!("pass {NYC_WEATHER} or the path of a CSV file"),
        ));
    }
    Ok(())
}

/// The name of a run on this series.
pub fn stem(source: &str) -> String {
    if is_stdin(source) {
        return "stdin".to_owned();
    }
    let stem = Path::new(source).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.filter(|stem| !stem.is_empty()).unwrap_or_else(|| "run".to_owned())
}

/// The unit of a channel, if known.
pub fn unit(source: &str, channel: &str) -> Option<&'static str> {
    (source == NYC_WEATHER).then(|| nyc_weather_unit(channel)).flatten()
}

/// Prints what was read.
pub fn describe(console: Console, set: &SeriesSet, report: &ReadReport) -> Result<()> {
    let (series, time) = (set.first(), set.first().time());
    let content = match set.is_independent() {
        true => {
            let lengths = || set.series().iter().map(|series| series.rows());
            format!(
                "{} independent series of {} to {} rows, {} in all, every {}",
                count(set.series().len()),
                count(lengths().min().unwrap_or(0)),
                count(lengths().max().unwrap_or(0)),
                count(set.rows()),
                time.step(),
            )
        }
        false => format!(
            "{} rows of {} channels, every {} from {} to {}",
            count(series.rows()),
            series.channels(),
            time.step(),
            time.format(0),
            time.format(series.rows() - 1),
        ),
    };
    console.line(format!("series      {}: {content}", set.file()))?;
    let CovariateCounts { past, future, statics } = set.covariate_counts();
    if past + future + statics > 0 {
        let ahead = match series.covariates().rows_ahead() {
            Some(rows) => format!(" (given for {} rows after the last one)", count(rows)),
            None => String::new(),
        };
        console.line(format!("covariates  {past} past, {future} future{ahead}, {statics} static"))?;
    }
    if report.is_complete() {
        return console.line("gaps        none");
    }
    console.line(format!("gaps        {report}; filled with the last value before, as inputs only"))
}

/// Prints what panel was read.
pub fn describe_panel(console: Console, panel: &Panel, report: &PanelReport) -> Result<()> {
    console.line(format!(
        "panel       {}: {} time steps of {} sources, {} features each, from {} to {}",
        panel.file(),
        count(panel.rows()),
        panel.sources().len(),
        panel.features().len(),
        panel.time(0),
        panel.time(panel.rows() - 1),
    ))?;
    let mut counts = [0_usize; Class::ALL.len()];
    let labels = (0..panel.rows()).flat_map(|row| panel.labels(row)).flatten();
    labels.for_each(|class| counts[class.index()] += 1);
    if counts == [0; Class::ALL.len()] {
        return console.line(format!("missing     {report}"));
    }
    let counts = Class::ALL.map(|class| format!("{} {}", count(counts[class.index()]), class.name()));
    let origin = match panel.looks_ahead() {
        0 => "from the column of the file".to_owned(),
        rows => format!("made from prices {rows} rows ahead"),
    };
    console.line(format!("labels      {origin}: {}", counts.join(", ")))?;
    console.line(format!("missing     {report}"))
}
