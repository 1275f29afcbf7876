//! Forecasts by a model whose forward pass is recorded.

use super::conformal::Intervals;
use super::evaluation::{Evaluation, ForwardPass, ROWS_AT_ONCE, evaluate_pass};
use super::forecast::Forecast;
use super::metrics::Units;
use super::model_inputs::ModelInputs;
use crate::data::series::{Part, Scaler, Series};
use crate::data::windows::{WindowCovariates, Windows};
use crate::models::{Forecaster, Mode, WindowShape};
use crate::tasks::recorded_passes::RecordedPasses;
use crate::tasks::shared::each_batch;
use crate::{Error, Result};
use refrain::{Communicator, Device, Precision, Tensor, unrelated_to_recordings};
use std::fmt;
use std::sync::Arc;

/// A model that makes forecasts, with the intervals around them.
///
/// Its forward pass is recorded at the first forecast of each batch size and then replayed, which gives the same values bit for
/// bit. Any number of threads may use it at the same time; a clone shares the model and its recordings. A [`Predictor`](super::Predictor)
/// has the one of a run folder; make one with [`RecordedForecaster::new`] of a model that training has left in memory.
///
/// ```
/// use refrain::{DType, Device, Precision};
/// use refrain_forecast::data::series::{ReadOptions, Scaler, Series};
/// use refrain_forecast::models::{ForecasterConfig, nlinear::NLinearConfig};
/// use refrain_forecast::tasks::forecasting::{RecordedForecaster, conformal::Intervals};
///
/// let (rows, device) = ((1..=28).map(|day| format!("2024-02-{day:02},{}\n", day * day)), Device::cpu());
/// let csv = "time,a\n".to_owned() + &rows.collect::<String>();
/// let (series, _) = Series::from_csv(csv.as_bytes(), "a.csv", &ReadOptions::default())?;
/// let scaler = Scaler::fit(&series, 0..20)?;
///
/// let (context, horizon) = (7, 2);
/// let model = NLinearConfig { channels: 1, context, horizon, individual: false }.build(DType::F32, &device, 42)?;
/// let forecaster = RecordedForecaster::new(model, horizon, Intervals::default(), Precision::F32, 1)?;
/// let next = forecaster.forecast(&series, series.rows(), &scaler)?;
/// assert_eq!(next.values.len(), horizon);
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
#[derive(Clone)]
pub struct RecordedForecaster {
    model: Arc<dyn Forecaster>,
    /// Of a forecast, whatever values the model has in each row.
    window: WindowShape,
    intervals: Intervals,
    passes: Arc<RecordedPasses>,
}

impl RecordedForecaster {
    /// A forecaster of `horizon` rows, which makes up to `at_once` forecasts at the same time. A model that was trained with several
    /// values in each row has a [horizon](WindowShape::horizon) that is as many times longer.
    ///
    /// # Errors
    /// [`Error::Model`] if the model has other quantiles than the intervals.
    pub fn new(
        model: impl Into<Arc<dyn Forecaster>>,
        horizon: usize,
        intervals: Intervals,
        precision: Precision,
        at_once: usize,
    ) -> Result<RecordedForecaster> {
        let model = model.into();
        let window = WindowShape { horizon, ..model.window() };
        intervals.check(model.window().horizon, horizon)?;
        let device = model.parameters().values().device().clone();
        let forward = {
            let model = model.clone();
            move |inputs: &[Tensor]| {
                let covariates = ModelInputs::covariates(inputs, window.context);
                model.forward_with(&inputs[0], &covariates, Mode::Eval)
            }
        };
        let passes = Arc::new(RecordedPasses::new(&device, precision, at_once, forward));
        Ok(RecordedForecaster { model, window, intervals, passes })
    }

    /// The model.
    pub fn model(&self) -> &dyn Forecaster {
        &*self.model
    }

    /// The shape of the windows of a forecast.
    pub fn window(&self) -> WindowShape {
        self.window
    }

    /// The intervals of its forecasts.
    pub fn intervals(&self) -> &Intervals {
        &self.intervals
    }

    /// The device of the model.
    pub fn device(&self) -> &Device {
        self.passes.device()
    }

    /// The same with another model.
    pub(super) fn with_model(&self, model: Box<dyn Forecaster>) -> Result<RecordedForecaster> {
        let (horizon, intervals) = (self.window.horizon, self.intervals.clone());
        RecordedForecaster::new(model, horizon, intervals, self.passes.precision(), self.passes.at_once())
    }

    /// The same with other intervals.
    ///
    /// # Errors
    /// [`Error::Model`] if the model has other quantiles than they.
    pub fn with_intervals(&self, intervals: Intervals) -> Result<RecordedForecaster> {
        intervals.check(self.model.window().horizon, self.window.horizon)?;
        Ok(RecordedForecaster { intervals, ..self.clone() })
    }

