//! CSV files of series and panels.

use refrain::Device;
use refrain_forecast::Error;
use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::data::panel::{Change, FoldRule, LabelRule, Panel, PanelOptions};
use refrain_forecast::data::series::{Gap, TimeAxis};
use refrain_forecast::data::series::{
    Layout, MaxGap, Part, ReadOptions, Scaler, Scaling, Series, SeriesSet, Split, SplitRule, TimeStep,
    Weekdays,
};
use refrain_forecast::data::windows::Windows;

use super::{message, text};
use crate::random::Random;

/// Hourly rows of two channels.
pub fn series(rows: usize) -> String {
    table("time,a,b", rows, |row| format!("2020-01-{:02} {:02}:00:00", 1 + row / 24, row % 24))
}

fn table(header: &str, rows: usize, time: impl Fn(usize) -> String) -> String {
    let value = |row: usize, by: usize| ((row * by + row * row) % 37) as f64 / 4.0 - 3.0;
    let row = |row| format!("{},{},{}\n", time(row), value(row, 7), value(row, 11));
    (0..rows).fold(format!("{header}\n"), |all, at| all + &row(at))
}

fn panel(rows: usize, header: &str) -> String {
    let row = |at: usize| {
        let (day, name) = (at / 3, ["A", "B", "C"][at % 3]);
        let (feature, last) = ((at * 7 % 13) as f64 / 3.0, 10 + at * at % 23);
        let last = if header.ends_with("label") {
            ["up", "down", "flat"][last % 3].to_owned()
        } else {
            last.to_string()
        };
        format!("2020-{:02}-{:02},{name},{feature},{last}\n", 1 + day / 28 % 12, 1 + day % 28)
    };
    (0..rows).fold(format!("{header}\n"), |all, at| all + &row(at))
}

/// Labelled, for those who need a whole one.
pub fn labelled() -> String {
    panel(240, "time,source,volume,label")
}

/// A table of any kind and size, with some changes.
pub fn random(random: &mut Random) -> Vec<u8> {
    let rows = [0, 1, 2, 3, 10, 60, 100][random.below(7)];
    let date = |day: usize| format!("{:04}-{:02}-{:02}", 2020 + day / 336, 1 + day / 28 % 12, 1 + day % 28);
    let whole = match random.below(12) {
        0 => series(rows),
        1 => table("ds,x,y", rows, date),
        2 => {
            table("date,+1,=b", rows, |row| TimeAxis::new(start(), TimeStep::BUSINESS_DAYS, true).format(row))
        }
        3 => table("Time,a,b", rows, |row| TimeAxis::new(start(), TimeStep::MonthEnds(1), false).format(row)),
        4 => table("timestamp,a,b", rows, |row| {
            TimeAxis::new(start(), TimeStep::Nanoseconds(1_000_000), true).format(row)
        }),
        5 => long(rows),
        6 => panel(rows * 3, "time,source,volume,price"),
        7 => panel(rows * 3, "date,symbol,volume,label"),
        8 => ragged(random),
        9 => local(rows),
        10 => since_1970(rows),
        _ => by_grammar(random),
    };
    text::changed(&whole, random)
}

fn start() -> jiff::civil::DateTime {
    jiff::civil::date(2020, 1, 31).at(0, 0, 0, 0)
}

fn long(rows: usize) -> String {
    let row = |at: usize| format!("{},2020-01-{:02},{}\n", ["a", "b"][at % 2], 1 + at / 2 % 28, at * at % 17);
    (0..rows.min(56)).fold("unique_id,ds,y\n".to_owned(), |all, at| all + &row(at))
}

/// Ids of different starts and lengths, with some rows missing.
fn ragged(random: &mut Random) -> String {
    let axis = TimeAxis::new(start(), TimeStep::seconds(86400), false);
    let mut text = "unique_id,ds,y\n".to_owned();
    for id in 0..1 + random.below(6) {
        let (first, rows) = (random.below(40), random.below(90));
        for row in (first..first + rows).filter(|_| !random.once_in(20)).collect::<Vec<_>>() {
            text += &format!("s{id},{},{}\n", axis.format(row), row * row % 17);
        }
    }
    text
}

