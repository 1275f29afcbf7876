//! The page about a run of a forecaster: its data, its training, its test errors, and some of its forecasts.

use refrain_forecast::data::series::{Filled, Part};
use refrain_forecast::plot::{Line, lines_svg};
use refrain_forecast::tasks::forecasting::metrics::Metrics;

use super::Data;
use super::plots::Drawer;
use super::score::{Measured, OfChannel, metric_cells, metric_header};
use crate::console::{count, number, seconds};
use crate::error::Result;
use crate::html::Page;

/// What is known of the training.
pub struct Trained<'a> {
    /// The name of the run.
    pub name: &'a str,
    pub parameters: usize,
    pub epochs: usize,
    pub best_epoch: usize,
    pub seconds: f64,
    /// The plot of the losses.
    pub losses: &'a str,
}

/// The most rows of a table.
const ROWS: usize = 200;

/// The page, as HTML that needs no network.
pub fn page(drawer: &Drawer, measured: &Measured, trained: &Trained) -> Result<String> {
    let mut page = Page::new(&format!("refrain: {}", trained.name));
    summary(&mut page, drawer, trained);
    page.heading("Losses");
    page.svg(trained.losses);
    errors(&mut page, measured);
    by_channel(&mut page, measured);
    by_step(&mut page, measured);
    calibration(&mut page, measured);
    windows(&mut page, drawer, measured)?;
    filled(&mut page, &measured.score.filled);
    Ok(page.finish())
}

fn summary(page: &mut Page, drawer: &Drawer, trained: &Trained) {
    let Drawer { config, data, forecaster, .. } = drawer;
    let Data { set, split, .. } = data;
    let (model, training) = (&config.task.model, &config.training);
    let (window, time) = (model.window(), set.first().time());
    let rows = match set.is_independent() {
        true => {
            format!("{} independent series, {} rows in all", count(set.series().len()), count(set.rows()))
        }
        false => {
            let rows = set.first().rows();
            let times = format!("{} to {}", time.format(0), time.format(rows - 1));
            format!("{} rows of {} channels, {times}", count(rows), set.channels())
        }
    };
    page.heading("Data");
    page.facts(&[("series", set.file().to_owned()), ("size", rows), ("step", time.step().to_string())]);
    let part = |name: &str, part: &Part| {
        let from = match set.is_independent() {
            true => "-".to_owned(),
            false => time.format(part.rows.start),
        };
        let left = part.left_out;
        vec![name.to_owned(), count(part.windows()), from, count(left.across_gaps), count(left.unobserved)]
    };
    let header = ["part", "windows", "from", "left out: across gaps", "left out: nothing observed"];
    let parts =
        [part("training", &split.train), part("validation", &split.validation), part("test", &split.test)];
    page.table(&header.map(str::to_owned), &parts);
    page.heading("Model and training");
    page.facts(&[
        ("model", format!("{}, {}", model.title(), model.summary())),
        ("parameters", count(trained.parameters)),
        ("window", format!("{} rows of context, {} rows of forecast", window.context, window.horizon)),
        ("loss", config.task.loss.title().to_owned()),
        ("batch size", training.batch_size.to_string()),
        ("learning rate", training.lr.to_string()),
        ("seed", training.seed.to_string()),
        ("precision", config.precision.name().to_owned()),
        ("device", forecaster.device().name()),
        (
            "trained",
            format!(
                "{} epochs in {}; the best is epoch {}",
                trained.epochs,
                seconds(trained.seconds),
                trained.best_epoch
            ),
        ),
    ]);
}

fn errors(page: &mut Page, measured: &Measured) {
    page.heading("Test errors");
    page.paragraph("In units of each channel's standard deviation in its training part, over all test windows. Only observed values count.");
    let rows: Vec<(String, Metrics)> =
        measured.all.iter().map(|(name, metrics, _)| (name.clone(), metrics.clone())).collect();
    metrics_table(page, "forecast", &rows);
}

fn metrics_table(page: &mut Page, first: &str, rows: &[(String, Metrics)]) {
    let cells: Vec<Vec<String>> = rows.iter().map(|(name, of)| metric_cells(name, of)).collect();
    page.table(&metric_header(first, rows), &cells);
}

