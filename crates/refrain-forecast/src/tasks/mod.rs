//! Tasks: what models learn. Each is one folder with its loss, its metrics and its evaluation.

pub mod classification;
pub mod forecasting;
pub mod pretraining;
mod recorded_passes;
mod shared;