/// Rows of cells, some of which make no sense, on a calendar that most keep to.
fn by_grammar(random: &mut Random) -> String {
    let steps = [
        TimeStep::seconds(3600),
        TimeStep::seconds(86400),
        TimeStep::Nanoseconds(1),
        TimeStep::Months(3),
        TimeStep::MonthEnds(12),
        TimeStep::BUSINESS_DAYS,
        Weekdays::new([true, false, true, false, false, true, false])
            .map_or(TimeStep::Months(1), TimeStep::Weekdays),
    ];
    let step = steps[random.below(steps.len())];
    let axis = TimeAxis::new(start(), step, random.once_in(2));
    let (columns, missing) = (1 + random.below(4), 1 + random.below(12));
    let mut text = random.of(&["time", "date", "ds", "x"]).to_owned();
    for column in 0..columns {
        let name = if random.once_in(8) { random.of(&text::CELLS).to_owned() } else { format!("c{column}") };
        text += &format!(",{name}");
    }
    text.push('\n');
    let mut row = 0;
    for _ in 0..random.below(120) {
        row += if random.once_in(10) { 1 + random.below(4) } else { 1 };
        text += &axis.format(row);
        for _ in 0..columns {
            let number = random.below(2000) as f64 / 8.0 - 100.0;
            text += &match random.below(40 * missing) {
                0 => format!(",{}", random.of(&text::CELLS)),
                1..40 => ",".to_owned(),
                _ => format!(",{number}"),
            };
        }
        text.push('\n');
    }
    text
}

/// Some dialects that differ from the usual one in everything.
fn dialects() -> Vec<Dialect> {
    let texts = [
        r##"{"decimal": "comma", "date_format": "dd.mm.yyyy", "tz": "Europe/Berlin", "sort": true, "duplicates": "mean"}"##,
        r##"{"separator": "semicolon", "comment": "#", "date_format": "epoch-ms", "duplicates": "last"}"##,
        r##"{"comment": "none", "date_format": "mm/dd/yyyy", "tz": "America/New_York", "sort": true, "duplicates": "first"}"##,
    ];
    texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect()
}

/// The hours of a local time, days of which clocks are set forward or back.
fn local(rows: usize) -> String {
    let axis = TimeAxis::new(jiff::civil::date(2024, 10, 26).at(0, 0, 0, 0), TimeStep::seconds(3600), false);
    let row = |row: usize| {
        let time = axis.at(row);
        let offset = if (24..30).contains(&row) { ["+02:00", "+01:00", ""][row % 3] } else { "" };
        format!(
            "{:02}.{:02}.2024 {:02}:30{offset};{},5\n",
            time.day(),
            time.month(),
            time.hour(),
            row * row % 17
        )
    };
    (0..rows).fold("time;a\n".to_owned(), |all, at| all + &row(at))
}

/// Milliseconds since 1970, with comments between them.
fn since_1970(rows: usize) -> String {
    let row = |row: usize| {
        format!("{};{}\n{}", 1_467_331_200_000_u64 + row as u64 * 60_000, row % 7, ["", "# x\n"][row % 2])
    };
    (0..rows).fold("# a, b\ntime;a\n".to_owned(), |all, at| all + &row(at))
}

/// Reads a table in every way.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    let refused = |error: Error| message(&error.to_string());
    for step in
        [None, Some(TimeStep::seconds(3600)), Some(TimeStep::Months(1)), Some(TimeStep::BUSINESS_DAYS)]
    {
        for strict in [false, true] {
            match Series::from_csv(bytes, "a.csv", &ReadOptions { strict, step, ..ReadOptions::default() }) {
                Ok((series, report)) => {
                    sound(&series)?;
                    if strict && !(report.is_complete() && series.grid().is_complete()) {
                        return Err("what is missing was to be refused".to_owned());
                    }
                }
                Err(error) => refused(error)?,
            }
        }
    }
    for dialect in dialects() {
        let options = ReadOptions { dialect: dialect.clone(), ..ReadOptions::default() };
        match SeriesSet::from_csv(bytes, "a.csv", &options, Layout::Auto) {
            Ok((set, _)) => set.series().iter().try_for_each(|series| match set.is_independent() {
                true => Ok(()),
                false => sound(series),
            })?,
            Err(error) => refused(error)?,
        }
        let rule = LabelRule { horizon: 1, threshold: 0.5, change: Change::Difference };
        let options = PanelOptions { price: "price".to_owned(), rule, max_gap: MaxGap::Season, dialect };
        match Panel::from_csv(bytes, "a.csv", &options) {
            Ok((panel, _)) => sound_panel(&panel)?,
            Err(error) => refused(error)?,
        }
    }
    for (layout, strict) in [(Layout::Auto, false), (Layout::Independent, false), (Layout::Independent, true)]
    {
        let options = ReadOptions { strict, ..ReadOptions::default() };
        match SeriesSet::from_csv(bytes, "a.csv", &options, layout) {
            Ok((set, _)) => sound_set(&set)?,
            Err(error) => refused(error)?,
        }
    }
    for (price, horizon, threshold, change, max_gap) in [
        ("price", 1, 0.0, Change::Relative, MaxGap::Season),
        ("b", 3, 0.5, Change::Difference, MaxGap::Rows(2)),
        ("y", usize::MAX, f64::NAN, Change::Difference, MaxGap::Rows(0)),
    ] {
        let options = PanelOptions {
            price: price.to_owned(),
            rule: LabelRule { horizon, threshold, change },
            max_gap,
            dialect: Dialect::default(),
        };
        match Panel::from_csv(bytes, "a.csv", &options) {
            Ok((panel, _)) => sound_panel(&panel)?,
            Err(error) => refused(error)?,
        }
    }
    Ok(())
}

