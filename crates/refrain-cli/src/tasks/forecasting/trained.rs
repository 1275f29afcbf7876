//! A trained forecaster: its errors on a series, and its forecast.

use refrain::{Communicator, Device};
use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::data::series::{Series, SeriesSet};
use refrain_forecast::models::Forecaster;
use refrain_forecast::tasks::forecasting::conformal::Intervals;
use refrain_forecast::tasks::forecasting::quantiles::Crossings;
use refrain_forecast::tasks::forecasting::{Forecast, Predictor};
use serde::Serialize;

use super::Data;
use super::score::{self, Details, Score};
use super::table;
use crate::console::{Console, count};
use crate::error::{Error, Result};
use crate::filled;
use crate::job::Job;
use crate::output::Cell;
use crate::run::SavedModel;
use crate::run_config::{Forecasts, RunConfig};
use crate::source;
use crate::tasks::{Asked, Prediction, Trained};

/// A forecaster with its weights, and the configuration of its run.
pub struct TrainedForecaster {
    config: RunConfig<Forecasts>,
    predictor: Predictor,
}

/// A forecast of what follows some series.
pub struct Next {
    pub set: SeriesSet,
    /// Of a grid one forecast of all channels. Of independent series one of each, in groups.
    pub forecasts: Vec<Forecast>,
}

/// So many independent series are forecast at a time.
const SERIES_AT_ONCE: usize = 4096;

/// What `evaluate --json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    #[serde(flatten)]
    score: &'a Score,
    #[serde(flatten)]
    details: &'a Details,
    parameters: usize,
    weights_sha256: String,
    device: String,
}

impl TrainedForecaster {
    pub fn load(saved: &SavedModel, device: &Device) -> Result<TrainedForecaster> {
        let config = RunConfig::<Forecasts>::from_kept(saved.config()?, &saved.folder)?;
        if config.task.pretraining.is_some() {
            return Err(Error::run(
                &saved.folder,
                "it is a pretrained encoder, which does not forecast yet",
                "train it to forecast: `refrain train --init` with this folder",
            ));
        }
        let predictor = Predictor::of_run(&saved.folder, &saved.checkpoint, device, 1)?;
        Ok(TrainedForecaster { config, predictor })
    }

    fn read(&self, console: Console, name: &str) -> Result<SeriesSet> {
        let (set, report) = source::read(name, &self.config.read_options(), self.config.layout(name))?;
        source::describe(console, &set, &report)?;
        Ok(set)
    }

    /// Refuses processes with another model or other data than the first one, or that were asked for something else.
    fn agree(&self, set: &SeriesSet, asked: &Asked, job: &Job) -> Result<()> {
        let mut all = asked.described();
        all["weights"] = self.model().weights_sha256()?.into();
        all["data"] = set.fingerprint().into();
        job.agree(&all)
    }

    fn model(&self) -> &dyn Forecaster {
        self.predictor.forecaster().model()
    }

    /// The errors on the test part of series, in the precision of the run. The table is printed. The processes of a job share the
    /// work, and the first one gets the errors.
    pub fn score(&self, console: Console, set: SeriesSet, job: &Job) -> Result<Option<(Score, Details)>> {
        let set = self.config.matched(set)?;
        let TrainedForecaster { config, predictor } = self;
        let forecaster = predictor.forecaster_of(&set)?;
        let data = config.cut(set)?;
        filled::Windows::of(&data.split).report(console, config.max_gap(data.set.step()))?;
        filled::report(console, &data.set.filled(&data.split, &data.stack))?;
        let windows = data.windows(forecaster.device())?;
        let measured = score::measure(console, config, &data, &forecaster, &windows, job)?;
        Ok(measured.map(|measured| (measured.score, measured.details)))
    }

    /// Series cut into parts as the run cuts its own.
    pub fn cut(&self, set: SeriesSet) -> Result<Data> {
        self.config.cut(self.config.matched(set)?)
    }

