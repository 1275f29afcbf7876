//! Time-series forecasting and the classification of panels, from a CSV file to plots.
//!
//! There are two tasks:
//!
//! - **Forecasting**: a *series* has one row for each time and one column for each channel. A forecaster (PatchTST, NLinear, DLinear,
//!   iTransformer, TSMixer) predicts the next rows from the rows before.
//! - **Classification**: a *panel* has several sources (assets, stations) that are observed at the same moments. Cross-asset
//!   attention predicts for each source whether it goes up, down or stays flat.
//!
//! # Map
//!
//! | module | what it does |
//! | --- | --- |
//! | [`data::series`] | reads series (one table, or any number of independent ones), infers their calendar, fills short gaps, splits them in time, scales them |
//! | [`data::panel`] | reads a panel, makes labels, cuts it into chronological folds |
//! | [`models`] | PatchTST, NLinear, DLinear, iTransformer, TSMixer and cross-asset attention |
//! | [`tasks`] | what a model learns: its loss, its metrics, its evaluation |
//! | [`training`] | the training loop for every task: order of samples, epochs, early stopping, resuming |
//! | [`baselines`] | last value, seasonal naive and linear forecasts, to compare with |
//! | [`plot`] | losses and forecasts as SVG |
//!
//! A filled value is an input only: it has no weight in losses, metrics, baselines and plots. Splits and scaling never let the
//! future into the past.
//!
//! # Example
//!
//! Read the bundled weather, split it, and measure the simplest baseline:
//!
//! ```
//! use refrain_forecast::baselines::{LastValue, evaluate};
//! use refrain_forecast::data::series::{ReadOptions, Scaler, Series, Split, SplitRule};
//!
//! let (series, report) = Series::from_csv(
//!     refrain_forecast::data::nyc_weather(),
//!     refrain_forecast::data::NYC_WEATHER,
//!     &ReadOptions::default(),
//! )?;
//! assert_eq!((series.rows(), series.channels()), (8730, 18));
//! assert_eq!(report.gap_rows, 16);
//!
//! // Gaps of up to 24 rows (one day) are filled.
//! let split = Split::new(&series, &SplitRule::default(), 336, 96, 24)?;
//! let scaler = Scaler::fit(&series, split.train.rows.clone())?;
//! let grid = series.grid().standardised(&scaler);
//! let errors = evaluate(&LastValue, &grid, &scaler.into(), &split, &split.test);
//! assert!(errors.standardised().mse > 0.0);
//! # Ok::<(), refrain_forecast::Error>(())
//! ```

pub mod baselines;
#[cfg(doctest)]
mod book;
pub mod data;
mod error;
pub mod models;
pub mod plot;
pub mod settings;
pub mod tasks;
pub mod training;

pub use error::{Error, Result};