fn by_channel(page: &mut Page, measured: &Measured) {
    let details = &measured.details;
    let each = if details.independent { "series" } else { "channel" };
    page.heading(&format!("Test errors of each {each}"));
    page.paragraph("In its own unit; they are not averaged.");
    let named = |of: &OfChannel| match of.unit {
        Some(unit) => (format!("{} ({unit})", of.name), of.original.clone()),
        None => (of.name.clone(), of.original.clone()),
    };
    let rows: Vec<_> = details.channels.iter().take(ROWS).map(named).collect();
    metrics_table(page, each, &rows);
    if details.channels.len() > ROWS {
        let more = count(details.channels.len() - ROWS);
        page.paragraph(&format!("... and {more} more; refrain evaluate --json has all."));
    }
}

fn by_step(page: &mut Page, measured: &Measured) {
    page.heading("Test errors by step of the horizon");
    let line = |of: fn(&Metrics) -> f64| {
        let of_each = measured
            .all
            .iter()
            .map(move |(name, _, steps)| Line { name: name.clone(), values: steps.iter().map(of).collect() });
        of_each.collect::<Vec<_>>()
    };
    page.svg(&lines_svg("MSE, standardised", "MSE", &line(|of| of.mse), &[]));
    page.svg(&lines_svg("MAE, standardised", "MAE", &line(|of| of.mae), &[]));
}

/// What the intervals cover, beside what they promise.
fn calibration(page: &mut Page, measured: &Measured) {
    let intervals = &measured.score.test_intervals;
    if intervals.is_empty() {
        return;
    }
    page.heading("Calibration of the intervals");
    page.paragraph("An interval of 90 % should contain 90 % of the actual values of the test part. Grey lines are what is promised.");
    let header = ["promised", "covered", "mean width, standardised"].map(str::to_owned);
    let rows: Vec<Vec<String>> = intervals
        .iter()
        .map(|of| vec![format!("{} %", of.level), format!("{:.1} %", of.coverage), number(of.width)])
        .collect();
    page.table(&header, &rows);
    let steps = &measured.details.steps;
    let line = |(at, level): (usize, f64)| Line {
        name: format!("{level} % interval"),
        values: steps.iter().map(|step| step.intervals.get(at).map_or(f64::NAN, |of| of.coverage)).collect(),
    };
    let levels: Vec<f64> = intervals.iter().map(|of| of.level).collect();
    let lines: Vec<Line> = levels.iter().copied().enumerate().map(line).collect();
    page.svg(&lines_svg("Share of actual values inside, by step", "covered (%)", &lines, &levels));
}

/// The forecasts of the best, the median and the worst test window.
fn windows(page: &mut Page, drawer: &Drawer, measured: &Measured) -> Result<()> {
    let mut order: Vec<usize> =
        (0..measured.windows.len()).filter(|&window| measured.windows[window].is_finite()).collect();
    order.sort_by(|&a, &b| measured.windows[a].total_cmp(&measured.windows[b]));
    let Some(last) = order.len().checked_sub(1) else { return Ok(()) };
    page.heading("Forecasts");
    for (name, rank) in [("Best", 0), ("Median", last / 2), ("Worst", last)] {
        let window = order[rank];
        let Some((series, origin)) = drawer.place(window) else { continue };
        let (mse, title) = (number(measured.windows[window].into()), drawer.title(series, origin));
        page.paragraph(&format!("{name} test window ({title}): MSE {mse}"));
        page.svg(&drawer.window(series, origin)?);
    }
    Ok(())
}

fn filled(page: &mut Page, filled: &[Filled]) {
    if filled.is_empty() {
        return;
    }
    page.heading("Filled values");
    page.paragraph("Missing values are replaced by the last one before, as inputs only.");
    let header = ["channel", "part", "share filled"].map(str::to_owned);
    let row =
        |of: &Filled| vec![of.channel.clone(), of.part.to_string(), format!("{:.1} %", of.share * 100.0)];
    page.table(&header, &filled.iter().take(ROWS).map(row).collect::<Vec<_>>());
}
