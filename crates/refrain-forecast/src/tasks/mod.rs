//! What models are trained for: one folder a task, with its loss, its metrics and its evaluation.

pub mod classification;
pub mod forecasting;