    /// The forecast of the rows of a series from row `origin` on. The scaler has the scale of each channel.
    ///
    /// # Errors
    /// [`Error::NotFinite`] if a value of it is not finite; [`Error::ShortContext`] if there are fewer rows before `origin` than the
    /// context of the model; [`Error::FutureUnknown`] if the series lacks future covariates of these rows; [`Error::Model`] if the
    /// series and the model have different channels; [`Error::Engine`] if they have different covariates, or the device fails.
    pub fn forecast(&self, series: &Series, origin: usize, scaler: &Scaler) -> Result<Forecast> {
        let WindowShape { channels, context, .. } = self.window;
        self.check_channels(series.channels())?;
        if origin < context || origin > series.rows() {
            return Err(Error::ShortContext {
                file: series.file().to_owned(),
                rows: origin.min(series.rows()),
                context,
            });
        }
        let mut inputs = ModelInputs::new(self.window, 1);
        inputs.push(series, origin, scaler)?;
        self.forecast_inputs(&inputs, scaler, channels)
    }

    /// The forecast of the rows from a row on of each of some independent series. The scaler has the scale of each series. Where a
    /// series has fewer rows before than the context, the mean of these stands for what is missing.
    ///
    /// Several ranks can share the work: if all of them call it with their communicator and the same model and series, each computes
    /// a part of the forecasts, and all get the result of one process, bit for bit.
    ///
    /// # Errors
    /// Those of [`RecordedForecaster::forecast`]; [`Error::ShortContext`] if a series has no row before its origin.
    ///
    /// # Panics
    /// If the scaler is one of other series.
    pub fn forecast_independent(
        &self,
        origins: &[(&Series, usize)],
        scaler: &Scaler,
        ranks: Option<&Communicator>,
    ) -> Result<Forecast> {
        assert_eq!(scaler.mean.len(), origins.len(), "a scale of each series");
        self.check_channels(1)?;
        for &(series, origin) in origins {
            self.check_channels(series.channels())?;
            if origin == 0 || origin > series.rows() {
                let (file, rows) = (series.file().to_owned(), origin.min(series.rows()));
                return Err(Error::ShortContext { file, rows, context: 1 });
            }
        }
        let length = self.model.window().horizon;
        let batches: Vec<_> = origins.chunks(ROWS_AT_ONCE).collect();
        let lengths: Vec<usize> = batches.iter().map(|origins| origins.len() * length).collect();
        let compute = |batch: usize| {
            let mut inputs = ModelInputs::new(self.window, batches[batch].len());
            for (at, &(series, origin)) in batches[batch].iter().enumerate() {
                let at = batch * ROWS_AT_ONCE + at;
                inputs.push(series, origin, &scaler.of(at..at + 1))?;
            }
            self.passes.call(|device| inputs.tensors(device), |outputs| outputs.copy(0))
        };
        let mut y = Vec::with_capacity(origins.len() * length);
        each_batch(ranks, &lengths, compute, |_, values: &mut [f32]| {
            y.extend_from_slice(values);
            Ok(())
        })?;
        Forecast::of(y, &self.intervals, scaler, 1, self.window.horizon)
    }

    /// The errors over all windows and channels of a part, bit for bit those of [`evaluate`](super::evaluation::evaluate) in the precision
    /// of the forecaster. All batches but the last one replay the same recording.
    ///
    /// # Errors
    /// [`Error::Engine`] if the model refuses the windows' channels or covariates, its forward pass can't be recorded, or the part reaches
    /// past the series; [`Error::Model`] if the model has no such intervals.
    pub fn evaluate(
        &self,
        units: &Units,
        windows: &Windows,
        part: &Part,
        ranks: Option<&Communicator>,
    ) -> Result<Evaluation> {
        // Nothing of it belongs to a step that another thread records.
        unrelated_to_recordings(|| evaluate_pass(self, &self.intervals, units, windows, part, ranks))
    }

    /// The forecast of windows. The scaler has the scale of each channel of each window.
    pub(super) fn forecast_inputs(
        &self,
        inputs: &ModelInputs,
        scaler: &Scaler,
        channels: usize,
    ) -> Result<Forecast> {
        let y = self.passes.call(|device| inputs.tensors(device), |outputs| outputs.to_vec::<f32>(0))?;
        Forecast::of(y, &self.intervals, scaler, channels, self.window.horizon)
    }

    fn check_channels(&self, found: usize) -> Result<()> {
        let WindowShape { channels, .. } = self.window;
        if found == channels {
            return Ok(());
        }
        Err(Error::Model {
            problem: format!("a series has {found} channels, but the model has {channels}"),
            fix: "forecast series with the channels of the model",
        })
    }
}

impl fmt::Debug for RecordedForecaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedForecaster")
            .field("model", &self.model.name())
            .field("window", &self.window)
            .field("intervals", &self.intervals)
            .field("passes", &self.passes)
            .finish()
    }
}

impl ForwardPass for RecordedForecaster {
    fn length(&self) -> usize {
        self.model.window().horizon
    }

    fn compute(&self, contexts: &Tensor, covariates: WindowCovariates) -> Result<Tensor> {
        let inputs = ModelInputs::of(contexts.clone(), covariates);
        self.passes.call(|_| Ok(inputs), |outputs| outputs.copy(0))
    }
}