    /// The intervals of its forecasts.
    pub fn intervals(&self) -> &Intervals {
        self.predictor.intervals()
    }

    /// Makes forecasts with other intervals from now on.
    pub fn set_intervals(&mut self, intervals: Intervals) -> Result<()> {
        Ok(self.predictor.set_intervals(intervals)?)
    }

    /// Rows of a season.
    pub fn season(&self) -> usize {
        self.config.task.data.season
    }

    /// The forecast of the rows that follow the last row of each series, in the precision of the run. Independent series with a
    /// long gap in the context are left out, with a warning. Several ranks can share the work.
    pub fn next(&self, console: Console, set: SeriesSet, ranks: Option<&Communicator>) -> Result<Next> {
        let set = without_gaps(console, self.config.matched(set)?, &self.config)?;
        let set = set.with_scaled_covariates(&self.config.task.data.covariate_scaler);
        let forecaster = self.predictor.forecaster_of(&set)?;
        let scaler = self.config.scaler_of_all(&set)?;
        if !set.is_independent() {
            let series = set.first();
            let forecasts = vec![forecaster.forecast(series, series.rows(), &scaler)?];
            return Ok(Next { set, forecasts });
        }
        let groups = set.series().chunks(SERIES_AT_ONCE).enumerate();
        let of_group = |(group, series): (usize, &[Series])| {
            let first = group * SERIES_AT_ONCE;
            let scaler = scaler.of(first..first + series.len());
            let origins: Vec<_> = series.iter().map(|series| (series, series.rows())).collect();
            forecaster.forecast_independent(&origins, &scaler, ranks)
        };
        let forecasts = groups.map(of_group).collect::<refrain_forecast::Result<Vec<_>>>()?;
        Ok(Next { set, forecasts })
    }
}

/// The series whose context has no long gap. It is an error if there is none.
fn without_gaps(console: Console, set: SeriesSet, config: &RunConfig<Forecasts>) -> Result<SeriesSet> {
    let (context, max_gap) = (config.task.model.window().context, config.max_gap(set.step()));
    let check = |series: &Series| {
        let rows = series.rows();
        series.check_gaps(rows.saturating_sub(context)..rows, max_gap)
    };
    let names = |sound: bool| {
        let of = set.series().iter().filter(|series| check(series).is_ok() == sound);
        of.flat_map(|series| series.names().to_vec()).collect::<Vec<String>>()
    };
    let (sound, left) = (names(true), names(false));
    if left.is_empty() {
        return Ok(set);
    }
    if sound.is_empty() || !set.is_independent() {
        check(set.first())?;
    }
    let why = format!("there is a gap of more than {max_gap} rows before the forecast (--max-gap)");
    warn_of_left(console, &left, &why)?;
    Ok(set.select(&sound)?)
}

/// Names the first of the series that are left out, if there is one.
fn warn_of_left(console: Console, left: &[String], why: &str) -> Result<()> {
    const FEW: usize = 8;
    if left.is_empty() {
        return Ok(());
    }
    let more =
        if left.len() > FEW { format!(" and {} more", count(left.len() - FEW)) } else { String::new() };
    let some = left.iter().take(FEW).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    console.warn(format!("left out, because {why}: {some}{more}"))
}

impl Trained for TrainedForecaster {
    fn dialect(&mut self) -> &mut Dialect {
        &mut self.config.task.data.dialect
    }

    fn source(&self) -> &str {
        &self.config.task.data.source
    }

    fn evaluate(self: Box<Self>, console: Console, data: &str, job: &Job) -> Result<()> {
        let set = self.read(console, data)?;
        self.agree(&set, &Asked::default(), job)?;
        let Some((score, details)) = self.score(console, set, job)? else { return Ok(()) };
        details.show(console)?;
        console.result(&Outcome {
            score: &score,
            details: &details,
            parameters: self.model().parameter_count(),
            weights_sha256: self.model().weights_sha256()?,
            device: self.predictor.forecaster().device().name(),
        })
    }