/// All that is promised of a series that was read.
fn sound(series: &Series) -> Result<(), String> {
    let fault = |what: &str| Err(format!("{what} in {:?}", series.names()));
    let (rows, channels, grid, time) = (series.rows(), series.channels(), series.grid(), series.time());
    if series.values().len() != rows * channels || rows < 2 || channels == 0 {
        return fault("rows or channels do not fit the values");
    }
    if !series.values().iter().all(|&value| (value as f32).is_finite()) {
        return fault("a value that is not finite");
    }
    if (1..rows).any(|row| time.at(row) <= time.at(row - 1)) {
        return fault("times that do not ascend");
    }
    for channel in 0..channels {
        let mut last = None;
        for row in 0..rows {
            let value = series.values()[row * channels + channel];
            match (grid.is_observed(row, channel), last) {
                (false, Some(last)) if value != last => {
                    return fault("a filled value that is not the last one known");
                }
                (false, _) => {}
                (true, _) => last = Some(value),
            }
        }
        if last.is_none() {
            return fault("a channel without a value");
        }
    }
    for (context, horizon, max_gap) in [(4, 2, 3), (1, 1, 0), (12, 3, 1000)] {
        match Split::new(series, &SplitRule::default(), context, horizon, max_gap) {
            Ok(split) => sound_split(series, &split, max_gap)?,
            Err(error) => message(&error.to_string())?,
        }
    }
    header(series.names())?;
    written_and_read(series)
}

/// No window reaches where it must not, and every channel has something to be measured by.
fn sound_split(series: &Series, split: &Split, max_gap: usize) -> Result<(), String> {
    let (grid, length) = (series.grid(), split.context + split.horizon);
    let gaps = grid.gaps_to_avoid(max_gap);
    for part in [&split.train, &split.validation, &split.test] {
        let crosses = |start: usize| {
            gaps.iter().find(|Gap { rows, .. }| rows.start < start + length && start < rows.end)
        };
        if let Some(start) =
            part.starts().find(|&start| start + length > part.rows.end || crosses(start).is_some())
        {
            return Err(format!("the window from row {start} on reaches {:?}", crosses(start)));
        }
        let observed = |part: &Part, channel| {
            part.starts().any(|start| grid.observed(start + split.context..start + length, channel) > 0)
        };
        if let Some(channel) = (0..series.channels()).find(|&channel| !observed(part, channel)) {
            return Err(format!("channel {channel} of {:?} is scored by nothing", part.own));
        }
    }
    let scaler = match Scaler::fit(series, split.train.rows.clone()) {
        Ok(scaler) => scaler,
        Err(error) => return message(&error.to_string()),
    };
    if let Some(channel) = scaler.fault() {
        return Err(format!("a run would keep {scaler:?}, and refuse channel {channel} of it"));
    }
    // What is taken here is what a model sees.
    let standardised = series.grid().standardised(&scaler);
    let windows = match Windows::new(&standardised, split.context, split.horizon, &Device::cpu()) {
        Ok(windows) => windows,
        Err(error) => return message(&error.to_string()),
    };
    for starts in windows.batches(&split.train, 1 << 10).map_err(|e| e.to_string())? {
        let (context, horizon) = windows.cut(&starts).map_err(|e| e.to_string())?;
        for values in [context, horizon].map(|tensor| tensor.to_vec::<f32>()) {
            if values.map_err(|e| e.to_string())?.iter().any(|value| !value.is_finite()) {
                return Err("a window of values that are not finite".to_owned());
            }
        }
    }
    Ok(())
}

