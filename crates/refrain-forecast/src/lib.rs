//! Time-series forecasting: reading and checking a series, splitting and standardising it, PatchTST and its
//! training, the naive and linear baselines, the errors of a forecast, and its plots; and attention among sources that
//! are observed together.
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
//! // Gaps of at most a day are filled across; what was filled is an input only, and never scored.
//! let split = Split::new(&series, &SplitRule::default(), 336, 96, 24)?;
//! let scaler = Scaler::fit(&series, split.train.rows.clone())?;
//! let errors = evaluate(&LastValue, &series.grid().standardised(&scaler), &split, &split.test);
//! assert!(errors.standardised().mse > 0.0);
//! # Ok::<(), refrain_forecast::Error>(())
//! ```

pub mod baselines;
pub mod data;
mod error;
pub mod models;
pub mod plot;
pub mod settings;
pub mod tasks;
pub mod training;

pub use error::{Error, Result};
