//! Plots of a forecaster's forecasts in the test part, beside what came true and the baselines.

use refrain_forecast::baselines::{Baseline, LastValue, Linear, SeasonalNaive};
use refrain_forecast::data::series::Series;
use refrain_forecast::plot::{Band, Subplot, forecast_svg};
use refrain_forecast::tasks::forecasting::RecordedForecaster;

use super::Data;
use crate::error::Result;
use crate::run_config::{Forecasts, RunConfig};
use crate::source;

/// The most channels in a plot.
const PANELS: usize = 4;

/// What forecasts are drawn of.
pub struct Drawer<'a> {
    pub config: &'a RunConfig<Forecasts>,
    pub data: &'a Data,
    pub forecaster: &'a RecordedForecaster,
    pub linear: Option<&'a Linear>,
}

/// A channel of a window, as it is drawn.
struct Panel {
    channel: usize,
    context: Vec<f64>,
    truth: Vec<f64>,
    forecast: Vec<f64>,
    bands: Vec<Band>,
    baselines: Vec<(&'static str, Vec<f64>)>,
}

impl Drawer<'_> {
    /// A window in the middle of the test part; of independent series, of the one with the most rows.
    pub fn example(&self) -> Result<String> {
        let Data { set, split, stack, .. } = self.data;
        let tested = stack.origins(&split.test, split.context);
        let longest =
            tested.max_by_key(|(number, ..)| (set.series()[*number].rows(), std::cmp::Reverse(*number)));
        let Some((number, runs, _)) = longest else { return Ok(String::new()) };
        let origins: usize = runs.iter().map(|run| run.len()).sum();
        let origin = runs.into_iter().flatten().nth(origins / 2).unwrap_or(split.context);
        self.window(number, origin)
    }

    /// The test window with this number, in the order of `Evaluation::windows`: its series, and the row where its
    /// horizon begins.
    pub fn place(&self, window: usize) -> Option<(usize, usize)> {
        let Data { split, stack, .. } = self.data;
        let all = stack
            .origins(&split.test, split.context)
            .flat_map(|(number, runs, _)| runs.into_iter().flatten().map(move |origin| (number, origin)));
        all.into_iter().nth(window)
    }

    /// When the forecast of a window begins, and of which series, if there are several.
    pub fn title(&self, number: usize, origin: usize) -> String {
        let set = &self.data.set;
        let series = &set.series()[number];
        let name = match set.is_independent() {
            true => format!("{}, ", series.names()[0]),
            false => String::new(),
        };
        format!("{name}{}", series.time().format(origin))
    }

    /// The window of a series whose horizon begins at a row: a few channels, evenly chosen. Filled values are not drawn.
    pub fn window(&self, number: usize, origin: usize) -> Result<String> {
        let Data { set, split, .. } = self.data;
        let (series, channels) = (&set.series()[number], set.channels());
        let shown: Vec<usize> = match channels {
            0..=PANELS => (0..channels).collect(),
            _ => (0..PANELS).map(|panel| panel * channels / PANELS).collect(),
        };
        let panels = self.panels(number, origin, &shown)?;
        let name = &self.config.task.data.source;
        let subplots: Vec<Subplot> = panels
            .iter()
            .map(|panel| Subplot {
                name: &series.names()[panel.channel],
                unit: source::unit(name, &series.names()[panel.channel]),
                context: &panel.context,
                truth: &panel.truth,
                forecast: &panel.forecast,
                intervals: &panel.bands,
                baselines: &panel.baselines,
            })
            .collect();
        let title = format!(
            "{}: forecast of {} rows from {}",
            source::stem(name),
            split.horizon,
            series.time().format(origin)
        );
        Ok(forecast_svg(&title, series.time(), origin, &subplots))
    }

    fn panels(&self, number: usize, origin: usize, shown: &[usize]) -> Result<Vec<Panel>> {
        let Drawer { config, data, forecaster, .. } = *self;
        let Data { set, split, scaler, .. } = data;
        let (series, horizon) = (&set.series()[number], split.horizon);
        let forecast = match set.is_independent() {
            true => {
                let scaler = scaler.of(number..number + 1);
                forecaster.forecast_independent(&[(series, origin)], &scaler, None)?
            }
            false => forecaster.forecast(series, origin, scaler)?,
        };
        let seasonal = SeasonalNaive::new(config.task.data.season, split.context)?;
        let mut baselines: Vec<&dyn Baseline> = vec![&seasonal, &LastValue];
        baselines.extend(self.linear.map(|linear| linear as &dyn Baseline));
        let of_channel = |values: &[f64], channel: usize| -> Vec<f64> {
            values.iter().skip(channel).step_by(set.channels()).copied().collect()
        };
        let panel = |&channel: &usize| {
            let bands = forecast.intervals.iter().map(|interval| Band {
                level: interval.level,
                low: of_channel(&interval.low, channel),
                high: of_channel(&interval.high, channel),
            });
            let (context, truth) = observed(series, channel, origin, (split.context, horizon));
            let unit = scaler.of(number * set.channels() + channel..number * set.channels() + channel + 1);
            let first = origin.saturating_sub(split.context);
            let rows: Vec<f64> = series.channel(channel).skip(first).take(origin - first).collect();
            let known = unit.transform(&rows);
            let of_baseline = |baseline: &&dyn Baseline| {
                let mut values = vec![0.0; horizon];
                baseline.forecast(&known, &mut values);
                (baseline.name(), unit.inverse(&values))
            };
            Panel {
                channel,
                context,
                truth,
                forecast: of_channel(&forecast.values, channel),
                bands: bands.collect(),
                baselines: baselines.iter().map(of_baseline).collect(),
            }
        };
        Ok(shown.iter().map(panel).collect())
    }
}

/// The observed values of a channel before and from a row on; what was filled, or is not known yet, is NaN.
fn observed(
    series: &Series,
    channel: usize,
    origin: usize,
    (context, horizon): (usize, usize),
) -> (Vec<f64>, Vec<f64>) {
    let first = origin.saturating_sub(context);
    let mut values: Vec<f64> =
        series.grid().truth(channel).skip(first).take(origin - first + horizon).collect();
    values.resize(origin - first + horizon, f64::NAN);
    let truth = values.split_off(origin - first);
    (values, truth)
}