/// All that is promised of a set of series: each is sound, and every value that a window of it takes is of its own series.
fn sound_set(set: &SeriesSet) -> Result<(), String> {
    let fault = |what: &str| Err(format!("{what} in {} series", set.series().len()));
    for series in set.series() {
        let (rows, grid) = (series.rows(), series.grid());
        if set.is_independent()
            && (series.channels() != 1 || !grid.is_observed(0, 0) || !grid.is_observed(rows - 1, 0))
        {
            return fault("an independent series that begins or ends without a value");
        }
    }
    for (context, horizon, max_gap) in [(4, 2, 3), (1, 1, 0), (50, 7, 2)] {
        let (split, stack) = match set.split(&SplitRule::default(), context, horizon, max_gap) {
            Ok(split) => split,
            Err(error) => {
                message(&error.to_string())?;
                continue;
            }
        };
        let scaler = match set.scaler(&stack, Scaling::Standard) {
            Ok(scaler) => scaler,
            Err(error) => {
                message(&error.to_string())?;
                continue;
            }
        };
        let windows = match Windows::of(set, &stack, &scaler, (context, horizon), &Device::cpu()) {
            Ok(windows) => windows,
            Err(error) => {
                message(&error.to_string())?;
                continue;
            }
        };
        for part in [&split.train, &split.validation, &split.test] {
            for starts in windows.batches(part, 1 << 10).map_err(|e| e.to_string())? {
                let (x, y) = windows.cut(&starts).map_err(|e| e.to_string())?;
                let weights = windows.weights(&starts, part).map_err(|e| e.to_string())?;
                for values in [x, y, weights.clone()].map(|tensor| tensor.to_vec::<f32>()) {
                    if values.map_err(|e| e.to_string())?.iter().any(|value| !value.is_finite()) {
                        return fault("a window of values that are not finite");
                    }
                }
                let counted =
                    weights.sum(()).and_then(|sum| sum.to_scalar::<f32>()).map_err(|e| e.to_string())?;
                if counted < starts.numel() as f32 {
                    return fault("a window that forecasts nothing");
                }
            }
        }
    }
    Ok(())
}

/// Nothing that a spreadsheet would run.
fn header(names: &[String]) -> Result<(), String> {
    let names = [&["time".to_owned()][..], names].concat();
    let line = refrain_cli::readers::header(&names)?;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(line.as_slice());
    let cells = reader.records().next().ok_or("no header")?.map_err(|e| e.to_string())?;
    match cells.iter().find(|cell| cell.starts_with(['=', '+', '-', '@', '\t', '\r'])) {
        Some(cell) => Err(format!("a spreadsheet would run {cell:?}")),
        None if cells.len() != names.len() => Err(format!("{} cells of {} names", cells.len(), names.len())),
        None => Ok(()),
    }
}

/// A series that is written down is read as the same.
fn written_and_read(series: &Series) -> Result<(), String> {
    let has = |name: &str| series.names().iter().any(|other| other.eq_ignore_ascii_case(name));
    // The time column would not be the one that is called so, or the format the long one.
    if has("time") || ["unique_id", "ds", "y"].iter().all(|name| has(name)) {
        return Ok(());
    }
    let quoted = |cell: &str| format!("\"{}\"", cell.replace('"', "\"\""));
    let cells = |cells: &mut dyn Iterator<Item = String>| {
        cells.map(|cell| quoted(&cell)).collect::<Vec<_>>().join(",")
    };
    let mut names = std::iter::once("time".to_owned()).chain(series.names().iter().cloned());
    let mut text = cells(&mut names) + "\n";
    for row in 0..series.rows() {
        let value = |channel: usize| match series.grid().is_observed(row, channel) {
            true => series.values()[row * series.channels() + channel].to_string(),
            false => String::new(),
        };
        let mut all = std::iter::once(series.time().format(row)).chain((0..series.channels()).map(value));
        text += &(cells(&mut all) + "\n");
    }
    let options = ReadOptions { step: Some(series.time().step()), ..ReadOptions::default() };
    let (again, _) = Series::from_csv(text.as_bytes(), series.file(), &options)
        .map_err(|error| format!("written down it is refused: {error}\n{text}"))?;
    // A long file is written as a wide one.
    let parts = |of: &Series| (of.names().to_vec(), of.time().clone(), of.grid().clone());
    match parts(&again) == parts(series) {
        true => Ok(()),
        false => Err(format!("written down it is read otherwise:\n{text}")),
    }
}

/// All that is promised of a panel that was read.
fn sound_panel(panel: &Panel) -> Result<(), String> {
    let width = panel.sources().len() * panel.features().len();
    if width == 0 || panel.values().len() != panel.rows() * width {
        return Err("a panel whose values do not fit its rows".to_owned());
    }
    if !panel.values().iter().all(|&value| (value as f32).is_finite()) {
        return Err("a panel with a value that is not finite".to_owned());
    }
    if panel.labelled(0..panel.rows()).is_empty() {
        return Err("a panel without labels".to_owned());
    }
    match FoldRule::default().cut(panel) {
        Ok(folds) => folds.iter().try_for_each(|fold| match fold.test.end <= panel.rows() {
            true => Ok(()),
            false => Err(format!("{fold:?} of {} rows", panel.rows())),
        }),
        Err(error) => message(&error.to_string()),
    }
}