    /// See [`table::of`] for the columns; of several horizons, the first column is `horizon`.
    fn forecast(
        self: Box<Self>,
        console: Console,
        data: &str,
        asked: &Asked,
        job: &Job,
    ) -> Result<Prediction> {
        let longest = self.config.task.model.window().horizon;
        if let Some(longer) = asked.horizons.iter().find(|&&horizon| horizon > longest) {
            return Err(Error::usage(
                format!(
                    "--horizon {longer} is longer than the {longest} rows that the model was trained to forecast"
                ),
                "choose at most those, or train with a longer --horizon",
            ));
        }
        let set = self.read(console, data)?;
        self.agree(&set, asked, job)?;
        let set = match &asked.ids {
            // What a model needs of a grid it gets; only the table is of some channels.
            Some(ids) if set.is_independent() => set.select(ids)?,
            _ => set,
        };
        let set = match &asked.from {
            None => set,
            Some(time) => {
                let (before, left) = set.before(time, &self.config.task.data.dialect)?;
                warn_of_left(console, &left, &format!("they are not known up to {time}"))?;
                before
            }
        };
        let mut next = self.next(console, set, job.communicator().as_ref())?;
        if let (Some(ids), false) = (&asked.ids, next.set.is_independent()) {
            next = next.of_channels(ids)?;
        }
        let mut crossings = Crossings::default();
        next.forecasts.iter().for_each(|forecast| crossings.add(forecast.crossings));
        score::say_crossings(console, crossings)?;
        let (columns, rows) = match asked.horizons[..] {
            [] => table::of(&next),
            [horizon] => table::of(&next.prefix(horizon)),
            _ => several(&next, &asked.horizons),
        };
        let horizon = asked.horizons.iter().copied().max().unwrap_or(longest);
        let (series, many) = (next.set.first(), next.set.series().len());
        let time = |step: usize| series.time().format(series.rows() + step);
        let summary = match next.set.is_independent() {
            true => format!("{} rows after each of {} series", count(horizon), count(many)),
            false => format!("{} rows from {} to {}", count(horizon), time(0), time(horizon - 1)),
        };
        Ok(Prediction { columns, rows, weights_sha256: self.model().weights_sha256()?, summary })
    }
}

/// The tables of several horizons below one another, told apart by the first column.
fn several(next: &Next, horizons: &[usize]) -> (Vec<String>, Vec<Vec<Cell>>) {
    let (mut columns, mut all) = (Vec::new(), Vec::new());
    for &horizon in horizons {
        let (names, rows) = table::of(&next.prefix(horizon));
        columns = std::iter::once("horizon".to_owned()).chain(names).collect();
        let cell = || Cell::Number(horizon as f32);
        all.extend(rows.into_iter().map(|row| std::iter::once(cell()).chain(row).collect::<Vec<_>>()));
    }
    (columns, all)
}

impl Next {
    /// The name of each channel of a grid, or of each independent series; the forecast that it is in, its column there, and the
    /// number of columns.
    pub fn columns(&self) -> impl Iterator<Item = (&String, &Forecast, usize, usize)> {
        let of_group = move |group: usize| {
            let width = self.width(group);
            (0..width).map(move |column| (group, column, width))
        };
        let columns = (0..self.forecasts.len()).flat_map(of_group);
        self.set
            .names()
            .zip(columns)
            .map(|(name, (group, column, width))| (name, &self.forecasts[group], column, width))
    }

    /// Number of columns of a forecast.
    fn width(&self, group: usize) -> usize {
        match self.set.is_independent() {
            true => (self.set.series().len() - group * SERIES_AT_ONCE).min(SERIES_AT_ONCE),
            false => self.set.channels(),
        }
    }

    /// The first rows of the forecast.
    fn prefix(&self, horizon: usize) -> Next {
        let of = |forecast: &Forecast, group: usize| {
            let width = self.width(group);
            let mut forecast = forecast.clone();
            forecast.values.truncate(horizon * width);
            for interval in &mut forecast.intervals {
                interval.low.truncate(horizon * width);
                interval.high.truncate(horizon * width);
            }
            forecast
        };
        let forecasts =
            self.forecasts.iter().enumerate().map(|(group, forecast)| of(forecast, group)).collect();
        Next { set: self.set.clone(), forecasts }
    }

    /// The forecast of some channels of a grid.
    fn of_channels(self, names: &[String]) -> Result<Next> {
        let all: Vec<String> = self.set.names().cloned().collect();
        let set = self.set.select(names)?;
        let places: Vec<usize> =
            set.names().filter_map(|name| all.iter().position(|known| known == name)).collect();
        let of = |values: &Vec<f64>| -> Vec<f64> {
            values.chunks(all.len()).flat_map(|row| places.iter().map(|&place| row[place])).collect()
        };
        let chosen = |mut forecast: Forecast| {
            forecast.values = of(&forecast.values);
            for interval in &mut forecast.intervals {
                (interval.low, interval.high) = (of(&interval.low), of(&interval.high));
            }
            forecast
        };
        Ok(Next { set, forecasts: self.forecasts.into_iter().map(chosen).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::CheckpointEvery;
    use crate::folder::RunFolder;
    use crate::settings::Settings;
    use crate::tasks::forecasting::train::{self, Training};
    use refrain_forecast::data::series::{Layout, ReadOptions};
    use serde_json::json;

    /// A series of hours with these channels.
    fn series(channels: &[&str]) -> SeriesSet {
        let value = |channel: &str, row: usize| {
            let noise = ((row * 7919 + row * row * 31) % 1009) as f64 / 1009.0;
            if channel == "a" { 10.0 * noise } else { (row % 7) as f64 + 0.1 * noise }
        };
        let mut text = format!("time,{}\n", channels.join(","));
        for row in 0..90 {
            let cells = channels.iter().map(|channel| format!(",{}", value(channel, row)));
            text += &format!("2024-03-{:02} {:02}:00{}\n", 1 + row / 24, row % 24, cells.collect::<String>());
        }
        SeriesSet::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default(), Layout::Auto).unwrap().0
    }

    #[test]
    fn each_of_several_files_gets_the_intervals_of_its_own_channels() {
        let (place, device) = (tempfile::tempdir().unwrap(), Device::cpu());
        let settings = json!({
            "data": "a.csv", "model": "nlinear", "context": 6, "horizon": 3, "season": 2, "epochs": 1, "batch-size": 8,
            "levels": "50", "calibrate": true,
        });
        let values = settings.as_object().unwrap().clone();
        let settings = Settings::of(values).resolve_over(None, None, Default::default()).unwrap();
        let training = Training {
            eager: false,
            checkpoint_every: CheckpointEvery::Epoch,
            init: None,
            interrupt: None,
            tensorboard: false,
        };
        let folder = || RunFolder::create(Some(&place.path().join("run")), "run");
        train::run(Console::silent(), training, &settings, series(&["a", "b"]), folder, &device).unwrap();
        let load = || {
            let saved = SavedModel::open(&place.path().join("run")).unwrap();
            TrainedForecaster::load(&saved, &device).unwrap()
        };
        let next = |forecaster: &TrainedForecaster, channels: &[&str]| {
            forecaster.next(Console::silent(), series(channels), None).unwrap().forecasts
        };
        let forecaster = load();
        for channels in [&["b", "a"][..], &["b", "a"], &["a", "b"], &["b"], &["a", "b"]] {
            assert_eq!(next(&forecaster, channels), next(&load(), channels), "{channels:?}");
        }
        // The intervals of the channels differ, so their order counts.
        let width = |of: &Forecast| of.intervals[0].high[0] - of.intervals[0].low[0];
        let alone = ["a", "b"].map(|channel| width(&next(&load(), &[channel])[0]));
        assert!((alone[0] - alone[1]).abs() > 0.1, "{alone:?}");
    }
}
